"""The common runner of sweeps: it hands out cells in portions of about a second and keeps what comes back.

Where the work is done is the business of an executor: in this process, or on the workers of a cluster. The numbers of a
cell do not depend on it, nor on the cells that are computed with it.
"""

import abc
import random
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from twolayer.core import interrupts
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.memory_limit import available_memory
from twolayer.core.precision import double
from twolayer.sweeps.compute import Done, Job, batch_key, compute
from twolayer.sweeps.content import CellStatus, Content, packed
from twolayer.sweeps.sweep_store import Store

# Seconds of a portion, and how many cells the first one of a kind has: together, or each by itself.
SECONDS, FIRST_TOGETHER = 1.0, 32
# The most by which a portion is larger or smaller than the last one.
GROWTH = 4.0
# The most cells of a portion, and the share of the memory that their results may take.
MOST, MEMORY_SHARE = 4096, 0.05
# Why a cell is given up.
KILLED = (
    "It killed its worker {} times while nothing else was computed, probably because it needs more memory than a "
    "worker has: give it fewer replicas or save points, or workers with more memory."
)
# Seconds after which workers are considered, and seconds of work that they are worth.
PATIENCE, WORTH = 5.0, 30.0


class Lost(NamedTuple):
    """A portion that a worker had each of the so many times when one died; other portions may have killed it."""

    jobs: Sequence[Job]
    deaths: int


class AbstractExecutor(abc.ABC):
    """Where portions of a sweep are computed."""

    slots: int  # portions that are computed at once
    ahead: int  # portions that are handed out at once
    words: str = ""  # where the work can be watched, after a comma

    @abc.abstractmethod
    def submit(self, jobs: Sequence[Job], is_together: bool) -> None:
        """Begin to compute a portion, whose cells are computed together or one by one."""

    @abc.abstractmethod
    def next(self) -> Done | Lost:
        """Wait for a portion that was submitted; raises `KeyboardInterrupt` when the user stops the work."""

    def cancel(self) -> None:
        """Cancel the portions that were submitted."""
        return None

    def grown(self, seconds: float) -> "AbstractExecutor":
        """The executor for the rest of the work, of which so many seconds are left; nothing is submitted now."""
        return self


class InProcess(AbstractExecutor):
    """Computes in this process, one portion after the other.

    ``more`` makes an executor that long work is worth. Long cells keep their ``places``, where these are given.
    """

    slots = ahead = 1

    def __init__(self, more: "Callable[[], AbstractExecutor] | None" = None, places: Checkpoint | None = None) -> None:
        self._jobs: deque[tuple[Sequence[Job], bool]] = deque()
        self._places = places
        self._more = more
        self._began = time.monotonic()

    def submit(self, jobs: Sequence[Job], is_together: bool) -> None:
        self._jobs.append((jobs, is_together))

    def next(self) -> Done | Lost:
        interrupts.check()
        return compute(*self._jobs.popleft(), self._places)

    def grown(self, seconds: float) -> AbstractExecutor:
        is_long = time.monotonic() - self._began > PATIENCE and seconds > WORTH
        return self._more() if is_long and self._more is not None and not self._jobs else self


class Counts:
    """How many cells of a sweep were stored before, were computed, or failed, and are running."""

    def __init__(self, jobs: int, stored: int, noun: str = "cells"):
        self.noun = noun
        self.jobs, self.stored, self.computed, self.failed, self.running = jobs, stored, 0, 0, 0
        self.where = ""

    def done(self, statuses: Sequence[int]) -> None:
        """Count cells that were computed, by how they ended."""
        self.computed += len(statuses)
        self.failed += sum(status != CellStatus.DONE for status in statuses)

    def found(self, keys: Sequence[str]) -> Sequence[str]:
        """Count cells that another process has computed."""
        self.jobs -= len(keys)
        self.stored += len(keys)
        return keys

    @property
    def words(self) -> str:
        """The counts in words."""
        before = f", {self.stored} there already" if self.stored else ""
        counted = f"{self.computed} of {self.jobs} {self.noun}{before}"
        return f"{counted}, {self.running} at work, {self.failed} failed{self.where}"


