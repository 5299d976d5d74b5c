"""What a cell has found, as plain arrays with the names of their dimensions, and how it is stored.

The results of many cells with arrays of the same shapes are one pack: one file, in which each array has the cells along
its first axis. A pack is written whole or not at all.
"""

import enum
import io
import json
import zipfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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


class CellBlock(NamedTuple):
    """The results of cells whose arrays have the same shapes.

    Arrays have the cells along a first axis. It has the length one where they are the same in all cells, and so have
    the lists of messages and of the values of each attribute.
    """

    keys: list[str]
    status: list[int]
    messages: list[str]
    nodes: dict[str, CellNode]

    @classmethod
    def of(cls, contents: Mapping[str, Content]) -> "list[CellBlock]":
        """The results of cells by their keys."""
        alike: dict[Hashable, list[str]] = {}
        for key, content in contents.items():
            alike.setdefault(_layout(content), []).append(key)
        return [cls._of_alike(keys, [contents[key] for key in keys]) for keys in alike.values()]

    @classmethod
    def _of_alike(cls, keys: list[str], members: list[Content]) -> "CellBlock":
        def of_node(name: str) -> CellNode:
            nodes = [content.nodes[name] for content in members]
            variables = {
                key: variable._replace(values=_stacked([node.variables[key].values for node in nodes]))
                for key, variable in nodes[0].variables.items()
            }
            names = dict.fromkeys(key for node in nodes for key in node.attributes)
            return CellNode(variables, {key: _once([node.attributes.get(key) for node in nodes]) for key in names})

        status, messages = [int(content.status) for content in members], [content.message for content in members]
        return cls(keys, status, _once(messages), {name: of_node(name) for name in members[0].nodes})

    def content(self, row: int) -> Content:
        """The result of one cell."""

        def pick(values: Any) -> Any:
            return values[row if len(values) > 1 else 0]

        nodes = {}
        for node, content_node in self.nodes.items():
            variables = {
                name: variable._replace(values=np.asarray(pick(variable.values)))
                for name, variable in content_node.variables.items()
            }
            attributes = {name: pick(values) for name, values in content_node.attributes.items()}
            nodes[node] = CellNode(variables, {name: value for name, value in attributes.items() if value is not None})
        return Content(CellStatus(self.status[row]), pick(self.messages), nodes)

    def chosen(self, rows: Sequence[int]) -> "CellBlock":
        """The results of some of the cells."""

        def some(values: list[Any]) -> list[Any]:
            return values if len(values) == 1 else [values[row] for row in rows]

        nodes = {}
        for node, content_node in self.nodes.items():
            variables = {
                name: variable if len(variable.values) == 1 else variable._replace(values=variable.values[rows])
                for name, variable in content_node.variables.items()
            }
            nodes[node] = CellNode(variables, {name: some(values) for name, values in content_node.attributes.items()})
        keys, status = [self.keys[row] for row in rows], [self.status[row] for row in rows]
        return CellBlock(keys, status, some(self.messages), nodes)


def packed(contents: Mapping[str, Content]) -> bytes:
    """The bytes of a pack with the results of cells by their keys."""
    blocks = CellBlock.of(contents)
    arrays = {
        f"{number}/{node}/{name}": variable.values
        for number, block in enumerate(blocks)
        for node, content_node in block.nodes.items()
        for name, variable in content_node.variables.items()
    }
    file = io.BytesIO()
    header = json.dumps({"format": FORMAT, "blocks": [_header(block) for block in blocks]}).encode()
    np.savez(file, header=np.frombuffer(header, np.uint8), **arrays)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def _stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays of all cells along a first axis, which has the length one where they are all the same."""
    first = values[0]
    is_same = len(values) > 1 and all(other is first or _equal(first, other) for other in values[1:])
    return first[None] if is_same else np.stack(values)


def _equal(left: np.ndarray, right: np.ndarray) -> bool:
    return left.tobytes() == right.tobytes()


def _layout(content: Content) -> Hashable:
    """What two cells must have in common to be stored in one block."""
    return tuple(
        (name, key, variable.dimensions, variable.values.dtype, variable.values.shape, variable.is_coordinate)
        for name, node in content.nodes.items()
        for key, variable in (*node.variables.items(), (None, _NOTHING))
    )


# In place of a variable at the end of each dataset.
_NOTHING = CellVariable((), np.zeros(()), {}, False)


def _header(block: CellBlock) -> dict[str, Any]:
    """What is stored of a block beside its arrays."""
    layout = {
        node: {
            name: [variable.dimensions, str(variable.values.dtype), variable.values.shape[1:], variable.is_coordinate]
            for name, variable in content_node.variables.items()
        }
        for node, content_node in block.nodes.items()
    }
    units = {
        node: {name: dict(variable.attributes) for name, variable in content_node.variables.items()}
        for node, content_node in block.nodes.items()
    }
    attributes = {node: content_node.attributes for node, content_node in block.nodes.items()}
    return {
        "layout": layout,
        "keys": block.keys,
        "status": block.status,
        "messages": block.messages,
        "attributes": attributes,
        "units": units,
    }


def _once(values: list[Any]) -> list[Any]:
    """One value where all are the same."""
    return values[:1] if all(value == values[0] for value in values) else values


def blocks_in(content: bytes, wanted: Iterable[str] | None = None) -> list[CellBlock]:
    """The results in a pack; of all its cells, or of those that are wanted.

    Raises `InvalidInput` if the pack has the layout of another version, and `ValueError` if it cannot be read.
    """
    chosen = None if wanted is None else set(wanted)
    blocks = []
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
            if header["format"] != FORMAT:
                raise InvalidInput(
                    f"The cells have the layout {header['format']}, but this version of twolayer reads {FORMAT}: take "
                    "the version that wrote them, or another folder."
                )
            for number, stated in enumerate(header["blocks"]):
                rows = [n for n, key in enumerate(stated["keys"]) if chosen is None or key in chosen]
                if rows:
                    block = _read(stated, lambda node, name, number=number: file[f"{number}/{node}/{name}"])
                    blocks.append(block if len(rows) == len(block.keys) else block.chosen(rows))
    except DAMAGED as error:
        raise ValueError(f"a pack of cells cannot be read: {error}") from None
    return blocks


def _read(stated: dict[str, Any], array: Callable[[str, str], np.ndarray]) -> CellBlock:
    """A block from what `_header` wrote of it, and its arrays."""
    nodes = {}
    for node, names in stated["layout"].items():
        units = stated["units"][node]
        variables = {
            name: CellVariable(tuple(own[0]), array(node, name), units.get(name, {}), bool(own[3]))
            for name, own in names.items()
        }
        nodes[node] = CellNode(variables, stated["attributes"][node])
    return CellBlock(stated["keys"], stated["status"], stated["messages"], nodes)


def unpacked(content: bytes, wanted: Iterable[str] | None = None) -> dict[str, Content]:
    """The results in a pack by the keys of their cells, as `blocks_in` reads them."""
    return {key: block.content(row) for block in blocks_in(content, wanted) for row, key in enumerate(block.keys)}


def keys_in(content: bytes) -> list[str]:
    """The keys of the cells in a pack; raises `ValueError` if it cannot be read."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            header = json.loads(file["header"].tobytes())
        return [key for block in header["blocks"] for key in block["keys"]]
    except DAMAGED as error:
        raise ValueError(f"a pack of cells cannot be read: {error}") from None
