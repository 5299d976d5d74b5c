"""All Gaussian moments of one right-hand side: ours, the way of the field's codes, and plain Monte Carlo.

Each time is CPU time on one core, the best of repeats, per evaluation inside a compiled loop, as in an ODE solver; the
first call, which compiles, is apart. The error is the largest over all moments that the engines report. Plain Monte
Carlo is a compiled evaluation of the same integrands at 2^17 independent points; its time is scaled to the number of
points at which its standard error is the accuracy named.

    python benchmarks/moments.py
"""

from common import against, best, once, report, use_one_core

use_one_core()

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.expectation import MOMENTS, Auto, estimate
from twolayer.problem import Overlaps

tl.precision("double")
POINTS = 2**17


def overlaps_at(p: int, k: int, seed: int = 0) -> Overlaps:
    rng = np.random.default_rng(seed)
    M = 0.5 * rng.standard_normal((p, k)) / np.sqrt(k)
    L = rng.standard_normal((p, p)) / np.sqrt(p)
    return Overlaps(jnp.asarray(M @ M.T + L @ L.T), jnp.asarray(M), jnp.eye(k), jnp.asarray(rng.standard_normal(p)))


@eqx.filter_jit
def repeated(engine, problem, overlaps, times):
    """The moments again and again, each time at overlaps moved by the last ones, so that nothing is computed once."""

    def step(_, Q):
        parts = engine.parts(problem, Overlaps(Q, overlaps.M, overlaps.P, overlaps.a), MOMENTS)
        total = sum(jnp.sum(part) for part in parts.values())
        return Q + 1e-12 * total * jnp.eye(len(Q))

    return jax.lax.fori_loop(0, times, step, overlaps.Q)


def per_evaluation(engine, problem, overlaps, seconds: float = 0.3) -> tuple[float, float]:
    """Seconds of one evaluation after compilation, and of the first call."""

    def run(times):
        return jax.block_until_ready(repeated(engine, problem, overlaps, np.asarray(times)))

    first = once(lambda: run(1))
    times = max(2, int(seconds / max(best(lambda: run(2), 2) / 2, 1e-6)))
    return best(lambda: run(times)) / times, first


def numpy_erf(omega: np.ndarray, p: int, c: np.ndarray) -> tuple:
    """The erf moments as the field's codes have them: the full tensors of three and four fields, in NumPy."""
    one = 1.0 + np.diagonal(omega)
    I2 = 2 / np.pi * np.arcsin(omega / np.sqrt(np.outer(one, one)))
    C, S = omega, omega[:p]
    lam3 = one[:p, None] * one[None, :] - S**2
    top = C[None] * one[:p, None, None] - S[:, :, None] * S[:, None, :]
    I3 = 2 / np.pi * top / (one[:p, None, None] * np.sqrt(lam3)[:, None, :])
    Q, o = omega[:p, :p], one[:p]
    lam4 = o[:, None] * o[None, :] - Q**2
    i, j = S[:, None, :, None], S[None, :, :, None]
    k, l = S[:, None, None, :], S[None, :, None, :]
    oi, oj, qij = o[:, None, None, None], o[None, :, None, None], Q[:, :, None, None]
    lam0 = lam4[:, :, None, None] * C - j * l * oi - i * k * oj + qij * i * l + qij * k * j
    x, y = S[:, None, :], S[None, :, :]
    lam1 = lam4[:, :, None] * one - y**2 * o[:, None, None] - x**2 * o[None, :, None] + 2 * Q[:, :, None] * x * y
    root = np.sqrt(lam1[:, :, :, None] * lam1[:, :, None, :])
    I4 = 4 / np.pi**2 / np.sqrt(lam4)[:, :, None, None] * np.arcsin(lam0 / root)
    return 0.5 * c @ I2 @ c, I2[:p] @ c, I3 @ c, np.einsum("ijkl,k,l->ij", I4, c, c)


def monte_carlo(problem, overlaps, accuracy: float) -> float:
    """Seconds for a standard error of ``accuracy`` in the moment of largest scatter."""
    engine = Auto(engines=("MonteCarlo",)).choose(problem).engines[0]
    points = jnp.asarray(np.random.default_rng(1).standard_normal((1, POINTS, problem.p + problem.k)))
    one = eqx.tree_at(lambda e: e.normals, engine, points)
    seconds, _ = per_evaluation(one, problem, overlaps)
    clouds = [
        eqx.tree_at(lambda e: e.normals, engine, points.reshape(64, 1, -1, points.shape[-1])[i]) for i in range(64)
    ]
    evaluate = eqx.filter_jit(lambda e: e.parts(problem, overlaps, MOMENTS))
    values = [evaluate(cloud) for cloud in clouds]
    scatter = max(float(np.max(np.std([v[m] for v in values], axis=0))) / 8 for m in MOMENTS)
    return seconds * (scatter / accuracy) ** 2


