"""What a cell of a sweep asks: a verb with all its arguments, named by a hash; and the cells that axes span."""

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from twolayer.analyses import NTKAsk, exit_time, learn, ntk, optimise
from twolayer.ask import Ask, RunSpec, Training, arguments_of, make_plan
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import InvalidInput, NotApplicable, nearest, shown
from twolayer.core.precision import double
from twolayer.data.provenance import NUMERICAL, versions
from twolayer.description import AbstractDescription
from twolayer.problem import Problem
from twolayer.specification.codec import field_at, replaced_at, to_json
from twolayer.specification.fields import flag
from twolayer.sweeps.axes import Axis, places
from twolayer.sweeps.statistics import part_size
from twolayer.training.sgd import AbstractLayers
from twolayer.verbs import compare, evolve
from twolayer.verbs.evolve import run

if TYPE_CHECKING:
    import xarray as xr

# Fields of a query that are not stated where they say nothing.
LEFT_OUT = ("statistics", "first")
# The tables of a specification that an axis can change.
TABLES = ("problem", "training", "run")


@dataclasses.dataclass(frozen=True)
class Query:
    """A verb and its arguments; ``run`` is an `Ask`, an `NTKAsk`, or the other arguments of an analysis by name.

    With ``statistics`` the replicas of `evolve` are reduced to statistics, part by part; a part, whose replicas are
    those of ``run`` from ``first`` on, is a query of its own.
    """

    verb: str
    problem: Problem
    training: Any
    descriptions: tuple[AbstractDescription, ...]
    run: Any
    statistics: bool = False
    first: int | None = None

    @property
    def json(self) -> str:
        """The canonical JSON of all that numbers depend on."""
        return self._written(to_json)

    def _written(self, write: Callable[[Any], str]) -> str:
        """The canonical JSON, whose members are written by a function."""
        stated = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        said = [name for name in sorted(stated) if name not in LEFT_OUT or stated[name] not in (None, False)]
        return "{" + ",".join(f'"{name}":{write(stated[name])}' for name in said) + "}"

    def parts(self) -> "list[Query]":
        """The parts of a query for statistics, in their order: all but the last have the same number of replicas."""
        size, replicas = part_size(self.problem.p, self.problem.k, len(self.run.times())), self.run.replicas
        sizes = [min(size, replicas - first) for first in range(0, replicas, size)]
        asks = {number: dataclasses.replace(self.run, replicas=number) for number in set(sizes)}
        return [dataclasses.replace(self, run=asks[n], first=place * size) for place, n in enumerate(sizes)]

    def key(self, environment: str, write: Callable[[Any], str] = to_json) -> str:
        """The hash that names the result: that of the specification, and of the environment it is computed in."""
        return hashlib.sha256(f"{environment} {self._written(write)}".encode()).hexdigest()[:32]

    def field(self, path: str) -> object:
        """The value of the field at a path such as ``training.learning_rate``."""
        table, _, rest = _split(path)
        if isinstance(self.run, dict) and table == "run":
            _check_argument(self.verb, rest)
            return self.run.get(rest)
        return field_at(getattr(self, table), rest, table)

    def with_field(self, path: str, value: object) -> "Query":
        """Return the query with another value of one field."""
        table, _, rest = _split(path)
        if isinstance(self.run, dict) and table == "run":
            _check_argument(self.verb, rest)
            return dataclasses.replace(self, run=self.run | {rest: value})
        return dataclasses.replace(self, **{table: replaced_at(getattr(self, table), rest, value, table)})

    def answer(self, place: Checkpoint | None = None) -> "dict[str, xr.Dataset]":
        """The result of the verb: one dataset, or one for each description of a comparison; attributes of the whole.

        An exit time keeps its ``place`` while it is measured.
        """
        if place is not None and self.verb == "exit_time":
            return {"": exit_time(self.problem, self.training, **self.run, progress=False, checkpoint=place)}
        return VERBS[self.verb](self)


