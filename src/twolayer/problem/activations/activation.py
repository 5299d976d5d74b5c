"""The base class of activations: their values and declared properties."""

import abc
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.specification.fields import accepts
from twolayer.specification.registry import registered

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


# Other names in use for some activations.
ALIASES = {"swish": "silu", "identity": "linear"}


class AbstractActivation(eqx.Module):
    """A function of one local field, applied elementwise.

    Its declared properties allow an engine to be chosen before anything is computed: where the derivative jumps
    (``kinks``), the symmetry (``parity``: +1 even, -1 odd, 0 neither), the power with which it grows (``growth``: 0 if
    bounded), and its ``coefficients``, constant first, if it is a polynomial (else None).
    """

    kinks: AbstractVar[tuple[float, ...]]
    parity: AbstractVar[int]
    growth: AbstractVar[int]
    coefficients: AbstractVar[tuple[float, ...] | None]

    @abc.abstractmethod
    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the activation at each element."""

    def derivative(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the derivative at each element, by automatic differentiation."""
        return jax.jvp(self, (x,), (jnp.ones_like(x),))[1]

    @property
    def has_known_kinks(self) -> bool:
        """Whether ``kinks`` are all kinks and jumps there are; not if there are too many to find rules between them."""
        return True

    @property
    def is_smooth(self) -> bool:
        """Whether the activation is known to have no kinks and no jumps."""
        return self.has_known_kinks and not self.kinks

    @staticmethod
    def parse(name: str) -> "AbstractActivation":
        """Return the activation of a name such as ``"erf"`` or ``"he3"``."""
        return as_activation(name)


if TYPE_CHECKING:

    class AsActivation:
        """A field with the converter `as_activation` for type checkers: it accepts more types than it returns."""

        def __get__(self, instance: Any, owner: Any = None) -> AbstractActivation: ...

        def __set__(self, instance: Any, value: "ActivationLike") -> None: ...

    ActivationLike: TypeAlias = AbstractActivation | str | Callable[[Any], Any]
else:
    AsActivation = AbstractActivation
    # `as_activation` refuses what it is not with one sentence.
    ActivationLike = Annotated[object, AbstractActivation | str | Callable]


def names() -> dict[str, Callable[[], AbstractActivation]]:
    """Return the activations by name: the registered classes that need no argument, as ``"leaky_relu"``."""
    classes = registered(AbstractActivation).values()
    plain = [cls for cls in classes if not getattr(cls, "needs_arguments", False)]
    words = [re.findall("[A-Z][a-z0-9]*", cls.__name__.removesuffix("Activation")) for cls in plain]
    return {"_".join(word.lower() for word in parts): cls for parts, cls in zip(words, plain, strict=True)}


@accepts(AbstractActivation, str, Callable)
def as_activation(value: ActivationLike) -> AbstractActivation:
    """Convert an activation, its name, or a JAX function of one number to an activation."""
    if isinstance(value, AbstractActivation):
        return value
    if isinstance(value, str):
        by_name = names()
        name = value.lower()
        without_underscores = {key.replace("_", ""): cls for key, cls in by_name.items()}
        plain = ALIASES.get(name, name).replace("_", "")
        if plain in without_underscores:
            return without_underscores[plain]()
        if match := re.fullmatch(r"he([1-9][0-9]?)", name):
            from twolayer.problem.activations.polynomial import HermiteActivation

            return HermiteActivation(int(match.group(1)))
        from twolayer.problem.activations.polynomial import MAX_HERMITE

        allowed = [*by_name, *(f"he{degree}" for degree in range(1, MAX_HERMITE + 1))]
        raise InvalidInput(f"Activation {shown(value)} is not known: {nearest(value, allowed)}")
    if callable(value):
        from twolayer.problem.activations.custom import Custom

        return Custom(value)
    raise InvalidInput(f"An activation must be a name, an activation object or a JAX function, but is {shown(value)}.")
