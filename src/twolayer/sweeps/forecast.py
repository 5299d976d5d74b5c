"""What a sweep would take, before anything of it is computed."""

from collections.abc import Sequence
from typing import NamedTuple

from twolayer.core.errors import InvalidInput
from twolayer.sweeps.compute import batch_key
from twolayer.sweeps.query import Query
from twolayer.sweeps.run import SweepSpec
from twolayer.verbs import explain

# Kinds of cells whose time is estimated; others are taken to be like them.
SAMPLED = 4


class SweepForecast(NamedTuple):
    """What a sweep would take."""

    cells: int
    refused: int
    programs: int  # kinds of cells that are compiled for themselves
    seconds: float | None  # on one core, without compiling; None where it is not known
    memory: int  # bytes of the result
    reasons: list[str]  # why cells cannot be asked, the first ones


def forecast(spec: SweepSpec) -> SweepForecast:
    """Count the cells of a sweep and estimate what they take."""
    cells = spec.cells()
    queries = [cell.query for cell in cells if cell.query is not None]
    reasons = list(dict.fromkeys(cell.reason for cell in cells if cell.query is None))[:5]
    kinds: dict[object, list[Query]] = {}
    for query in queries:
        key = batch_key(query)
        sizes = query.problem.p, query.problem.k, query.problem.student.activation, type(query.problem.target)
        kinds.setdefault((query.verb, *map(str, sizes)) if key is None else key, []).append(query)
    memory = sum(_bytes(query) for query in queries)
    return SweepForecast(
        len(cells), len(cells) - len(queries), len(kinds), _seconds(list(kinds.values())), memory, reasons
    )


def _seconds(kinds: Sequence[Sequence[Query]]) -> float | None:
    """The time of all cells, from the middle cell of some kinds."""
    step = max(1, len(kinds) // SAMPLED)
    total, seen = 0.0, 0
    for members in kinds[::step]:
        query = members[len(members) // 2]
        if query.verb not in ("evolve", "compare"):
            return None
        try:
            rows = {row.description: row for row in explain(query.problem, query.training, query.run).descriptions}
        except InvalidInput:
            continue
        times = [rows[type(member).__name__].seconds for member in query.descriptions if type(member).__name__ in rows]
        if any(time is None for time in times):
            return None
        total += sum(time for time in times if time is not None) * len(members)
        seen += len(members)
    return total * sum(map(len, kinds)) / seen if seen else None


def _bytes(query: Query) -> int:
    """The size of the result of a cell."""
    if query.verb not in ("evolve", "compare"):
        return 8 * 1024
    ask, p, k = query.run, query.problem.p, query.problem.k
    return 8 * ask.replicas * len(ask.times()) * (p * (p + k + 1) + 4) * len(query.descriptions)
