"""Steps to escape against the learning rate, and against the width at the optimal and at the best measured rate."""

import dataclasses

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Rule, Series, panels
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.one_neuron import diffusion_time
from twolayer.theory.formulas.phase_retrieval import STANDARD_ERRORS

# Small enough for every width to reach it at its optimal rate; see the page on wider students.
THRESHOLD = 0.03
# Dimensions, over that of the page, from which the slopes in log d are taken; and how many runs in the larger ones.
FARTHER, FAR_RUNS = (6, 36), {1: 256, 16: 16, 32: 16}
# The rates tried at every width, over the optimal one.
TRIED = (0.75, 1.0, 1.25)


# Large: a page is read from top to bottom, from its sizes to its claims.
def make(spec, ask):
    noise, d = spec.problem.noise, 10_000 if ask.full else spec.problem.d
    problem = dataclasses.replace(spec.problem, inputs=tl.Gaussian(d))
    best = phase_retrieval.optimal_learning_rate(1, noise)
    rates = best * np.array([0.4, 0.55, 0.7, 1.0, 1.3, 1.5] if ask.full else [0.55, 1.0, 1.3])
    runs = [_escape(problem, rate, 1000, seed) for seed, rate in enumerate(rates)]
    smooth = best * np.linspace(0.4, 1.5, 221)
    curves = _curves(problem, smooth)
    widths = np.array([1, 2, 4, 8, 16, 32] if ask.full else [1, 2, 4, 8])
    # One neuron is in every gain, and costs the least.
    table = [_of_width(problem, int(p), 1000 if p == 1 else 64) for p in widths]
    gain = _gain(table)
    slopes = np.array([_slope_in_log_d(problem, int(p), row) for p, row in zip(widths, table, strict=True)]).T
    ratios, ratio_errors = _ratios(*slopes)
    claims = [
        agrees(
            "one neuron: steps against the mean first-passage time of its diffusion, largest deviation",
            *np.array([_mean(result) for result in runs]).T,
            [_passage(problem.d, rate, noise) for rate in rates],
        ),
        Claim(
            "one neuron: rate of the fewest steps by the quenched formula, over 1 / (12 + noise)",
            float(smooth[np.argmin(curves["quenched"])] * (12.0 + noise)),
            1.0 - 0.0025,  # half of the distance of the rates that are compared
            1.0 + 0.0025,
        ),
        Claim(
            "share of the runs that escape at the optimal rate, smallest over the widths",
            min(float(row["optimal"].share_exited) for row in table),
            low=1.0,
        ),
        agrees(
            "steps at the optimal rate of each width above one against the ODE with noise, largest deviation",
            *_pairs([row["optimal"] for row in table[1:]]),
        ),
        agrees(f"gain of p = {widths[-1]} over one neuron against the ODE with noise", *gain["claim"]),
        agrees(
            "gain as the ratio of the slopes of the steps in log d, against c_1 / c_p, largest deviation",
            ratios[1:],
            ratio_errors[1:],
            phase_retrieval.overparametrisation_gain(widths[1:], noise),
        ),
        Claim(
            "largest ratio of slopes less five standard errors, over (12 + noise) / (2 + noise)",
            float(np.max(ratios - ERRORS * ratio_errors))
            / float(phase_retrieval.overparametrisation_gain(np.inf, noise)),
            high=1.0,
        ),
        # The formula is of leading order in log d: another rate may gain by a fraction of order 1 / log(T d).
        Claim(
            "fewest steps over those at the optimal rate, smallest over the widths",
            float(np.min(gain["fewest"])),
            low=1.0 - 1.0 / np.log(THRESHOLD * problem.d),
        ),
    ]
    shown = [
        _rates_panel(problem, best, smooth, curves, rates, runs),
        *_width_panels(problem, widths, table, gain, (ratios, ratio_errors)),
    ]
    return Made(
        {
            "figure": panels(
                shown,
                rf"The rate that escapes soonest, $\Delta = {noise:g}$, $d = {problem.d}$",
                has_common_legend=False,
            )
        },
        claims,
    )


