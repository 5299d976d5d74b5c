"""The error function, the activation of the soft committee machine."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.problem.activations.activation import AbstractActivation
from twolayer.specification.registry import register


@register
class Erf(AbstractActivation):
    r"""The error function, :math:`\sigma(x) = \mathrm{erf}(x / \sqrt 2)`, as in :cite:t:`saad1995`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = -1
    growth: ClassVar[int] = 0
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.lax.erf(x / jnp.sqrt(2.0).astype(x.dtype))
