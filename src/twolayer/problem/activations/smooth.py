"""Smooth activations whose Gaussian averages have no closed form."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.problem.activations.base import AbstractActivation
from twolayer.specification.fields import number, static
from twolayer.specification.registry import register


@register
class Tanh(AbstractActivation):
    r"""The hyperbolic tangent, :math:`\sigma(x) = \tanh x`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = -1
    growth: ClassVar[int] = 0
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.tanh(x)


@register
class Sigmoid(AbstractActivation):
    r"""The logistic function, :math:`\sigma(x) = 1 / (1 + e^{-x})`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 0
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.sigmoid(x)


@register
class Softplus(AbstractActivation):
    r"""The softplus function, :math:`\sigma(x) = \log(1 + e^x)`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.softplus(x)


@register
class Silu(AbstractActivation):
    r"""The SiLU, :math:`\sigma(x) = x / (1 + e^{-\beta x})` with the ``slope`` :math:`\beta`, also called swish."""

    slope: float = static(number("slope"), default=1.0)

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return x * jax.nn.sigmoid(self.slope * x)


@register
class Gelu(AbstractActivation):
    r"""The GELU, :math:`\sigma(x) = x\,\Phi(x)`, with the exact normal distribution function :math:`\Phi`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.gelu(x, approximate=False)
