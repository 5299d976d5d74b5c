"""Smooth activations, and activations with another scale."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.problem.activations.activation import AbstractActivation, AsActivation, as_activation
from twolayer.specification.fields import leaf, number, static
from twolayer.specification.registry import register

# The phase by which a sine is behind a cosine.
QUARTER = 0.5 * math.pi


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


@register
class GeluTanh(AbstractActivation):
    r"""The GELU as `jax.nn.gelu` takes it by default, :math:`\sigma(x) = \frac x2 (1 + \tanh u)`.

    .. math:: u = \sqrt{2/\pi}\,(x + 0.044715\,x^3)

    It differs from `Gelu` by up to 5e-4.
    """

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = None

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jax.nn.gelu(x, approximate=True)


@register
class Cosine(AbstractActivation):
    r"""A wave, :math:`\sigma(x) = \cos(\kappa x + \varphi)` with its ``frequency`` and ``phase``.

    A phase of :math:`-\pi/2` makes it a sine.
    """

    frequency: float = static(number("frequency", above=0.0), default=1.0)
    phase: float = static(number("phase"), default=0.0)

    kinks: ClassVar[tuple[float, ...]] = ()
    growth: ClassVar[int] = 0
    coefficients: ClassVar[tuple[float, ...] | None] = None

    @property
    def parity(self) -> int:
        return 1 if self.phase == 0.0 else -1 if abs(self.phase) == QUARTER else 0

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        if abs(self.phase) == QUARTER:  # exactly odd
            return -jnp.sign(self.phase) * jnp.sin(self.frequency * x)
        return jnp.cos(self.frequency * x + self.phase)


@register
class GaussianBump(AbstractActivation):
    r"""A Gaussian bump, :math:`\sigma(x) = e^{-(x - c)^2 / 2 s^2}` with its ``centre`` c and ``width`` s."""

    centre: float = static(number("centre"), default=0.0)
    width: float = static(number("width", above=0.0), default=1.0)

    kinks: ClassVar[tuple[float, ...]] = ()
    growth: ClassVar[int] = 0
    coefficients: ClassVar[tuple[float, ...] | None] = None

    @property
    def parity(self) -> int:
        return 1 if self.centre == 0.0 else 0

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.exp(-0.5 * ((x - self.centre) / self.width) ** 2)


@register
class Rescaled(AbstractActivation):
    r"""Another activation with rescaled argument and values, :math:`\sigma(x) = A\,\sigma_0(r x) + \alpha`.

    ``Rescaled("erf", rate=2**0.5)`` is the error function as mathematicians define it.
    """

    base: AsActivation = leaf(as_activation)
    amplitude: float = static(number("amplitude"), default=1.0)
    rate: float = static(number("rate", above=0.0), default=1.0)
    offset: float = static(number("offset"), default=0.0)

    needs_arguments: ClassVar[bool] = True

    @property
    def kinks(self) -> tuple[float, ...]:
        return tuple(kink / self.rate for kink in self.base.kinks)

    @property
    def has_known_kinks(self) -> bool:
        return self.base.has_known_kinks

    @property
    def parity(self) -> int:
        return 0 if self.offset and self.base.parity != 1 else self.base.parity

    @property
    def growth(self) -> int:
        return self.base.growth

    @property
    def coefficients(self) -> tuple[float, ...] | None:
        if self.base.coefficients is None:
            return None
        scaled = [self.amplitude * c * self.rate**n for n, c in enumerate(self.base.coefficients)]
        return scaled[0] + self.offset, *scaled[1:]

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return self.amplitude * self.base(self.rate * x) + self.offset
