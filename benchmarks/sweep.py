"""Sweeps against a loop over `evolve`, and against joblib where it is installed, on the same work and all cores.

Times are by the wall clock after everything is compiled; a machine that does other work makes all of them too long,
those of CPU least. The loop is timed on cells that are spread over the grid, and joblib's processes
(``pip install joblib``) on the same ones.

    python benchmarks/sweep.py [--side 64] [--only diagram|ode|overhead|compare|workers|dask|replicas|gram]
"""

import argparse
import contextlib
import dataclasses
import os
import resource
import time
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from common import report

import twolayer as tl
from twolayer.core.machine import cores
from twolayer.kernel import GramProduct
from twolayer.sweeps.query import VERBS
from twolayer.sweeps.workers import local

# Cells of the grid on which the loop is timed.
SAMPLED = 24
# A simulation and a theory, for comparisons.
PAIR = ("OverlapSGD", "SaadSolla")


class Times(NamedTuple):
    """Seconds by the wall clock, and of CPU in this process."""

    wall: float
    cpu: float


def clock(work, repeats: int = 2):
    """The shortest times of a call that was made once before, and its result."""
    result, times = work(), []
    for _ in range(repeats):
        began = time.perf_counter(), time.process_time()
        result = work()
        times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return Times(*map(min, zip(*times, strict=True))), result


def by_joblib(calls) -> float:
    try:
        from joblib import Parallel, delayed
    except ImportError:
        print("joblib is left out, since it is not installed: pip install joblib.")
        return float("nan")
    with Parallel(n_jobs=cores()) as parallel:
        return clock(lambda: parallel(delayed(_call)(*call) for call in calls))[0].wall


def _call(problem, training, descriptions, ask):
    verb = tl.evolve if isinstance(descriptions, str) else tl.compare
    return verb(problem, training, descriptions, ask)


def row(name: str, cells: int, swept: Times, calls) -> dict:
    loop, _ = clock(lambda: [_call(*call) for call in calls])
    alone, processes = loop.wall / len(calls), by_joblib(calls) / len(calls)
    return {
        "work": name,
        "cells": cells,
        "sweep ms a cell": 1e3 * swept.wall / cells,
        "loop ms a cell": 1e3 * alone,
        "joblib ms a cell": 1e3 * processes,
        "loop / sweep": alone * cells / swept.wall,
        "sweep CPU ms": 1e3 * swept.cpu / cells,
        "loop CPU ms": 1e3 * loop.cpu / len(calls),
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


def comparisons(side: int) -> dict:
    """Runs against the ODE with a verdict in every cell, over learning rate and noise."""
    problem, members = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(300)), PAIR
    ask, rates, noises = tl.Ask(until=2.0, save=5, replicas=32), np.geomspace(0.01, 0.1, side), np.linspace(0, 1, side)
    over = {"training.learning_rate": rates, "problem.noise": noises + 0.1}
    swept, _ = clock(lambda: tl.sweep(problem, tl.SGD(0.05), members, ask, verb="compare", over=over, workers=0))
    rng, noisy = np.random.default_rng(0), partial(dataclasses.replace, problem)
    calls = [
        (noisy(noise=float(rng.choice(noises)) + 0.1), tl.SGD(float(rng.choice(rates))), members, ask)
        for _ in range(SAMPLED)
    ]
    return row("phase retrieval, 32 runs against the ODE with a verdict", side * side, swept, calls)


def takes_no_time() -> None:
    """Let one verb give a result at once, in the process that calls this."""
    import xarray as xr

    from twolayer.sweeps.query import VERBS

    result = xr.Dataset({"x": ((), 1.0)}, attrs={"kind": "test"})
    VERBS["exit_time"] = lambda query: {"": result}


def overhead(number: int, name: str = "cells that take no time", client=None) -> dict:
    """Cells that take no time, each computed by itself: all that is left is the sweep."""
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50))
    workers = 0 if client is None else None
    kept = VERBS["exit_time"]
    takes_no_time()
    try:
        over = {"run.seed": range(number)}
        began = time.perf_counter(), time.process_time()
        tl.sweep(problem, tl.SGD(0.1), verb="exit_time", over=over, workers=workers, scheduler=client)
        swept, used = time.perf_counter() - began[0], time.process_time() - began[1]
    finally:
        VERBS["exit_time"] = kept
    return {
        "work": name,
        "cells": number,
        "sweep ms a cell": 1e3 * swept / number,
        "CPU ms a cell": 1e3 * used / number,
        "peak MB": peak(),
    }


