"""Worker processes, and the line before them: fair between visitors, within limits of time and memory.

The server itself computes nothing. A worker is a process that reads jobs from its standard input and writes events to
its standard output (`worker`); it keeps the programs that it has compiled, so that a job goes to a worker that has seen
its structure. One that takes too long or needs too much memory is killed, since native code hears nothing; one that
ended is replaced at once, and its visitor told.

The next job is one of the address that was served the longest time ago, and among the windows of that address one of
the window that was. Jobs that take long leave at least one worker free for the others, and so does each window.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import psutil

from twolayer.core.errors import InvalidInput, TwolayerError
from twolayer.explore.form import first_question
from twolayer.explore.messages import Tables
from twolayer.explore.structure import family, structure, what_is_compiled

# Seconds that a job of each kind may take on a worker.
LIMITS = {
    "check": 20.0,
    "explain": 60.0,
    "theory": 60.0,
    "simulate": 180.0,
    "compare": 240.0,
    "learn": 60.0,
    "escape": 120.0,
    "equations": 60.0,
    "program": 60.0,
    "download": 300.0,
}
LONG = ("simulate", "compare", "escape", "download", "learn")
KEPT = ("check", "explain", "theory", "learn", "equations")  # kinds whose last answers are kept
ENDS = ("result", "refused", "failed", "cancelled")
# Seconds: for a worker that was told to stop, for a job to wait for a worker that has its programs, between two looks.
GRACE, PATIENCE, PACE = 5.0, 0.5, 0.05
AGAIN = 2.0  # seconds after a worker that could not start
MEMORY, WORN = 3 * 2**30, 3 * 2**29  # bytes of a worker: it is ended, and it is replaced when it has nothing to do
STRUCTURES = 60  # programs of so many structures are in a worker when it is replaced
LINE, LINE_OF_ADDRESS, LINE_OF_WINDOW = 400, 300, 12  # jobs that may wait
UNREAD = 256  # events that a client has not taken
ANSWERS, ANSWER_BYTES = 512, 2**26
KNOWN_TIMES = 1000  # families of structures whose times are known
LINE_LENGTH = 2**27  # the longest event of a worker, in bytes


WORKER = (sys.executable, "-m", "twolayer.explore.worker")


class Busy(TwolayerError):
    """Raised when the line of waiting jobs is full."""


class Event(NamedTuple):
    """What is told of a job: a name, and its data as JSON."""

    name: str
    data: str


def event(name: str, **data: object) -> Event:
    """An event from plain data."""
    return Event(name, json.dumps(data, allow_nan=False))


@dataclass(eq=False)
class PageJob:
    """A question of a window, and the events that answer it."""

    kind: str
    spec: Tables
    options: Tables
    client: tuple[str, str]  # the address, and the window at this address
    slot: str = ""  # what tells questions of one window and kind apart
    is_over: bool = False
    position: int = 0
    since: float = field(default_factory=time.monotonic)
    events: deque[Event] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.key = structure(self.kind, self.spec, self.options)
        self.family = family(self.kind, self.spec, self.options)
        self.content = json.dumps([self.kind, self.spec, self.options], sort_keys=True)

    @property
    def is_long(self) -> bool:
        """Whether such jobs usually take longer than somebody who moves a slider wants to wait."""
        return self.kind in LONG

    def tell(self, event: Event) -> None:
        """Add an event; after the end nothing is told any more, and what nobody has read yet is replaced."""
        if self.is_over:
            return
        if event.name in ("partial", "progress", "queued"):
            self.events = deque(old for old in self.events if old.name != event.name)
        self.is_over = event.name in ENDS
        self.events.append(event)
        self.news.set()

    async def next_event(self) -> Event:
        """The next event, as soon as there is one."""
        while not self.events:
            self.news.clear()
            await self.news.wait()
        return self.events.popleft()


@dataclass(eq=False)
class Worker:
    """A process that computes, and the job that it has."""

    number: int
    process: asyncio.subprocess.Process
    is_ready: bool = False
    job: PageJob | None = None
    serial: int = 0  # of the job, in messages
    began: float = 0.0
    told_to_stop: float | None = None
    is_cold: bool = False  # whether its job has to be compiled
    structures: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    reason: str = ""  # why it is ended

    def send(self, message: Tables) -> None:
        """Write a message to the process, which reads at all times."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.process.stdin.write((json.dumps(message) + "\n").encode())

    @property
    def memory(self) -> int:
        """Bytes in use; 0 when the process is gone."""
        try:
            return psutil.Process(self.process.pid).memory_info().rss
        except psutil.Error:
            return 0

    def end(self, reason: str = "") -> None:
        """End the process at once."""
        self.reason = self.reason or reason
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Pool:
    """Workers, and the jobs that wait for them.

    Parameters
    ----------
    number
        The number of workers; by default one for each core and one more, at least three and at most nine.
    first
        The specification that every new worker prepares itself for.
    memory, limits
        Bytes that a worker may use, and seconds that a job of each kind may take.
    command
        What a worker is started by; the memory is its last argument.
    """

    def __init__(
        self,
        number: int | None = None,
        first: Tables | None = None,
        memory: int = MEMORY,
        limits: dict[str, float] | None = None,
        command: Sequence[str] = WORKER,
    ):
        self.number = number or min(9, max(2, os.cpu_count() or 1) + 1)
        self.first, self.memory, self.limits, self.command = first, memory, LIMITS | (limits or {}), tuple(command)
        self.workers: list[Worker] = []
        self.waiting: list[PageJob] = []
        self.served: dict[Hashable, int] = {}  # when an address, and a window, had its last turn
        self.turns = itertools.count(1)
        self.serials = itertools.count(1)
        # What the first job of a structure took, by kind and by the structures that are like it.
        self.seconds: OrderedDict[Hashable, float] = OrderedDict()
        self.answers: OrderedDict[str, Event] = OrderedDict()
        self.bytes_of_answers = 0
        self.is_closing = False
        self.started = 0  # workers, so far
        self.not_before = 0.0  # when the next worker may be started
        self.watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Pool":
        self.watch = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_closing = True
        if self.watch is not None:  # a process that is being started must not be lost
            await asyncio.gather(self.watch, return_exceptions=True)
        workers = list(self.workers)
        for worker in workers:
            worker.end()
        await asyncio.gather(*(task for worker in workers for task in worker.tasks), return_exceptions=True)

    # ------------------------------------------------------------------------------------------ jobs

    def submit(self, job: PageJob) -> None:
        """Put a job in line, in place of an earlier one of the same window, kind and slot."""
        if job.content in self.answers:
            self.answers.move_to_end(job.content)
            job.tell(self.answers[job.content])
            return
        if job.client[1]:
            for other in [*self.waiting, *(worker.job for worker in self.workers if worker.job is not None)]:
                if (other.client, other.kind, other.slot) == (job.client, job.kind, job.slot):
                    self.cancel(other)
        of_address = [other for other in self.waiting if other.client[0] == job.client[0]]
        of_window = [other for other in of_address if other.client == job.client]
        if (
            len(self.waiting) >= LINE
            or len(of_address) >= LINE_OF_ADDRESS
            or (job.client[1] and len(of_window) >= LINE_OF_WINDOW)
        ):
            raise Busy(f"The explorer is busy, and {len(self.waiting)} requests are in line: try again in a moment.")
        self.waiting.append(job)
        self.dispatch()

    def cancel(self, job: PageJob) -> None:
        """Forget a job, and stop its computation; nothing happens when it is over."""
        if job.is_over:
            return
        job.tell(event("cancelled"))
        if job in self.waiting:
            self.waiting.remove(job)
            self._tell_positions()
        for worker in self.workers:
            if worker.job is job:
                self._stop(worker)

    def dispatch(self) -> None:
        """Give jobs to workers while there are both."""
        while (chosen := self._next()) is not None:
            worker, job = chosen
            self.waiting.remove(job)
            self._give(worker, job)
        self._tell_positions()

    def _next(self) -> tuple[Worker, PageJob] | None:
        idle = [worker for worker in self.workers if worker.is_ready and worker.job is None]
        if not idle or not self.waiting:
            return None
        busy = [worker for worker in self.workers if worker.job is not None]
        running = [worker.job for worker in busy if worker.job is not None]
        most = max(1, sum(worker.is_ready for worker in self.workers) - 1)
        are_too_long = sum(job.is_long for job in running) >= most
        now = time.monotonic()
        for job in sorted(self.waiting, key=self._turn):
            if (job.is_long and are_too_long) or sum(other.client == job.client for other in running) >= most:
                continue
            if warm := [worker for worker in idle if job.key in worker.structures]:
                return warm[0], job
            soon = any(job.key in worker.structures and not worker.is_cold for worker in busy)
            if not soon or now - job.since > PATIENCE:
                return min(idle, key=lambda worker: len(worker.structures)), job
        return None

    def _turn(self, job: PageJob) -> tuple[int, int, float]:
        """The order of jobs in line: by the last turn of the address, then of the window, then as they came."""
        return self.served.get(job.client[0], 0), self.served.get(job.client, 0), job.since

    def _give(self, worker: Worker, job: PageJob) -> None:
        for who in (job.client[0], job.client):
            self.served[who] = next(self.turns)
        if len(self.served) > 10_000:
            self.served = dict(sorted(self.served.items(), key=lambda item: item[1])[5_000:])
        worker.job, worker.serial, worker.began = job, next(self.serials), time.monotonic()
        worker.told_to_stop, worker.is_cold = None, job.key not in worker.structures
        worker.send({"job": worker.serial, "kind": job.kind, "spec": job.spec, "options": job.options})

    def _tell_positions(self) -> None:
        """Tell the jobs that wait for longer than a moment their place in line."""
        now = time.monotonic()
        for place, job in enumerate(sorted(self.waiting, key=self._turn), start=1):
            if job.position != place and now - job.since > PATIENCE / 2:
                job.position = place
                job.tell(event("queued", position=place))

    # --------------------------------------------------------------------------------------- workers

    async def start_worker(self) -> Worker:
        """Start a process; it is ready when it has imported the package."""
        # The environment is that of the server, but a worker is in a session of its own, which Ctrl-C does not reach.
        process = await asyncio.create_subprocess_exec(
            *self.command,
            str(self.memory),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_LENGTH,
            start_new_session=True,
        )
        self.started += 1
        worker = Worker(next(self.serials), process, job=None)
        self.workers.append(worker)
        worker.tasks.append(asyncio.create_task(self._listen(worker)))
        return worker

    async def _listen(self, worker: Worker) -> None:
        """Pass the events of a worker on until it ends; then replace it."""
        assert worker.process.stdout is not None
        with contextlib.suppress(ValueError, ConnectionError):  # a line beyond all limits
            while line := await worker.process.stdout.readline():
                serial, name, data = line.decode().rstrip("\n").split(" ", 2)
                if name == "ready":
                    self._is_ready(worker)
                elif int(serial) == worker.serial and worker.job is not None:
                    self._pass_on(worker, worker.job, Event(name, data))
        worker.end()
        if not worker.is_ready:
            self.not_before = time.monotonic() + AGAIN
        await worker.process.wait()
        self.workers.remove(worker)
        if worker.job is not None and not worker.job.is_over:
            reason = worker.reason or (
                "The computation needed more memory than is allowed here, or failed in a library, and was ended; "
                "`twolayer run` has no such limits."
            )
            worker.job.tell(event("failed", message=reason))

    def _is_ready(self, worker: Worker) -> None:
        worker.is_ready = True
        if self.first is not None:
            job = PageJob("theory", self.first, first_question(self.first), ("", "warm"))
            self._give(worker, job)
        self.dispatch()

    def _pass_on(self, worker: Worker, job: PageJob, sent: Event) -> None:
        if sent.name == "begun":  # the question is one that can be answered
            if worker.is_cold:
                usual = self.seconds.get(job.family, self.seconds.get(job.kind))
                what = what_is_compiled(job.kind, job.spec)
                job.tell(event("compiling", what=what, usual_seconds=None if usual is None else round(usual, 1)))
        elif sent.name not in ENDS:
            job.tell(sent)
            if len(job.events) > UNREAD:
                self.cancel(job)
        if sent.name not in ENDS:
            return
        if sent.name == "result":
            if worker.is_cold and worker.told_to_stop is None:
                for name in (job.kind, job.family):
                    self.seconds[name] = time.monotonic() - worker.began
                    self.seconds.move_to_end(name)
                while len(self.seconds) > KNOWN_TIMES:
                    self.seconds.popitem(last=False)
            worker.structures[job.key] = None
            self._keep(job, sent)
        job.tell(sent)
        worker.job = None
        if len(worker.structures) > STRUCTURES or worker.memory > WORN:
            worker.end()
        self.dispatch()

    def _keep(self, job: PageJob, sent: Event) -> None:
        """Keep the last answers of questions that somebody may ask again."""
        if job.kind not in KEPT:
            return
        former = self.answers.pop(job.content, None)  # two windows may have asked the same at once
        self.bytes_of_answers += _size(job.content, sent) - (0 if former is None else _size(job.content, former))
        self.answers[job.content] = sent
        while self.bytes_of_answers > ANSWER_BYTES or len(self.answers) > ANSWERS:
            self.bytes_of_answers -= _size(*self.answers.popitem(last=False))

    def _stop(self, worker: Worker) -> None:
        if worker.told_to_stop is None:
            worker.told_to_stop = time.monotonic()
            worker.send({"cancel": worker.serial})

    async def _watch(self) -> None:
        """Hold workers to their limits, and start new ones for those that ended."""
        while not self.is_closing:
            are_settled = all((worker.is_ready and worker.job is None) or worker.structures for worker in self.workers)
            # The first ones are started one after the other, so that one is soon ready to answer.
            is_time = time.monotonic() >= self.not_before and (are_settled or self.started >= self.number)
            if len(self.workers) < self.number and is_time:
                await self.start_worker()
            for worker in list(self.workers):
                self._check(worker)
            self.dispatch()
            await asyncio.sleep(PACE)

    def _check(self, worker: Worker) -> None:
        job, now = worker.job, time.monotonic()
        if job is None:
            return
        if worker.memory > self.memory:
            worker.end(
                f"The computation needed more than {self.memory / 2**30:.3g} GB of memory, which is the limit here, "
                "and was ended; `twolayer run` has no such limit."
            )
        limit = self.limits[job.kind]
        if now - worker.began > limit:  # also of a job that was cancelled, which nobody may hear in native code
            worker.end(
                f"The computation took longer than {limit:g} seconds, which is the limit here, and was ended; "
                "`twolayer run` has no such limit."
            )
        if worker.told_to_stop is not None and now - worker.told_to_stop > GRACE and self.waiting:
            worker.end()


def _size(content: str, sent: Event) -> int:
    """Bytes of a question and its answer, which are JSON in ASCII."""
    return len(content) + len(sent.data)


async def ask(pool: Pool, job: PageJob) -> Event:
    """The last event of a job, for tests and benchmarks."""
    try:
        pool.submit(job)
    except InvalidInput as error:
        return event("refused", message=str(error))
    while (sent := await job.next_event()).name not in ENDS:
        pass
    return sent
