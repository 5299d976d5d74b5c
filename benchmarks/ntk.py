"""The kernel side against the floor that BLAS and LAPACK set, all cores, wall clock, in one run.

Building H_infinity against NumPy's X X^T; its decomposition against LAPACK's (scipy's eigh, the same driver) on a
matrix that is already there; a Cholesky solve for scale; a step of gradient descent against the measured rate of a
product of the same shape. Peak memory of the exact route in units of n^2 doubles.

    python benchmarks/ntk.py [--n 10000] [--spectrum 2000] [--samples 1000] [--width 8192]
    OPENBLAS_NUM_THREADS=1 taskset -c 0 python benchmarks/ntk.py --cpu-time           one core of a busy machine
    python benchmarks/ntk.py --free [--n 4000] [--data-dir DIR]       the matrix-free route against the exact one
    python benchmarks/ntk.py --device --data-dir DIR [--n 60000]      all of MNIST on accelerators
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ntk_free
import numpy as np
from common import against, report
from scipy.linalg import cho_factor, eigh

from twolayer.kernel import decompose, gram, train

# With --cpu-time that of the process: for one core of a machine that does other work, too.
CLOCK = time.process_time if "--cpu-time" in sys.argv else time.perf_counter


def wall(work: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the quickest of several runs."""
    times = []
    for _ in range(repeats):
        start = CLOCK()
        work()
        times.append(CLOCK() - start)
    return min(times)


def unit(n: int, d: int) -> np.ndarray:
    """Inputs with the cosines of images: all of one sign."""
    X = np.random.default_rng(0).random((n, d)) ** 4
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def peak() -> float:
    """Peak memory of this process so far, in bytes."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int)
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--device", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--spectrum", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--width", type=int, default=8192)
    options = parser.parse_args()
    if options.device:
        return ntk_free.device(options.data_dir, options.n)
    if options.free:
        return ntk_free.free(options.n or 4000, options.data_dir)
    options.n = options.n or 10_000
    rows = []

    X = unit(options.n, 784)
    before = peak()
    gram(X)
    held = (peak() - before) / (8.0 * options.n**2)
    ours, floor = wall(lambda: gram(X)), wall(lambda: X @ X.T)
    rows.append(
        {"what": f"build, n = {options.n}", "ours_s": ours, "floor_s": floor, "ratio": ours / floor, "n2": held}
    )
    del X

    H = gram(unit(options.spectrum, 784))
    ours, floor = wall(lambda: decompose(H), 2), wall(lambda: eigh(H, driver="evr"), 2)
    rows.append(
        {"what": f"spectrum, n = {len(H)}", "ours_s": ours, "floor_s": floor, "ratio": ours / floor, "n2": None}
    )
    floor = wall(lambda: cho_factor(H), 2)
    rows.append({"what": "Cholesky, for scale", "ours_s": floor, "floor_s": floor, "ratio": 1.0, "n2": None})

    n, m = options.samples, options.width
    X, y = unit(n, 784), np.ones(n)
    for precision, dtype in (("double", np.float64), ("single", np.float32)):
        Z, G = np.ones((m, n), dtype), np.ones((n, n), dtype)

        def run(steps: int, precision: str = precision) -> None:
            train(X, y, width=m, eta=1e-3, steps=steps, precision=precision, grams=False)

        run(32)
        # Compiled for 32 steps at a time: the difference leaves out the start. All three in turn, so that what else
        # the machine does meets each of them.
        works = (lambda Z=Z, G=G: Z @ G, partial(run, 32), partial(run, 64))
        turns = [[wall(work, 1) for work in works] for _ in range(2)]
        floor, short, long = (min(times) for times in zip(*turns, strict=True))
        ours = (long - short) / 32
        rows.append(
            {
                "what": f"step, n = {n}, m = {m}, {precision}",
                "ours_s": ours,
                "floor_s": floor,
                "ratio": ours / floor,
                "n2": None,
            }
        )
    lines = [
        against(f"Gram matrix: {row['what']}", "s", row["ours_s"], floor=row["floor_s"])
        for row in rows
        if row["ratio"] != 1.0
    ]
    report("ntk", rows, lines)


if __name__ == "__main__":
    main()
