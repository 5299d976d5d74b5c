r"""Phase retrieval on the sphere: rates and exit times at the saddle, in closed form where there is one.

Target :math:`(\lambda^\star)^2`, student :math:`\frac1p \sum_j \lambda_j^2`, rows of unit length, fresh samples. A
random start has :math:`m_j = w_j \cdot w^\star` and :math:`Q_{jl}`, :math:`j \ne l`, of order :math:`1/\sqrt d`: next
to the saddle :math:`m = 0, Q = I` of the limiting ODE. The exit at level T is the time at which the excess risk

.. math:: \mathcal R - \frac\Delta2 = 1 - \frac2p |m|^2 + \frac1{p^2} \mathrm{tr}\,Q^2

has fallen to :math:`(1 - T)` times its initial value. Times are on the clock of the package,
:math:`t = \gamma\,\mathrm{samples} / (p d)`. The rates are plain arithmetic and can be differentiated.
One neuron is solved exactly in `one_neuron`.

References: :cite:t:`arnaboldi2023escaping`, where the shift by the noise of SGD and the optimal rate are not given.
"""

import re
from typing import Any

import numpy as np
from jaxtyping import Float

from twolayer.core.estimate import Estimate
from twolayer.core.types import Numbers
from twolayer.description import Applies, Exactness
from twolayer.problem import Gaussian, Problem, RandomStart, Square
from twolayer.problem.activations import SquareActivation
from twolayer.theory.formulas.one_neuron import closed_overlap as closed_overlap
from twolayer.theory.formulas.one_neuron import exact_time as exact_time
from twolayer.theory.formulas.one_neuron import exact_times as exact_times
from twolayer.theory.formulas.one_neuron import fixed_overlap as fixed_overlap
from twolayer.theory.formulas.random_start import mean_log_overlap, mean_over_overlap
from twolayer.training import SGD

# The bound on the error of a sampled mean, in standard errors.
STANDARD_ERRORS = 5.0


def written_formulas() -> list[tuple[str, str]]:
    """The formulas for the escape in words and in LaTeX, as the functions of this file state them."""
    stated = (
        ("growth of the overlap at the saddle", growth_rate, ""),
        ("the constant of all rates", rate_constant, ""),
        ("annealed: the time of the mean overlap", annealed_time, ""),
        ("quenched: the time from one start", quenched_times, ""),
        ("the fewest steps", optimal_learning_rate, ""),
        ("the largest rate that escapes", maximal_learning_rate, r"\gamma_{max} = "),
        ("how much earlier than the ODE runs escape", noise_shift, r"t^{ODE} - t^{SGD} = "),
        ("the strength of the noise of SGD", noise_strength, ""),
    )
    formulas = []
    for words, function, left in stated:
        text = f"{function.__doc__}\n\n"
        formula = re.search(r"\.\. math::\s*(.+?)\n\s*\n", text, re.DOTALL) or re.search(r":math:`(.+?)`", text)
        if formula is not None:  # docstrings may be stripped
            formulas.append((words, left + " ".join(formula[1].split())))
    return formulas


def applies(problem: Problem, training: SGD) -> Applies:
    """Whether the formulas of this file apply to the problem and its training."""
    for answer in (applies_to_problem(problem), applies_to_plain(problem, training)):
        if not answer.ok:
            return answer
    if not training.is_spherical:
        return _no("the training is not plain SGD on the sphere with fresh samples.")
    if float(training.layer_ratio) != 0.0:
        return _no("the second layer is trained, or there is weight decay.")
    return Applies(True, Exactness.LIMIT_D, "phase retrieval on the sphere from random starts")


def applies_to_problem(problem: Problem) -> Applies:
    """Whether the problem is phase retrieval by quadratic neurons from a random start on the unit sphere."""
    units, student = problem.target.units, problem.student
    if units is None or problem.k != 1 or not isinstance(units.activation, SquareActivation):
        return _no("the target is not phase retrieval.")
    if not (np.allclose(np.asarray(units.weights), 1.0) and np.allclose(np.asarray(problem.P), 1.0)):
        return _no("the target is not of unit size.")
    if not isinstance(student.activation, SquareActivation):
        return _no(f"the student is {student.activation}, not square.")
    second_layer = np.nan if student.is_random else 1.0
    if not np.allclose(second_layer if isinstance(student.second_layer, str) else student.second_layer, 1.0):
        return _no("the second layer of the student is not of ones.")
    if not isinstance(problem.inputs, Gaussian) or not isinstance(problem.loss, Square):
        return _no("the inputs are not Gaussian, or the loss is not the square loss.")
    if not problem.is_isotropic:
        return _no("the inputs have a spectrum.")
    start = problem.start
    if not (isinstance(start, RandomStart) and start.law == "sphere" and float(start.norm) == 1.0):
        return _no("the start is not uniform on the unit sphere.")
    return Applies(True, Exactness.LIMIT_D, "phase retrieval from random starts")


