"""DMFT against gradient descent on the weights: every overlap and both risks at each step, in standard errors.

All combinations of activation (relu, erf, tanh), p (1, 2, 4), alpha (0.5, 3), with and without momentum and noise: 72
settings. The runs of all settings share their data matrices, which are what costs; the start is the same for all runs,
so that runs of a setting differ by data and frame alone. Steps and gradients are those of `DirectSGD`.

    python benchmarks/dmft_agreement.py --d 300 --runs 20 --only "relu p=2"    # a taste, on a CPU
    python benchmarks/dmft_agreement.py --d 4000 --runs 50                     # the table; minutes on a GPU
"""

import argparse
import itertools
import json
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.core.random import Purpose, purpose_key, replica_key
from twolayer.expectation import choose, risk_along
from twolayer.expectation.qmc import T_QUANTILE
from twolayer.problem import embed
from twolayer.simulation.direct import batch_loss
from twolayer.specification.fields import as_data
from twolayer.training.update import Weights, at_rest, queried, update

tl.precision("double")
M0 = np.array([[0.2, 0.0], [0.0, 0.2], [-0.1, 0.0], [0.0, -0.1]])
A0 = np.array([1.0, -0.7, 1.2, 0.5])


class Setting(NamedTuple):
    name: str
    problem: tl.Problem
    training: tl.SGD


def settings(d: int) -> list[Setting]:
    found = []
    grid = itertools.product(("relu", "erf", "tanh"), (1, 2, 4), (0.5, 3.0), (0.0, 0.6), (0.0, 0.2))
    for activation, p, alpha, momentum, noise in grid:
        student = tl.Student(p, activation, second_layer=np.sqrt(p) * A0[:p])
        start = tl.GivenOverlaps(np.eye(p), M0[:p])
        target = tl.MultiIndex("tanh(z1 + z2) + 0.5*z1*z2", k=2)
        problem = tl.Problem(target, student, tl.Gaussian(d), start=start, noise=noise)
        training = tl.SGD(0.8 / (1.0 + alpha), reuse=tl.Reused(alpha), momentum=momentum)
        name = f"{activation} p={p} alpha={alpha:g} momentum={momentum:g} noise={noise:g}"
        found.append(Setting(name, problem, training))
    return found


@eqx.filter_jit
def data_of(key: Any, rows: int, d: int) -> tuple[Any, Any]:
    """Inputs and label noise of one run. In single precision, as `DirectSGD` draws them, and kept so."""
    Z = jax.random.normal(purpose_key(key, Purpose.DATASET), (rows, d), jnp.float32)
    return Z, jax.random.normal(purpose_key(key, Purpose.LABEL_NOISE), (rows,), jnp.float64)


@eqx.filter_jit
def trained(problem: tl.Problem, training: tl.SGD, Z: Any, xi: Any, key: Any, steps: int) -> tuple[Any, ...]:
    """Q, M, a and risk over the set before each step."""
    overlaps = problem.draw(key)
    W, W_star = embed(overlaps, problem.d, key)
    lengths = jnp.linalg.norm(W, axis=1)
    Z = Z.astype(jnp.float64)
    y = problem.target(Z @ W_star.T) + jnp.sqrt(problem.noise) * xi

    def loss(W: Any, a: Any) -> Any:
        return batch_loss(problem, W, a, Z, y)

    def step(weights: Weights, _: Any) -> Any:
        seen = weights.W @ weights.W.T, weights.W @ W_star.T, weights.a, loss(weights.W, weights.a) / len(y)
        at = queried(training, weights)
        gradient = jax.grad(loss, argnums=(0, 1))(at.W, at.a)
        return update(problem, training, weights, lengths, gradient), seen

    return jax.lax.scan(step, at_rest(training, W, overlaps.a), None, length=steps + 1)[1]


def judged(setting: Setting, runs: list[tuple[Any, ...]], steps: int, samples: int) -> dict[str, Any]:
    """The largest deviation of each variable over all steps and entries."""
    problem, training = setting.problem, setting.training
    times = training.clock(problem).time(np.arange(steps + 1))
    began = time.perf_counter()
    theory = tl.evolve(problem, training, tl.DMFT(samples=samples), until=float(times[-1]), save=times)
    seconds = time.perf_counter() - began
    Q, M, a, on_the_set = (np.stack([np.asarray(run[part]) for run in runs]) for part in range(4))
    engine = choose(problem, ("excess_risk",))
    risk = risk_along(engine, problem, Q, M, jnp.asarray(problem.P, jnp.float64), a)[0] + 0.5 * float(problem.noise)
    row: dict[str, Any] = {"setting": setting.name}
    worst = 0.0
    for name, values in {"M": M, "Q": Q, "risk": risk, "training_risk": on_the_set}.items():
        error = theory[f"{name}_error" if name.endswith("risk") else "overlap_error"].values[0] / T_QUANTILE
        error = error.reshape(-1, *[1] * (values.ndim - 2))
        spread = np.hypot(values.std(axis=0, ddof=1) / np.sqrt(len(values)), error)
        z = (values.mean(axis=0) - theory[name].values[0])[1:] / spread[1:]
        row[name] = float(z.flat[np.argmax(np.abs(z))])
        row[f"{name} rms"] = float(np.sqrt(np.mean(z**2)))
        worst = max(worst, abs(row[name]))
    return row | {"worst": worst, "theory s": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--samples", type=int, default=2**20)
    parser.add_argument("--only", default="", help="a part of the names of the settings to run")
    parser.add_argument("--out", default="", help="a file for the table as JSON")
    asked = parser.parse_args()

    chosen = [each for each in settings(asked.d) if asked.only in each.name]
    rows = max(each.training.set_size(each.problem) for each in chosen)
    results: list[list[tuple[Any, ...]]] = [[] for _ in chosen]
    began = time.perf_counter()
    for run in range(asked.runs):
        key = replica_key(0, run)
        Z, xi = data_of(key, rows, asked.d)
        for setting, into in zip(chosen, results, strict=True):
            n = setting.training.set_size(setting.problem)
            found = trained(*as_data((setting.problem, setting.training)), Z[:n], xi[:n], key, asked.steps)
            into.append(jax.device_get(found))
    print(f"{asked.runs} runs of {len(chosen)} settings: {time.perf_counter() - began:.0f} s")
    table = [judged(setting, runs, asked.steps, asked.samples) for setting, runs in zip(chosen, results, strict=True)]
    print(f"{'setting':46s}" + "".join(f"{name:>16s}" for name in ("M", "Q", "risk", "training risk")))
    for row in table:
        scores = [f"{row[name]:+.1f} ({row[f'{name} rms']:.2f})" for name in ("M", "Q", "risk", "training_risk")]
        print(f"{row['setting']:46s}" + "".join(f"{score:>16s}" for score in scores))
    worst = max(table, key=lambda row: row["worst"])
    print(
        f"largest deviation: {worst['worst']:.2f} standard errors ({worst['setting']}); in brackets: root mean square"
    )
    if asked.out:
        with open(asked.out, "w") as file:
            json.dump({"arguments": vars(asked), "device": str(jax.devices()[0].device_kind), "rows": table}, file)


if __name__ == "__main__":
    main()