def _escape(problem, gamma, replicas, seed):
    training = tl.SGD(gamma, constraint=tl.Sphere())
    asked = {"threshold": THRESHOLD, "replicas": replicas, "starts": 32, "seed": seed}
    until = None if problem.p == 1 else 6.0  # one neuron exits sooner or later; several may never
    return tl.exit_time(problem, training, until=until, **asked)


def _steps(result, value):
    return float(value) * result.attrs["steps_per_time"] / result.attrs["d"]


def _mean(result):
    """Measured steps over d, and their standard error."""
    return np.array([_steps(result, result.measured_mean), _steps(result, result.measured_mean_error)])


def _passage(d, rate, noise):
    """Steps over d of one neuron by the mean first-passage time, which is exact up to order 1/d."""
    return diffusion_time(d, float(rate), noise, THRESHOLD).value / rate


def _predicted(result):
    """Steps over d by the ODE with noise at this d, and the standard error of its mean over starts."""
    if result.attrs["p"] == 1:  # over all starts, by quadrature
        return np.array([_passage(*(result.attrs[name] for name in ("d", "learning_rate", "noise"))), 0.0])
    numbers = result.sel(estimate="ode_at_finite_d")
    return np.array([_steps(result, numbers.predicted), _steps(result, numbers.predicted_error) / STANDARD_ERRORS])


def _pairs(results):
    """Measured steps, the standard error of their distance to the predicted ones, and these, as `agrees` takes them."""
    measured, predicted = (np.array([of(result) for result in results]).T for of in (_mean, _predicted))
    return measured[0], np.hypot(measured[1], predicted[1]), predicted[0]


def _of_width(problem, p, replicas):
    """The escape of p neurons at the optimal rate, and at the best of those tried, measured again by other runs."""
    problem = dataclasses.replace(problem, student=tl.Student(p, "square"))
    optimal = phase_retrieval.optimal_learning_rate(p, problem.noise)
    tried = [_escape(problem, share * optimal, replicas, 10 * p + n) for n, share in enumerate(TRIED)]
    # Where some runs do not exit there is no mean, and the rate is not among the best.
    best = int(np.nanargmin([_mean(result)[0] for result in tried]))
    again = _escape(problem, TRIED[best] * optimal, replicas, 10 * p + 5)
    return {"optimal": tried[TRIED.index(1.0)], "best": again, "share": TRIED[best]}


def _gain(table):
    """The gain over one neuron with its standard error, at the optimal rate and at the best one of each width."""
    steps = {name: np.array([_mean(row[name]) for row in table]).T for name in ("optimal", "best")}
    measured = {}
    for name, (mean, error) in steps.items():
        gain = mean[0] / mean
        spread = gain * np.hypot(error / mean, error[0] / mean[0])
        measured[name] = gain, np.where(np.arange(len(gain)) > 0, spread, 0.0)
    (first, last), (_, doubt) = np.array([_predicted(row["optimal"]) for row in (table[0], table[-1])]).T
    gain, error = measured["optimal"]
    distance = np.hypot(error[-1], gain[-1] * doubt / last)
    fewest = steps["best"][0] / steps["optimal"][0]
    return {**measured, "claim": (gain[-1], distance, first / last), "fewest": fewest}


def _slope_in_log_d(problem, p, row):
    """The slope of the steps over d in log d at the optimal rate, and its standard error."""
    results = [row["optimal"]]
    for number, factor in enumerate(FARTHER):
        far = dataclasses.replace(problem, student=tl.Student(p, "square"), inputs=tl.Gaussian(factor * problem.d))
        optimal = phase_retrieval.optimal_learning_rate(p, problem.noise)
        results.append(_escape(far, optimal, FAR_RUNS.get(p, 64), 10 * p + 6 + number))
    steps, errors = np.array([_mean(result) for result in results]).T
    logs = np.log([result.attrs["d"] for result in results])
    (slope, _), covariance = np.polyfit(logs, steps, 1, w=1.0 / errors, cov="unscaled")
    return slope, np.sqrt(covariance[0, 0])


