"""Mean-field flows: ten thousand particles of HDMF, k = 2, to time 100 with all errors, and single right-hand sides.

An erf student on an erf committee. The naive right-hand sides are NumPy, vectorised over particles and points (HDMF,
the same rule) or over pairs (MeanField, the same cosines), and give the same numbers. Seconds are of one core; with
``--cores 2`` of the wall clock on two, since that is how a user waits.

    python benchmarks/mean_field.py
    python benchmarks/mean_field.py --cores 2
"""

import sys
import time
from functools import partial

from common import against, best, once, report, use_one_core

WALL = sys.argv[1:] == ["--cores", "2"]
if not WALL:
    use_one_core()

import equinox as eqx
import jax
import numpy as np
from scipy.special import erf

import twolayer as tl
from twolayer.ask import Ask, make_plan
from twolayer.core.precision import double
from twolayer.expectation import Auto
from twolayer.theory.hdmf import field_landscapes
from twolayer.theory.mean_field import pair_landscapes
from twolayer.theory.motion.particles import Particles, draw_particles

PARTICLES, PAIRED, D, UNTIL = 10_000, 200, 20, 100.0
TRAINING = tl.SGD(0.1)


def seconds_of(work, repeats=5):
    """CPU seconds on one core, or seconds of the clock on two."""
    if not WALL:
        return best(work, repeats)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def naive_fields(b: np.ndarray, s: np.ndarray, points: np.ndarray, weights: np.ndarray, f: np.ndarray) -> np.ndarray:
    """The forces on the directions b of all particles, at a = 1."""
    scale = 1.0 / np.sqrt(1.0 + s**2)
    x = (b * scale[:, None]) @ points.T
    residual = weights * (f - np.mean(erf(x / np.sqrt(2.0)), axis=0))
    return np.sqrt(2.0 / np.pi) * scale[:, None] * (np.exp(-0.5 * x**2) @ (residual[:, None] * points))


def naive_pairs(b: np.ndarray, s: np.ndarray, rho: np.ndarray, weights: np.ndarray, k: int) -> np.ndarray:
    """The forces on the directions b, from the integrals of pairs at each cosine."""
    n, force = len(s), 0.0
    both = np.concatenate([b, np.eye(k)])
    c = np.concatenate([-np.ones(n) / n, np.ones(k) / k])
    for cosine, weight in zip(rho, weights, strict=True):
        among = s[:, None] * s[None, :] * np.where(np.eye(n), 1.0, cosine)
        C = b @ both.T
        C[:, :n] += among
        one = 1.0 + np.concatenate([np.sum(b**2, axis=1) + s**2, np.ones(k)])
        D = 2.0 / np.pi * c / np.sqrt(one[:n, None] * one[None, :] - C**2)
        force = force + weight * (D @ both - (np.sum(D * C, axis=1) / one[:n])[:, None] * b)
    return force


def row(what: str, number: int, work, naive: float, error: float = 0.0, repeats: int = 5) -> dict:
    start = time.perf_counter()
    compiling = once(work)
    compiling = time.perf_counter() - start if WALL else compiling
    seconds = seconds_of(work, repeats)
    return {
        "what": what,
        "particles": number,
        "seconds": seconds,
        "compile s": compiling - seconds,
        "faster": naive / seconds if naive else float("nan"),
        "error": error,
    }


def particles_of(problem: tl.Problem, number: int) -> Particles:
    plan = make_plan(problem, TRAINING, Ask(until=1.0, save=2, replicas=1, seed=0))
    return jax.tree.map(lambda x: x[0], draw_particles(problem, plan, number)[0])


def main() -> None:
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(1000))
    small = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(D))
    force = eqx.filter_jit(lambda landscape, particles: landscape.force(particles, with_a=False)[1:])
    rows = []
    with double():
        for name, naive, landscape, start in (
            (
                "HDMF",
                naive_fields,
                field_landscapes(problem, PARTICLES, 1e-5).variants[0],
                particles_of(problem, PARTICLES),
            ),
            (
                "MeanField",
                naive_pairs,
                pair_landscapes(small, PAIRED, Auto(1e-8)).variants[0],
                particles_of(small, PAIRED),
            ),
        ):
            b, s = np.asarray(start.b), np.asarray(start.s)
            if name == "HDMF":
                args = tuple(
                    np.asarray(x) for x in (landscape.rule.points, landscape.rule.weights, landscape.rule.values)
                )
            else:
                args = (np.asarray(landscape.cosines.points), np.asarray(landscape.cosines.weights), 2)
            plain = seconds_of(partial(naive, b, s, *args))
            rows.append(
                {"what": f"{name}, one right-hand side, NumPy", "particles": len(s), "seconds": plain}
                | {"compile s": 0.0, "faster": 1.0, "error": 0.0}
            )
            off = float(np.max(np.abs(naive(b, s, *args) - np.asarray(force(landscape, start)[0]))))
            ours = partial(lambda landscape, start: jax.block_until_ready(force(landscape, start)), landscape, start)
            rows.append(row(f"{name}, one right-hand side", len(s), ours, plain, off))
    found = {}

    def run() -> None:
        found["result"] = tl.evolve(problem, TRAINING, tl.HDMF(particles=PARTICLES), until=UNTIL, save=20)

    whole = row(f"HDMF to time {UNTIL:g}, with errors", PARTICLES, run, 0.0, repeats=1)
    whole["error"] = float(found["result"].risk_error.values.max())
    rows.append(whole)
    lines = [
        against(f"{ours['what']}, {ours['particles']} particles", "ms", 1e3 * ours["seconds"], 1e3 * plain["seconds"])
        for plain, ours in (rows[0:2], rows[2:4])
    ]
    report("mean_field" + (", wall clock on two cores" if WALL else ""), rows, lines)


if __name__ == "__main__":
    main()
