"""JAX's persistent compilation cache for the tests: compiling is most of what they cost.

JAX writes an entry of its cache in place and never again. A worker that reads while another one writes would see half
an entry, and a process that is killed while it writes would leave half an entry for good. So every process writes
into a folder of its own, which begins with links to the shared entries, and shares its new entries when it ends: a
link appears whole or not at all.
"""

import hashlib
import os
import platform
import shutil
from pathlib import Path

import jax

LIMIT = 2 * 1024**3  # bytes; entries of programs that have changed are never asked for again
WORTH_KEEPING = 0.1  # seconds of compilation; reading an entry takes about a hundredth of a second


def machine_key() -> str:
    """Names what compiled code depends on besides the program: the versions, and what the processor can do."""
    try:
        information = Path("/proc/cpuinfo").read_text()
        features = next(line for line in information.splitlines() if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    text = "\n".join([jax.__version__, platform.machine(), features])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_running(process: str) -> bool:
    """Whether a process of this number exists."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True


class WorkerCache:
    """The cache of one process: a folder of its own beside the shared one.

    Parameters
    ----------
    folder
        Holds ``shared/`` and one ``worker-<process>/`` for each running process.
    """

    def __init__(self, folder: Path):
        self.shared = folder / "shared"
        self.own = folder / f"worker-{os.getpid()}"

    def open(self) -> None:
        """Make the folder of this process with what is shared, and remove those of processes that were killed."""
        for other in self.shared.parent.glob("worker-*"):
            if other == self.own or not is_running(other.name.removeprefix("worker-")):
                shutil.rmtree(other, ignore_errors=True)
        self.own.mkdir(parents=True)
        self.shared.mkdir(parents=True, exist_ok=True)
        entries = list(self.shared.iterdir())
        if sum(entry.stat().st_size for entry in entries) > LIMIT:
            for entry in entries:
                entry.unlink(missing_ok=True)
            return
        for entry in entries:
            os.link(entry, self.own / entry.name)

    def close(self) -> None:
        """Share the new entries, which are whole since nothing compiles any more, and remove the folder."""
        for entry in self.own.iterdir():
            try:
                os.link(entry, self.shared / entry.name)
            except FileExistsError:
                continue
        shutil.rmtree(self.own, ignore_errors=True)

    def use(self) -> None:
        """Let JAX of this process, and not of processes that it starts, read and write here."""
        jax.config.update("jax_compilation_cache_dir", str(self.own))
        # XLA's own caches for GPUs would put the name of this folder into the key of every entry.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
