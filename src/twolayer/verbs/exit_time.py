"""The verb that says when training leaves its start: by formulas, by the ODE, and as measured."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from twolayer.ask import Ask, make_plan
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import InvalidInput, takes_these
from twolayer.core.estimate import Estimate
from twolayer.core.fields import as_data, count, instance, number
from twolayer.core.precision import double
from twolayer.core.random import Purpose, purpose_key
from twolayer.description import AbstractDescription, Plan, Record, Status
from twolayer.expectation import choose, risk_along
from twolayer.expectation.base import ROUNDING
from twolayer.problem import Overlaps, Problem
from twolayer.simulation import OverlapSGD
from twolayer.theory import SaadSolla, phase_retrieval
from twolayer.theory.escape import ode_exit_times
from twolayer.theory.random_start import sum_of_alignments, sum_of_squares
from twolayer.training import SGD
from twolayer.verbs.evolve import Interrupted
from twolayer.verbs.exit_result import ExitTime, Sample
from twolayer.verbs.places import open_place, plan_key, run_part

# Starts for the part of the quenched mean that is not integrated; its scatter is of order 1 / (T d) of a start's.
QUENCHED_STARTS = 1024
# How far the ODE is followed where nothing is known of its time, and a measurement where the ODE does not exit.
ODE_UNTIL, MEASURED_UNTIL = 1000.0, 20.0
# A measurement goes on for so many times the time that the ODE takes.
PATIENCE = 10.0
# Points at which a description that looks at its save points only is asked, in one stage.
POINTS = 256


class _Starts(NamedTuple):
    """Starts and keys of all replicas, the excess risk of each start at time zero and at its exit."""

    plan: Plan
    risks: np.ndarray
    thresholds: np.ndarray

    def first(self, size: int) -> "_Starts":
        """The first few."""
        starts = self.plan.starts
        few = Overlaps(starts.Q[:size], starts.M[:size], starts.P, starts.a[:size])
        plan = dataclasses.replace(self.plan, starts=few, keys=self.plan.keys[:size])
        return _Starts(plan, self.risks[:size], self.thresholds[:size])


@takes_these
def exit_time(
    problem: Problem,
    training: SGD,
    *,
    threshold: float | int = 0.1,
    replicas: Any = 256,
    starts: Any = 256,
    seed: Any = 0,
    until: float | int | None = None,
    description: AbstractDescription | str | None = None,
    progress: Callable[[str, float], None] | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> ExitTime:
    r"""When training leaves its start: the time at which the excess risk is :math:`(1 - T)` times its initial value.

    For phase retrieval on the sphere from random starts: the annealed and the quenched formula, both linearised at the
    saddle; the mean of the ODE over the law of the start (at p = 1 in closed form); the same with the shift that the
    noise of SGD makes, in the limit of large d and at this d; the optimal and the largest learning rate. For any other
    problem: the ODE from random starts. And for all of them the measured times of a simulation, at the resolution of a
    step.

    Parameters
    ----------
    problem, training
        What is learned, and how the weights move.
    threshold
        T, between 0 and 1. It is relative to the initial excess risk of each start.
    replicas
        Measured runs; 0 for none.
    starts
        Starts from which the ODE is solved, where it is not solved in closed form.
    seed
        The seed from which every random number comes; replica n begins at start n.
    until
        The longest time followed. By default ten times what the ODE takes.
    description
        The account that is measured, `OverlapSGD` by default. One that looks at its save points only, such as
        `DirectSGD`, resolves 1/256 of the time that the ODE takes.
    progress
        Called with the name of what is done, and the fraction of it.
    checkpoint
        A file in which the measurement keeps its place, as in `evolve`.

    Returns
    -------
    The times by every account, with errors; print it, or take its fields, or ``to_dict()``.
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", SGD, "a training method such as SGD(learning_rate=0.5)")(training)
    threshold = number("threshold", above=0.0, below=1.0)(threshold)
    replicas = count("replicas", low=0, high=10**7)(replicas)
    starts = count("starts", high=10**6)(starts)
    until = number("until", above=0.0, optional=True)(until)
    description = OverlapSGD() if description is None else description
    description = instance("description", AbstractDescription, "a description such as OverlapSGD()")(description)
    if replicas:
        description.require(problem, training)
    tell = progress or (lambda name, fraction: None)
    is_known = phase_retrieval.applies(problem, training).ok
    if is_known:
        _check_rate(problem, training)
    with double():
        drawn = _draw(problem, training, threshold, _size(problem, replicas, starts, is_known), seed)
        formulas = _formulas(problem, training, threshold, drawn) if is_known else {}
        ode, sample, notes = _ode(problem, training, threshold, drawn, starts, is_known, until, formulas, tell)
        shift, change = formulas.get("noise_shift"), formulas.pop("change", None)
        clock = training.clock(problem)
        result = ExitTime(
            **{name: None for name in _ONLY_KNOWN} | formulas,
            p=problem.p,
            d=problem.d,
            noise=float(problem.noise),
            threshold=float(threshold),
            learning_rate=float(training.learning_rate),
            steps_per_time=1.0 / float(clock.time_per_step),
            ode=ode,
            ode_with_noise=None if shift is None or ode is None else _shifted(ode, Estimate(-shift, 0.0)),
            ode_at_finite_d=None if change is None or ode is None else _shifted(ode, change),
            ode_sample=sample,
            measured=None,
            measured_by=type(description).__name__,
            notes=tuple(notes),
        )
        if not replicas:
            return result
        usual = sample.mean if sample is not None and sample.exited.size else MEASURED_UNTIL / PATIENCE
        longest = PATIENCE * usual if until is None else until
        try:
            place = Checkpoint.of(checkpoint)
            measured = _measure(problem, training, description, drawn.first(replicas), usual, longest, tell, place)
        except KeyboardInterrupt:
            raise Interrupted(result) from None
    missing = replicas - measured.exited.size
    if missing:
        notes.append(
            f"{missing} of {replicas} runs had not exited by time {longest:.4g}; the measured mean is over the others."
        )
    return dataclasses.replace(result, measured=measured, notes=tuple(notes))


