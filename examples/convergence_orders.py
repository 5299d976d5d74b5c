"""Which limit to trust: how fast each theory approaches SGD, or another theory, as d, the batch or the width grows.

Every point is a distance between a theory and what it is a limit of; every slope is fitted and asserted. SGD is the
overlap process, exact in law at finite d.

    python examples/convergence_orders.py

What to look for. (a) One neuron, phase retrieval on the sphere: a single run is off the ODE by d^(-1/2), the scatter of
SGD, the mean of many runs by d^(-1) only. (b) The SDE has that scatter: its variance is right up to a part of order
1/d, and with its corrections its mean is right to the next order (below the error of so many runs).
(c) At given gamma n_b / d, a run on large batches approaches the map by n_b^(-1/2), the mean by 1 / n_b. (d) A wide erf
student: from the student's own units the mean-field flow is off by 1/p, from another draw of the units by p^(-1/2),
which is the rate of the theorem.
"""

import argparse

import numpy as np

import twolayer as tl
from twolayer.plots import Distances, convergence, save_figure

SPHERE = tl.Sphere()


def phase_retrieval(d: int) -> tl.Problem:
    start = tl.GivenOverlaps([[1.0]], [[0.4]])
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d), noise=0.2, start=start)


def at_end(problem, training, description, until, replicas=1, seed=0) -> np.ndarray:
    """The overlap M of the first unit with the first direction when the run ends, in all replicas."""
    run = tl.evolve(problem, training, description, until=until, save=[0.0, until], replicas=replicas, seed=seed)
    return run.M.values[:, -1, 0, 0]


def distances(label: str, sizes: np.ndarray, points: list, order: float | None = None) -> Distances:
    return Distances(label, sizes, *np.array(points).T, order)


def in_dimension(replicas: int) -> tuple[list, list]:
    """Panels (a) and (b)."""
    sizes, training, until = np.array([80, 160, 320, 640]), tl.SGD(0.06, constraint=SPHERE), 0.3
    single, mean, variance, corrected = [], [], [], []
    for d in sizes:
        problem = phase_retrieval(int(d))
        exact = at_end(problem, training, tl.OverlapSGD(), until, replicas)
        ode = at_end(problem, training, tl.SaadSolla(), until)[0]
        sde = at_end(problem, training, tl.SDE(dt=0.01, corrections=True), until, replicas, seed=1)
        error = np.sqrt(exact.var() / replicas)
        single.append((np.sqrt(np.mean((exact - ode) ** 2)), error))
        mean.append((abs(exact.mean() - ode), error))
        # Of a variance from so many runs, with the fourth moment of what was measured.
        spread = np.mean((exact - exact.mean()) ** 4) / exact.var() ** 2 - 1.0
        variance.append((abs(sde.var() / exact.var() - 1.0), np.sqrt(2.0 * spread / replicas)))
        corrected.append((abs(sde.mean() - exact.mean()), np.sqrt(2.0) * error))
    a = [distances("single run, rms", sizes, single, -0.5), distances("mean of runs", sizes, mean, -1.0)]
    b = [distances("variance, relative", sizes, variance, -1.0), distances("mean, corrected", sizes, corrected)]
    return a, b


def in_batch(replicas: int) -> list:
    """Panel (c): three steps at d = n_b / 2 and a given gamma, so that only the size changes."""
    sizes, single, mean = np.array([80, 160, 320, 640]), [], []
    for n_b in sizes:
        problem, training = phase_retrieval(int(n_b) // 2), tl.SGD(0.05, batch_size=int(n_b), constraint=SPHERE)
        until = float(training.clock(problem).time(3))
        exact = at_end(problem, training, tl.OverlapSGD(), until, replicas)
        limit = at_end(problem, training, tl.BatchMap(), until)[0]
        error = np.sqrt(exact.var() / replicas)
        single.append((np.sqrt(np.mean((exact - limit) ** 2)), error))
        mean.append((abs(exact.mean() - limit), error))
    return [distances("single run, rms", sizes, single, -0.5), distances("mean of runs", sizes, mean, -1.0)]


def in_width(draws: int) -> list:
    """Panel (d): the risk of HDMF against that of the ODE without variance, in the limit of large d."""
    widths, until = np.array([8, 16, 32, 64]), 3.0
    flow = tl.SaadSolla(variance=False)
    own, anew = [], []
    for p in widths:
        rng = np.random.default_rng(int(p))
        gaps, others = [], []
        for _ in range(draws):
            m = rng.normal(0.0, 0.5, (int(p), 1))
            start = tl.GivenOverlaps(m @ m.T + np.eye(int(p)), m)
            problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(int(p), "erf"), tl.Gaussian(10**6), start=start)
            risks = [
                float(tl.evolve(problem, tl.SGD(1e-3), each, until=until, save=[0.0, until]).excess_risk[0, -1])
                for each in (flow, tl.HDMF())
            ]
            gaps.append(risks[1] - risks[0])
            others.append(risks)
        others = np.array(others)
        own.append((abs(np.mean(gaps)), np.std(gaps) / np.sqrt(draws)))
        # The flow from one draw of the units against the ODE from another.
        apart = (others[:, None, 1] - others[None, :, 0])[~np.eye(draws, dtype=bool)]
        rms = np.sqrt(np.mean(apart**2))
        anew.append((rms, rms / np.sqrt(2.0 * draws)))
    return [distances("own units", widths, own, -1.0), distances("another draw, rms", widths, anew, -0.5)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=200_000)
    parser.add_argument("--out", default="convergence_orders", help="name of the picture, without .png")
    asked = parser.parse_args()
    a, b = in_dimension(asked.replicas)
    panels = {
        ("SaadSolla", "dimension  $d$"): a,
        ("SDE", "dimension  $d$"): b,
        ("BatchMap", "batch size  $n_b$"): in_batch(asked.replicas // 5),
        ("HDMF", "width  $p$"): in_width(32),
    }
    for (name, _), curves in panels.items():
        for curve in curves:
            expected = "" if curve.order is None else f", expected {curve.order:+.1f}"
            print(f"{name:10} {curve.label:24} slope {curve.slope:+.2f}{expected}")
            assert curve.order is None or abs(curve.slope - curve.order) < 0.2, f"{name}, {curve.label}"
    save_figure(convergence(panels), asked.out)


if __name__ == "__main__":
    main()
