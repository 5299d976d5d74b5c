"""The bound of theorem 5.1 against the share of random labels, beside the losses and errors of kernel and network."""

import numpy as np

import twolayer as tl
from twolayer import kernel
from twolayer.analyses.lazy.networks import LIPSCHITZ
from twolayer.data import randomise_labels
from twolayer.gallery import Claim, Made, agrees, run_script
from twolayer.gallery.page import ERRORS
from twolayer.gallery.page_samples import IMAGES, two_classes
from twolayer.kernel import theorems
from twolayer.plots import Panel, Series, panels

DRAWS = 6  # of the random labels and of the network's start
LABELS = 400  # draws of random labels for the measure alone
LAW = {"n": 160, "draws": 40}  # sets of samples for the law of the smallest eigenvalue
TO_THE_END = 40  # samples on which a network is trained for as many epochs as theorem 5.1 asks
MORE = {False: 1000, True: 4000}  # samples with which the bound is computed again, by the kernel alone; with `--full`
CLEAR = IMAGES["mnist"]  # signs of classes that a smooth function tells apart
DELTA = 0.3  # failure probability of the law, of which the theorem leaves a third to it


def make(spec, ask):
    n, p, steps, number = (1000, 2048, 400, 6) if ask.full else (
        spec["data"]["n"], spec["problem"]["student"]["p"], spec["run"]["steps"], len(spec["run"]["shares"])
    )  # fmt: skip
    shares = np.linspace(0.0, 1.0, number)
    more = MORE[ask.full]
    sets = two_classes(ask, max(n, more, LAW["n"] * (LAW["draws"] + 1)), spec["data"]["test"])
    rows, with_more = [], []
    for title, (pool, test) in sets.items():
        with_more += bound_of_more(f"{title}, signs", pool.X[:more], pool.y[:more], test, title == CLEAR)
        rows.append(Row(f"{title}, signs", pool.X[:n], pool.y[:n], test, p, steps, shares))
    pool, test = next(iter(sets.values()))
    beta = pool.y @ pool.X / np.linalg.norm(pool.y @ pool.X)  # real labels: a linear form, between -1 and 1
    linear = tl.Samples(test.X, test.X @ beta)
    form = f"{next(iter(sets))}, linear form"
    with_more += bound_of_more(form, pool.X[:more], pool.X[:more] @ beta, linear, True)
    rows.append(Row(form, pool.X[:n], pool.X[:n] @ beta, linear, p, steps, shares))
    claims = [
        *claims_of(rows[:-1], rows, shares),
        *with_more,
        *to_the_end(pool.X, pool.X @ beta, linear, p),
        law_of(pool.X),
    ]
    title = rf"$n={n}$, $p={p}$ relu units; mean of {DRAWS} draws of labels and networks"
    shown = [panel for row in rows for panel in row.panels(shares, is_labelled=row is rows[0])]
    return Made({"figure": panels(shown, title, columns=2, has_common_legend=False)}, claims)


