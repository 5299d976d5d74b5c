"""Save the progress of long computations on disk, so that one that was killed continues and gives the same numbers."""

import contextlib
import io
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twolayer.core.errors import CheckpointWarning, InvalidInput, shown
from twolayer.core.whole_files import make_folder, remove_drafts, write_whole

# Seconds between two saves: a kill loses little work, and saving takes little of the time.
EVERY = 20.0
# Version of the file's layout and of the state that simulations save in it. Raise it when either changes, so that
# older files are not continued.
FORMAT = 4

# Key of the saved state of the part that is running.
_NOW = "now"
# Beginning of the keys of its pieces that are finished.
_PIECE = "piece "
_RESULT = "result"


class Checkpoint:
    """Where on disk a long computation saves its progress, and how often.

    If the computation is killed, the same call continues from the last save and ends with the same numbers, bit for
    bit. A file that is damaged, or that belongs to another computation or to another version of the packages, is
    renamed, and the computation starts again with a warning. The files are removed at the end.

    Parameters
    ----------
    path
        Path of the file, or of the folder for a verb that runs several simulations. It need not exist.
    every
        Seconds between two saves; a computation that takes less time saves nothing.
    is_part
        Whether the computation is part of a longer one, which needs its result again after a kill. The result is then
        saved as well, and the longer computation calls ``remove`` at its end.
    """

    def __init__(self, path: str | Path, every: float | int = EVERY, is_part: bool = False):
        if not isinstance(path, str | Path) or not Path(path).name:
            raise InvalidInput(f"Argument `checkpoint` must be the path of a file or folder, but is {path!r}.")
        self.path = Path(path)
        if not isinstance(every, float | int) or isinstance(every, bool) or not 0.0 <= every < math.inf:
            raise InvalidInput(f"Argument `every` must be a finite number at least 0, but is {shown(every)}.")
        self.every = float(every)
        self.is_part = is_part
        self._opened: list[Checkpoint | Place] = []

    @classmethod
    def of(cls, value: "str | Path | Checkpoint | None") -> "Checkpoint | None":
        """Return the checkpoint for the argument of a verb; a plain path means the default interval."""
        return value if value is None or isinstance(value, Checkpoint) else cls(value)

    def part(self, name: str) -> "Checkpoint":
        """Return the checkpoint of one simulation, a file in the folder of this checkpoint."""
        part = Checkpoint(self.path / name, self.every, is_part=True)
        self._opened.append(part)
        return part

    def open(self, identity: Mapping[str, str]) -> "Place":
        """Open the saved progress of a computation; its identity is everything that its numbers depend on."""
        place = Place(self.path, identity, self.every)
        self._opened.append(place)
        return place

    def remove(self) -> None:
        """Remove every file that was opened; to be called when the computation is finished."""
        for opened in self._opened:
            opened.remove()


