"""Runs of SGD, the ODE and paths of the SDE from one start next to the saddle."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Series, panels


def make(spec, ask):
    replicas = 10_000 if ask.full else spec.ask.replicas
    asked = {"until": spec.ask.until, "save": np.linspace(0.0, spec.ask.until, spec.ask.save)}
    ode = tl.evolve(spec.problem, spec.training, tl.SaadSolla(), **asked)
    sgd = tl.evolve(spec.problem, spec.training, tl.OverlapSGD(), replicas=replicas, **asked)
    sde = tl.evolve(spec.problem, spec.training, tl.SDE(dt=0.01, corrections=True), replicas=replicas, seed=1, **asked)
    time, m = ode.time.values, ode.M.values[0, :, 0, 0]
    squares = [run.M.values[:, :, 0, 0] ** 2 for run in (sgd, sde)]
    mean = [square.mean(axis=0)[1:] for square in squares]
    spread = [square.std(axis=0)[1:] for square in squares]
    error = np.sqrt((spread[0] ** 2 + spread[1] ** 2) / replicas)
    # Of a deviation from so many runs, with the fourth moment of what was measured.
    fourth = [np.mean((square - square.mean(axis=0)) ** 4, axis=0)[1:] for square in squares]
    spread_error = np.sqrt(sum((f / s**2 - s**2) / 4.0 for f, s in zip(fourth, spread, strict=True)) / replicas)

    def some(name, values, color):
        few = [Series(name if n == 0 else "", time, values[n], color=color) for n in range(6)]
        return [*few, Series("ODE", time, m**2, color=6, dashed=1)]

    def all_of(name, values, color):
        return Series(name, time, values.mean(axis=0), band=np.quantile(values, [0.1, 0.9], axis=0), color=color)

    laws = [all_of("SGD", squares[0], 0), all_of("SDE", squares[1], 1), Series("ODE", time, m**2, color=6, dashed=1)]
    shown = [
        Panel("time  $t$", "$m^2$", some("SGD", squares[0], 0), title="six runs of SGD"),
        Panel("time  $t$", "$m^2$", some("SDE", squares[1], 1), title="six paths of the SDE"),
        Panel("time  $t$", "$m^2$", laws, title="mean and 10-90% of all"),
    ]
    middle = np.argmax(spread[0])
    claims = [
        agrees("mean of m^2, SDE against SGD", mean[1], error, mean[0]),
        agrees("deviation of m^2, SDE against SGD", spread[1], spread_error, spread[0]),
        Claim(
            "distance of the mean of SGD from the ODE where runs deviate most, in standard errors",
            abs(mean[0][middle] - m[1:][middle] ** 2) / (spread[0][middle] / np.sqrt(replicas)),
            low=ERRORS,
        ),
    ]
    title = rf"One neuron, $d = {spec.problem.d}$, all from $m = {m[0]:g}$"
    return Made({"figure": panels(shown, title)}, claims)


if __name__ == "__main__":
    run_script(__file__)
