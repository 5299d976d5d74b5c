"""Paths of the SDE of phase retrieval: native code and XLA against a NumPy loop with the formulas of p = 1 by hand.

One path-step is one step of one path. Heun evaluates the drift twice a step and is accurate at steps ten times longer;
the NumPy loop takes Euler's steps. CPU time on one core, after compilation, the best of repeats.

    python benchmarks/sde.py
"""

from common import against, best, once, report, use_one_core

use_one_core()

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.compiler import loops as kernels
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.expectation import MOMENTS, Auto
from twolayer.specification.fields import as_data
from twolayer.theory import sde
from twolayer.theory.motion import paths

tl.precision("double")
GAMMA, NOISE, D, DT = 0.06, 0.2, 1000, 1e-3


def prepared(p: int, method: str, number: int, samples: int = 0, corrections: bool = False):
    """A setting on the sphere, and paths at their start."""
    start = tl.GivenOverlaps(np.eye(p), np.full((p, 1), 0.3))
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(D), start=start, noise=NOISE)
    problem, training = as_data((problem.without_dimension, tl.SGD(GAMMA, constraint=tl.Sphere())))
    engine = Auto().choose(problem, (*MOMENTS, "covariance")).variants()[0]
    one = np.eye(1)
    made = paths.PathSetting(
        problem, training, engine, Watch(False, False), one, one, one, method, corrections, samples
    )
    keys = jax.vmap(lambda n: replica_key(0, n))(jnp.arange(number))
    begun = sde._begin(made, problem.draw_many(keys), keys, np.zeros((number, 2)))
    amplitude = np.sqrt(GAMMA / (p * D))
    kept = paths.Kept(begun.lengths, begun.thresholds, *(np.full(number, x) for x in (DT, 0.0, amplitude)))
    return made, begun, kept


def numpy_loop(number: int, steps: int) -> np.ndarray:
    """Euler and Maruyama at p = 1 on the sphere, all paths at once, drift and variance as polynomials."""
    rng = np.random.default_rng(0)
    m, g = np.full(number, 0.3), GAMMA
    for _ in range(steps):
        s = m * m
        drift = m * (4 * (1 - 6 * g) * (1 - s) - 2 * g * NOISE)
        variance = 4 * NOISE * (1 - s) + 16 * (1 - s) ** 2 * (3 + 5 * s)
        variance -= g * s * (1 - s) * (128 * NOISE + 2688 * (1 - s))
        variance += g**2 * s * (32 * NOISE**2 + NOISE * (1920 - 2496 * s + 576 * s**2))
        variance += g**2 * s * (1 - s) ** 2 * (31104 - 11520 * s)
        m = m + drift * DT + np.sqrt(g / D * np.maximum(variance, 0.0) * DT) * rng.standard_normal(number)
        m = np.clip(m, -1.0, 1.0)
    return m


def main() -> None:
    rows = []
    number, steps = 4096, 200

    def add(name: str, p: int, first: float, each: float) -> None:
        rate = number * steps / each
        rows.append({"who": name, "p": p, "path-steps/s": rate, "ns": 1e9 / rate, "first call s": first})

    add("NumPy loop, Euler", 1, 0.0, best(lambda: numpy_loop(number, steps)))
    for p, method, corrections in ((1, "euler", False), (1, "heun", False), (1, "heun", True), (2, "heun", False)):
        made, begun, kept = prepared(p, method, number, corrections=corrections)
        name = f"{method}{', corrections' if corrections else ''}"
        programs = {}

        def native(count: int, made=made, begun=begun, kept=kept, programs=programs) -> None:
            if not programs:
                programs["native"] = kernels.native(paths.written_out(made), number)
            words = list(np.asarray(begun.words).T)
            kernels.by_native(programs["native"], kernels.as_rows(begun.path), kernels.as_rows(kept), words, 0, count)

        first = once(partial(native, 2))
        add(f"native, {name}", p, first, best(partial(native, steps)))

        def xla(count: int, made=made, begun=begun, kept=kept) -> None:
            count_of = (np.asarray(x) for x in (1, 0, count))
            jax.block_until_ready(paths.advance_xla(made, begun.path, kept, begun.words, *count_of))

        def vectors(count: int, made=made, begun=begun, kept=kept, programs=programs) -> None:
            words = list(np.asarray(begun.words).T)
            rows = (programs["native"].program, kernels.as_rows(begun.path), kernels.as_rows(kept), words)
            jax.block_until_ready(kernels.by_vectors(*rows, np.asarray(0), np.asarray(count)))

        if not corrections and method == "heun":
            first = once(partial(vectors, 2))
            add(f"XLA, written out, {name}", p, first, best(partial(vectors, steps), repeats=2))
            first = once(partial(xla, 2))
            add(f"XLA, in arrays, {name}", p, first, best(partial(xla, steps), repeats=2))
    heun = next(row["ns"] for row in rows if row["who"] == "native, heun" and row["p"] == 1)
    line = against("SDE of phase retrieval, p=1, a path-step (ours: Heun, naive: Euler)", "ns", heun, rows[0]["ns"])
    report(f"SDE of phase retrieval on the sphere, {number} paths, one core", rows, [line])


if __name__ == "__main__":
    main()
