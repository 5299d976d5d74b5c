"""Direct SGD on the weights: ours against a plain NumPy loop on the same work, on one core.

Online SGD of an erf student, p = 4, on an erf committee, k = 2, in d = 1000 dimensions, batch size 1. The floor is the
random numbers: d normals per step.

    python benchmarks/direct_sgd.py
"""

from functools import partial

from common import against, best, once, report, use_one_core

use_one_core()

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

import twolayer as tl
from twolayer.ask import Ask, make_plan
from twolayer.core.precision import double
from twolayer.simulation import direct

P, K, D = 4, 2, 1000


def numpy_loop(steps: int) -> np.ndarray:
    """The loop anyone would write."""
    rng = np.random.default_rng(0)
    W = rng.standard_normal((P, D)) / np.sqrt(D)
    W_star = rng.standard_normal((K, D)) / np.sqrt(D)
    a = np.ones(P)
    for _ in range(steps):
        z = rng.standard_normal(D)
        lam, lam_star = W @ z, W_star @ z
        eps = erf(lam_star / np.sqrt(2)).mean() - a @ erf(lam / np.sqrt(2)) / P
        slope = np.sqrt(2 / np.pi) * np.exp(-(lam**2) / 2)
        W += np.outer(eps * a * slope / (P * D), z)
    return W


def advance(
    problem: tl.Problem, training: tl.SGD, weights: direct.Weights, frozen: direct.Frozen, steps: int, groups: int
) -> None:
    """So many steps of so many groups of replicas, one after another."""
    for _ in range(groups):
        after = direct._advance("single", problem, training, weights, frozen, np.asarray(0), np.asarray(steps))
        after.W.block_until_ready()


def floor_seconds() -> float:
    """CPU seconds to draw the d normals of one step, in compiled blocks of 16 steps, added up so that they are used."""
    block, blocks = (16, D), 256

    @jax.jit
    def draw(key: jax.Array) -> jax.Array:
        def body(index: jax.Array, total: jax.Array) -> jax.Array:
            return total + jax.random.normal(jax.random.fold_in(key, index), block, jnp.float32)

        return jax.lax.fori_loop(0, blocks, body, jnp.zeros(block, jnp.float32))

    draw(jax.random.key(0)).block_until_ready()
    return best(lambda: draw(jax.random.key(1)).block_until_ready()) / (blocks * block[0])


def main() -> None:
    problem = tl.Problem(tl.Committee(K, "erf"), tl.Student(P, "erf"), tl.Gaussian(D))
    training = tl.SGD(1.0)
    steps = 4000
    plain = best(lambda: numpy_loop(steps)) / steps
    rows = [{"what": "NumPy loop", "replicas": 1, "us/step": plain * 1e6, "ratio": 1.0, "compile s": 0.0}]
    with double():
        floor = floor_seconds()
        rows.append(
            {
                "what": "floor: d normals",
                "replicas": 1,
                "us/step": floor * 1e6,
                "ratio": plain / floor,
                "compile s": 0.0,
            }
        )
        for replicas in (1, 16, 64):
            plan = make_plan(problem, training, Ask(until=1.0, save=2, replicas=replicas, seed=0))
            groups = max(1, replicas // direct.GROUP)
            width = min(replicas, direct.GROUP)
            starts = tl.Overlaps(plan.starts.Q[:width], plan.starts.M[:width], plan.starts.P, plan.starts.a[:width])
            weights, frozen = direct._prepare("single", problem, training, starts, plan.keys[:width])
            count = steps if replicas == 1 else 512
            work = partial(advance, problem, training, weights, frozen, count, groups)
            compiling = once(work)
            seconds = best(work)
            each = seconds / (count * width * groups)
            rows.append(
                {
                    "what": "DirectSGD",
                    "replicas": replicas,
                    "us/step": each * 1e6,
                    "ratio": plain / each,
                    "compile s": compiling - seconds,
                }
            )
    ours = next(row["us/step"] for row in rows if row["replicas"] == 16)
    line = against(
        f"SGD on the weights, erf p={P} k={K}, d={D}, a step (floor: d normals of JAX)",
        "us",
        ours,
        1e6 * plain,
        1e6 * floor,
    )
    report("direct_sgd", rows, [line])


if __name__ == "__main__":
    main()
