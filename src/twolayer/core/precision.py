"""Double precision: always used inside the verbs, switched on explicitly elsewhere, never by importing the package."""

import contextlib
from collections.abc import Iterator

import jax

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.core.program_cache import keep
from twolayer.core.random import fixed_generator


@contextlib.contextmanager
def double() -> Iterator[None]:
    """Compute in float64 inside this block, and draw the same random numbers under all global settings.

    The programs that are compiled are kept for other processes.
    """
    keep()
    with jax.enable_x64(True), fixed_generator():
        yield


def precision(name: str) -> None:
    """Set the global precision of JAX: ``"double"`` or ``"single"``.

    `evolve` and `compare` hold their state in double precision in any case, because single precision loses the drift
    of an overlap at large d. This switch is for your own calls to the numerical functions below them.
    """
    allowed = ("double", "single")
    if name not in allowed:
        raise InvalidInput(f"Argument `name` is {shown(name)}, which is not known: {nearest(name, allowed)}")
    jax.config.update("jax_enable_x64", name == "double")
