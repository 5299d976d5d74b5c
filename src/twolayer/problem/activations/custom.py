"""A user's own activation."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.fields import count, static
from twolayer.core.registry import register
from twolayer.problem.activations.base import AbstractActivation


def _scalar_function(value: Any) -> Callable[[Any], Any]:
    if not callable(value):
        raise InvalidInput(f"Argument `function` must be a JAX function of one number, but is {value!r}.")
    try:
        shape = jax.eval_shape(value, jax.ShapeDtypeStruct((), jnp.float32)).shape
    except Exception as error:  # whatever the user's function raises, the answer is the same sentence
        raise InvalidInput(
            f"Argument `function` must be a JAX function of one number, but fails on one: {error}"
        ) from None
    if shape != ():
        raise InvalidInput(f"Argument `function` must return one number for one number, but returns shape {shape}.")
    return value


@register
class Custom(AbstractActivation):
    """Any JAX function of one number; say where its derivative jumps (``kinks``) so that no smooth rule is trusted there."""

    function: Callable[[Any], Any] = static(_scalar_function)
    kinks: tuple[float, ...] = eqx.field(static=True, default=(), converter=tuple)
    parity: int = static(count("parity", low=-1, high=1), default=0)
    growth: int = static(count("growth", low=0), default=1)

    needs_arguments: ClassVar[bool] = True
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.vectorize(self.function)(x)
