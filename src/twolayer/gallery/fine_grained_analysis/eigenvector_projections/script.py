"""Where labels lie in the spectrum of the Gram matrix: true ones on the first eigenvectors, random ones anywhere."""

import numpy as np

from twolayer import kernel
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.gallery.page_samples import two_classes
from twolayer.plots import Panel, Series, panels

TOP = 0.05  # the share of eigenvectors of which claims are made
DRAWS = 200


def make(spec, ask):
    n = 5000 if ask.full else spec["data"]["n"]
    shown, claims = [], []
    for title, (samples, _) in two_classes(ask, n).items():
        spectrum = kernel.spectrum(samples.X)
        rank, n = np.arange(1, spectrum.n + 1), spectrum.n
        # (v_i . y)^2 / |y|^2, for labels of the data and for many that are drawn at random
        true = spectrum.projections(samples.y) ** 2 / n
        drawn = spectrum.projections(np.random.default_rng(0).choice([-1.0, 1.0], (n, DRAWS))) ** 2 / n
        top = round(TOP * n)
        measured = drawn[:top].sum(axis=0)
        scatter = known_scatter(spectrum.eigenvectors[:, :top])
        claims += [
            agrees(
                f"{title}: share of random labels on the first {top} eigenvectors, mean against k/n",
                measured.mean(),
                scatter / np.sqrt(DRAWS),
                top / n,
            ),
            # The share is a sum of many terms and nearly normal: a deviation has the relative error 1/sqrt(2 N).
            agrees(
                f"{title}: its scatter over the known one",
                measured.std(ddof=1) / scatter,
                1.0 / np.sqrt(2.0 * (DRAWS - 1)),
                1.0,
            ),
            Claim(
                f"{title}: share of true labels on them, above k/n, in scatters of random ones",
                (true[:top].sum() - top / n) / scatter,
                low=ERRORS,
            ),
        ]
        middle, means = zip(
            *(running_mean(values) for values in (true, drawn[:, 0], spectrum.eigenvalues / n)), strict=True
        )
        curves = [
            Series("true labels", middle[0], means[0], kind="points", color=0),
            Series("random labels", middle[1], means[1], kind="points", color=1),
            Series(r"eigenvalue  $\lambda_i/n$", middle[2], means[2], color=2, dashed=1),
            Series(r"$1/n$, $k/n$", rank[[0, -1]], [1.0 / n, 1.0 / n], kind="reference"),
        ]
        label = r"$(v_i \cdot y)^2/\|y\|^2$,  $\lambda_i/n$"
        shown.append(Panel("eigenvector  $i$", label, curves, log="xy", title=f"{title}, $n={n}$"))
        totals = np.cumsum(drawn, axis=0)
        curves = [
            Series("true labels", rank, np.cumsum(true), color=0),
            Series("random labels", rank, totals.mean(axis=1), band=np.quantile(totals, [0.05, 0.95], axis=1), color=1),
            Series(r"$1/n$, $k/n$", rank, rank / n, kind="reference"),
        ]
        axes = {"log": "x", "title": "from the first to the $k$-th", "ylim": (0.0, 1.05)}
        shown.append(Panel("eigenvectors  $k$", "share of the labels", curves, **axes))
    title = f"Labels on the eigenvectors of the Gram matrix (band: 5-95% of {DRAWS} draws)"
    return Made({"figure": panels(shown, title, columns=2)}, claims)


def known_scatter(V):
    r"""Of :math:`y^\top V V^\top y / n` for independent signs y.

    .. math:: \frac1n \sqrt{2 \textstyle\sum_{i \ne j} (V V^\top)_{ij}^2}
    """
    n, k = V.shape
    return np.sqrt(2.0 * (k - np.sum(np.sum(V**2, axis=1) ** 2))) / n


def running_mean(values):
    """Means over ranges of ranks that grow as the ranks do, and the middles of these ranges."""
    ends = np.unique(np.round(np.geomspace(1, len(values) + 1, 22)).astype(int)) - 1
    return np.sqrt((ends[:-1] + 1.0) * ends[1:]), np.add.reduceat(values, ends[:-1]) / np.diff(ends)


if __name__ == "__main__":
    run_script(__file__)
