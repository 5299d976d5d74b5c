"""The length of the plateau over learning rate, width and dimension: one sweep of the ODE, and its linearisation."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Series, panels
from twolayer.theory.formulas.phase_retrieval import growth_rate, optimal_learning_rate

DIMENSIONS = [10**6, 10**8, 10**10]


def make(spec, ask):
    widths = [1, 2, 4, 8] if ask.full else [1, 2, 4]
    rates = np.geomspace(0.01, 1.28, 29 if ask.full else 15)
    over = {"problem.student.p": widths, "training.learning_rate": rates, "problem.inputs.d": DIMENSIONS}
    swept = tl.sweep(spec.problem, spec.training, spec.descriptions[0], spec.ask, over=over, workers=0)
    times = swept.overlap_time.isel(r=0).transpose("p", "learning_rate", "d", "replica").values
    growth = np.array([[growth_rate(p, rate, spec.problem.noise) for rate in rates] for p in widths])

    # Per unit of log d, from one end of the dimensions to the other; the starts of a replica are alike at every d.
    slopes = (times[:, :, -1] - times[:, :, 0]) / np.log(DIMENSIONS[-1] / DIMENSIONS[0])
    means, errors = slopes.mean(axis=2), slopes.std(axis=2, ddof=1) / np.sqrt(slopes.shape[2])
    leaves = growth > 0.0
    is_left = np.isfinite(times).all(axis=(2, 3))
    seen = leaves & is_left
    lone = np.where(seen[0], means[0] / rates, np.inf)  # steps over d, per unit of log d
    optimal = optimal_learning_rate(1, spec.problem.noise)
    still = is_left & ~leaves
    claims = [
        # Squares of the overlaps at the start are left out, at most 1e-5: less than the errors.
        agrees("growth of the plateau with log d against 1 / r", means[seen], errors[seen], 1.0 / growth[seen]),
        Claim("cells that the ODE leaves though their growth rate is negative", float(still.sum()), 0.0, 0.0),
        Claim(
            "rate of the fewest steps of one neuron over the optimal rate, in steps of the grid",
            float(abs(np.log(rates[np.argmin(lone)] / optimal)) / np.log(rates[1] / rates[0])),
            high=1.0,
        ),
    ]
    shown = [_over_rates(widths, rates, times, spec.problem.noise), _over_dimensions(widths, rates, times)]
    return Made({"figure": panels(shown, "The plateau of phase retrieval on the sphere")}, claims)


def _over_rates(widths, rates, times, noise):
    parts, smooth = [], np.geomspace(rates[0], rates[-1], 400)
    for color, p in enumerate(widths):
        lowest, values, highest = np.quantile(times[color, :, -1], [0.1, 0.5, 0.9], axis=1)
        # Bars are of two errors: those here reach as far in all as the 10-90% of the starts.
        bars = 0.25 * (highest - lowest)
        parts.append(Series(f"ODE, $p = {p}$", rates, values, bars, kind="points", color=color))
        growth = growth_rate(p, smooth, noise)
        line = np.log(DIMENSIONS[-1] * 0.01) / np.where(growth > 0.0, growth, np.nan)
        line[line > 2.0 * np.nanmax(values)] = np.nan
        parts.append(Series("" if color else r"$\log(T^2 d)/r$", smooth, line, kind="reference"))
    label = rf"length of the plateau, $d = 10^{{{round(np.log10(DIMENSIONS[-1]))}}}$"
    return Panel(r"learning rate  $\gamma$", label, parts, log="xy", legend="below")


def _over_dimensions(widths, rates, times):
    n = len(rates) // 4
    parts = [
        Series(
            f"ODE, $p = {p}$", DIMENSIONS, np.median(times[color, n], axis=1), kind="points", color=color, joined=True
        )
        for color, p in enumerate(widths)
    ]
    return Panel("dimension  $d$", rf"length of the plateau, $\gamma = {rates[n]:.3g}$", parts, log="x", legend="below")


if __name__ == "__main__":
    run_script(__file__)
