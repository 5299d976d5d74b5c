"""The work of a sweep: the results of some cells, many at a time where one compiled program serves them."""

import contextlib
import time
import warnings
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twolayer.ask import RunSpec, make_plans
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import ComputationFailed, InvalidInput, first_line
from twolayer.core.precision import double
from twolayer.data.dataset import trajectory_arrays
from twolayer.data.provenance import provenance
from twolayer.data.schema import STATUS_ATTRIBUTES, TRAJECTORY, kind_of
from twolayer.description import AbstractDescription, Applies, Cell, Plan, Record, Status, stopped
from twolayer.problem import Mixture
from twolayer.sweeps.content import CellNode, CellStatus, CellVariable, Content, node_of, packed
from twolayer.sweeps.query import Query, environment, parts_of
from twolayer.sweeps.statistics import reduced
from twolayer.training import SGD
from twolayer.verbs import cautions
from twolayer.verbs.compare import judge, names_of
from twolayer.verbs.evolve import IN_STEPS, IN_TIME, first_replica, labelled
from twolayer.verbs.phases import require
from twolayer.verbs.predictions import with_predictions

if TYPE_CHECKING:
    import xarray as xr


SAME = "Argument `statistics` is for replicas that differ, but here all of them are the same: give them a random start."


class Job(NamedTuple):
    """A cell that is to be computed: the key that names it, and what it asks."""

    key: str
    query: Query


class Done(NamedTuple):
    """The results of some jobs as a pack, how each of them ended, and the seconds that they took.

    ``where`` is what numbers depend on where they were computed, as in `environment`.
    """

    keys: list[str]
    pack: bytes
    statuses: list[int]
    seconds: float
    where: str


def compute(jobs: Sequence[Job], is_together: bool, places: Checkpoint | None = None) -> Done:
    """Compute cells, together or one by one; one that fails says so in its result, and does not concern the others.

    A long cell that is computed by itself keeps its place in ``places``, where they are given.
    """
    began = time.perf_counter()
    kept = [None if places is None else places.part(f"{job.key}.npz") for job in jobs]
    contents = answers([job.query for job in jobs], is_together, kept)
    keys = [job.key for job in jobs]
    pack = packed(dict(zip(keys, contents, strict=True)))
    statuses = [int(content.status) for content in contents]
    return Done(keys, pack, statuses, time.perf_counter() - began, environment())


def batch_key(query: Query) -> Hashable | None:
    """A value that is equal for cells that are computed together; None for a cell that is computed by itself."""
    is_one_task = isinstance(query.training, SGD) and not isinstance(query.problem.target, Mixture)
    if query.verb not in ("evolve", "compare") or not is_one_task:
        return None
    try:
        own = [description.batch_key(query.problem, query.training) for description in query.descriptions]
    except (InvalidInput, ValueError, TypeError):  # the cell itself says what is wrong with it
        return None
    ask = query.run
    save = len(ask.save) if isinstance(ask.save, tuple) else ask.save
    has_first = query.first is not None
    watched = (ask.risk_threshold is None, ask.overlap_threshold is None, ask.stop_at_threshold)
    if any(key is None for key in own):
        return None
    return query.verb, query.descriptions, *own, ask.replicas, save, watched, has_first


def answers(
    queries: Sequence[Query], is_together: bool, places: Sequence[Checkpoint | None] | None = None
) -> list[Content]:
    """The results of cells, which have one `batch_key` where they are computed together."""
    kept = [None] * len(queries) if places is None else places
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cautions.Caution)  # they stand in the results
        if is_together:
            # One of them may be at fault: by itself each says what it is.
            with contextlib.suppress(InvalidInput, ComputationFailed):
                return _together(queries)
        return [_alone(query, place) for query, place in zip(queries, kept, strict=True)]


def _alone(query: Query, place: Checkpoint | None) -> Content:
    """The result of one cell, or why there is none."""
    try:
        datasets = query.answer(place)
    except InvalidInput as error:
        return Content(CellStatus.REFUSED, str(error), {})
    except ComputationFailed as error:
        return Content(CellStatus.DIVERGED, str(error), {})
    except MemoryError:
        return Content(CellStatus.FAILED, "It needs more memory than there is.", {})
    except Exception as error:  # a cell must not stop the others
        return Content(CellStatus.FAILED, f"{type(error).__name__}: {first_line(error)}.", {})
    if query.first is not None:
        return _of_part(query, node_of(datasets[""]))
    return _of_datasets(datasets)


def _of_datasets(datasets: "dict[str, xr.Dataset]") -> Content:
    """What is kept of a result, and how it ended: as the worst of its descriptions."""
    nodes = {name: node_of(dataset) for name, dataset in datasets.items()}
    endings = [_ending(dataset.status.values) for dataset in datasets.values() if _is_trajectory(dataset)]
    return Content(*max(endings, default=(CellStatus.DONE, "")), nodes)


def _of_part(query: Query, node: CellNode) -> Content:
    """What is kept of a part; that some of its replicas diverged is counted."""
    if len(node.variables["status"].values) != query.run.replicas:
        return Content(CellStatus.REFUSED, SAME, {})
    return Content(CellStatus.DONE, "", {"": reduced(node)})


