"""The complexity measure of labels of which a share is random, beside the test error of kernel and network."""

from typing import Any

import numpy as np
from scipy.stats import spearmanr

import twolayer as tl
from twolayer import kernel
from twolayer.gallery import Claim, Made, run_script
from twolayer.gallery.samples import two_classes
from twolayer.plots import Panel, Series, panels

DRAWS = 4  # of the random labels and of the network's start


def make(spec, ask):
    n, p, steps, number = (1000, 2048, 1000, 11) if ask.full else (
        spec["data"]["n"], spec["problem"]["student"]["p"], spec["run"]["steps"], len(spec["run"]["shares"])
    )  # fmt: skip
    shares = np.linspace(0.0, 1.0, number)
    options = {"steps": steps, "shares": shares, "precision": "single", "random_labels": False}
    shown, far, ranks = [], [], {"network": [], "kernel": [], "share": []}
    for title, (samples, test) in two_classes(ask, n, spec["data"]["test"]).items():
        problem = tl.Problem(tl.Labels(), tl.Student(p, "relu"), samples, start=tl.AntisymmetricStart())
        draws = [tl.ntk(problem, tl.First(), test=test, seed=seed, **options) for seed in range(DRAWS)]
        measure = np.stack([draw.share_complexity for draw in draws])
        by_kernel = np.stack([draw.share_kernel_error for draw in draws])
        by_network = np.stack([draw.share_network_error[0] for draw in draws])
        expected = mean_measure(samples, shares)
        far.append(np.max(np.abs(measure.mean(axis=0) / expected - 1.0)))
        for name, values in (("network", by_network), ("kernel", by_kernel), ("share", shares[None, :])):
            ranked: Any = spearmanr(measure.mean(axis=0), values.mean(axis=0))
            ranks[name].append(ranked.statistic)
        named = {"title": f"{title}, $n={samples.n}$"}
        series = [
            points("complexity measure", shares, measure, 0),
            Series("its mean over random labels", shares, expected, color=0),
        ]
        label = r"$\sqrt{2\,y^\top H^{-1} y/n}$"
        shown.append(Panel("share of random labels", label, series, ylim=(0.0, 1.15 * measure.max()), **named))
        series = [
            points("network", shares, by_network, 1),
            Series("kernel, infinite width", shares, by_kernel.mean(axis=0), color=1, dashed=1),
        ]
        shown.append(Panel("share of random labels", "test error", series, ylim=(0.0, 0.7), **named))
    claims = [
        Claim("rank correlation of measure and share of random labels, smallest", min(ranks["share"]), low=0.95),
        Claim("rank correlation of measure and test error, network, smallest", min(ranks["network"]), low=0.95),
        Claim("rank correlation of measure and test error, kernel, smallest", min(ranks["kernel"]), low=0.95),
        Claim("measure against its mean over random labels, relative, largest", max(far), high=0.08),
    ]
    title = rf"Measure before training, errors after it, $p={p}$ relu units; mean of {DRAWS} draws of labels"
    return Made({"figure": panels(shown, title, columns=2)}, claims)


def points(label, shares, draws, color):
    """Means over draws with their standard errors."""
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return Series(label, shares, draws.mean(axis=0), error, kind="points", color=color)


def mean_measure(samples, shares):
    r"""With labels kept with probability q and random otherwise, the mean of :math:`y^\top H^{-1} y` is a mixture.

    .. math:: q^2\,y^\top H^{-1} y + (1 - q^2)\,\mathrm{tr}\,H^{-1}
    """
    spectrum = kernel.spectrum(samples.X)
    kept = (1.0 - shares) ** 2
    form = kept * spectrum.inverse_form(samples.y).value + (1.0 - kept) * np.sum(1.0 / spectrum.eigenvalues)
    return np.sqrt(2.0 * form / samples.n)


if __name__ == "__main__":
    run_script(__file__)
