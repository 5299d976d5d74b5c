r"""The overlaps of random directions: averages over the exact law of the start, by quadrature.

A direction u drawn uniformly on the unit sphere in d dimensions has the overlap :math:`m = u \cdot v` with a fixed unit
vector, whose law is known at any d, and so are the averages of functions of it.
"""

from collections.abc import Callable

import numpy as np

from twolayer.core.estimate import Estimate
from twolayer.core.types import Numbers
from twolayer.expectation.engine import ROUNDING

# Half the number of nodes, and their range: beyond it the weights of the rule are below 1e-30.
HALF, RANGE = 512, 3.9


def overlap_rule(d: int, below: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    r"""Nodes :math:`m^2` and weights for averages over the overlap of a random direction.

    .. math:: E[g(m^2);\ m^2 < b] = \frac{2}{B(\frac12, \frac{d-1}{2})}
              \int_0^{\sqrt b} g(m^2)\,(1 - m^2)^{(d-3)/2}\,dm

    that is :math:`m^2 \sim \mathrm{Beta}(\frac12, \frac{d-1}{2})`, by the rule of Takahasi and Mori (the trapezoidal
    rule after :math:`m = \sqrt b\,/\,(1 + e^{-\pi \sinh y})`). It is accurate for singularities of g at the ends,
    such as that of :math:`\log m^2`, and for a density concentrated at :math:`m \sim 1/\sqrt d`.

    Parameters
    ----------
    d
        The dimension, at least 2.
    below
        The average is over :math:`m^2` below this number; larger values count as zero.

    Notes
    -----
    Every other node, with twice the weight, is the rule of half the size. Checked against: moments and the mean
    logarithm of the Beta law in closed form, for d from 2 to :math:`10^{12}`.
    """
    square, weights = _unnormalised(d, below)
    # The rule normalises itself, since the logarithm of a Beta function is a difference of large numbers.
    return square, weights / np.sum(weights if below == 1.0 else _unnormalised(d, 1.0)[1])


def _unnormalised(d: int, below: float) -> tuple[np.ndarray, np.ndarray]:
    y = np.linspace(-RANGE, RANGE, 2 * HALF + 1)
    x, rest = 1.0 / (1.0 + np.exp(-np.pi * np.sinh(y))), 1.0 / (1.0 + np.exp(np.pi * np.sinh(y)))
    square = below * x**2
    across = (1.0 - below) + below * rest * (1.0 + x)  # 1 - m^2, without loss of digits where m is near one
    log_across = np.where(square < 0.5, np.log1p(-np.minimum(square, 0.5)), np.log(across))
    # The weights are scaled to order one: at large d only m of order 1 / sqrt(d) contributes.
    return square, np.exp(0.5 * (d - 3) * log_across) * np.sqrt(below * d) * np.cosh(y) * x * rest


def mean_over_overlap(function: Callable[[np.ndarray], np.ndarray], d: int, below: float = 1.0) -> Estimate:
    """The average of a function of the squared overlap of one random direction; see `overlap_rule`."""
    square, weights = overlap_rule(d, below)
    terms = weights * function(square)
    return _by_halves(terms)


def mean_over_largest(function: Callable[[np.ndarray], np.ndarray], p: int, d: int) -> Estimate:
    """The average of a function of the largest squared overlap of p random directions with one fixed direction.

    The law of the largest of p independent numbers has the density of one of them times :math:`p F^{p-1}`.
    """
    from scipy.special import betainc

    square, weights = overlap_rule(d)
    below = betainc(0.5, 0.5 * (d - 1.0), np.minimum(square, 1.0))
    return _by_halves(p * below ** (p - 1) * weights * function(square))


def mean_log_overlap(p: int, d: int) -> Estimate:
    r"""The mean logarithm of the squared overlap of p random directions with one fixed direction.

    .. math:: E \log \sum_{j=1}^p m_j^2 = \int_0^\infty \big(e^{-s} - \varphi(s)^p\big) \frac{ds}{s}, \qquad
              \varphi(s) = E\,e^{-s m^2}

    since the :math:`m_j` of independent directions are independent. With :math:`s = e^x` the trapezoidal rule converges
    exponentially.

    Notes
    -----
    Checked against: :math:`\psi(1/2) - \psi(d/2)` at p = 1, the mean logarithm of :math:`\chi^2_p` as d grows, and
    samples of the start.
    """
    # The range begins where 1 - phi^p = p s / d is rounding, and ends where phi^p = (d / 2 s)^(p / 2) is.
    x = np.arange(-42.0, np.log(d) + 90.0 / p + 5.0, 0.125)
    s = np.exp(x)
    square, weights = overlap_rule(d)
    decay = np.exp(-s[:, None] * square[None, :])

    def terms(phi: np.ndarray) -> np.ndarray:
        values = (np.exp(-s) - phi**p) * 0.125
        return np.append(values, [0.0] * (1 - len(values) % 2))

    fine = _by_halves(terms(decay @ weights))
    half = np.sum(terms(decay[:, ::2] @ weights[::2] * 2.0))
    return Estimate(fine.value, fine.error + abs(fine.value - float(half)))


def _by_halves(terms: np.ndarray) -> Estimate:
    """The sum of a trapezoidal rule, with the difference from the sum over every other node as its error."""
    fine, coarse = float(np.sum(terms)), 2.0 * float(np.sum(terms[::2]))
    return Estimate(fine, abs(fine - coarse) + ROUNDING * (1.0 + float(np.sum(np.abs(terms)))))


def sum_of_squares(M: Numbers) -> np.ndarray:
    r""":math:`|m|^2` of each start, from overlaps (starts, p, 1) with one target direction."""
    return np.sum(np.asarray(M)[..., 0] ** 2, axis=-1)


def sum_of_alignments(Q: Numbers) -> np.ndarray:
    r""":math:`\sum_{j \ne l} Q_{jl}^2` of each start."""
    Q = np.asarray(Q)
    return np.sum(Q**2, axis=(-2, -1)) - np.sum(np.diagonal(Q, axis1=-2, axis2=-1) ** 2, axis=-1)
