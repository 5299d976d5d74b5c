"""How many steps to take between two looks at the clock."""

import contextlib
import itertools
import time
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from twolayer.core import interrupts

# An interruption is noticed, and progress shown, about this often.
CALL_SECONDS = 0.5


class Pace:
    """The number of steps that take about half a second, learnt on the way: the first calls compile."""

    def __init__(self) -> None:
        self.steps = 64

    @contextlib.contextmanager
    def over(self, steps: int) -> Iterator[None]:
        """Around so many steps: they may be fewer than were allowed, when a save point lies before.

        An interruption that was asked for is raised before them.
        """
        interrupts.check()
        began = time.perf_counter()
        yield
        seconds = max(time.perf_counter() - began, 1e-4)
        self.steps = int(min(max(steps * CALL_SECONDS / seconds, 16), 4 * self.steps))

    def strides(self, points: Int[np.ndarray, " points"]) -> Iterator[tuple[int, int, bool]]:
        """The way from the first point to the last: first and last step of each call, and whether it ends on a point.

        The time until the next call is asked for is that of the work.
        """
        for before, after in itertools.pairwise(points):
            first = int(before)
            while first < after:
                last = min(first + self.steps, int(after))
                with self.over(last - first):
                    yield first, last, last == after
                first = last
