r"""Activations as noisy thresholds, on which the closed forms of erf, tanh, sigmoid and relu are based.

Leaky relu and abs are relus with a linear part.

A sign averaged over Gaussian noise, :math:`E_\xi[\mathrm{sign}(x + \tau\xi)] = \mathrm{erf}(x / \sqrt2 \tau)`, is an
error function. Averages of products of such units are averages of signs whose fields have the variance
:math:`\tau^2` added, independently for each factor.

The logistic distribution is a mixture of centred normal distributions (:cite:t:`andrews1974`), so tanh is a mixture of
error functions. A few terms suffice (:cite:t:`monahan1992`): each further one reduces the sup-norm error by a factor of
about seven.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.precision import double
from twolayer.problem import AbstractActivation
from twolayer.problem.activations import AbstractPiecewiseLinear, Erf, Relu, Rescaled, Sigmoid, Tanh

# tanh(x) = sum_i w_i erf(x / (sqrt(2) tau_i)): scales tau_i and weights w_i for each number of terms, fitted to the
# function and its slope in the sup norm. `SUP_ERROR` is the remaining error, which the tests measure.
TANH: dict[int, tuple[list[float], list[float]]] = {
    3: (
        [0.5350294601292419, 0.8318381796377239, 1.319027056162179],
        [0.2116433941142983, 0.5849642209609214, 0.2032873998321282],
    ),
    4: (
        [0.4759754134475415, 0.6905580224526422, 1.010780110281743, 1.500200942950454],
        [0.08535152428259854, 0.4258105997850358, 0.4073884189844764, 0.08143693972193711],
    ),
    5: (
        [0.4345632866327429, 0.6021455110767545, 0.8354062185533314, 1.170478587819574, 1.656985159339041],
        [0.03419397367486051, 0.259955220849603, 0.4321448559127313, 0.2409345110405806, 0.03276973274720353],
    ),
    6: (
        [
            0.4033868810345115,
            0.5407685697583576,
            0.7220842578266538,
            0.9712560021279762,
            1.314270875095688,
            1.79646911415194,
        ],
        [
            0.01376428798833453,
            0.1458491796973748,
            0.3554647830649076,
            0.3385113272304304,
            0.133083553039533,
            0.01332661240964677,
        ],
    ),
    7: (
        [
            0.3787725159934795,
            0.4951737010166195,
            0.642578472404367,
            0.8376680998485271,
            1.098346076118838,
            1.445307486366252,
            1.923002306110562,
        ],
        [
            0.00558892385811392,
            0.07809934145150088,
            0.2563447485838262,
            0.3482887467268235,
            0.2352439970089892,
            0.07095213397363707,
            0.005482066717169686,
        ],
    ),
    8: (
        [
            0.3586572693366454,
            0.4596484597494457,
            0.5833972462826275,
            0.7421177860503956,
            0.9487104708889071,
            1.217242593417914,
            1.566014279637457,
            2.039336587356676,
        ],
        [
            0.002290997464505837,
            0.0406549130070392,
            0.1707878153805032,
            0.3041548140219479,
            0.2896332820182007,
            0.1531518833651603,
            0.03704470116908615,
            0.00228158634510239,
        ],
    ),
}
SUP_ERROR = {3: 1.1e-4, 4: 1.3e-5, 5: 1.8e-6, 6: 2.6e-7, 7: 4.2e-8, 8: 7.3e-9}
MOST = max(TANH)


def terms_for(rtol: float) -> int:
    """Return the number of terms whose sup-norm error is below the requested accuracy, or the largest number.

    It is at least two above the smallest, since the error of a mixture is measured by two smaller ones.
    """
    return next((terms for terms, error in SUP_ERROR.items() if error < rtol and terms - 2 in TANH), MOST)


class Thresholds(eqx.Module):
    r"""An activation as :math:`\sigma(x) = \alpha + b x + \sum_i w_i E_\xi[\beta(x + \tau_i \xi)]`.

    The base :math:`\beta` is the sign, or the relu when ``is_relu``. ``linear`` is b; ``slope_at_zero`` is the
    derivative of a relu with linear part at its kink, which only matters for a row of zero weights.
    """

    weights: Any
    noise: Any  # the variances tau_i^2
    offset: float = eqx.field(static=True)
    is_relu: bool = eqx.field(static=True)
    linear: float = eqx.field(static=True, default=0.0)
    slope_at_zero: float = eqx.field(static=True, default=0.0)
    gain: float = eqx.field(static=True, default=1.0)  # by which the errors of a mixture are larger than those of tanh

    @property
    def sup_error(self) -> float:
        """The largest difference between the mixture and the activation; zero for a single threshold."""
        return self.gain * SUP_ERROR.get(int(np.count_nonzero(self.weights)), 0.0)

    @property
    def is_exact(self) -> bool:
        """Whether the activation is one threshold, not approximated by a mixture."""
        return len(self.weights) == 1

    def padded(self, size: int) -> "Thresholds":
        """Return the mixture padded by terms of zero weight, so that mixtures of all sizes compile to one program."""
        more = size - len(self.weights)
        weights, noise = np.append(self.weights, np.zeros(more)), np.append(self.noise, np.ones(more))
        return dataclasses.replace(self, weights=weights, noise=noise)


def thresholds(activation: AbstractActivation, terms: int = MOST) -> Thresholds | None:
    """Return the activation as noisy thresholds, with ``terms`` terms if it is a mixture; None if it is neither."""
    if isinstance(activation, Erf):
        return Thresholds(np.ones(1), np.ones(1), 0.0, is_relu=False)
    if isinstance(activation, Relu):
        return Thresholds(np.ones(1), np.zeros(1), 0.0, is_relu=True)
    if isinstance(activation, AbstractPiecewiseLinear):
        return _one_kink(activation)
    if isinstance(activation, Rescaled):
        return _rescaled(activation, terms)
    scales, weights = (np.array(column) for column in TANH[terms])
    if isinstance(activation, Tanh):
        return Thresholds(weights, scales**2, 0.0, is_relu=False)
    if isinstance(activation, Sigmoid):
        return Thresholds(0.5 * weights, 4.0 * scales**2, 0.5, is_relu=False)
    return None


def _rescaled(activation: Rescaled, terms: int) -> Thresholds | None:
    """Return a rescaled activation whose base is a sum of noisy signs."""
    base, amplitude, rate = thresholds(activation.base, terms), activation.amplitude, activation.rate
    if base is None or base.is_relu:
        return None
    # Moments contain up to two values and two slopes, which are larger by these factors.
    gain = (max(1.0, abs(amplitude)) * max(1.0, abs(amplitude) * rate)) ** 2
    offset = amplitude * base.offset + activation.offset
    return Thresholds(amplitude * base.weights, base.noise / rate**2, offset, False, gain=gain * base.gain)


def _one_kink(activation: AbstractPiecewiseLinear) -> Thresholds | None:
    """Return a piecewise linear activation as a relu with a linear part, if its only kink is at zero."""
    if activation.kinks != (0.0,):
        return None
    change = np.asarray(activation.changes, float)
    with double():
        at_zero = float(activation.derivative(jnp.zeros(())))
    return Thresholds(change, np.zeros(1), activation.offset, True, activation.slope, at_zero)


def mixture(activation: AbstractActivation, terms: int, size: int) -> Thresholds:
    """Return the activation as thresholds with ``terms`` terms, padded to a size if it is a mixture."""
    units = thresholds(activation, terms)
    assert units is not None
    return units if units.is_exact else units.padded(size)


def room_for(moment: str, rows: int, others: int, nodes: float | int) -> float:
    """Return the bytes of all arrays of an average over thresholds: ``rows`` of the student, ``others`` of all units.

    Two slopes and two units are four thresholds; a relu needs a rule with ``nodes`` points for them.
    """
    if moment == "phi_hd":
        return 8.0 * nodes * (rows * others) ** 2
    return 8.0 * 4.0 * (rows if moment == "v" else 1) * others**2


class UnitList(NamedTuple):
    """Units as single thresholds: one row for each term of each unit."""

    fields: np.ndarray  # the field (and unit) of each row
    weights: Array
    noise: Array
    is_relu: np.ndarray
    offsets: np.ndarray  # one for each unit
    linear: np.ndarray  # slopes of the linear parts, one for each unit
    slopes_at_zero: np.ndarray  # one for each unit

    @property
    def has_linear(self) -> bool:
        """Whether some unit has a linear part, or a slope at its kink."""
        return bool(np.any(self.linear) or np.any(self.slopes_at_zero))

    def to_units(self, x: Float[Array, "..."], *axes: int) -> Float[Array, "..."]:
        """Return an array over rows, along some of its axes, as the weighted sums over the rows of each unit.

        Where each unit is one row nothing is summed: many products of small matrices would take most of the time.
        """
        is_single = len(self.fields) == len(self.offsets)
        for axis in axes:
            if is_single:
                x = x * jnp.expand_dims(self.weights, [n for n in range(x.ndim) if n != axis])
            else:
                x = jnp.moveaxis(jnp.tensordot(x, self.one_hot, (axis, 0)), -1, axis)
        return x

    @property
    def one_hot(self) -> Float[Array, "rows units"]:
        """Return the matrix that sums weighted rows to units."""
        belongs = self.fields[:, None] == np.arange(len(self.offsets))[None, :]
        return jnp.where(belongs, self.weights[:, None], 0.0)


def unit_list(units: list[Thresholds]) -> UnitList:
    """Return the terms of all units, unit after unit."""
    sizes = [len(unit.weights) for unit in units]
    return UnitList(
        fields=np.repeat(np.arange(len(units)), sizes),
        weights=jnp.concatenate([jnp.asarray(unit.weights) for unit in units]),
        noise=jnp.concatenate([jnp.asarray(unit.noise) for unit in units]),
        is_relu=np.repeat([unit.is_relu for unit in units], sizes),
        offsets=np.array([unit.offset for unit in units]),
        linear=np.array([unit.linear for unit in units]),
        slopes_at_zero=np.array([unit.slope_at_zero for unit in units]),
    )
