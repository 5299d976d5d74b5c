"""One clock for every batch size: online, the square root of d, and d samples a step; free and on the sphere."""

from typing import Any

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, has_order, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Series, panels

STEPS = 8  # of batches of d samples


def make(spec, ask):
    d, replicas = (2**16, 256) if ask.full else (2**10, 256)
    rate = float(spec.training.learning_rate)
    times = rate * np.arange(STEPS + 1)  # all batch sizes have steps that end there
    batches = {r"$n_b=1$": 1, r"$n_b=\sqrt{d}$": round(d**0.5), "$n_b=d$": d}

    def follow(about, constraint, n_b, d, save: Any = times, **options):
        problem = eqx.tree_at(lambda problem: problem.inputs, spec.problem, tl.Gaussian(d))
        training = tl.SGD(rate, batch_size=n_b, constraint=constraint)
        return tl.evolve(problem, training, about, until=float(times[-1]), save=save, **options)

    shown, scores, apart, at_root = [], {name: [] for name in batches}, [], {}
    for title, constraint in (("free", tl.Free()), ("on the sphere", tl.Sphere())):
        ode = follow(tl.SaadSolla(), constraint, 1, d, save="linear:161")
        limit = ode.isel(time=np.isclose(ode.time.values[:, None], times).any(axis=1))
        drawn = {variable: [curve("ODE", ode, variable, 0)] for variable in ("excess_risk", "M")}
        for place, (name, n_b) in enumerate(batches.items()):
            theory = limit if n_b == 1 else follow(tl.BatchMap(), constraint, n_b, d)
            runs = follow(tl.OverlapSGD(), constraint, n_b, d, replicas=replicas, seed=n_b)
            judged = ("M",) if title == "on the sphere" else ("M", "Q")  # lengths do not move on the sphere
            scores[name] += [
                (*mean_and_error(runs[variable], 1), theory[variable].values[0, 1:, 0, 0]) for variable in judged
            ]
            if n_b == d:
                mean, error = mean_and_error(runs.M, 1)
                apart.append(np.max(np.abs(mean - limit.M.values[0, 1:, 0, 0]) / error))
            elif n_b > 1:
                at_root[title] = far(theory, limit)
            for variable, series in drawn.items():
                if n_b == d:
                    series.append(curve("map, $n_b=d$", theory, variable, 1, 1))
                # Those that lie on one curve take turns, or the last would hide the others.
                turn = slice(place, None, 2) if n_b < d else slice(None)
                mean, error = mean_and_error(runs[variable])
                series.append(
                    Series(f"SGD, {name}", times[turn], mean[turn], error[turn], kind="points", color=(2, 3, 1)[place])
                )
        shown.append(Panel("time  $t$", "excess risk", drawn["excess_risk"], log="y", title=title))
        shown.append(Panel("time  $t$", "overlap  $M$", drawn["M"], title=title))
        if title == "free":
            larger = far(follow(tl.BatchMap(), constraint, 4 * batches[r"$n_b=\sqrt{d}$"], 16 * d), limit)
    names = {1: "one sample a step against the ODE", d: "d samples a step against the map"}
    claims = [
        agrees(
            names.get(batches[name], "sqrt(d) samples a step against the map") + ", mean overlaps, free and spherical",
            *map(np.concatenate, zip(*rows, strict=True)),
        )
        for name, rows in scores.items()
    ]
    claims += [
        Claim("d samples a step are not the ODE: M apart, in standard errors", float(min(apart)), low=ERRORS),
        has_order(
            "distance of the map for sqrt(d) samples from the ODE, power of d",
            [d, 16 * d],
            [at_root["free"], larger],
            np.zeros(2),
            -0.5,
            left_out=d**-0.5,  # a step's next order is n_b / d of its first
        ),
    ]
    title = rf"One erf neuron learns another, $d={d}$, $\gamma={rate:g}$, $\Delta={float(spec.problem.noise):g}$"
    return Made({"figure": panels(shown, f"{title}, {replicas} runs", columns=2)}, claims)


def curve(label, theory, quantity, color, dashed=0):
    return Series(label, theory.time.values, theory[quantity].values[0].ravel(), color=color, dashed=dashed)


def far(theory, limit):
    """How far lengths are from those of the limit, at most."""
    return np.max(np.abs(theory.Q.values - limit.Q.values))


def mean_and_error(runs, first=0):
    """Over replicas, from a saved time on."""
    values = runs.values.reshape(runs.sizes["replica"], -1)[:, first:]
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


if __name__ == "__main__":
    run_script(__file__)
