"""The risk at which SGD with noisy labels ends, against the learning rate."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    noise, d = spec.problem.noise, spec.problem.d
    rates = np.array([0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12])
    tried = rates[1:] if ask.full else rates[[2, 4, 5]]
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)

    def run(description, gamma, replicas=1):
        training = eqx.tree_at(lambda each: each.learning_rate, spec.training, float(gamma))
        return tl.evolve(spec.problem, training, description, until=spec.ask.until, save=times, replicas=replicas)

    formula = rates * noise / (1.0 - 6.0 * rates)
    ode = np.array([run(tl.SaadSolla(), gamma).excess_risk.values[0] for gamma in rates])
    runs = [run(tl.OverlapSGD(), gamma, spec.ask.replicas).excess_risk.values for gamma in tried]
    late = times > 0.5 * spec.ask.until  # runs have settled; the average over time is one number for each of them
    ends = np.array([each[:, late].mean(axis=1) for each in runs])
    means, errors = ends.mean(axis=1), ends.std(axis=1, ddof=1) / np.sqrt(spec.ask.replicas)
    expected = tried * noise / (1.0 - 6.0 * tried)
    shown = [
        Panel(
            "time  $t$",
            "excess risk",
            [
                *(
                    Series(
                        rf"SGD, $\gamma = {gamma:g}$",
                        times,
                        each.mean(axis=0),
                        band=np.quantile(each, [0.1, 0.9], axis=0),
                        color=n,
                    )
                    for n, (gamma, each) in enumerate(zip(tried[-2:], runs[-2:], strict=True))
                ),
                *(Series("ODE", times, ode[list(rates).index(gamma)], color=6, dashed=1) for gamma in tried[-2:]),
            ],
            log="y",
            title=rf"$d = {d}$, $\Delta = {noise:g}$",
        ),
        Panel(
            r"learning rate  $\gamma$",
            "floor of the excess risk",
            [
                Series(r"$\gamma \Delta / (1 - 6 \gamma)$", rates, formula, color=6),
                Series("ODE at the end", rates, ode[:, -1], kind="points", color=4),
                Series("SGD, mean over time and runs", tried, means, errors, kind="points", color=1),
            ],
            log="y",
        ),
    ]
    settled = rates >= 0.02
    claims = [
        Claim(
            "ODE over the formula minus one, largest",
            float(np.max(np.abs(ode[:, -1] / formula - 1.0)[settled])),
            high=1e-3,
        ),
        # The mean over the stationary law is off by a relative amount of order 1/d.
        agrees("floor of SGD against the formula", means, errors, expected, known_to=2.0 * expected / d),
    ]
    return Made({"figure": panels(shown, "Noisy labels leave a floor that grows with the learning rate")}, claims)


if __name__ == "__main__":
    run_script(__file__)
