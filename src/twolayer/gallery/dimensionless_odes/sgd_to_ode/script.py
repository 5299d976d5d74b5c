"""SGD of an erf committee against the ODE of its overlaps: the distance in d, learning rate, width and time."""

from functools import cache

import numpy as np

import twolayer as tl
from twolayer.gallery import Claim, Made, has_order, run_script
from twolayer.plots import Panel, Series, panels

# The dimension, learning rate and width at which the others are varied.
D, RATE, WIDTH = 400, 0.2, 4


def make(spec, ask):
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)
    replicas = 4 * spec.ask.replicas if ask.full else spec.ask.replicas

    def problem_of(d, p):
        start, copies = spec.problem.start, p // spec.problem.p
        wide = tl.GivenOverlaps(np.kron(np.eye(copies), start.Q), np.tile(start.M, (copies, 1)))
        student = tl.Student(p, spec.problem.student.activation)
        return tl.Problem(spec.problem.target, student, tl.Gaussian(d), start=wide, noise=spec.problem.noise)

    asked = {"until": spec.ask.until, "save": times}
    solve = cache(lambda rate, p: tl.evolve(problem_of(D, p), tl.SGD(rate), tl.SaadSolla(), **asked))

    def distances(d=D, rate=RATE, p=WIDTH):
        """Return the excess risks of ODE and runs, and of each run the mean square distance of its overlaps in time."""
        ode = solve(float(rate), p)
        runs = tl.evolve(problem_of(d, p), tl.SGD(float(rate)), tl.OverlapSGD(), replicas=replicas, seed=d + p, **asked)
        gaps = [(runs[name].values - ode[name].values).reshape(replicas, len(times), -1) for name in "QM"]
        squares = np.mean(np.concatenate(gaps, axis=2) ** 2, axis=2)
        return ode.excess_risk.values[0], runs.excess_risk.values, squares

    dimensions = [400, 1600, 6400, 25_600] if ask.full else [200, 800, 3200]
    rates = RATE * 2.0 ** -np.arange(5 if ask.full else 3)[::-1]
    widths = [4, 8, 16, 32] if ask.full else [4, 8, 16]
    at = {
        "d": [distances(d=d) for d in dimensions],
        "gamma": [distances(rate=rate) for rate in rates],
        "p": [distances(d=D // 4, p=p) for p in widths],
    }
    small = {  # the scale of the theorem, gamma / (p d)
        "d": RATE / (WIDTH * np.array(dimensions)),
        "gamma": rates / (WIDTH * D),
        "p": RATE / (np.array(widths) * (D // 4)),
    }
    # Relative changes of the prefactor along a series: finite d, the variance term, pairs of a unit with itself.
    left_out = {"d": 0.05, "gamma": RATE / WIDTH, "p": 1.0 / min(widths)}
    names = {"d": "dimension $d$", "gamma": r"learning rate $\gamma$", "p": "width $p$"}
    claims, points = [], []
    for color, (name, results) in enumerate(at.items()):
        largest = [np.argmax(squares.mean(axis=0)) for _, _, squares in results]
        of_run = [squares[:, moment] for (_, _, squares), moment in zip(results, largest, strict=True)]
        size = np.sqrt([square.mean() for square in of_run])
        error = [square.std(ddof=1) / np.sqrt(replicas) / (2.0 * rms) for square, rms in zip(of_run, size, strict=True)]
        points.append(Series(f"varied: {names[name]}", small[name], size, error, kind="points", color=color))
        sentence = f"order in gamma / (p d) of the distance from the ODE, varied by {name} (theorem: 1/2)"
        claims.append(has_order(sentence, small[name], size, error, 0.5, left_out[name]))
    reference = np.array([min(map(min, small.values())), max(map(max, small.values()))])
    first = points[0]
    law = Series(
        r"$\propto \sqrt{\gamma / (p d)}$", reference, first.y[0] * np.sqrt(reference / first.x[0]), kind="reference"
    )

    scaled = [np.sqrt(squares.mean(axis=0) / x) for (_, _, squares), x in zip(at["d"], small["d"], strict=True)]
    growth = [
        Series(f"$d = {d}$", times[1:], curve[1:], color=number)
        for number, (d, curve) in enumerate(zip(dimensions, scaled, strict=True))
    ]
    early = times[1:] <= 0.25
    squares = at["d"][-1][2][:, 1:][:, early]
    sizes, errors = np.sqrt(squares.mean(axis=0)), squares.std(axis=0, ddof=1) / np.sqrt(replicas)
    claims.append(
        has_order(
            "order in t of the distance at small times (a random walk: 1/2)",
            times[1:][early],
            sizes,
            errors / (2.0 * sizes),
            0.5,
            float(times[1:][early].max()),
        )
    )
    # At a larger learning rate, where the runs can be told apart.
    ends = {d: distances(d=d, rate=float(spec.training.learning_rate)) for d in (100, dimensions[-1])}
    ode, risks, _ = ends[dimensions[-1]]
    mean_error = risks.std(axis=0, ddof=1)[1:] / np.sqrt(replicas)
    scores = np.abs(risks.mean(axis=0) - ode)[1:] / mean_error
    claims += [
        Claim("mean risk of the runs at the largest d, in standard errors", float(scores.max()), high=5.0),
        Claim("fall of the excess risk over the run", float(ode[0] / ode[-1]), low=3.0),
    ]
    curves = [
        Series(f"SGD, $d = {d}$", times, runs[0], band=np.quantile(runs, [0.1, 0.9], axis=0), color=1 + color)
        for color, (d, (_, runs, _)) in enumerate(ends.items())
    ]
    shown = [
        Panel(
            "time  $t$",
            "excess risk",
            [*curves, Series("ODE", times, ode, color=6, dashed=1)],
            log="y",
            title=rf"one run and 10-90% of them, $\gamma = {float(spec.training.learning_rate):g}$",
        ),
        Panel(
            r"$\gamma / (p d)$",
            "distance from the ODE",
            [*points, law],
            log="xy",
            legend="upper left",
            ylim=(0.7 * min(series.y.min() for series in points), 6.0 * max(series.y.max() for series in points)),
            title="largest in time, rms",
        ),
        Panel(
            "time  $t$",
            r"distance $/ \sqrt{\gamma / (p d)}$",
            growth,
            log="xy",
            title="its growth with time",
        ),
    ]
    return Made({"figure": panels(shown, "An erf committee, $k = 2$: SGD approaches its ODE")}, claims)


if __name__ == "__main__":
    run_script(__file__)
