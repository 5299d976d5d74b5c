"""Write files atomically, so that a reader never sees a part of one.

Every file of the package is built in memory and written by `write_whole`. A full disk is then an `OSError` here, never
a failure inside a library that was writing.
"""

import contextlib
import glob
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

# Other processes may create and remove the same folders; we retry this often.
ATTEMPTS = 10
# Drafts that are being written, and the number of active `held` blocks.
_drafts: set[Path] = set()
_state = threading.Condition()
_held = 0
_is_closed = False


def write_whole(path: Path, content: bytes) -> Path:
    """Write bytes to a file atomically.

    They are written to a draft of a unique name in the same folder, which is then renamed to ``path``. A reader never
    sees a partial file, and of several concurrent writers the last one wins.
    """
    with held():
        draft = path.with_name(f"{_beginning(path)}{_host()}.{os.getpid()}.{uuid.uuid4().hex}.part")
        _drafts.add(draft)
        try:
            with draft.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # some file systems only notice a full disk here
            os.replace(draft, path)
        finally:
            _remove(draft)
            _drafts.discard(draft)
    return path


def _beginning(path: Path) -> str:
    """Return the prefix of the names of a file's drafts; the host and the number of the writing process follow it."""
    return f".{path.name[:40]}."


def _host() -> str:
    """The name of this machine as a part of a file's name."""
    return socket.gethostname().translate({ord(character): "-" for character in "./\\"})


def remove_drafts(path: Path) -> None:
    """Remove drafts of ``path``, or of all files of a folder, that killed processes of this machine left.

    Drafts of running processes stay, and so do those of other machines, whose processes we cannot see.
    """
    folder, beginning = (path, ".") if path.is_dir() else (path.parent, _beginning(path))
    for draft in folder.glob(f"{glob.escape(beginning)}*.part"):
        *_, host, process, _, _ = ["", "", *draft.name.split(".")]
        if host == _host() and process.isdecimal() and not _is_running(int(process)):
            draft.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether a process of this number exists, as far as can be known without sending it a signal."""
    if os.name != "posix" or process == os.getpid():
        return True
    try:
        os.kill(process, 0)  # signal 0 only asks whether the process exists
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents, even while other processes create some of them."""
    for _ in range(ATTEMPTS - 1):
        # Another process may have created or removed one of the folders between two checks.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Delay an interruption of the command line until the block, which writes files that belong together, is done."""
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
    """Wait at most ``seconds`` until no file is being written, and refuse new ones: the process is about to end."""
    global _is_closed
    with _state:
        _is_closed = True
        _state.wait_for(lambda: _held == 0, seconds)
    discard_drafts()


def discard_drafts() -> None:
    """Remove the drafts that are not complete."""
    for draft in list(_drafts):
        _remove(draft)


def _remove(draft: Path) -> None:
    with contextlib.suppress(OSError):  # it was renamed already, was never written, or its folder no longer exists
        draft.unlink()