class Place:
    """The saved progress of one computation: one file, written atomically, with the arrays of its parts.

    The parts of a computation follow one another, as the phases of a schedule do. The file holds the results of
    finished parts, and the state of the first part that is not finished.
    """

    def __init__(self, path: Path, identity: Mapping[str, str], every: float):
        self.path = path
        self.identity = {"format": str(FORMAT), **identity}
        self.every = every
        self._last = time.monotonic()
        self._has_warned = False
        remove_drafts(path)
        self._parts = self._read()

    def load(self) -> dict[str, np.ndarray] | None:
        """Return the last saved state of the part that is running; None when it has saved nothing yet."""
        return self._parts.get(_NOW)

    @property
    def is_due(self) -> bool:
        """Whether the interval between two saves has passed."""
        return time.monotonic() - self._last >= self.every

    def save(self, arrays: Mapping[str, Any]) -> None:
        """Save the state of the part that is running, replacing the last one."""
        self._parts.pop(_NOW, None)
        self._write(self._parts | {_NOW: arrays})

    def part(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the result of a finished part; None when it is not finished."""
        return self._parts.get(f"part {name}")

    def finish(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Save the result of a finished part and discard its state and its pieces."""
        running = [key for key in self._parts if key == _NOW or key.startswith(_PIECE)]
        for key in running:
            del self._parts[key]
        self._parts[f"part {name}"] = dict(arrays)
        self._write_if_due()

    def piece(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the result of a finished piece of the part that is running; None when it is not finished."""
        return self._parts.get(_PIECE + name)

    def finish_piece(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Save the result of a finished piece of the part that is running and discard its state."""
        self._parts.pop(_NOW, None)
        self._parts[_PIECE + name] = dict(arrays)
        self._write_if_due()

    @property
    def result(self) -> dict[str, np.ndarray] | None:
        """The result of the whole computation; None when it is not finished."""
        return self._parts.get(_RESULT)

    def conclude(self, arrays: Mapping[str, Any]) -> None:
        """Save the result of the whole computation, replacing the results of its parts."""
        self._parts = {_RESULT: dict(arrays)}
        self._write_if_due()

    def remove(self) -> None:
        """Remove the file; to be called when the computation is finished and its result returned or saved."""
        with contextlib.suppress(OSError):  # a disk that has become read-only must not lose the result
            self.path.unlink(missing_ok=True)

    def _write_if_due(self) -> None:
        if self.is_due:
            self._write(self._parts)

    def _write(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the file; if the disk refuses it, warn once and continue the computation."""
        arrays = {f"{part}/{name}": array for part, named in parts.items() for name, array in named.items()}
        content = io.BytesIO()
        np.savez(content, identity=np.array(json.dumps(self.identity)), **arrays)
        try:
            make_folder(self.path.parent)
            write_whole(self.path, content.getvalue())
        except OSError as error:
            self._say_once(error)
        self._last = time.monotonic()

    def _say_once(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"The checkpoint {str(self.path)!r} cannot be written ({error.strerror or type(error).__name__}): the "
                "computation continues, but if it is killed, it starts again from the last successful save.",
                CheckpointWarning,
                stacklevel=2,
            )

    def _read(self) -> dict[str, Any]:
        """Read the parts in the file; empty when there is no file that this computation may continue."""
        if not os.path.lexists(self.path):
            return {}
        try:
            if not self.path.is_file():  # opening a pipe would block
                raise ValueError("not a file")
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            identity = dict(json.loads(str(arrays.pop("identity"))))
            parts: dict[str, Any] = {}
            for path, array in arrays.items():
                part, _, name = path.partition("/")
                parts.setdefault(part, {})[name] = array
        except Exception:  # a damaged file fails in many ways: zipfile, zlib, NumPy's headers, memory
            self._set_aside("damaged", "is damaged or of another format")
            return {}
        reason = _difference(identity, self.identity)
        if reason:
            self._set_aside("other", reason)
            return {}
        return parts

    def _set_aside(self, suffix: str, reason: str) -> None:
        """Rename the file, so that nothing in it is lost, and warn about it."""
        candidates = (self.path.with_name(f"{self.path.name}.{suffix}{number}") for number in ("", *range(2, 10_000)))
        new_path = next(path for path in candidates if not os.path.lexists(path))
        try:
            self.path.rename(new_path)
            ending = f"it was renamed to {new_path.name!r}, and the computation starts again"
        except OSError as error:
            ending = f"the computation starts again, and the file cannot be renamed ({error.strerror})"
        warnings.warn(f"The checkpoint {str(self.path)!r} {reason}: {ending}.", CheckpointWarning, stacklevel=2)


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Say why a file of one identity is not continued by a computation of another; empty if the two are equal."""
    differing = [name for name in ours if theirs.get(name) != ours[name]]
    versions = [name for name in differing if name != "computation"]
    if versions:
        written_with = ", ".join(f"{name} {theirs.get(name, 'unknown')}" for name in versions)
        current = ", ".join(f"{name} {ours[name]}" for name in versions)
        return f"was written with {written_with}, but this computation uses {current}, whose numbers may differ"
    return "belongs to another computation" if differing else ""
