"""A network learns staircases by giant steps on its first layer and a fit of its second, and nothing else."""

import jax
import numpy as np

import twolayer as tl
from twolayer.fitting import fitted_risks
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Rule, Series, panels

STEPS, ALPHA, RATE, PENALTY = 4, 16, 1.0, 1e-3  # the rate is gamma n_b / (p d), which moves a neuron by order one
STAIRCASE, PRODUCT, CUBIC, MIXED = "z1 + z1*z2 + z1*z2*z3", "z1*z2*z3", "he3(z1)", "z1 + he3(z2)"
SIGNS = f"{STAIRCASE}, a of signs"
# The error without any field, half of the target's mean square.
NOTHING_KNOWN = {STAIRCASE: 1.5, PRODUCT: 0.5, CUBIC: 3.0, MIXED: 3.5}
ROUNDING = 1e-12  # of a test error
NOTHING, SOMETHING = 1e-9, 1e-3  # an overlap of the map below the one is zero, above the other it is found
THEORY = tl.BatchMap(engine=tl.Auto(engines=("Series", "Cloud", "MonteCarlo")))


def biased(x):
    """A unit with a bias, so that no Hermite coefficient up to the third is zero."""
    return jax.nn.gelu(x + 1.0, approximate=False)


def make(spec, ask):
    p, wide, d, replicas = (128, 64, 1000, 16) if ask.full else (16, 64, 256, 16)
    steps = np.arange(STEPS + 1)
    gaussian, signs = np.random.default_rng(0).standard_normal(p), np.resize([1.0, -1.0], p)
    claims, curves, right, asked = [], {}, 0, 0
    for name, target, second_layer in [
        *((target, target, gaussian) for target in NOTHING_KNOWN),
        (SIGNS, STAIRCASE, signs),
    ]:
        problem = layered(target, d, second_layer)
        order = tl.learnability(problem.target).giant_steps()
        simulated = [first_layers(layered(target, n, second_layer), tl.OverlapSGD(), replicas) for n in (d, 2 * d)]
        theory = first_layers(problem, THEORY)
        ((predicted,), runs), M = errors(problem, theory, simulated[0]), theory.M.values[0]
        found = np.array([[[f"z{r}"] in order[:number] for r in (1, 2, 3)] for number in steps])
        largest = np.abs(M).max(axis=1)
        right += int(np.sum(np.where(found, largest > SOMETHING, largest < NOTHING)))
        asked += found.size
        (more,), overlaps = errors(problem, simulated[1]), simulated[0].M.values
        curves[name] = (predicted, runs, M, overlaps)
        sentence = f"{name}: test error of SGD, extrapolated in 1/d, against theory, all steps"
        claims.append(agrees(sentence, *(x[1:] for x in extrapolated(runs, more)), predicted[1:]))
    by_map = curves[STAIRCASE][0]
    on_samples = {width: fits_on_samples(width, d, replicas, ask.full) for width in (p, wide)}
    seen, seen_error = third_stair(wide, d, replicas)
    highest = {width: mean[2] + ERRORS * error[2] for width, (mean, error) in on_samples.items()}
    claims = [
        Claim(f"overlaps that are zero or not after each step as `learn` says, of {asked}", float(right), low=asked),
        Claim("staircase after one step, error of the map over the least without any field", by_map[1] / 1.5, high=1.0),
        Claim("staircase after one step, error of the map over the least with z1", by_map[1] / 1.0, low=1.0),
        Claim("staircase after two steps, error of the map over the least with z1", by_map[2] / 1.0, high=1.0),
        *(
            Claim(f"the same in SGD and ridge regression on samples, p = {width}, mean and five errors", top, high=1.0)
            for width, top in highest.items()
        ),
        Claim(
            f"staircase after three steps, p = {wide}: what z3 takes off the test error of SGD, in standard errors",
            seen[3] / seen_error[3],
            low=ERRORS,
        ),
        Claim(
            f"staircase after two steps, p = {wide}: what z3, there by chance, takes off it, in standard errors",
            seen[2] / seen_error[2],
            high=ERRORS,
        ),
        Claim(f"{MIXED}, error of the map over the least with z1", np.min(curves[MIXED][0][1:]) / 3.0, low=1.0),
        *claims,
    ]
    shown = [
        staircase_panel(steps, curves, wide, on_samples[wide]),
        others_panel(steps, curves),
        overlaps_panel(steps, curves),
    ]
    title = (
        rf"Layer-wise, $p={p}$, $n_b = {ALPHA}\,d$, $d={d}$: theory (lines), {replicas} runs (marks; bars: 2 errors)"
    )
    return Made({"figure": panels(shown, title)}, claims)


def layered(target, d, second_layer):
    """A network whose rows are orthogonal to one another and to the target."""
    p = len(second_layer)
    student = tl.Student(p, tl.Custom(biased, growth=1), second_layer)
    start = tl.GivenOverlaps(np.eye(p), np.zeros((p, 3)))
    return tl.Problem(tl.MultiIndex(target, k=3), student, tl.Gaussian(d), start=start)


def giant(problem):
    """The giant steps, and the times after each of them."""
    training = tl.SGD(RATE * problem.p / ALPHA, batch_size=ALPHA * problem.d)
    return training, training.clock(problem).time(np.arange(STEPS + 1))


def first_layers(problem, description, replicas=1):
    """The first layer after each giant step."""
    training, times = giant(problem)
    return tl.evolve(problem, training, description, until=float(times[-1]), save=times, replicas=replicas)