class _Group:
    """Cells of one kind that wait, and the seconds that one of them takes."""

    def __init__(self, is_together: bool):
        self.jobs: deque[Job] = deque()
        self.is_together = is_together
        self.size = FIRST_TOGETHER if is_together else 1
        self.seconds = 0.0  # that the fastest portion took for a cell
        self.portions = 0

    def portion(self, slots: int) -> list[Job]:
        """The next cells: about a second of work, and no more than leaves some for every slot at the end."""
        even = -(-len(self.jobs) // (2 * slots)) if slots > 1 else len(self.jobs)
        size = max(1, min(self.size, even, MOST, _fitting(self.jobs[0])))
        return [self.jobs.popleft() for _ in range(min(size, len(self.jobs)))]

    def measured(self, done: Done) -> None:
        """Learn the time of a cell and the size of a portion; the first one, which also compiles, says nothing."""
        self.portions += 1
        if self.portions == 1:
            return
        seconds = done.seconds / len(done.keys)
        self.seconds = seconds if self.portions == 2 else min(self.seconds, seconds)
        growth = min(max(SECONDS / max(done.seconds, 1e-6), 1.0 / GROWTH), GROWTH)
        self.size = max(1, round(growth * len(done.keys)))

    @property
    def left(self) -> float:
        """The seconds of work that wait, as far as they are known."""
        return len(self.jobs) * self.seconds


class _Waiting:
    """The cells that wait: those of each kind by turns, and after all of them those that may kill their worker."""

    def __init__(self, jobs: Sequence[Job]):
        self.kinds: dict[str, _Group] = {}  # by the key of each cell
        groups: dict[Hashable, _Group] = {}
        with double():
            for job in jobs:
                key = batch_key(job.query)
                group = groups.setdefault(_kind(job) if key is None else key, _Group(key is not None))
                group.jobs.append(job)
                self.kinds[job.key] = group
        self.groups = deque(groups.values())
        self.suspects: deque[Sequence[Job]] = deque()
        self.is_trial = False  # whether a suspect is computed now

    def __bool__(self) -> bool:
        return bool(self.groups or self.suspects)

    @property
    def left(self) -> float:
        """The seconds of work that wait, as far as they are known."""
        return sum((group.left for group in self.groups), 0.0)

    def drop(self, store: Store) -> list[str]:
        """Give up cells whose results another process has stored since we looked, and give back their keys.

        Two processes that work on one sweep would do the same cells again and again: we go on at a random place.
        """
        if not store.refresh():
            return []
        contents = []
        for group in list(self.groups):
            there = [job.key for job in group.jobs if job.key in store]
            if there:
                contents += there
                group.jobs = deque(job for job in group.jobs if job.key not in store)
                group.jobs.rotate(random.randrange(1 + len(group.jobs)))
            if not group.jobs:
                self.groups.remove(group)
        return contents

    def portion(self, slots: int, has_running: bool) -> tuple[Sequence[Job], bool] | None:
        """The next cells and whether they are computed together, if there are some to compute beside those running.

        A suspect has all workers for itself, so that it can be blamed for nothing but its own work.
        """
        if self.groups:
            group = self.groups[0]
            jobs = group.portion(slots)
            self.groups.rotate(-1)
            if not group.jobs:
                self.groups.remove(group)
            return jobs, group.is_together
        if has_running or not self.suspects:
            return None
        self.is_trial = True
        jobs = self.suspects.popleft()
        return jobs, self.kinds[jobs[0].key].is_together and len(jobs) > 1

    def lost(self, jobs: Sequence[Job]) -> bool:
        """Put back the cells of a lost portion; a single one that was lost although nothing else ran is condemned."""
        if not self.is_trial:
            self.suspects.append(jobs)
        elif len(jobs) == 1:
            return True
        else:
            self.suspects += jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]
        return False


def run_jobs(
    jobs: Sequence[Job],
    executor: AbstractExecutor,
    store: Store,
    tell: Callable[[Counts], None],
    counts: Counts,
    arrived: Callable[[Sequence[str]], None] = lambda keys: None,
) -> None:
    """Compute cells and keep their results, after which ``arrived`` is called with their keys.

    An interruption leaves what is stored and raises `KeyboardInterrupt`.
    """
    waiting, running, looked = _Waiting(jobs), 0, time.monotonic()
    try:
        while waiting or running:
            if time.monotonic() - looked > SECONDS:
                looked = time.monotonic()
                arrived(counts.found(waiting.drop(store)))
            if not running:
                executor = executor.grown(waiting.left)
            while running < executor.ahead and (portion := waiting.portion(executor.slots, running > 0)) is not None:
                executor.submit(*portion)
                running += 1
                counts.running += len(portion[0])
            if not running:
                break
            answer = executor.next()
            running -= 1
            if isinstance(answer, Lost):
                counts.running -= len(answer.jobs)
                if not waiting.lost(answer.jobs):
                    continue
                answer = _condemned(answer)
            else:
                counts.running -= len(answer.keys)
                waiting.kinds[answer.keys[0]].measured(answer)
            store.save(answer.keys, answer.pack)
            counts.done(answer.statuses)
            arrived(answer.keys)
            counts.where = executor.words
            tell(counts)
    except BaseException:
        executor.cancel()
        raise


def _condemned(lost: Lost) -> Done:
    """The result of a cell that killed its workers while nothing else was computed."""
    key = lost.jobs[0].key
    reason = KILLED.format(lost.deaths)
    pack = packed({key: Content(CellStatus.FAILED, reason, {})})
    return Done([key], pack, [int(CellStatus.FAILED)], 0.0, "")


def _kind(job: Job) -> Hashable:
    """What cells that are computed one by one have in common: they take about the same time."""
    query = job.query
    return query.verb, query.problem.p, query.problem.k


def _fitting(job: Job) -> int:
    """How many cells of a kind fit a share of the memory together."""
    query = job.query
    replicas = getattr(query.run, "replicas", None) or 1
    save = getattr(query.run, "save", 100)
    points = save if isinstance(save, int) else len(save) if isinstance(save, tuple) else 1000
    p, k = query.problem.p, query.problem.k
    return max(1, int(MEMORY_SHARE * available_memory() / (32 * replicas * points * (p * (p + k + 1) + k + 8))))
