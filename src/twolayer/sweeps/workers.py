"""Workers on this machine, one for each GPU where there are some.

They are processes of ``dask worker``. `distributed.LocalCluster` starts its own by importing the script of the user
once more, which then has to be written for it. Each worker has cores of its own, and Ctrl-C does not reach it; it is
started again when it dies, and ends when the scheduler is gone.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.machine import cores
from twolayer.specification.fields import count

if TYPE_CHECKING:
    from distributed import Client

# Seconds until workers must be there, and between two looks for dead ones.
START, WATCH = 120.0, 1.0
# Deaths of workers after which what they computed counts as a possible cause.
DEATHS = 3


def has_dask() -> bool:
    """Whether Dask's scheduler is installed."""
    return importlib.util.find_spec("distributed") is not None


def require_dask() -> None:
    """Refuse what needs Dask where it is not installed."""
    if not has_dask():
        raise InvalidInput("Workers need Dask, which is not installed: pip install 'twolayer[cluster]'.")


def number_of(workers: int, devices: Sequence[str]) -> int:
    """How many workers are started where so many are asked for: one for each GPU at most, where there are some."""
    workers = count("workers", high=1024)(workers)
    return min(workers, len(devices)) if devices else workers


@contextlib.contextmanager
def local(workers: int) -> Iterator["Client"]:
    """A client of workers on this machine, which end with the block."""
    require_dask()
    from distributed import Client, LocalCluster

    devices = gpus()
    number = number_of(workers, devices)
    quiet()
    address: Any = dashboard()
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    with contextlib.ExitStack() as stack:
        cluster: Any = stack.enter_context(
            LocalCluster(
                n_workers=0,
                processes=True,
                dashboard_address=address,
                silence_logs=logging.CRITICAL,
                scheduler_kwargs={"allowed_failures": DEATHS - 1},
            )
        )
        client = stack.enter_context(Client(cluster, set_as_default=False))
        limit = str(int(0.9 * _memory() / number))
        starts = []
        for place in range(number):
            share = own[place::number] or own
            device = {"CUDA_VISIBLE_DEVICES": devices[place]} if devices else {}
            starts.append(functools.partial(_start, cluster.scheduler_address, limit, share, device))
        stack.enter_context(_kept_running(starts))
        try:
            client.wait_for_workers(number, timeout=START)
        except TimeoutError:
            raise ComputationFailed(f"The {number} workers did not start within {START:.0f} seconds.") from None
        yield client


@contextlib.contextmanager
def _kept_running(starts: "Sequence[Callable[[], subprocess.Popen[bytes]]]") -> Iterator[None]:
    """Start workers, and start again those that end before the block does.

    What a worker watches over is started again by the worker; but nobody watches over the worker itself.
    """
    running: list[subprocess.Popen[bytes]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH):
            for place, start in enumerate(starts):
                if running[place].poll() is not None:
                    with contextlib.suppress(OSError):  # the machine is short of memory: try again at the next look
                        _ended(running[place])  # the process that it watched over
                        running[place] = start()

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        for start in starts:
            running.append(start())
        watcher.start()
        yield
    finally:
        is_over.set()
        if watcher.ident is not None:
            watcher.join()
        for process in running:
            _ended(process)


def _start(address: str, memory: str, share: Sequence[int], device: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start a worker on its own cores; ``device`` are variables that name its GPU."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--nworkers", "1"]
    command += ["--memory-limit", memory, "--no-dashboard", "--death-timeout", "20"]
    threads = {name: str(len(share)) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")}
    # `MALLOC_TRIM_THRESHOLD_` is what Dask sets as well; its own messages are those of a server, and help nobody here.
    variables = os.environ | threads | device | {"DASK_LOGGING__DISTRIBUTED": "critical"}
    with _on_cores(share):
        return subprocess.Popen(
            command, env=variables, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


@contextlib.contextmanager
def _on_cores(share: Sequence[int]) -> Iterator[None]:
    """Let processes that this thread starts inherit some of the cores."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, share)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _ended(process: "subprocess.Popen[bytes]") -> None:
    """End a worker, and the process that it watches over."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 15)
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _memory() -> int:
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


def dashboard() -> str | None:
    """An address of the dashboard where what it is drawn with is installed."""
    return "127.0.0.1:0" if importlib.util.find_spec("bokeh") is not None else None


def quiet() -> None:
    """Silence the messages of Dask's servers: what matters to a sweep is said by it."""
    for part in ("", ".client", ".comm", ".core", ".nanny", ".scheduler", ".worker"):
        logging.getLogger(f"distributed{part}").setLevel(logging.CRITICAL)


def gpus() -> list[str]:
    """The GPUs that JAX would use, as CUDA names them; found without touching them."""
    if not any(importlib.util.find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin")):
        return []
    if os.environ.get("JAX_PLATFORMS", "cuda").split(",")[0] not in ("cuda", "gpu", ""):
        return []
    stated = os.environ.get("CUDA_VISIBLE_DEVICES")
    if stated is not None:
        return [name.strip() for name in stated.split(",") if name.strip()]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False).stdout
    return [str(number) for number, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]
