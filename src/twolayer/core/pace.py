"""The cores to compute on, and how many steps to compute in one call, so that Ctrl-C and progress are heard often."""

import contextlib
import itertools
import os
import time
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from twolayer.core import interrupts

# Seconds between two checks for an interruption, and between two updates of the progress.
CALL_SECONDS = 0.5


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pace:
    """Adapts the number of steps per call to take about half a second; the first calls also compile."""

    def __init__(self) -> None:
        self.steps = 64

    @contextlib.contextmanager
    def over(self, steps: int) -> Iterator[None]:
        """Time a block that computes this many steps, and adapt the number of steps of the next call.

        They may be fewer than allowed, when a save point comes first. A pending interruption is raised before them.
        """
        interrupts.check()
        began = time.perf_counter()
        yield
        seconds = max(time.perf_counter() - began, 1e-4)
        self.steps = int(min(max(steps * CALL_SECONDS / seconds, 16), 4 * self.steps))

    def strides(self, points: Int[np.ndarray, " points"]) -> Iterator[tuple[int, int, bool]]:
        """Yield the calls from the first point to the last: first and last step, and whether the call ends on a point.

        The time until the generator is resumed counts as the time of the call.
        """
        for before, after in itertools.pairwise(points):
            first = int(before)
            while first < after:
                last = min(first + self.steps, int(after))
                with self.over(last - first):
                    yield first, last, last == after
                first = last
