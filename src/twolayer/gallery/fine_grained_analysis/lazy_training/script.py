"""Training of a wide network on true, random and worst labels, and what the spectrum says before it begins."""

import numpy as np

from twolayer import kernel
from twolayer.data import randomise_labels
from twolayer.gallery import Claim, Made, run_script, slope
from twolayer.gallery.samples import two_classes
from twolayer.plots import Panel, Series, panels

NARROWER = 4  # by how much the network is narrower with which the deviation is compared


def make(spec, ask):
    n, width, steps = (500, 8192, 660) if ask.full else (
        spec["data"]["n"], spec["problem"]["student"]["p"], spec["run"]["steps"]
    )  # fmt: skip
    options = {"steps": steps, "start": "antisymmetric", "grams": False, "precision": "single"}
    shown, rates, ratios = [], [], []
    deviations = {"true": [], "random": [], "worst": []}
    for title, (samples, _) in two_classes(ask, n).items():
        X, true = np.asarray(samples.X), np.asarray(samples.y)
        spectrum = kernel.spectrum(X)
        eta = spectrum.check_step(None)
        worst = np.sqrt(samples.n) * spectrum.eigenvectors[:, -1]  # as long as the others
        labels = {"true": true, "random": randomise_labels(true, 1.0), "worst": worst}
        series, ends = [], []
        for color, (name, y) in enumerate(labels.items()):
            predicted = spectrum.residuals(y, steps, eta)
            trained = kernel.train(X, y, width=width, eta=eta, **options).residuals
            deviations[name].append(far(trained, predicted))
            ends.append(trained[-1])
            if name != "worst":
                narrow = kernel.train(X, y, width=width // NARROWER, eta=eta, **options).residuals
                rates.append(slope([width // NARROWER, width], [far(narrow, predicted), far(trained, predicted)]))
            some = np.unique(np.geomspace(1, steps, 14).astype(int))
            k, scale = np.arange(1, steps + 1), 1.0 / samples.n
            series.append(Series(f"{name} labels, predicted", k, scale * predicted[1:] ** 2, color=color))
            marks = scale * trained[some] ** 2
            series.append(Series(f"{name} labels, network", some, marks, kind="points", color=color))
        ratios += [ends[1] / ends[0], ends[2] / ends[1]]
        axes = {"log": "xy", "title": f"{title}, $n={samples.n}$"}
        shown.append(Panel("step  $k$", r"$\|y - u(k)\|^2/n$", series, **axes))
    usual = max(deviations["true"] + deviations["random"])
    claims = [
        Claim("network against prediction, true and random labels, over |y|, largest", usual, high=0.1),
        Claim("network against prediction, worst labels, over |y|, largest", max(deviations["worst"]), high=0.2),
        # Weights move by order 1/sqrt(m), and as many signs flip: the prediction is off by that order.
        Claim("power of the width with which the deviation falls, mean", float(np.mean(rates)), -0.75, -0.25),
        Claim("residual at the end, random over true and worst over random, smallest", float(min(ratios)), low=1.1),
    ]
    return Made({"figure": panels(shown, rf"First layer trained, $p={width}$ relu units, $\eta=1/\lambda_1$")}, claims)


def far(trained, predicted):
    """The largest distance of residual norms, over the norm of the labels."""
    return float(np.max(np.abs(trained - predicted)) / predicted[0])


if __name__ == "__main__":
    run_script(__file__)
