"""What every activation declares about itself, besides its values."""

import abc
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.specification.registry import registered

if TYPE_CHECKING:  # an AbstractVar is no argument of the constructor, but a type checker would take it for one
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


class AbstractActivation(eqx.Module):
    """A function of one local field, applied elementwise.

    The declarations let an engine be chosen before anything is computed: where the derivative jumps (``kinks``), the
    symmetry (``parity`` +1 even, -1 odd, 0 neither), the power with which it grows (``growth``, 0 when bounded), and
    its coefficients when it is a polynomial (constant first, else None).
    """

    kinks: AbstractVar[tuple[float, ...]]
    parity: AbstractVar[int]
    growth: AbstractVar[int]
    coefficients: AbstractVar[tuple[float, ...] | None]

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The activation at each element."""

    def derivative(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The derivative at each element, by differentiation of the function itself."""
        return jax.jvp(self, (x,), (jnp.ones_like(x),))[1]

    @staticmethod
    def parse(name: str) -> "AbstractActivation":
        """The activation of that name, such as ``"erf"`` or ``"he3"``."""
        return as_activation(name)


if TYPE_CHECKING:

    class AsActivation:
        """A field with the converter `as_activation`, as a type checker sees it: more goes in than comes out."""

        def __get__(self, instance: Any, owner: Any = None) -> AbstractActivation: ...

        def __set__(self, instance: Any, value: AbstractActivation | str | Callable[[Any], Any]) -> None: ...

else:
    AsActivation = AbstractActivation


def names() -> dict[str, Callable[[], AbstractActivation]]:
    """The activations that have a name: the registered classes that need no argument, in lower case."""
    classes = registered(AbstractActivation).values()
    plain = [cls for cls in classes if not getattr(cls, "needs_arguments", False)]
    return {cls.__name__.removesuffix("Activation").lower(): cls for cls in plain}


def as_activation(value: Any) -> AbstractActivation:
    """An activation from an activation, its name, or a JAX function of one number."""
    if isinstance(value, AbstractActivation):
        return value
    if isinstance(value, str):
        known = names()
        name = value.lower()
        if name in known:
            return known[name]()
        if match := re.fullmatch(r"he([1-9][0-9]?)", name):
            from twolayer.problem.activations.polynomial import HermiteActivation

            return HermiteActivation(int(match.group(1)))
        from twolayer.problem.activations.polynomial import MAX_HERMITE

        allowed = [*known, *(f"he{degree}" for degree in range(1, MAX_HERMITE + 1))]
        raise InvalidInput(f"Activation {shown(value)} is not known: {nearest(value, allowed)}")
    if callable(value):
        from twolayer.problem.activations.custom import Custom

        return Custom(value)
    raise InvalidInput(f"An activation must be a name, an activation object or a JAX function, but is {shown(value)}.")
