"""What a sweep would take, before anything of it is computed."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from twolayer.analyses import exit_time
from twolayer.ask import Ask
from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.precision import double
from twolayer.sweeps.compute import batch_key
from twolayer.sweeps.over_grid import SweepSpec, expected_workers
from twolayer.sweeps.query import Query, environment, keys_of
from twolayer.sweeps.sweep_store import Store
from twolayer.verbs import explain
from twolayer.verbs.duration import recalled, seconds_together

# Kinds of cells whose time is estimated; others are taken to be like them.
SAMPLED = 4


class SweepForecast(NamedTuple):
    """The cells, time and memory that a sweep would take."""

    cells: int
    refused: int
    there: int  # cells whose results are in the folder and are used
    programs: int  # kinds of cells that are compiled for themselves, among those that are missing
    seconds: float | None  # of the missing cells on one core, without compiling; None where it is not known
    workers: int | None  # processes that would share the work; None where those of a scheduler do
    memory: int  # bytes of the result
    cell_memory: (
        float | None
    )  # bytes that a worker needs for a cell, the largest of those estimated; None where not known
    reasons: list[str]  # why cells cannot be asked, the first ones


def forecast(
    spec: SweepSpec,
    folder: Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
) -> SweepForecast:
    """Count the cells of a sweep, those that are in its folder, and estimate what the others take.

    Arguments are those of the sweep: with ``fresh`` the cells that are there are computed again.
    """
    cells = spec.cells()
    queries = [cell.query for cell in cells if cell.query is not None]
    reasons = list(dict.fromkeys(cell.reason for cell in cells if cell.query is None))[:5]
    missing = queries if fresh else _missing(queries, folder)
    kinds: dict[object, list[Query]] = {}
    for query in missing:
        key = batch_key(query)
        sizes = query.problem.p, query.problem.k, query.problem.student.activation, type(query.problem.target)
        kinds.setdefault((query.verb, *map(str, sizes)) if key is None else key, []).append(query)
    seconds, cell_memory = _costs(list(kinds.values())) if missing else (0.0, 0.0)
    return SweepForecast(
        len(cells),
        len(cells) - len(queries),
        len(queries) - len(missing),
        len(kinds),
        seconds,
        expected_workers(workers, scheduler),
        sum(_bytes(query) for query in queries),
        cell_memory,
        reasons,
    )


def _missing(queries: list[Query], folder: Path | None) -> list[Query]:
    """The queries that have no result in a folder, which are those of this process's versions and device."""
    if folder is None or not folder.is_dir():
        return queries
    with double():
        keys, store = keys_of(queries, environment()), Store(folder)
    return [query for key, query in zip(keys, queries, strict=True) if key not in store]


class _Cost(NamedTuple):
    """What one cell takes: its time, and its memory where it is known."""

    seconds: float
    memory: float | None


def _costs(kinds: Sequence[Sequence[Query]]) -> tuple[float | None, float | None]:
    """The time of all cells, and the memory of one, from the middle cell of some kinds."""
    step = max(1, len(kinds) // SAMPLED)
    total, seen, memories = 0.0, 0, []
    for members in kinds[::step]:
        try:
            alone = _alone(members[len(members) // 2])
        except (InvalidInput, ComputationFailed):
            continue
        if alone is None:
            return None, None
        total += alone.seconds * len(members)
        seen += len(members)
        memories.append(alone.memory)
    known = [memory for memory in memories if memory is not None]
    largest = max(known) if known and len(known) == len(memories) else None
    return (total * sum(map(len, kinds)) / seen if seen else None), largest


def _alone(query: Query) -> _Cost | None:
    """What one cell takes; None where it is not known."""
    if query.verb in ("evolve", "compare"):
        return _of_runs(query, query.run, [type(member).__name__ for member in query.descriptions])
    if query.verb == "exit_time":
        return _of_exits(query)
    if query.verb == "learn" and not query.run.get("verify"):  # it takes about as long for every target
        began = time.process_time()
        query.answer()
        return _Cost(time.process_time() - began, None)
    return None


def _of_runs(query: Query, ask: Ask, names: Sequence[str]) -> _Cost | None:
    """What runs by descriptions take one after the other, as `explain` estimates it, or among many cells."""
    rows = {row.description: row for row in explain(query.problem, query.training, ask, progress=False).descriptions}
    costs = [(_seconds(query, ask, name, rows[name].seconds), rows[name].memory) for name in names if name in rows]
    if any(seconds is None for seconds, _ in costs):
        return None
    memories = [memory for _, memory in costs if memory is not None]
    total = sum(seconds for seconds, _ in costs if seconds is not None)
    return _Cost(total, max(memories) if memories and len(memories) == len(costs) else None)


def _seconds(query: Query, ask: Ask, name: str, alone: float | None) -> float | None:
    """The time of a run, which is less than ``alone`` where it is computed together with others."""
    member = next((member for member in query.descriptions if type(member).__name__ == name), None)
    if member is None or batch_key(query) is None:
        return alone
    averages = recalled(query.problem, query.training)  # as `explain` has just measured them
    among_many = seconds_together(member, query.problem, query.training, ask, averages)
    return alone if among_many is None or alone is None else min(alone, among_many)


def _of_exits(query: Query) -> _Cost | None:
    """What the runs to the exit take, which the theory predicts, and of the ODE from all starts."""
    replicas, starts = query.run.get("replicas", 256), query.run.get("starts", 256)
    stated = {name: value for name, value in query.run.items() if name in ("threshold", "seed")}
    predicted = exit_time(query.problem, query.training, **stated, replicas=0, starts=1, progress=False)
    until = float(predicted.predicted[-1]) if "predicted" in predicted else query.run.get("until") or math.nan
    if not math.isfinite(until):
        return None
    description = query.run.get("description")
    name = "OverlapSGD" if description is None else getattr(description, "__name__", type(description).__name__)
    costs = [_of_runs(query, Ask(until=until, save=2, replicas=starts), ["SaadSolla"])]
    if replicas:
        costs.append(_of_runs(query, Ask(until=until, save=2, replicas=replicas), [name]))
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    memories = [cost.memory for cost in known if cost.memory is not None]
    return _Cost(sum(cost.seconds for cost in known), max(memories) if len(memories) == len(known) else None)


def _bytes(query: Query) -> int:
    """The size of the result of a cell."""
    if query.verb not in ("evolve", "compare"):
        return 8 * 1024
    ask, p, k = query.run, query.problem.p, query.problem.k
    if query.statistics:  # moments and quantiles take the place of replicas
        return 8 * 32 * len(ask.times()) * (p * (p + k + 1) + 4)
    return 8 * ask.replicas * len(ask.times()) * (p * (p + k + 1) + 4) * len(query.descriptions)
