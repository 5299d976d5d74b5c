"""The ODE of an erf committee, p = k = 4, to time 1000: ours against fixed-step Euler at the same error, on one core.

Both solve the same equations from the same start; the error is the largest deviation of any overlap, at ten times from
1 to 1000 that include the escape from the plateau, from a solution at a tolerance of 1e-13. Euler is the plain NumPy
loop of the field, vectorised over units. ``faster`` compares with the finest Euler run, whose error is larger than any
of ours; at equal error the distance is larger still, since Euler's error is only proportional to its step.

    python benchmarks/saad_solla.py
"""

import time
from itertools import pairwise

from common import against, best, once, report, use_one_core

use_one_core()

import jax
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.ask import Ask, make_plan
from twolayer.core.precision import double
from twolayer.expectation import choose
from twolayer.specification.fields import as_data
from twolayer.theory.motion.flow import trajectories
from twolayer.theory.saad_solla import as_state

P, K, GAMMA = 4, 4, 0.5
TIMES = np.array([0.0, 1.0, 4.0, 16.0, 50.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0])


def euler_drift(Q: np.ndarray, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The soft committee machine in NumPy, all units at once."""
    C = np.block([[Q, M], [M.T, np.eye(K)]])
    c = np.concatenate([-np.ones(P) / P, np.ones(K) / K])
    one = 1 + np.diagonal(C)
    S = C[:P]
    L3 = one[:P, None] * one[None, :] - S**2
    numerator = C[None] * one[:P, None, None] - S[:, :, None] * S[:, None, :]
    v = np.einsum("juw,w->ju", 2 / np.pi * numerator / (one[:P, None, None] * np.sqrt(L3)[:, None, :]), c)
    det = L3[:, :P]
    a, b = S[:, None, :], S[None, :, :]
    inverse = (
        one[None, :P, None, None] * a[..., :, None] * a[..., None, :]
        - Q[:, :, None, None] * (a[..., :, None] * b[..., None, :] + b[..., :, None] * a[..., None, :])
        + one[:P, None, None, None] * b[..., :, None] * b[..., None, :]
    ) / det[:, :, None, None]
    R = C[None, None] - inverse
    diagonal = 1 + np.einsum("jluu->jlu", R)
    I4 = 4 / np.pi**2 / np.sqrt(det)[:, :, None, None]
    I4 = I4 * np.arcsin(R / np.sqrt(diagonal[..., :, None] * diagonal[..., None, :]))
    hd = np.einsum("jluw,u,w->jl", I4, c, c)
    return v[:, :P] + v[:, :P].T + GAMMA / P * hd, v[:, P:]


def euler(Q: np.ndarray, M: np.ndarray, steps_per_time: int) -> tuple[np.ndarray, np.ndarray]:
    """Fixed-step Euler; Q and M at the save times."""
    dt, saved = 1.0 / steps_per_time, [(Q, M)]
    for before, after in pairwise(TIMES):
        for _ in range(round((after - before) * steps_per_time)):
            dQ, dM = euler_drift(Q, M)
            Q, M = Q + dt * dQ, M + dt * dM
        saved.append((Q, M))
    return np.stack([q for q, _ in saved]), np.stack([m for _, m in saved])


def main() -> None:
    problem = tl.Problem(tl.Committee(K, "erf"), tl.Student(P, "erf"), tl.Gaussian(1000))
    training = tl.SGD(GAMMA)
    rows = []
    with double():
        plan = make_plan(problem, training, Ask(until=TIMES[-1], save=list(TIMES), replicas=1, seed=0))
        engine = choose(problem)
        times = jnp.asarray(TIMES)
        limit = np.asarray(plan.limit)

        def solve(description: tl.SaadSolla) -> tuple[np.ndarray, np.ndarray]:
            flow = description.flow(engine, *as_data((problem, training)), plan.starts.P)
            accuracy = description.accuracy(engine).looser(1.0)
            saved = trajectories(flow, as_state(plan.starts), (), times, accuracy, limit)[0]
            return np.asarray(saved.Q[0]), np.asarray(saved.M[0])

        reference = solve(tl.SaadSolla(rtol=1e-13, atol=1e-15))

        def error(solution: tuple[np.ndarray, np.ndarray]) -> float:
            return max(float(np.max(np.abs(x - y))) for x, y in zip(solution, reference, strict=True))

        Q, M = np.asarray(plan.starts.Q[0]), np.asarray(plan.starts.M[0])
        for steps_per_time in (2, 8, 32):
            start = time.process_time()
            deviation = error(euler(Q, M, steps_per_time))
            seconds = time.process_time() - start
            row = {
                "what": "Euler, NumPy",
                "tolerance": f"step 1/{steps_per_time}",
                "error": deviation,
                "seconds": seconds,
            }
            rows.append(row | {"compile s": 0.0, "faster": 1.0})
        finest = seconds
        for rtol in (1e-4, 1e-6, 1e-8, 1e-10):
            description = tl.SaadSolla(rtol=rtol, atol=rtol / 100)
            compiling = once(lambda description=description: (jax.clear_caches(), solve(description)))
            seconds = best(lambda description=description: solve(description))
            row = {
                "what": "SaadSolla",
                "tolerance": f"rtol {rtol:g}",
                "error": error(solve(description)),
                "seconds": seconds,
            }
            rows.append(row | {"compile s": compiling - seconds, "faster": finest / seconds})
    ours = next(row for row in rows if row["tolerance"] == "rtol 1e-06")
    what = f"ODE of an erf committee to time 1000 (error {ours['error']:.0e}; naive: Euler, {rows[2]['error']:.0e})"
    report("saad_solla", rows, [against(what, "s", ours["seconds"], finest)])


if __name__ == "__main__":
    main()
