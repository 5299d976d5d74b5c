"""Escape with both layers trained, and with free rows: output weights, escape times over three decades of d, rates."""

import equinox as eqx
import numpy as np

import twolayer as tl
from twolayer.gallery import Made, agrees, run_script
from twolayer.plots import Panel, Series, panels
from twolayer.theory.formulas.phase_retrieval import STANDARD_ERRORS
from twolayer.theory.formulas.quadratic import Escape, QuadraticStudent, student_of

THRESHOLD = 0.1
FREE_RATE = 0.6
LEGEND = {"legend": "below", "legend_columns": 1}


def make(spec, ask):
    dimensions = np.array([300, 3000, 30_000, 300_000])
    # Enough at d = 3000 that a noise of SGD twice as large would show.
    runs = [600, 600, 400, 400] if ask.full else [200, 600, 48, 16]
    trainings = {"both layers": spec.training, "free rows": tl.SGD(FREE_RATE)}
    lines, claims = [], []
    for number, (name, training) in enumerate(trainings.items()):
        series, statements = _against_dimension(spec.problem, training, name, dimensions, runs, number)
        lines += series
        claims += statements
    weights, agreement = _output_weights(spec)
    shown = [
        weights,
        Panel("dimension  $d$", "escape time  $t$", lines, log="x", **LEGEND),
        _steps_panel(spec.problem.noise),
    ]
    title = rf"Phase retrieval beyond a fixed second layer on the sphere, $p = {spec.problem.p}$"
    return Made({"figure": panels(shown, title)}, [agreement, *claims])


def _against_dimension(problem, training, name, dimensions, runs, number):
    """Formula and ODE with noise as curves, measured means as points, and the claims about them."""
    results = []
    for seed, (d, replicas) in enumerate(zip(dimensions, runs, strict=True)):
        there = eqx.tree_at(lambda problem: problem.inputs, problem, tl.Gaussian(int(d)))
        asked = {"threshold": THRESHOLD, "replicas": replicas, "starts": 16, "seed": seed + 10 * number}
        results.append(tl.exit_time(there, training, **asked))
    measured, errors = (
        np.array([float(result[part]) for result in results]) for part in ("measured_mean", "measured_mean_error")
    )

    def predicted(estimate, variable="predicted"):
        return np.array([float(result[variable].sel(estimate=estimate)) for result in results])

    best = predicted("ode_at_finite_d")
    doubt = predicted("ode_at_finite_d", "predicted_error") / STANDARD_ERRORS
    rate = float(results[0].growth_rate)
    # The slope of a line through the theory, with the same weights, differs from 1 / r by what the smallest d leaves.
    logs, weights = np.log(dimensions), 1.0 / errors
    line, covariance = np.polyfit(logs, measured, 1, w=weights, cov="unscaled")
    allowed = abs(np.polyfit(logs, best, 1, w=weights)[0] - 1.0 / rate)
    claims = [
        agrees(
            f"{name}: escape time against the ODE with noise, largest deviation",
            *(measured, np.hypot(errors, doubt), best),
        ),
        agrees(f"{name}: growth with log d against 1 / r", line[0], covariance[0, 0] ** 0.5, 1.0 / rate, allowed),
    ]
    smooth = np.geomspace(dimensions[0], dimensions[-1], 61)
    escape = Escape(student_of(problem, training), training.learning_rate, THRESHOLD)
    formula = np.array([escape.mean_time(int(d), is_noisy=True).value for d in smooth])
    # What the linearised formula leaves out depends on d so little that a line through the four values serves.
    rest = np.interp(np.log(smooth), logs, best - predicted("quenched_with_noise"))
    series = [
        Series(f"{name}: formula", smooth, formula, color=2 + number, dashed=1),
        Series(f"{name}: ODE with noise", smooth, formula + rest, color=2 + number),
        Series(f"{name}: SGD", dimensions, measured, errors, kind="points", color=2 + number),
    ]
    return series, claims


def _output_weights(spec):
    """The mean output weight of SGD and of the ODE from the same starts, and where it would rest without overlap."""
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)
    descriptions = [tl.OverlapSGD(), tl.SaadSolla()]
    asked = {"until": spec.ask.until, "save": times, "replicas": spec.ask.replicas}
    both = tl.compare(spec.problem, spec.training, descriptions, **asked)
    sgd, ode = (both[name].a.values.mean(axis=-1) for name in ("OverlapSGD", "SaadSolla"))

    def law(values, label, color):
        return Series(label, times, values.mean(axis=0), band=np.quantile(values, [0.1, 0.9], axis=0), color=color)

    scale = 1.0 + 2.0 / spec.problem.p
    alone = 1.0 / scale + (1.0 - 1.0 / scale) * np.exp(-spec.training.layer_ratio * scale * times)
    series = [
        law(sgd, "SGD", 0),
        law(ode, "ODE, same starts", 1),
        Series(r"without overlap, to $p/(p+2)$", times, alone, kind="reference", dashed=1),
    ]
    title = rf"both layers, $d = {spec.problem.d}$"
    panel = Panel("time  $t$", "mean output weight", series, title=title, **LEGEND)
    differences = sgd[:, -1] - ode[:, -1]
    error = differences.std(ddof=1) / np.sqrt(differences.size)
    return panel, agrees("mean output weight at the end, SGD against the ODE", differences.mean(), error, 0.0)


def _steps_panel(noise):
    """Steps over d log d at the optimal rate against the width, by formula, for the three ways of training."""
    widths = np.geomspace(1, 64, 121)
    kinds = {
        "sphere, first layer": (True, 0.0, 1),
        "free rows, first layer": (False, 0.0, 3),
        "sphere, both layers": (True, 1.0, 2),
    }
    series = []
    for name, (is_spherical, ratio, color) in kinds.items():
        students = [QuadraticStudent(p, noise, is_spherical, ratio) for p in widths]
        best = [(student.p, student.optimal_learning_rate, student) for student in students]
        steps = [p / (gamma * student.rest(gamma).growth_rate) for p, gamma, student in best]
        series.append(Series(name, widths, steps, color=color))
    ticks = [1, 2, 4, 8, 16, 32, 64]
    ylabel = r"steps$\,/\,d \log d$ at $\gamma_{\rm opt}$"
    return Panel("width  $p$", ylabel, series, log="x", xticks=ticks, ylim=(0.0, 3.1), title="formulas", **LEGEND)


if __name__ == "__main__":
    run_script(__file__)
