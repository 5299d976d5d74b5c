"""Layer-wise training of a wide network: three giant steps on the first layer, then ridge regression of the second.

p = 256 units of gelu on z1 + z1*z2 + z1*z2*z3, d = 2000, batches and the fit of n = d fresh samples, on all cores: on
the weights, through the overlaps, and as one would write it in NumPy (in double precision, as ours). Wall clock and CPU
time of a whole run from the first draw to the test error, and of the first call, which compiles. The error of NumPy is
over fresh samples, that of ours over the population.

    python benchmarks/layer_wise.py
"""

import time

import numpy as np
from common import against, report
from scipy.special import erf

import twolayer as tl

P, D, STEPS, PENALTY = 256, 2000, 3, 1e-3
RATE = float(P)  # gamma n_b / (p d) = 1: a step moves a neuron by order one


def unit(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def slope(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + erf(x / np.sqrt(2.0))) + x * np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi)


def target(z: np.ndarray) -> np.ndarray:
    return z[:, 0] + z[:, 0] * z[:, 1] + z[:, 0] * z[:, 1] * z[:, 2]


def by_numpy(seed: int) -> float:
    """The test error of the loop anyone would write; the target's directions are the first three axes."""
    rng = np.random.default_rng(seed)
    W, a = rng.standard_normal((P, D)) / np.sqrt(D), rng.standard_normal(P)
    for _ in range(STEPS):
        x = rng.standard_normal((D, D))
        fields = x @ W.T
        displacement = target(x) - unit(fields) @ a / P
        W += RATE / (P * D) * a[:, None] * ((slope(fields) * displacement[:, None]).T @ x)
    features, y = (lambda x: (unit(x @ W.T), target(x)))(rng.standard_normal((D, D)))
    c = np.linalg.solve(features.T @ features / D + PENALTY * P * np.eye(P), features.T @ y / D)
    x = rng.standard_normal((D, D))
    return float(0.5 * np.mean((target(x) - unit(x @ W.T) @ c) ** 2))


def ours(description: tl.DirectSGD | tl.OverlapSGD, seed: int) -> float:
    """The test error of the same training."""
    student = tl.Student(P, "gelu", "gaussian")
    problem = tl.Problem(tl.MultiIndex("z1 + z1*z2 + z1*z2*z3", k=3), student, tl.Gaussian(D))
    first = tl.SGD(RATE, batch_size=D)
    switch = float(first.clock(problem).time(STEPS))
    training = tl.Schedule([first, tl.RidgeRegression(PENALTY, samples=D)], [switch])
    ask = {"until": switch + 1.0, "save": [switch + 1.0], "seed": seed, "progress": False}
    return float(tl.evolve(problem, training, description, **ask).excess_risk.values[0, -1])


def main() -> None:
    ways = {
        "NumPy": by_numpy,
        "DirectSGD": lambda seed: ours(tl.DirectSGD(), seed),
        "OverlapSGD": lambda seed: ours(tl.OverlapSGD(), seed),
    }
    rows = []
    for name, way in ways.items():
        times = []
        for seed in range(3):
            began, spent = time.perf_counter(), time.process_time()
            risk = way(seed)
            times.append((time.perf_counter() - began, time.process_time() - spent))
        wall, cpu = (min(column) for column in zip(*times[1:], strict=True))
        rows.append({"what": name, "wall s": wall, "CPU s": cpu, "first call s": times[0][0], "test error": risk})
    plain = rows[0]["CPU s"]
    for row in rows:
        row["ratio"] = plain / row["CPU s"]
    what = f"layer-wise, gelu p={P} k=3, d={D}, {STEPS} giant steps and ridge, CPU"
    lines = [against(f"{what} ({row['what']})", "s", row["CPU s"], plain) for row in rows[1:]]
    report("layer_wise", rows, lines)


if __name__ == "__main__":
    main()
