"""Sweeps against a loop over `evolve`, and against joblib where it is installed, on the same work and all cores.

Times are by the wall clock after everything is compiled; a machine that does other work makes all of them too long. The
loop is timed on cells that are spread over the grid, and joblib's processes on the same ones.

    python benchmarks/sweep.py [--side 64]
"""

import argparse
import time
import warnings

import numpy as np
from common import report

import twolayer as tl
from twolayer.core.machine import cores
from twolayer.sweeps.query import VERBS

# Cells of the grid on which the loop is timed.
SAMPLED = 24


def clock(work, repeats: int = 2):
    """The shortest time of a call that was made once before, and its result."""
    result, times = work(), []
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - began)
    return min(times), result


def by_joblib(calls) -> float:
    try:
        from joblib import Parallel, delayed
    except ImportError:
        return float("nan")
    with Parallel(n_jobs=cores()) as parallel:
        return clock(lambda: parallel(delayed(_call)(*call) for call in calls))[0]


def _call(problem, training, description, ask):
    return tl.evolve(problem, training, description, ask)


def row(name: str, cells: int, swept: float, calls) -> dict:
    loop, _ = clock(lambda: [_call(*call) for call in calls])
    alone, processes = loop / len(calls), by_joblib(calls) / len(calls)
    return {
        "work": name,
        "cells": cells,
        "sweep ms a cell": 1e3 * swept / cells,
        "loop ms a cell": 1e3 * alone,
        "joblib ms a cell": 1e3 * processes,
        "loop / sweep": alone * cells / swept,
    }


def phase_diagram(side: int, largest: int) -> dict:
    """Phase retrieval over learning rate and d, 100 runs to the exit in each cell."""
    ask = tl.Ask(until=4.0, save=2, replicas=100, risk_threshold=1.8, stop_at_threshold=True)
    rates, dims = np.geomspace(0.01, 0.1, side), np.unique(np.geomspace(10, largest, side).round().astype(int))

    def problem(d):
        return tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(int(d)))

    def training(rate):
        return tl.SGD(float(rate), constraint=tl.Sphere())

    over = {"training.learning_rate": rates, "problem.inputs.d": dims}
    swept, result = clock(lambda: tl.sweep(problem(50), training(0.05), "OverlapSGD", ask, over=over, workers=0))
    rng = np.random.default_rng(0)
    calls = [(problem(rng.choice(dims)), training(rng.choice(rates)), "OverlapSGD", ask) for _ in range(SAMPLED)]
    return row(f"phase retrieval, 100 runs to the exit, d = 10 to {largest}", result.cell_status.size, swept, calls)


def rates_of_an_ode(number: int) -> dict:
    problem, ask = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(1000)), tl.Ask(until=10.0)
    rates = np.linspace(0.1, 2.0, number)
    over = {"training.learning_rate": rates}
    swept, _ = clock(lambda: tl.sweep(problem, tl.SGD(0.5), "SaadSolla", ask, over=over, workers=0))
    chosen = rates[:: max(1, number // SAMPLED)]
    calls = [(problem, tl.SGD(float(rate)), "SaadSolla", ask) for rate in chosen]
    return row("ODE of an erf committee, p=4 k=2, to t=10", number, swept, calls)


def overhead(number: int) -> dict:
    """Cells that take no time, each computed by itself: all that is left is the sweep."""
    import xarray as xr

    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50))
    result = xr.Dataset({"x": ((), 1.0)}, attrs={"kind": "test"})
    kept = VERBS["exit_time"]
    VERBS["exit_time"] = lambda query: {"": result}
    try:
        over = {"run.seed": range(number)}
        swept, _ = clock(lambda: tl.sweep(problem, tl.SGD(0.1), verb="exit_time", over=over, workers=0), 1)
    finally:
        VERBS["exit_time"] = kept
    return {"work": "cells that take no time", "cells": number, "sweep ms a cell": 1e3 * swept / number}


def workers(number: int) -> dict:
    """Cells of a second each on one and on two workers; the start of the workers counts."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(1000))
    ask = tl.Ask(until=20.0, save=3, replicas=64)
    over = {"run.seed": range(number)}
    times = []
    for processes in (1, 2):
        began = time.perf_counter()
        tl.sweep(problem, tl.SGD(0.2), "DirectSGD", ask, over=over, workers=processes)
        times.append(time.perf_counter() - began)
    return {"work": "direct SGD on workers", "cells": number, "one worker s": times[0], "two workers s": times[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=64)
    side = parser.parse_args().side
    warnings.simplefilter("ignore", tl.Caution)
    report("sweep", [phase_diagram(side, largest) for largest in (100, 1000)])
    report("sweep", [rates_of_an_ode(10 * side)])
    report("sweep", [overhead(10_000)])
    report("sweep", [workers(12)])


if __name__ == "__main__":
    main()
