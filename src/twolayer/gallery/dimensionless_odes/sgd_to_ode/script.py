"""SGD of an erf committee against the ODE of its overlaps: the distance in d, learning rate, width and time."""

from functools import cache

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, has_order, run_script
from twolayer.gallery.page import ERRORS
from twolayer.plots import Panel, Series, panels

# The dimension, learning rate and width at which the others are varied.
D, RATE, WIDTH = 400, 0.2, 4
NARROW = 50  # the dimension at which the width is varied, since wide students take many steps
NAMES = {"d": "dimension $d$", "gamma": r"learning rate $\gamma$", "p": "width $p$"}


class Measurement:
    """Runs of SGD beside the solution of the ODE, from one start."""

    def __init__(self, spec, full):
        self.spec, self.replicas = spec, 4 * spec.ask.replicas if full else spec.ask.replicas
        self.times = np.linspace(0.0, spec.ask.until, spec.ask.save)
        self.asked = {"until": spec.ask.until, "save": self.times}
        self.solve = cache(self._solve)

    def problem(self, d, p):
        problem = self.spec.problem
        start, copies = problem.start, p // problem.p
        # Copies share their part along the target, and what is orthogonal to it is orthogonal between copies.
        M, along = np.tile(start.M, (copies, 1)), start.M @ start.M.T
        wide = tl.GivenOverlaps(M @ M.T + np.kron(np.eye(copies), start.Q - along), M)
        student = tl.Student(p, problem.student.activation)
        return tl.Problem(problem.target, student, tl.Gaussian(d), start=wide, noise=problem.noise)

    def _solve(self, rate, p):
        return tl.evolve(self.problem(D, p), tl.SGD(rate), tl.SaadSolla(), **self.asked)

    def distances(self, d=D, rate=RATE, p=WIDTH):
        """Return the excess risks of ODE and runs, and of each run the mean square distance of its overlaps in time."""
        ode, training = self.solve(float(rate), p), tl.SGD(float(rate))
        asked = self.asked | {"replicas": self.replicas, "seed": d + p}
        runs = tl.evolve(self.problem(d, p), training, tl.OverlapSGD(), **asked)
        gaps = [(runs[name].values - ode[name].values).reshape(self.replicas, len(self.times), -1) for name in "QM"]
        squares = np.mean(np.concatenate(gaps, axis=2) ** 2, axis=2)
        return ode.excess_risk.values[0], runs.excess_risk.values, squares


def rms(squares):
    """Return the root mean square over runs at each time, and its standard error."""
    size = np.sqrt(squares.mean(axis=0))
    with np.errstate(invalid="ignore"):  # at the start it is zero
        return size, squares.std(axis=0, ddof=1) / np.sqrt(len(squares)) / (2.0 * size)


def make(spec, ask):
    measured = Measurement(spec, ask.full)
    dimensions = [400, 1600, 6400, 25_600] if ask.full else [200, 800, 3200]
    rates = RATE * 2.0 ** -np.arange(5 if ask.full else 3)[::-1]
    widths = [4, 8, 16, 32] if ask.full else [4, 8, 16]
    at = {
        "d": [measured.distances(d=d) for d in dimensions],
        "gamma": [measured.distances(rate=rate) for rate in rates],
        "p": [measured.distances(d=NARROW, p=p) for p in widths],
    }
    small = {  # the scale of the theorem, gamma / (p d)
        "d": RATE / (WIDTH * np.array(dimensions)),
        "gamma": rates / (WIDTH * D),
        "p": RATE / (np.array(widths) * NARROW),
    }
    # Relative changes of the prefactor along a series: a sample has d - p - k coordinates outside of all weights and
    # not d; the variance term; pairs of a unit with itself.
    inside = WIDTH + spec.problem.k
    left_out = {"d": inside / min(dimensions), "gamma": RATE / WIDTH, "p": 1.0 / min(widths) - 1.0 / max(widths)}
    claims, points = [], []
    for color, (name, results) in enumerate(at.items()):
        curves = [rms(squares) for _, _, squares in results]
        size, error = np.array([[part[np.argmax(curve[0])] for part in curve] for curve in curves]).T
        points.append(Series(f"varied: {NAMES[name]}", small[name], size, error, kind="points", color=color))
        sentence = f"order in gamma / (p d) of the distance from the ODE, varied by {name} (theorem: 1/2)"
        claims.append(has_order(sentence, small[name], size, error, 0.5, left_out[name]))
    times = measured.times
    early = (times > 0.0) & (times <= 0.25)
    size, error = (part[early] for part in rms(at["d"][-1][2]))
    sentence = "order in t of the distance at small times (a random walk: 1/2)"
    claims.append(has_order(sentence, times[early], size, error, 0.5, float(times[early].max())))
    # At a larger learning rate, where the runs can be told apart.
    rate = float(spec.training.learning_rate)
    ends = {d: measured.distances(d=d, rate=rate) for d in (100, dimensions[-1])}
    ode, risks, _ = ends[dimensions[-1]]
    scores = np.abs(risks.mean(axis=0) - ode)[1:] / (risks.std(axis=0, ddof=1)[1:] / np.sqrt(measured.replicas))
    claims += [
        Claim("mean risk of the runs at the largest d, in standard errors", float(scores.max()), high=ERRORS),
        Claim(
            "fall of the excess risk over the run, in standard deviations of the runs at its end",
            float((ode[0] - ode[-1]) / risks[:, -1].std(ddof=1)),
            low=ERRORS,
        ),
    ]
    scaled = {d: rms(result[2])[0] / np.sqrt(x) for d, result, x in zip(dimensions, at["d"], small["d"], strict=True)}
    shown = [_risks(times, ends, ode, rate), _orders(points), _growth(times, scaled)]
    return Made({"figure": panels(shown, "An erf committee, $k = 2$: SGD approaches its ODE")}, claims)


def _risks(times, ends, ode, rate):
    curves = [
        Series(f"SGD, $d = {d}$", times, runs[0], band=np.quantile(runs, [0.1, 0.9], axis=0), color=1 + color)
        for color, (d, (_, runs, _)) in enumerate(ends.items())
    ]
    curves.append(Series("ODE", times, ode, color=6, dashed=1))
    title = rf"one run and 10-90% of them, $\gamma = {rate:g}$"
    return Panel("time  $t$", "excess risk", curves, log="y", title=title)


def _orders(points):
    everywhere = np.concatenate([series.x for series in points])
    ends, first = np.array([everywhere.min(), everywhere.max()]), points[0]
    law = first.y[0] * np.sqrt(ends / first.x[0])
    return Panel(
        r"$\gamma / (p d)$",
        "distance from the ODE",
        [*points, Series(r"$\propto \sqrt{\gamma / (p d)}$", ends, law, kind="reference")],
        log="xy",
        legend="upper left",
        ylim=(0.7 * min(series.y.min() for series in points), 6.0 * max(series.y.max() for series in points)),
        title="largest in time, rms",
    )


def _growth(times, scaled):
    curves = [
        Series(f"$d = {d}$", times[1:], curve[1:], color=number) for number, (d, curve) in enumerate(scaled.items())
    ]
    label = r"distance $/ \sqrt{\gamma / (p d)}$"
    return Panel("time  $t$", label, curves, log="xy", title="its growth with time")


if __name__ == "__main__":
    run_script(__file__)
