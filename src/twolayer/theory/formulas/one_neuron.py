"""Phase retrieval by one neuron on the sphere: exit times by its ODE, solved exactly, and by its diffusion."""

from typing import Any

import numpy as np
from jaxtyping import Float

from twolayer.core.estimate import Estimate
from twolayer.core.types import Numbers
from twolayer.theory.formulas.random_start import mean_over_overlap, overlap_rule

# Nodes of the mean first-passage time between zero and the exit.
NODES = 8192


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


def _largest_start(learning_rate: float, noise: float, threshold: float) -> float:
    """The largest start whose end lies below the fixed point: T + (1 - T) m0^2 < A / B."""
    A, B = _coefficients(learning_rate, noise)
    return min(1.0, 1.0 - (1.0 - A / B) / (1.0 - threshold)) if A > 0.0 else 0.0


def exact_time(d: int, learning_rate: float, noise: float, threshold: float) -> tuple[Estimate, float]:
    """The mean of `exact_times` over random starts, and the probability of a start from which there is no exit.

    The mean is over the starts that do exit; without label noise these are all.
    """
    below = _largest_start(learning_rate, noise, threshold)
    if below <= 0.0:
        return Estimate(np.inf, 0.0), 1.0

    def time(square: np.ndarray) -> np.ndarray:
        times = exact_times(square, learning_rate, noise, threshold)
        return np.where(np.isfinite(times), times, 0.0)  # infinite only by rounding, at the end of the range

    escaping = float(np.sum(overlap_rule(d, below)[1]))
    mean = mean_over_overlap(time, d, below)
    return Estimate(mean.value / escaping, mean.error / escaping), 0.0 if below == 1.0 else 1.0 - escaping


def diffusion_time(d: int, learning_rate: float, noise: float, threshold: float) -> Estimate:
    r"""The mean exit time from random starts of the diffusion that SGD is at large d, with drift of order 1/d.

    .. math:: t(m_0) = \int_{m_0}^{m_1} dy \int_0^y \frac{2\,dz}{D(z)}\,e^{\Phi(z) - \Phi(y)}, \qquad
              \Phi(y) = \int_0^y \frac{2 b}{D}, \qquad
              D(m) = \frac{4 \gamma}{d} (1 - m^2) \big[12 (1 - m^2)(1 + 2 m^2) + \Delta\big]

    is the mean first-passage time of :math:`dm = b\,dt + \sqrt{D}\,dW`, exactly, nonlinear terms included; b is the ODE
    and `_slow_drift`. Nothing is linearised at the saddle, in contrast to `noise_correction`. The mean is over starts
    from which the ODE exits, which are all without label noise.

    Notes
    -----
    What is left out is of order 1/d: a run exits at the end of a step. Checked against: `OverlapSGD`, and the ODE with
    `noise_correction` as d grows.
    """
    A, B = _coefficients(learning_rate, noise)
    slow = _slow_drift(learning_rate, noise)

    def time(square: np.ndarray, nodes: int) -> np.ndarray:
        end = threshold + (1.0 - threshold) * square
        # Dense where the noise rules, at overlaps of order 1/sqrt(d).
        width = np.arcsinh(np.sqrt(d * float(end.max())))
        m = np.sinh(np.linspace(0.0, width, nodes)) / np.sqrt(d)
        middle, step = 0.5 * (m[1:] + m[:-1]), np.diff(m)
        drift = middle * (A - B * middle**2) + np.polynomial.polynomial.polyval(middle, slow) / d
        diffusion = diffusion_strength(middle**2, learning_rate, noise) / d
        turn = 2.0 * drift / diffusion * step
        decay = np.exp(-turn)
        gained = 2.0 * step / diffusion * np.where(np.abs(turn) > 1e-8, -np.expm1(-turn) / turn, 1.0)
        inner = np.zeros(nodes)
        for n in range(nodes - 1):
            inner[n + 1] = decay[n] * inner[n] + gained[n]
        passed = np.concatenate([[0.0], np.cumsum(0.5 * (inner[1:] + inner[:-1]) * step)])
        return np.interp(np.sqrt(end), m, passed) - np.interp(np.sqrt(square), m, passed)

    below = _largest_start(learning_rate, noise, threshold)
    if below <= 0.0:
        return Estimate(np.inf, 0.0)
    exiting = float(np.sum(overlap_rule(d, below)[1]))
    fine, coarse = (mean_over_overlap(lambda m, n=nodes: time(m, n), d, below) for nodes in (NODES, NODES // 2))
    return Estimate(fine.value / exiting, (fine.error + abs(fine.value - coarse.value)) / exiting)


def diffusion_strength(square: Numbers, learning_rate: float, noise: float) -> Numbers:
    """The variance D that SGD adds to the overlap in unit time, times d, at a squared overlap."""
    rest = 1.0 - square
    return 4.0 * learning_rate * rest * (12.0 * rest * (1.0 + 2.0 * square) + noise)


def _slow_drift(learning_rate: float, noise: float) -> Float[np.ndarray, " powers"]:
    r"""The drift of order 1/d of the overlap on the sphere, times d, as the coefficients of a polynomial in it.

    A step :math:`m' = (m + \epsilon s \lambda_\star) / \sqrt{1 + A}` with :math:`\epsilon = \gamma/d`,
    :math:`s = 2 \lambda \mathcal E` and :math:`A = 2 \epsilon s \lambda + \epsilon^2 s^2 |z|^2` is expanded to
    :math:`\epsilon^2`; given the fields, :math:`|z|^2 = d - 2 + \lambda^2 + \xi^2` on average, where :math:`\xi` is the
    part of :math:`\lambda_\star` that is independent of :math:`\lambda`.
    """
    x, w = np.polynomial.hermite_e.hermegauss(12)
    field, part, label = (grid.ravel() for grid in np.meshgrid(x, x, x))
    weights = np.prod(np.meshgrid(w, w, w), axis=0).ravel() / (2.0 * np.pi) ** 1.5
    m = np.cos(np.pi * (np.arange(16) + 0.5) / 16)
    star = m[:, None] * field + np.sqrt(1.0 - m**2)[:, None] * part
    s = 2.0 * field * (star**2 - field**2 + np.sqrt(noise) * label)
    first = 2.0 * s * field + learning_rate * s**2
    terms = -0.5 * s * star * first + 0.375 * m[:, None] * first**2
    terms -= 0.5 * m[:, None] * s**2 * (field**2 + part**2 - 2.0)
    return np.polynomial.polynomial.polyfit(m, learning_rate * (terms @ weights), 15)
