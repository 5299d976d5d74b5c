"""The networks that are trained beside the prediction, and the errors of both on test samples."""

from typing import Any, NamedTuple

import jax
import numpy as np

from twolayer.analyses.lazy.setting import KernelSetting
from twolayer.kernel import AbstractSpectrum, Trained, gram, train
from twolayer.kernel.spectra import as_measure
from twolayer.verbs.progress import Progress

# Errors of outputs u on labels y: means of (u - y)^2 and of |u - y|, and the share of wrong signs.
METRICS = ("mean_square", "mean_absolute", "wrong_share")
# Numbers of the kernel between test and training inputs that are held at once.
HELD = 2**25


class Test(NamedTuple):
    """Test inputs of unit norm and their labels; ``has_signs`` where all labels, of training too, are signs."""

    T: np.ndarray
    labels: np.ndarray
    has_signs: bool

    def errors(self, outputs: np.ndarray) -> list[float]:
        """The metrics of outputs; NaN for the share of wrong signs where labels are not signs."""
        gap = outputs - self.labels
        wrong = wrong_share(outputs, self.labels) if self.has_signs else np.nan
        return [float(np.mean(gap**2)), float(np.mean(np.abs(gap))), wrong]


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


def wrong_share(outputs: np.ndarray | jax.Array, truth: np.ndarray) -> float:
    """The share of wrong signs."""
    return float(np.mean(np.sign(outputs) != np.sign(truth)))


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


def sweep(
    networks: Networks,
    test: Test,
    labels: list[np.ndarray],
    outputs: np.ndarray,
    spectrum: AbstractSpectrum,
    tell: Progress,
) -> dict[str, Any]:
    """Measure and test error of each set of labels; ``outputs`` are the kernel's at the test inputs, by column."""
    measures = [as_measure(form, spectrum.n) for form in spectrum.inverse_forms(np.stack(labels, axis=1))]
    errors = []
    for place, y in enumerate(labels):

        def share(name: str, fraction: float, before: int = place) -> None:
            tell(name, (before + fraction) / len(labels))

        runs = networks.train(y, "networks on random labels", share, others=test.T)
        errors.append([wrong_share(run.other_outputs, test.labels) for run in runs if run.other_outputs is not None])
    values = {
        "share_complexity": [measure.value for measure in measures],
        "share_complexity_error": [measure.error for measure in measures],
        "share_kernel_error": [wrong_share(column, test.labels) for column in outputs.T],
    }
    return values | ({"share_network_error": np.transpose(errors)} if networks.replicas else {})
