"""Paths of the SDE of phase retrieval: native code and XLA against a NumPy loop with the formulas of p = 1 by hand.

One path-step is one step of one path. The NumPy loop takes Euler's steps; ours are Heun's, which evaluate the drift
twice and are of second order. What counts is the time to a given error: the second table has the error of the mean
against the cost of both, and both are compared at the error that `SDE()` asks of its own step, a thousandth of the
scatter of a path. The floor is the same loop with the same random numbers and no equation. CPU time on one core, after
compilation, the best of repeats.

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
from twolayer.compiler.scalar import scalarize
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.expectation import MOMENTS, Auto
from twolayer.specification.fields import as_data
from twolayer.theory import sde
from twolayer.theory.motion import paths

tl.precision("double")
GAMMA, NOISE, D, DT, END = 0.06, 0.2, 1000, 1e-3, 1.0


def prepared(p: int, method: str, number: int, samples: int = 0, corrections: bool = False):
    """A setting on the sphere, and paths at their start."""
    start = tl.GivenOverlaps(np.eye(p), np.full((p, 1), 0.3))
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(D), start=start, noise=NOISE)
    problem, training = as_data((problem.without_dimension, tl.SGD(GAMMA, constraint=tl.Sphere())))
    engine = Auto().choose(problem, (*MOMENTS, "covariance")).variants()[0]
    keys = jax.vmap(lambda n: replica_key(0, n))(jnp.arange(number))
    starts = problem.draw_many(keys)
    setting = (problem, training, engine, Watch(False, False))
    made = paths.PathSetting.of(setting, starts, method, corrections, samples)
    begun = sde._begin(made, starts, keys, np.zeros((number, 2)))
    amplitude = np.sqrt(GAMMA / (p * D))
    kept = paths.Kept(begun.lengths, begun.thresholds, *(np.full(number, x) for x in (DT, 0.0, amplitude)))
    return made, begun, kept


def numpy_loop(number: int, steps: int, dt: float = DT, scale: float = 1.0) -> np.ndarray:
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
        m = m + drift * dt + scale * np.sqrt(g / D * np.maximum(variance, 0.0) * dt) * rng.standard_normal(number)
        m = np.clip(m, -1.0, 1.0)
    return m


def native_loop(made, begun, kept, written=None):
    """A function that takes so many steps of some size, with noise or without, by native code."""
    number = len(begun.lengths)
    program = kernels.native(paths.written_out(made) if written is None else written, number)
    words, state = list(np.asarray(begun.words).T), kernels.as_rows(begun.path)

    def run(steps: int, dt: float = DT, scale: float = 1.0) -> np.ndarray:
        now = kept._replace(step=np.full(number, dt), amplitude=scale * kept.amplitude)
        rows = kernels.by_native(program, state, kernels.as_rows(now), words, 0, steps)
        return np.asarray(rows[1])  # M, after Q

    return run


def without_equation(made):
    """The program of a path in which the normal numbers are added up, and nothing else."""
    program = paths.written_out(made)
    real = jax.ShapeDtypeStruct((), jnp.float64)
    count = len(program.step.inputs)

    def step(*numbers):
        state, drawn = list(numbers[: program.state]), numbers[program.state + program.fixed :]
        return [state[0], state[1] + sum(drawn[:-1]), *state[2:]]

    return program._replace(step=scalarize(step, *[real] * count))


def errors(run, numbers: tuple[int, ...], exact: float) -> list[float]:
    """The error of the mean at the end, without noise, with so many steps."""
    return [abs(float(run(n, END / n, 0.0)[0]) - exact) for n in numbers]


def enough(run, exact: float, wanted: float) -> int:
    """The least number of steps, within a twentieth, whose error is as wanted."""
    steps = 2
    while errors(run, (steps,), exact)[0] > wanted:
        steps = int(np.ceil(1.05 * steps + 1))
    return steps


def main() -> None:
    rows = []
    number, steps = 4096, 200

    def add(name: str, p: int, first: float, each: float) -> None:
        rate = number * steps / each
        rows.append({"who": name, "p": p, "path-steps/s": rate, "ns": 1e9 / rate, "first call s": first})

    add("NumPy loop, Euler", 1, 0.0, best(lambda: numpy_loop(number, steps)))
    made, begun, kept = prepared(1, "heun", number)
    alone = native_loop(made, begun, kept, without_equation(made))
    add("native, random numbers alone", 1, once(partial(alone, 2)), best(partial(alone, steps)))
    ours = native_loop(made, begun, kept)
    for p, method, corrections in ((1, "euler", False), (1, "heun", False), (1, "heun", True), (2, "heun", False)):
        made, begun, kept = prepared(p, method, number, corrections=corrections)
        name = f"{method}{', corrections' if corrections else ''}"
        native = native_loop(made, begun, kept)
        first = once(partial(native, 2))
        add(f"native, {name}", p, first, best(partial(native, steps)))

        def xla(count: int, made=made, begun=begun, kept=kept) -> None:
            count_of = (np.asarray(x) for x in (1, 0, count))
            jax.block_until_ready(paths.advance_xla(made, begun.path, kept, begun.words, *count_of))

        if not corrections and method == "heun":
            first = once(partial(xla, 2))
            add(f"XLA, in arrays, {name}", p, first, best(partial(xla, steps), repeats=2))
    report(f"SDE of phase retrieval on the sphere, {number} paths, one core", rows)
    print()

    small = [native_loop(*prepared(1, method, 1)) for method in ("heun", "euler")]
    exact = float(small[0](2**14, END / 2**14, 0.0)[0])
    one = partial(numpy_loop, 1)
    table = []
    for name, run, paced in (("NumPy loop, Euler", one, partial(numpy_loop, number)), ("native, heun", small[0], ours)):
        for n in (8, 32, 128, 512):
            seconds = best(lambda n=n, paced=paced: paced(n, END / n), repeats=3)
            table.append({"who": name, "steps": n, "error of the mean": errors(run, (n,), exact)[0], "CPU s": seconds})
    wanted = 1e-3 * float(np.sqrt(GAMMA / D))
    costs = {}
    for name, run, paced in (("naive", one, partial(numpy_loop, number)), ("ours", small[0], ours)):
        n = enough(run, exact, wanted)
        costs[name] = best(lambda n=n, paced=paced: paced(n, END / n), repeats=3)
        table.append({"who": f"{name}, error of SDE()", "steps": n, "error of the mean": wanted, "CPU s": costs[name]})
    each = {row["who"]: row["ns"] for row in rows if row["p"] == 1}
    same = "SDE of phase retrieval, p=1, a path-step (both Euler; floor: random numbers)"
    step = "SDE of phase retrieval, p=1, a path-step (Heun against Euler; floor: random numbers)"
    end = f"SDE of phase retrieval, p=1, {number} paths to an error of {wanted:.1e}"
    lines = [
        against(end, "s", costs["ours"], costs["naive"]),
        against(same, "ns", each["native, euler"], each["NumPy loop, Euler"], each["native, random numbers alone"]),
        against(step, "ns", each["native, heun"], each["NumPy loop, Euler"], each["native, random numbers alone"]),
    ]
    report(f"SDE of phase retrieval to time {END}: error of the mean against cost", table, lines)


if __name__ == "__main__":
    main()
