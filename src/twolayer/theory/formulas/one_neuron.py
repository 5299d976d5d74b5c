"""Phase retrieval by one neuron on the sphere: its ODE solved exactly, and the exit time that follows."""

from typing import Any

import numpy as np

from twolayer.core.estimate import Estimate
from twolayer.core.types import Numbers
from twolayer.theory.formulas.random_start import mean_over_overlap, overlap_rule


def _coefficients(learning_rate: Numbers, noise: Numbers) -> tuple[Any, Any]:
    """A and B in dm/dt = m (A - B m^2)."""
    B = 4.0 * (1.0 - 6.0 * learning_rate)
    return B - 2.0 * learning_rate * noise, B


def closed_overlap(time: Numbers, m0_squared: Numbers, learning_rate: Numbers, noise: Numbers) -> Numbers:
    r"""The squared overlap of one neuron as a function of time.

    .. math:: \dot m = m (A - B m^2), \qquad m^2(t) = \frac{A}{B + (A / m_0^2 - B)\,e^{-2At}}, \qquad
              B = 4 (1 - 6\gamma), \quad A = B - 2\gamma\Delta

    Checked against: the numerical solution of the ODE.
    """
    A, B = _coefficients(learning_rate, noise)
    return A / (B + (A / m0_squared - B) * np.exp(-2.0 * A * time))


def fixed_overlap(learning_rate: Numbers, noise: Numbers) -> Numbers:
    r"""The squared overlap at which one neuron ends, :math:`1 - \frac{\gamma\Delta}{2 (1 - 6\gamma)}`.

    The excess risk there is :math:`\gamma\Delta / (1 - 6\gamma)`. It holds for
    :math:`\gamma < 2/(12 + \Delta)`.
    """
    A, B = _coefficients(learning_rate, noise)
    return A / B


def exact_times(m0_squared: Numbers, learning_rate: float, noise: float, threshold: float) -> np.ndarray:
    r"""The exit time of one neuron from each start; infinite where the fixed point lies above the threshold.

    .. math:: t = \frac1{2A} \log \Big[\frac{m_1^2}{m_0^2} \cdot \frac{A - B m_0^2}{A - B m_1^2}\Big], \qquad
              m_1^2 = T + (1 - T)\,m_0^2
    """
    A, B = _coefficients(learning_rate, noise)
    start = np.asarray(m0_squared)
    end = threshold + (1.0 - threshold) * start
    before, after = A - B * start, A - B * end
    reached = (after > 0.0) & (A > 0.0)
    ratio = end * before / (start * np.where(reached, after, 1.0))
    return np.where(reached, np.log(np.where(reached, ratio, 1.0)) / (2.0 * np.where(reached, A, 1.0)), np.inf)


def exact_time(d: int, learning_rate: float, noise: float, threshold: float) -> tuple[Estimate, float]:
    """The mean of `exact_times` over random starts, and the probability of a start from which there is no exit.

    The mean is over the starts that do exit; without label noise these are all.
    """
    A, B = _coefficients(learning_rate, noise)
    # The largest start whose end lies below the fixed point: T + (1 - T) m0^2 < A / B.
    below = min(1.0, 1.0 - (1.0 - A / B) / (1.0 - threshold)) if A > 0.0 else 0.0
    if below <= 0.0:
        return Estimate(np.inf, 0.0), 1.0

    def time(square: np.ndarray) -> np.ndarray:
        times = exact_times(square, learning_rate, noise, threshold)
        return np.where(np.isfinite(times), times, 0.0)  # infinite only by rounding, at the end of the range

    escaping = float(np.sum(overlap_rule(d, below)[1]))
    mean = mean_over_overlap(time, d, below)
    return Estimate(mean.value / escaping, mean.error / escaping), 0.0 if below == 1.0 else 1.0 - escaping