def applies_to_plain(problem: Problem, training: SGD) -> Applies:
    """Whether the training is plain SGD with fresh samples and small batches, free or on the sphere."""
    if not training.is_fresh or training.has_momentum:
        return _no("the training is not plain SGD on the sphere with fresh samples.")
    if float(training.weight_decay) != 0.0:
        return _no("the second layer is trained, or there is weight decay.")
    if 2 * training.samples_per_step(problem) > problem.d:
        return _no("the batch is not much smaller than d.")
    return Applies(True, Exactness.LIMIT_D, "plain SGD")


def _no(reason: str) -> Applies:
    return Applies(False, Exactness.LIMIT_D, reason)


# ------------------------------------------------------------------------------------------------------ rates


def rate_constant(p: Numbers, noise: Numbers) -> Numbers:
    r""":math:`c_p = 1 + \frac1p + \frac4{p^2} + \frac\Delta2`, which sets every rate below."""
    return 1.0 + 1.0 / p + 4.0 / p**2 + noise / 2.0


def growth_rate(p: Numbers, learning_rate: Numbers, noise: Numbers) -> Numbers:
    r"""The rate at which the overlap with the target grows at the saddle.

    .. math:: |m|^2 \propto e^{r_p t}, \qquad r_p = 8 \Big[1 - \frac{\gamma}{p} c_p\Big]

    Checked against: the Jacobian of the drift at :math:`m = 0, Q = I`.
    """
    return 8.0 * (1.0 - learning_rate / p * rate_constant(p, noise))


def relaxation_rate(p: Numbers, learning_rate: Numbers) -> Numbers:
    r"""The rate :math:`\frac8p (1 - \frac{8\gamma}{p^2})` at which :math:`Q_{jl}`, :math:`j \ne l`, relaxes there.

    It is negative for :math:`\gamma > p^2/8`: the neurons then align with each other while they leave the saddle, and
    the exit times below, which assume that this alignment has vanished, do not hold. Checked against: the Jacobian of
    the drift.
    """
    return 8.0 / p * (1.0 - 8.0 * learning_rate / p**2)


def maximal_learning_rate(p: Numbers, noise: Numbers) -> Numbers:
    r"""The largest learning rate at which the saddle is left, :math:`p / c_p`, where :math:`r_p` vanishes."""
    return p / rate_constant(p, noise)


def optimal_learning_rate(p: Numbers, noise: Numbers) -> Numbers:
    r"""The learning rate of the fewest steps to the exit, at leading order in :math:`\log d`.

    .. math:: \gamma_{opt} = \frac{p}{2 c_p} = \frac{p^3}{(2 + \Delta) p^2 + 2 p + 8}

    There :math:`r_p = 4`; it is half of `maximal_learning_rate`. From p = 2 on it exceeds `recovery_learning_rate`: the
    saddle is left in the fewest steps, but the run does not end near the target.
    """
    return p / (2.0 * rate_constant(p, noise))


def recovery_learning_rate(p: Numbers, noise: Numbers) -> Numbers:
    r"""The learning rate :math:`2p / (12 + \Delta)` above which no run ends near the target.

    Where all neurons coincide up to sign the dynamics is that of one neuron at the rate :math:`\gamma / p`, and the
    informed fixed point is there only as long as one neuron escapes.
    """
    return p * maximal_learning_rate(1.0, noise)


def overparametrisation_gain(p: Numbers, noise: Numbers) -> Numbers:
    r"""The factor by which p neurons need fewer steps than one, each at its optimal rate, at leading order in log d.

    .. math:: \frac{\nu(1)}{\nu(p)} \to \frac{c_1}{c_p}, \qquad
              \frac{c_1}{c_\infty} = \frac{12 + \Delta}{2 + \Delta}

    ``p`` may be infinite.
    """
    return rate_constant(1.0, noise) / rate_constant(p, noise)


