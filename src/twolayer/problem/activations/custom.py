"""Activations that users define by a function."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, first_line, shown
from twolayer.core.types import Unchecked
from twolayer.problem.activations.activation import AbstractActivation
from twolayer.problem.activations.found_kinks import kinks_in
from twolayer.specification.fields import accepts, count, static, vector
from twolayer.specification.registry import register

# A kink that was found is one that was given if it is this close.
SAME = 1e-6


@accepts(Callable)
def _scalar_function(value: Any) -> Callable[[Any], Any]:
    if not callable(value):
        raise InvalidInput(f"Argument `function` must be a JAX function of one number, but is {shown(value)}.")
    try:
        result = jax.eval_shape(value, jax.ShapeDtypeStruct((), jnp.float32))
        shape, dtype = result.shape, result.dtype
    except Exception as error:  # a user's function may raise anything
        raise InvalidInput(
            f"Argument `function` must be a JAX function of one number, but fails on one: {first_line(error)}"
        ) from None
    if shape != ():
        raise InvalidInput(f"Argument `function` must return one number for one number, but returns shape {shape}.")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise InvalidInput(f"Argument `function` must return a real number, but returns the type {dtype}.")
    return value


@register
class Custom(AbstractActivation):
    """An activation given by a JAX function of one number.

    The places where it or its derivative jumps (``kinks``) are found from the operations of which the function
    consists; places that are given are added to them. No rule for smooth functions is used across kinks. If
    there are too many, as in an oscillation between lines, ``has_known_kinks`` is false, and only rules that need to
    know nothing of the function serve it.
    """

    function: Callable[[Any], Any] = static(_scalar_function)
    kinks: tuple[float, ...] = static(vector("kinks"), default=())
    parity: int = static(count("parity", low=-1, high=1), default=0)
    growth: int = static(count("growth", low=0), default=1)

    def __init__(
        self,
        function: Unchecked[Callable[[Any], Any]],
        kinks: Unchecked[Sequence[float]] = (),
        parity: Unchecked[int] = 0,
        growth: Unchecked[int] = 1,
    ):
        """Find the kinks of the function."""
        self.function = _scalar_function(function)
        given = vector("kinks")(kinks)
        own = [kink for kink in kinks_in(self.function) or () if all(abs(kink - other) > SAME for other in given)]
        self.kinks = tuple(sorted({*given, *own}))
        self.parity = count("parity", low=-1, high=1)(parity)
        self.growth = count("growth", low=0)(growth)

    @property
    def has_known_kinks(self) -> bool:
        return kinks_in(self.function) is not None

    needs_arguments: ClassVar[bool] = True
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.vectorize(self.function)(x)

    def __repr__(self) -> str:
        return f"Custom({getattr(self.function, '__name__', 'a function')})"
