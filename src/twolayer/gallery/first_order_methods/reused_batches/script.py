"""Fresh batches learn nothing here, batches used again do: one neuron, a network, and its test error."""

import dataclasses

import numpy as np

import twolayer as tl
from twolayer.fitting import fitted_risks
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Rule, Series, panels

GRADIENTS, PAIRS = 6, 8
# Samples over d, and gamma n_b / (p d): how far a step moves a neuron. The second pair is for the test error.
FEW, MANY = (4.0, 1.4), (16.0, 4.0)
FRESH, SAME, TWICE = "fresh batches", "the same batch", "each batch twice"
COLORS = {FRESH: 1, SAME: 0, TWICE: 2}
NOTHING = 0.5  # the error of the best function that does not know the target's direction


def make(spec, ask):
    d, replicas, clouds = (1000, 96, 2**18) if ask.full else (400, 48, 2**16)
    second_layer = np.random.default_rng(0).standard_normal(spec.problem.p)
    neuron, network = of_width(spec, d, np.ones(1)), of_width(spec, d, second_layer)
    shown, claims = [], []
    wide = f"network, $p={network.p}$"
    for who, problem, runs in (("one neuron", neuron, replicas), (wide, network, replicas // 2)):
        panel, more = overlaps_panel(who, problem, runs, tl.DMFT(samples=clouds))
        shown.append(panel)
        claims += more
    panel, more = errors_panel(network, replicas // 6, tl.DMFT(samples=clouds))
    title = rf"erf units on the sphere, target He$_3(z_1)$, $d={d}$: theory (lines), SGD (marks, two standard errors)"
    return Made({"figure": panels([*shown, panel], title)}, [*claims, *more])


def of_width(spec, d, second_layer):
    """A student with the given second layer, whose rows are orthogonal to one another and to the target."""
    p = len(second_layer)
    student = tl.Student(p, spec.problem.student.activation, second_layer)
    start = tl.GivenOverlaps(np.eye(p), np.zeros((p, 1)))
    return dataclasses.replace(spec.problem, student=student, inputs=tl.Gaussian(d), start=start)


def ways(problem, alpha, reach):
    """The ways to use samples, each with the gradients of a step."""
    rate, batch, sphere = reach * problem.p / alpha, round(alpha * problem.d), tl.Sphere()
    return {
        SAME: (tl.SGD(rate, reuse=tl.Reused(alpha), constraint=sphere), 1),
        TWICE: (tl.SGD(rate, batch, tl.Repeated(2), constraint=sphere), 2),
        FRESH: (tl.SGD(rate, batch, constraint=sphere), 1),
    }


def follow(problem, training, steps, description, replicas=1):
    """The training after each of so many steps."""
    times = training.clock(problem).time(np.arange(steps + 1))
    return tl.evolve(problem, training, description, until=float(times[-1]), save=times, replicas=replicas)


def mean_of(runs):
    """The mean over the runs, and its standard error."""
    return runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(len(runs))


def overlaps_panel(who, problem, replicas, again):
    """The overlaps of all neurons as one number, along those that theory predicts for the same batch."""
    series, claims, name = [], [], who.split(",")[0]
    along = None
    for way, (training, uses) in ways(problem, *FEW).items():
        steps = GRADIENTS // uses
        theory = follow(problem, training, steps, tl.BatchMap() if way == FRESH else again)
        predicted = theory.M.values[0, ..., 0]
        along = predicted[-1] / np.linalg.norm(predicted[-1]) if along is None else along
        simulation = tl.OverlapSGD() if way == FRESH else tl.DirectSGD()
        mean, error = mean_of(follow(problem, training, steps, simulation, replicas).M.values[..., 0] @ along)
        line = predicted @ along
        gradients = uses * np.arange(steps + 1)
        series += [
            Series(way, gradients, line, color=COLORS[way]),
            Series("", gradients, mean, error, kind="points", color=COLORS[way]),
        ]
        first = 2 // uses if way != FRESH else 1  # before the second gradient on a sample there is nothing to see
        sentence = f"{name}, {way}: overlap in SGD against theory, all steps"
        claims.append(agrees(sentence, mean[1:], error[1:], line[1:]))
        if way == FRESH:
            claims.append(Claim(f"{name}, {way}: largest overlap in theory", np.abs(predicted).max(), high=1e-9))
        else:
            least = np.min(np.abs(mean[first:]) / error[first:])
            claims.append(Claim(f"{name}, {way}: overlap in SGD over its error, least", least, low=ERRORS))
    title = rf"{who}, $n={FEW[0]:g}\,d$"
    ticks = {"xticks": range(0, GRADIENTS + 1, 2)}
    return Panel("gradients taken", r"overlap  $\sum_j u_j M_{j1}$", series, title=title, **ticks), claims


def errors_panel(problem, replicas, again):
    """The test error after the second layer is fitted, over that of a network that knows nothing of the target.

    Overlaps by chance lower it by order 1/d, the more the wider the network: runs at d and at 2d are extrapolated.
    """
    series, claims = [], []
    fit = tl.RidgeRegression(1e-6)
    asked = ways(problem, *MANY)
    larger = dataclasses.replace(problem, inputs=tl.Gaussian(2 * problem.d))
    for way, steps in ((TWICE, PAIRS), (FRESH, 2 * PAIRS)):
        training, uses = asked[way]
        simulation = tl.OverlapSGD() if way == FRESH else tl.DirectSGD()
        theory = follow(problem, training, steps, tl.BatchMap() if way == FRESH else again)
        runs = follow(problem, training, steps, simulation, replicas)
        more = follow(larger, ways(larger, *MANY)[way][0], steps, simulation, replicas)
        predicted, measured, at_2d = (
            fitted_risks(problem, fit, x.Q.values, x.M.values)[0] / NOTHING for x in (theory, runs, more)
        )
        (mean, error), (mean_2d, error_2d) = mean_of(measured), mean_of(at_2d)
        mean, error = 2.0 * mean_2d - mean, np.hypot(2.0 * error_2d, error)
        gradients = uses * np.arange(steps + 1)
        series += [
            Series(way, gradients, predicted[0], color=COLORS[way]),
            Series("", gradients, mean, error, kind="points", color=COLORS[way]),
        ]
        if way == FRESH:
            claims.append(Claim(f"{way}: test error in theory over that of nothing", predicted[0, -1], 1.0 - 1e-9, 1.0))
        sentence = f"{way}: test error of SGD, extrapolated in 1/d, against theory, all steps"
        claims.append(agrees(sentence, mean[1:], error[1:], predicted[0, 1:]))
        if way == TWICE:
            highest = mean[-1] + ERRORS * error[-1]
            claims.append(Claim(f"{way}: the same at the end over that of nothing, and five errors", highest, high=1.0))
    title = rf"layer-wise, $n={MANY[0]:g}\,d$, $d \to \infty$"
    level = Rule("best without $z_1$", 1.0, look={"ls": ":"})
    return Panel("gradients taken", "test error / without $z_1$", [*series, level], title=title), claims


if __name__ == "__main__":
    run_script(__file__)
