"""One step of the overlap process: native code and XLA on one core, or the kernel on a GPU; and direct SGD beside it.

Times are per replica and step, after compilation, the best of repeats (CPU time on one core; wall time on a GPU).

    python benchmarks/overlap_sgd.py
"""

import time
from functools import partial

from common import against, best, report, use_one_core

use_one_core()

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.ask import Ask, make_plan
from twolayer.compiler import loops as kernels
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.simulation import direct, drivers, overlap, overlap_sgd
from twolayer.specification.fields import as_data

tl.precision("double")
NOTHING = Watch(False, False)
ON_GPU = jax.default_backend() != "cpu"


def prepared(problem, training, replicas: int):
    """The setting and the replicas at their start."""
    problem, training = as_data((problem, training))
    made = overlap.make_setting(problem, training)
    keys = jax.vmap(lambda n: replica_key(0, n))(jnp.arange(replicas))
    starts = jax.jit(lambda keys: problem.draw_many(keys))(keys)
    return made, overlap_sgd._begin(made, NOTHING, starts, keys, np.zeros((replicas, 2)))


def seconds(advance, run, steps: int) -> tuple[float, float]:
    """Of one step, and of the first call."""

    def go(count: int) -> None:
        jax.block_until_ready(advance(run, np.asarray(0), np.asarray(count)))

    began = time.perf_counter()
    go(2)
    first = time.perf_counter() - began
    if not ON_GPU:
        return best(lambda: go(steps)) / steps, first
    times = []
    for _ in range(5):
        began = time.perf_counter()
        go(steps)
        times.append(time.perf_counter() - began)
    return min(times) / steps, first


def choices(made, replicas: int):
    program = drivers.written_out(made, NOTHING)
    if ON_GPU:
        yield "kernel", partial(drivers.advance_compiled, eqx.Partial(kernels.by_kernel, program))
        yield "scan", partial(drivers.advance_compiled, eqx.Partial(kernels.by_vectors, program))
        return
    native = kernels.native(program, replicas)
    yield "native", partial(drivers.advance_written, partial(kernels.by_native, native))
    yield "XLA", lambda *arguments: drivers.advance_xla(made, NOTHING, *arguments)


def erf(d: int, **choices):
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(d))
    return problem, tl.SGD(1.0, **choices)


def phase(d: int):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d))
    return problem, tl.SGD(1 / 12, constraint=tl.Sphere())


def main() -> None:
    rows = []
    sizes = (10**5, 10**6) if ON_GPU else (1, 1024)
    cases = [("phase retrieval p=1", phase, 10**6), ("erf p=4 k=2", erf, 100), ("erf p=4 k=2", erf, 10**9)]
    for name, make, d in cases:
        for replicas in sizes:
            made, run = prepared(*make(d), replicas)
            for driver, advance in choices(made, replicas):
                steps = max(50, int(((4e9 if driver == "kernel" else 4e8) if ON_GPU else 5e5) / replicas))
                each, first = seconds(advance, run, steps)
                rows.append(
                    {
                        "problem": name,
                        "d": f"{d:.0e}",
                        "replicas": replicas,
                        "driver": driver,
                        "ns a replica-step": 1e9 * each / replicas,
                        "replica-steps/s": replicas / each,
                        "first call s": first,
                    }
                )
    process = rows
    report("overlap process, one sample a step", rows)
    print()
    rows = []
    for d in (10**6, 10**9) if ON_GPU else (10**6,):
        made, run = prepared(*erf(d, batch_size=d), 1)
        for backend in ("auto", "xla") if ON_GPU else ("xla",):
            advance, driver = tl.OverlapSGD(backend=backend)._driver(made, NOTHING, 1)
            each, first = seconds(advance, run, 2)
            row = {"batch = d": f"{d:.0e}", "driver": driver, "s a step": each, "ns a sample": 1e9 * each / d}
            rows.append(row | {"first call s": first})
    report("overlap process, batches of d samples, erf p=4 k=2", rows)
    print()
    rows = []
    for d in (100, 1000, 10_000):
        problem, training = as_data(erf(d))
        replicas = 16_384 if ON_GPU else 8
        plan = make_plan(problem, training, Ask(until=1.0, save=2, replicas=replicas, seed=0))
        weights, frozen = direct._prepare("single", problem, training, plan.starts, plan.keys)
        for backend in ("native", "xla"):
            advance, driver, _ = tl.DirectSGD(backend=backend)._driver(problem, training, 0)
            steps = 400_000 // d
            each, first = seconds(lambda _, *span: advance(weights, frozen, *span), None, steps)  # noqa: B023
            rows.append(
                {
                    "DirectSGD at d": d,
                    "replicas": replicas,
                    "driver": driver,
                    "us a replica-step": 1e6 * each / replicas,
                    "steps/s": replicas / each,
                    "ns a number": 1e9 * each / replicas / d,
                    "first call s": first,
                }
            )
    weights_step = min(1e3 * row["us a replica-step"] for row in rows if row["DirectSGD at d"] == 10_000)
    overlap_step = min(step["ns a replica-step"] for step in process if step["problem"].startswith("erf"))
    what = "SGD, erf p=4 k=2, a replica-step (ours: overlaps, d=10^9; naive: weights, d=10^4)"
    report("direct SGD, erf p=4 k=2", rows, [against(what, "ns", overlap_step, weights_step)])


if __name__ == "__main__":
    main()