class Row:
    """One set of samples: measure and bound before training, losses and errors after it, over draws of the labels."""

    def __init__(self, title, X, y, test, p, steps, shares):
        self.title, self.X, self.y, self.p = title, X, y, p
        self.has_signs = bool(np.all(np.abs(y) == 1.0))
        problem = tl.Problem(tl.Labels(), tl.Student(p, "relu"), tl.Samples(X, y), start=tl.AntisymmetricStart())
        options = {"steps": steps, "shares": shares, "precision": "single", "random_labels": False, "test": test}
        draws = [tl.ntk(problem, tl.First(), seed=seed, **options) for seed in range(DRAWS)]
        self.measure = np.stack([draw.share_complexity for draw in draws])
        self.bound = np.stack([draw.share_loss_bound for draw in draws])
        self.remainder = float(draws[0].bound_remainder)
        losses = [both(draws, "loss", lambda values, name=name: values.sel(metric=name)) for name in LIPSCHITZ]
        self.losses = dict(zip(LIPSCHITZ, losses, strict=True))
        self.loss, self.kernel_loss = self.losses["absolute_loss"]
        self.wrong, self.kernel_wrong = both(draws, "error", lambda values: values)
        self.spectrum = kernel.spectrum(X)
        eta = self.spectrum.check_step(None)
        mixed = [[randomise_labels(y, share, seed) for share in shares] for seed in range(DRAWS)]
        left = [[self.spectrum.residuals(labels, [steps], eta)[0] for labels in draw] for draw in mixed]
        self.left = np.array(left) / np.sqrt(len(y))  # the loss in training is at most this

    def mean_form(self, shares):
        r"""The mean of :math:`y^\top H^{-1} y` with a number :math:`r` of the labels drawn at random, exactly.

        Two labels are both kept with probability :math:`q = (n - r)(n - r - 1)/n(n - 1)`. The matrix is made here from
        its series, :math:`\rho/4 + \rho\arcsin(\rho)/2\pi`, and solved without its eigenvectors.
        """
        n, y = len(self.y), self.y
        rho = np.clip(self.X @ self.X.T, -1.0, 1.0)
        inverse = np.linalg.inv(0.25 * rho + rho * np.arcsin(rho) / (2.0 * np.pi))
        drawn = np.asarray(shares) * n
        mean = 0.0 if self.has_signs else y.mean()
        kept, one = (n - drawn) * (n - drawn - 1) / (n * (n - 1)), (n - drawn) / n
        apart = y @ inverse @ y - np.diagonal(inverse) @ y**2  # pairs of different samples
        rest = inverse.sum(axis=1) - np.diagonal(inverse)
        random = mean**2 * rest.sum()
        squares = (one * (np.diagonal(inverse) @ y**2)) + (1.0 - one) * np.trace(inverse) * np.mean(y**2)
        return squares + kept * apart + 2.0 * (one - kept) * mean * (rest @ y) + (1.0 - 2.0 * one + kept) * random

    def panels(self, shares, is_labelled):
        """Measure, bound and loss; and loss and error with intervals over draws."""

        def named(label):
            return label if is_labelled else ""

        fine = np.linspace(0.0, 1.0, 101)
        measure = np.sqrt(2.0 * self.mean_form(fine) / len(self.y))
        axis, limits = "share of random labels", (-0.03, 1.03)
        top = 1.1 * float(np.max(measure + self.remainder))
        first = [
            Series(named("bound of theorem 5.1"), fine, measure + self.remainder, color=0),
            Series(named("its first term, the measure"), fine, measure, color=1),
            points("", shares, self.measure, 1),
            points(named("loss of the network"), shares, self.loss, 2),
            Series(named("largest loss"), [0.0, 1.0], [1.0, 1.0], kind="reference", dashed=1),
        ]
        second = [points(named("loss of the network"), shares, self.loss, 2)]
        second.append(of_kernel(named("loss of the kernel"), shares, self.kernel_loss, 2))
        if self.has_signs:
            second.append(points(named("wrong signs, network"), shares, self.wrong, 3))
            second.append(of_kernel(named("wrong signs, kernel"), shares, self.kernel_wrong, 3))
        return [
            Panel(axis, "before training, and the loss", first, title=self.title, xlim=limits, ylim=(0.0, top)),
            Panel(axis, "on test samples", second, title=self.title, xlim=limits, ylim=(0.0, None)),
        ]


def both(draws, name, pick):
    """Test errors of networks and of the kernel, one row for each draw."""
    network = np.stack([pick(draw[f"share_network_{name}"])[0] for draw in draws])
    return network, np.stack([pick(draw[f"share_kernel_{name}"]) for draw in draws])


def claims_of(signs, rows, shares):
    """What must hold for all sets of samples."""
    form, error, mean, ratios = [], [], [], []
    for row in rows:
        # The mean over many draws of labels, of the form as the package computes it.
        drawn = [[randomise_labels(row.y, share, seed) for share in shares[1:]] for seed in range(100, 100 + LABELS)]
        columns = np.reshape(drawn, (-1, len(row.y))).T
        forms = np.reshape([known.value for known in row.spectrum.inverse_forms(columns)], (LABELS, -1))
        form, error = [*form, *forms.mean(axis=0)], [*error, *(forms.std(axis=0, ddof=1) / np.sqrt(LABELS))]
        mean += [*row.mean_form(shares[1:])]
        ratios.append(rademacher(row) / row.measure[0, 0])
    over = {
        name: max(np.max(loss - row.bound - row.left) for row in rows for loss in row.losses[name])
        for name in LIPSCHITZ
    }
    words = "{} loss of network and kernel above the bound of theorem 5.1, largest"
    ends = [
        (values[:, -1].mean() - values[:, 0].mean()) / np.hypot(*deviation(values[:, [0, -1]]))
        for row in signs
        for values in (row.measure, row.loss, row.wrong)
    ]
    wrong = np.array([row.wrong[:, -1] for row in signs])
    # The width must not matter more than a step from one share to the next, which the measure has to tell apart.
    far = [np.abs(row.loss - row.kernel_loss).mean(axis=0).max() for row in rows]
    apart = [np.diff(row.kernel_loss.mean(axis=0)).min() for row in rows]
    return [
        agrees("mean of y H^-1 y over random labels against the exact mean", form, error, mean),
        *(Claim(words.format(name.split("_")[0]), float(over[name]), high=0.0) for name in LIPSCHITZ),
        Claim("the bound for labels that are a linear form", rows[-1].bound[0, 0] + rows[-1].left[0, 0], high=1.0),
        # Jensen's inequality from above, Khintchine's with the best constant from below.
        Claim("twice the Rademacher complexity over the measure, smallest", min(ratios), np.sqrt(0.5), 1.0),
        Claim("twice the Rademacher complexity over the measure, largest", max(ratios), np.sqrt(0.5), 1.0),
        Claim("measure, loss and error: all random over none, smallest, in standard errors", min(ends), low=ERRORS),
        agrees("wrong signs with all labels random against 1/2", wrong.mean(axis=1), deviation(wrong.T), 0.5),
        Claim(
            "network against kernel, mean difference of the losses over that of neighbouring shares",
            float(np.max(np.divide(far, apart))),
            high=1.0,
        ),
    ]