def peak() -> float:
    """The most memory that this process has taken, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def overhead_of_a_worker(number: int) -> dict:
    """The same through the scheduler and one worker of one core; the CPU time is that of the client alone."""
    with workers_of_one_core(1) as client:
        client.run(takes_no_time)
        overhead(100, client=client)  # the worker has to import the package first
        return overhead(number, "the same through a worker of Dask", client)


def many_replicas(replicas: int) -> dict:
    """Phase retrieval in d = 100 reduced to statistics by two workers of one core each."""
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100))
    ask = tl.Ask(until=0.1, save=2, replicas=replicas, risk_threshold=1.9)
    training = tl.SGD(0.05, constraint=tl.Sphere())
    with workers_of_one_core(2) as client:
        before = peak()
        began = time.perf_counter()
        result = tl.sweep(problem, training, "OverlapSGD", ask, statistics=True, scheduler=client)
        seconds = time.perf_counter() - began
    assert int(result.replicas.sum()) == replicas
    return {
        "work": "phase retrieval, d = 100, 200 steps, as statistics on two workers",
        "replicas": replicas,
        "wall s": seconds,
        "steps per second": 200 * replicas / seconds,
        "client before MB": before,
        "client peak MB": peak(),
    }


def gram_matrix(n: int) -> dict:
    """The product of a Gram matrix that is too large to be kept with one vector, by two workers of one core each."""
    rng = np.random.default_rng(0)
    X, V, chosen = rng.standard_normal((n, 20)), rng.standard_normal((n, 1)), rng.choice(n, 5)
    with workers_of_one_core(2) as client:
        product = GramProduct(X, "relu", precision="single", keep=False, client=client)
        began = time.perf_counter()
        found = product(V)[chosen]
        seconds = time.perf_counter() - began
        peaks: Any = client.run(peak)
        memory = max(peaks.values())
    expected = product.columns(chosen).T @ V
    return {
        "work": "Gram matrix of relu times a vector, by strips on two workers",
        "n": n,
        "wall s": seconds,
        "ns an entry": 1e9 * seconds / n**2,
        "relative error": float(np.max(np.abs(found - expected)) / np.max(np.abs(expected))),
        "worker peak MB": memory,
        "client peak MB": peak(),
    }


@contextlib.contextmanager
def workers_of_one_core(number: int):
    """A client of workers with one core each; alone, a worker would have all cores of the machine."""
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, every[:number])
    try:
        with local(number) as client:
            os.sched_setaffinity(0, every)
            yield client
    finally:
        os.sched_setaffinity(0, every)


def workers(number: int) -> dict:
    """Cells of a second or more each on one and on two workers of one core each, after these have compiled."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(1000))
    ask = tl.Ask(until=10.0, save=3, replicas=16)
    times = {}
    for processes in (1, 2):
        with workers_of_one_core(processes) as client:
            for seeds in (range(-processes, 0), range(number)):
                over = {"run.seed": [1000 + seed for seed in seeds]}
                began = time.perf_counter()
                tl.sweep(problem, tl.SGD(0.2), "DirectSGD", ask, over=over, scheduler=client)
                times[processes] = time.perf_counter() - began
    return {
        "work": "direct SGD on workers of one core",
        "cells": number,
        "one worker s": times[1],
        "two workers s": times[2],
        "s a cell": times[1] / number,
        "ratio": times[1] / times[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument(
        "--only", choices=["diagram", "ode", "overhead", "compare", "workers", "dask", "replicas", "gram"]
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", tl.Caution)
    calls = {
        "diagram": lambda: [phase_diagram(options.side, largest) for largest in (100, 1000)],
        "ode": lambda: [rates_of_an_ode(1000)],
        "overhead": lambda: [overhead(number) for number in (10_000, 100_000)],
        "compare": lambda: [comparisons(options.side // 2)],
        "workers": lambda: [workers(12)],
        "dask": lambda: [overhead_of_a_worker(10_000)],
        "replicas": lambda: [many_replicas(number) for number in (10**6, 10**7)],
        "gram": lambda: [gram_matrix(200_000)],
    }
    for name, work in calls.items():
        if options.only in (None, name):
            report("sweep", work())


if __name__ == "__main__":
    main()
