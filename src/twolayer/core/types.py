"""Types that signatures of many rooms share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar

import jax
import numpy as np

# One of JAX's devices; jax declares its class as a variable.
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]

# One number that may be differentiated or swept: plain, or of JAX, traced or not.
Number: TypeAlias = float | jax.Array

Accepted = TypeVar("Accepted")
Held = TypeVar("Held")

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    # One number or an array of them, plain or traced.
    Numbers: TypeAlias = float | int | np.number | np.ndarray | jax.Array
    # Whatever a converter makes numbers of: a number, nested lists, arrays of any library.
    NumbersLike: TypeAlias = ArrayLike | jax.Array
    PathLike: TypeAlias = str | Path

    class Converted(Generic[Accepted, Held]):
        """A field with a converter, for type checkers: it accepts more types than it returns."""

        def __get__(self, instance: Any, owner: Any = None) -> Held: ...

        def __set__(self, instance: Any, value: Accepted) -> None: ...

    # An argument of a constructor that hands it on to a converter.
    Unchecked: TypeAlias = Annotated[Accepted, "refused by a converter"]

    # Fields that hold an array of NumPy or JAX, and are given as anything that makes one, such as nested lists.
    Values: TypeAlias = Converted[NumbersLike, Any]
    OptionalValues: TypeAlias = Converted[NumbersLike | None, Any]
else:
    # Nothing is checked while the program runs: a converter refuses a wrong value with one sentence. What signatures
    # show stands beside `object`.
    Numbers = Values = OptionalValues = object
    NumbersLike = Annotated[object, float | int | Sequence | np.ndarray | jax.Array]
    PathLike = Annotated[object, str | Path]

    class Converted:
        """What the field holds, by which specification files are read."""

        def __class_getitem__(cls, types: tuple[object, object]) -> object:
            return types[1]

    class Unchecked:
        """Any object; the signature of the constructor shows what it is to be."""

        def __class_getitem__(cls, accepted: object) -> object:
            return Annotated[object, accepted]
