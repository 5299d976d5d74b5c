"""Committees with power-law weights: each direction emerges at a time of its own; steps add up to a power law."""

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, agrees, has_order, run_script
from twolayer.plots import Panel, Series, panels

# Exponents of the weights, and the directions whose times are the ends of the fits.
EXPONENTS = (1.0, 1.5, 2.0)
FIRST, LAST = 3, 10


def make(spec, ask):
    steps, left = _steps(spec, ask.full)
    laws, right = _laws(64 if ask.full else 32, 0.02)
    return Made({"figure": panels([left, right], "Emergence in steps, and their sum")}, [*steps, *laws])


def _steps(spec, full):
    """SGD and the ODE on a few directions: when each of them is learned, and the risk with its steps."""
    replicas = 32 if full else spec.ask.replicas
    save = (0.0, *np.linspace(0.0, spec.ask.until, int(spec.ask.save) + 1)[1:])
    options = {"until": spec.ask.until, "save": save, "replicas": replicas}
    tree = tl.compare(spec.problem, spec.training, spec.descriptions, **options)
    runs, ode = tree["OverlapSGD"], tree["SaadSolla"]
    strengths, start = _strengths(spec.problem), ode.M.values[:, 0]
    predicted = np.array([_times(spec.problem, M) for M in start])
    by_ode, by_runs = (_emergence(spec.problem, data) for data in (ode, runs))
    # The unit of times is that in which the learned part of a direction grows by a factor e.
    growth = 8.0 * np.abs(strengths)
    late = (by_runs - by_ode) * growth
    # Noise adds to the squared overlaps, which are of order 1/d as it is: at most this part of them, from the mean
    # square of the label and of the products of a normal number with itself (3).
    label = 2.0 * np.sum(strengths**2)
    added = float(spec.training.learning_rate) / spec.problem.p * 4.0 * 3.0 * label / growth
    t = ode.time.values
    claims = [
        # Of one order: directions whose steps are not over turn the rows a little.
        Claim(
            "distance of emergence times by the ODE from the formula, in units in which the learned part grows by e",
            float(np.max(np.abs(by_ode - predicted) * growth)),
            high=1.0,
        ),
        agrees(
            "emergence times of SGD against the ODE",
            late.mean(axis=0),
            late.std(axis=0, ddof=1) / np.sqrt(replicas),
            0.0,
            known_to=added,
        ),
    ]
    parts = [
        Series("ODE", t, ode.excess_risk.values[0]),
        Series("SGD, one run", t[::3], runs.excess_risk.values[0, ::3], kind="points"),
        Series("sum of steps", t, _sum_of_steps(strengths, predicted[0], t), kind="reference"),
    ]
    title = f"four pairs of directions, $d = {spec.problem.d}$"
    return claims, Panel("time  $t$", "excess risk", parts, log="y", title=title, legend="below")


