"""The share of old samples with which a student that learns a new task loses least of both, by their similarity."""

import dataclasses

import numpy as np
from scipy.optimize import minimize_scalar

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels

DURATIONS = (0.25, 1.0)
# The best share is found by the ODE at a learning rate so small that the noise of SGD moves risks by less than 1e-4.
STILL = 1e-6


# Large: a page is read from top to bottom, from its sizes to its claims.
def make(spec, ask):
    similarities = np.linspace(0.1, 0.9, 9 if ask.full else 5)
    replicas = 1000 if ask.full else spec.ask.replicas
    shares = np.linspace(0.0, 1.0, 11)
    curves, distances, risks = [], [], {"mean": [], "error": [], "ode": [], "replay": [], "none": []}
    fine = np.linspace(0.0, 1.0, 200)
    for color, rho in enumerate(similarities[[0, len(similarities) // 2, -1]]):
        ode = np.array([_ends(spec, rho, share, DURATIONS[-1], "SaadSolla")[0] for share in shares])
        runs = [_ends(spec, rho, share, DURATIONS[-1], "OverlapSGD", replicas) for share in shares[:-1:3]]
        mean = np.array([run.mean() for run in runs])
        error = np.array([run.std(ddof=1) / np.sqrt(replicas) for run in runs])
        distances += [abs(ode - [_formula(rho, share, DURATIONS[-1]) for share in shares]).max()]
        for name, part in (("mean", mean), ("error", error), ("ode", ode[:-1:3])):
            risks[name].append(part)
        curves += [
            Series(
                f"formula, similarity {rho:.1f}", fine, [_formula(rho, q, DURATIONS[-1]) for q in fine], color=color
            ),
            Series("" if color else "SGD", shares[:-1:3], mean, error, kind="points", color=color),
        ]
    best, gaps = [], []
    smooth = np.linspace(0.02, 0.98, 60)
    for color, duration in enumerate(DURATIONS):
        formula = [_best(rho, duration) for rho in smooth]
        plans = [
            tl.optimise(_problem(spec, rho), _schedule(spec, 0.0, STILL), tasks="mixing", until=duration)
            for rho in similarities
        ]
        found = np.array([float(plan.share[int(plan.best), 0]) for plan in plans])
        values = np.array([[float(plan.value[int(place)]) for place in (plan.best, plan.given)] for plan in plans])
        gaps.append(abs(found - [_best(rho, duration) for rho in similarities]).max())
        risks["replay"].append(values[:, 0])
        risks["none"].append(values[:, 1])
        best += [
            Series(f"formula, $t = {duration:g}$", smooth, formula, color=color),
            Series("" if color else "ODE, optimised", similarities, found, kind="points", color=color),
        ]
    figure = panels(
        [
            Panel("share of old samples", f"mean excess risk, $t = {DURATIONS[-1]:g}$", curves, legend="below"),
            Panel("similarity of the tasks", "best share of old samples", best, legend="below"),
        ],
        "Replay while a second task is learned",
    )
    rate = float(spec.training.learning_rate)
    claims = [
        # The formula is that of gradient flow: the noise of SGD, E[4 lambda^2 eps^2] at most 48, is left out.
        Claim(
            "largest distance of the ODE from the formula over what the noise of SGD allows",
            max(distances) / (2.0 * (1.0 - np.exp(-48.0 * rate * DURATIONS[-1]))),
            high=1.0,
        ),
        # A risk known to 1e-4 has its minimum to the root of that over its curvature, which is of order one.
        Claim("largest distance of the best share from that of the formula", max(gaps), high=np.sqrt(1e-4)),
        Claim(
            "risk with the best replay over that without, largest",
            float(np.max(np.concatenate(risks["replay"]) / np.concatenate(risks["none"]))),
            high=1.0,
        ),
        agrees(
            "SGD against the ODE", np.concatenate(risks["mean"]), np.concatenate(risks["error"]),
            np.concatenate(risks["ode"]),
        ),
    ]  # fmt: skip
    return Made({"figure": figure}, claims)


def _problem(spec, rho):
    """A student that has learned the old task, which is as similar to the new one as their directions."""
    P = np.array([[1.0, rho], [rho, 1.0]])
    start = tl.GivenOverlaps([[1.0]], P[:1])
    return dataclasses.replace(spec.problem, target=dataclasses.replace(spec.problem.target, P=P), start=start)


def _schedule(spec, share, rate):
    old = spec.problem.target
    new = dataclasses.replace(old, second_layer=np.array([0.0, 2.0]))
    training = dataclasses.replace(spec.training, learning_rate=rate)
    return tl.Schedule([tl.Task(training, target=tl.Mixture([old, new], [share, 1.0 - share]))])


def _ends(spec, rho, share, duration, description, replicas=1):
    """The mean excess risk of both tasks at the end, for every replica."""
    schedule = _schedule(spec, share, float(spec.training.learning_rate))
    options = {"until": duration, "save": [duration], "replicas": replicas}
    return tl.evolve(_problem(spec, rho), schedule, description, **options).task_risk.values[:, -1].mean(axis=1)


def _formula(rho, share, duration):
    """The same for gradient flow, which is that of the largest eigenvector: w turns as exp(4 t T) w at length one."""
    old, new = np.array([1.0, 0.0]), np.array([rho, np.sqrt(1.0 - rho**2)])
    values, vectors = np.linalg.eigh(share * np.outer(old, old) + (1.0 - share) * np.outer(new, new))
    w = vectors @ (np.exp(4.0 * duration * (values - values[-1])) * (vectors.T @ old))
    w /= np.linalg.norm(w)
    return 2.0 - (w @ old) ** 2 - (w @ new) ** 2


def _best(rho, duration):
    """The share with which the risk of the formula is least."""
    tried = np.linspace(0.0, 1.0, 101)
    place = tried[np.argmin([_formula(rho, share, duration) for share in tried])]
    bounds = (max(place - 0.01, 0.0), min(place + 0.01, 1.0))
    return minimize_scalar(
        lambda q: _formula(rho, q, duration), bounds=bounds, method="bounded", options={"xatol": 1e-9}
    ).x


if __name__ == "__main__":
    run_script(__file__)
