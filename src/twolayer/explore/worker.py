"""A worker process: jobs come as lines of JSON on standard input, events go as lines on standard output.

``{"job": 7, "kind": "theory", "spec": {...}, "options": {...}}`` asks, ``{"cancel": 7}`` asks to stop. An event is a
line ``7 partial {...}``: the job, a name, and data as JSON. The process ends when its standard input is closed, so that
none outlives the server, however that ends.
"""

import contextlib
import json
import os
import queue
import re
import signal
import sys
import threading
import time
import warnings
from typing import IO, Any

from twolayer.core import interrupts
from twolayer.core.errors import ComputationFailed, InvalidInput, first_line

# Bytes beyond the limit that the process may ask the system for before allocations fail: the server looks only now and
# then, and ends a process with a sentence.
MARGIN = 2**30
PACE = 0.1  # seconds between two reports of progress


class Desk:
    """Where jobs arrive: a thread reads them at all times, also while one is computed."""

    def __init__(self, incoming: IO[str], outgoing: IO[str]):
        self.incoming, self.outgoing = incoming, outgoing
        self.jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.current: int | None = None
        self.cancelled: set[int] = set()

    def read(self) -> None:
        """Put jobs in line and pass cancellations on, until the server is gone."""
        for line in self.incoming:
            message = json.loads(line)
            if "cancel" not in message:
                self.jobs.put(message)
                continue
            with self.lock:
                if self.current == message["cancel"]:
                    interrupts.ask()
                else:
                    self.cancelled.add(message["cancel"])
        os._exit(0)

    def begin(self, serial: int) -> bool:
        """Begin a job, unless it was cancelled; an older request to stop is forgotten."""
        with self.lock, contextlib.suppress(KeyboardInterrupt):
            interrupts.check()
        with self.lock:
            self.current = serial
            return serial not in self.cancelled

    def end(self) -> None:
        """Nothing is computed any more."""
        with self.lock:
            self.current = None
            self.cancelled.clear()

    def say(self, serial: int, name: str, data: dict[str, Any]) -> None:
        """Write an event to the pipe that the server reads."""
        self.outgoing.write(f"{serial} {name} {json.dumps(data, allow_nan=False)}\n")
        self.outgoing.flush()


def main(memory: int) -> None:
    """Serve until the server is gone."""
    outgoing = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no event
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    desk = Desk(os.fdopen(os.dup(0), encoding="utf-8"), outgoing)
    threading.Thread(target=desk.read, daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(5)  # the server answers first
    os.environ.setdefault("MPLBACKEND", "agg")
    warnings.simplefilter("ignore")  # cautions are part of the answers

    from twolayer.core import memory_limit as room
    from twolayer.core import program_cache
    from twolayer.explore.answers import answer

    program_cache.keep()
    room.restrict(int(0.8 * memory))
    _limit(memory + MARGIN)
    desk.say(0, "ready", {})
    while True:
        job = desk.jobs.get()
        serial = job["job"]
        if not desk.begin(serial):
            desk.say(serial, "cancelled", {})
            desk.end()
            continue
        name, data = _outcome(desk, answer, job)
        desk.end()
        desk.say(serial, name, data)


def _outcome(desk: Desk, answer: Any, job: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The last event of a job."""
    serial = job["job"]

    last = 0.0

    def tell(name: str, **data: Any) -> None:
        nonlocal last
        now = time.monotonic()
        if name == "progress" and now - last < PACE:
            return
        last = now
        desk.say(serial, name, data)

    try:
        return "result", answer(job["kind"], job["spec"], job["options"], tell)
    except KeyboardInterrupt:
        return "cancelled", {}
    except InvalidInput as error:
        return "refused", refusal(error)
    except ComputationFailed as error:
        return "failed", {"message": str(error)}
    except MemoryError as error:
        return "failed", {"message": f"There is not enough memory here: {first_line(error)}."}
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return "failed", {"message": f"There is not enough memory here: {first_line(error)}."}
        print(f"twolayer: a worker of the explorer failed: {error!r}", file=sys.stderr)
        return "failed", {"message": f"The computation failed by a fault of ours ({type(error).__name__})."}


def refusal(error: InvalidInput) -> dict[str, Any]:
    """A refusal as plain data: the sentence, the field that it begins with, and the place in a formula."""
    message = str(error)
    match = re.match(r"`([^`]+)`(?:: Argument `(\w+)`)?", message) or re.match(r"(Argument) `(\w+)`", message)
    path, argument = match.groups() if match else (None, None)
    inside = [part for part in (path, argument) if part and part != "Argument"]
    field = ".".join(inside) or None
    return {"message": message, "field": field, "position": error.position}


def _limit(size: int) -> None:
    """Let allocations beyond a size fail, and leave no image of the process when it crashes."""
    try:
        import resource
    except ImportError:  # a system without such limits: the server ends processes that are too large
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


if __name__ == "__main__":
    main(int(sys.argv[1]))
