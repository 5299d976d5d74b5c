"""Sweeps on Dask: workers on this machine, one for each GPU where there are some, or a cluster that is running.

Workers on this machine are processes of ``dask worker``. `distributed.LocalCluster` starts its own by importing the
script of the user once more, which then has to be written for it. Each worker has cores of its own, and Ctrl-C does not
reach it; it ends when the scheduler is gone.
"""

import contextlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from twolayer.core import interrupts
from twolayer.core.errors import ComputationFailed, InvalidInput, first_line, shown
from twolayer.core.machine import cores
from twolayer.specification.fields import count
from twolayer.sweeps.compute import Done, Job, compute
from twolayer.sweeps.runner import AbstractExecutor, Lost

if TYPE_CHECKING:
    from distributed import Client, Future

ADDRESS = "DASK_SCHEDULER_ADDRESS"
# Seconds until a scheduler must answer, until workers must be there, and between two looks for an interruption.
TIMEOUT, START, PAUSE = 10.0, 120.0, 0.2
# Deaths of workers after which what they computed counts as the cause.
DEATHS = 3
KILLED = (
    f"It killed its worker {DEATHS} times, probably because it needs more memory than a worker has: give it fewer "
    "replicas or save points, or workers with more memory."
)


def has_dask() -> bool:
    """Whether Dask's scheduler is installed."""
    return importlib.util.find_spec("distributed") is not None


def require_dask() -> None:
    """Refuse what needs Dask where it is not installed."""
    if not has_dask():
        raise InvalidInput("Workers need Dask, which is not installed: pip install 'twolayer[cluster]'.")


class OnCluster(AbstractExecutor):
    """Computes on the workers of a client."""

    def __init__(self, client: "Client"):
        self.client = client
        self.slots = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
        self.ahead = 2 * self.slots
        self._jobs: dict[Future, Sequence[Job]] = {}
        self.words = f", dashboard {client.dashboard_link}" if _dashboard() is not None else ""

    def submit(self, jobs: Sequence[Job], is_together: bool) -> None:
        self._jobs[self.client.submit(compute, list(jobs), is_together, pure=False)] = jobs

    def next(self) -> Done | Lost:
        from distributed import wait

        while True:
            interrupts.check()
            try:
                with self.client.as_current():
                    looked: Any = wait(list(self._jobs), timeout=PAUSE, return_when="FIRST_COMPLETED")
                future = next(iter(looked.done))
                return self._answer(future, self._jobs.pop(future))
            except TimeoutError:
                if self.client.status not in ("running", "connecting"):
                    raise gone() from None
            except (OSError, CancelledError):  # the connection was closed
                raise gone() from None

    def _answer(self, future: "Future", jobs: Sequence[Job]) -> Done | Lost:
        from distributed.scheduler import KilledWorker

        if future.status == "finished":
            return future.result()
        error: Any = future.exception() if future.status == "error" else CancelledError()
        if isinstance(error, KilledWorker):
            return Lost(jobs, KILLED)
        if future.status == "error":  # what a cell raises stands in its result: this is the cluster's own
            raise ComputationFailed(
                f"A worker could not compute its cells: {type(error).__name__}: {first_line(error)}. What was finished "
                "is kept; the same sweep goes on from there."
            )
        raise gone()

    def cancel(self) -> None:
        with contextlib.suppress(Exception):
            self.client.cancel(list(self._jobs), force=True)
        self._jobs.clear()


def gone() -> ComputationFailed:
    """What is raised where the scheduler does not answer any more."""
    return ComputationFailed("The scheduler is gone. What was finished is kept; the same sweep goes on from there.")


# ------------------------------------------------------------------------------------------------------- clusters


@contextlib.contextmanager
def connected(address: str) -> Iterator["Client"]:
    """A client of a scheduler that is running; the configuration of Dask says by which certificates."""
    require_dask()
    from distributed import Client

    if not isinstance(address, str) or not address.strip():
        raise InvalidInput(f"Argument `scheduler` must be an address such as tcp://host:8786, but is {shown(address)}.")
    quiet()
    try:
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"The scheduler {shown(address)} cannot be reached: {first_line(error)}.") from None
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            try:
                client.wait_for_workers(1, timeout=START)
            except TimeoutError:
                raise InvalidInput(f"The scheduler {shown(address)} has no workers.") from None
        yield client


@contextlib.contextmanager
def local(workers: int) -> Iterator["Client"]:
    """A client of workers on this machine, which end with the block."""
    require_dask()
    from distributed import Client, LocalCluster

    workers = count("workers", high=1024)(workers)
    quiet()
    devices = gpus()
    number = min(workers, len(devices)) if devices else workers
    address: Any = _dashboard()
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    with contextlib.ExitStack() as stack:
        cluster: Any = stack.enter_context(
            LocalCluster(n_workers=0, processes=True, dashboard_address=address, silence_logs=logging.CRITICAL)
        )
        client = stack.enter_context(Client(cluster, set_as_default=False))
        limit = str(int(0.9 * _memory() / number))
        for place in range(number):
            share = own[place::number] or own
            device = {"CUDA_VISIBLE_DEVICES": devices[place]} if devices else {}
            stack.callback(_ended, _start(cluster.scheduler_address, limit, share, device))
        try:
            client.wait_for_workers(number, timeout=START)
        except TimeoutError:
            raise ComputationFailed(f"The {number} workers did not start within {START:.0f} seconds.") from None
        yield client


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


def _dashboard() -> str | None:
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


def asked_of_worker(client: "Client", question: Callable[[], str]) -> str:
    """The answer of some worker to a question that only it can answer."""
    try:
        return str(client.submit(question, pure=False).result())
    except (OSError, CancelledError):
        raise gone() from None
