"""The result of a sweep: one labelled dataset with the axes as dimensions, made of the results of its cells."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.text import Text, table
from twolayer.data.schema import SCHEMA, Schema, add_kind, ordered
from twolayer.sweeps.content import CellBlock, CellNode, CellStatus, CellVariable

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

# The results of the cells that are there, in blocks, each with the places of its cells; it is called twice.
Found = Callable[[], Iterable[tuple[Sequence[tuple[int, ...]], CellBlock]]]


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

    def join(self, rows: np.ndarray, cells: int) -> None:
        """Take in the variable of more cells, with the cells along the first axis, or one of length one for all."""
        shape = rows.shape[1:]
        if len(shape) == 1:
            for row in rows:
                short, long = sorted((self.longest, row), key=len)
                self.is_nested = self.is_nested and bool(np.array_equal(long[: len(short)], short))
                self.longest = long
        self.is_full = self.is_full and shape == self.sizes
        is_alike = self.is_same and shape == self.first.shape
        self.is_same = is_alike and all(row.tobytes() == self.first.tobytes() for row in rows)
        self.sizes = tuple(map(max, self.sizes, shape))
        self.dtype = np.promote_types(self.dtype, rows.dtype)
        self.cells += cells


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
    cells = int(np.prod(sizes))
    status = np.full(cells, int(CellStatus.MISSING), np.int8)
    message = np.full(cells, "", object)
    for places, block in found():
        at = _numbers(places, sizes)
        status[at], message[at] = block.status, block.messages
        for name, node in block.nodes.items():
            _join(layouts.setdefault(name, _CellLayout()), node, len(places))
    for place, reason in reasons.items():
        at = _numbers([place], sizes)
        status[at], message[at] = int(CellStatus.REFUSED), reason
    layouts = layouts or {"": _CellLayout()}  # no cell has a result
    values = {name: _empty(layout, cells) for name, layout in layouts.items()}
    for places, block in found():
        for name, node in block.nodes.items():
            _fill(layouts[name], values[name], _numbers(places, sizes), node)
    ends = {STATUS: status.reshape(sizes), MESSAGE: message.astype(str).reshape(sizes)}
    datasets = {
        name: _dataset(axes, layout, _shaped(values[name], sizes), ends if name == "" else {}, attributes)
        for name, layout in layouts.items()
    }
    if len(datasets) == 1:
        return datasets[""]
    return xr.DataTree.from_dict({f"/{name}": dataset for name, dataset in datasets.items()})


def _numbers(places: Sequence[tuple[int, ...]], sizes: tuple[int, ...]) -> np.ndarray:
    """The numbers of cells at some places, counted along the last axis first."""
    return np.ravel_multi_index(np.transpose(places), sizes) if sizes else np.zeros(len(places), int)  # pyright: ignore


def _shaped(arrays: dict[str, np.ndarray], sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays of all cells with the axes in place of their first dimension."""
    return {name: array.reshape((*sizes, *array.shape[1:])) for name, array in arrays.items()}


def _join(layout: _CellLayout, node: CellNode, cells: int) -> None:
    """Take in the shapes and attributes of a block of cells."""
    layout.cells += cells
    for name, variable in node.variables.items():
        rows = variable.values
        if _is_label(name, variable):
            places = layout.labels.setdefault(name, {})
            for text in rows.ravel().tolist():
                places.setdefault(text, len(places))
            continue
        if name not in layout.shapes:
            layout.shapes[name] = _Shape(
                variable.dimensions,
                variable.attributes,
                variable.is_coordinate,
                rows.shape[1:],
                rows.dtype,
                np.asarray(rows[0]),
                np.asarray(rows[0]),
            )
        layout.shapes[name].join(rows, cells)
    for name, values in node.attributes.items():
        stated = layout.attributes.setdefault(name, {})
        for value in values:
            if value is not None:
                text = json.dumps(value)
                stated[text] = stated.get(text, 0) + (cells if len(values) == 1 else 1)


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


def _empty(layout: _CellLayout, cells: int) -> dict[str, np.ndarray]:
    """Arrays that hold nothing yet, with the cells first; numbers that may be missing are real, so that they can be."""
    arrays = {}
    has_all = cells == layout.cells
    for name, shape in layout.shapes.items():
        if _is_common(layout, name, shape):
            continue
        lengths = _length(layout, shape)
        is_full = has_all and shape.is_full and shape.cells == layout.cells and lengths == shape.sizes
        if shape.dtype.kind == "U":
            arrays[name] = np.full((cells, *lengths), "", shape.dtype)
        elif shape.dtype.kind in "biu" and is_full:
            arrays[name] = np.zeros((cells, *lengths), shape.dtype)
        else:
            arrays[name] = np.full((cells, *lengths), np.nan)
    varied = [name for name, stated in layout.attributes.items() if _varies(layout, name, stated)]
    for name in varied:
        arrays[f"attribute {name}"] = np.full(cells, None, object)
    return arrays


def _varies(layout: _CellLayout, name: str, stated: Mapping[str, int]) -> bool:
    is_common = len(stated) == 1 and sum(stated.values()) == layout.cells
    return name in OF_CELLS or (name not in SINGLE and not is_common)


def _fill(layout: _CellLayout, arrays: dict[str, np.ndarray], at: np.ndarray, node: CellNode) -> None:
    """Put the numbers of a block of cells into the arrays of all, at the numbers of these cells."""
    labels = {name: variable.values for name, variable in node.variables.items() if _is_label(name, variable)}
    for name, variable in node.variables.items():
        if name not in arrays:
            continue
        shape, own = variable.values.shape[1:], [labels[x] for x in variable.dimensions if x in labels]
        if not own:
            arrays[name][(at, *map(slice, shape))] = variable.values
            continue
        is_alike = all(len(rows) == 1 for rows in own)
        for row in range(1 if is_alike else len(at)):
            cells, values = (at, variable.values) if is_alike else (at[row : row + 1], _row(variable.values, row)[None])
            spans = [np.arange(size) for size in shape]
            for n, dimension in enumerate(variable.dimensions):
                if dimension in labels:
                    places = layout.labels[dimension]
                    spans[n] = np.array([places[text] for text in _row(labels[dimension], row).tolist()], int)
            arrays[name][np.ix_(cells, *spans)] = values
    for name, values in node.attributes.items():
        if f"attribute {name}" in arrays:
            for row, cell in enumerate(at):
                arrays[f"attribute {name}"][cell] = _row(values, row)


def _row(values: Any, row: int) -> Any:
    """What belongs to a cell of a block, where one entry may stand for all cells."""
    return values[row if len(values) > 1 else 0]


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
