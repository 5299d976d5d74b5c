"""What `ntk` gives back: spectrum, curves, complexity, bounds, as numbers, words and plain data."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from twolayer.core.estimate import Estimate
from twolayer.kernel import Trained
from twolayer.kernel.spectra import Prediction

# Beyond this many points a curve is thinned in plain data; the object keeps all of them.
MOST_POINTS = 2001


@dataclass(frozen=True)
class Curve:
    r"""One set of labels: what is predicted (residual norms at steps 0, 1, ..., where y lies), the network's.

    ``projections[i]`` is :math:`v_i \cdot y`, eigenvectors in the order of the eigenvalues, largest first; None where
    there are no eigenvectors.
    """

    labels: str
    complexity: Estimate | None
    prediction: Prediction
    projections: np.ndarray | None
    trained: Trained | None

    @property
    def predicted(self) -> np.ndarray:
        """The predicted residual norms."""
        return self.prediction.residuals

    @property
    def deviation(self) -> float | None:
        r"""The largest distance of the network's residual norm from the predicted one, over :math:`\|y\|`."""
        if self.trained is None:
            return None
        return float(np.max(np.abs(self.trained.residuals - self.predicted)) / self.predicted[0])


@dataclass(frozen=True)
class Errors:
    """Errors of outputs u on labels y: means of (u - y)^2 and of |u - y|, and the share of wrong signs.

    The last is None where labels are not signs.
    """

    mean_square: float
    mean_absolute: float
    wrong_share: float | None


@dataclass(frozen=True)
class HeldOut:
    """Errors on test samples after the last step, training on the labels given."""

    n: int
    kernel: Errors  # of the infinitely wide network
    network: Errors | None  # of the trained network


@dataclass(frozen=True)
class Share:
    """One share of random labels: the measure, and the error (share of wrong signs) on clean test labels."""

    share: float
    complexity: float
    kernel_error: float  # of the infinitely wide network
    test_error: float | None  # of the trained network


@dataclass(frozen=True)
class TargetBound:
    r"""Of a target: :math:`\sqrt{y^\top H^{-1} y}` as measured, and its bounds."""

    formula: str
    measured: float | None
    bound: float
    sharp_bound: float


