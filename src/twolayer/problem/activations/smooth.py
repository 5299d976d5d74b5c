"""Smooth activations without closed Gaussian averages."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.problem.activations.base import AbstractActivation
from twolayer.specification.registry import register


@register
class Tanh(AbstractActivation):
    r""":math:`\sigma(x) = \tanh x`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = -1
    growth: ClassVar[int] = 0
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.tanh(x)


@register
class Sigmoid(AbstractActivation):
    r""":math:`\sigma(x) = 1 / (1 + e^{-x})`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 0
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.sigmoid(x)


@register
class Softplus(AbstractActivation):
    r""":math:`\sigma(x) = \log(1 + e^x)`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.softplus(x)


@register
class Gelu(AbstractActivation):
    r""":math:`\sigma(x) = x\,\Phi(x)` with the normal distribution function, not its tanh approximation."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.gelu(x, approximate=False)
