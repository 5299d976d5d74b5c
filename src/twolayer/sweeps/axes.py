"""The axes of a sweep: which fields change, through which values, and which of them change together."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.data.schema import TRAJECTORY
from twolayer.specification.display import as_text

# More cells than these are a mistake: they would take minutes to be named, and gigabytes of memory.
MAX_CELLS = 10**6
# Names of a trajectory that no axis takes.
RESERVED = {*TRAJECTORY.variables, *TRAJECTORY.optional, *TRAJECTORY.coordinates, "replica", "point", "particle"}
FORM = '"lin:LOW:HIGH:N" or "log:LOW:HIGH:N"'


class Axis(NamedTuple):
    """One dimension of a sweep: the paths of the fields that change along it, their names, and their values."""

    paths: tuple[str, ...]
    names: tuple[str, ...]  # of the coordinates, the first of which names the dimension
    values: tuple[tuple[Any, ...], ...]  # for each path its values

    @property
    def name(self) -> str:
        """The name of the dimension."""
        return self.names[0]

    @property
    def size(self) -> int:
        """The number of values."""
        return len(self.values[0])

    def coordinates(self) -> dict[str, Any]:
        """The coordinates along the dimension: numbers as they are, anything else as text."""
        return {name: labels(values) for name, values in zip(self.names, self.values, strict=True)}


def labels(values: Sequence[Any]) -> np.ndarray:
    """Values as the coordinate of a dimension."""
    if all(isinstance(value, bool | int | float | np.number) for value in values):
        return np.asarray(values)
    texts = [value if isinstance(value, str) else _text(value) for value in values]
    if len(set(texts)) < len(texts):  # two functions may write themselves alike
        texts = [f"{number}: {text}" for number, text in enumerate(texts)]
    return np.asarray(texts)


def _text(value: Any) -> str:
    return " ".join(as_text(value).split()) if isinstance(value, eqx.Module) else shown(value)


def make_axes(
    over: Mapping[str, Any], together: Sequence[Sequence[str]] = (), whole: Sequence[str] = ()
) -> tuple[Axis, ...]:
    """The axes of a sweep.

    Parameters
    ----------
    over
        For each path of a field its values: a list, an array, or a range in words.
    together
        Groups of paths that change together along one dimension; all others span a product.
    whole
        Paths of fields that hold whole numbers, to which ranges in words are rounded.
    """
    if not isinstance(over, Mapping) or not over:
        raise InvalidInput('Argument `over` must map paths of fields to values, as in {"training.learning_rate": [1]}.')
    values = {path: _values(path, given, path in whole) for path, given in over.items()}
    groups = _groups(list(values), together)
    for group in groups:
        sizes = {path: len(values[path]) for path in group}
        if len(set(sizes.values())) > 1:
            stated = ", ".join(f"`{path}` has {size}" for path, size in sizes.items())
            raise InvalidInput(f"Fields that change together must have equally many values, but {stated}.")
    cells = math.prod(len(values[group[0]]) for group in groups)
    if cells > MAX_CELLS:
        raise InvalidInput(f"Argument `over` must span at most {MAX_CELLS} cells, but spans {float(cells):.3g}.")
    names = _names(list(values))
    return tuple(
        Axis(group, tuple(names[path] for path in group), tuple(values[path] for path in group)) for group in groups
    )


def _groups(paths: list[str], together: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The paths in groups that change together, in the order of their first paths."""
    joined: dict[str, tuple[str, ...]] = {}
    for group in together:
        if isinstance(group, str) or len(group) < 2:
            raise InvalidInput(f"Argument `together` must list groups of two paths or more, but has {shown(group)}.")
        for path in group:
            if path not in paths:
                raise InvalidInput(f"Argument `together` names {shown(path)}, which is not in `over`.")
            if path in joined:
                raise InvalidInput(f"Argument `together` names {shown(path)} twice.")
            joined[path] = tuple(group)
    return list(dict.fromkeys(joined.get(path, (path,)) for path in paths))


def _values(path: str, given: Any, is_whole: bool) -> tuple[Any, ...]:
    if not isinstance(path, str) or not path.strip():
        raise InvalidInput(f"Argument `over` must have paths of fields as keys, but has {shown(path)}.")
    is_list = given.ndim > 0 if isinstance(given, np.ndarray) else isinstance(given, Sequence)
    if isinstance(given, str):
        values = _range(path, given)
        values = dict.fromkeys(round(value) for value in values) if is_whole else values
    elif is_list and not isinstance(given, bytes):
        if len(given) > MAX_CELLS:  # before they are listed, which may take more memory than there is
            raise InvalidInput(f"Axis `{path}` must have at most {MAX_CELLS} values, but has {len(given)}.")
        values = given.tolist() if isinstance(given, np.ndarray) else given
    else:
        raise InvalidInput(f"Axis `{path}` must be a list of values, {FORM}, but is {shown(given)}.")
    values = tuple(values)
    if not values:
        raise InvalidInput(f"Axis `{path}` must have at least one value, but has none.")
    plain = [value for value in values if isinstance(value, bool | int | float | str)]
    if len(set(plain)) < len(plain):
        twice = next(value for value, number in Counter(plain).items() if number > 1)
        raise InvalidInput(f"Axis `{path}` must have different values, but has {shown(twice)} twice.")
    return values


def is_range(text: str) -> bool:
    """Whether a text is a range in words, such as ``log:1e-3:1:13``."""
    return text.partition(":")[0] in ("lin", "log") and ":" in text


def _range(path: str, text: str) -> list[float]:
    kind, *parts = text.split(":")
    try:
        low, high, number = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError, OverflowError):
        kind, low, high, number = "", 0.0, 0.0, 0
    if kind not in ("lin", "log") or len(parts) != 3 or not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidInput(f"Axis `{path}` must be a list of values, {FORM}, but is {shown(text)}.")
    if not 2 <= number <= MAX_CELLS:
        raise InvalidInput(f"Axis `{path}` must have 2 to {MAX_CELLS} values, but {shown(text)} asks for {number}.")
    if low == high:
        raise InvalidInput(f"Axis `{path}` must have different ends, but is {shown(text)}.")
    if kind == "log" and min(low, high) <= 0.0:
        raise InvalidInput(f"Axis `{path}` must have positive ends on a logarithmic scale, but is {shown(text)}.")
    values = np.linspace(low, high, number) if kind == "lin" else np.geomspace(low, high, number)
    return values.tolist()


def _names(paths: list[str]) -> dict[str, str]:
    """Each path by its last part, or by as many as tell it from the others and from the variables of trajectories."""
    names: dict[str, str] = {}
    for path in paths:
        parts = path.split(".")
        others = [other.split(".") for other in paths if other != path]

        def is_clear(size: int, parts: list[str] = parts, others: list[list[str]] = others) -> bool:
            is_own = all(other[-size:] != parts[-size:] for other in others)
            return is_own and "_".join(parts[-size:]) not in RESERVED

        size = next((n for n in range(1, len(parts)) if is_clear(n)), len(parts))
        names[path] = "_".join(parts[-size:])
    return names


def places(axes: Sequence[Axis]) -> Iterator[tuple[int, ...]]:
    """The places of all cells, the last axis running fastest."""
    return itertools.product(*(range(axis.size) for axis in axes))