def _is_trajectory(dataset: "xr.Dataset") -> bool:
    return kind_of(dataset.attrs) == "trajectory" and "status" in dataset


def _ending(status: np.ndarray) -> tuple[CellStatus, str]:
    """How the cell of a run ended, from the status of its replicas."""
    status = np.asarray(status)
    broken = status[(status != Status.DONE) & (status != Status.STOPPED)]
    if not broken.size:
        return CellStatus.DONE, ""
    return CellStatus.DIVERGED, f"{broken.size} of {status.size} replicas: {Status(int(broken[0])).sentence}."


# --------------------------------------------------------------------------------------------- many cells at a time


class _RunOfCell(NamedTuple):
    """What one description says of a cell."""

    description: AbstractDescription
    applies: Applies
    plan: Plan
    record: Record


def _together(queries: Sequence[Query]) -> list[Content]:
    """The results of cells that the same compiled programs serve, one for each description."""
    members = queries[0].descriptions
    with double():
        applies = [[require(member, query.problem, query.training) for query in queries] for member in members]
        plans = make_plans(
            [query.problem for query in queries],
            [query.training for query in queries],
            [query.run for query in queries],
            in_steps=any(not member.is_continuous for member in members),
            firsts=[query.first or 0 for query in queries],
        )
        runs = zip(*(_runs(*row, queries, plans) for row in zip(members, applies, strict=True)), strict=True)
        if queries[0].verb == "compare":
            return [_compared(query, runs_of_cell) for query, runs_of_cell in zip(queries, runs, strict=True)]
        shared = provenance(_Unnamed(), 0, members[0].references)
        problems = {id(query.problem): query.problem for query in queries}
        floors = {name: problem.risk_floor for name, problem in problems.items()}
        pairs = zip(queries, runs, strict=True)
        return [_content(query, own[0], shared, floors[id(query.problem)]) for query, own in pairs]


def _runs(
    description: AbstractDescription, applies: Sequence[Applies], queries: Sequence[Query], plans: Sequence[Plan]
) -> list[_RunOfCell]:
    """What one description says of all cells, by one call."""
    is_fixed = not (applies[0].exactness.is_random or queries[0].problem.has_random_start)
    if is_fixed and all(plan.risk_threshold is None or np.ptp(plan.risk_threshold) == 0.0 for plan in plans):
        plans = [first_replica(plan) for plan in plans]
    cells = [Cell(query.problem, query.training, plan) for query, plan in zip(queries, plans, strict=True)]
    records = [stopped(record, plan) for record, plan in zip(description.run_batch(cells), plans, strict=True)]
    return [_RunOfCell(description, *row) for row in zip(applies, plans, records, strict=True)]


def _compared(query: Query, runs: Sequence[_RunOfCell]) -> Content:
    """The comparison of a cell, from what its descriptions say of it."""
    spec = RunSpec(query.problem, query.training, query.descriptions, query.run)
    named = dict(zip(names_of(query.descriptions), runs, strict=True))
    results = {name: labelled(spec, run.description, run.plan, run.record, run.applies) for name, run in named.items()}
    return _of_datasets(parts_of(judge(spec, results, {name: run.applies.exactness for name, run in named.items()})))


class _Unnamed(NamedTuple):
    """In place of a specification, which the key of a cell names."""

    json: str = ""
    key: str = ""


def _content(query: Query, run: _RunOfCell, shared: dict[str, Any], floor: float) -> Content:
    """A record as `evolve` labels it, without the specification."""
    problem, training = query.problem, query.training
    description, applies, plan, record = run
    in_steps = np.issubdtype(plan.steps.dtype, np.integer)
    clock = training.clock(problem)
    samples = np.asarray(clock.samples(plan.steps) if in_steps else clock.samples_at(plan.times))
    record = with_predictions(problem, training, plan, record, description.is_continuous)
    values, coordinates = trajectory_arrays(record, plan, samples, floor)
    known = {**TRAJECTORY.variables, **TRAJECTORY.optional, **TRAJECTORY.coordinates}
    variables = {}
    for name, array in (values | coordinates).items():
        dimensions, long_name, units = known.get(name, ((name,), "", ""))
        stated = {"long_name": long_name, "units": units} if name in known else {}
        if name == "status":
            stated |= STATUS_ATTRIBUTES
        variables[name] = CellVariable(tuple(dimensions), np.asarray(array), stated, name in coordinates)
    name = type(description).__name__
    attributes = {
        "description": name,
        "exactness": applies.exactness.value,
        "engine": record.engine,
        "time_axis": IN_STEPS if in_steps else IN_TIME,
        **{key: value for key, value in shared.items() if key not in ("spec", "spec_hash")},
        "seed": query.run.seed,
    }
    warned = cautions.of_limit(description, problem, training, round(float(plan.steps[-1])))
    if warned:
        attributes["cautions"] = "\n".join(warned)
    node = CellNode(variables, attributes)
    if query.first is not None:
        return _of_part(query, node)
    return Content(*_ending(values["status"]), {"": node})
