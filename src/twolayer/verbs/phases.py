"""A schedule followed phase by phase: each begins at the overlaps where the last one ended."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.ask import Training
from twolayer.core.errors import NotApplicable
from twolayer.core.random import Purpose, purpose_key
from twolayer.description import ROW, AbstractDescription, Applies, Exactness, Plan, Record, Status, by_block
from twolayer.problem import BlockOverlaps, Overlaps, Problem
from twolayer.stepping import padded
from twolayer.training import SGD, Clock, PhasedClock, RidgeRegression, Schedule
from twolayer.verbs.places import run_part, run_whole
from twolayer.verbs.tasks import on_inputs, refusal, save_times


def applies_throughout(description: AbstractDescription, problem: Problem, training: Training) -> Applies:
    """Whether a description covers the training, or every phase of a schedule; the first reason if not."""
    seen = description.seen(problem)
    applies = _answer(description, seen, training)
    if applies.ok and (reason := refusal(seen, training, applies)):
        return applies._replace(ok=False, statement=reason)
    if applies.ok and seen is not problem:
        return applies._replace(statement=f"on the Gaussian equivalent of the data: {applies.statement}")
    return applies


def _answer(description: AbstractDescription, problem: Problem, training: Training) -> Applies:
    if isinstance(training, SGD):
        return description.applies(problem, training)
    if problem.has_data and len(training.phases) > 1:
        reason = (
            "it does not follow a schedule on a data set, where a phase would need the weights at the end of the last "
            "one and not only their overlaps."
        )
        return Applies(False, Exactness.EXACT, reason)
    trainings = training.trainings
    rows = zip(training.problems(problem), trainings, strict=True)
    answers = [_phase_answer(description, of_phase, phase) for of_phase, phase in rows]
    refused = next((n for n, applies in enumerate(answers) if not applies.ok), None)
    if refused is not None:
        refusal_there = answers[refused]
        return refusal_there._replace(statement=f"phase {refused + 1}: {refusal_there.statement}")
    cannot = type(description).run_phases is AbstractDescription.run_phases
    if training.has_fixed_set and cannot and len(training.methods) > 1:
        return answers[0]._replace(ok=False, statement="it does not follow a schedule on a fixed set of samples.")
    fits = [x for x, phase in zip(answers[1:], trainings[1:], strict=True) if isinstance(phase, RidgeRegression)]
    return answers[0]._replace(statement="; then ".join(x.statement for x in (answers[0], *fits)))


def _phase_answer(description: AbstractDescription, problem: Problem, phase: SGD | RidgeRegression) -> Applies:
    if isinstance(phase, RidgeRegression):
        return description.applies_to_fit(problem, phase)
    return description.applies(problem, phase)


def require(description: AbstractDescription, problem: Problem, training: Training) -> Applies:
    """Raise `NotApplicable` with the reason if a description does not cover every phase of the training."""
    applies = applies_throughout(description, problem, training)
    if not applies.ok:
        raise NotApplicable(f"`{type(description).__name__}` does not apply: {applies.statement}")
    return applies


def follow_phases(description: AbstractDescription, problem: Problem, training: Training, plan: Plan) -> Record:
    """The record of a training through all its phases.

    On fresh samples the overlaps are a Markov process, so that a phase which begins at the overlaps of the last one,
    with random numbers of its own, has the law of a run that was never cut. On a fixed set they are not, and the
    description takes care of all phases itself.
    """
    if isinstance(training, SGD) or _is_together(training):
        return run_whole(description, problem, training, plan)
    clock, methods, problems = training.clock(problem), training.methods, training.problems(problem)
    legs: list[tuple[int, SGD | RidgeRegression | Schedule]] = list(enumerate(training.trainings))
    if training.has_fixed_set:
        is_one = len(methods) == 1
        together = methods[0] if is_one else Schedule(methods, training.switches[: len(methods) - 1])
        legs[: len(methods)] = [(0, together)]
    # A limit theory changes phase at the very times asked; what goes in steps does so at the nearest ones.
    in_time = description.is_continuous
    points: Any = save_times(problem, training, plan) if in_time else plan.steps
    firsts = np.array([0.0, *training.switches]) if in_time else clock.first_steps
    ends, last = [*(firsts[number] for number, _ in legs[1:]), np.inf], points[-1]
    pieces: list[Record] = []
    record: Any = None
    for (number, phase), end in zip(legs, np.minimum(ends, last), strict=True):
        first = firsts[number]
        if first >= last and number:
            break
        inside = points[(points > first) & (points < end)]
        own = np.concatenate([[first], inside, [end]]).astype(points.dtype) - first
        wanted = np.flatnonzero([number == 0, *[True] * len(inside), bool(np.any(points == end))])

        def share(fraction: float, first: Any = first, end: Any = end) -> None:
            plan.progress(float((first + fraction * (end - first)) / last))

        begun = plan if record is None else continued(plan, record, number)
        steps, times = _on_clock(phase.clock(problem), own, in_time)
        # A replica that has crossed its thresholds goes on: the next phase is one for all, and the record is cut later.
        starts = on_inputs(problems[number], begun.starts)
        part = dataclasses.replace(begun, starts=starts, steps=steps, times=times, progress=share, stops=False)
        record = run_part(description, problems[number], phase, part, f"phase {number}")
        if record.interrupted:
            raise KeyboardInterrupt
        pieces.append(_cut(record, wanted, float(first if in_time else clock.first_times[number])))
        if not np.all(np.asarray(record.status) == Status.DONE):
            break
    return _joined(pieces, len(points))


def _is_together(training: Schedule) -> bool:
    """Whether all phases run together, since they share a fixed set; a fit on fresh samples does not."""
    return training.has_fixed_set and len(training.methods) == len(training.phases)


def _on_clock(clock: Clock | PhasedClock, points: Any, in_time: bool) -> tuple[Any, Any]:
    """Steps and times of save points that are given as the one or the other."""
    return (clock.steps_at(points), points) if in_time else (points, clock.time(points))


def continued(plan: Plan, record: Record, number: int, lost: np.ndarray | None = None) -> Plan:
    """The plan that goes on where a record ends, with new random numbers; ``lost`` replicas stay where they began."""

    def end(path: Any, start: Any) -> Any:
        stays = np.zeros(len(start), bool) if lost is None else lost
        return jnp.asarray(np.where(stays.reshape((-1,) + (1,) * (np.ndim(start) - 1)), np.asarray(start), path[:, -1]))

    before = plan.starts
    a = end(record.a, before.a)
    if before.blocks is None:
        starts = Overlaps(end(record.Q, before.Q), end(record.M, before.M), before.P, a)
    else:
        Q, M = (end(record.others[f"{name}_block"], getattr(before.blocks, name)) for name in ("Q", "M"))
        starts = Overlaps.by_block(BlockOverlaps(Q, M, before.blocks.frame), a)
    keys = jax.vmap(lambda key: jax.random.fold_in(purpose_key(key, Purpose.CONTINUATION), number))(plan.keys)
    return dataclasses.replace(plan, starts=starts, keys=keys)


def _cut(record: Record, wanted: np.ndarray, began: float) -> Record:
    """The record at some of its save points, with its crossing times on the clock of the whole."""
    taken = {name: np.asarray(getattr(record, name))[:, wanted] for name in ROW}
    blocks = {name: array[:, wanted] for name, array in by_block(record.others or {}).items()}
    return record._replace(
        **taken,
        others=(record.others or {}) | blocks or None,
        crossing_time=record.crossing_time + began,
        overlap_time=record.overlap_time + began,
    )


def _joined(pieces: list[Record], times: int) -> Record:
    """Records one after the other; NaN for phases that were not reached."""
    whole = {name: padded(np.concatenate([getattr(piece, name) for piece in pieces], axis=1), times) for name in ROW}
    blocks = by_block(pieces[-1].others or {})
    joined = {name: padded(np.concatenate([piece.others[name] for piece in pieces], axis=1), times) for name in blocks}
    status = np.max([np.asarray(piece.status) for piece in pieces], axis=0)

    def first(name: str) -> np.ndarray:
        times_of_pieces = np.stack([np.asarray(getattr(piece, name)) for piece in pieces])
        return np.where(
            np.isnan(times_of_pieces).all(axis=0),
            np.nan,
            np.nanmin(np.where(np.isnan(times_of_pieces), np.inf, times_of_pieces), axis=0),
        )

    # The numerical error of a phase is inherited by the next.
    for name in ("risk_error", "overlap_error"):
        whole[name] = np.maximum.accumulate(whole[name], axis=1)
    engine = "; ".join(dict.fromkeys(piece.engine for piece in pieces))
    others = (pieces[-1].others or {}) | joined or None
    return pieces[-1]._replace(
        **whole,
        others=others,
        status=status,
        crossing_time=first("crossing_time"),
        overlap_time=first("overlap_time"),
        engine=engine,
    )
