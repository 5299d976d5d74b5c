"""Eight neurons at the rate of the fewest steps: where they go, the largest exit they make, and the rate that does."""

import dataclasses

import numpy as np
from scipy.interpolate import CubicSpline

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Rule, Series, panels
from twolayer.theory.formulas import phase_retrieval
from twolayer.theory.formulas.one_neuron import diffusion_strength
from twolayer.theory.formulas.phase_retrieval import STANDARD_ERRORS

THRESHOLD = 0.1
# The rate that does best, as a share of the optimal one, which the ODE with noise locates among these.
BEST, STEP = 0.75, 0.05
LOCATED = np.arange(0.5, 1.0, STEP)
# The dimension over that of the page where runs are held against the ODE with noise, and how many they are.
FARTHER, FAR_RUNS = 16, 48
# Widths of which a few runs are followed at the optimal rate.
WIDER = (16, 32)
LEGEND = {"legend": "below", "legend_columns": 1}


# Large: a page is read from top to bottom, from its sizes to its claims.
def make(spec, ask):
    p, noise = spec.problem.p, spec.problem.noise
    optimal = phase_retrieval.optimal_learning_rate(p, noise)
    shares = np.array([0.4, 0.5, 0.6, BEST, 0.85, 1.0]) if ask.full else np.array([0.5, BEST, 1.0])
    replicas = 400 if ask.full else 128
    results = [_escape(spec.problem, share * optimal, replicas, number) for number, share in enumerate(shares)]
    best, at_optimum = results[list(shares).index(BEST)], results[-1]
    ends = _along(spec.problem, optimal, spec.ask), _along(spec.problem, BEST * optimal, spec.ask)
    far = dataclasses.replace(spec.problem, inputs=tl.Gaussian(FARTHER * spec.problem.d))
    at_far = _escape(far, BEST * optimal, 2 * FAR_RUNS if ask.full else FAR_RUNS, len(shares))
    widths = [1, 2, 4, 8, 16, 32] if ask.full else [2, 4, 8, 16, 32]
    wider = {width: _reached_by_runs(spec, width) for width in WIDER}
    largest = {share: [_largest(spec, width, share) for width in widths] for share in (1.0, BEST)}
    stays = 1.0 - float(at_optimum.share_exited)
    steps = float(best.measured_mean) * _unit(best)
    located = [_steps_of_ode(spec.problem, share * optimal) for share in LOCATED]
    # Five standard errors in favour of the others; rates at which runs stay for ever have no mean, and lose.
    others = [result for result in results if result is not best and float(result.share_exited) == 1.0]
    rivals = [
        (float(other.measured_mean) + ERRORS * float(other.measured_mean_error)) * _unit(other) for other in others
    ]
    end = np.median(ends[0]["SGD"][1][:, -1])
    # What is left of the overlap, since it is lost: the law of a neuron with the rate of these on one line.
    alone = optimal / p
    overlap = diffusion_strength(0.0, alone, noise) / abs(phase_retrieval.growth_rate(1, alone, noise))
    claims = [
        Claim(
            "share of the ODE's starts that exit at the optimal rate",
            float(np.isfinite(at_optimum.ode.values).mean()),
            0.0,
            0.0,
        ),
        Claim(
            "share of the runs that stay there, less five standard errors",
            stays - ERRORS * float(at_optimum.share_exited_error),
            low=0.5,
        ),
        # All neurons on one line have the risk 2 (1 - m^2), and a random start (1 + 1/p) (1 - 1/d) on average.
        Claim(
            "median risk of the runs in the end over 2 p / (p + 1) of the start",
            float(end) * (p + 1) / (2 * p),
            1.0 - (1.0 + overlap) / spec.problem.d,
            1.0 + (1.0 + overlap) / spec.problem.d,
        ),
        Claim(
            "growth rate of one neuron at the rate of these on one line",
            float(phase_retrieval.growth_rate(1, optimal / p, noise)),
            high=0.0,
        ),
        Claim(f"largest threshold at the optimal rate, p = {p}", max(largest[1.0][widths.index(p)]), high=THRESHOLD),
        Claim(
            f"largest threshold of any run at the optimal rate, p = {WIDER[0]} and {WIDER[1]}",
            max(map(max, wider.values())),
            high=THRESHOLD,
        ),
        Claim(
            "rate of the fewest steps by the ODE with noise, over the optimal one",
            float(LOCATED[np.nanargmin(located)]),
            BEST - STEP,
            BEST + STEP,
        ),
        Claim("share of the runs that exit at the best rate", float(best.share_exited), low=1.0),
        Claim(
            "steps at any other rate tried, and five standard errors, over those at the best",
            min(rivals) / steps,
            low=1.0,
        ),
        # In this dimension what the noise, linearised at the saddle, leaves out is below a standard error.
        agrees(
            f"escape time at the best rate against the ODE with noise, d = {far.d}",
            float(at_far.measured_mean),
            np.hypot(float(at_far.measured_mean_error), _predicted(at_far, "predicted_error") / STANDARD_ERRORS),
            _predicted(at_far, "predicted"),
        ),
        Claim(
            "steps at the best rate over those of the formula at the optimal rate",
            steps / _formula_steps(spec.problem, optimal),
            # At most what is lost at leading order by going below the optimal rate, and the next order in 1/log(T d).
            high=1.0 / (BEST * (2.0 - BEST)) + 1.0 / np.log(THRESHOLD * spec.problem.d),
        ),
    ]
    shown = [
        _trajectories(ends, p),
        _steps(spec.problem, optimal, shares, results, located),
        _thresholds(widths, largest, wider),
    ]
    return Made({"figure": panels(shown, rf"Wider students at their optimal rate, $T = {THRESHOLD}$")}, claims)


