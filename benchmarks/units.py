"""All moments of units of any kind, by the engine that serves them and by those that would without it.

Each time is CPU time on one core, the best of repeats, per evaluation inside a compiled loop; the first call, which
compiles, is apart. The error is the largest over all moments that the engines report, and the naive way is plain Monte
Carlo with as many points as this error demands, or one of 1e-6 if that is larger. With ``--runs`` whole runs from eight
starts follow: the first in a process, which compiles, and the second.

    python benchmarks/units.py
    python benchmarks/units.py --runs
"""

import sys

from common import against, once, report, use_one_core

use_one_core()

import jax
import jax.numpy as jnp
import numpy as np
from moments import monte_carlo, overlaps_at, per_evaluation

import twolayer as tl
from twolayer.expectation import MOMENTS, Auto, estimate


def bump(x):
    return jnp.exp(-((x - 0.5) ** 2))


def leaky(x):
    return jnp.where(x > 0, x, 0.1 * x)


# The least error at which Monte Carlo is timed.
ACCURACY = 1e-6
# Name, activation, width, target, and the engines without the one that serves the problem.
CLOSED = ("Slices", "Series", "Ridges", "Cloud")
ALONG = ("Slices", "Series", "Cloud")
UNITS = (
    ("leaky relu", "leaky_relu", 2, tl.Committee(1, "leaky_relu"), CLOSED),
    ("bump", bump, 2, tl.Committee(1, bump), CLOSED),
    ("relu", "relu", 8, tl.Committee(4, "relu"), None),
    ("leaky relu", "leaky_relu", 8, tl.Committee(4, "leaky_relu"), None),
    ("leaky relu", leaky, 2, tl.MultiIndex("sin(z1) + z1*z2/2", k=2), ALONG),
    ("relu", "relu", 2, tl.MultiIndex("tanh(z1) + z1*z2/2", k=2), ALONG),
    ("silu", jax.nn.silu, 2, tl.MultiIndex("tanh(z1) + z1*z2", k=2), ALONG),
    ("silu", jax.nn.silu, 2, tl.Committee(2, jax.nn.silu), ALONG),
)


def row(name: str, unit, p: int, target, engines: tuple[str, ...] | None) -> tuple[dict, float]:
    problem = tl.Problem(target, tl.Student(p, unit), tl.Gaussian(99), noise=0.1)
    overlaps, chosen = overlaps_at(p, problem.k), Auto(engines=engines).choose(problem)
    seconds, first = per_evaluation(chosen.variants()[0], problem, overlaps)
    reported = estimate(chosen, problem, overlaps).error
    error = max(float(np.max(reported[moment])) for moment in MOMENTS)
    formula = getattr(target, "function", None)
    shown = f"{name} p={p} on {f'{problem.k} of its kind' if formula is None else formula.text}"
    columns = {"problem": shown, "engine of phi_hd": type(chosen.engine_of("phi_hd")).__name__}
    columns |= {"reported error": error, "milliseconds": 1e3 * seconds, "first call s": first}
    return columns, monte_carlo(problem, overlaps, max(error, ACCURACY))


def runs() -> list[dict]:
    """Three descriptions of leaky relu, given as a JAX function, from eight starts."""
    target, student = tl.MultiIndex("sin(z1) + z1*z2/2", k=2), tl.Student(2, tl.Custom(leaky))
    problem = tl.Problem(target, student, tl.Gaussian(200))
    rows = []
    for description in (tl.SaadSolla(), tl.OverlapSGD(), tl.DirectSGD()):

        def work(description=description):
            return tl.evolve(problem, tl.SGD(0.5), description, until=10.0, replicas=8)

        rows.append({"description": type(description).__name__, "first s": once(work), "second s": once(work)})
    return rows


def main() -> None:
    rows, summary = [], []
    for name, unit, p, target, without in UNITS:
        columns, naive = row(name, unit, p, target, None)
        rows.append(columns)
        what = f"moments, {columns['problem']}, error {max(columns['reported error'], ACCURACY):.0e}"
        summary.append(against(what, "ms", columns["milliseconds"], 1e3 * naive))
        if without:
            rows.append(row(name, unit, p, target, without)[0])
    report("moments of units of any kind", rows, summary)
    if "--runs" in sys.argv:
        report("runs of leaky relu on sin(z1) + z1*z2/2, eight starts", runs())


if __name__ == "__main__":
    main()
