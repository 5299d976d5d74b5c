"""Giant steps on fresh batches climb a staircase direction by direction, and stop where a step is missing."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, run_script, slope
from twolayer.plots import Panel, Series, panels

STEPS, ALPHA = 4, 4
WITHOUT_A_STEP = "z1 + z2*z3"
NOTHING, SOMETHING = 1e-3, 0.05  # an overlap of the map below the one is zero, above the other learned


def make(spec, ask):
    # SGD on the weights themselves where there is time; otherwise through the overlaps, which is the same in law.
    sgd, small, large = (tl.DirectSGD(), 512, 4096) if ask.full else (tl.OverlapSGD(), 256, 4096)
    replicas = 64
    steps = np.arange(STEPS + 1)

    def follow(about, target, d, **options):
        problem = tl.Problem(target, spec.problem.student, tl.Gaussian(d), start=spec.problem.start)
        training = tl.SGD(float(spec.training.learning_rate), batch_size=ALPHA * d)
        times = training.clock(problem).time(steps)
        return tl.evolve(problem, training, about, until=float(times[-1]), save=times, **options).M.values[:, :, 0]

    staircase = spec.problem.target
    shown, right, measured = [], 0, []
    for name, target in (("a staircase", staircase), ("a step is missing", tl.MultiIndex(WITHOUT_A_STEP, k=3))):
        predicted = follow(tl.BatchMap(), target, large)[0]
        predicted_steps = tl.learnability(target).giant_steps()
        expected = np.array([[[f"z{r}"] in predicted_steps[:n] for r in (1, 2, 3)] for n in steps])
        right += np.sum(np.where(expected, np.abs(predicted) > SOMETHING, np.abs(predicted) < NOTHING)[1:])
        runs = follow(sgd, target, large, replicas=replicas)
        measured.append((runs, predicted, large))
        if target is staircase:
            measured.append((follow(sgd, target, small, replicas=replicas, seed=1), predicted, small))
            absent = ~expected[1:]
        series = [part for r in range(3) for part in draw(r, steps, runs[:, :, r], predicted[:, r])]
        title = f"{name}, ${target.function.text}$".replace("*", "").replace("z", "z_")
        shown.append(Panel("giant steps", "overlap  $M_r$", series, title=title, ylim=(-0.15, 1.2), xticks=steps))

    sizes = [np.sqrt(np.mean(runs**2, axis=0)) for runs, _, _ in measured[:2]]  # of the staircase, large d and small
    typical = [float(np.sqrt(np.mean(size[1:][absent] ** 2))) for size in sizes]
    ends = np.array([0.5 * small, 2.0 * large])
    series = [Series("", [large, small], [size[2, r] for size in sizes], kind="points", color=r) for r in range(3)]
    series.append(Series(r"$\propto d^{-1/2}$", ends, sizes[1][2, 2] * (ends / small) ** -0.5, kind="reference"))
    axes = {"log": "xy", "xticks": [small, large], "xlim": tuple(ends)}
    title = "the staircase after two steps"
    shown.append(Panel("dimension  $d$", r"$\langle M_r^2\rangle^{1/2}$", series, title=title, **axes))
    claims = [
        Claim("overlaps that are zero or not after each step as `learn` says, of 24", float(right), low=24.0),
        agrees(
            "mean overlaps of SGD against the map, all steps and dimensions",
            [runs.mean(axis=0)[1:] for runs, _, _ in measured],
            [runs.std(axis=0, ddof=1)[1:] / np.sqrt(replicas) for runs, _, _ in measured],
            [predicted[1:] for _, predicted, _ in measured],
            known_to=[np.full((STEPS, 3), 1.0 / d) for _, _, d in measured],  # the shift of the mean is of order 1/d
        ),
        Claim("overlaps of SGD where the map has none, rms, power of d", slope([large, small], typical), -0.6, -0.4),
    ]
    title = (
        rf"One relu neuron, $n_b={ALPHA}\,d$, $d={large}$: map (lines), {replicas} runs of SGD (marks; band: 10-90%)"
    )
    return Made({"figure": panels(shown, title)}, claims)


def draw(r, steps, runs, predicted):
    """The overlap with one direction: the map, and the mean of runs with their spread."""
    error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    spread = np.quantile(runs, [0.1, 0.9], axis=0)
    line = Series(f"$z_{r + 1}$", steps, predicted, color=r)
    return line, Series("", steps, runs.mean(axis=0), error, spread, "points", r)


if __name__ == "__main__":
    run_script(__file__)
