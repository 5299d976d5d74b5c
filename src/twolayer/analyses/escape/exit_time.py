"""The verb that says when training leaves its start: by formulas, by the ODE, and as measured."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from twolayer.analyses.escape.result import ExitTime, Sample, does_not_escape
from twolayer.ask import Ask, make_plan
from twolayer.core import interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import InvalidInput, NotApplicable, takes_these
from twolayer.core.estimate import Estimate
from twolayer.core.precision import double
from twolayer.core.random import Purpose, purpose_key
from twolayer.description import AbstractDescription, Plan, Record, Status
from twolayer.expectation import choose, risk_along
from twolayer.expectation.base import ROUNDING
from twolayer.problem import Overlaps, Problem
from twolayer.simulation import OverlapSGD
from twolayer.specification.fields import as_data, count, instance, number
from twolayer.theory import SaadSolla
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.escape import ode_exit_times
from twolayer.theory.formulas.random_start import sum_of_alignments, sum_of_squares
from twolayer.training import SGD
from twolayer.verbs.evolve import Interrupted
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
    """Starts and keys of all replicas, what counts as the exit, and its level for each of them.

    By the criterion ``"risk"`` thresholds are excess risks, by ``"overlap"`` cosines.
    """

    plan: Plan
    criterion: str
    thresholds: np.ndarray

    def first(self, size: int) -> "_Starts":
        """The first few."""
        starts = self.plan.starts
        few = Overlaps(starts.Q[:size], starts.M[:size], starts.P, starts.a[:size])
        plan = dataclasses.replace(self.plan, starts=few, keys=self.plan.keys[:size])
        return _Starts(plan, self.criterion, self.thresholds[:size])

    @property
    def watched(self) -> dict[str, Any]:
        """The thresholds as fields of a plan. An exit is the first overlap that reaches its threshold."""
        by_overlap = self.criterion == "overlap"
        name = "overlap_threshold" if by_overlap else "risk_threshold"
        return {"risk_threshold": None, "stops_at_any": by_overlap, name: np.asarray(self.thresholds)}


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
    r"""When training leaves its start.

    On the sphere with a fixed second layer the exit is the time at which the excess risk is :math:`(1 - T)` times its
    initial value. Where rows or output weights change their size the risk falls also without any overlap with the
    target, and the exit is by overlap: the first time at which the squared cosine :math:`c^2` between some neuron and
    some target direction is :math:`T + (1 - T)\,c_0^2`, with the largest cosine :math:`c_0` of the start. For one
    neuron on the sphere that learns phase retrieval the two are the same. ``criterion`` of the result says which is
    used.

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
        T, between 0 and 1. It is relative to the initial excess risk, or overlap, of each start.
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
    The times by every account, with errors; print it, or take its fields, or ``to_dict()``. Where some runs, or starts
    of the ODE, do not exit there is no mean: the sample has the median, the restricted mean and the share that exited.
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", SGD, "a training method such as SGD(learning_rate=0.5)")(training)
    threshold = number("threshold", above=0.0, below=1.0)(threshold)
    replicas = count("replicas", low=0, high=10**7)(replicas)
    starts = count("starts", high=10**6)(starts)
    until = number("until", above=0.0, optional=True)(until)
    check = instance("description", AbstractDescription, "a description such as OverlapSGD()")
    account: AbstractDescription = OverlapSGD() if description is None else check(description)
    if replicas:
        account.require(problem, training)
    if not training.trains_first:
        raise NotApplicable(
            "Argument `training` must train the first layer, but its `layers` are Second(): the overlaps with the "
            "target stay where they are, and there is nothing to leave."
        )
    tell = progress or (lambda name, fraction: None)
    is_known = phase_retrieval.applies(problem, training).ok
    if is_known:
        _check_rate(problem, training)
    with double(), interrupts.deferred():
        drawn = _draw(problem, training, threshold, _size(problem, replicas, starts, is_known), seed)
        formulas = _formulas(problem, training, threshold, drawn) if is_known else {}
        ode, sample, notes = _ode(problem, training, threshold, drawn, starts, is_known, until, formulas, tell)
        corrected = _corrected(problem, training, threshold, drawn, ode, sample, formulas)
        known: dict[str, Any] = dict.fromkeys(_ONLY_KNOWN) | formulas | corrected
        clock = training.clock(problem)
        result = ExitTime(
            **known,
            p=problem.p,
            d=problem.d,
            noise=float(problem.noise),
            threshold=float(threshold),
            learning_rate=float(training.learning_rate),
            steps_per_time=1.0 / float(clock.time_per_step),
            ode=ode,
            ode_sample=sample,
            measured=None,
            measured_by=type(account).__name__,
            notes=tuple(notes),
            criterion=drawn.criterion,
        )
        if not replicas:
            return result
        interrupts.offer(lambda: result)
        exited = np.empty(0) if sample is None else sample.exited
        usual = float(np.mean(exited)) if exited.size else MEASURED_UNTIL / PATIENCE
        longest = PATIENCE * usual if until is None else until
        try:
            place = Checkpoint.of(checkpoint)
            measured = _measure(problem, training, account, drawn.first(replicas), usual, longest, tell, place)
        except KeyboardInterrupt:
            raise Interrupted(result) from None
    if measured.is_censored:
        notes.append(measured.censoring)
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
    "ode_with_noise",
    "ode_at_finite_d",
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
    if not training.is_spherical or float(training.layer_ratio) != 0.0:
        return _Starts(plan, "overlap", _overlap_thresholds(plan.starts, threshold))
    Q, M, a = (np.asarray(x)[:, None] for x in (plan.starts.Q, plan.starts.M, plan.starts.a))
    risks, _ = risk_along(choose(problem, ("excess_risk",)), as_data(problem), Q, M, plan.starts.P, a)
    risks = risks[:, 0]
    if float(np.min(risks)) <= 0.0:
        raise InvalidInput("The excess risk of a start is zero: there is nothing to leave.")
    return _Starts(plan, "risk", (1.0 - threshold) * risks)


