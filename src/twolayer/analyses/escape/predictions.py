"""What theories say about the exit time: formulas at the saddle of phase retrieval, and the ODE of any problem."""

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.escape.starts import Starts, largest_squares
from twolayer.analyses.quantity import Prediction
from twolayer.ask import Training
from twolayer.core.errors import InvalidInput
from twolayer.core.estimate import Estimate
from twolayer.expectation.base import ROUNDING
from twolayer.problem import Problem
from twolayer.theory import SaadSolla
from twolayer.theory.formulas import phase_retrieval, quadratic
from twolayer.theory.formulas.escape import ode_exit_times
from twolayer.theory.formulas.random_start import sum_of_alignments, sum_of_squares
from twolayer.theory.motion.flow import LOOSER
from twolayer.training import SGD, Schedule
from twolayer.verbs.phases import follow
from twolayer.verbs.progress import Progress

# Starts for the part of the quenched mean that is not integrated; its scatter is of order 1 / (T d) of a start's.
QUENCHED_STARTS = 1024
# How far the ODE is followed where nothing is known of its time.
ODE_UNTIL = 1000.0
# The ODE is followed for so many times the time that the formulas give.
PATIENCE = 10.0
# Points in each phase at which the ODE of a schedule says how large its errors are, and how much longer it is followed
# at a time. As many points in all phases, whatever the end: one compiled program serves them.
POINTS, LONGER = 32, 4.0


@dataclass(frozen=True)
class Predictions:
    """What theories say about one exit: only what exists is there.

    ``estimates`` are mean times over the law of the start, by the names of `ESTIMATES`; ``rates`` further numbers about
    the saddle. ``ode`` holds the time of the ODE from each start.
    """

    estimates: dict[str, Prediction]
    rates: dict[str, float] = field(default_factory=dict)
    ode: Sample | None = None
    notes: tuple[str, ...] = ()


def has_formulas(problem: Problem, training: Training) -> bool:
    """Whether the exit is one from the saddle of phase retrieval on the sphere, about which formulas are known."""
    return isinstance(training, SGD) and phase_retrieval.applies(problem, training).ok


def check_rate(problem: Problem, training: SGD) -> None:
    """Refuse a learning rate at which the saddle of phase retrieval is never left."""
    largest = phase_retrieval.maximal_learning_rate(problem.p, float(problem.noise))
    if float(training.learning_rate) >= largest:
        raise InvalidInput(
            f"Argument `learning_rate` must be below {largest:.6g} for p = {problem.p} and noise "
            f"{float(problem.noise):g}, or the saddle is not left, but is {float(training.learning_rate):g}."
        )


# ------------------------------------------------------------------------------------------------- any problem


def by_ode(
    problem: Problem, training: Training, drawn: Starts, starts: int, until: float | None, tell: Progress
) -> Predictions:
    """The ODE of any problem, from random starts, or the reason why there is none."""
    phases = training.phases if isinstance(training, Schedule) else (training,)
    refused = [answer for answer in (SaadSolla().applies(problem, phase) for phase in phases) if not answer.ok]
    if refused:
        return Predictions({}, notes=(f"No ODE: {refused[0].statement}",))
    drawn = drawn.first(starts if problem.has_random_start else 1)
    times, longest = _ode_times(problem, training, drawn, until, tell)
    sample = Sample(np.asarray(times.value), longest)
    if sample.is_censored:
        note = does_not_exit(float(training.learning_rate), None, _where(sample))
        return Predictions({"ode": _never(sample)}, ode=sample, notes=(note,))
    spread = np.nan_to_num(sample.standard_error) if problem.has_random_start else 0.0
    error = phase_retrieval.STANDARD_ERRORS * spread + float(np.max(np.asarray(times.error)))
    return Predictions({"ode": Prediction(sample.mean, error)}, ode=sample)


def _ode_times(
    problem: Problem, training: Training, drawn: Starts, until: float | None, tell: Progress
) -> tuple[Estimate, float]:
    """The time of the ODE from each start with its error, and how long it was followed."""
    tell("ODE", 0.0)
    if isinstance(training, Schedule):
        times, longest = _schedule_times(problem, training, drawn, until)
    else:
        longest = ODE_UNTIL if until is None else until
        by_overlap = drawn.criterion == "overlap"
        times = ode_exit_times(problem, training, drawn.plan.starts, drawn.thresholds, longest, by_overlap=by_overlap)
    tell("ODE", 1.0)
    return times, longest