_ONLY_KNOWN = (
    "growth_rate",
    "optimal_learning_rate",
    "maximal_learning_rate",
    "recovery_learning_rate",
    "noise_shift",
    "annealed",
    "quenched",
    "quenched_with_noise",
)


def _check_rate(problem: Problem, training: SGD) -> None:
    largest = phase_retrieval.maximal_learning_rate(problem.p, float(problem.noise))
    if float(training.learning_rate) >= largest:
        raise InvalidInput(
            f"Argument `learning_rate` must be below {largest:.6g} for p = {problem.p} and noise "
            f"{float(problem.noise):g}, or the saddle is not left, but is {float(training.learning_rate):g}."
        )


def _size(problem: Problem, replicas: int, starts: int, is_known: bool) -> int:
    """How many starts are drawn, once for everything."""
    quenched = QUENCHED_STARTS if is_known and problem.p > 1 else 1
    return max(replicas, starts, quenched)


def _draw(problem: Problem, training: SGD, threshold: float, size: int, seed: Any) -> _Starts:
    step = float(training.clock(problem).time_per_step)
    plan = make_plan(problem, training, Ask(until=step, save=[step], replicas=size, seed=seed))
    Q, M, a = (np.asarray(x)[:, None] for x in (plan.starts.Q, plan.starts.M, plan.starts.a))
    risks, _ = risk_along(choose(problem, ("excess_risk",)), as_data(problem), Q, M, plan.starts.P, a)
    risks = risks[:, 0]
    if float(np.min(risks)) <= 0.0:
        raise InvalidInput("The excess risk of a start is zero: there is nothing to leave.")
    return _Starts(plan, risks, (1.0 - threshold) * risks)


def _formulas(problem: Problem, training: SGD, threshold: float, drawn: _Starts) -> dict[str, Any]:
    """Everything that phase retrieval on the sphere has in closed form."""
    p, d, noise, gamma = problem.p, problem.d, float(problem.noise), float(training.learning_rate)
    overlap, alignment = sum_of_squares(drawn.plan.starts.M), sum_of_alignments(drawn.plan.starts.Q)
    annealed = phase_retrieval.annealed_time(p, d, gamma, noise, threshold)
    quenched = phase_retrieval.quenched_time(p, d, gamma, noise, threshold, overlap, alignment)
    shift = float(phase_retrieval.noise_shift(p, gamma, noise))
    return {
        "growth_rate": phase_retrieval.growth_rate(p, gamma, noise),
        "optimal_learning_rate": phase_retrieval.optimal_learning_rate(p, noise),
        "maximal_learning_rate": phase_retrieval.maximal_learning_rate(p, noise),
        "recovery_learning_rate": phase_retrieval.recovery_learning_rate(p, noise),
        "noise_shift": shift,
        "annealed": Estimate(annealed, ROUNDING * (1.0 + abs(annealed))),
        "quenched": quenched,
        "quenched_with_noise": _shifted(quenched, Estimate(-shift, 0.0)),
        "change": phase_retrieval.noise_correction(p, d, gamma, noise, threshold, overlap),
    }


def _shifted(time: Estimate, by: Estimate) -> Estimate:
    return Estimate(time.value + by.value, time.error + by.error)


