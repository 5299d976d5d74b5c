"""The common runner of sweeps: it hands out cells in portions of about a second and keeps what comes back.

Where the work is done is the business of an executor: in this process, or on the workers of a cluster. The numbers of a
cell do not depend on it, nor on the cells that are computed with it.
"""

import abc
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from twolayer.core import interrupts
from twolayer.core.memory import available_memory
from twolayer.sweeps.compute import Done, Job, batch_key, compute
from twolayer.sweeps.content import CellStatus, Content, packed
from twolayer.sweeps.store import Store

# Seconds of a portion, and how many cells the first one of a kind has: together, or each by itself.
SECONDS, FIRST_TOGETHER = 1.0, 32
# The most by which a portion is larger or smaller than the last one.
GROWTH = 4.0
# The most cells of a portion, and the share of the memory that their results may take.
MOST, MEMORY_SHARE = 4096, 0.05
# Seconds after which workers are considered, and seconds of work that they are worth.
PATIENCE, WORTH = 5.0, 30.0


class Lost(NamedTuple):
    """A portion whose worker died several times."""

    jobs: Sequence[Job]
    reason: str


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
        """Give up what was submitted."""
        return None

    def grown(self, seconds: float) -> "AbstractExecutor":
        """The executor for the rest of the work, of which so many seconds are left; nothing is submitted now."""
        return self


class InProcess(AbstractExecutor):
    """Computes in this process, one portion after the other; ``more`` makes an executor that long work is worth."""

    slots = ahead = 1

    def __init__(self, more: "Callable[[], AbstractExecutor] | None" = None) -> None:
        self._jobs: deque[tuple[Sequence[Job], bool]] = deque()
        self._more = more
        self._began = time.monotonic()

    def submit(self, jobs: Sequence[Job], is_together: bool) -> None:
        self._jobs.append((jobs, is_together))

    def next(self) -> Done | Lost:
        interrupts.check()
        return compute(*self._jobs.popleft())

    def grown(self, seconds: float) -> AbstractExecutor:
        is_long = time.monotonic() - self._began > PATIENCE and seconds > WORTH
        return self._more() if is_long and self._more is not None and not self._jobs else self


class Counts:
    """How far a sweep is."""

    def __init__(self, jobs: int, stored: int):
        self.jobs, self.stored, self.computed, self.failed, self.running = jobs, stored, 0, 0, 0
        self.where = ""

    @property
    def words(self) -> str:
        """The counts in words."""
        before = f", {self.stored} from before" if self.stored else ""
        counted = f"{self.computed} of {self.jobs} cells{before}"
        return f"{counted}, {self.running} portions at work, {self.failed} failed{self.where}"


class _Group:
    """Cells of one kind that wait, and the seconds that one of them takes."""

    def __init__(self, is_together: bool):
        self.jobs: deque[Job] = deque()
        self.is_together = is_together
        self.size = FIRST_TOGETHER if is_together else 1
        self.seconds = 0.0  # that the fastest portion took for a cell
        self.portions = 0

    def portion(self, slots: int, share: int) -> list[Job]:
        """The next cells: about a second of work, and no more than leaves some for every slot at the end."""
        even = -(-len(self.jobs) // (2 * slots)) if slots > 1 else len(self.jobs)
        size = max(1, min(self.size, even, MOST, share))
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


def run_jobs(
    jobs: Sequence[Job], executor: AbstractExecutor, store: Store, tell: Callable[[Counts], None], counts: Counts
) -> None:
    """Compute cells and keep their results.

    An interruption leaves what is stored and raises `KeyboardInterrupt`.
    """
    groups: dict[Hashable, _Group] = {}
    kinds: dict[str, _Group] = {}
    for job in jobs:
        key = batch_key(job.query)
        group = groups.setdefault(_kind(job) if key is None else key, _Group(key is not None))
        group.jobs.append(job)
        kinds[job.key] = group
    waiting = deque(groups.values())
    running = 0
    try:
        while waiting or running:
            if not running:
                executor = executor.grown(sum(group.left for group in waiting))
            while waiting and running < executor.ahead:
                group = waiting[0]
                executor.submit(group.portion(executor.slots, _fitting(group.jobs[0])), group.is_together)
                running += 1
                waiting.rotate(-1)
                if not group.jobs:
                    waiting.remove(group)
            answer = executor.next()
            running -= 1
            if isinstance(answer, Lost):
                running += _take_lost(answer, executor, store, counts)
            else:
                store.save(answer.keys, answer.pack)
                kinds[answer.keys[0]].measured(answer)
                counts.computed += len(answer.keys)
                counts.failed += sum(status != CellStatus.DONE for status in answer.statuses)
            counts.running, counts.where = running, executor.words
            tell(counts)
    except BaseException:
        executor.cancel()
        raise


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


def _take_lost(lost: Lost, executor: AbstractExecutor, store: Store, counts: Counts) -> int:
    """Hand out the cells of a lost portion one by one; a single one that was lost has failed. Gives back how many."""
    if len(lost.jobs) > 1:
        for job in lost.jobs:
            executor.submit([job], is_together=False)
        return len(lost.jobs)
    key = lost.jobs[0].key
    store.save([key], packed({key: Content(CellStatus.FAILED, lost.reason, {})}))
    counts.computed += 1
    counts.failed += 1
    return 0
