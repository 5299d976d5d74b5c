"""All moments of units with closed forms of their own, against the engine that serves them without these.

Each time is CPU time on one core, the best of repeats, per evaluation inside a compiled loop; the first call, which
compiles, is apart. The error is the largest over all moments that the engines report.

    python benchmarks/units.py
"""

from common import report, use_one_core

use_one_core()

import jax.numpy as jnp
import numpy as np
from moments import overlaps_at, per_evaluation

import twolayer as tl
from twolayer.expectation import MOMENTS, Auto, estimate


def bump(x):
    return jnp.exp(-((x - 0.5) ** 2))


def row(name: str, unit, p: int, k: int, engines: tuple[str, ...] | None) -> dict:
    problem = tl.Problem(tl.Committee(k, unit), tl.Student(p, unit), tl.Gaussian(99), noise=0.1)
    overlaps, chosen = overlaps_at(p, k), Auto(engines=engines).choose(problem)
    seconds, first = per_evaluation(chosen.variants()[0], problem, overlaps)
    error = estimate(chosen, problem, overlaps).error
    return {
        "problem": f"{name} p={p} k={k}",
        "engine of phi_hd": type(chosen.engine_of("phi_hd")).__name__,
        "reported error": max(float(np.max(error[moment])) for moment in MOMENTS),
        "milliseconds": 1e3 * seconds,
        "first call s": first,
    }


def main() -> None:
    before = ("Slices", "Series", "Ridges", "Cloud")
    rows = []
    for name, unit, p, k in (("leaky relu", "leaky_relu", 2, 1), ("bump", bump, 2, 1)):
        rows += [row(name, unit, p, k, engines) for engines in (None, before)]
    rows += [row(name, name, 8, 4, None) for name in ("relu", "leaky_relu")]
    report("units of one kind on both sides", rows)


if __name__ == "__main__":
    main()
