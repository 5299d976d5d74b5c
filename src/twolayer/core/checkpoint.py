"""A long computation's place in its work, kept on disk: what was killed goes on from there and ends the same."""

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
from twolayer.core.files import make_folder, remove_drafts, write_whole

# Seconds between two savings: little is lost, and little is spent.
EVERY = 20.0
# The layout of the file and of what simulations keep in it. Raise it when either changes: older files are then not
# continued.
FORMAT = 3

# The name under which the part at work keeps its place.
_NOW = "now"
_RESULT = "result"


class Checkpoint:
    """Where a long computation keeps its place on disk, and how often.

    Killed at any moment, the same call goes on from the last saving and ends with the same numbers, bit for bit. A file
    that is damaged, or that belongs to another computation or another version of the packages, is renamed, and the work
    begins anew with a warning. The files are removed at the end.

    Parameters
    ----------
    path
        The file; for a verb that runs several simulations, the folder with a file for each. It need not exist.
    every
        Seconds between two savings; what took less is not saved.
    is_part
        Whether the computation belongs to a longer one, which needs its result again after a kill. Its result is then
        kept as well, and whoever does the longer one calls ``remove`` at its end.
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
        """The checkpoint that the argument of a verb asks for: a path alone means the usual interval."""
        return value if value is None or isinstance(value, Checkpoint) else cls(value)

    def part(self, name: str) -> "Checkpoint":
        """The file of one simulation in the folder of several."""
        part = Checkpoint(self.path / name, self.every, is_part=True)
        self._opened.append(part)
        return part

    def open(self, identity: Mapping[str, str]) -> "Place":
        """The place of the computation with this identity: its specification, and all that its numbers depend on."""
        place = Place(self.path, identity, self.every)
        self._opened.append(place)
        return place

    def remove(self) -> None:
        """Remove every file that was opened: the work is done."""
        for opened in self._opened:
            opened.remove()


class Place:
    """Arrays in one file that is there whole or not at all: those of finished parts, and of the part at work.

    The parts of a computation follow one another, as the phases of a schedule do. What is saved as the place belongs to
    the first part that is not finished.
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
        """The place that the part at work saved last; None when it is at its beginning."""
        return self._parts.get(_NOW)

    @property
    def is_due(self) -> bool:
        """Whether the last saving was long ago."""
        return time.monotonic() - self._last >= self.every

    def save(self, arrays: Mapping[str, Any]) -> None:
        """Keep the place of the part at work instead of the last one."""
        self._parts.pop(_NOW, None)
        self._write(self._parts | {_NOW: arrays})

    def part(self, name: str) -> dict[str, np.ndarray] | None:
        """The result of a finished part; None when it is not finished."""
        return self._parts.get(f"part {name}")

    def finish(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Keep the result of a part that is finished; the next one is at its beginning."""
        self._parts.pop(_NOW, None)
        self._parts[f"part {name}"] = dict(arrays)
        self._write_if_due()

    @property
    def result(self) -> dict[str, np.ndarray] | None:
        """The result of the whole; None when it is not finished."""
        return self._parts.get(_RESULT)

    def conclude(self, arrays: Mapping[str, Any]) -> None:
        """Keep the result of the whole instead of everything that led to it."""
        self._parts = {_RESULT: dict(arrays)}
        self._write_if_due()

    def remove(self) -> None:
        """The work is done, and its result is in better hands."""
        with contextlib.suppress(OSError):  # a disk that has become read-only is no reason to lose the result
            self.path.unlink(missing_ok=True)

    def _write_if_due(self) -> None:
        if self.is_due:
            self._write(self._parts)

    def _write(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the file; a disk that refuses it is no reason to end the work."""
        arrays = {f"{part}/{name}": array for part, each in parts.items() for name, array in each.items()}
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
                "computation goes on, but if it is killed, it begins where it was last kept.",
                CheckpointWarning,
                stacklevel=2,
            )

    def _read(self) -> dict[str, Any]:
        """What the file holds, part by part; nothing when there is none, or none that this computation may continue."""
        if not os.path.lexists(self.path):
            return {}
        try:
            if not self.path.is_file():  # a pipe would be waited for
                raise ValueError("not a file")
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            identity = dict(json.loads(str(arrays.pop("identity"))))
            parts: dict[str, Any] = {}
            for path, array in arrays.items():
                part, _, name = path.partition("/")
                parts.setdefault(part, {})[name] = array
        except Exception:  # bytes that nobody vouches for fail in many ways: zipfile, zlib, NumPy's headers, memory
            self._set_aside("damaged", "is damaged or of another format")
            return {}
        reason = _difference(identity, self.identity)
        if reason:
            self._set_aside("other", reason)
            return {}
        return parts

    def _set_aside(self, suffix: str, reason: str) -> None:
        """Rename the file, so that nothing of it is lost, and say so."""
        named = (self.path.with_name(f"{self.path.name}.{suffix}{number}") for number in ("", *range(2, 10_000)))
        aside = next(path for path in named if not os.path.lexists(path))
        try:
            self.path.rename(aside)
            ending = f"it was renamed to {aside.name!r}, and the computation begins anew"
        except OSError as error:
            ending = f"the computation begins anew, and the file cannot be renamed ({error.strerror})"
        warnings.warn(f"The checkpoint {str(self.path)!r} {reason}: {ending}.", CheckpointWarning, stacklevel=2)


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Why a file of one identity is not continued by a computation of another one; empty when they are the same."""
    differing = [name for name in ours if theirs.get(name) != ours[name]]
    versions = [name for name in differing if name != "computation"]
    if versions:
        before = ", ".join(f"{name} {theirs.get(name, 'unknown')}" for name in versions)
        here = ", ".join(f"{name} {ours[name]}" for name in versions)
        return f"was written with {before}, but here is {here}, whose numbers may differ"
    return "belongs to another computation" if differing else ""