def errors(problem, *results):
    """The test errors at the first layers of each result, with the second layer fitted on the population."""
    Q, M = (np.concatenate([result[name].values for result in results]) for name in "QM")
    risks, _ = fitted_risks(problem, tl.RidgeRegression(PENALTY), Q, M, THEORY.engine)
    return np.split(risks, np.cumsum([result.sizes["replica"] for result in results])[:-1])


def extrapolated(runs, more):
    """The mean over runs at d and at 2d, extrapolated to infinite d, and its standard error.

    Overlaps by chance have a mean square of order 1/d, and so have all effects of finite d on the mean.
    """
    (mean, error), (mean_2d, error_2d) = (
        (x.mean(axis=0), x.std(axis=0, ddof=1) / np.sqrt(len(x))) for x in (runs, more)
    )
    return 2.0 * mean_2d - mean, np.hypot(2.0 * error_2d, error)


def with_samples(problem, number, replicas):
    """The test errors of ridge regression on as many fresh samples as a batch has, after so many giant steps."""
    training, times = giant(problem)
    fit, switch = tl.RidgeRegression(PENALTY, samples=training.batch_size), float(times[number])
    phases = tl.Schedule([training, fit], [switch])
    ask = {"until": switch + 1.0, "save": [switch + 1.0], "replicas": replicas}
    return tl.evolve(problem, phases, tl.OverlapSGD(), **ask).excess_risk.values[:, -1]


def fits_on_samples(p, d, replicas, all_steps):
    """The mean test error of the staircase and its standard error, at numbers of giant steps; two by default."""
    problem = layered(STAIRCASE, d, np.random.default_rng(0).standard_normal(p))
    fits = {number: with_samples(problem, number, replicas) for number in (range(1, STEPS + 1) if all_steps else (2,))}
    means = {number: fit.mean() for number, fit in fits.items()}
    return means, {number: fit.std(ddof=1) / np.sqrt(replicas) for number, fit in fits.items()}


def third_stair(wide, d, replicas):
    """What the overlaps of a wide network with z3 take off the test error, after each step, and the standard error.

    The same network with these overlaps put outside of the target differs from it in nothing else.
    """
    problem = layered(STAIRCASE, d, np.random.default_rng(0).standard_normal(wide))
    runs = first_layers(problem, tl.OverlapSGD(), replicas)
    Q, M = runs.Q.values, runs.M.values
    fit = tl.RidgeRegression(PENALTY)
    with_z3, without = (
        fitted_risks(problem, fit, Q, M * np.array(fields), THEORY.engine)[0] for fields in ([1, 1, 1], [1, 1, 0])
    )
    gain = without - with_z3
    return gain.mean(axis=0), np.maximum(gain.std(axis=0, ddof=1) / np.sqrt(replicas), ROUNDING)


def staircase_panel(steps, curves, wide, on_samples):
    """The test error of the staircase, and what the best function of the fields found so far would have."""
    series = [
        *drawn("$a$ Gaussian", steps, curves[STAIRCASE], 1.0, 0),
        *drawn("$a$ signs", steps, curves[SIGNS], 1.0, 1),
        Series(
            f"$p = {wide}$, fit on samples",
            list(on_samples[0]),
            list(on_samples[0].values()),
            np.array(list(on_samples[1].values())),
            kind="points",
            color=2,
            look={"marker": "s"},
        ),
    ]
    floors = [Rule("best function of $z_1$", 1.0), Rule("of $z_1$ and $z_2$", 0.5, look={"ls": "--"})]
    return Panel("giant steps", "test error", [*series, *floors], title=words(STAIRCASE), xticks=steps, ylim=(0.4, 1.6))


def others_panel(steps, curves):
    """The test errors of all targets, relative to that of no network."""
    series = [
        part
        for color, target in enumerate(NOTHING_KNOWN)
        for part in drawn(words(target), steps, curves[target], NOTHING_KNOWN[target], color)
    ]
    series.append(Rule("", 6.0 / 7.0))  # what the best function of z1 leaves of the last target
    return Panel("giant steps", "test error / at the start", series, title="in and outside of the class", xticks=steps)


def overlaps_panel(steps, curves):
    """Root mean squares over the neurons of the staircase's overlaps."""
    _, _, M, runs = curves[STAIRCASE]
    series = []
    for r in range(3):
        sizes = np.sqrt(np.mean(runs[..., r] ** 2, axis=2))
        error = sizes.std(axis=0, ddof=1) / np.sqrt(len(sizes))
        series.append(Series(f"$z_{r + 1}$", steps, np.sqrt(np.mean(M[..., r] ** 2, axis=1)), color=r))
        series.append(Series("", steps, sizes.mean(axis=0), error, kind="points", color=r))
    title = "overlaps, rms over neurons"
    return Panel("giant steps", r"$\langle M_{jr}^2\rangle_j^{1/2}$", series, title=title, xticks=steps)


def drawn(label, steps, curve, unit, color):
    """The map as a line, and the mean of runs with its error."""
    predicted, runs = curve[0] / unit, curve[1] / unit
    error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    line = Series(label, steps, predicted, color=color)
    return line, Series("", steps, runs.mean(axis=0), error, kind="points", color=color)


def words(target):
    """A target as a formula."""
    return "$" + target.replace("*", "").replace("z", "z_").replace("he3", r"\mathrm{He}_3") + "$"


if __name__ == "__main__":
    run_script(__file__)
