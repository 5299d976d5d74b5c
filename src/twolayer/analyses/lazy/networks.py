"""The networks that are trained beside the prediction, and the errors of both on test samples."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from twolayer.analyses.lazy.setting import KernelSetting
from twolayer.kernel import AbstractSpectrum, Trained, gram, train
from twolayer.kernel.spectra import as_measure
from twolayer.verbs.progress import Progress

# Losses that theorem 5.1 covers: of Lipschitz constant one in u, between zero and one, zero at u = y. The ramp is that
# of signs, max(0, 1 - u y), and the logistic loss is counted from its value at the label, since it is not zero there.
LIPSCHITZ = ("absolute_loss", "ramp_loss", "logistic_loss")
# Errors of outputs u on labels y: means of (u - y)^2 and of |u - y|, the share of wrong signs, and these losses.
METRICS = ("mean_square", "mean_absolute", "wrong_share", *LIPSCHITZ)
# Numbers of the kernel between test and training inputs that are held at once.
HELD = 2**25


class HeldOut(NamedTuple):
    """Test inputs of unit norm and their labels; ``has_signs`` where all labels, of training too, are signs."""

    T: np.ndarray
    labels: np.ndarray
    has_signs: bool

    def errors(self, outputs: np.ndarray, drawn: np.ndarray | None = None, share: float = 0.0) -> np.ndarray:
        """The metrics of outputs, and their standard errors over the test samples.

        With a share of random labels the test labels follow the same law: the mean over labels that are replaced by one
        of ``drawn`` with this probability. NaN for the share of wrong signs where labels are not signs.
        """
        values = (1.0 - share) * self._of_samples(outputs, self.labels)
        if share and drawn is not None:
            options, counts = np.unique(drawn, return_counts=True)
            for option, weight in zip(options, share * counts / len(drawn), strict=True):
                values += weight * self._of_samples(outputs, np.full_like(self.labels, option))
        return np.stack([values.mean(axis=1), values.std(axis=1) / np.sqrt(len(self.labels))])

    def wrong_share(self, outputs: np.ndarray) -> float:
        """The share of wrong signs on the test labels as they are; NaN where labels are not signs."""
        return float(np.mean(np.sign(outputs) != np.sign(self.labels))) if self.has_signs else np.nan

    def _of_samples(self, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        gap = np.abs(u - y)
        wrong = np.sign(u) != np.sign(y) if self.has_signs else np.full(len(u), np.nan)
        excess = np.logaddexp(0.0, -u * y) - np.logaddexp(0.0, -(y**2))
        bounded = [np.clip(loss, 0.0, 1.0) for loss in (gap, np.abs(y) - u * np.sign(y), excess)]
        return np.stack([gap**2, gap, wrong, *bounded])


class Networks(NamedTuple):
    """How networks are trained on a data set: the inputs, the setting, and what is asked."""

    X: np.ndarray
    setting: KernelSetting
    eta: float
    steps: int
    replicas: int
    seed: int
    precision: str

    @property
    def options(self) -> dict[str, Any]:
        """How every network is trained, in the words of `kernel.train`."""
        start = {"width": self.setting.width, "start": self.setting.start, "kappa": self.setting.kappa}
        return start | {"eta": self.eta, "steps": self.steps, "precision": self.precision}

    def train(
        self, y: np.ndarray, name: str, tell: Progress, others: np.ndarray | None = None, grams: bool = False
    ) -> list[Trained]:
        """Train all replicas on some labels; ``others`` are inputs at which they are evaluated at the end."""
        results = []
        for replica in range(self.replicas):

            def share(fraction: float, before: int = replica) -> None:
                tell(name, (before + fraction) / self.replicas)

            names = {"seed": self.seed, "replica": replica, "others": others, "grams": grams, "progress": share}
            results.append(train(self.X, y, **self.options, **names))
        return results


def are_signs(y: np.ndarray) -> bool:
    """Whether all labels are plus or minus one."""
    return bool(np.all(np.abs(y) == 1.0))


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The spectral norm of the difference of two symmetric matrices."""
    from scipy.sparse.linalg import eigsh

    gap = first - second
    if len(gap) < 10:
        return float(np.linalg.norm(gap, 2))
    start = np.random.default_rng(0).standard_normal(len(gap))
    values = eigsh(gap, k=1, which="LM", v0=start, tol=1e-6, return_eigenvectors=False)  # pyright: ignore[reportArgumentType]
    return float(np.abs(values[0]))


def kernel_outputs(T: np.ndarray, networks: Networks, spectrum: AbstractSpectrum, labels: np.ndarray) -> np.ndarray:
    """Outputs of the infinitely wide network at other inputs T, one column for each column of labels."""
    setting, X = networks.setting, networks.X
    coefficients = spectrum.coefficients(labels, networks.steps, networks.eta)
    block = max(1, HELD // len(X))
    kernel: dict[str, Any] = {"layers": setting.layers, "kappa": setting.kappa, "others": X}
    parts = [gram(T[i : i + block], setting.activation, **kernel) @ coefficients for i in range(0, len(T), block)]
    return np.concatenate(parts)


def along_shares(
    networks: Networks,
    test: HeldOut,
    shares: Sequence[float],
    labels: list[np.ndarray],
    given: np.ndarray,
    outputs: np.ndarray,
    spectrum: AbstractSpectrum,
    tell: Progress,
) -> dict[str, Any]:
    """Measure and test errors of each set of labels; ``outputs`` are the kernel's at the test inputs, by column.

    Errors in the share of wrong signs are those on clean labels; losses are those on labels of the same law as the
    training labels, of which theorem 5.1 speaks.
    """
    measures = [as_measure(form, spectrum.n) for form in spectrum.inverse_forms(np.stack(labels, axis=1))]
    drawn = np.array([-1.0, 1.0]) if test.has_signs else given
    by_kernel = [test.errors(column, drawn, share)[0] for column, share in zip(outputs.T, shares, strict=True)]
    clean, losses = [], []
    for place, (y, share) in enumerate(zip(labels, shares, strict=True)):

        def tell_part(name: str, fraction: float, before: int = place) -> None:
            tell(name, (before + fraction) / len(labels))

        runs = networks.train(y, "networks on random labels", tell_part, others=test.T)
        results = [np.asarray(run.other_outputs) for run in runs]
        clean.append([test.wrong_share(u) for u in results])
        losses.append([test.errors(u, drawn, share)[0] for u in results])
    values = {
        "share_complexity": [measure.value for measure in measures],
        "share_complexity_error": [measure.error for measure in measures],
        "share_kernel_error": [test.wrong_share(column) for column in outputs.T],
        "share_kernel_loss": np.stack(by_kernel),
    }
    if networks.replicas:
        values |= {
            "share_network_error": np.transpose(clean),
            "share_network_loss": np.swapaxes(np.asarray(losses), 0, 1),
        }
    return values
