"""Phase retrieval on the sphere: formulas at the saddle, the ODE, and the ODE with the noise of SGD."""

import dataclasses

import numpy as np

from twolayer.analyses.escape.exit_starts import Starts
from twolayer.analyses.escape.exit_theories import (
    PATIENCE,
    AbstractPredictor,
    AskedExit,
    Predictions,
    does_not_exit,
    from_which_starts,
    without_mean,
)
from twolayer.analyses.escape.from_ode import ode_times
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import Prediction
from twolayer.ask import Training
from twolayer.core.errors import InvalidInput
from twolayer.core.estimate import Estimate
from twolayer.description import Plan
from twolayer.expectation.engine import ROUNDING
from twolayer.problem import Overlaps, Problem
from twolayer.theory import SaadSolla
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.random_start import sum_of_alignments, sum_of_squares
from twolayer.training import SGD
from twolayer.verbs.progress import Progress

# Starts for the part of the quenched mean that is not integrated; its scatter is of order 1 / (T d) of a start's.
QUENCHED_STARTS = 1024
# Points in time at which the lowest excess risk of the ODE is looked for, and numbers of them that are held at once.
LOOKS, HELD = 512, 2**24


class FromSaddle(AbstractPredictor):
    """All that is known of phase retrieval on the sphere."""

    references = ("arnaboldi2023escaping",)

    def applies(self, problem: Problem, training: Training) -> bool:
        """Whether the exit is one from the saddle of phase retrieval on the sphere."""
        return isinstance(training, SGD) and phase_retrieval.applies(problem, training).ok

    def check(self, problem: Problem, training: Training) -> None:
        """Refuse a learning rate at which the saddle is never left."""
        assert isinstance(training, SGD)
        largest = phase_retrieval.maximal_learning_rate(problem.p, float(problem.noise))
        if float(training.learning_rate) >= largest:
            raise InvalidInput(
                f"Argument `learning_rate` must be below {largest:.6g} for p = {problem.p} and noise "
                f"{float(problem.noise):g}, or the saddle is not left, but is {float(training.learning_rate):g}."
            )

    def starts_needed(self, problem: Problem) -> int:
        """How many starts it wants to be drawn: for one neuron all is known in closed form."""
        return QUENCHED_STARTS if problem.p > 1 else 1

    def predict(self, problem: Problem, training: Training, asked: AskedExit) -> Predictions:
        """Predict the exit time by the formulas at the saddle, by the ODE, and by the ODE with the noise of SGD."""
        assert isinstance(training, SGD)
        threshold, drawn = asked.threshold, asked.drawn
        p, d, noise, gamma = numbers = problem.p, problem.d, float(problem.noise), float(training.learning_rate)
        overlap, alignment = sum_of_squares(drawn.plan.starts.M), sum_of_alignments(drawn.plan.starts.Q)
        annealed = phase_retrieval.annealed_time(p, d, gamma, noise, threshold)
        quenched = phase_retrieval.quenched_time(p, d, gamma, noise, threshold, overlap, alignment)
        shift = float(phase_retrieval.noise_shift(p, gamma, noise))
        rates = {
            "growth_rate": phase_retrieval.growth_rate(p, gamma, noise),
            "optimal_learning_rate": phase_retrieval.optimal_learning_rate(p, noise),
            "maximal_learning_rate": phase_retrieval.maximal_learning_rate(p, noise),
            "recovery_learning_rate": phase_retrieval.recovery_learning_rate(p, noise),
            "noise_shift": shift,
        }
        reached = None
        if p == 1:
            ode, sample, notes = _one_neuron(d, noise, gamma, threshold, drawn)
        else:
            patient = PATIENCE * (quenched.value + 5.0 / rates["growth_rate"])
            longest = patient if asked.until is None else asked.until
            few = drawn.first(asked.starts)
            ode, sample, notes = _several_neurons(problem, training, threshold, few, longest, asked.tell)
            reached = largest_thresholds(problem, training, few.plan, min(longest, patient))
        change = phase_retrieval.noise_correction(p, d, gamma, noise, threshold, overlap)
        in_limit, here = ode.value - shift, ode.value + change.value
        left_out = {"ode_with_noise": np.nan, "ode_at_finite_d": np.nan}
        if np.isfinite(here):
            overlaps = sum_of_squares(drawn.first(sample.size).plan.starts.M)
            rest = phase_retrieval.unexplained(sample.times, overlaps, rates["growth_rate"])
            model_error = phase_retrieval.model_error(p, d, gamma, noise, threshold, here, change.value, rest)
            left_out = {"ode_with_noise": abs(here - in_limit) + model_error, "ode_at_finite_d": model_error}
        estimates = {
            "annealed": Prediction(annealed, ROUNDING * (1.0 + abs(annealed))),
            "quenched": Prediction(quenched.value, quenched.error),
            "quenched_with_noise": Prediction(quenched.value - shift, quenched.error),
            "ode": Prediction(ode.value, ode.error),
            "ode_with_noise": Prediction(in_limit, ode.error, left_out["ode_with_noise"]),
            "ode_at_finite_d": Prediction(here, ode.error + change.error, left_out["ode_at_finite_d"]),
        }
        return Predictions(estimates, rates, sample, (*_remarks(*numbers, threshold), *notes), reached)


