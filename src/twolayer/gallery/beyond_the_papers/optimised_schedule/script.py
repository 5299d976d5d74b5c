"""The best piecewise constant learning rate against the best constant one, found by gradients through the ODE."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    pieces, replicas = (8, 2000) if ask.full else (3, spec.ask.replicas)
    d, samples = spec.problem.d, 60 * spec.problem.d
    optimum = tl.optimise(spec.problem, spec.training, samples=samples, pieces=pieces)
    constant_rate = float(optimum.constant_rate)
    best = {"best constant rate": tl.SGD(constant_rate), f"best {pieces} rates": tl.best_training(optimum)}
    curves, ends = [], []
    for color, (name, training) in enumerate(best.items()):
        clock = training.clock(spec.problem)
        times = clock.time(np.linspace(0, samples, spec.ask.save).astype(int))
        asked = {"until": float(times[-1]), "save": times}
        ode = tl.evolve(spec.problem, training, tl.SaadSolla(), **asked)
        sgd = tl.evolve(spec.problem, training, tl.OverlapSGD(backend="xla"), replicas=replicas, **asked)
        x, risks, predicted = sgd.samples.values / d, sgd.excess_risk.values, ode.excess_risk.values[0]
        band = np.quantile(risks, [0.1, 0.9], axis=0)
        curves.append(Series(f"SGD, {name}", x, risks.mean(axis=0), band=band, color=color))
        curves.append(Series("ODE" if color == 0 else "", ode.samples.values / d, predicted, color=6, dashed=1))
        ends.append((risks[:, -1].mean(), risks[:, -1].std(ddof=1) / np.sqrt(replicas), predicted[-1]))
    mean, error, predicted = np.array(ends).T
    edges = np.linspace(0.0, samples / d, pieces + 1)
    steps = np.repeat(edges, 2)[1:-1]
    rates = [
        Series("best constant rate", steps, np.full(2 * pieces, constant_rate), color=0),
        Series(f"best {pieces} rates", steps, np.repeat(optimum.rate.values, 2), color=1),
    ]
    shown = [
        Panel("samples $/\\, d$", r"learning rate  $\gamma$", rates, log="y"),
        Panel("samples $/\\, d$", "excess risk", curves, log="y"),
    ]
    claims = [
        Claim(
            "excess risk after the schedule and five standard errors, over that after the best constant rate",
            (mean[1] + ERRORS * np.hypot(*error)) / mean[0],
            high=1.0,
        ),
        Claim("the same as the ODE promises it", float(optimum.value / optimum.constant_value), high=1.0),
        agrees("excess risk at the end, SGD against the ODE", mean, error, predicted),
    ]
    title = rf"A noisy erf committee, $p = k = 2$, $d = {d}$: what {samples // d} $d$ samples are good for"
    return Made({"figure": panels(shown, title)}, claims)


if __name__ == "__main__":
    run_script(__file__)