def bound_of_more(title, X, y, test, is_below):
    """The bound for more samples, on one side of one, and the loss of the kernel, the network of infinite width."""
    spectrum = kernel.spectrum(X)
    measure = np.sqrt(2.0 * spectrum.inverse_form(y).value / len(y))
    bound = measure + theorems.remainder(len(y), spectrum.lambda_min, DELTA)
    outputs = kernel.gram(test.X, others=X) @ spectrum.coefficients(y)
    loss = float(np.mean(np.minimum(np.abs(outputs - test.y), 1.0)))
    limits = {"high": 1.0} if is_below else {"low": 1.0}
    return [
        Claim(f"{title}, {len(y)} samples: bound of theorem 5.1", float(bound), **limits),
        Claim(f"{title}, {len(y)} samples: loss of the kernel above the bound", loss - float(bound), high=0.0),
    ]


def to_the_end(X, y, test, p):
    """A network that is trained for as many epochs as theorem 5.1 asks."""
    X, y = X[:TO_THE_END], y[:TO_THE_END]
    spectrum = kernel.spectrum(X)
    asked = theorems.required_steps(len(y), spectrum.lambda_min, spectrum.check_step(None), DELTA)
    problem = tl.Problem(tl.Labels(), tl.Student(p, "relu"), tl.Samples(X, y), start=tl.AntisymmetricStart())
    options = {"delta": DELTA, "precision": "single", "random_labels": False, "test": test}
    result = tl.ntk(problem, tl.First(), steps=int(np.ceil(asked)), **options)
    residual = result.trained_residual.values[..., -1] / np.linalg.norm(y)
    losses = result.network_test_error.sel(metric=list(LIPSCHITZ)).values
    measure = np.sqrt(2.0 * spectrum.inverse_form(y).value / len(y))
    words = f"after the epochs of theorem 5.1, {TO_THE_END} samples:"
    return [
        # Of the linear update at most (1 - eta lambda_0)^k = delta / n is left.
        Claim(f"{words} residual over labels, times n / delta", np.max(residual) * len(y) / DELTA, high=1.0),
        # Below the measure alone: the remainder, which is above one here, is for the scatter over samples.
        Claim(f"{words} losses of the network above the measure, largest", np.max(losses) - measure, high=0.0),
    ]


def law_of(X):
    r"""The law of the inputs is non-degenerate: at half of the smallest eigenvalue of one set, over other sets."""
    smallest = kernel.spectrum(X[: LAW["n"]]).lambda_min
    known = kernel.non_degenerate(X[LAW["n"] :], lambda_0=0.5 * smallest, **LAW)
    words = f"probability that lambda_min of {LAW['n']} samples is at least {known.lambda_0:.2g}, lower end at 95%"
    return Claim(words, known.low, low=1.0 - DELTA / 3.0)


def rademacher(row, draws=2000):
    """Twice the Rademacher complexity of all predictors of the norm of the one that fits the labels."""
    signs = np.random.default_rng(6).choice([-1.0, 1.0], (draws, len(row.y)))
    lengths = np.sqrt(np.sum((signs @ row.spectrum.eigenvectors) ** 2 * row.spectrum.eigenvalues, axis=1))
    return 2.0 * np.sqrt(row.spectrum.inverse_form(row.y).value) * lengths.mean() / len(row.y)


def deviation(draws):
    """The standard error of the mean over draws, at least that of one wrong sample in a thousand."""
    return np.maximum(draws.std(axis=0, ddof=1) / np.sqrt(len(draws)), 1e-3)


def points(label, shares, draws, color):
    """Means over draws with their standard errors."""
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return Series(label, shares, draws.mean(axis=0), error, kind="points", color=color)


def of_kernel(label, shares, draws, color):
    """Means over draws of the labels, which is all that the kernel depends on."""
    look = {"marker": "_", "ms": 12, "mew": 1.5}
    return Series(label, shares, draws.mean(axis=0), kind="points", color=color, look=look)


if __name__ == "__main__":
    run_script(__file__)