def noise_strength(p: Numbers, noise: Numbers) -> Numbers:
    r"""The variance that one sample adds to each :math:`m_j` at the saddle, in units of :math:`(\gamma/pd)^2`.

    .. math:: V_p = 4\,E[\mathcal E^2 \lambda_j^2 \lambda_\star^2] = 4 \Big(10 - \frac6p + \frac8{p^2} + \Delta\Big)
    """
    return 4.0 * (10.0 - 6.0 / p + 8.0 / p**2 + noise)


def noise_factor(p: Numbers, learning_rate: Numbers, noise: Numbers) -> Numbers:
    r"""The factor by which noise enlarges the effective initial :math:`|m|^2`, :math:`1 + \gamma V_p / (p\,r_p)`.

    At the saddle each :math:`\sqrt d\,m_j` is an unstable Ornstein-Uhlenbeck process of rate :math:`r_p / 2`. The noise
    accumulated by the time of the exit is Gaussian like the start itself. At p = 1 and the optimal rate the factor
    is 2 for every noise.
    """
    rate = growth_rate(p, learning_rate, noise)
    return 1.0 + learning_rate * noise_strength(p, noise) / (p * rate)


def noise_shift(p: Numbers, learning_rate: Numbers, noise: Numbers) -> Numbers:
    r"""The lead of runs over the ODE in leaving the saddle, :math:`\frac1{r_p} \log(1 + \gamma V_p / (p\,r_p))`.

    It is of order one at any d; derived for :math:`d \to \infty`, see `noise_correction` for finite d. Checked against:
    `OverlapSGD`.
    """
    return np.log(noise_factor(p, learning_rate, noise)) / growth_rate(p, learning_rate, noise)


def alignment_strength(p: Numbers, learning_rate: Numbers, noise: Numbers) -> Numbers:
    r"""The variance that one sample adds to each :math:`Q_{jl}`, :math:`j \ne l`, at the saddle; see `noise_strength`.

    .. math:: V^Q_p = 16\,E\Big[\lambda_j^2 \lambda_l^2 \Big(\mathcal E + \frac\gamma p \mathcal E^2\Big)^2\Big]

    Under the weight :math:`\lambda_j^2 \lambda_l^2` the displacement is
    :math:`\chi^2_1 - \chi^2_{p+4}/p + \sqrt\Delta\,\xi`, whose moments follow from its cumulants. Checked against:
    quadrature.
    """
    n = p + 4.0
    k1, k2, k3, k4 = 1.0 - n / p, 2.0 + 2.0 * n / p**2 + noise, 8.0 - 8.0 * n / p**3, 48.0 + 48.0 * n / p**4
    second = k2 + k1**2
    third = k3 + 3.0 * k2 * k1 + k1**3
    fourth = k4 + 4.0 * k3 * k1 + 3.0 * k2**2 + 6.0 * k2 * k1**2 + k1**4
    rate = learning_rate / p
    return 16.0 * (second + 2.0 * rate * third + rate**2 * fourth)


# ----------------------------------------------------------------------------------------- linearised exit times


def annealed_time(p: int, d: int, learning_rate: float, noise: float, threshold: float) -> float:
    r"""The exit time of the mean overlap, that is with :math:`E|m_0|^2 = p/d` instead of the overlap of a start.

    .. math:: t^{anl} = \frac1{r_p} \log \frac{(p + 1)\,[T d + 1 - T]}{2p}

    Linearised at the saddle: for :math:`T \ll 1` and :math:`T d \gg 1`.
    """
    rate = growth_rate(p, learning_rate, noise)
    return float(np.log((p + 1) * (threshold * d + 1.0 - threshold) / (2 * p)) / rate)


