"""SGD of an erf committee against the ODE of its overlaps, at growing d."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, run_script, slope
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    dimensions = [100, 1000, 10_000, 100_000] if ask.full else [100, 500, 2500]
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)  # multiples of a step at every d
    asked = {"until": spec.ask.until, "save": times}
    ode = tl.evolve(spec.problem, spec.training, tl.SaadSolla(), **asked)
    time, risk = ode.time.values, ode.excess_risk.values[0]
    curves, single, mean = [], [], []
    for color, d in enumerate(dimensions):
        problem = eqx.tree_at(lambda problem: problem.inputs, spec.problem, tl.Gaussian(d))
        runs = tl.evolve(problem, spec.training, tl.OverlapSGD(), replicas=spec.ask.replicas, seed=color, **asked)
        gaps = np.concatenate(
            [(runs[name].values - ode[name].values).reshape(spec.ask.replicas, len(times), -1) for name in "QM"], axis=2
        )
        rms = np.sqrt(np.mean(gaps**2, axis=0))  # over runs: at each time, for each overlap
        single.append(rms.max())
        error = gaps.std(axis=0, ddof=1)[1:] / np.sqrt(spec.ask.replicas)
        mean.append(np.max(np.abs(gaps.mean(axis=0))[1:] / np.maximum(error, 1e-12)))
        risks = runs.excess_risk.values
        if d in (dimensions[0], dimensions[-1]):
            curves.append(
                Series(f"SGD, $d = {d}$", time, risks[0], band=np.quantile(risks, [0.1, 0.9], axis=0), color=1 + color)
            )
    order = slope(dimensions, single)
    reference = single[0] * (np.array(dimensions) / dimensions[0]) ** -0.5
    shown = [
        Panel(
            "time  $t$",
            "excess risk",
            [*curves, Series("ODE", time, risk, color=6, dashed=1)],
            log="y",
            title="one run of each, and 10-90% of the runs",
        ),
        Panel(
            "dimension  $d$",
            "distance from the ODE",
            [
                Series("largest rms of an overlap", dimensions, single, kind="points", color=0),
                Series("$d^{-1/2}$", dimensions, reference, kind="reference"),
            ],
            log="xy",
            title=f"slope {order:.2f}",
        ),
    ]
    claims = [
        Claim("order in d of the distance of a run from the ODE (theorem: -1/2)", order, -0.6, -0.4),
        Claim("mean of the runs at the largest d, in standard errors of the mean", mean[-1], high=5.0),
        Claim("fall of the excess risk over the run", float(risk[0] / risk[-1]), low=10.0),
    ]
    return Made({"figure": panels(shown, "An erf committee, $p = 4$, $k = 2$: SGD at growing $d$")}, claims)


if __name__ == "__main__":
    run_script(__file__)
