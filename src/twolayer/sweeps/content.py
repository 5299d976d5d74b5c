"""What a cell has found, as plain arrays with the names of their dimensions, and how it is stored.

The results of many cells with arrays of the same shapes are one pack: one file, in which each array has the cells along
its first axis. A pack is written whole or not at all.
"""

import enum
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput

if TYPE_CHECKING:
    import xarray as xr

# The version of the layout of packs.
FORMAT = 1
# What reading a damaged pack may raise.
DAMAGED = (KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile)
# Attributes of a result that are named by its cell.
LEFT_OUT = ("spec", "spec_hash")


class CellStatus(enum.IntEnum):
    """How a cell ended."""

    DONE = 0
    REFUSED = 1
    DIVERGED = 2
    FAILED = 3
    MISSING = 4


class CellVariable(NamedTuple):
    """An array with the names of its dimensions and its attributes."""

    dimensions: tuple[str, ...]
    values: np.ndarray
    attributes: Mapping[str, Any]
    is_coordinate: bool


class CellNode(NamedTuple):
    """One dataset of a result as plain arrays."""

    variables: dict[str, CellVariable]
    attributes: dict[str, Any]


class Content(NamedTuple):
    """What a cell has found: its status, a sentence where it is not done, and the datasets of the result by name."""

    status: CellStatus
    message: str
    nodes: dict[str, CellNode]


def node_of(dataset: "xr.Dataset") -> CellNode:
    """A dataset as plain arrays."""
    coordinates = set(dataset.coords)
    variables = {
        str(name): CellVariable(
            tuple(map(str, variable.dims)),
            _plain(np.asarray(variable.values)),
            {str(key): _native(value) for key, value in variable.attrs.items()},
            name in coordinates,
        )
        for name, variable in dataset.variables.items()
    }
    attributes = {str(name): _native(value) for name, value in dataset.attrs.items() if name not in LEFT_OUT}
    return CellNode(variables, attributes)


def dataset_of(node: CellNode) -> "xr.Dataset":
    """The dataset of plain arrays, without what its cell names."""
    import xarray as xr

    known = {name: (stated.dimensions, stated.values, stated.attributes) for name, stated in node.variables.items()}
    coordinates = [name for name, stated in node.variables.items() if stated.is_coordinate]
    return xr.Dataset(known, attrs=node.attributes).set_coords(coordinates)


def _plain(values: np.ndarray) -> np.ndarray:
    return values.astype(str) if values.dtype == object else values


def _native(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


# ------------------------------------------------------------------------------------------------------------ packs


def packed(contents: Mapping[str, Content]) -> bytes:
    """The bytes of a pack with the results of cells by their keys."""
    blocks: dict[str, list[str]] = {}
    for key, content in contents.items():
        blocks.setdefault(_layout(content), []).append(key)
    arrays: dict[str, np.ndarray] = {}
    headers = []
    for number, (layout, keys) in enumerate(blocks.items()):
        members = [contents[key] for key in keys]
        headers.append(_header(layout, keys, members))
        for node, name in _names(members[0]):
            values = [content.nodes[node].variables[name].values for content in members]
            arrays[f"{number}/{node}/{name}"] = _stacked(values)
    file = io.BytesIO()
    header = json.dumps({"format": FORMAT, "blocks": headers}).encode()
    np.savez(file, header=np.frombuffer(header, np.uint8), **arrays)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def _stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays of all cells along a first axis, which has the length one where they are all the same."""
    first = values[0]
    is_same = len(values) > 1 and all(_equal(first, other) for other in values[1:])
    return first[None] if is_same else np.stack(values)


def _equal(left: np.ndarray, right: np.ndarray) -> bool:
    return left.tobytes() == right.tobytes()


def _names(content: Content) -> Iterator[tuple[str, str]]:
    return ((node, name) for node, content_node in content.nodes.items() for name in content_node.variables)


def _layout(content: Content) -> str:
    """What two cells must have in common to be stored in one block."""
    nodes = {
        name: {
            key: [*variable[:1], str(variable.values.dtype), variable.values.shape, variable.is_coordinate]
            for key, variable in node.variables.items()
        }
        for name, node in content.nodes.items()
    }
    return json.dumps(nodes, sort_keys=False)


def _header(layout: str, keys: list[str], members: list[Content]) -> dict[str, Any]:
    first = members[0]
    return {
        "layout": json.loads(layout),
        "keys": keys,
        "status": [int(content.status) for content in members],
        "messages": _once([content.message for content in members]),
        "attributes": {
            node: {
                name: _once([content.nodes[node].attributes.get(name) for content in members])
                for name in dict.fromkeys(key for content in members for key in content.nodes[node].attributes)
            }
            for node in first.nodes
        },
        "units": {
            node: {name: dict(variable.attributes) for name, variable in content_node.variables.items()}
            for node, content_node in first.nodes.items()
        },
    }


def _once(values: list[Any]) -> list[Any]:
    """One value where all are the same."""
    return values[:1] if all(value == values[0] for value in values) else values


def unpacked(content: bytes, wanted: Iterable[str] | None = None) -> dict[str, Content]:
    """The results in a pack by the keys of their cells; all of them, or those that are wanted.

    Raises `InvalidInput` if the pack has the layout of another version, and `ValueError` if it cannot be read.
    """
    chosen = None if wanted is None else set(wanted)
    results: dict[str, Content] = {}
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            if header["format"] != FORMAT:
                raise InvalidInput(
                    f"The cells have the layout {header['format']}, but this version of twolayer reads {FORMAT}: take "
                    "the version that wrote them, or another folder."
                )
            for number, block in enumerate(header["blocks"]):
                rows = [n for n, key in enumerate(block["keys"]) if chosen is None or key in chosen]
                if rows:
                    arrays = {
                        (node, name): file[f"{number}/{node}/{name}"]
                        for node, names in block["layout"].items()
                        for name in names
                    }
                    results |= {block["keys"][n]: _content(block, arrays, n) for n in rows}
    except DAMAGED as error:
        raise ValueError(f"a pack of cells cannot be read: {error}") from None
    return results


def keys_in(content: bytes) -> list[str]:
    """The keys of the cells in a pack; raises `ValueError` if it cannot be read."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
        return [key for block in header["blocks"] for key in block["keys"]]
    except DAMAGED as error:
        raise ValueError(f"a pack of cells cannot be read: {error}") from None


def _content(block: dict[str, Any], arrays: dict[tuple[str, str], np.ndarray], row: int) -> Content:
    def pick(values: Any) -> Any:
        return values[row if len(values) > 1 else 0]

    nodes = {}
    for node, names in block["layout"].items():
        variables = {
            name: CellVariable(
                tuple(stated[0]),
                np.asarray(pick(arrays[node, name])),
                block["units"][node].get(name, {}),
                bool(stated[3]),
            )
            for name, stated in names.items()
        }
        attributes = {name: pick(values) for name, values in block["attributes"][node].items()}
        present = {name: value for name, value in attributes.items() if value is not None}
        nodes[node] = CellNode(variables, present)
    return Content(CellStatus(block["status"][row]), pick(block["messages"]), nodes)
