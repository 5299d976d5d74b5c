"""Files that are there whole or not at all.

Every file of the package is made in memory and written by `write_whole`: a full disk is then an `OSError` of ours and
never a failure inside a library that was writing.
"""

import contextlib
import glob
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

# Others may make and remove folders on our way; so often we begin anew.
ATTEMPTS = 10
# Drafts that are being written, and how many blocks ask not to be cut short.
_drafts: set[Path] = set()
_state = threading.Condition()
_held = 0
_is_closed = False


def write_whole(path: Path, content: bytes) -> Path:
    """Write bytes to a file, whole or not at all.

    They go to a draft beside it, of a name that no other call has, which then takes the place of ``path``: a reader
    never meets half of it, and of several that write one path at a time the last one wins.
    """
    with held():
        draft = path.with_name(f"{_beginning(path)}{os.getpid()}.{uuid.uuid4().hex}.part")
        _drafts.add(draft)
        try:
            with draft.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # some file systems only find out now that there is no space
            os.replace(draft, path)
        finally:
            _remove(draft)
            _drafts.discard(draft)
    return path


def _beginning(path: Path) -> str:
    """How the names of drafts of a file begin; the number of the process that writes comes next."""
    return f".{path.name[:40]}."


def remove_drafts(path: Path) -> None:
    """Remove what killed processes left of their drafts of ``path``; those of living processes stay."""
    beginning = _beginning(path)
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


def make_folder(folder: Path) -> Path:
    """Make a folder and those above it, whoever else makes some of them at the same time."""
    for _ in range(ATTEMPTS - 1):
        # Between two looks at one of them another process may have made it, or removed it again.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Files that belong together: an interruption of the command line waits until the block is done."""
    global _held
    with _state:
        _state.wait_for(lambda: not _is_closed or _held > 0)
        _held += 1
    try:
        yield
    finally:
        with _state:
            _held -= 1
            _state.notify_all()


def close(seconds: float) -> None:
    """Wait until nothing is being written, so long at most, and let nothing new begin: the process is about to end."""
    global _is_closed
    with _state:
        _is_closed = True
        _state.wait_for(lambda: _held == 0, seconds)
    discard_drafts()


def discard_drafts() -> None:
    """Remove what is half-written."""
    for draft in list(_drafts):
        _remove(draft)


def _remove(draft: Path) -> None:
    with contextlib.suppress(OSError):  # it has taken its place already, or never began, or its folder is gone
        draft.unlink()
