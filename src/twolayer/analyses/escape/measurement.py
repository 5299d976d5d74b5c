"""The exit time as runs have it: all are followed until they exit, or for as long as was asked."""

import dataclasses

import numpy as np

from twolayer.analyses.escape.exit_starts import Starts
from twolayer.analyses.escape.sample import Sample
from twolayer.ask import Training
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import ComputationFailed
from twolayer.description import AbstractDescription, Plan, Record, Status
from twolayer.problem import Problem
from twolayer.simulation import OverlapSGD
from twolayer.training import Schedule
from twolayer.verbs.phases import continued, follow_phases
from twolayer.verbs.places import open_place, plan_key, run_part
from twolayer.verbs.progress import Progress

# Points at which a description that looks at its save points only is asked, in one stage.
POINTS = 256


def measured_times(
    problem: Problem,
    training: Training,
    description: AbstractDescription,
    drawn: Starts,
    usual: float,
    longest: float,
    tell: Progress,
    checkpoint: Checkpoint | None,
) -> Sample:
    """Follow the runs until all have exited, or until the time ``longest``.

    `OverlapSGD` ends each run at its exit. Others go in stages of the ``usual`` time, each from the overlaps that the
    last one left: on fresh samples these are a Markov process, so a run that is cut and continued has the law of one
    that is not. A velocity, or what a fixed set of samples remembers, is not among the overlaps; there is one stage
    then. A schedule has its own phases, and no other stages.
    """
    clock = training.clock(problem)
    is_one = isinstance(training, Schedule)
    looks_at_steps = isinstance(description, OverlapSGD)
    stops = looks_at_steps and not is_one
    has_memory = training.has_fixed_set or (not is_one and training.has_momentum)
    stage = longest if stops or is_one or has_memory else min(usual, longest)
    steps = max(1, int(clock.steps(stage)))
    points = 2 if looks_at_steps else POINTS + 1
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
        if is_one:
            record = follow_phases(description, problem, training, part)
            _check_reached(record)
        else:
            record = run_part(description, problem, training, part, f"stage {number_done}")
        if record.interrupted:
            raise KeyboardInterrupt
        exits = drawn.exits(record)
        exited = np.isnan(times) & np.isfinite(exits)
        times[exited] = float(clock.time(number_done * steps)) + exits[exited]
        lost = np.isin(record.status, (Status.DIVERGED, Status.UNFINISHED))
        if np.all(np.isfinite(times) | lost):
            break
        plan = _onwards(plan, record, lost, number_done)
    tell(name, 1.0)
    if checkpoint is not None and not checkpoint.is_part:
        checkpoint.remove()
    return Sample(times, float(clock.time(stages * steps)))


def _check_reached(record: Record) -> None:
    """A run that diverges ends a schedule for all: later phases are then missing, and say nothing of the exit."""
    status = np.asarray(record.status)
    broken = int(np.sum(status != Status.DONE))
    if broken and np.isnan(np.asarray(record.excess_risk)[status == Status.DONE, -1]).any():
        raise ComputationFailed(
            f"{broken} of {len(status)} runs did not reach the end of a phase, so that the later phases of the "
            "schedule were not run: lower the learning rate.",
            None,
        )


def _onwards(plan: Plan, record: Record, lost: np.ndarray, stage: int) -> Plan:
    """The plan of the next stage; what has diverged stays where it began and never exits."""
    # No excess risk is as small as that, and no cosine as large.
    out_of_reach = {"risk_threshold": np.finfo(float).tiny, "overlap_threshold": 2.0}
    asked = {name: getattr(plan, name) for name in out_of_reach}
    thresholds = {name: np.where(lost, out_of_reach[name], x) for name, x in asked.items() if x is not None}
    return dataclasses.replace(continued(plan, record, stage, lost), **thresholds)
