"""The cache of compiled programs on disk, so that a second process compiles none.

JAX has a cache for this, but it writes an entry in place and never again: a process that reads while another one writes
would see half an entry, and a process that is killed while it writes would leave half an entry for good. So every
process writes into a folder of its own, which begins with links to the shared entries, and shares its new entries when
it ends: a link appears whole or not at all. What a killed process had finished is shared by the next one.
"""

import atexit
import contextlib
import hashlib
import importlib
import os
import platform
import shutil
import socket
import threading
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

# Bytes; the oldest entries go, since programs that have changed are never asked for again.
LIMIT = 2**30
# Seconds after which folders are removed: those of processes of other machines that share the disk, and those for
# versions and processors that nobody has used.
FORGOTTEN, UNUSED = 7 * 86400.0, 90 * 86400.0
# Levels below which XLA writes no messages: what JAX sets when it is imported, and the one without errors.
LEVEL_OF_JAX, FATAL = "1", "3"
# The sizes of shared entries, one line each: one that has another size is damaged.
INDEX = "sizes"


def cache_folder() -> Path:
    """The folder for what can be made or downloaded again, below XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twolayer"


def machine_key() -> str:
    """Names what compiled code depends on besides the program: the versions, and what the processor can do."""
    import jax

    try:
        information = Path("/proc/cpuinfo").read_text()
        features = next(line for line in information.splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    text = "\n".join([jax.__version__, platform.machine(), features])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class ProgramCache:
    """The cache of one process: a folder of its own beside the shared one.

    Parameters
    ----------
    folder
        Holds ``shared/``, ``native/`` and one ``worker-<machine>-<process>/`` for each running process.
    """

    def __init__(self, folder: Path):
        self.shared = folder / "shared"
        self.native = folder / "native"  # code compiled by numba, whose own cache is safe for several processes
        self.own = folder / f"worker-{socket.gethostname()}-{os.getpid()}"

    def open(self) -> None:
        """Make the folder of this process with what is shared, and take over what killed processes had finished."""
        self.shared.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.own, ignore_errors=True)
        for other in self.shared.parent.glob("worker-*"):
            if other != self.own and _is_abandoned(other):
                self._take_over(other)
        _trim(self.native)
        self.own.mkdir(parents=True)
        for entry in self._sound():
            with contextlib.suppress(FileNotFoundError):  # another process may clean up at the same time
                _link(entry, self.own / entry.name)

    def close(self) -> None:
        """Share the new entries, which are whole since nothing compiles any more, and remove the folder."""
        with contextlib.suppress(OSError):
            self._share(self.own.iterdir())
        shutil.rmtree(self.own, ignore_errors=True)

    def use(self) -> None:
        """Let JAX of this process, and not of processes that it starts, read and write here."""
        import jax
        from jax.experimental.compilation_cache import compilation_cache

        jax.config.update("jax_compilation_cache_dir", str(self.own))
        # XLA's own caches for GPUs would put the name of this folder into the key of every entry.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
        # Reading an entry takes two thousandths of a second, compiling the smallest program more.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        compilation_cache.reset_cache()  # JAX decides at its first compilation whether there is a cache

    def _sound(self) -> list[Path]:
        """The shared entries of the size that they had when they were shared, the newest ones within the limit."""
        sizes = _sizes(self.shared / INDEX)
        entries, room = [], LIMIT
        described = [(entry.stat(), entry) for entry in self.shared.iterdir() if entry.name != INDEX]
        for status, entry in sorted(described, key=lambda pair: -pair[0].st_mtime):
            room -= status.st_size
            if room < 0 or sizes.get(entry.name) != status.st_size:
                entry.unlink(missing_ok=True)
            else:
                entries.append(entry)
        return entries

    def _share(self, entries: Iterable[Path]) -> None:
        lines = []
        for entry in entries:
            with contextlib.suppress(FileExistsError):
                _link(entry, self.shared / entry.name)
                lines.append(f"{entry.stat().st_size} {entry.name}\n")
        if lines:
            # One write to the end of a file is whole, also where several processes write.
            with (self.shared / INDEX).open("ab", buffering=0) as index:
                index.write("".join(lines).encode())

    def _take_over(self, other: Path) -> None:
        """Share what a killed process left, but for its newest entry, which it may have been writing."""
        with contextlib.suppress(OSError):
            entries = sorted(other.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)
            self._share(entries[:-1])
        shutil.rmtree(other, ignore_errors=True)


def _trim(folder: Path) -> None:
    """Remove the oldest files of a folder that is larger than the limit, until it has half of that size.

    A process that is about to read one of them compiles it again.
    """
    with contextlib.suppress(OSError):
        described = [(file.stat(), file) for file in folder.rglob("*") if file.is_file()]
        if sum(status.st_size for status, _ in described) > LIMIT:
            room = LIMIT // 2
            for status, file in sorted(described, key=lambda pair: -pair[0].st_mtime):
                room -= status.st_size
                if room < 0:
                    file.unlink(missing_ok=True)


def _link(entry: Path, place: Path) -> None:
    try:
        os.link(entry, place)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # a file system without links
        draft = place.with_name(f"{place.name}.{os.getpid()}.part")
        shutil.copyfile(entry, draft)
        os.replace(draft, place)


def _sizes(index: Path) -> dict[str, int]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        pairs = [line.split(" ", 1) for line in index.read_text().splitlines()]
        return {pair[1]: int(pair[0]) for pair in pairs if len(pair) == 2 and pair[0].isdecimal()}
    return {}


def _is_abandoned(folder: Path) -> bool:
    """Whether the process of a folder has ended; that of another machine counts as ended after a week."""
    machine, _, process = folder.name.removeprefix("worker-").rpartition("-")
    if machine != socket.gethostname():
        return _is_old(folder, FORGOTTEN)
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return True
    except PermissionError:
        return False
    return False


def _is_old(folder: Path, age: float) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - folder.stat().st_mtime > age
    return False


def keep() -> ProgramCache | None:
    """Keep the programs of this process in the user's cache folder, unless the environment says otherwise.

    ``TWOLAYER_CACHE=off`` keeps none, and ``TWOLAYER_CACHE=FOLDER`` keeps them there. A cache that the user has given
    to JAX stays. None are kept where XLA would report every one that it reads as an error (see `_is_silent`).
    """
    with _lock:
        return _kept()


_lock = threading.Lock()


@lru_cache(maxsize=1)
def _kept() -> ProgramCache | None:
    import jax

    stated = os.environ.get("TWOLAYER_CACHE", "")
    is_off = stated.lower() in ("off", "0", "no", "false")
    if is_off or getattr(jax.config, "jax_compilation_cache_dir", None) or not _is_silent():
        return None
    try:
        folder = Path(stated or cache_folder() / "programs").expanduser()
        cache = ProgramCache(folder / machine_key())
        cache.open()
        os.utime(cache.shared.parent)
        for other in folder.iterdir():
            if (other / "shared").is_dir() and _is_old(other, UNUSED):
                shutil.rmtree(other, ignore_errors=True)
        cache.use()
    except (OSError, RuntimeError):  # no home, no room, no permission: programs are compiled as if there were no cache
        return None
    atexit.register(cache.close)
    return cache


def _is_silent() -> bool:
    """Let XLA not report every program that it reads from disk as an error; whether that could be done.

    It reads TF_CPP_MIN_LOG_LEVEL when JAX is imported, which is 3 if this package was imported first, and 1 if JAX was.
    Another level is the user's wish. The level can be set later where jaxlib has a function for it.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", LEVEL_OF_JAX)
    if level == LEVEL_OF_JAX:
        try:
            utils = importlib.import_module("jaxlib.utils")
            utils.absl_set_min_log_level(int(FATAL))
        except (ImportError, AttributeError):
            return False
    return level in (LEVEL_OF_JAX, FATAL)
