"""Sweeps on the workers of Dask: those of this machine, or of a cluster that is running."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from twolayer.core import interrupts
from twolayer.core.errors import ComputationFailed, InvalidInput, first_line, shown
from twolayer.data.provenance import versions
from twolayer.sweeps import workers
from twolayer.sweeps.compute import Done, Job, compute
from twolayer.sweeps.query import environment
from twolayer.sweeps.runner import AbstractExecutor, Lost
from twolayer.sweeps.workers import dashboard, quiet, require_dask

if TYPE_CHECKING:
    from distributed import Client, Future

ADDRESS = "DASK_SCHEDULER_ADDRESS"
# What the variables that name certificates begin with.
TLS = "DASK_DISTRIBUTED__COMM__TLS__"
# Seconds until a scheduler must answer, between two looks for an interruption, and between two counts of the workers.
TIMEOUT, PAUSE, COUNT = 10.0, 0.2, 2.0


class OnCluster(AbstractExecutor):
    """Computes on the workers of a client.

    ``where`` is what numbers depend on there, as in `environment`; the workers are asked where it is left out. Workers
    may come and go: the portions follow their number, and each result says where it was computed.
    """

    def __init__(self, client: "Client", where: str | None = None):
        self.client = client
        self.where = common_environment(client) if where is None else where
        self._jobs: dict[Future, Sequence[Job]] = {}
        self.words = f", dashboard {client.dashboard_link}" if dashboard() is not None else ""
        self.slots, self.ahead = 1, 2
        self._seen = time.monotonic()
        self._next_count = self._seen
        self._count()

    def submit(self, jobs: Sequence[Job], is_together: bool) -> None:
        self._jobs[self.client.submit(compute, list(jobs), is_together, pure=False)] = jobs

    def next(self) -> Done | Lost:
        from distributed import wait

        while True:
            interrupts.check()
            try:
                self._count()  # also while results come without a pause
                with self.client.as_current():
                    looked: Any = wait(list(self._jobs), timeout=PAUSE, return_when="FIRST_COMPLETED")
                future = next(iter(looked.done))
                return self._answer(future, self._jobs.pop(future))
            except TimeoutError:
                if self.client.status not in ("running", "connecting"):
                    raise gone() from None
            except (OSError, CancelledError):  # the connection was closed
                raise gone() from None

    def _count(self) -> None:
        """Count the workers now and then, and give up when there has been none for long."""
        now = time.monotonic()
        if now < self._next_count:
            return
        self._next_count = now + COUNT
        number = len(self.client.scheduler_info(n_workers=-1)["workers"])
        if number:
            self._seen = now
            self.slots, self.ahead = number, 2 * number
        elif now > self._seen + workers.START:
            raise ComputationFailed(
                f"There has been no worker for {workers.START:.0f} seconds. What was finished is kept; the same sweep "
                "goes on from there."
            )

    def _answer(self, future: "Future", jobs: Sequence[Job]) -> Done | Lost:
        from distributed.scheduler import KilledWorker

        if future.status == "finished":
            done: Done = future.result()
            if done.where != self.where:
                raise InvalidInput(_unlike({"a worker that came later": done.where, "each of the others": self.where}))
            return done
        error: Any = future.exception() if future.status == "error" else CancelledError()
        if isinstance(error, KilledWorker):
            return Lost(jobs, error.allowed_failures + 1)
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
    """The error for a scheduler that does not answer any more."""
    return ComputationFailed("The scheduler is gone. What was finished is kept; the same sweep goes on from there.")


# ------------------------------------------------------------------------------------------- what the workers have


def common_environment(client: "Client") -> str:
    """What numbers depend on at the workers; refused where it is not the same at all of them."""
    try:
        answers: Any = client.run(environment, on_error="return")
    except (OSError, CancelledError):
        raise gone() from None
    environments: dict[str, str] = {}
    for address, answer in answers.items():
        if isinstance(answer, OSError):  # it died while it was asked
            continue
        if isinstance(answer, Exception):
            raise InvalidInput(
                f"The worker {address} cannot use twolayer ({type(answer).__name__}: {first_line(answer)}): install "
                "the version that this process has."
            )
        environments.setdefault(answer, address)
    if not environments:
        raise ComputationFailed("All workers are gone. What was finished is kept; the same sweep goes on from there.")
    if len(environments) > 1:
        raise InvalidInput(_unlike({address: answer for answer, address in environments.items()}))
    (where, address), own = *environments.items(), versions(["twolayer"])["twolayer"]
    theirs = json.loads(where)[0]["twolayer"]
    if theirs != own:
        raise InvalidInput(
            f"The worker {address} has twolayer {theirs}, but this process has {own}: install the same version."
        )
    return where


def _unlike(environments: Mapping[str, str]) -> str:
    """Why workers cannot share a sweep, in one sentence: what the first two of them have that differs."""
    stated = {}
    for who, where in environments.items():
        packages, device = json.loads(where)
        stated[who] = {**packages, "device": device}
    (one, first), (two, second) = list(stated.items())[:2]
    differing = [name for name in first if first[name] != second.get(name)]
    has = [", ".join(f"{name} {values.get(name, 'none')}" for name in differing) for values in (first, second)]
    return (
        f"Workers must have the same packages and devices, since numbers depend on them, but {one} has {has[0]}, and "
        f"{two} has {has[1]}."
    )


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
        _check_certificates(address)
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"The scheduler {shown(address)} cannot be reached: {first_line(error)}.") from None
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            try:
                client.wait_for_workers(1, timeout=workers.START)
            except TimeoutError:
                raise InvalidInput(f"The scheduler {shown(address)} has no workers.") from None
        yield client


def _check_certificates(address: str) -> None:
    """Refuse an encrypted connection without certificates, after which a client would wait for its end in vain."""
    from distributed.security import Security

    if address.startswith("tls://") and Security().get_connection_args("client").get("ssl_context") is None:
        raise InvalidInput(
            f"The scheduler {shown(address)} cannot be reached without certificates: set {TLS}CA_FILE, "
            f"{TLS}CLIENT__CERT and {TLS}CLIENT__KEY to their files."
        )
