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
from twolayer.ask import Ask, Training
from twolayer.core.errors import InvalidInput, NotApplicable, nearest, shown
from twolayer.data.provenance import NUMERICAL, versions
from twolayer.description import AbstractDescription
from twolayer.problem import Problem
from twolayer.specification.codec import field_at, replaced_at, to_json
from twolayer.sweeps.axes import Axis, places
from twolayer.training.sgd import AbstractLayers
from twolayer.verbs import compare, evolve

if TYPE_CHECKING:
    import xarray as xr

# The tables of a specification that an axis can change.
TABLES = ("problem", "training", "run")


@dataclasses.dataclass(frozen=True)
class Query:
    """A verb and its arguments; ``run`` is an `Ask`, an `NTKAsk`, or the other arguments of an analysis by name."""

    verb: str
    problem: Problem
    training: Any
    descriptions: tuple[AbstractDescription, ...]
    run: Any

    @property
    def json(self) -> str:
        """The canonical JSON of all that numbers depend on."""
        return to_json({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    def key(self, environment: str) -> str:
        """The hash that names the result: that of the specification, and of the environment it is computed in."""
        return hashlib.sha256(f"{environment} {self.json}".encode()).hexdigest()[:32]

    @property
    def runs_together(self) -> bool:
        """Whether cells of this kind may be computed many at a time."""
        return self.verb == "evolve"

    def field(self, path: str) -> object:
        """The value of the field at a path such as ``training.learning_rate``."""
        table, _, rest = _split(path)
        if isinstance(self.run, dict) and table == "run":
            _check_argument(self.verb, rest)
            return self.run.get(rest)
        return field_at(getattr(self, table), rest, table)

    def with_field(self, path: str, value: object) -> "Query":
        """The same with another value of a field."""
        table, _, rest = _split(path)
        if isinstance(self.run, dict) and table == "run":
            _check_argument(self.verb, rest)
            return dataclasses.replace(self, run=self.run | {rest: value})
        return dataclasses.replace(self, **{table: replaced_at(getattr(self, table), rest, value, table)})

    def answer(self) -> "dict[str, xr.Dataset]":
        """The result of the verb: one dataset, or one for each description of a comparison; attributes of the whole."""
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
    return {"": evolve(query.problem, query.training, query.descriptions[0], query.run, throw=False, progress=False)}


def _compare(query: Query) -> "dict[str, xr.Dataset]":
    tree = compare(query.problem, query.training, query.descriptions, query.run, throw=False, progress=False)
    return {"": tree.to_dataset()} | {name: child.to_dataset() for name, child in tree.children.items()}


def _exit_time(query: Query) -> "dict[str, xr.Dataset]":
    return {"": exit_time(query.problem, query.training, **query.run, progress=False)}


def _learn(query: Query) -> "dict[str, xr.Dataset]":
    problem, training = query.problem, query.training
    stated = {
        "student": problem.student,
        "d": problem.d,
        "noise": float(problem.noise),
        "learning_rate": None if training is None else float(training.learning_rate),
        "spherical": training is None or training.is_spherical,
    }
    return {"": learn(problem.target, **(stated | query.run), progress=False)}


def _ntk(query: Query) -> "dict[str, xr.Dataset]":
    return {"": ntk(query.problem, query.training, query.run, progress=False)}


def _optimise(query: Query) -> "dict[str, xr.Dataset]":
    return {"": optimise(query.problem, query.training, **query.run)}


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
        if ask is not None:
            raise InvalidInput(f"Argument `ask` is not for `{verb}`: give its arguments by their names.")
        for name in fields:
            _check_argument(verb, name)
        run = dict(fields)
    if verb not in ("evolve", "compare") and descriptions:
        raise InvalidInput(f"Argument `descriptions` is not for `{verb}`, which has none of them.")
    if training is None and verb != "learn":
        raise InvalidInput(f"Argument `training` is needed for `{verb}`, such as SGD(learning_rate=0.5).")
    return Query(verb, problem, training, tuple(descriptions), run)


def _check_argument(verb: str, name: str) -> None:
    """Refuse an argument that an analysis does not have."""
    own = inspect.signature(_ANALYSES[verb]).parameters
    allowed = [argument for argument in own if argument not in ("problem", "training", "target", *_ELSEWHERE)]
    if name not in allowed:
        raise InvalidInput(f"`run`: `{verb}` has no argument {shown(name)}: {nearest(name, allowed)}")


# Arguments of analyses that a sweep gives itself.
_ELSEWHERE = ("progress", "checkpoint")


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


def cells_of(query: Query, axes: Sequence[Axis], place: tuple[int, ...] = ()) -> Iterator[GridCell]:
    """All cells that axes span, the last axis running fastest; what is refused while it is built says why."""
    if not axes:
        yield GridCell(place, query, "")
        return
    axis, *rest = axes
    for number in range(axis.size):
        here = (*place, number)
        try:
            changed = query
            for path, values in zip(axis.paths, axis.values, strict=True):
                changed = changed.with_field(path, values[number])
            if rest:
                yield from cells_of(changed, rest, here)
            else:
                yield GridCell(here, changed, "")
        except (InvalidInput, NotApplicable) as error:
            for further in places(rest):
                yield GridCell((*here, *further), None, str(error))
