"""Phase retrieval with both layers trained: SGD against the ODE from the same starts, and escape times against d."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    dimensions = [300, 1000, 3000, 10_000] if ask.full else [300, 3000]
    replicas = 400 if ask.full else 128
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)
    both = tl.compare(
        spec.problem,
        spec.training,
        [tl.OverlapSGD(), tl.SaadSolla()],
        until=spec.ask.until,
        save=times,
        replicas=spec.ask.replicas,
    )
    sgd, ode = both["OverlapSGD"], both["SaadSolla"]
    exits = {"measured": [], "ODE": []}
    for seed, d in enumerate(dimensions):
        problem = eqx.tree_at(lambda problem: problem.inputs, spec.problem, tl.Gaussian(d))
        result = tl.exit_time(problem, spec.training, threshold=0.1, replicas=replicas, starts=replicas, seed=seed)
        for name, times_of_exit in (("measured", result.measured.values), ("ODE", result.ode.values)):
            exits[name].append((times_of_exit.mean(), times_of_exit.std(ddof=1) / np.sqrt(times_of_exit.size)))
    exits = {name: np.array(values) for name, values in exits.items()}
    decades = np.log(dimensions[-1] / dimensions[0])
    growth = {name: (values[-1, 0] - values[0, 0]) / decades for name, values in exits.items()}
    spread = np.sqrt(sum(np.sum(values[[0, -1], 1] ** 2) for values in exits.values())) / decades

    def law(values, label, color):
        return Series(label, times, values.mean(axis=0), band=np.quantile(values, [0.1, 0.9], axis=0), color=color)

    norms = [run.a.values.mean(axis=2) for run in (sgd, ode)]
    risks = [run.excess_risk.values for run in (sgd, ode)]
    shown = [
        Panel("time  $t$", "excess risk", [law(risks[0], "SGD", 0), law(risks[1], "ODE, same starts", 1)], log="y"),
        Panel("time  $t$", r"mean of $a_j$", [law(norms[0], "SGD", 0), law(norms[1], "ODE, same starts", 1)]),
        Panel(
            "dimension  $d$",
            "escape time  $t$",
            [
                Series(f"{name}, random starts", dimensions, values[:, 0], values[:, 1], kind="points", color=2 + n)
                for n, (name, values) in enumerate(exits.items())
            ],
            log="x",
            xticks=dimensions,
        ),
    ]
    end = [values[:, -1] for values in norms]
    error = np.hypot(*[values.std(ddof=1) for values in end]) / np.sqrt(spec.ask.replicas)
    claims = [
        agrees("mean of the second layer at the end, SGD against the ODE", end[0].mean(), error, end[1].mean()),
        Claim(
            "fall of the excess risk with both layers trained",
            float(risks[0].mean(axis=0)[0] / risks[0].mean(axis=0)[-1]),
            low=5.0,
        ),
        Claim(
            "growth of the measured escape time with log d, in standard errors", growth["measured"] / spread, low=5.0
        ),
        agrees(
            "growth of the escape time with log d, measured against the ODE", growth["measured"], spread, growth["ODE"]
        ),
    ]
    return Made(
        {
            "figure": panels(
                shown, rf"Phase retrieval, $p = {spec.problem.p}$, $d = {spec.problem.d}$: both layers trained"
            )
        },
        claims,
    )


if __name__ == "__main__":
    run_script(__file__)
