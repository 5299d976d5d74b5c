"""Polynomial activations, whose Gaussian averages are exact."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.multivariate import hermite
from twolayer.problem.activations.activation import AbstractActivation
from twolayer.specification.fields import count, static, vector
from twolayer.specification.registry import register

# The highest degree of a Hermite polynomial as an activation.
MAX_HERMITE = 12


def horner(coefficients: tuple[float, ...], x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the polynomial with the given coefficients, constant first, at each element."""
    value = jnp.zeros_like(x)
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value


@register
class Linear(AbstractActivation):
    r"""The linear activation, :math:`\sigma(x) = x`."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = -1
    growth: ClassVar[int] = 1
    coefficients: ClassVar[tuple[float, ...] | None] = (0.0, 1.0)

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return x


@register
class SquareActivation(AbstractActivation):
    r"""The square, :math:`\sigma(x) = x^2`, which is the activation of phase retrieval."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 1
    growth: ClassVar[int] = 2
    coefficients: ClassVar[tuple[float, ...] | None] = (0.0, 0.0, 1.0)

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return x * x


@register
class HermiteActivation(AbstractActivation):
    r"""A Hermite polynomial, :math:`\sigma(x) = \mathrm{He}_n(x)`, with leading coefficient 1.

    Its name is ``"he3"`` for n = 3.
    """

    degree: int = static(count("degree", low=1, high=MAX_HERMITE))

    kinks: ClassVar[tuple[float, ...]] = ()
    needs_arguments: ClassVar[bool] = True

    @property
    def parity(self) -> int:
        return 1 if self.degree % 2 == 0 else -1

    @property
    def growth(self) -> int:
        return self.degree

    @property
    def coefficients(self) -> tuple[float, ...] | None:
        return hermite(self.degree)

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return horner(hermite(self.degree), x)


@register
class PolynomialActivation(AbstractActivation):
    r"""A polynomial, :math:`\sigma(x) = \sum_n c_n x^n`, with its ``coefficients``, the constant first."""

    coefficients: tuple[float, ...] = static(vector("coefficients"))

    kinks: ClassVar[tuple[float, ...]] = ()
    needs_arguments: ClassVar[bool] = True

    def __check_init__(self):
        if not 1 <= len(self.coefficients) <= MAX_HERMITE + 1:
            raise InvalidInput(
                f"Argument `coefficients` must have 1 to {MAX_HERMITE + 1} entries, but has {len(self.coefficients)}."
            )

    @property
    def parity(self) -> int:
        odd, even = any(self.coefficients[1::2]), any(self.coefficients[::2])
        return 0 if odd and even else -1 if odd else 1

    @property
    def growth(self) -> int:
        return max((n for n, c in enumerate(self.coefficients) if c), default=0)

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return horner(self.coefficients, x)
