"""Files that are there whole or not at all."""

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft to write, which takes the place of ``path`` when the block ends well: a reader never meets half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> Path:
    """Write bytes to a file, whole or not at all."""
    with whole(path) as draft:
        draft.write_bytes(content)
    return path


def remove_drafts(path: Path) -> None:
    """Remove what killed processes left of their drafts of ``path``; those of living processes stay."""
    beginning = f".{path.name}."
    for draft in path.parent.glob(f"{glob.escape(beginning)}*.part"):
        process = draft.name.removeprefix(beginning).split(".")[0]
        if process.isdecimal() and not _is_running(int(process)):
            draft.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether there is a process of this number, as far as one can ask without touching it."""
    if os.name != "posix" or process == os.getpid():
        return True
    try:
        os.kill(process, 0)  # the signal 0 is not sent: it asks
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