@cache
def environment() -> str:
    """What numbers depend on besides the specification: the versions of packages, and the kind of device."""
    known = {name: version for name, version in versions(NUMERICAL).items() if name != "python"}
    return json.dumps([known, jax.default_backend()], sort_keys=True)


def _split(path: str) -> tuple[str, str, str]:
    table, dot, rest = path.partition(".")
    if table not in TABLES or not rest:
        raise InvalidInput(
            f"Axis {shown(path)} must be the path of a field that begins with `problem.`, `training.` or `run.`, such "
            "as `training.learning_rate`."
        )
    return table, dot, rest


# ------------------------------------------------------------------------------------------------------- the verbs


def _evolve(query: Query) -> "dict[str, xr.Dataset]":
    if query.first is not None:
        return {"": _part(query)}
    return {"": evolve(query.problem, query.training, query.descriptions[0], query.run, throw=False, progress=False)}


def _part(query: Query) -> "xr.Dataset":
    """The trajectories of a part of the replicas."""
    description = query.descriptions[0]
    with double():
        plan = make_plan(
            query.problem, query.training, query.run, in_steps=not description.is_continuous, first=query.first or 0
        )
        spec = RunSpec(query.problem, query.training, query.descriptions, query.run)
        return run(spec, description, plan)[0]


def _compare(query: Query) -> "dict[str, xr.Dataset]":
    tree = compare(query.problem, query.training, query.descriptions, query.run, throw=False, progress=False)
    return parts_of(tree)


def parts_of(tree: "xr.DataTree") -> "dict[str, xr.Dataset]":
    """A comparison as datasets: that of each description, and the attributes of the whole under no name."""
    return {"": tree.to_dataset()} | {name: child.to_dataset() for name, child in tree.children.items()}


def _exit_time(query: Query) -> "dict[str, xr.Dataset]":
    return {"": exit_time(query.problem, query.training, **query.run, progress=False)}


def _learn(query: Query) -> "dict[str, xr.Dataset]":
    problem, training = query.problem, query.training
    stated = {
        "student": problem.student,
        "d": problem.d,
        "noise": float(problem.noise_level),
        "learning_rate": None if training is None else float(training.learning_rate),
        "spherical": training is None or training.is_spherical,
    }
    return {"": learn(problem.target, **(stated | query.run), progress=False)}


def _ntk(query: Query) -> "dict[str, xr.Dataset]":
    return {"": ntk(query.problem, query.training, query.run, progress=False)}


def _optimise(query: Query) -> "dict[str, xr.Dataset]":
    return {"": optimise(query.problem, query.training, **query.run, progress=False)}


VERBS: "dict[str, Callable[[Query], dict[str, xr.Dataset]]]" = {
    "evolve": _evolve,
    "compare": _compare,
    "exit_time": _exit_time,
    "learn": _learn,
    "ntk": _ntk,
    "optimise": _optimise,
}
_ANALYSES: dict[str, Callable[..., Any]] = {"exit_time": exit_time, "learn": learn, "optimise": optimise}


def make_query(
    verb: str,
    problem: Problem,
    training: Training | AbstractLayers | None,
    descriptions: Sequence[AbstractDescription],
    ask: Ask | NTKAsk | None,
    fields: Mapping[str, Any],
    statistics: bool = False,
) -> Query:
    """The query of a verb, whose other arguments are an `Ask` (or `NTKAsk`) or its fields by name."""
    if verb not in VERBS:
        raise InvalidInput(f"Argument `verb` is {shown(verb)}, which cannot be swept: {nearest(verb, VERBS)}")
    if verb in ("evolve", "compare"):
        run: Any = Ask.of(ask, fields, replicas=16 if verb == "compare" else 1)  # pyright: ignore[reportArgumentType]
        if verb == "compare" and run.stop_at_threshold:
            raise InvalidInput("Argument `stop_at_threshold` is for `evolve`, which follows one description.")
    elif verb == "ntk":
        run = NTKAsk.of(ask, fields)  # pyright: ignore[reportArgumentType]
    else:
        for name in fields:
            _check_argument(verb, name)
        run = ({} if ask is None else arguments_of(_ANALYSES[verb], ask)) | dict(fields)
    if verb not in ("evolve", "compare") and descriptions:
        raise InvalidInput(f"Argument `descriptions` is not for `{verb}`, which has none of them.")
    if training is None and verb != "learn":
        raise InvalidInput(f"Argument `training` is needed for `{verb}`, such as SGD(learning_rate=0.5).")
    if statistics and verb != "evolve":
        raise InvalidInput(f"Argument `statistics` is for `evolve`, which follows replicas, but not for `{verb}`.")
    return Query(verb, problem, training, tuple(descriptions), run, bool(flag("statistics")(statistics)))