def _schedule_times(problem: Problem, training: Schedule, drawn: Starts, until: float | None) -> tuple[Estimate, float]:
    """The times of the ODE of a schedule: longer and longer until all starts have exited, unless ``until`` is given.

    The error of a time is how far it moves when the level of the exit moves by the error of the solution there, and
    with the tolerances of the integrator.
    """
    ode = SaadSolla()

    def followed(levels: Starts, end: float, looser: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        edges = [0.0, *(switch for switch in training.switches if switch < end), end]
        pieces = [np.linspace(low, high, POINTS, endpoint=False) for low, high in pairwise(edges)]
        times = np.concatenate([*pieces, [end]])
        steps = training.clock(problem).steps_at(times)
        plan = dataclasses.replace(levels.plan, times=times, steps=steps, **levels.watched)
        description = dataclasses.replace(ode, rtol=looser * ode.rtol, atol=looser * ode.atol)
        record = follow(description, problem, training, plan)
        exits = levels.exits(record)
        latest = np.searchsorted(times, np.where(np.isfinite(exits), exits, end))
        before = np.arange(len(times)) <= latest[:, None]
        errors = record.risk_error
        if levels.criterion == "overlap":  # of a cosine, from those of the overlaps and the shortest rows
            shortest = np.min(np.diagonal(np.asarray(record.Q), axis1=2, axis2=3), axis=2)
            scale = np.sqrt(shortest * np.min(np.diagonal(np.asarray(plan.starts.P))))
            errors = record.overlap_error * (1.0 / scale + 0.5 / shortest)
        return exits, np.nanmax(np.where(before, errors, 0.0), axis=1)

    longest = 2.0 * training.switches[-1] if until is None else until
    exits, errors = followed(drawn, longest)
    while until is None and np.isnan(exits).any() and longest < ODE_UNTIL:
        longest = min(LONGER * longest, ODE_UNTIL)
        exits, errors = followed(drawn, longest)

    def change(side: float, looser: float = 1.0) -> np.ndarray:
        levels = np.maximum(drawn.thresholds + side * errors, np.finfo(float).tiny)
        shifted, _ = followed(drawn._replace(thresholds=levels), longest, looser)
        return np.abs(np.where(np.isfinite(shifted), shifted, longest) - exits)  # a harder level may not be reached

    error = np.maximum(change(-1.0), change(1.0)) + change(0.0, LOOSER)
    return Estimate(exits, error + ROUNDING * (1.0 + np.abs(exits))), longest


def _where(sample: Sample) -> str:
    lost = sample.size - sample.exited.size
    where = f"from {lost} of {sample.size} starts" if sample.size > 1 else "from its start"
    return f"{where} before time {sample.until:.4g}"


def _never(sample: Sample) -> Prediction:
    """The prediction of an ODE that does not exit from some starts: no mean, or none at all."""
    return Prediction(np.nan if sample.exited.size else np.inf, 0.0)


def does_not_exit(learning_rate: float, threshold: float | None, where: str) -> str:
    """The sentence that the ODE does not exit; with the threshold of phase retrieval, also what the formulas say."""
    if threshold is None:
        return f"At the learning rate {learning_rate:.4g} the ODE does not exit {where}."
    return (
        f"The learning rate {learning_rate:.4g} does not escape {where}: the formulas, linearised at the saddle, say "
        f"when the saddle is left, but the excess risk of the ODE does not fall to {1.0 - threshold:.4g} of its start."
    )


# -------------------------------------------- phase retrieval by rows or output weights that change their size


def from_the_plateau(
    problem: Problem,
    training: SGD,
    escape: quadratic.Escape,
    drawn: Starts,
    starts: int,
    until: float | None,
    tell: Progress,
) -> Predictions:
    """The exit of a quadratic student by overlap: formulas along its motion without overlap, the ODE, and noise.

    The formula of each start tells most of the scatter of the ODE; its mean over the law of the start is known.
    """
    student, gamma, d = escape.student, float(training.learning_rate), problem.d
    few = drawn.first(starts)
    predictions = by_ode(problem, training, few, starts, until, tell)
    quenched, noisy = escape.mean_time(d), escape.mean_time(d, is_noisy=True)
    rest, ode = student.rest(gamma), predictions.ode
    rates = {
        "growth_rate": None if rest is None else rest.growth_rate,
        "optimal_learning_rate": student.optimal_learning_rate,
        "maximal_learning_rate": student.maximal_learning_rate,
        "noise_shift": None if rest is None else escape.noise_shift,
    }
    rates = {name: float(value) for name, value in rates.items() if value is not None}
    annealed = escape.annealed_time(d)
    estimates = {
        "annealed": Prediction(annealed, quadratic.ACCURACY * (1.0 + annealed)),
        "quenched": Prediction(quenched.value, quenched.error + quadratic.ACCURACY * (1.0 + quenched.value)),
        "quenched_with_noise": Prediction(noisy.value, noisy.error + quadratic.ACCURACY * (1.0 + noisy.value)),
        "ode": predictions.estimates["ode"],
    }
    if ode is not None and ode.size > 1 and not ode.is_censored and np.isfinite(noisy.value):
        squares = largest_squares(few.plan.starts)
        unexplained = ode.times - escape.times(squares)
        scatter = phase_retrieval.STANDARD_ERRORS * float(np.std(unexplained, ddof=1) / np.sqrt(ode.size))
        numerical = predictions.estimates["ode"].error - phase_retrieval.STANDARD_ERRORS * ode.standard_error
        value, error = quenched.value + float(np.mean(unexplained)), scatter + numerical + estimates["quenched"].error
        change = noisy.value - quenched.value
        left_out = escape.model_error(d, value + change, change, squares, ode.times)
        estimates["ode"] = Prediction(value, error)
        estimates["ode_at_finite_d"] = Prediction(value + change, error, left_out)
    note = _no_plateau(student, gamma, rest)
    return Predictions(estimates, rates, ode, (*predictions.notes, *note))


def _no_plateau(student: quadratic.QuadraticStudent, gamma: float, rest: quadratic.Rest | None) -> list[str]:
    """Where the escape is not from a plateau at rest, and why."""
    largest = student.maximal_learning_rate
    if largest is None:
        return [
            "There is no plateau: the noise of SGD goes on to lengthen the rows while output weights shrink, so that "
            "the exit is slower than log d."
        ]
    if rest is None or gamma >= largest:
        return [f"Above the learning rate {largest:.4g} the plateau is not left, or rows grow without bound."]
    return [f"Without overlap rows relax to a squared length of {rest.q:.4g} and output weights to {rest.a:.4g}."]


# -------------------------------------------------------------------------------- phase retrieval on the sphere


def from_the_saddle(
    problem: Problem, training: SGD, threshold: float, drawn: Starts, starts: int, until: float | None, tell: Progress
) -> Predictions:
    """All that is known of phase retrieval on the sphere: formulas, the ODE, and the ODE with the noise of SGD."""
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
    if p == 1:
        ode, sample, notes = _one_neuron(d, noise, gamma, threshold, drawn)
    else:
        longest = PATIENCE * (quenched.value + 5.0 / rates["growth_rate"]) if until is None else until
        ode, sample, notes = _several_neurons(problem, training, threshold, drawn.first(starts), longest, tell)
    change = phase_retrieval.noise_correction(p, d, gamma, noise, threshold, overlap)
    in_limit, here = ode.value - shift, ode.value + change.value
    left_out = {"ode_with_noise": np.nan, "ode_at_finite_d": np.nan}
    if np.isfinite(here):
        few = sum_of_squares(drawn.first(sample.size).plan.starts.M)
        rest = phase_retrieval.unexplained(sample.times, few, rates["growth_rate"])
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
    return Predictions(estimates, rates, sample, (*_remarks(*numbers, threshold), *notes))


def _one_neuron(
    d: int, noise: float, gamma: float, threshold: float, drawn: Starts
) -> tuple[Estimate, Sample, list[str]]:
    """The mean of the ODE over the law of the start in closed form, and the times of the starts."""
    times = phase_retrieval.exact_times(sum_of_squares(drawn.plan.starts.M), gamma, noise, threshold)
    sample = Sample(np.where(np.isfinite(times), times, np.nan), np.inf)
    mean, never = phase_retrieval.exact_time(d, gamma, noise, threshold)
    if never <= ROUNDING:
        return mean, sample, []
    note = does_not_exit(gamma, threshold, f"from a random start with probability {never:.2g}")
    return Estimate(np.inf if never == 1.0 else np.nan, 0.0), sample, [note]


def _several_neurons(
    problem: Problem, training: SGD, threshold: float, drawn: Starts, longest: float, tell: Progress
) -> tuple[Estimate, Sample, list[str]]:
    """The ODE from random starts; the overlap of the start, whose mean is known, tells most of its scatter."""
    gamma = float(training.learning_rate)
    times, longest = _ode_times(problem, training, drawn, longest, tell)
    sample = Sample(np.asarray(times.value), longest)
    if sample.is_censored:
        value, error, _ = _never(sample)
        return Estimate(value, error), sample, [does_not_exit(gamma, threshold, _where(sample))]
    if sample.size == 1:
        mean = Estimate(sample.mean, 0.0)
    else:
        overlap = sum_of_squares(drawn.plan.starts.M)
        mean = phase_retrieval.mean_with_control(
            sample.times, overlap, problem.p, problem.d, gamma, float(problem.noise)
        )
    return Estimate(mean.value, mean.error + float(np.max(np.asarray(times.error)))), sample, []


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
