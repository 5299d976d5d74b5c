"""The verb that checks, runs and labels one description."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from twolayer.ask import Ask, AskFields, RunSpec, Training, check_record, make_plan
from twolayer.core import compiling, interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import ComputationFailed, takes_these
from twolayer.core.precision import double
from twolayer.data import to_dataset
from twolayer.data.provenance import provenance
from twolayer.data.schema import ordered
from twolayer.description import AbstractDescription, Applies, Plan, Record, Status, stopped
from twolayer.problem import Problem
from twolayer.specification.fields import instance
from twolayer.verbs import cautions
from twolayer.verbs.duration import foreseen, kind_of_programs, remember_run
from twolayer.verbs.phases import follow_phases, require
from twolayer.verbs.places import conclude, open_place
from twolayer.verbs.predictions import with_predictions
from twolayer.verbs.progress import Progress, named_progress, shows_progress
from twolayer.verbs.tasks import floor_along, phases_of, task_risks

if TYPE_CHECKING:
    import xarray as xr

IN_TIME = "the times asked for"
IN_STEPS = "the steps nearest to the times asked for"


class Interrupted(KeyboardInterrupt):
    """The user stopped the work; ``result`` holds what was finished."""

    def __init__(self, result: "xr.Dataset | xr.DataTree | None"):
        super().__init__()
        self.result: Any = result  # which of these depends on the verb


@takes_these
@shows_progress
def evolve(
    problem: Problem,
    training: Training,
    description: AbstractDescription | str,
    ask: Ask | None = None,
    *,
    throw: bool = True,
    progress: Progress | bool | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    **fields: Unpack[AskFields],
) -> "xr.Dataset":
    r"""Follow a training run by one description.

    Parameters
    ----------
    problem, training, description
        What is learned, how the weights move (an `SGD`, or a `Schedule` of several), and which description follows it.
    ask
        What is asked: how long, what to save, how many replicas, which thresholds. Its fields may be given as keywords
        instead, as in ``evolve(..., until=10.0, replicas=32)``; see `Ask`.
    throw
        Whether a run that did not reach its end raises `ComputationFailed` (with the result so far) or only says so in
        ``status``.
    progress
        Called with the name of the description and the fraction done. Without it a bar appears within two seconds on a
        terminal and in a notebook, also while programs are compiled; False silences it.
    checkpoint
        A file in which the run keeps its place: killed at any moment, the same call goes on from there and ends with
        the same numbers. It is removed at the end. A `Checkpoint` also says how often the place is saved.

    Returns
    -------
    A labelled dataset with dimensions replica, time, i, j, r, s. Its attribute ``time_axis`` says where it is saved.
    What speaks against trusting it (a limit of small steps that are not small, few steps, a numerical error above 1%)
    stands in the attribute ``cautions`` and is warned of (`Caution`), as is a run that takes longer than a minute:
    before it begins where its size says so, or after its first seconds.
    """
    check = instance("description", AbstractDescription, "a description such as SaadSolla()")
    member: AbstractDescription = check(description)
    with double(), interrupts.deferred():
        spec = RunSpec(problem, training, (member,), Ask.of(ask, fields))
        require(member, problem, training)
        plan = make_plan(problem, training, spec.ask, in_steps=not member.is_continuous)
        report = named_progress(progress, type(member).__name__)
        dataset, interrupted = run(spec, member, plan, report, Checkpoint.of(checkpoint))
    if interrupted:
        raise Interrupted(dataset)
    if throw:
        check_ended(dataset)
    return dataset


def run(
    spec: RunSpec,
    description: AbstractDescription,
    plan: Plan,
    progress: Callable[[float], None] | None = None,
    checkpoint: Checkpoint | None = None,
    name: str = "",
    is_foretold: bool = False,
) -> tuple["xr.Dataset", bool]:
    """Run one description of a specification through a plan and label the record; says whether it was interrupted.

    ``name`` tells the descriptions of one specification apart where they keep their places; ``is_foretold`` says that
    the user knows already of a run that takes long.
    """
    training = spec.training
    applies = require(description, spec.problem, training)
    problem = description.seen(spec.problem)
    has_one_threshold = plan.risk_threshold is None or np.ptp(plan.risk_threshold) == 0.0
    if not (applies.exactness.is_random or problem.has_random_start) and has_one_threshold:
        plan = first_replica(plan)
    check_record(problem, plan.replicas, len(plan.times))
    place = open_place(checkpoint, f"{spec.key} {name}".rstrip())
    cautions.tell(cautions.of_limit(description, problem, training, round(float(plan.steps[-1]))))
    is_done = place is not None and place.result is not None
    foretold = () if is_foretold or is_done else foreseen([description], problem, training, spec.ask)
    cautions.tell(foretold)
    forecast = cautions.Forecast(description, progress, is_told=is_foretold or bool(foretold))

    def report(fraction: float) -> None:
        interrupts.check()
        forecast(fraction)

    plan = dataclasses.replace(plan, progress=report, checkpoint=place)
    if is_done:
        assert place is not None and place.result is not None
        record = Record.from_arrays(place.result)
        plan.progress(1.0)
    else:
        began = time.monotonic()
        with compiling.usual(kind_of_programs(description, problem, training)) as compiled:
            record = follow_phases(description, problem, training, plan)
            taken = time.monotonic() - began - compiled()
        if place is None and not (record.interrupted or plan.stops):
            remember_run(description, problem, training, spec.ask, taken)
        others = (record.others or {}) | task_risks(problem, training, plan, record)
        record = stopped(record._replace(others=others or None), plan)
    if not record.interrupted:
        conclude(checkpoint, place, record)
    return labelled(spec, description, plan, record, applies), record.interrupted


def labelled(
    spec: RunSpec, description: AbstractDescription, plan: Plan, record: Record, applies: Applies
) -> "xr.Dataset":
    """The dataset of a record: names, units, what a user has to know of it, and where it comes from."""
    training, own_name = spec.training, type(description).__name__
    problem = description.seen(spec.problem)
    warned = cautions.of_limit(description, problem, training, round(float(plan.steps[-1])))
    in_steps = np.issubdtype(plan.steps.dtype, np.integer)
    clock = training.clock(problem)
    samples = clock.samples(plan.steps) if in_steps else clock.samples_at(plan.times)
    attributes = {
        "description": own_name,
        "exactness": applies.exactness.value,
        "statement": applies.statement,
        "engine": record.engine,
        "time_axis": IN_STEPS if in_steps else IN_TIME,
    } | provenance(spec, spec.ask.seed, description.references)
    phases = phases_of(problem, training, description.is_continuous)
    attributes |= {"phases": json.dumps(phases)} if phases else {}
    record = with_predictions(problem, training, plan, record, description.is_continuous)
    floor = floor_along(problem, training, plan, description.is_continuous)
    dataset = to_dataset(record, plan, np.asarray(samples), floor, attributes)
    doubts = cautions.of_result(own_name, dataset)
    cautions.tell(doubts)
    if warned or doubts:
        dataset.attrs = ordered(dataset.attrs | {"cautions": "\n".join([*warned, *doubts])})
    return dataset


def first_replica(plan: Plan) -> Plan:
    """The plan for a deterministic description of a deterministic start: all replicas are the same."""
    starts = plan.starts.replica(slice(1))
    threshold = None if plan.risk_threshold is None else plan.risk_threshold[:1]
    return dataclasses.replace(plan, starts=starts, keys=plan.keys[:1], risk_threshold=threshold)


def check_ended(dataset: "xr.Dataset") -> None:
    """Raise when a replica did not reach its end, with the time and what is there."""
    status = dataset.status.values
    broken = np.flatnonzero((status != Status.DONE) & (status != Status.STOPPED))
    if not broken.size:
        return
    worst = Status(int(status[broken[0]]))
    finite = np.isfinite(dataset.risk.values[broken])
    reached = [float(dataset.time.values[row.argmin() - 1]) if row[0] else 0.0 for row in finite]
    remedy = "lower the learning rate" if worst is Status.DIVERGED else "raise `max_steps` or loosen the tolerance"
    raise ComputationFailed(
        f"`{dataset.attrs['description']}` did not reach the end in {len(broken)} of {len(status)} replicas; the first "
        f"has its last good point at time {min(reached):.3g} ({worst.sentence}): {remedy}. "
        "The result up to there is kept.",
        dataset,
    )
