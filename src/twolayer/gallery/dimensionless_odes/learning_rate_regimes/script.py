"""What the learning rate does on one clock: gradient flow, a floor that grows with the rate, and failure."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script, slope
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    rates = 0.02 * 2.0 ** np.arange(11)
    measured = rates[5:10] if ask.full else rates[7:10:2]
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)

    def run(description, rate, replicas=1):
        training = eqx.tree_at(lambda training: training.learning_rate, spec.training, float(rate))
        return tl.evolve(spec.problem, training, description, until=spec.ask.until, save=times, replicas=replicas)

    flow = run(tl.SaadSolla(variance=False), rates[0]).excess_risk.values[0]
    ode = np.array([run(tl.SaadSolla(), rate).excess_risk.values[0] for rate in rates])
    sgd = np.array([run(tl.OverlapSGD(), rate, spec.ask.replicas).excess_risk.values for rate in measured])
    floors, away = ode[:, -1], np.max(np.abs(ode - flow), axis=1)
    means, errors = sgd[:, :, -1].mean(axis=1), sgd[:, :, -1].std(axis=1, ddof=1) / np.sqrt(spec.ask.replicas)
    predicted = np.array([floors[rates == rate][0] for rate in measured])
    small = rates < 0.2
    curves = [
        Series(rf"ODE, $\gamma = {rate:.2g}$", times[1:], risk[1:], color=number)
        for number, (rate, risk) in enumerate(list(zip(rates, ode, strict=True))[2::2])
    ]
    curves.append(Series("gradient flow", times[1:], flow[1:], color=6, dashed=1))
    floor = [
        Series("ODE", rates, floors, color=0),
        Series(rf"SGD, $d = {spec.problem.d}$", measured, means, errors, kind="points", color=1),
        Series(r"$\propto \gamma$", rates, floors[0] * rates / rates[0], kind="reference"),
    ]
    shown = [
        Panel("time  $t$", "excess risk", curves, log="xy", title="one clock for all rates"),
        Panel(r"learning rate  $\gamma$", rf"excess risk at $t = {spec.ask.until:g}$", floor, log="xy", title="floor"),
    ]
    claims = [
        Claim("order in gamma of the floor, small rates", slope(rates[small], floors[small]), 0.97, 1.05),
        Claim("order in gamma of the distance from gradient flow", slope(rates[small], away[small]), 0.9, 1.1),
        agrees("SGD at the end against the ODE", means, errors, predicted),
        Claim("excess risk left at the largest rate, of that at the start", floors[-1] / ode[-1, 0], low=0.9),
    ]
    return Made({"figure": panels(shown, r"An erf committee, $p = k = 2$, label noise $\Delta = 0.25$")}, claims)


if __name__ == "__main__":
    run_script(__file__)
