"""Wide students from random starts against the limit of infinitely many units: the distance in p, and its tails."""

import numpy as np
from scipy.stats import norm

import twolayer as tl
from twolayer.gallery import Claim, Made, has_order, run_script
from twolayer.plots import Panel, Series, panels

LEVELS = {0.5: "median", 0.9: "90%", 0.99: "99%"}
RESAMPLED = 400


def make(spec, ask):
    widths, draws = ([4, 8, 16, 32, 64], 4096) if ask.full else ([4, 8, 16], spec.ask.replicas)
    particles = 16 * 2048 if ask.full else 2048
    times = np.linspace(0.0, spec.ask.until, spec.ask.save)
    asked = {"until": spec.ask.until, "save": times}
    # Distances are of order 0.01, so that few digits suffice. The variance term is gamma / p of the drift.
    flow = tl.SaadSolla(variance=False, rtol=1e-4, atol=1e-6)
    limit = tl.HDMF(particles=particles, rtol=1e-4, atol=1e-6, accuracy=1e-4)
    limit = tl.evolve(spec.problem, spec.training, limit, **asked, seed=1).excess_risk.values[0]
    gaps = {}
    for p in widths:  # fewer draws of students that take longer
        problem = tl.Problem(spec.problem.target, tl.Student(p, "erf"), spec.problem.inputs, start=spec.problem.start)
        replicas = max(256, draws * widths[0] // p)
        risks = tl.evolve(problem, spec.training, flow, **asked, replicas=replicas, seed=p).excess_risk.values
        gaps[p] = risks - limit
    largest = {p: np.abs(gap).max(axis=1) for p, gap in gaps.items()}
    claims = [
        _order("the largest distance in time, mean over draws", largest, np.mean, _allowed(gaps[widths[0]], 0, False)),
        _order(
            "the distance at the end, mean over draws",
            {p: np.abs(gap[:, -1]) for p, gap in gaps.items()},
            np.mean,
            _allowed(gaps[widths[0]], -1, False),
        ),
        _order(
            "the largest distance in time, mean over the largest 5% of the draws",
            largest,
            _mean_of_tail,
            _allowed(gaps[widths[0]], 0, True),
        ),
        _tail(gaps),
    ]
    shown = [_risks(times, limit, gaps), _orders(largest), _tails(largest, gaps)]
    return Made({"figure": panels(shown, "Wide erf students of two neurons from random starts")}, claims)


def _mean_of_tail(values):
    """Return the mean beyond the 95% quantile, whose standard error is smaller than that of a quantile so far out."""
    return np.sort(values, axis=-1)[..., -(values.shape[-1] // 20) :].mean(axis=-1)


def _error(values, statistic):
    """Return the standard error of a statistic of draws, by the bootstrap."""
    numbers = np.random.default_rng(0).integers(0, len(values), (RESAMPLED, len(values)))
    return float(np.std(statistic(values[numbers], axis=-1) if statistic is np.mean else statistic(values[numbers])))


def _allowed(gap, time, is_tail):
    """Return the part of the distance at the smallest width that is due to terms of order 1/p.

    They shift the distances by their mean, which is b standard deviations: the mean of |x + b| changes by b**2 / 2 of
    that of |x|, and the mean beyond the 95% quantile, which is 2.3 deviations, by b of them at most, for normal x.
    """
    b = abs(gap[:, time].mean()) / gap[:, time].std()
    beyond = 40.0 * norm.pdf(norm.ppf(0.975))
    return float(b / beyond if is_tail else b**2 / 2.0)


def _order(name, distances, statistic, left_out):
    widths = list(distances)
    values = [float(statistic(distances[p])) for p in widths]
    errors = [_error(distances[p], statistic) for p in widths]
    return has_order(f"order in p of {name} (theorem: -1/2)", widths, values, errors, -0.5, left_out)


def _tail(gaps):
    """State that the largest of a Gaussian process has the tail of its largest deviation (Borell and Tsirelson)."""
    scores, errors = [], []
    for gap in gaps.values():

        def score(part):
            middle, far = np.quantile(np.abs(part).max(axis=-1), [0.5, 0.99], axis=-1)
            return (far - middle) / part.std(axis=-2).max(axis=-1)

        numbers = np.random.default_rng(0).integers(0, len(gap), (RESAMPLED, len(gap)))
        scores.append(score(gap))
        errors.append(np.std([score(gap[chosen]) for chosen in numbers]))
    worst = int(np.argmax(scores))
    sentence = "99% quantile of the distance beyond the median, in standard deviations (Gaussian tail: at most 2.33)"
    return Claim(sentence, float(scores[worst]), high=float(norm.ppf(0.99) + 5.0 * errors[worst]))


def _risks(times, limit, gaps):
    ends = min(gaps), max(gaps)
    curves = [
        Series(
            f"$p = {p}$, 10-90%",
            times,
            np.median(gaps[p], axis=0) + limit,
            band=np.quantile(gaps[p], [0.1, 0.9], axis=0) + limit,
            color=color,
        )
        for color, p in zip((1, 0), ends, strict=True)
    ]
    curves.append(Series(r"$p = \infty$", times, limit, color=6, dashed=1))
    return Panel("time  $t$", "excess risk", curves, log="y", title="median and range over draws")


def _orders(largest):
    widths = np.array(list(largest), dtype=float)
    smooth, curves = np.geomspace(widths[0], widths[-1], 2), []
    for color, (level, name) in enumerate(LEVELS.items()):
        values = [float(np.quantile(x, level)) for x in largest.values()]
        errors = [_error(x, lambda part, level=level: np.quantile(part, level, axis=-1)) for x in largest.values()]
        curves.append(Series(name, widths, values, errors, kind="points", color=color))
        label = r"$\propto p^{-1/2}$" if color == 0 else ""
        law = np.exp(np.mean(np.log(np.array(values) * np.sqrt(widths)))) / np.sqrt(smooth)
        curves.append(Series(label, smooth, law, kind="reference"))
    return Panel(
        "width  $p$",
        "largest distance of the risks",
        curves,
        log="xy",
        xticks=list(largest),
        title="quantiles over draws",
        ylim=(0.6 * np.median(largest[widths[-1]]), 3.0 * np.quantile(largest[widths[0]], 0.99)),
        legend="upper right",
        legend_columns=2,
    )


def _tails(largest, gaps):
    z = np.linspace(0.3, 2.3, 41)
    curves = [
        Series(f"$p = {p}$", z, np.sqrt(p) * np.quantile(largest[p], 1.0 - np.exp(-(z**2))), color=color)
        for color, p in enumerate(list(largest)[-3:])
    ]
    p = list(gaps)[-1]
    bound = np.median(largest[p]) + gaps[p].std(axis=0).max() * norm.isf(np.exp(-(z**2)))
    beyond = z >= np.sqrt(np.log(2.0))  # the median
    curves.append(Series("Gaussian tail", z[beyond], np.sqrt(p) * bound[beyond], kind="reference"))
    title = r"exceeded with probability $e^{-z^2}$"
    return Panel("$z$", r"distance $\times \sqrt{p}$", curves, title=title, legend="upper left")


if __name__ == "__main__":
    run_script(__file__)
