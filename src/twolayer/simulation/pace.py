"""How many steps to take between two looks at the clock."""

import time

# An interruption is noticed, and progress shown, about this often.
CALL_SECONDS = 0.5


class Pace:
    """The number of steps that take about half a second, learnt on the way: the first calls compile."""

    def __init__(self) -> None:
        self.steps = 64
        self._began = 0.0

    def __enter__(self) -> "Pace":
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = max(time.perf_counter() - self._began, 1e-4)
        self.steps = int(min(max(self.steps * CALL_SECONDS / seconds, 16), 4 * self.steps))
