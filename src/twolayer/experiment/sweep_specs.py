"""Specification files of sweeps: those of a run, with one more table.

[sweep]
verb = "evolve"             or compare, exit_time, learn, ntk, optimise; left out: by the number of descriptions
together = [["training.learning_rate", "problem.inputs.d"]]     fields that change together, if any
statistics = true           whether the replicas of `evolve` are reduced to statistics

[sweep.over]                the axes: paths of fields with their values
"training.learning_rate" = "log:1e-2:1:13"
"problem.student.p" = [1, 2, 4]

The table [run] holds the descriptions and what is asked, or the arguments of an analysis.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx

from twolayer.ask import Ask
from twolayer.core.errors import InvalidInput, shown
from twolayer.experiment.lazy import lazy_spec
from twolayer.experiment.specs import DEFAULTS, as_value, read_tables, refuse_unknown
from twolayer.problem import Problem
from twolayer.specification.codec import decode
from twolayer.specification.fields import flag
from twolayer.sweeps import SweepSpec, make_spec
from twolayer.sweeps.axes import is_range
from twolayer.training import SGD, Schedule

TABLES = ("title", "data", "problem", "training", "run", "sweep")
SWEEP_FIELDS = ("verb", "over", "together", "statistics")


def read_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
    over: Sequence[str] = (),
    together: Sequence[str] = (),
    statistics: bool = False,
) -> SweepSpec:
    """Read the specification of a sweep from a TOML file, or from the ``spec.json`` of one that was run.

    Parameters
    ----------
    path
        The file, with the tables of a run and ``[sweep]``.
    overrides
        Changes to the file such as ``"training.learning_rate=0.3"``.
    over
        Further axes, or other values of those in the file, such as ``"training.learning_rate=log:1e-2:1:13"``.
    together
        Groups of paths that change together, separated by commas.
    statistics
        Whether replicas are reduced to statistics, whatever the file says.
    """
    tables = read_tables(path, overrides, _of_report)
    refuse_unknown(tables, TABLES, "The specification has no table or key")
    for name in ("problem", "training", "run", "sweep", "data"):
        if not isinstance(tables.get(name, {}), dict):
            raise InvalidInput(f"`{name}`: must be a table, but is {shown(tables[name])}.")
    stated = tables.get("sweep", {})
    refuse_unknown(stated, SWEEP_FIELDS, "`sweep`: there is no field")
    axes = stated.get("over", {})
    if not isinstance(axes, dict):
        raise InvalidInput(f"`sweep.over`: must map paths of fields to their values, but is {shown(axes)}.")
    axes = {path: _values(given) for path, given in _flat(axes).items()} | dict(map(_option, over))
    reduces = statistics or flag("sweep.statistics")(stated.get("statistics", False))
    if not axes and not reduces:
        raise InvalidInput("A sweep needs at least one axis: --over training.learning_rate=0.1,0.2, or [sweep.over].")
    groups = [*stated.get("together", []), *([part.strip() for part in text.split(",")] for text in together)]
    return _spec(tables, stated.get("verb"), axes, groups, reduces)


def _spec(
    tables: dict[str, Any], verb: str | None, axes: Mapping[str, Any], groups: Sequence[Any], statistics: bool
) -> SweepSpec:
    if verb == "ntk":
        lazy = lazy_spec({name: tables[name] for name in tables if name in ("data", "problem", "training", "run")})
        return make_spec(lazy.problem, lazy.training, None, lazy.ask, axes, groups, verb, {}, statistics)  # pyright: ignore[reportArgumentType]
    for name in ("problem", *(["training"] if verb != "learn" else [])):
        if name not in tables:
            raise InvalidInput(f"The specification needs the table `[{name}]`.")
    problem = decode(tables["problem"], Problem, "problem")
    training = decode(tables["training"], (SGD, Schedule), "training") if "training" in tables else None
    run = {name: value for name, value in tables.get("run", {}).items() if name != "kind"}
    if verb not in (None, "evolve", "compare"):
        fields = {name: decode(x, eqx.Module) if isinstance(x, dict) else x for name, x in run.items()}
        return make_spec(problem, training, None, None, axes, groups, verb, fields, statistics)
    run = DEFAULTS | run
    members = [decode(member, eqx.Module) if isinstance(member, dict) else member for member in run.pop("descriptions")]
    followed: Any = members[0] if len(members) == 1 and verb != "compare" else members
    return make_spec(problem, training, followed, decode(run, Ask, "run"), axes, groups, verb, {}, statistics)


def _of_report(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("analysis") != "sweep":
        raise InvalidInput("A specification in JSON must be that of a sweep, as its folder has it.")
    run = data.get("run", {})
    if data.get("verb") in ("evolve", "compare") and isinstance(run, dict):
        run = {name: value for name, value in run.items() if value is not None}
        run |= {"descriptions": data.get("descriptions", [])}
    stated = {name: data[name] for name in SWEEP_FIELDS if name in data}
    tables = {name: data[name] for name in ("problem", "training") if data.get(name) is not None}
    return tables | {"run": run, "sweep": stated}


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The axes of a table, whose paths may be written with or without quotes."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{above}.{name}" if above else name
        flat |= _flat(value, path) if isinstance(value, dict) else {path: value}
    return flat


def _values(given: Any) -> Any:
    """The values of an axis as a file has them: tables with a `kind` become objects."""
    if not isinstance(given, list):
        return given
    return [decode(item, eqx.Module) if isinstance(item, dict) else item for item in given]


def _option(text: str) -> tuple[str, Any]:
    """The path and the values of an option such as ``training.learning_rate=0.1,0.2``."""
    path, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not path or not listed:
        raise InvalidInput(
            f"Option `--over` must have the form path=a,b,c, path=lin:LOW:HIGH:N or path=log:LOW:HIGH:N, but is "
            f"{shown(text)}."
        )
    if is_range(listed):
        return path, listed
    whole = as_value(f"[{listed}]")  # values with commas of their own, such as lists, are written as in a file
    values = (
        whole if isinstance(whole, list) else [as_value(part.strip()) for part in listed.split(",") if part.strip()]
    )
    return path, _values(values)
