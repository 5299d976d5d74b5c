"""Escape times against d, to a million dimensions, and over a grid of widths and d: formulas, ODE, SDE, and SGD."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.one_neuron import diffusion_time

THRESHOLD = 0.1
ASKED = {"verb": "exit_time", "threshold": THRESHOLD, "workers": 0}
# The ODE from random starts, earlier by what the noise of SGD makes at each d.
BEST = "ode_at_finite_d"
WIDTHS, DIMENSIONS = [1, 2, 4], [100, 300, 1000, 3000]


def make(spec, ask):
    gamma, noise = spec.training.learning_rate, spec.problem.noise
    dimensions = np.array([100, 1000, 10_000, 100_000, 1_000_000])
    # Enough at d = 1000 that a noise of SGD twice as large would show.
    runs = [2000, 6000, 2000, 1000, 1000] if ask.full else [2000, 6000, 200, 48, 20]
    # Independent runs at every d: numbers of them and seeds change along with it.
    over = {"problem.inputs.d": dimensions, "run.replicas": runs, "run.seed": range(len(runs))}
    swept = tl.sweep(spec.problem, spec.training, over=over, together=[list(over)], **ASKED)
    measured, errors = swept.measured_mean.values, swept.measured_mean_error.values
    rate = float(swept.growth_rate[0])

    def times(name):
        return swept.predicted.sel(estimate=name).values

    # With drift and noise of SGD at each d, over all starts, up to order 1/d: nothing is linearised.
    passage = np.array([diffusion_time(int(d), gamma, noise, THRESHOLD).value for d in dimensions])
    # The line through the measured means, from d = 1000 on, and that through the theory with the same weights.
    far = dimensions >= 1000
    logs, weights = np.log(dimensions[far]), 1.0 / errors[far]
    line, covariance = np.polyfit(logs, measured[far], 1, w=weights, cov="unscaled")
    curved = np.polyfit(logs, passage[far], 1, w=weights)[0] - 1.0 / rate
    fitted = np.polyval(line, np.log(dimensions))
    slope_error = covariance[0, 0] ** 0.5

    grid = _over_widths(spec, 1024 if ask.full else 256)
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
        _width_panel(grid),
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
        *_width_claims(grid),
        # The SDE is looked at 256 times in the time of the ODE, and so is late by at most one of them.
        agrees("mean of the SDE against SGD", means["SDE"][0], both[0], means["SGD"][0], means["ODE"][0] / 256),
        agrees("lead of SGD over the ODE against log 2 / r", means["ODE"][0] - means["SGD"][0], both[1], -near),
    ]
    return Made({"figure": panels(shown, r"Escape from a random start, $\gamma = 1/12$, $T = 0.1$")}, claims)


def _over_widths(spec, runs):
    """Exit times over the grid of widths and dimensions, each cell with starts and runs of its own."""
    over = {"problem.student.p": WIDTHS, "problem.inputs.d": DIMENSIONS}
    return tl.sweep(spec.problem, spec.training, over=over, replicas=runs, starts=64, seed=20, **ASKED)


def _width_claims(grid):
    """The means of all cells against the theory with the noise of SGD at their d, and their growth with log d."""
    means, errors = grid.measured_mean.values, grid.measured_mean_error.values
    best = grid.sel(estimate=BEST)
    both = np.hypot(errors, best.predicted_error.values)
    logs, rates = np.log(DIMENSIONS), grid.growth_rate.values[:, 0]

    def slopes(values):
        return np.array([np.polyfit(logs, row, 1)[0] for row in values])

    scatter = [np.linalg.norm((logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2) * row) for row in errors]
    bent = np.abs(slopes(best.predicted.values) - 1.0 / rates)  # at these d the growth is not yet that of large ones
    return [
        agrees(
            "measured means over widths and dimensions against the ODE with the noise of SGD, largest deviation",
            *(means, both, best.predicted.values, best.model_error.values),
        ),
        agrees("slope of the means in log d at each width against 1 / r(p)", slopes(means), scatter, 1.0 / rates, bent),
    ]


def _width_panel(grid):
    """Escape times against d, with a colour for each width."""
    parts = []
    for color, p in enumerate(WIDTHS):
        cells = grid.sel(p=p)
        means, errors = cells.measured_mean.values, cells.measured_mean_error.values
        parts.append(Series("", DIMENSIONS, cells.predicted.sel(estimate=BEST).values, color=color))
        parts.append(Series(f"SGD, $p = {p}$", DIMENSIONS, means, errors, kind="points", color=color))
    return Panel("dimension  $d$", "escape time  $t$", parts, log="x", legend="below", title="lines: ODE with noise")


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
    return Panel("time  $t$", "fraction that has exited", laws, xlim=(0.0, end), legend="below", title=rf"$d = {d}$")


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