def quenched_times(
    overlap: Numbers, alignment: Numbers, p: int, d: int, learning_rate: float, noise: float, threshold: float
) -> Numbers:
    r"""The exit time from each start, linearised at the saddle.

    .. math:: t = \frac1{r_p} \log \frac{T p (p + 1) + (2 p |m_0|^2 - \tau)(1 - T)}{2 p |m_0|^2}

    Parameters
    ----------
    overlap, alignment
        :math:`|m_0|^2` and :math:`\tau = \sum_{j \ne l} Q_{jl}^2` of the starts.

    Notes
    -----
    Assumes that the alignment has vanished by the time of the exit, and :math:`T \ll 1`. Where the alignment is so
    large that the threshold is passed without any overlap, which is rare for :math:`T d \gg 1`, the time is zero.
    """
    rate = growth_rate(p, learning_rate, noise)
    overlap = np.asarray(overlap)
    needed = threshold * p * (p + 1) + (2 * p * overlap - np.asarray(alignment)) * (1.0 - threshold)
    return np.log(np.maximum(needed / (2 * p * overlap), 1.0)) / rate


def quenched_time(
    p: int,
    d: int,
    learning_rate: float,
    noise: float,
    threshold: float,
    overlap: Numbers | None = None,
    alignment: Numbers | None = None,
) -> Estimate:
    r"""The mean of `quenched_times` over random starts.

    At p = 1 the law of the start is integrated. For p > 1 the mean of the logarithm of the overlap, which causes nearly
    all of the scatter, is integrated too (`mean_log_overlap`), and the rest is averaged over the given starts; the
    error is five standard errors of that.

    Notes
    -----
    By Jensen's inequality it is above `annealed_time`; the two agree as p grows, since :math:`|m_0|^2 d/p \to 1`.
    """

    def time(square: np.ndarray, aligned: Any) -> np.ndarray:
        return np.asarray(quenched_times(square, aligned, p, d, learning_rate, noise, threshold))

    if p == 1:
        return mean_over_overlap(lambda square: time(square, 0.0), d)
    assert overlap is not None, "the mean over more than one neuron needs starts"
    return mean_with_control(time(np.asarray(overlap), alignment), overlap, p, d, learning_rate, noise)


def mean_with_control(times: Numbers, overlap: Numbers, p: int, d: int, learning_rate: float, noise: float) -> Estimate:
    r"""The mean exit time over the law of the start, from a sample of starts and their exit times.

    .. math:: E[t] = E\Big[t + \frac{\log|m_0|^2}{r_p}\Big] - \frac{1}{r_p} E \log|m_0|^2

    The first average varies little between starts and is taken over the sample; the second is known. The error is five
    standard errors.
    """
    rate = growth_rate(p, learning_rate, noise)
    rest = unexplained(times, overlap, rate)
    known = mean_log_overlap(p, d)
    error = STANDARD_ERRORS * float(np.std(rest, ddof=1) / np.sqrt(rest.size))
    return Estimate(float(np.mean(rest)) - known.value / rate, error + known.error / rate)


def unexplained(times: Numbers, overlap: Numbers, rate: Numbers) -> np.ndarray:
    r"""The part of the exit times that the initial overlap does not explain: :math:`t + \log|m_0|^2 / r_p`."""
    return np.asarray(times) + np.log(np.asarray(overlap)) / rate


def noisy_times(overlap: Numbers, p: int, d: int, learning_rate: float, noise: float, threshold: float) -> Numbers:
    r"""The exit time of SGD linearised at the saddle, at finite d, for each value of a Gaussian start.

    The noise of SGD acts on the overlaps with the target, which grow, and on those between neurons, which relax at the
    rate :math:`\rho` of `relaxation_rate`. The exit is where

    .. math::
        2 p |m_0|^2 e^{r t} \Big[1 + \frac{\gamma V_p}{p\,r} (1 - e^{-r t})\Big] - \tau(t)
        = T p (p + 1) + (1 - T) (2 p |m_0|^2 - \tau(0)), \qquad
        \tau(t) = \frac{p (p - 1)}{d} \Big[e^{-2\rho t} + \frac{\gamma V^Q_p}{p} \frac{1 - e^{-2\rho t}}{2\rho}\Big]

    with :math:`\tau` the mean alignment. As d grows the exit comes late, :math:`\tau` does not matter, and what is left
    is `noise_shift`.
    """
    overlap = np.asarray(overlap)
    r, rho = growth_rate(p, learning_rate, noise), relaxation_rate(p, learning_rate)
    gain = noise_factor(p, learning_rate, noise) - 1.0
    drive = learning_rate / p * alignment_strength(p, learning_rate, noise)
    pairs = p * (p - 1) / d
    needed = threshold * p * (p + 1) + (1.0 - threshold) * (2 * p * overlap - pairs)

    def excess(t: np.ndarray) -> np.ndarray:
        signal = 2 * p * overlap * np.exp(r * t) * (1.0 - gain * np.expm1(-r * t))
        if p == 1:  # there is no pair to align, and the exponential below might overflow
            return signal - needed
        decay = np.exp(-2.0 * rho * t)
        grown = -np.expm1(-2.0 * rho * t) / (2.0 * rho) if rho != 0.0 else t
        return signal - pairs * (decay + drive * grown) - needed

    low = np.zeros_like(overlap)
    high = np.log(np.maximum(needed / (2 * p * overlap), 1.0)) / r + 20.0 / r
    for _ in range(60):  # bisection to rounding
        middle = 0.5 * (low + high)
        is_over = excess(middle) > 0.0
        low, high = np.where(is_over, low, middle), np.where(is_over, middle, high)
    return 0.5 * (low + high)