def _laws(pairs, rate):
    """The ODE on many directions, for weights with other exponents."""
    claims, parts = [], []
    for color, beta in enumerate(EXPONENTS):
        problem = _problem(pairs, beta, 10**6)
        strengths = _strengths(problem)
        typical = np.sort(_typical_times(problem))[::2]  # of pairs of equal strength
        times = np.geomspace(0.3 * typical[0], typical[LAST - 1], 120)
        ode = tl.SaadSolla(rtol=1e-6, atol=1e-10)
        result = tl.evolve(problem, tl.SGD(rate), ode, until=times[-1], save=(0.0, *times))
        t, risk = result.time.values[1:], result.excess_risk.values[0, 1:]
        formula = _sum_of_steps(strengths, _times(problem, result.M.values[0, 0]), t)
        inside = t >= typical[FIRST - 1]
        s = (2.0 * beta - 1.0) / beta
        # Without any run: ripples of single steps, the logarithm in the times, and directions beyond the last one; and
        # times that are known up to a factor e of the learned part, of which the logarithm has to grow by that much.
        ripples = float(np.ptp(np.log(formula[inside] * t[inside] ** s)))
        unknown = s / np.min(8.0 * np.sort(-np.abs(strengths))[::2][:LAST] * -typical[:LAST])
        zero = np.zeros(inside.sum())
        words = f"exponent of the risk for weights r^-{beta:g}"
        claims += [
            has_order(words, t[inside], risk[inside], zero, -s, ripples + unknown),
            Claim(
                f"{words}, ODE less sum of steps",
                float(np.polyfit(np.log(t[inside]), np.log(risk[inside] / formula[inside]), 1)[0]),
                -unknown / np.log(t[-1] / t[inside][0]),
                unknown / np.log(t[-1] / t[inside][0]),
            ),
        ]
        middle = np.argmin(np.abs(t - np.sqrt(t[-1] * typical[FIRST - 1])))
        line = risk[middle] * (t / t[middle]) ** -s
        line[~inside] = np.nan
        parts += [
            Series(rf"ODE, $\beta = {beta:g}$", t, risk, color=color),
            Series("" if color else r"slope $-(2\beta - 1)/\beta$", t, line, kind="reference"),
        ]
    title = rf"{pairs} pairs, weights $\pm r^{{-\beta}}$"
    return claims, Panel("time  $t$", "excess risk", parts, log="xy", title=title, legend="below")


def _problem(pairs, beta, d):
    """Squares of both signs, twice as many as there are in the target, from a small start."""
    k = 2 * pairs
    weights = k * np.arange(1, pairs + 1.0) ** -beta
    target = tl.Committee(k, "square", second_layer=np.concatenate([weights, -weights]))
    student = tl.Student(2 * k, "square", second_layer=np.repeat([1.0, -1.0], k))
    return tl.Problem(target, student, tl.Gaussian(d), start=tl.RandomStart(norm=0.1))


def _strengths(problem):
    """The eigenvalues of the quadratic form that is the target."""
    return np.asarray(problem.target.second_layer) / problem.k


def _signs(problem):
    return np.asarray(problem.student.second_layer)


def _times(problem, M):
    """When half of each direction is learned, from the overlaps at the start: of its sign, the strongest first."""
    strengths, times = _strengths(problem), np.empty(problem.k)
    for sign in (1.0, -1.0):
        columns = np.flatnonzero(np.sign(strengths) == sign)
        columns = columns[np.argsort(-np.abs(strengths[columns]), kind="stable")]
        # What a direction has in the rows beside the stronger ones, which take their part of the rows first.
        own = np.diag(np.linalg.qr(M[_signs(problem) == sign][:, columns], mode="r")) ** 2 / problem.p
        times[columns] = np.log(np.abs(strengths[columns]) / own - 1.0) / (8.0 * np.abs(strengths[columns]))
    return times


def _typical_times(problem):
    """The same for the mean square of an overlap of the start."""
    size = np.abs(_strengths(problem))
    own = 0.5 * float(problem.start.norm) ** 2 / problem.d
    return np.log(size / own - 1.0) / (8.0 * size)


def _emergence(problem, data):
    """When the learned part of each direction passes one half in each replica, between saved times."""
    t, strengths = data.time.values, _strengths(problem)
    learned = np.einsum("ntjr,j->ntr", data.M.values**2, _signs(problem)) / problem.p / strengths
    logit = np.log(np.maximum(learned, 1e-12) / np.maximum(1.0 - learned, 1e-6))
    after = np.argmax(logit > 0.0, axis=1)[:, None]
    high, low = (np.take_along_axis(logit, place, 1)[:, 0] for place in (after, after - 1))
    before = t[after - 1][:, 0]
    return np.where(after[:, 0] > 0, before + (t[after][:, 0] - before) * low / (low - high), np.nan)


def _sum_of_steps(strengths, times, t):
    """The excess risk when every direction is learned on its own: a logistic curve for each."""
    left = 1.0 / (1.0 + np.exp(np.clip(8.0 * np.abs(strengths) * (t[:, None] - times), -700.0, 700.0)))
    return np.sum(strengths**2 * left**2, axis=1)


if __name__ == "__main__":
    run_script(__file__)
