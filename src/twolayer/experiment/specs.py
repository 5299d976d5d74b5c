"""Specification files: one TOML file states a problem, its training and what to run.

The tables of a file are the fields of the objects: ``[problem]`` with its parts, ``[training]``, and ``[run]`` with the
arguments of `compare`. The codec builds the objects, which validate their fields; errors name the path of the field.
"""

import dataclasses
import json
import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx

from twolayer.ask import Ask, RunSpec
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.errors import InvalidInput, first_line, nearest, shortened, shown
from twolayer.core.reading import read_text
from twolayer.problem import Problem
from twolayer.specification.codec import decode
from twolayer.training import SGD, Schedule
from twolayer.verbs import compare
from twolayer.verbs.progress import Progress

if TYPE_CHECKING:
    import xarray as xr

# A specification is usually a page of text, but one with arrays of weights is longer.
MAX_BYTES = 2**25
TOP_LEVEL = ("title", "problem", "training", "run", "sweep")
# The fields of the table [run]: the descriptions, and the fields of `Ask`.
RUN_FIELDS = ("descriptions", *(field.name for field in dataclasses.fields(Ask)))
DEFAULTS = {"descriptions": ["DirectSGD", "SaadSolla"], "replicas": 16}


def read_spec(path: str | Path, overrides: Sequence[str] = ()) -> RunSpec:
    """Read a specification from a TOML file, or from the ``spec.json`` of a report.

    Parameters
    ----------
    path
        The file, with the tables ``[problem]``, ``[training]`` and ``[run]``; one whose name ends in ``.json`` holds
        the canonical JSON of a specification.
    overrides
        Changes to the file such as ``"training.learning_rate=0.3"``; missing keys are added.
    """
    path = Path(path)
    text = read_text(path, "specification file", MAX_BYTES)
    return parse_spec(text, overrides, source=str(path), is_json=path.suffix.lower() == ".json")