def row(name: str, problem, rtol: float, accuracy: float) -> dict:
    overlaps = overlaps_at(problem.p, problem.k)
    chosen = Auto(rtol=rtol).choose(problem)
    seconds, first = per_evaluation(chosen.variants()[0], problem, overlaps)
    result = estimate(chosen, problem, overlaps)
    error = max(float(np.max(x)) for x in result.error.values())
    by_chance = monte_carlo(problem, overlaps, accuracy)
    return {
        "problem": name,
        "engine": type(chosen.engine_of("phi_hd")).__name__,
        "reported error": error,
        "microseconds": 1e6 * seconds,
        "first call s": first,
        f"Monte Carlo at {accuracy:g}": f"{by_chance:.3g} s, {by_chance / seconds:.3g}x",
    }


def erf(p: int, k: int):
    return tl.Problem(tl.Committee(k, "erf"), tl.Student(p, "erf"), tl.Gaussian(1000), noise=0.1)


def two_index(p: int, activation: str):
    return tl.Problem(tl.MultiIndex("tanh(z1) + z1*z2"), tl.Student(p, activation), tl.Gaussian(1000), noise=0.1)


def main() -> None:
    problem, overlaps = erf(8, 4), overlaps_at(8, 4)
    seconds, first = per_evaluation(Auto().choose(problem), problem, overlaps)
    omega, c = np.asarray(overlaps.omega), np.concatenate([-np.asarray(overlaps.a) / 8, np.full(4, 0.25)])
    peer = best(lambda: [numpy_erf(omega, 8, c) for _ in range(20)]) / 20
    ours = Auto().choose(problem).parts(problem, overlaps, ("v", "phi_hd"))
    found = numpy_erf(omega, 8, c)
    difference = max(float(np.max(np.abs(found[2] - ours["v"]))), 0.0)
    report(
        "erf committee, p = 8, k = 4",
        [
            {"way": "NumPy, full tensors", "microseconds": 1e6 * peer, "first call s": 0.0, "ratio": 1.0},
            {"way": "ours", "microseconds": 1e6 * seconds, "first call s": first, "ratio": peer / seconds},
        ],
        [against("all moments of an erf committee, p=8 k=4 (naive: full tensors)", "us", 1e6 * seconds, 1e6 * peer)],
    )
    print(f"largest difference of v: {difference:.1e}\n")
    report(
        "to 1e-6",
        [
            row(
                "relu committee p=4 k=2",
                tl.Problem(tl.Committee(2, "relu"), tl.Student(4, "relu"), tl.Gaussian(99)),
                1e-6,
                1e-6,
            ),
            row(
                "tanh committee p=4 k=2",
                tl.Problem(tl.Committee(2, "tanh"), tl.Student(4, "tanh"), tl.Gaussian(99)),
                1e-6,
                1e-6,
            ),
            row("tanh on tanh(z1) + z1*z2, p=2", two_index(2, "tanh"), 1e-6, 1e-6),
            row("tanh on tanh(z1) + z1*z2, p=4", two_index(4, "tanh"), 1e-6, 1e-6),
            row("erf on tanh(z1) + z1*z2, p=4", two_index(4, "erf"), 1e-6, 1e-6),
        ],
    )
    print()
    report(
        "to 1e-4",
        [
            row(
                "relu committee p=4 k=2",
                tl.Problem(tl.Committee(2, "relu"), tl.Student(4, "relu"), tl.Gaussian(99)),
                1e-4,
                1e-4,
            ),
            row("tanh on tanh(z1) + z1*z2, p=2", two_index(2, "tanh"), 1e-4, 1e-4),
            row("erf on tanh(z1) + z1*z2, p=4", two_index(4, "erf"), 1e-4, 1e-4),
            row(
                "gelu committee p=1 k=1",
                tl.Problem(tl.Committee(1, "gelu"), tl.Student(1, "gelu"), tl.Gaussian(99)),
                1e-4,
                1e-4,
            ),
        ],
    )
    print()
    rows = []
    for p in (2, 4, 8, 16):
        for activation in ("erf", "relu"):
            problem = tl.Problem(tl.Committee(2, activation), tl.Student(p, activation), tl.Gaussian(1000))
            seconds, first = per_evaluation(Auto().choose(problem).variants()[0], problem, overlaps_at(p, 2))
            tuples = p * (p + 1) // 2 * (p + 2) * (p + 3) // 2
            rows.append(
                {
                    "committee": f"{activation} p={p} k=2",
                    "tuples": tuples,
                    "microseconds": 1e6 * seconds,
                    "nanoseconds a tuple": 1e9 * seconds / tuples,
                    "first call s": first,
                }
            )
    report("cost against width", rows)


if __name__ == "__main__":
    main()
