"""The integrator of all theories against diffrax on the same equation: time to trace and compile, then to solve.

The equation is that of an erf committee, from sixteen starts at once, saved at fifty times; both use the same pair of
Prince and Dormand with the same tolerances and end their steps on the save points. Diffrax is not a dependency:
``pip install diffrax`` first.

    python benchmarks/integrate.py
"""

from common import against, best, once, report, use_one_core

use_one_core()

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.core.precision import double
from twolayer.expectation import choose
from twolayer.theory.motion.integrate import solve
from twolayer.theory.saad_solla import as_state

P, K, STARTS, RTOL, ATOL = 4, 2, 16, 1e-8, 1e-10
TIMES = np.linspace(0.0, 50.0, 50)


def by_diffrax(flow: Any, start: Any) -> Any:
    controller = diffrax.ClipStepSizeController(diffrax.PIDController(rtol=RTOL, atol=ATOL), step_ts=TIMES)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: flow.velocity(y)), diffrax.Dopri8(), TIMES[0], TIMES[-1], None, start,
        saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES)), stepsize_controller=controller, max_steps=10_000,
        event=diffrax.Event(lambda t, y, args, **_: flow.largest(y) > 1e6), throw=False,
    ).ys  # fmt: skip


def by_ours(flow: Any, start: Any) -> Any:
    return solve(
        lambda t, y, args: flow.velocity(y), start, jnp.asarray(TIMES), None, RTOL, ATOL, 10_000,
        lambda y, args: flow.largest(y) > 1e6,
    ).states  # fmt: skip


def main() -> None:
    with double():
        problem, training = tl.Problem(tl.Committee(K, "erf"), tl.Student(P, "erf"), tl.Gaussian(400)), tl.SGD(1.0)
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((STARTS, P, 20)) / np.sqrt(20)
        begun = [tl.Overlaps(w @ w.T, w[:, :K], np.eye(K), np.ones(P)) for w in rows]
        starts = jax.tree.map(lambda *x: jnp.stack(x), *(as_state(overlaps) for overlaps in begun))
        description = tl.SaadSolla()
        flow = description.flow(choose(problem), problem, training, jnp.eye(K))
        rows, results = [], {}
        for name, method in (("diffrax", by_diffrax), ("ours", by_ours)):
            program = jax.jit(jax.vmap(lambda start, method=method: method(flow, start)))
            first = once(lambda program=program: jax.block_until_ready(program(starts)))
            again = best(lambda program=program: jax.block_until_ready(program(starts)))
            results[name] = (program(starts), first - again, again)
            lines = len(program.lower(starts).as_text().splitlines())
            rows.append({"integrator": name, "compile": first - again, "solve": again, "lines": lines})
        apart = jax.tree.map(lambda x, y: jnp.max(jnp.abs(x - y)), results["ours"][0], results["diffrax"][0])
        assert max(map(float, jax.tree.leaves(apart))) < 1e-5
        (_, ours, solving), (_, theirs, solving_there) = results["ours"], results["diffrax"]
        summary = [
            against("trace and compile an ODE", "s", ours, theirs),
            against("solve it from 16 starts", "s", solving, solving_there),
        ]
        report("integrate", rows, summary)


if __name__ == "__main__":
    main()
