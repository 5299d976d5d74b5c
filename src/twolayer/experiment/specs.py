"""The file format: one TOML file states a problem, a training and what to run, and the codec validates it.

The tables of a file are the fields of our objects: ``[problem]`` with its parts, ``[training]``, and ``[run]`` with
what `compare` is asked. Nothing here repeats a check that an object makes itself; errors carry the path of the field.
"""

import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx

from twolayer.core.checkpoint import Checkpoint
from twolayer.core.codec import decode
from twolayer.core.errors import InvalidInput, first_line, nearest, shortened, shown
from twolayer.core.fields import count, instance, leaf, number, static
from twolayer.core.reading import read_text
from twolayer.core.registry import register
from twolayer.description import AbstractDescription
from twolayer.problem import Problem
from twolayer.simulation import DirectSGD
from twolayer.theory import SaadSolla
from twolayer.training import SGD, Schedule
from twolayer.verbs import compare
from twolayer.verbs.evolve import save_times

if TYPE_CHECKING:
    import xarray as xr

RUN_FIELDS = ("descriptions", "until", "save", "replicas", "seed", "risk_threshold", "overlap_threshold")
# A file of a million save times has less; beyond is no specification.
MAX_BYTES = 2**25
TOP_LEVEL = ("title", "problem", "training", "run")


def _as_descriptions(value: Any) -> tuple[Any, ...]:
    described = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not described:
        raise InvalidInput("Argument `descriptions` must name at least one description, but is empty.")
    check = instance("descriptions", AbstractDescription, "a list of descriptions such as ['DirectSGD', 'SaadSolla']")
    return tuple(check(description) for description in described)


def _as_save(value: Any) -> Any:
    if isinstance(value, tuple | list):
        if not value:
            raise InvalidInput("Argument `save` must be a number of points or a list of times, but is an empty list.")
        return tuple(number("save", low=0.0)(time) for time in value)
    if isinstance(value, str):
        save_times(value, 1.0, 1.0)  # refuses what is no grid
        return value
    return count("save", low=2, high=10**6)(value)


def _as_title(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"Argument `title` must be a text, but is {shown(value)}.")
    return value


@register
class RunSpec(eqx.Module):
    """Everything that one comparison of theory and simulation depends on: what is learned, how, and what is asked.

    ``save`` is a number of points, a grid such as "linear:200", or the times themselves; the other fields are the
    arguments of `compare`. Invariant: the canonical JSON of a specification rebuilds it; its hash names its results.
    """

    problem: Problem = leaf(instance("problem", Problem, "a Problem"))
    training: SGD | Schedule = leaf(
        instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")
    )
    descriptions: tuple[AbstractDescription, ...] = leaf(_as_descriptions, default=(DirectSGD(), SaadSolla()))
    until: Any = leaf(number("until", above=0.0), default=20.0)
    save: Any = static(_as_save, default=100)
    replicas: int = static(count("replicas", high=10**7), default=16)
    seed: int = static(count("seed", low=0, high=2**31 - 1), default=0)
    risk_threshold: Any = leaf(number("risk_threshold", above=0.0, optional=True), default=None)
    overlap_threshold: Any = leaf(number("overlap_threshold", above=0.0, below=1.0, optional=True), default=None)
    title: str = static(_as_title, default="")

    @property
    def method(self) -> SGD:
        """The training, where one method is asked about and not a schedule of several."""
        if isinstance(self.training, Schedule):
            raise InvalidInput("Argument `training` must be one method here, but is a Schedule: ask for each phase.")
        return self.training


def read_spec(path: str | Path, overrides: Sequence[str] = ()) -> RunSpec:
    """Read a specification from a TOML file.

    Parameters
    ----------
    path
        The file, with the tables ``[problem]``, ``[training]`` and ``[run]``.
    overrides
        Changes to the file such as ``"training.learning_rate=0.3"``; a key that is not there is made.
    """
    path = Path(path)
    return parse_spec(read_text(path, "specification file", MAX_BYTES), overrides, source=str(path))


def demo_spec(overrides: Sequence[str] = ()) -> RunSpec:
    """The specification that comes with the package: an erf committee machine with a plateau."""
    text = resources.files("twolayer.experiment").joinpath("demo.toml").read_text(encoding="utf-8")
    return parse_spec(text, overrides, source="demo.toml")


def parse_spec(text: str, overrides: Sequence[str] = (), source: str = "specification") -> RunSpec:
    """The specification that a TOML text states; ``source`` names the text in messages."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits is a plain ValueError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else first_line(error)
        raise InvalidInput(f"The file {shown(Path(source))} is not valid TOML: {reason}.") from None
    for override in overrides:
        _override(data, override)
    return _from_tables(data)


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
    table[keys[-1]] = _as_value(text.strip())


def _as_value(text: str) -> Any:
    """A TOML value where the text is one, else the bare text, so that ``activation=relu`` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _from_tables(data: dict[str, Any]) -> RunSpec:
    _refuse_unknown(data, TOP_LEVEL, "The specification has no table or key")
    for table in ("problem", "training"):
        if table not in data:
            raise InvalidInput(f"The specification needs the table `[{table}]`.")
    asked = data.get("run", {})
    if not isinstance(asked, dict):
        raise InvalidInput(f"`run`: must be a table, but is {shown(asked)}.")
    _refuse_unknown(asked, RUN_FIELDS, "`run`: there is no field")
    whole = {
        "problem": decode(data["problem"], Problem, "problem"),
        "training": decode(data["training"], (SGD, Schedule), "training"),
        "title": _as_title(data.get("title", "")),
    }
    return decode(whole | asked, RunSpec, "run")


def _refuse_unknown(table: dict[str, Any], allowed: Sequence[str], words: str) -> None:
    unknown = [key for key in table if key not in allowed]
    if unknown:
        raise InvalidInput(f"{words} {shown(unknown[0])}: {nearest(unknown[0], allowed)}")


def run_spec(
    spec: RunSpec,
    progress: Callable[[str, float], None] | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
) -> "xr.DataTree":
    """Run what a specification asks: every description from the same starts, judged.

    ``progress`` is called with the name of a description and the fraction of it that is done; in the folder
    ``checkpoint`` descriptions keep their place and their results until all are done.
    """
    return compare(
        spec.problem,
        spec.training,
        spec.descriptions,
        until=spec.until,
        save=list(spec.save) if isinstance(spec.save, tuple) else spec.save,
        replicas=spec.replicas,
        seed=spec.seed,
        risk_threshold=spec.risk_threshold,
        overlap_threshold=spec.overlap_threshold,
        progress=progress,
        checkpoint=checkpoint,
    )