def _ode(
    problem: Problem,
    training: SGD,
    threshold: float,
    drawn: _Starts,
    starts: int,
    is_known: bool,
    until: float | None,
    formulas: dict[str, Any],
    tell: Callable[[str, float], None],
) -> tuple[Estimate | None, Sample | None, list[str]]:
    """The mean exit time of the ODE over the law of the start, the times of the starts, and what there is to say."""
    p, d, noise, gamma = problem.p, problem.d, float(problem.noise), float(training.learning_rate)
    notes = _remarks(p, d, noise, gamma, threshold) if is_known else []
    if is_known and p == 1:
        times = phase_retrieval.exact_times(sum_of_squares(drawn.plan.starts.M), gamma, noise, threshold)
        mean, never = phase_retrieval.exact_time(d, gamma, noise, threshold)
        if never > ROUNDING:
            notes.append(f"From a random start the ODE does not exit with probability {never:.2g}.")
        return mean, Sample(np.where(np.isfinite(times), times, np.nan), np.inf), notes
    applies = SaadSolla().applies(problem, training)
    if not applies.ok:
        return None, None, [*notes, f"No ODE: {applies.statement}"]
    longest = ODE_UNTIL if until is None else until
    if is_known and until is None:
        longest = PATIENCE * (formulas["quenched"].value + 5.0 / formulas["growth_rate"])
    drawn = drawn.first(starts if problem.has_random_start else 1)
    tell("ODE", 0.0)
    found = ode_exit_times(problem, training, drawn.plan.starts, drawn.thresholds, longest)
    tell("ODE", 1.0)
    sample = Sample(np.asarray(found.value), longest)
    exited = np.isfinite(sample.times)
    if not exited.any():
        return Estimate(np.inf, 0.0), sample, [*notes, f"The ODE does not exit before time {longest:.4g}."]
    numerical = float(np.max(np.asarray(found.error)[exited]))
    if exited.all() and is_known and sample.size > 1:
        overlap = sum_of_squares(drawn.plan.starts.M)
        mean = phase_retrieval.mean_with_control(sample.times, overlap, p, d, gamma, noise)
    else:
        spread = np.nan_to_num(sample.standard_error) if problem.has_random_start else 0.0
        mean = Estimate(sample.mean, phase_retrieval.STANDARD_ERRORS * spread)
    if not exited.all():
        lost = int(np.sum(~exited))
        notes.append(f"From {lost} of {sample.size} starts the ODE does not exit; its mean is over the others.")
    return Estimate(mean.value, mean.error + numerical), sample, notes


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


def _measure(
    problem: Problem,
    training: SGD,
    description: AbstractDescription,
    drawn: _Starts,
    usual: float,
    longest: float,
    tell: Callable[[str, float], None],
    checkpoint: Checkpoint | None,
) -> Sample:
    """Follow the runs until all have exited.

    `OverlapSGD` ends each run at its exit. Others go in stages, each from the overlaps that the last one left: on fresh
    samples these are a Markov process, so a run that is cut and continued has the law of one that is not. A velocity is
    not among the overlaps; with momentum there is one stage.
    """
    clock = training.clock(problem)
    stops = isinstance(description, OverlapSGD)
    stage = longest if training.has_momentum or stops else min(usual, longest)
    steps = max(1, int(clock.steps(stage)))
    points = 2 if stops else POINTS + 1
    save = np.unique(np.rint(np.linspace(0, steps, points)).astype(np.int64))
    stages = max(1, round(longest / stage))
    times = np.full(drawn.risks.shape, np.nan)
    plan = dataclasses.replace(
        drawn.plan, steps=save, times=clock.time(save), risk_threshold=np.asarray(drawn.thresholds), stops=stops
    )
    plan = dataclasses.replace(plan, checkpoint=open_place(checkpoint, plan_key(problem, training, description, plan)))
    name = f"{type(description).__name__}, {len(times)} runs"
    for number_done in range(stages):

        def share(fraction: float, before: int = number_done) -> None:
            tell(name, (before + fraction) / stages)

        part = dataclasses.replace(plan, progress=share)
        record = run_part(description, problem, training, part, f"stage {number_done}")
        if record.interrupted:
            raise KeyboardInterrupt
        crossed = np.isnan(times) & np.isfinite(record.crossing_time)
        times[crossed] = float(clock.time(number_done * steps)) + record.crossing_time[crossed]
        lost = np.isin(record.status, (Status.DIVERGED, Status.UNFINISHED))
        if np.all(np.isfinite(times) | lost):
            break
        plan = _continued(plan, record, lost, number_done)
    tell(name, 1.0)
    if checkpoint is not None and not checkpoint.is_part:
        checkpoint.remove()
    return Sample(times, float(clock.time(stages * steps)))


def _continued(plan: Plan, record: Record, lost: np.ndarray, stage: int) -> Plan:
    """The plan that goes on where a record ends, with new random numbers; what has diverged stays where it began."""

    def end(path: Any, start: Any) -> Any:
        kept = lost.reshape((-1,) + (1,) * (np.ndim(start) - 1))
        return jax.numpy.asarray(np.where(kept, np.asarray(start), path[:, -1]))

    before = plan.starts
    starts = Overlaps(end(record.Q, before.Q), end(record.M, before.M), before.P, end(record.a, before.a))
    keys = jax.vmap(lambda key: jax.random.fold_in(purpose_key(key, Purpose.CONTINUATION), stage))(plan.keys)
    thresholds = np.where(lost, np.finfo(float).tiny, plan.risk_threshold)
    return dataclasses.replace(plan, starts=starts, keys=keys, risk_threshold=thresholds)