def _one_neuron(
    d: int, noise: float, gamma: float, threshold: float, drawn: Starts
) -> tuple[Estimate, Sample, list[str]]:
    """The mean of the ODE over the law of the start in closed form, and the times of the starts."""
    times = phase_retrieval.exact_times(sum_of_squares(drawn.plan.starts.M), gamma, noise, threshold)
    sample = Sample(np.where(np.isfinite(times), times, np.nan), np.inf)
    mean, lost = phase_retrieval.exact_time(d, gamma, noise, threshold)
    if lost <= ROUNDING:
        return mean, sample, []
    note = does_not_exit(gamma, threshold, f"from a random start with probability {lost:.2g}")
    return Estimate(np.inf if lost == 1.0 else np.nan, 0.0), sample, [note]


def _several_neurons(
    problem: Problem, training: SGD, threshold: float, drawn: Starts, longest: float, tell: Progress
) -> tuple[Estimate, Sample, list[str]]:
    """The ODE from random starts; the overlap of the start, whose mean is known, tells most of its scatter."""
    gamma = float(training.learning_rate)
    times, longest = ode_times(problem, training, drawn, longest, tell)
    sample = Sample(np.asarray(times.value), longest)
    if sample.is_censored:
        value, error, _ = without_mean(sample)
        return Estimate(value, error), sample, [does_not_exit(gamma, threshold, from_which_starts(sample))]
    if sample.size == 1:
        mean = Estimate(sample.mean, 0.0)
    else:
        overlap = sum_of_squares(drawn.plan.starts.M)
        mean = phase_retrieval.mean_with_control(
            sample.times, overlap, problem.p, problem.d, gamma, float(problem.noise)
        )
    return Estimate(mean.value, mean.error + float(np.max(np.asarray(times.error)))), sample, []


def largest_thresholds(problem: Problem, training: SGD, plan: Plan, longest: float) -> Estimate:
    """The largest threshold that the ODE reaches from each start: one minus its lowest excess risk over the first.

    The lowest value is that of the parabola through the lowest of many points and its neighbours; how far it lies below
    that point, and the error of the risk, are its error.
    """
    times = np.linspace(0.0, longest, LOOKS + 1)
    plan = dataclasses.replace(plan, times=times, steps=training.clock(problem).steps_at(times))
    starts, together = plan.starts, max(1, HELD // (LOOKS * problem.p**2))
    risks, errors = [], []
    for first in range(0, len(starts.a), together):
        some = slice(first, first + together)
        part = Overlaps(starts.Q[some], starts.M[some], starts.P, starts.a[some])
        record = SaadSolla().run(problem, training, dataclasses.replace(plan, starts=part, keys=plan.keys[some]))
        risks.append(np.asarray(record.excess_risk))
        errors.append(np.asarray(record.risk_error))
    risk, error = np.concatenate(risks), np.concatenate(errors)
    error = np.where(np.isfinite(error), error, 0.0).max(axis=1) / risk[:, 0]
    risk = np.where(np.isfinite(risk), risk, np.inf) / risk[:, :1]
    rows, lowest = np.arange(len(risk)), np.clip(np.argmin(risk, axis=1), 1, LOOKS - 1)
    before, here, after = (risk[rows, lowest + shift] for shift in (-1, 0, 1))
    bend = before - 2.0 * here + after
    is_inside = (here <= before) & (here <= after) & (bend > 0.0) & np.isfinite(bend)
    vertex = here - (after - before) ** 2 / (8.0 * np.where(is_inside, bend, 1.0))
    least = np.where(is_inside, np.maximum(vertex, 0.0), risk.min(axis=1))
    return Estimate(1.0 - least, risk.min(axis=1) - least + error)


def _remarks(p: int, d: int, noise: float, gamma: float, threshold: float) -> list[str]:
    """When the formulas for phase retrieval say less than they seem to."""
    notes = []
    if threshold * d < 10.0:
        notes.append(f"The formulas need T d to be large, but it is {threshold * d:.3g}.")
    if p > 1 and phase_retrieval.relaxation_rate(p, gamma) <= 0.0:
        notes.append(f"Above the learning rate p^2/8 = {p**2 / 8:.4g} neurons align, which the formulas leave out.")
    if p > 1 and gamma >= phase_retrieval.recovery_learning_rate(p, noise):
        bound = phase_retrieval.recovery_learning_rate(p, noise)
        notes.append(f"Above the learning rate {bound:.4g} the saddle is left, but runs do not end near the target.")
    return notes