def noise_correction(
    p: int, d: int, learning_rate: float, noise: float, threshold: float, overlap: Numbers | None = None
) -> Estimate:
    """The change of the mean exit time by the noise of SGD at this d: `noisy_times` minus `quenched_times`.

    Averaged over the law of the start by quadrature at p = 1 and over the given starts otherwise, with five standard
    errors as the error. It tends to minus `noise_shift`. Both are linearised at the saddle: for small T.
    """
    alignment = p * (p - 1) / d

    def change(square: np.ndarray) -> np.ndarray:
        noisy = noisy_times(square, p, d, learning_rate, noise, threshold)
        return np.asarray(noisy - quenched_times(square, alignment, p, d, learning_rate, noise, threshold))

    if p == 1:
        return mean_over_overlap(change, d)
    changes = change(np.asarray(overlap))
    error = STANDARD_ERRORS * float(np.std(changes, ddof=1) / np.sqrt(changes.size))
    return Estimate(float(np.mean(changes)), error)


def model_error(
    p: int,
    d: int,
    learning_rate: float,
    noise: float,
    threshold: float,
    time: float,
    correction: float,
    rest: Float[np.ndarray, " starts"],
) -> float:
    r"""A bound, of the next order in 1/d, on the error of the ODE with `noise_correction` for the mean exit time.

    .. math:: \frac{2D}{r_p^2 |m_1|^2} + |c + s| + t D \Big(\frac32 + \frac6{r_p}\Big) + r_p \mathrm{Var}[u], \qquad
              D = \frac{\gamma V_p}{p d}, \quad |m_1|^2 = \frac{(p + 1)\,T}{2}

    - The first term is derived: a run exits when it is at the level :math:`|m_1|` for the first time, while the
      correction takes the time at which the typical overlap is there. The mean first-passage time of the unstable
      Ornstein-Uhlenbeck process of `noise_factor`, in p dimensions, is earlier by this.
    - The second is what the correction c differs by from its limit, minus the shift s.
    - The third is an order of magnitude: drift of order 1/d, noise proportional to the overlap and noise of the
      alignments change the growth rate by an amount of order D.
    - The last is for nonlinear dynamics that depend on more than the initial overlap, and so act on the noise as well.
      It is large where the ODE passes a bottleneck.

    Parameters
    ----------
    time, correction
        The exit time whose error it is, and the value of `noise_correction` in it.
    rest
        The values u of `unexplained` for the ODE from several starts.

    Notes
    -----
    It is not proved: the factors have a margin over runs of `OverlapSGD` on random settings, and hold on others.
    """
    diffusion = learning_rate * noise_strength(p, noise) / (p * d)
    rate, level = growth_rate(p, learning_rate, noise), 0.5 * (p + 1) * threshold
    finite_d = correction + noise_shift(p, learning_rate, noise)
    return next_order(diffusion, rate, level, time, finite_d, rest)


def next_order(diffusion: Numbers, rate: Numbers, level: float, time: float, finite_d: Numbers, rest: Numbers) -> float:
    """The four terms of `model_error`, for the escape from any plateau."""
    first_passage = 2.0 * diffusion / (rate**2 * level)
    return float(
        first_passage + abs(finite_d) + time * diffusion * (1.5 + 6.0 / rate) + rate * np.var(np.asarray(rest))
    )
