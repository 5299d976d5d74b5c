"""Piecewise linear activations."""

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, shown
from twolayer.problem.activations.activation import AbstractActivation
from twolayer.specification.fields import number, static, vector
from twolayer.specification.registry import register

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


class AbstractPiecewiseLinear(AbstractActivation):
    r"""Base class: a continuous piecewise linear activation.

    .. math:: \sigma(x) = \alpha + b x + \sum_i s_i\,(x - t_i)_+

    with the ``offset`` :math:`\alpha`, the ``slope`` b left of all kinks, and the ``changes`` :math:`s_i` of the slope
    at the ``kinks`` :math:`t_i`, at which the derivative is that of the left side.
    """

    offset: AbstractVar[float]
    slope: AbstractVar[float]
    changes: AbstractVar[tuple[float, ...]]

    coefficients: ClassVar[tuple[float, ...] | None] = None

    @property
    def hinges(self) -> tuple[tuple[float, float], ...]:
        """The kinks, each with the change of the slope there."""
        return tuple(zip(self.kinks, self.changes, strict=True))

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        parts = [change * jax.nn.relu(x - kink) for kink, change in self.hinges]
        return sum(parts, start=self.offset + self.slope * x)


@register
class LeakyRelu(AbstractPiecewiseLinear):
    r"""The leaky rectifier, :math:`\sigma(x) = \max(x, 0) + b \min(x, 0)` with the ``negative_slope`` b.

    Its name is ``"leaky_relu"``.
    """

    negative_slope: float = static(number("negative_slope"), default=0.01)

    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1
    offset: ClassVar[float] = 0.0

    @property
    def slope(self) -> float:
        return self.negative_slope

    @property
    def changes(self) -> tuple[float, ...]:
        return (1.0 - self.negative_slope,)


@register
class AbsActivation(AbstractPiecewiseLinear):
    r"""The modulus, :math:`\sigma(x) = |x|`, with :math:`\sigma'(0) = 0`."""

    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    parity: ClassVar[int] = 1
    growth: ClassVar[int] = 1
    offset: ClassVar[float] = 0.0
    slope: ClassVar[float] = -1.0
    changes: ClassVar[tuple[float, ...]] = (2.0,)

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return x * jnp.sign(x)  # the derivative of `jnp.abs` at zero is one


@register
class Relu6(AbstractPiecewiseLinear):
    r"""The rectifier with a ceiling, :math:`\sigma(x) = \min(\max(x, 0), 6)`."""

    kinks: ClassVar[tuple[float, ...]] = (0.0, 6.0)
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 0
    offset: ClassVar[float] = 0.0
    slope: ClassVar[float] = 0.0
    changes: ClassVar[tuple[float, ...]] = (1.0, -1.0)


@register
class Hardtanh(AbstractPiecewiseLinear):
    r"""The clipped identity, :math:`\sigma(x) = \max(-1, \min(x, 1))`."""

    kinks: ClassVar[tuple[float, ...]] = (-1.0, 1.0)
    parity: ClassVar[int] = -1
    growth: ClassVar[int] = 0
    offset: ClassVar[float] = -1.0
    slope: ClassVar[float] = 0.0
    changes: ClassVar[tuple[float, ...]] = (1.0, -1.0)

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return jnp.clip(x, -1.0, 1.0)  # exactly odd


@register
class Hardsigmoid(AbstractPiecewiseLinear):
    r"""The clipped line, :math:`\sigma(x) = \min(\max(x + 3, 0), 6) / 6`."""

    kinks: ClassVar[tuple[float, ...]] = (-3.0, 3.0)
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 0
    offset: ClassVar[float] = 0.0
    slope: ClassVar[float] = 0.0
    changes: ClassVar[tuple[float, ...]] = (1.0 / 6.0, -1.0 / 6.0)


@register
class PiecewiseLinear(AbstractPiecewiseLinear):
    r"""Any continuous piecewise linear function, :math:`\sigma(x) = \alpha + b x + \sum_i s_i\,(x - t_i)_+`.

    Parameters
    ----------
    kinks, changes
        The places :math:`t_i` and the changes :math:`s_i` of the slope there.
    slope, offset
        The slope b left of all kinks, and :math:`\alpha`.
    slope_at_zero
        The derivative at a kink at zero, which a row of zero weights has; that of the left side by default.
    """

    kinks: tuple[float, ...] = static(vector("kinks"))
    changes: tuple[float, ...] = static(vector("changes"))
    slope: float = static(number("slope"), default=0.0)
    offset: float = static(number("offset"), default=0.0)
    slope_at_zero: float | None = static(number("slope_at_zero", optional=True), default=None)

    needs_arguments: ClassVar[bool] = True
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 1

    def __check_init__(self):
        if len(self.kinks) != len(self.changes) or not self.kinks:
            raise InvalidInput(
                f"Argument `changes` must have one entry for each of the {len(self.kinks)} kinks, at least one, but is "
                f"{shown(self.changes)}."
            )
        if any(a >= b for a, b in zip(self.kinks, self.kinks[1:], strict=False)):
            raise InvalidInput(f"Argument `kinks` must increase, but is {shown(self.kinks)}.")

    def derivative(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        slope = super().derivative(x)
        return slope if self.slope_at_zero is None else jnp.where(x == 0.0, self.slope_at_zero, slope)
