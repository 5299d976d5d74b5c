"""What is forgotten of one task while another is learned, against the similarity of the two."""

import dataclasses

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.plots import Panel, Rule, Series, panels

DURATIONS = (0.25, 0.5)
TOLERANCE = 1e-4  # of the ODE, which is solved to more digits than that


# Large: a page is read from top to bottom, from its sizes to its claims.
def make(spec, ask):
    rate, d = float(spec.training.learning_rate), spec.problem.d
    similarities = np.linspace(0.0, 0.95, 41)
    some = slice(None, None, 4)  # of which claims are made; runs are at every other one of these, or at all
    replicas = 1000 if ask.full else spec.ask.replicas

    def forgotten(problem, other, training, start, rho, description, **options):
        """The risk of the first task, learned to the end, after training on a second one for each duration."""
        P = np.array([[1.0, rho], [rho, 1.0]])
        target = dataclasses.replace(problem.target, P=P)
        begins = tl.GivenOverlaps(start(P)[0], start(P)[1])
        schedule = tl.Schedule([tl.Task(training, target=tl.Mixture([other, target], [1.0, 0.0]))])
        here = dataclasses.replace(problem, target=target, start=begins)
        found = tl.evolve(here, schedule, description, until=DURATIONS[-1], save=DURATIONS, **options)
        return found.task_risk.values[:, 1:, 1] - found.task_risk.values[:, :1, 1]

    def learned(P):
        return np.array([[1.0]]), P[:1]

    other = dataclasses.replace(spec.problem.target, second_layer=np.array([0.0, 2.0]))
    squares = (spec.problem, other, spec.training, learned)
    ode = np.array([forgotten(*squares, rho, "SaadSolla")[0] for rho in similarities])
    of_runs = slice(None, None, 4 if ask.full else 8)
    shown = similarities[of_runs]
    runs = [forgotten(*squares, rho, "OverlapSGD", replicas=replicas) for rho in shown]
    mean = np.array([run.mean(axis=0) for run in runs])
    error = np.array([run.std(axis=0, ddof=1) / np.sqrt(replicas) for run in runs])

    erf = tl.Problem(tl.Committee(2, "erf", second_layer=[2.0, 0.0]), tl.Student(2, "erf"), tl.Gaussian(d), noise=0.0)
    both = tl.Committee(2, "erf", second_layer=[0.0, 2.0])
    matched = (erf, both, tl.SGD(0.5), lambda P: (np.ones((2, 2)) + 1e-3 * np.eye(2), np.tile(P[:1], (2, 1))))
    smooth = np.array([forgotten(*matched, rho, "SaadSolla")[0] for rho in similarities[::2]])

    fine = np.linspace(0.0, 1.0, 400)
    angle = np.arccos(fine)[:, None]
    ratio = np.exp(-4.0 * np.array(DURATIONS))
    formula = 2.0 * np.sin(angle - np.arctan2(np.sin(angle) * ratio, np.cos(angle))) ** 2
    formula[0] = 0.0  # at a saddle nothing moves
    worst = 1.0 / np.sqrt(1.0 + 1.0 / ratio)
    left, right = [], []
    for number, duration in enumerate(DURATIONS):
        left += [
            Series(f"ODE, t = {duration:g}", similarities, ode[:, number], color=number),
            Series("", shown, mean[:, number], error[:, number], kind="points", color=number),
            Series("" if number else "formula", fine, formula[:, number], kind="reference", dashed=1),
            Rule("", worst[number], axis="x"),
        ]
        right.append(Series(f"ODE, t = {duration:g}", similarities[::2], smooth[:, number], color=number))
    axes = ("similarity of the tasks", "forgetting of the first task")
    figure = panels(
        [Panel(*axes, left, title="squares on the sphere"), Panel(*axes, right, title="erf units, free")],
        "What is forgotten while a second task is learned",
    )
    # On the saddle the gradient is noise, with E[4 lambda^2 eps^2] = 48: dm/dt = -24 gamma m for the first overlap.
    still = ode[0] / (2.0 * (1.0 - np.exp(-48.0 * rate * np.array(DURATIONS))))
    # The largest of a curve on a grid is within a step of the largest of all.
    few, at_few = similarities[some], ode[some]
    step = float(few[1])
    found = few[np.argmax(at_few, axis=0)]
    claims = [
        Claim("similarity of the largest forgetting, ODE minus formula, short time", found[0] - worst[0], -step, step),
        Claim("the same, long time", found[1] - worst[1], -step, step),
        Claim(
            "forgetting of an orthogonal task over that by the noise of SGD alone, short time",
            still[0],
            1.0 - TOLERANCE,
            1.0 + TOLERANCE,
        ),
        Claim("the same, long time", still[1], 1.0 - TOLERANCE, 1.0 + TOLERANCE),
        Claim("largest forgetting over that of an orthogonal task", float((at_few.max(0) / ode[0]).min()), low=1.0),
        Claim("largest forgetting over that at similarity 0.95", float((at_few.max(0) / ode[-1]).min()), low=1.0),
        # The formula leaves out the noise of SGD, which is largest where it acts alone, at the saddle.
        Claim(
            "largest distance of ODE and formula",
            float(max(abs(at_few[1:, n] - np.interp(few[1:], fine, formula[:, n])).max() for n in (0, 1))),
            high=float(2.0 * (1.0 - np.exp(-48.0 * rate * DURATIONS[-1]))),
        ),
        # From the saddle of orthogonal tasks a run leaves by chance, so that this point is left out.
        agrees("SGD against the ODE", mean[1:], error[1:], ode[of_runs][1:]),
        Claim(
            "largest rise of the forgetting of erf units with similarity",
            float(np.diff(smooth, axis=0).max()),
            high=0.0,
        ),
    ]
    return Made({"figure": figure}, claims)


if __name__ == "__main__":
    run_script(__file__)
