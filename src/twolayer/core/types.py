"""Types that signatures of many rooms share."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

# One of JAX's devices; jax declares its class as a variable.
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    # One number or an array of them, plain or traced.
    Numbers: TypeAlias = float | int | np.number | np.ndarray | jax.Array
    # Whatever a converter makes numbers of: a number, nested lists, arrays of any library.
    NumbersLike: TypeAlias = ArrayLike | jax.Array
    PathLike: TypeAlias = str | Path
else:
    # Nothing is checked while the program runs: a converter refuses a wrong value with one sentence.
    Numbers = NumbersLike = PathLike = object