def read_tables(
    path: str | Path, overrides: Sequence[str], of_report: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """The tables of a file, with changes such as ``"training.learning_rate=0.3"``.

    ``of_report`` gives the tables of a ``spec.json``, or refuses it.
    """
    path = Path(path)
    text = read_text(path, "specification file", MAX_BYTES)
    return parse_tables(text, overrides, str(path), path.suffix.lower() == ".json", of_report)


def read_run_tables(path: str | Path) -> dict[str, Any]:
    """The tables of a specification file, as plain data that JSON can hold."""
    tables = read_tables(path, (), _tables_of)
    try:
        return json.loads(json.dumps(tables, allow_nan=False))
    except (TypeError, ValueError):
        raise InvalidInput(f"The file {shown(Path(path))} must hold finite numbers, texts and tables alone.") from None


def analysis_of(path: str | Path) -> str | None:
    """The analysis whose report has this ``spec.json``; None for a specification of a run."""
    is_json = Path(path).suffix.lower() == ".json"
    data = read_tables(path, (), lambda data: data if isinstance(data, dict) else {}) if is_json else {}
    return data.get("analysis")


def read_question(path: str | Path, analysis: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments of an analysis from the ``spec.json`` of its report."""

    def of_report(data: Any) -> dict[str, Any]:
        if not isinstance(data, dict) or data.pop("analysis", None) != analysis:
            raise InvalidInput(f"A specification in JSON must be that of a report of `{analysis}`, but is another.")
        return data

    return {name: _decoded(value, name) for name, value in read_tables(path, overrides, of_report).items()}


def _decoded(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_decoded(item, f"{path}[{place}]") for place, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return (
        decode(value, eqx.Module, path) if "kind" in value else {name: _decoded(x, name) for name, x in value.items()}
    )


def demo_spec(overrides: Sequence[str] = ()) -> RunSpec:
    """The specification that comes with the package: an erf committee machine with a plateau."""
    text = resources.files("twolayer.experiment").joinpath("demo.toml").read_text(encoding="utf-8")
    return parse_spec(text, overrides, source="demo.toml")


def parse_spec(
    text: str, overrides: Sequence[str] = (), source: str = "specification", is_json: bool = False
) -> RunSpec:
    """The specification that a TOML or JSON text states; ``source`` names the text in messages."""
    return from_tables(parse_tables(text, overrides, source, is_json, _tables_of))


def parse_tables(
    text: str, overrides: Sequence[str], source: str, is_json: bool, of_report: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """The tables of a text in TOML or JSON, with changes; ``source`` is what messages call it."""
    form = "JSON" if is_json else "TOML"
    try:
        data = of_report(json.loads(text)) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits is a plain ValueError
        if isinstance(error, InvalidInput):
            raise
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else first_line(error)
        raise InvalidInput(f"The file {shown(Path(source))} is not valid {form}: {reason}.") from None
    for override in overrides:
        _override(data, override)
    return data


def _tables_of(data: Any) -> dict[str, Any]:
    """The tables of a TOML file with the content of a specification in canonical JSON.

    In files of version 0.1.0 the fields of `Ask` are next to the problem instead of in one object.
    """
    if not isinstance(data, dict) or data.get("kind", "RunSpec") != "RunSpec":
        raise InvalidInput("A specification in JSON must be an object of the kind `RunSpec`, as in a report folder.")
    ask = data.get("ask", {})
    if not isinstance(ask, dict):
        raise InvalidInput(f"`ask`: must be a table, but is {shown(ask)}.")
    run = {name: value for name, value in (data | ask).items() if name in RUN_FIELDS and value is not None}
    others = {name: value for name, value in data.items() if name not in (*RUN_FIELDS, "ask", "kind")}
    return others | {"run": run}


def _override(data: dict[str, Any], override: str) -> None:
    """Write one ``path.to.key=value`` into the tables."""
    path, equals, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise InvalidInput(f"Option `--set` must have the form path.to.key=value, but is {shown(override)}.")
    table = data
    for depth, key in enumerate(keys[:-1]):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            inside = ".".join(keys[: depth + 1])
            raise InvalidInput(
                f"Option `--set` names `{shortened(path.strip())}`, but `{shortened(inside)}` is {shown(table)} and "
                "has no fields."
            )
    table[keys[-1]] = as_value(text.strip())


def as_value(text: str) -> object:
    """The TOML value of the text, or the text itself, so that ``activation=relu`` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def from_tables(data: dict[str, Any]) -> RunSpec:
    """The specification that the tables of a file state: ``problem``, ``training`` and ``run``."""
    refuse_unknown(data, TOP_LEVEL, "The specification has no table or key")
    for table in ("problem", "training"):
        if table not in data:
            raise InvalidInput(f"The specification needs the table `[{table}]`.")
    run = data.get("run", {})
    if not isinstance(run, dict):
        raise InvalidInput(f"`run`: must be a table, but is {shown(run)}.")
    refuse_unknown(run, RUN_FIELDS, "`run`: there is no field")
    run = DEFAULTS | run
    parts = {
        "problem": decode(data["problem"], Problem, "problem"),
        "training": decode(data["training"], (SGD, Schedule), "training"),
        "descriptions": run.pop("descriptions"),
        "ask": decode(run, Ask, "run"),
        "title": data.get("title", ""),
    }
    return decode(parts, RunSpec, "run")


def refuse_unknown(table: dict[str, Any], allowed: Sequence[str], beginning: str) -> None:
    """Refuse a key that a table does not have, with the nearest that it has; ``words`` begin the sentence."""
    unknown = [key for key in table if key not in allowed]
    if unknown:
        raise InvalidInput(f"{beginning} {shown(unknown[0])}: {nearest(unknown[0], allowed)}")


def run_spec(
    spec: RunSpec, progress: Progress | bool | None = None, checkpoint: str | Path | Checkpoint | None = None
) -> "xr.DataTree":
    """Run all descriptions of a specification from the same starts, and compare them.

    ``progress`` is called with the name of a description and the fraction of it that is done. The folder ``checkpoint``
    holds the state and the results of the descriptions until all are done.
    """
    return compare(spec.problem, spec.training, spec.descriptions, spec.ask, progress=progress, checkpoint=checkpoint)
