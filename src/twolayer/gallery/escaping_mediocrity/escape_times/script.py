"""Escape times of one neuron against d, to a million dimensions: formulas, ODE, and SGD; and the SDE beside them."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.one_neuron import diffusion_time

THRESHOLD = 0.1


def make(spec, ask):
    gamma, noise = spec.training.learning_rate, spec.problem.noise
    dimensions = np.array([100, 1000, 10_000, 100_000, 1_000_000])
    # Enough at d = 1000 that a noise of SGD twice as large would show.
    runs = [2000, 6000, 2000, 1000, 1000] if ask.full else [2000, 6000, 200, 48, 20]
    results = []
    for seed, (d, replicas) in enumerate(zip(dimensions, runs, strict=True)):  # independent runs at every d
        problem = eqx.tree_at(lambda problem: problem.inputs, spec.problem, tl.Gaussian(int(d)))
        results.append(tl.exit_time(problem, spec.training, threshold=THRESHOLD, replicas=replicas, seed=seed))
    measured = np.array([float(result.measured_mean) for result in results])
    errors = np.array([float(result.measured_mean_error) for result in results])
    rate = float(results[0].growth_rate)

    def times(name):
        return np.array([float(result.predicted.sel(estimate=name)) for result in results])

    # With drift and noise of SGD at each d, over all starts, up to order 1/d: nothing is linearised.
    passage = np.array([diffusion_time(int(d), gamma, noise, THRESHOLD).value for d in dimensions])
    # The line through the measured means, from d = 1000 on, and that through the theory with the same weights.
    far = dimensions >= 1000
    logs, weights = np.log(dimensions[far]), 1.0 / errors[far]
    line, covariance = np.polyfit(logs, measured[far], 1, w=weights, cov="unscaled")
    curved = np.polyfit(logs, passage[far], 1, w=weights)[0] - 1.0 / rate
    fitted = np.polyval(line, np.log(dimensions))
    slope_error = covariance[0, 0] ** 0.5

    side = _side_by_side(spec, 2000 if ask.full else 1000)
    smooth = np.geomspace(dimensions[0], dimensions[-1], 61).astype(int)
    shown = [
        Panel(
            "dimension  $d$",
            "escape time  $t$",
            [
                *_formulas(smooth, gamma, noise),
                Series("line fitted from $d = 10^3$", dimensions, fitted, kind="reference"),
                Series("SGD, two standard errors", dimensions, measured, errors, kind="points", color=0),
            ],
            log="x",
            legend="below",
        ),
        _law_panel(side, spec.problem.d),
    ]
    means = {name: (np.mean(times), np.std(times, ddof=1) / np.sqrt(times.size)) for name, times in side.items()}
    near = phase_retrieval.noise_correction(1, spec.problem.d, gamma, noise, THRESHOLD).value
    both = [np.hypot(means["SGD"][1], means[name][1]) for name in ("SDE", "ODE")]
    claims = [
        agrees(
            "measured mean against the mean first-passage time of its diffusion at this d, largest deviation",
            *(measured, errors, passage),
        ),
        agrees("growth with log d from 1000 to a million against 1 / r", line[0], slope_error, 1.0 / rate, abs(curved)),
        Claim(
            "quenched later than annealed by (log 2 + Euler's constant) / r at d = 1000000",
            float((times("quenched") - times("annealed"))[-1] * rate / (np.log(2.0) + np.euler_gamma)),
            # The start is chi-squared up to 1/d, and 1 - T beside T d / mu changes the mean by sqrt(1 / T d).
            1.0 - 1.0 / np.sqrt(THRESHOLD * dimensions[-1]),
            1.0 + 1.0 / np.sqrt(THRESHOLD * dimensions[-1]),
        ),
        # The SDE is looked at 256 times in the time of the ODE, and so is late by at most one of them.
        agrees("mean of the SDE against SGD", means["SDE"][0], both[0], means["SGD"][0], means["ODE"][0] / 256),
        agrees("lead of SGD over the ODE against log 2 / r", means["ODE"][0] - means["SGD"][0], both[1], -near),
    ]
    return Made({"figure": panels(shown, r"Escape of one neuron, $\gamma = 1/12$, $T = 0.1$")}, claims)


def _side_by_side(spec, runs):
    """Exit times by SGD and SDE, each from starts of its own, and by the ODE from many."""

    def measured(description, seed):
        result = tl.exit_time(
            spec.problem, spec.training, threshold=THRESHOLD, replicas=runs, description=description, seed=seed
        )
        return result.measured.values

    starts = tl.exit_time(spec.problem, spec.training, threshold=THRESHOLD, replicas=0, starts=4 * runs, seed=12)
    return {"SGD": measured(tl.OverlapSGD(), 10), "SDE": measured(tl.SDE(), 11), "ODE": starts.ode.values}


def _law_panel(side, d):
    """The share of runs that have exited by a time, by each description."""
    laws = [
        Series(label, np.sort(times), np.arange(1, times.size + 1) / times.size, kind="steps", color=color)
        for label, times, color in zip(("SGD", "SDE", "ODE, random starts"), side.values(), (0, 4, 1), strict=True)
    ]
    end = float(np.quantile(side["ODE"], 0.995))
    return Panel("time  $t$", "fraction that has exited", laws, xlim=(0.0, end), title=rf"$d = {d}$")


def _formulas(dimensions, gamma, noise):
    """Annealed, quenched, the ODE, and the diffusion with the noise of SGD as smooth curves."""
    asked = gamma, noise, THRESHOLD
    curves = {
        "annealed": [phase_retrieval.annealed_time(1, int(d), *asked) for d in dimensions],
        "quenched": [phase_retrieval.quenched_time(1, int(d), *asked).value for d in dimensions],
        "ODE": [phase_retrieval.exact_time(int(d), *asked)[0].value for d in dimensions],
        "mean first passage, with noise": [diffusion_time(int(d), *asked).value for d in dimensions],
    }
    colors = (3, 2, 1, 1)
    return [
        Series(label, dimensions, values, color=color, dashed=int("noise" in label))
        for (label, values), color in zip(curves.items(), colors, strict=True)
    ]


if __name__ == "__main__":
    run_script(__file__)
