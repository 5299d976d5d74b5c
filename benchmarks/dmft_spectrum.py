"""DMFT on inputs with a spectrum against gradient descent on a fixed set: deviations in standard errors, and 1/d.

Each setting is trained at three dimensions with the shares of the blocks fixed. The mean of the runs is the theory plus
a shift of order 1/d, whose constant is fitted to the three deviations of each number; what is left of them is compared
with the standard errors.

    python benchmarks/dmft_spectrum.py --d 200 400 800 --runs 40 --only "erf, full"    # a taste, on a CPU
    python benchmarks/dmft_spectrum.py --runs 200                                      # the table; minutes on a GPU
"""

import argparse
import time
from typing import Any, NamedTuple

import jax
import numpy as np

import twolayer as tl
from twolayer.expectation.qmc import T_QUANTILE

tl.precision("double")
TWO = [(2.0, 0.3), (0.5, 0.7)]
eigenvalues, ranks = tl.PowerLaw(0.5, bins=4).blocks(1000)
POWER = [(float(c), rank / 1000) for c, rank in zip(eigenvalues, ranks, strict=True)]
NAMES = ("M_block", "Q_block", "a", "risk", "training_risk")


class Setting(NamedTuple):
    """One row of the table; the batch size is a share of d."""

    name: str
    activation: str
    spectrum: list[tuple[float, float]]
    teacher: Any
    training: dict[str, Any]
    others: Any = None


RELU = tl.Committee(2, "relu", second_layer=[2.0, -1.0])
FULL = tl.Reused(1.5)
SETTINGS = [
    Setting("erf, full batch, teacher in the tail", "erf", TWO, "tail", {"learning_rate": 0.8, "reuse": FULL}),
    Setting(
        "erf, mini-batches, momentum, leading",
        "erf",
        TWO,
        "leading",
        {"learning_rate": 0.8, "reuse": FULL, "batch_size": 0.5, "momentum": 0.6},
    ),
    Setting(
        "relu, full batch, both layers, split",
        "relu",
        TWO,
        [0.5, 0.5],
        {"learning_rate": 0.6, "reuse": FULL, "layers": tl.Both()},
    ),
    Setting(
        "relu, epochs, both layers, tail",
        "relu",
        TWO,
        "tail",
        {"learning_rate": 0.6, "reuse": tl.Reused(1.5, replacement=False), "batch_size": 0.5, "layers": tl.Both()},
    ),
    Setting(
        "square, full batch, momentum, tail",
        "square",
        TWO,
        "tail",
        {"learning_rate": 0.04, "reuse": FULL, "momentum": 0.5},
        {"target": tl.Committee(2, "square")},
    ),
    Setting(
        "square, mini-batches, both layers, leading",
        "square",
        TWO,
        "leading",
        {"learning_rate": 0.03, "reuse": FULL, "batch_size": 0.5, "layers": tl.Both()},
        {"target": tl.Committee(2, "square")},
    ),
    Setting(
        "erf, power law, full batch, both layers, leading",
        "erf",
        POWER,
        "leading",
        {"learning_rate": 0.6, "reuse": tl.Reused(3.0), "layers": tl.Both()},
    ),
    Setting(
        "relu, power law, mini-batches, tail",
        "relu",
        POWER,
        "tail",
        {"learning_rate": 0.5, "reuse": FULL, "batch_size": 0.75},
    ),
    Setting(
        "erf, power law, sphere, decay of weights, random",
        "erf",
        POWER,
        [0.1, 0.2, 0.3, 0.4],
        {"learning_rate": 0.8, "reuse": tl.Reused(0.7), "constraint": tl.Sphere(), "momentum": tl.Nesterov(0.5)},
    ),
    Setting(
        "erf, logistic loss, full batch, split",
        "erf",
        TWO,
        [0.5, 0.5],
        {"learning_rate": 1.5, "reuse": FULL},
        {"target": tl.Signs(RELU), "loss": "logistic", "noise": tl.Flips(0.1)},
    ),
]


def problem_of(setting: Setting, d: int) -> tuple[tl.Problem, tl.SGD]:
    """The problem and its training in d dimensions."""
    options = dict(setting.training)
    if "batch_size" in options:
        options["batch_size"] = int(options["batch_size"] * d)
    student = tl.Student(2, setting.activation, second_layer=np.sqrt(2) * np.array([1.0, -0.7]))
    start = tl.GivenOverlaps(np.eye(2), [[0.2, 0.0], [0.0, 0.2]])
    inputs = tl.Gaussian(d, spectrum=setting.spectrum, teacher=setting.teacher)
    rest = {"target": RELU, "noise": 0.1} | (setting.others or {})
    return tl.Problem(student=student, inputs=inputs, start=start, **rest), tl.SGD(**options)


def numbers(result: Any) -> np.ndarray:
    """All numbers after the start, one row for each replica."""
    return np.concatenate([result[name].values[:, 1:].reshape(result.sizes["replica"], -1) for name in NAMES], axis=1)


def judged(setting: Setting, dimensions: list[int], runs: int, steps: int, samples: int) -> tuple[float, ...]:
    """Largest deviation at the largest d; the same and the root mean square without the fitted shift; its constant."""
    gaps, errors = [], []
    for d in dimensions:
        problem, training = problem_of(setting, d)
        times = training.clock(problem).time(np.arange(steps + 1))
        ask = {"until": float(times[-1]), "save": times}
        if d == dimensions[0]:
            theory = tl.evolve(problem, training, tl.DMFT(samples=samples), **ask)
            bound = [
                np.broadcast_to(
                    theory[f"{name}_error" if name.endswith("risk") else "overlap_error"]
                    .values[:, 1:]
                    .reshape(1, steps, *[1] * (theory[name].ndim - 2)),
                    theory[name].values[:, 1:].shape,
                ).reshape(1, -1)
                for name in NAMES
            ]
            expected, own = numbers(theory)[0], np.concatenate(bound, axis=1)[0] / T_QUANTILE
        found = numbers(tl.evolve(problem, training, tl.DirectSGD(), replicas=runs, seed=d, **ask))
        gaps.append(found.mean(axis=0) - expected)
        errors.append(np.hypot(found.std(axis=0, ddof=1) / np.sqrt(runs), own) + 1e-12)
    gap, error, inverse = np.stack(gaps), np.stack(errors), 1.0 / np.array(dimensions)[:, None]
    constant = np.sum(gap * inverse / error**2, axis=0) / np.sum(inverse**2 / error**2, axis=0)
    rest = (gap - constant * inverse) / error
    plain = np.abs(gap[-1] / error[-1]).max()
    return plain, np.abs(rest[-1]).max(), np.abs(rest).max(), np.sqrt(np.mean(rest**2)), np.abs(constant).max()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--d", type=int, nargs="+", default=[1000, 2000, 4000])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2**20)
    parser.add_argument("--only", default="", help="a part of the names of the settings to run")
    asked = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}; d = {asked.d}, {asked.runs} runs, {asked.steps} steps")
    heads = ("as it is, largest d", "less 1/d, largest d", "less 1/d, all d", "root mean square", "constant of 1/d")
    print(f"{'setting':52s}" + "".join(f"{head:>21s}" for head in heads))
    for setting in SETTINGS:
        if asked.only in setting.name:
            began = time.perf_counter()
            row = judged(setting, asked.d, asked.runs, asked.steps, asked.samples)
            seconds = time.perf_counter() - began
            print(f"{setting.name:52s}" + "".join(f"{x:21.2f}" for x in row) + f"{seconds:8.0f} s", flush=True)


if __name__ == "__main__":
    main()