def _overlap_thresholds(starts: Overlaps, threshold: float) -> np.ndarray:
    """The cosine at which each start is left."""
    lengths = np.diagonal(np.asarray(starts.Q), axis1=1, axis2=2)
    if float(np.min(lengths)) <= 0.0:
        raise InvalidInput("The exit is measured by overlap, but a row of the start is zero and has none.")
    squares = np.asarray(starts.M) ** 2 / (lengths[:, :, None] * np.diagonal(np.asarray(starts.P)))
    largest = np.max(squares, axis=(1, 2))
    if float(np.max(largest)) >= 1.0 - ROUNDING:
        raise InvalidInput("A neuron of the start lies along a target direction: there is nothing to leave.")
    return np.sqrt(threshold + (1.0 - threshold) * largest)


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


def _corrected(
    problem: Problem,
    training: SGD,
    threshold: float,
    drawn: _Starts,
    ode: Estimate | None,
    sample: Sample | None,
    formulas: dict[str, Any],
) -> dict[str, Any]:
    """The ODE with the noise of SGD, in the limit and at this d, and what these still leave out."""
    shift, change = formulas.get("noise_shift"), formulas.pop("change", None)
    if shift is None or change is None or ode is None or sample is None:
        return {}
    limit, here = _shifted(ode, Estimate(-shift, 0.0)), _shifted(ode, change)
    errors = {}
    if np.isfinite(here.value):
        numbers = problem.p, problem.d, float(training.learning_rate), float(problem.noise), threshold
        overlap = sum_of_squares(drawn.first(sample.size).plan.starts.M)
        rest = phase_retrieval.unexplained(sample.times, overlap, formulas["growth_rate"])
        left_out = phase_retrieval.model_error(*numbers, here.value, change.value, rest)
        errors = {"ode_with_noise": abs(here.value - limit.value) + left_out, "ode_at_finite_d": left_out}
    return {"ode_with_noise": limit, "ode_at_finite_d": here, "model_errors": errors}


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
            notes.append(does_not_escape(gamma, threshold, f"from a random start with probability {never:.2g}"))
            mean = Estimate(np.inf if never == 1.0 else np.nan, 0.0)
        return mean, Sample(np.where(np.isfinite(times), times, np.nan), np.inf), notes
    applies = SaadSolla().applies(problem, training)
    if not applies.ok:
        return None, None, [*notes, f"No ODE: {applies.statement}"]
    longest = ODE_UNTIL if until is None else until
    if is_known and until is None:
        longest = PATIENCE * (formulas["quenched"].value + 5.0 / formulas["growth_rate"])
    drawn = drawn.first(starts if problem.has_random_start else 1)
    tell("ODE", 0.0)
    by_overlap = drawn.criterion == "overlap"
    times = ode_exit_times(problem, training, drawn.plan.starts, drawn.thresholds, longest, by_overlap=by_overlap)
    tell("ODE", 1.0)
    sample = Sample(np.asarray(times.value), longest)
    if sample.is_censored:
        lost = sample.size - sample.exited.size
        where = f"from {lost} of {sample.size} starts" if sample.size > 1 else "from its start"
        notes.append(does_not_escape(gamma, threshold if is_known else None, f"{where} before time {longest:.4g}"))
        return Estimate(np.nan if sample.exited.size else np.inf, 0.0), sample, notes
    numerical = float(np.max(np.asarray(times.error)))
    if is_known and sample.size > 1:
        overlap = sum_of_squares(drawn.plan.starts.M)
        mean = phase_retrieval.mean_with_control(sample.times, overlap, p, d, gamma, noise)
    else:
        spread = np.nan_to_num(sample.standard_error) if problem.has_random_start else 0.0
        mean = Estimate(sample.mean, phase_retrieval.STANDARD_ERRORS * spread)
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
    times = np.full(drawn.thresholds.shape, np.nan)
    plan = dataclasses.replace(drawn.plan, steps=save, times=clock.time(save), stops=stops, **drawn.watched)
    plan = dataclasses.replace(plan, checkpoint=open_place(checkpoint, plan_key(problem, training, description, plan)))
    name = f"{type(description).__name__}, {len(times)} runs"
    for number_done in range(stages):

        def share(fraction: float, before: int = number_done) -> None:
            tell(name, (before + fraction) / stages)

        part = dataclasses.replace(plan, progress=share)
        record = run_part(description, problem, training, part, f"stage {number_done}")
        if record.interrupted:
            raise KeyboardInterrupt
        crossing = record.crossing_time
        if drawn.criterion == "overlap":
            crossing = np.fmin.reduce(np.asarray(record.overlap_time), axis=1)
        crossed = np.isnan(times) & np.isfinite(crossing)
        times[crossed] = float(clock.time(number_done * steps)) + crossing[crossed]
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
    # No excess risk is as small as that, and no cosine as large.
    out_of_reach = {"risk_threshold": np.finfo(float).tiny, "overlap_threshold": 2.0}
    asked = {name: getattr(plan, name) for name in out_of_reach}
    thresholds = {name: np.where(lost, out_of_reach[name], x) for name, x in asked.items() if x is not None}
    return dataclasses.replace(plan, starts=starts, keys=keys, **thresholds)