def _check_argument(verb: str, name: str) -> None:
    """Refuse an argument that an analysis does not have."""
    own = inspect.signature(_ANALYSES[verb]).parameters
    allowed = [argument for argument in own if argument not in ("problem", "training", "target", *_ELSEWHERE)]
    if name not in allowed:
        raise InvalidInput(f"`run`: `{verb}` has no argument {shown(name)}: {nearest(name, allowed)}")


# Arguments of analyses that a sweep gives itself.
_ELSEWHERE = ("ask", "progress", "checkpoint")


# ------------------------------------------------------------------------------------------------------- the cells


class GridCell(NamedTuple):
    """One cell of a sweep: its place on the axes, and what it asks, or why it cannot be asked."""

    place: tuple[int, ...]
    query: Query | None
    reason: str


def check_paths(query: Query, axes: Sequence[Axis]) -> None:
    """Refuse a path that the specification does not have."""
    for axis in axes:
        for path in axis.paths:
            query.field(path)


def whole_numbers(query: Query, paths: Sequence[str]) -> list[str]:
    """The paths of fields that hold whole numbers."""
    return [path for path in paths if isinstance(query.field(path), int) and not isinstance(query.field(path), bool)]


def keys_of(queries: "Sequence[Query | None]", environment: str) -> list[str]:
    """The keys of queries, and no text in place of none; the JSON of what several have in common is written once."""
    written: dict[int, str] = {}  # by the identity of a member, which its query keeps alive

    def write(value: object) -> str:
        if id(value) not in written:
            written[id(value)] = to_json(value)
        return written[id(value)]

    return ["" if query is None else query.key(environment, write) for query in queries]


def cells_of(query: Query, axes: Sequence[Axis]) -> Iterator[GridCell]:
    """All cells that axes span, the last axis running fastest; what is refused while it is built says why.

    A table of the specification is built once for all cells that share it.
    """
    paths = [path for axis in axes for path in axis.paths]
    tables = [table for table in TABLES if any(_split(path)[0] == table for path in paths)]
    own = {
        table: [n for n, axis in enumerate(axes) if any(_split(path)[0] == table for path in axis.paths)]
        for table in tables
    }
    built: dict[tuple[Any, ...], Any] = {}

    def table_at(table: str, where: tuple[int, ...]) -> object:
        if (table, where) not in built:
            try:
                built[table, where] = getattr(_changed(query, table, [axes[n] for n in own[table]], where), table)
            except (InvalidInput, NotApplicable) as error:
                built[table, where] = _Refusal(str(error))
        return built[table, where]

    for place in places(axes):
        members = {table: table_at(table, tuple(place[n] for n in own[table])) for table in tables}
        refusal = next((member for member in members.values() if isinstance(member, _Refusal)), None)
        if refusal is not None:
            yield GridCell(place, None, refusal.reason)
        else:
            yield GridCell(place, dataclasses.replace(query, **members), "")


class _Refusal(NamedTuple):
    """Why a table of the specification cannot be built."""

    reason: str


def _changed(query: Query, table: str, axes: Sequence[Axis], where: Sequence[int]) -> Query:
    """A query with other values of the fields of one table."""
    for axis, number in zip(axes, where, strict=True):
        for path, values in zip(axis.paths, axis.values, strict=True):
            if _split(path)[0] == table:
                query = query.with_field(path, values[number])
    return query
