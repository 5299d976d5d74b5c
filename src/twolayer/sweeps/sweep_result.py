"""The result of a sweep: one labelled dataset with the axes as dimensions, made of the results of its cells."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.text import Text, table
from twolayer.data.schema import SCHEMA, Schema, add_kind, ordered
from twolayer.sweeps.content import CellStatus, CellVariable, Content

if TYPE_CHECKING:
    import xarray as xr

KIND = "sweep"
STATUS, MESSAGE = "cell_status", "cell_message"
# The dimension of save points, where their times differ from cell to cell.
POINT = "point"
# Attributes that every cell has for itself.
OF_CELLS = ("outcome", "verdict")
# Attributes of single results that say nothing of a whole.
SINGLE = ("schema", "kind", "spec", "spec_hash")
FLAGS: dict[str, Any] = {
    "long_name": "how the cell ended",
    "units": "1",
    "flag_values": [int(status) for status in CellStatus],
    "flag_meanings": " ".join(status.name.lower() for status in CellStatus),
}

# The results of the cells that are there, each with its place; it is called twice.
Found = Callable[[], Iterable[tuple[tuple[int, ...], Content]]]


@dataclass
class _Shape:
    """What is common to a variable of all cells: its dimensions, the longest of each, its type and its attributes."""

    dimensions: tuple[str, ...]
    attributes: Mapping[str, Any]
    is_coordinate: bool
    sizes: tuple[int, ...]
    dtype: np.dtype
    first: np.ndarray
    longest: np.ndarray
    cells: int = 0
    is_same: bool = True  # in all cells that have it
    is_full: bool = True  # no cell is shorter than another
    is_nested: bool = True  # along its first dimension a shorter one is the beginning of a longer one

    def join(self, other: CellVariable) -> None:
        """Take in the variable of one more cell."""
        shape = other.values.shape
        if len(shape) == 1:
            short, long = sorted((self.longest, other.values), key=len)
            self.is_nested = self.is_nested and bool(np.array_equal(long[: len(short)], short))
            self.longest = long
        self.is_full = self.is_full and shape == self.sizes
        self.is_same = self.is_same and shape == self.first.shape and other.values.tobytes() == self.first.tobytes()
        self.sizes = tuple(map(max, self.sizes, shape))
        self.dtype = np.promote_types(self.dtype, other.values.dtype)
        self.cells += 1


@dataclass
class _CellLayout:
    """The variables and attributes of one dataset of all cells."""

    shapes: dict[str, _Shape] = field(default_factory=dict)
    attributes: dict[str, dict[str, int]] = field(default_factory=dict)  # for each name its values, as JSON
    labels: dict[str, dict[str, int]] = field(default_factory=dict)  # for each dimension with text labels their places
    cells: int = 0


def assembled(
    coordinates: Sequence[Mapping[str, Any]],
    found: Found,
    reasons: Mapping[tuple[int, ...], str],
    attributes: Mapping[str, Any],
) -> "xr.Dataset | xr.DataTree":
    """The labelled result of a sweep.

    Parameters
    ----------
    coordinates
        For each axis its coordinates, the first of which names the dimension.
    found
        The results of the cells that are there.
    reasons
        Why cells could not be asked, by their places.
    attributes
        The attributes of the whole.

    Returns
    -------
    A dataset; of comparisons a tree, with one dataset for each description as `compare` has it.
    """
    import xarray as xr

    axes = {next(iter(names)): names for names in coordinates}
    sizes = tuple(len(names[name]) for name, names in axes.items())
    layouts: dict[str, _CellLayout] = {}
    status = np.full(sizes, int(CellStatus.MISSING), np.int8)
    message = np.full(sizes, "", object)
    for place, content in found():
        status[place], message[place] = int(content.status), content.message
        for name, node in content.nodes.items():
            _join(layouts.setdefault(name, _CellLayout()), node)
    for place, reason in reasons.items():
        status[place], message[place] = int(CellStatus.REFUSED), reason
    layouts = layouts or {"": _CellLayout()}  # no cell has a result
    values = {name: _empty(layout, sizes) for name, layout in layouts.items()}
    for place, content in found():
        for name, node in content.nodes.items():
            _fill(layouts[name], values[name], place, node)
    ends = {STATUS: status, MESSAGE: message.astype(str)}
    datasets = {
        name: _dataset(axes, layout, values[name], ends if name == "" else {}, attributes)
        for name, layout in layouts.items()
    }
    if len(datasets) == 1:
        return datasets[""]
    return xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in datasets.items()})


def _join(layout: _CellLayout, node: Any) -> None:
    """Take in the shapes and attributes of one more cell."""
    layout.cells += 1
    for name, variable in node.variables.items():
        if _is_label(name, variable):
            places = layout.labels.setdefault(name, {})
            for text in variable.values.tolist():
                places.setdefault(text, len(places))
        elif name in layout.shapes:
            layout.shapes[name].join(variable)
        else:
            layout.shapes[name] = _Shape(
                variable.dimensions,
                variable.attributes,
                variable.is_coordinate,
                variable.values.shape,
                variable.values.dtype,
                variable.values,
                variable.values,
                1,
            )
    for name, value in node.attributes.items():
        stated = layout.attributes.setdefault(name, {})
        text = json.dumps(value)
        stated[text] = stated.get(text, 0) + 1


def _is_label(name: str, variable: CellVariable) -> bool:
    """Whether a variable is the text labels of a dimension, by which cells are aligned."""
    return variable.dimensions == (name,) and variable.values.dtype.kind == "U"


def _length(layout: _CellLayout, shape: _Shape) -> tuple[int, ...]:
    """The sizes of a variable in the whole: those of the longest variable along each dimension, in any cell."""
    longest: dict[str, int] = {}
    for other in layout.shapes.values():
        for name, size in zip(other.dimensions, other.sizes, strict=True):
            longest[name] = max(size, longest.get(name, 0))
    return tuple(len(layout.labels[name]) if name in layout.labels else longest[name] for name in shape.dimensions)


def _is_common(layout: _CellLayout, name: str, shape: _Shape) -> bool:
    """Whether one array serves all cells: coordinates that are the same, or such as 0, 1, 2 ... of any length."""
    if shape.dimensions == (name,) and name != "time":
        return shape.is_nested
    return shape.is_same and shape.is_coordinate and shape.cells == layout.cells


def _empty(layout: _CellLayout, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays that hold nothing yet, with the axes first; numbers that may be missing are real, so that they can be."""
    arrays = {}
    has_all = int(np.prod(sizes)) == layout.cells
    for name, shape in layout.shapes.items():
        if _is_common(layout, name, shape):
            continue
        lengths = _length(layout, shape)
        is_full = has_all and shape.is_full and shape.cells == layout.cells and lengths == shape.sizes
        if shape.dtype.kind == "U":
            arrays[name] = np.full((*sizes, *lengths), "", shape.dtype)
        elif shape.dtype.kind in "biu" and is_full:
            arrays[name] = np.zeros((*sizes, *lengths), shape.dtype)
        else:
            arrays[name] = np.full((*sizes, *lengths), np.nan)
    varied = [name for name, stated in layout.attributes.items() if _varies(layout, name, stated)]
    for name in varied:
        arrays[f"attribute {name}"] = np.full(sizes, None, object)
    return arrays