@dataclass(frozen=True)
class NTK:
    """The kernel side of a data set, and what training makes of it.

    ``eigenvalues`` are all of them, largest first, where ``counts`` is None; else nodes of their density, each of which
    stands for so many. ``complexity`` is None where the Gram matrix is singular as far as numbers can tell; the notes
    then name the inputs. Distances of Gram matrices are spectral norms.
    """

    n: int
    d: int
    activation: str
    layers: str
    ridge: float
    method: str  # "exact" or "free"
    reason: str  # why that one
    lambda_min: float
    lambda_min_error: float
    lambda_max: float
    lambda_max_error: float
    eigenvalues: np.ndarray
    counts: np.ndarray | None
    complexity: Estimate | None
    eta: float
    steps: int
    curves: tuple[Curve, ...]
    initial_distance: float | None  # ||H(0) - H_infinity||
    final_distance: float | None  # ||H(k) - H_infinity||
    test: HeldOut | None
    shares: tuple[Share, ...]
    target: TargetBound | None
    notes: tuple[str, ...]

    @property
    def largest_eta(self) -> float:
        """Gradient descent diverges at steps beyond it."""
        return 2.0 / self.lambda_max

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, of the measure and the test error over the shares of random labels; None for fewer than three."""
        errors = [each.kernel_error if each.test_error is None else each.test_error for each in self.shares]
        if len(self.shares) < 3 or len(set(errors)) < 2:
            return None
        from scipy.stats import spearmanr

        found: Any = spearmanr([each.complexity for each in self.shares], errors)
        return float(found.statistic)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that do not exist are None."""
        thin = max(1, -(-(self.steps + 1) // MOST_POINTS))
        return {
            "n": self.n,
            "d": self.d,
            "activation": self.activation,
            "layers": self.layers,
            "ridge": self.ridge,
            "method": self.method,
            "reason": self.reason,
            "lambda_min": self.lambda_min,
            "lambda_min_error": self.lambda_min_error,
            "lambda_max": self.lambda_max,
            "lambda_max_error": self.lambda_max_error,
            "complexity": None if self.complexity is None else self.complexity.value,
            "complexity_error": None if self.complexity is None else self.complexity.error,
            "eta": self.eta,
            "largest_eta": self.largest_eta,
            "steps": self.steps,
            "curves": {each.labels: _curve(each, thin) for each in self.curves},
            "initial_gram_distance": self.initial_distance,
            "final_gram_distance": self.final_distance,
            "test": None if self.test is None else asdict(self.test),
            "shares": [vars(each) for each in self.shares],
            "rank_correlation": self.rank_correlation,
            "target": None if self.target is None else vars(self.target),
            "eigenvalues": self.eigenvalues.tolist(),
            "eigenvalues_are": "all" if self.counts is None else "nodes of the density, of eigenvalue_counts each",
            "eigenvalue_counts": None if self.counts is None else self.counts.tolist(),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.n} samples in {self.d} dimensions, {self.activation}, {_LAYERS[self.layers]}"
            + (f", ridge {self.ridge:g}" if self.ridge else ""),
            "",
            f"{'route':<28}{_METHODS[self.method]}: {self.reason}",
            f"{'smallest eigenvalue':<28}{self.lambda_min:.4g} +- {self.lambda_min_error:.1e}",
            f"{'largest eigenvalue':<28}{self.lambda_max:.6g} +- {self.lambda_max_error:.1e}",
            f"{'step size':<28}{self.eta:.4g}, below 2 / lambda_max = {self.largest_eta:.4g}",
        ]
        if self.complexity is not None:
            measure = f"{self.complexity.value:.6g} +- {self.complexity.error:.1e}"
            lines.append(f"{'complexity sqrt(2yH^-1y/n)':<28}{measure}")
        lines += ["", f"{'labels':<10}{'complexity':>12}{f'|y-u| at {self.steps}':>16}{'trained':>12}{'deviation':>11}"]
        lines[-1] += f"{'flipped signs':>15}"
        lines += [_row(each) for each in self.curves]
        if self.initial_distance is not None and self.final_distance is not None:
            lines += [
                "",
                f"||H(0) - H|| = {self.initial_distance:.4g}, ||H({self.steps}) - H|| = {self.final_distance:.4g}",
            ]
        if self.test is not None:
            lines += ["", *_test_rows(self.test)]
        if self.shares:
            lines += ["", f"{'random labels':<16}{'complexity':>12}{'kernel error':>14}{'network error':>15}"]
            for each in self.shares:
                network = "-" if each.test_error is None else f"{each.test_error:.4f}"
                lines.append(f"{each.share:<16.2f}{each.complexity:>12.4f}{each.kernel_error:>14.4f}{network:>15}")
            if self.rank_correlation is not None:
                lines.append(f"rank correlation of complexity and test error: {self.rank_correlation:.3f}")
        if self.target is not None:
            found = "-" if self.target.measured is None else f"{self.target.measured:.4f}"
            lines += [
                "",
                f"target {self.target.formula}: sqrt(yH^-1y) = {found}, below {self.target.sharp_bound:.4f} (sharp) "
                f"and {self.target.bound:.4f} (paper)",
            ]
        return "\n".join([*lines, *([""] if self.notes else []), *self.notes])


_METHODS = {"exact": "exact, all eigenvalues", "free": "matrix-free"}
_LAYERS = {"first": "first layer trained", "second": "second layer trained", "both": "both layers trained"}


def _row(curve: Curve) -> str:
    measure = "-" if curve.complexity is None else f"{curve.complexity.value:.4f}"
    words = f"{curve.labels:<10}{measure:>12}{curve.predicted[-1]:>16.4f}"
    if curve.trained is None or curve.deviation is None:
        return words + f"{'-':>12}{'-':>11}{'-':>15}"
    flips = f"{100.0 * curve.trained.flip_share:.2f}%"
    return words + f"{curve.trained.residuals[-1]:>12.4f}{100.0 * curve.deviation:>10.2f}%{flips:>15}"


def _test_rows(test: HeldOut) -> list[str]:
    title = f"test error, n = {test.n}"
    rows = [f"{title:<24}{'mean (u-y)^2':>14}{'mean |u-y|':>14}{'wrong signs':>14}"]
    for name, errors in (("kernel", test.kernel), ("network", test.network)):
        if errors is not None:
            wrong = "-" if errors.wrong_share is None else f"{errors.wrong_share:.4f}"
            rows.append(f"{name:<24}{errors.mean_square:>14.4g}{errors.mean_absolute:>14.4g}{wrong:>14}")
    return rows


def _curve(curve: Curve, thin: int) -> dict[str, Any]:
    trained = curve.trained
    return {
        "complexity": None if curve.complexity is None else curve.complexity.value,
        "step": list(range(0, len(curve.predicted), thin)),
        "predicted": curve.predicted[::thin].tolist(),
        "predicted_error": curve.prediction.error[::thin].tolist(),
        "trained": None if trained is None else trained.residuals[::thin].tolist(),
        "deviation": curve.deviation,
        "flip_share": None if trained is None else trained.flip_share,
        "width": None if trained is None else trained.width,
        "start": None if trained is None else trained.start,
        "kappa": None if trained is None else trained.kappa,
        "projections": None if curve.projections is None else curve.projections.tolist(),
        "measure": None
        if curve.projections is not None
        else {"eigenvalues": curve.prediction.eigenvalues.tolist(), "weights": curve.prediction.weights.tolist()},
    }
