"""The rectifier."""

from typing import ClassVar

import jax
from jaxtyping import Array, Float

from twolayer.problem.activations.activation import AbstractActivation
from twolayer.specification.registry import register


@register
class Relu(AbstractActivation):
    r"""The rectifier, :math:`\sigma(x) = \max(x, 0)`, with :math:`\sigma'(0) = 0`."""

    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.relu(x)
