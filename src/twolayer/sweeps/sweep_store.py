"""The folder of a sweep: its specification, and the results of its cells in packs that are whole or not there.

Cells are named by the hash of all that their numbers depend on. So what is there is never computed again, whatever
sweep asks for it, and several processes may fill one folder: a cell that two of them computed is the same in both.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from twolayer.core.errors import ComputationFailed, InvalidInput, first_line, shown
from twolayer.core.reading import parsing, read_text
from twolayer.core.whole_files import make_folder, remove_drafts, write_whole
from twolayer.sweeps.content import FORMAT, CellBlock, Content, blocks_in, keys_in

# The file that makes a folder that of a sweep, the folder of its cells, and that of other grids over the same cells.
MANIFEST, CELLS, GRIDS = "sweep.json", "cells", "grids"
MAX_MANIFEST = 2**27


class Store:
    """The cells of a sweep: in a folder, or in memory where none is given."""

    def __init__(self, folder: Path | None = None):
        self.folder = folder
        self._packs: dict[str, Path | bytes] = {}  # the pack that holds each cell
        self._read: set[Path] = set()
        if folder is not None and (folder / MANIFEST).exists():
            read_manifest(folder)  # a folder of another version is refused before anything is computed
        self.refresh()

    def refresh(self) -> bool:
        """Look for packs that other processes have written, and say whether there are some."""
        there = set() if self.folder is None else {*(self.folder / CELLS).glob("*.npz")}
        new = sorted(there - self._read)
        for path in new:
            self._read.add(path)
            self._packs |= dict.fromkeys(_keys(path), path)
        return bool(new)

    def __contains__(self, key: str) -> bool:
        return key in self._packs

    def discard(self, keys: Iterable[str]) -> None:
        """Count cells as not there, so that they are computed again."""
        for key in keys:
            self._packs.pop(key, None)

    def contents(self, keys: Iterable[str]) -> Iterator[tuple[str, Content]]:
        """The results of the cells that are there, pack by pack."""
        for block in self.blocks(keys):
            yield from ((key, block.content(row)) for row, key in enumerate(block.keys))

    def blocks(self, keys: Iterable[str]) -> Iterator[CellBlock]:
        """The results of the cells that are there, in the blocks in which they are stored."""
        by_pack: dict[Path | bytes, list[str]] = {}
        for key in keys:
            if key in self._packs:
                by_pack.setdefault(self._packs[key], []).append(key)
        for pack, wanted in by_pack.items():
            yield from _blocks(pack, wanted)

    def save(self, keys: Sequence[str], pack: bytes) -> None:
        """Keep the results of some cells, which are one pack: whole or not at all."""
        if self.folder is None:
            self._packs |= dict.fromkeys(keys, pack)
            return
        name = hashlib.sha256(" ".join(keys).encode()).hexdigest()[:24]
        try:
            path = write_whole(make_folder(self.folder / CELLS) / f"{name}.npz", pack)
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise ComputationFailed(
                f"Finished cells cannot be written to {shown(self.folder)}: {reason}. Those that are there stay, and "
                "the same sweep goes on from them."
            ) from None
        self._read.add(path)
        self._packs |= dict.fromkeys(keys, path)

    def write_manifest(self, content: Mapping[str, Any]) -> None:
        """Write what the sweep is: its specification, its axes, and the keys of its cells.

        The grid of another sweep of the folder stays: the one that has all cells of the other is the description of the
        folder, and otherwise the new one. The other one is kept in a folder of its own (see `grid_folder`), also the
        smaller one, which another process may be computing.
        """
        if self.folder is None:
            return
        try:
            make_folder(self.folder)
            other = _other_grid(self.folder, content)
            if other is not None and _has_cells(other, content) and not _has_cells(content, other):
                _write(grid_folder(self.folder, content["spec"]), content)
            else:
                if other is not None:
                    _write(grid_folder(self.folder, other["spec"]), other)
                _write(self.folder, content)
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise InvalidInput(f"The folder {shown(self.folder)} cannot be written: {reason}.") from None
        for folder in (self.folder, self.folder / CELLS):
            if folder.is_dir():
                remove_drafts(folder)

    def keep_manifest(self, content: Mapping[str, Any]) -> None:
        """Write what the sweep is once more, if another process has put its own in its place at the same moment."""
        if self.folder is None or _other_grid(self.folder, content) is None:
            return
        own = grid_folder(self.folder, content["spec"])
        if not (own / MANIFEST).exists():
            with contextlib.suppress(OSError):  # the cells are there, and so is the result
                _write(own, content)


def grid_folder(folder: Path, spec: Mapping[str, Any]) -> Path:
    """Where the description of a sweep is kept if another one is that of the folder; it can be loaded like a folder."""
    return folder / GRIDS / hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def own_folder(folder: Path, spec: Mapping[str, Any]) -> Path:
    """The folder whose description is that of a sweep: the one it was run in, or one inside it."""
    own = grid_folder(folder, spec)
    is_other = (own / MANIFEST).exists() and grid_folder(folder, read_manifest(folder)["spec"]) != own
    return own if is_other else folder


def home(folder: Path) -> Path:
    """The folder that has the cells of a description."""
    is_inside = folder.parent.name == GRIDS and not (folder / CELLS).is_dir()
    return folder.parent.parent if is_inside else folder


def _write(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_whole(make_folder(folder) / MANIFEST, json.dumps({"format": FORMAT, **manifest}).encode())


def _other_grid(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The description of a folder, if it is that of another sweep."""
    if not (folder / MANIFEST).exists():
        return None
    other = read_manifest(folder)
    names = [grid_folder(folder, content["spec"]) for content in (other, manifest)]
    return None if names[0] == names[1] else other


def _has_cells(manifest: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a grid has all cells of another one."""
    return {*other["keys"]} <= {*manifest["keys"]}


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the sweep in a folder is, as `Store.write_manifest` wrote it."""
    path = folder / MANIFEST
    with parsing(path, fault="is not the description of a sweep"):
        content = json.loads(read_text(path, "description of a sweep", MAX_MANIFEST))
        version = content["format"]
    if version != FORMAT:
        raise InvalidInput(
            f"The sweep in {shown(folder)} has the layout {shown(version)}, but this version of twolayer reads "
            f"{FORMAT}: take the version that wrote it, or another folder."
        )
    return content


def _keys(path: Path) -> list[str]:
    """The cells of a pack; one that cannot be read counts as not there, and its cells are computed again."""
    try:
        return keys_in(path.read_bytes())
    except (OSError, ValueError):
        return []


def _blocks(pack: Path | bytes, wanted: list[str]) -> list[CellBlock]:
    try:
        return blocks_in(pack if isinstance(pack, bytes) else pack.read_bytes(), wanted)
    except (OSError, ValueError):
        return []
