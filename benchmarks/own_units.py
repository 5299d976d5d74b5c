"""What a user's own activation costs: moments, runs and fluctuations outside of the oldest closed forms.

CPU seconds on one core. Moments are timed per evaluation in a compiled loop, as in an ODE solver, at rows of norm about
one; runs are timed in this process without a cache of programs, compile time included, and a second time.

    python benchmarks/own_units.py                 # everything
    python benchmarks/own_units.py --only moments  # or flow, runs, fluctuations
"""

import argparse
import os

from common import once, report, use_one_core

use_one_core()

import jax
import jax.numpy as jnp
import numpy as np
from moments import overlaps_at, per_evaluation

os.environ["TWOLAYER_CACHE"] = "off"  # before the package is imported, since first runs compile

import twolayer as tl
from twolayer.expectation import MOMENTS, Auto, estimate

CROSS = "tanh(z1) + z1*z2"


def leaky(x):
    return jnp.where(x > 0, x, 0.1 * x)


def silu(x):
    return x * jax.nn.sigmoid(x)


def problem_of(target, unit, p: int, d: int = 1000) -> tl.Problem:
    return tl.Problem(target, tl.Student(p, unit), tl.Gaussian(d))


def moments() -> list[dict]:
    """All moments, and the largest reported error of any of them."""
    problems = {
        f"silu p=4 on {CROSS}": (problem_of(tl.MultiIndex(CROSS), silu, 4), "<= 30 ms at 1e-6"),
        "silu p=4 on a silu committee k=2": (problem_of(tl.Committee(2, silu), silu, 4), "<= 5 ms at 1e-6"),
        f"the same by Auto(1e-7), {CROSS}": (problem_of(tl.MultiIndex(CROSS), silu, 4), "<= 30 ms at 1e-6"),
        "relu p=8 on a relu committee k=4": (problem_of(tl.Committee(4, "relu"), "relu", 8), "<= 5 ms"),
    }
    rows = []
    for name, (problem, wanted) in problems.items():
        overlaps = overlaps_at(problem.p, problem.k)
        chosen = Auto(1e-7 if "Auto" in name else 1e-6).choose(problem)
        seconds, first = per_evaluation(chosen.variants()[0], problem, overlaps)
        result = estimate(chosen, problem, overlaps)
        errors = {moment: float(np.max(result.error[moment])) for moment in MOMENTS}
        worst = max(errors, key=errors.__getitem__)
        columns = {"moments": name, "engine of phi_hd": type(chosen.engine_of("phi_hd")).__name__}
        columns |= {"ms": 1e3 * seconds, "first call s": first, "reported error": errors[worst], "of": worst}
        rows.append(columns | {"wanted": wanted})
    return rows


def flow() -> list[dict]:
    """The flow of four silu units from sixteen starts."""
    problem, errors = problem_of(tl.MultiIndex(CROSS), silu, 4), []

    def work():
        result = tl.evolve(problem, tl.SGD(0.5), tl.SaadSolla(), until=10.0, replicas=16)
        errors.append(float(np.nanmax(result.risk_error)))

    row = {"run": f"SaadSolla, silu p=4 on {CROSS}, 16 starts to 10", "first s": once(work), "second s": once(work)}
    return [row | {"risk_error": errors[0], "wanted": "<= 8 s at 1e-4"}]


def runs() -> list[dict]:
    """Three descriptions of two leaky rectifiers, given as a JAX function, from eight starts."""
    problem = problem_of(tl.MultiIndex("sin(z1) + z1*z2/2", k=2), leaky, 2)
    rows = []
    for description in (tl.SaadSolla(), tl.OverlapSGD(), tl.DirectSGD()):

        def work(description=description):
            return tl.evolve(problem, tl.SGD(0.5), description, until=10.0, replicas=8)

        rows.append({"run": type(description).__name__, "first s": once(work), "second s": once(work)})
    total = {key: sum(row[key] for row in rows) for key in ("first s", "second s")}
    return [*rows, {"run": "leaky relu p=2 on sin(z1) + z1*z2/2, the three", **total}]


def scatter() -> list[dict]:
    """Fluctuations of three erf units that learn a relu."""
    problem, errors = problem_of(tl.Committee(1, "relu"), "erf", 3), []

    def work():
        result = tl.fluctuations(problem, tl.SGD(0.5), np.linspace(0.0, 2.0, 9))
        errors.append(str(result.attrs.get("method", "")))

    row = {"run": "fluctuations, erf p=3 on relu, to 2", "first s": once(work), "second s": once(work)}
    return [row | {"method": errors[0], "wanted": "<= 10 s"}]


PARTS = {"moments": moments, "flow": flow, "runs": runs, "fluctuations": scatter}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS)
    for name in parser.parse_args().only or PARTS:
        report(f"own units: {name}", PARTS[name]())
        print(flush=True)


if __name__ == "__main__":
    main()
