"""Training of wide networks against the prediction of the spectrum, and how far both starts are from it."""

import numpy as np

from twolayer import kernel
from twolayer.data import randomise_labels
from twolayer.gallery import Claim, Made, agrees, run_script, slope, slope_error
from twolayer.gallery.page import ERRORS
from twolayer.gallery.page_samples import SYNTHETIC, gaussians, two_classes
from twolayer.kernel.finite_width import width_effects
from twolayer.kernel.theorems import contraction, initial_loss
from twolayer.kernel.training import first_layer, second_layer
from twolayer.plots import Panel, Series, panels

STARTS = {"antisymmetric": "antisymmetric start", "small": "independent units"}
SCALE = 0.3  # kappa of the networks whose width changes: small, so that the weights move far on this scale
DELTA = 0.1  # share of the starts at which theorem 3.1 may fail
DRAWS = 400  # of starts, for outputs before training; 50 units each, since their mean square has no width in it
WEIGHTS = 200  # for the predicted share of flipped signs


def make(spec, ask):
    n, width, steps, runs = (500, 8192, 400, 6) if ask.full else (
        spec["data"]["n"], spec["problem"]["student"]["p"], spec["run"]["steps"], 6
    )  # fmt: skip
    sets = {title: samples for title, (samples, _) in two_classes(ask, n).items()}
    shown, claims = [], []
    for title, samples in sets.items():
        panel, measured = curves(title, samples.X[:n], samples.y[:n], width, steps)
        shown, claims = [*shown, panel], [*claims, measured]
    far, contracted, order = (np.array([measured[place] for measured in claims]) for place in range(3))
    claims = [
        Claim(
            "distance of the network from the prediction and the lag of its width, in standard deviations, largest",
            far.max(),
            high=ERRORS,
        ),
        Claim("slowest step over 1 - (1 - eta lambda_0 / 2), theorem 3.1, smallest", contracted.min(), low=1.0),
        Claim("residual at the end, random over true and worst over random, smallest", order.min(), low=1.0),
    ]
    samples = gaussians(2 * n)  # on images six networks scatter too much for a power of m; the text says what they give
    data = {size: (samples.X[:size], samples.y[:size]) for size in (n // 4, n // 2, n, 2 * n)}
    widths = [width // 8, width // 4, width // 2, width]
    more, found = errors(data, n, widths, steps, runs)
    claims += found
    words = rf"$\eta=1/\lambda_1$; curves: $n={n}$, $m={width}$"
    words += "" if SYNTHETIC in sets else f"; terms of the error: {SYNTHETIC}"
    return Made({"figure": panels([*shown, *more], words, columns=2, has_common_legend=False)}, claims)


def curves(title, X, y, width, steps):
    """Training on true, random and worst labels; numbers on its distance, its slowest step, and the order of labels."""
    spectrum = kernel.spectrum(X)
    eta = spectrum.check_step(None)
    worst = np.sqrt(len(y)) * spectrum.eigenvectors[:, -1]  # as long as the others
    labels = {"true": y, "random": randomise_labels(y, 1.0), "worst": worst}
    series, ends, far, factors = [], [], [], []
    for color, (name, target) in enumerate(labels.items()):
        predicted = spectrum.residuals(target, steps, eta)
        trained = train(X, target, width, eta, steps).residuals
        far.append(beyond_the_lag(X, spectrum, target, eta, trained - predicted, width))
        factors.append(np.max((trained[1:] / trained[:-1]) ** 2))
        ends.append(trained[-1])
        some = np.unique(np.geomspace(1, steps, 14).astype(int))
        k, scale = np.arange(1, steps + 1), 1.0 / len(y)
        series.append(Series(f"{name} labels, predicted", k, scale * predicted[1:] ** 2, color=color))
        marks = scale * trained[some] ** 2
        series.append(Series(f"{name} labels, network", some, marks, kind="points", color=color))
    slowest = (1.0 - max(factors)) / (1.0 - contraction(eta, spectrum.lambda_min))
    panel = Panel("step  $k$", r"$\|y - u(k)\|^2/n$", series, log="xy", title=title, legend="below")
    return panel, (max(far), slowest, min(ends[1] / ends[0], ends[2] / ends[1]))


def beyond_the_lag(X, spectrum, y, eta, gap, width):
    """How far residual norms are from where the first order in one over the root of the width puts them.

    In standard deviations over networks. The next order is smaller by the way of the weights over their length.
    """
    some = np.unique(np.geomspace(1, len(gap) - 1, 16).astype(int))
    effects = width_effects(X, spectrum, y, some.tolist(), eta)
    scatter, lag = (np.linalg.norm(y) / np.sqrt(width) * part for part in effects)
    next_order = np.sqrt(spectrum.inverse_form(y).value / width)
    return np.max(np.maximum(np.abs(gap[some] - lag) - next_order * lag, 0.0) / scatter)


def errors(data, n, widths, steps, runs):
    """The terms of theorem 4.1: outputs at the start in kappa and n, flipped signs and distances in kappa, m and n."""
    X, y = data[n]
    kappas, m = [0.03, 0.1, 0.3, 1.0], widths[2]
    grid = [*((kappa, n) for kappa in kappas), *((1.0, size) for size in data if size != n)]
    starts = {(kappa, size): outputs_at_start(data[size][0], kappa) for kappa, size in grid}
    first = {key: np.sum(outputs**2, axis=1) for key, outputs in starts.items()}
    ratio = np.array([values / (0.5 * size * kappa**2) for (kappa, size), values in first.items()])
    claims = [
        agrees("squared outputs at the start against n kappa^2 / 2", ratio.mean(axis=1), standard_error(ratio), 1.0),
        loss_at_start(y, {kappa: starts[kappa, n] for kappa in kappas}),
        power("outputs at the start", "kappa", kappas, [first[kappa, n] for kappa in kappas], 1.0),
        power("outputs at the start", "n", [*data], [first[1.0, size] for size in data], 0.5),
    ]
    by_kappa = {start: [train_all(X, y, m, steps, runs, start, kappa) for kappa in kappas] for start in STARTS}
    by_width = {start: [train_all(X, y, width, steps, runs, start, SCALE) for width in widths] for start in STARTS}
    by_size = [train_all(*data[size], m, steps, runs, "antisymmetric", 1.0) for size in data]
    zero = "antisymmetric"
    lazy = [run for run in by_kappa[zero] if run.flipped.mean() < 0.1]  # the order in 1/(kappa sqrt m) is the first
    some = [*lazy, *by_width[zero], *by_size]
    outside = [max(run.predicted[0] - run.flipped.mean(), run.flipped.mean() - run.predicted[1], 0.0) for run in some]
    # The next order of the share is its square.
    doubt = [run.flipped.mean() ** 2 for run in some]
    scatter = [standard_error(run.flipped) for run in some]
    shares, by_scale = ([run.flipped for run in kind] for kind in (by_width[zero], lazy))
    far = [run.far for run in by_width[zero]]
    line = np.geomspace(kappas[0], kappas[-1], 25)
    ahead = distances_of_starts(X, y, starts[1.0, n], steps, [*line, *kappas])
    # What the weights' way adds to this is what networks from zero outputs are off by.
    moved = [run.far.mean() for run in by_kappa[zero]]
    error = [standard_error(run.far) for run in by_kappa["small"]]
    sizes = slope([*data], [run.flipped.mean() for run in by_size])
    claims += [
        agrees("flipped signs against their prediction", outside, scatter, 0.0, doubt),
        power("flipped signs", "m", widths, shares, -0.5, shares[0].mean()),
        power("flipped signs", "kappa", kappas[-len(lazy) :], by_scale, -1.0, by_scale[0].mean()),
        Claim("power of n with which flipped signs grow, theorem 4.1 allows 7/2", sizes, high=3.5),
        power("distance from the prediction, antisymmetric start", "m", widths, far, -0.5, shares[0].mean()),
        agrees("distance of independent units against that of their outputs at the start",
               [run.far.mean() for run in by_kappa["small"]], error, ahead[len(line) :], moved),
    ]  # fmt: skip
    smooth = Series("independent units, from $u(0)$", line, ahead[: len(line)], color=1)
    return panels_of(kappas, widths, [*data], by_kappa, by_width, by_size, smooth, f"$m={m}$, $n={n}$"), claims


def panels_of(kappas, widths, sizes, by_kappa, by_width, by_size, smooth, title):
    """Distances against kappa and m for both starts, and flipped signs with their prediction."""
    against_kappa = [points(STARTS[s], kappas, [run.far for run in by_kappa[s]], c) for c, s in enumerate(STARTS)]
    against_width = [points(STARTS[s], widths, [run.far for run in by_width[s]], c) for c, s in enumerate(STARTS)]
    w = np.geomspace(widths[0], widths[-1], 50)
    level = by_width["antisymmetric"][-1].far.mean() * np.sqrt(widths[-1] / w)
    flips = []
    for color, (name, runs, x, scale) in enumerate((
        ("width $m$", by_width["antisymmetric"], widths, widths[0]),
        (r"scale $\kappa$", by_kappa["antisymmetric"], kappas, kappas[0]),
        ("samples $n$", by_size, sizes, sizes[0]),
    )):  # fmt: skip
        band = np.array([run.predicted for run in runs]).T
        grown = np.array(x) / scale
        flips += [
            Series("", grown, band.mean(axis=0), band=band, color=color),
            points(name, grown, [run.flipped for run in runs], color),
        ]
    off = r"$\max_k |\|y-u\| - \|y-\tilde u\||\,/\,\|y\|$"
    log = {"log": "xy", "legend": "below"}
    return [
        Panel(r"scale of the start  $\kappa$", off, [*against_kappa, smooth], title=title, **log),
        Panel("width  $m$", off, [*against_width, Series("$m^{-1/2}$", w, level, kind="reference")],
              title=rf"$\kappa={SCALE}$, " + title.split(", ")[1], xticks=widths, **log),
        Panel("factor by which it grows", "share of flipped signs", flips, title="flipped signs, and predicted", **log),
    ]  # fmt: skip


class Runs:
    """Networks of one kind: distances from the prediction, flipped signs, and the range predicted for these."""

    def __init__(self, far, flipped, predicted):
        self.far, self.flipped, self.predicted = np.array(far), np.array(flipped), predicted


def train_all(X, y, width, steps, runs, start, kappa):
    """Several networks at the step size 1 / lambda_max."""
    spectrum = kernel.spectrum(X)
    eta = spectrum.check_step(None)
    predicted = spectrum.residuals(y, steps, eta)
    trained = [train(X, y, width, eta, steps, start, kappa, replica) for replica in range(runs)]
    share = flipped_share(X, spectrum.coefficients(y, steps, eta)) / (kappa * np.sqrt(width))
    return Runs([distance(run.residuals, predicted) for run in trained], [run.flip_share for run in trained], share)


def train(X, y, width, eta, steps, start="antisymmetric", kappa=1.0, replica=0):
    """One network, in single precision."""
    options = {"start": start, "kappa": kappa, "replica": replica, "grams": False, "precision": "single"}
    return kernel.train(X, y, width=width, eta=eta, steps=steps, **options)


def flipped_share(X, coefficients):
    r"""The share of signs that flip, times :math:`\kappa\sqrt m`, between two numbers; from the start alone.

    A unit moves by :math:`\delta_i = a \sum_j c_j 1\{w \cdot x_j \ge 0\} x_j \cdot x_i / \sqrt m` along :math:`x_i`: a
    field of density :math:`1/\kappa\sqrt{2\pi}` at zero flips with probability :math:`E|\delta_i|` times this, given
    that it is zero. The sample's own part acts on one side of zero only. Where the two sides push towards each other
    the field stays at zero, with either sign: these are left out, or counted.
    """
    fields = np.random.default_rng(5).standard_normal((WEIGHTS, X.shape[1])) @ X.T
    G = X @ X.T
    low, high = [], []
    for i, row in enumerate(G):
        is_on = fields - np.outer(fields[:, i], row) >= 0.0  # weights orthogonal to the input
        is_on[:, i] = False
        others = is_on @ (coefficients * row)
        for sign in (1.0, -1.0):
            off, on = sign * others, sign * (others + coefficients[i])
            flips = np.maximum(off, 0.0) + np.maximum(-on, 0.0)
            high.append(flips.mean())
            low.append(np.mean(np.where((on < 0.0) & (off > 0.0), 0.0, flips)))
    return np.array([np.mean(low), np.mean(high)]) / np.sqrt(2.0 * np.pi)


def outputs_at_start(X, kappa, width=50):
    """The outputs of independent units before training, for many draws."""
    values = []
    for draw in range(DRAWS):
        seed = int(1000 * kappa) + len(X)
        weights = np.concatenate([W for _, W in first_layer(width, X.shape[1], "small", kappa, seed, draw)])
        values.append(second_layer(width, "small", seed, draw) @ np.maximum(weights @ X.T, 0.0) / np.sqrt(width))
    return np.array(values)


def loss_at_start(y, outputs):
    """Theorem 3.1 bounds the loss of all starts but a share delta by its mean over delta, at every kappa."""
    ratios = [
        np.quantile(0.5 * np.sum((y - u) ** 2, axis=1), 1.0 - DELTA) * DELTA / initial_loss(y, kappa)
        for kappa, u in outputs.items()
    ]
    words = (
        f"{1.0 - DELTA:g} quantile of the loss at the start over the bound of theorem 3.1, delta = {DELTA:g}, largest"
    )
    return Claim(words, max(ratios), high=1.0)


def distances_of_starts(X, y, outputs, steps, kappas):
    """The mean distance of residual norms that outputs at the start make in an infinitely wide network."""
    spectrum = kernel.spectrum(X)
    k = np.unique([0, *np.geomspace(1, steps, 40).astype(int)])
    factors = (1.0 - spectrum.check_step(None) * spectrum.eigenvalues) ** k[:, None]
    labels, started = spectrum.projections(y), spectrum.projections(outputs.T).T
    predicted, means = np.linalg.norm(factors * labels, axis=1), []
    for kappa in kappas:
        norms = np.stack([np.linalg.norm(factor * (labels - kappa * started), axis=1) for factor in factors])
        means.append(np.mean(np.max(np.abs(norms - predicted[:, None]), axis=0)) / predicted[0])
    return np.array(means)


def power(what, letter, x, runs, expected, order=0.0):
    """The claim that a mean over runs is a power of x, within five standard errors and the size of the next order."""
    runs = [np.sqrt(values) if np.ndim(values) and what.startswith("outputs") else values for values in runs]
    means, error = [run.mean() for run in runs], [standard_error(run) for run in runs]
    allowed = ERRORS * slope_error(x, means, error) + order
    return Claim(f"{what}, power of {letter}", slope(x, means), expected - allowed, expected + allowed)


def distance(trained, predicted):
    """The largest distance of residual norms, over the norm of the labels."""
    return float(np.max(np.abs(trained - predicted)) / predicted[0])


def standard_error(values):
    """Of the mean along the last axis."""
    values = np.asarray(values)
    return values.std(axis=-1, ddof=1) / np.sqrt(values.shape[-1])


def points(label, x, runs, color):
    """Means over runs with their standard errors."""
    return Series(
        label, x, [run.mean() for run in runs], [standard_error(run) for run in runs], kind="points", color=color
    )


if __name__ == "__main__":
    run_script(__file__)