def _varies(layout: _CellLayout, name: str, stated: Mapping[str, int]) -> bool:
    is_common = len(stated) == 1 and sum(stated.values()) == layout.cells
    return name in OF_CELLS or (name not in SINGLE and not is_common)


def _fill(layout: _CellLayout, arrays: dict[str, np.ndarray], place: tuple[int, ...], node: Any) -> None:
    """Put the numbers of one cell into the arrays of all."""
    own = {
        name: [layout.labels[name][text] for text in variable.values.tolist()]
        for name, variable in node.variables.items()
        if _is_label(name, variable)
    }
    for name, variable in node.variables.items():
        if name not in arrays:
            continue
        target = arrays[name][place]
        if any(dimension in own for dimension in variable.dimensions):
            spans = [own.get(x, range(n)) for x, n in zip(variable.dimensions, variable.values.shape, strict=True)]
            target[np.ix_(*spans)] = variable.values
        elif variable.dimensions:
            target[tuple(map(slice, variable.values.shape))] = variable.values
        else:
            arrays[name][place] = variable.values
    for name, value in node.attributes.items():
        if f"attribute {name}" in arrays:
            arrays[f"attribute {name}"][place] = value


def _dataset(
    axes: Mapping[str, Mapping[str, Any]],
    layout: _CellLayout,
    arrays: Mapping[str, np.ndarray],
    ends: Mapping[str, np.ndarray],
    attributes: Mapping[str, Any],
) -> "xr.Dataset":
    import xarray as xr

    names = tuple(axes)
    # Coordinates that differ from cell to cell, such as the times of steps, label no dimension.
    moved = {
        name: POINT if name == "time" else f"{name}_number"
        for name, shape in layout.shapes.items()
        if name in arrays and shape.dimensions == (name,)
    }
    coordinates: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    for axis, fields in axes.items():
        coordinates |= {
            name: (axis, np.asarray(values), {"long_name": _words(name)}) for name, values in fields.items()
        }
    taken = {name for fields in axes.values() for name in fields}

    def own_name(name: str) -> str:
        """The name of a variable or dimension of a cell beside those of the axes."""
        return f"result_{name}" if name in taken else name

    for name, places in layout.labels.items():
        coordinates[own_name(name)] = (own_name(name), np.asarray(list(places)))
    for name, shape in layout.shapes.items():
        dimensions = tuple(own_name(moved.get(dimension, dimension)) for dimension in shape.dimensions)
        if name in arrays:
            stated = (names + dimensions, arrays[name], dict(shape.attributes))
        else:
            stated = (dimensions, shape.longest, dict(shape.attributes))
        (coordinates if shape.is_coordinate else variables)[own_name(name)] = stated
    common: dict[str, Any] = {}
    for name, stated in layout.attributes.items():
        if f"attribute {name}" in arrays:
            if name not in taken:
                variables[name] = (names, _of_attributes(arrays[f"attribute {name}"]), {"long_name": _words(name)})
        elif name not in SINGLE:
            common[name] = json.loads(next(iter(stated)))
    for name, values in ends.items():
        own = FLAGS if name == STATUS else {"long_name": "why the cell did not end well", "units": "1"}
        variables[name] = (names, values, own)
    return xr.Dataset(variables, coordinates, ordered(common | {"schema": SCHEMA, "kind": KIND} | dict(attributes)))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _of_attributes(values: np.ndarray) -> np.ndarray:
    """Attributes of cells as one array: numbers where all are, else text."""
    flat = values.ravel()
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in flat):
        return np.array([np.nan if value is None else value for value in flat], float).reshape(values.shape)
    texts = ["" if value is None else value if isinstance(value, str) else json.dumps(value) for value in flat]
    return np.array(texts, str).reshape(values.shape)


