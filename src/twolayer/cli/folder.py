"""Where a command writes: the choice of the folder, and whether it can be written before time is spent."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from twolayer.core.checkpoint import EVERY, Checkpoint
from twolayer.core.errors import InvalidInput, shown
from twolayer.core.files import held, remove_drafts

RESULTS = Path("results")


def default_folder(stem: str, content_hash: str) -> Path:
    """The folder for a specification that names none: the same specification always gives the same one."""
    return RESULTS / f"{stem}-{content_hash[:8]}"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, and leave nothing behind.

    It is tried rather than asked: permission bits say yes to root even where the file system says no. What is not there
    yet is tried under a parent of a name of its own: the folders themselves may be what another process makes just now.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"The folder {shown(folder)} cannot be written: it is a file.")
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        there = missing[-1].parent if missing else folder
        with held():
            trial = Path(tempfile.mkdtemp(prefix=".twolayer-", dir=there))
            try:
                inside = trial / folder.relative_to(there)
                inside.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=inside):
                    pass
            finally:
                shutil.rmtree(trial, ignore_errors=True)
    except OSError as error:
        raise InvalidInput(f"The folder {shown(folder)} cannot be written: {error.strerror}.") from None


def checkpoint_in(folder: Path, every: float | None) -> Checkpoint:
    """Where the simulations of a command keep their places: in the folder of its results, until these are written."""
    if every is not None and not (0.0 <= every < float("inf")):
        raise InvalidInput(f"Option `--checkpoint-every` must be a number of seconds of at least 0, but is {every}.")
    return Checkpoint(folder / "checkpoint", EVERY if every is None else every, is_part=True)


def tidy(folder: Path, checkpoint: Checkpoint, files: Iterable[str] = ()) -> None:
    """Remove what a command that is done needs no more: its places, and what was left by one that was killed."""
    checkpoint.remove()
    for name in files:
        remove_drafts(folder / name)
    for empty in (checkpoint.path, folder, *(parent for parent in folder.parents if parent == RESULTS)):
        with contextlib.suppress(OSError):  # it holds something, or was never made
            empty.rmdir()