def _escape(problem, rate, replicas, seed):
    training = tl.SGD(rate, constraint=tl.Sphere())
    asked = {"threshold": THRESHOLD, "replicas": replicas, "starts": 32, "seed": seed}
    return tl.exit_time(problem, training, until=6.0, **asked)


def _unit(result):
    """Steps over d in a unit of time."""
    return result.attrs["steps_per_time"] / result.attrs["d"]


def _predicted(result, variable):
    """What the ODE with the noise of SGD says of the exit."""
    return float(result[variable].sel(estimate="ode_at_finite_d"))


def _steps_of_ode(problem, rate):
    """The steps over d of the ODE with the noise of SGD, where it exits from every start; NaN elsewhere."""
    training = tl.SGD(rate, constraint=tl.Sphere())
    result = tl.exit_time(problem, training, threshold=THRESHOLD, replicas=0, starts=32, until=6.0)
    steps = _predicted(result, "predicted") * _unit(result)
    return steps if np.isfinite(steps) else np.nan


def _formula_steps(problem, rate):
    """The steps over d of the annealed formula."""
    time = phase_retrieval.annealed_time(problem.p, problem.d, rate, problem.noise, THRESHOLD)
    return problem.p * time / rate


def _along(problem, rate, ask):
    """The excess risk over that of the start, by SGD and by the ODE from the same starts."""
    training = tl.SGD(rate, constraint=tl.Sphere())
    times = np.linspace(0.0, ask.until, ask.save)
    values = {}
    for name, description, runs in (("SGD", tl.OverlapSGD(), ask.replicas), ("ODE", tl.SaadSolla(), 8)):
        result = tl.evolve(problem, training, description, until=ask.until, save=times, replicas=runs)
        risk = result.excess_risk.values
        values[name] = times, risk / risk[:, :1]
    return values


def _largest(spec, p, share):
    """The largest threshold that the ODE reaches from each of several starts in a high dimension."""
    problem = dataclasses.replace(spec.problem, student=tl.Student(p, "square"), inputs=tl.Gaussian(10_000))
    training = tl.SGD(share * phase_retrieval.optimal_learning_rate(p, spec.problem.noise), constraint=tl.Sphere())
    if p == 1:  # in closed form, without a largest threshold
        risk = tl.evolve(problem, training, tl.SaadSolla(), until=8.0, save=161, replicas=4).excess_risk.values
        return 1.0 - risk.min(axis=1) / risk[:, 0]
    return tl.exit_time(problem, training, until=8.0, replicas=0, starts=4).largest_threshold.values