# ------------------------------------------------------------------------------------------------------ the kind


def counts(result: "xr.Dataset | xr.DataTree") -> dict[str, int]:
    """How many cells ended in which way."""
    status = np.asarray(result[STATUS].values)
    return {ended.name.lower(): int(np.sum(status == ended)) for ended in CellStatus}


def failures(result: "xr.Dataset | xr.DataTree") -> list[dict[str, Any]]:
    """The cells that are not done, with their coordinates, their status and the reason."""
    status: Any = result[STATUS]
    message: Any = result[MESSAGE]
    rows = []
    for place in np.argwhere(status.values != CellStatus.DONE):
        cell = dict(zip(status.dims, place.tolist(), strict=True))
        where = {str(name): status[name].values[n] for name, n in cell.items()}
        word = CellStatus(int(status.values[tuple(place)])).name.lower()
        rows.append(where | {"status": word, "reason": str(message.values[tuple(place)])})
    return rows


def summary(result: "xr.Dataset") -> Text:
    """The axes of a sweep, how its cells ended, and the first reasons of those that did not."""
    rows = []
    for name in result[STATUS].dims:
        values = result[name].values
        ends = f"{_shown(values[0])} ... {_shown(values[-1])}" if len(values) > 1 else _shown(values[0])
        rows.append([str(name), len(values), ends])
    ended = counts(result)
    words = ", ".join(f"{number} {name}" for name, number in ended.items() if number)
    lines = [*table(["axis", "values", "from ... to"], rows, right=(1,)), "", f"cells: {words}"]
    reasons = dict.fromkeys(row["reason"] for row in failures(result) if row["reason"])
    return Text("\n".join([*lines, *(f"- {reason}" for reason in list(reasons)[:5])]))


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


SWEEP = add_kind(Schema(kind=KIND, variables={}, attributes=("verb",), summary=summary))
