"""Long work in calls of about half a second: an interruption is noticed soon, and progress can be shown."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

SECONDS = 0.5
# The first call compiles, and says little about the speed of those that follow.
FIRST, LEAST = 64, 16


def strides(points: Int[np.ndarray, " points"], seconds: float = SECONDS) -> Iterator[tuple[int, int, bool]]:
    """Cut the way from the first point to the last: first and last step of each call, and whether it ends on a point.

    The time until the next call is asked for is taken for that of the work.
    """
    stride = FIRST
    for before, after in itertools.pairwise(points):
        first = int(before)
        while first < after:
            last = min(first + stride, int(after))
            began = time.perf_counter()
            yield first, last, last == after
            taken = max(time.perf_counter() - began, 1e-4)
            stride = int(min(max((last - first) * seconds / taken, LEAST), 4 * stride))
            first = last