def _ratios(slopes, errors):
    """The slope of one neuron over that of each width, and the standard error."""
    ratios = slopes[0] / slopes
    return ratios, ratios * np.where(np.arange(len(slopes)) > 0, np.hypot(errors / slopes, errors[0] / slopes[0]), 0.0)


def _curves(problem, rates):
    """The formulas of one neuron as smooth curves, in steps over d."""
    d, noise = problem.d, problem.noise
    asked = [(d, float(rate), noise, THRESHOLD) for rate in rates]
    times = {
        "annealed": np.array([phase_retrieval.annealed_time(1, *x) for x in asked]),
        "quenched": np.array([phase_retrieval.quenched_time(1, *x).value for x in asked]),
        "mean first passage": np.array([diffusion_time(*x).value for x in asked]),
    }
    return {name: time / rates for name, time in times.items()}


def _rates_panel(problem, best, smooth, curves, rates, runs):
    lines = [Series(name, smooth / best, y, color=c) for (name, y), c in zip(curves.items(), (3, 2, 1), strict=True)]
    measured, errors = np.array([_mean(result) for result in runs]).T
    points = Series("SGD", rates / best, measured, errors, kind="points", color=0)
    mark = Rule("", 1.0, "x", look={"ls": ":"})
    label = r"learning rate  $\gamma / \gamma_{\rm opt}$"
    return Panel(
        label, r"steps to the exit$\,/\,d$", [*lines, points, mark], title="$p = 1$", legend="below", legend_columns=1
    )


def _width_panels(problem, widths, table, gain, ratios):
    """Steps and gain against the width: formula and measurement on one axis."""
    smooth = np.geomspace(widths[0], widths[-1], 121)
    constants = phase_retrieval.rate_constant(smooth, problem.noise)
    logarithm = np.log((smooth + 1.0) * (THRESHOLD * problem.d + 1.0 - THRESHOLD) / (2.0 * smooth))
    formula = 0.5 * constants * logarithm
    limit = phase_retrieval.overparametrisation_gain(np.inf, problem.noise)
    predicted = np.array([_predicted(row["optimal"])[0] for row in table])
    looks = {"optimal": (r"SGD at $\gamma_{\rm opt}(p)$", 0), "best": ("SGD at the best rate", 4)}
    steps = [Series("annealed formula", smooth, formula, color=3)]
    gains = [
        Series(
            r"$c_1 / c_p$, $d \to \infty$",
            smooth,
            phase_retrieval.overparametrisation_gain(smooth, problem.noise),
            color=2,
        ),
        Rule(r"$(12 + \Delta) / (2 + \Delta)$", limit, look={"ls": ":"}),
        Series(r"SGD, slopes in $\log d$", widths, *ratios, kind="points", color=1),
    ]
    steps.append(Series("ODE with noise", widths, predicted, kind="points", color=1, look={"marker": "_", "ms": 9}))
    for name, (label, color) in looks.items():
        mean, error = np.array([_mean(row[name]) for row in table]).T
        steps.append(Series(label, widths, mean, error, kind="points", color=color))
        if name == "best":
            gains.append(Series(f"{label}, $d = {problem.d}$", widths, *gain[name], kind="points", color=color))
    shared = {"xticks": widths, "legend": "below", "legend_columns": 1}
    title = "each width at its rate"
    return [
        Panel("width  $p$", r"steps to the exit$\,/\,d$", steps, log="xy", title=title, **shared),
        Panel("width  $p$", "gain over one neuron", gains, log="x", title=title, **shared),
    ]


if __name__ == "__main__":
    run_script(__file__)