def _reached_by_runs(spec, p):
    """The largest threshold that each of a few runs reaches at the optimal rate."""
    problem = dataclasses.replace(spec.problem, student=tl.Student(p, "square"))
    training = tl.SGD(phase_retrieval.optimal_learning_rate(p, spec.problem.noise), constraint=tl.Sphere())
    risk = tl.evolve(problem, training, tl.OverlapSGD(), until=6.0, save=121, replicas=8).excess_risk.values
    return 1.0 - risk.min(axis=1) / risk[:, 0]


def _trajectories(ends, p):
    series = []
    for color, (label, values) in enumerate(
        zip((r"$\gamma_{\rm opt}$", rf"${BEST}\,\gamma_{{\rm opt}}$"), ends, strict=True)
    ):
        times, sgd = values["SGD"]
        band = np.quantile(sgd, [0.1, 0.9], axis=0)
        series.append(Series(f"SGD at {label}", times, np.median(sgd, axis=0), band=band, color=color))
        series.append(Series(f"ODE at {label}", times, values["ODE"][1].mean(axis=0), color=color, dashed=1))
    level = Rule(r"exit, $1 - T$", 1.0 - THRESHOLD, look={"ls": ":"})
    collapsed = Rule("all neurons on one line", 2.0 * p / (p + 1.0), look={"ls": "--", "lw": 0.6})
    return Panel(
        "time  $t$",
        "excess risk over that of the start",
        [*series, level, collapsed],
        title=f"$p = {p}$",
        **LEGEND,
    )


def _steps(problem, optimal, shares, results, located):
    units = [_unit(result) for result in results]
    smooth = np.linspace(shares[0], 1.0, 101)
    formula = [_formula_steps(problem, share * optimal) for share in smooth]
    exits = np.isfinite(located)
    curve = CubicSpline(LOCATED[exits], np.array(located)[exits])
    where = np.linspace(LOCATED[exits][0], LOCATED[exits][-1], 101)
    parts = ("measured_mean", "measured_mean_error")
    measured, errors = (np.array([float(result[part]) for result in results]) * units for part in parts)
    stays = 1.0 - float(results[-1].share_exited)
    return Panel(
        r"learning rate  $\gamma / \gamma_{\rm opt}$",
        r"steps to the exit$\,/\,d$",
        [
            Series("annealed formula", smooth, formula, color=3),
            Series("ODE with noise", where, curve(where), color=1),
            Series("SGD", shares, measured, errors, kind="points", color=0),
            Rule(f"no exit: {round(100 * stays)}% of the runs stay", 1.0, "x", look={"ls": ":"}),
        ],
        title=rf"$p = {problem.p}$, $d = {problem.d}$",
        **LEGEND,
    )


def _thresholds(widths, largest, wider):
    series = [
        Series(
            label,
            widths,
            np.mean(largest[share], axis=1),
            0.25 * np.ptp(largest[share], axis=1),
            kind="points",
            color=color,
            joined=True,
        )
        for (share, label), color in zip(
            ((1.0, r"at $\gamma_{\rm opt}(p)$"), (BEST, rf"at ${BEST}\,\gamma_{{\rm opt}}(p)$")), (0, 1), strict=True
        )
    ]
    middle = [np.median(reached) for reached in wider.values()]
    spread = [0.25 * np.ptp(reached) for reached in wider.values()]
    look = {"marker": "s", "mfc": "none"}
    series.append(
        Series(r"runs at $\gamma_{\rm opt}(p)$", list(wider), middle, spread, kind="points", color=0, look=look)
    )
    level = Rule(rf"$T = {THRESHOLD}$", THRESHOLD, look={"ls": ":"})
    return Panel("width  $p$", "largest threshold of the ODE", [*series, level], log="xy", xticks=widths, **LEGEND)


if __name__ == "__main__":
    run_script(__file__)
