"""The interface of spectra, exact ones and those from products with vectors: extremes, predictions, the measure."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.estimate import Estimate
from twolayer.core.types import NumbersLike
from twolayer.kernel.matrices import parallel_pairs
from twolayer.specification.fields import array, count, number

EPSILON = float(np.finfo(float).eps)
# The error of an entry of the matrix, in units of the last digit of the largest: inner products of about 1000 terms.
ENTRY_ERROR = 8.0
# The error of the eigenvalues, in units of the last digit of the largest, with a margin.
EIGENVALUE_ERROR = 16.0


def matrix_error(n: int, largest_entry: float, entry_error: float) -> float:
    """A bound on the distance, in the operator norm, of a computed matrix from the exact one."""
    return n * (ENTRY_ERROR * EPSILON * largest_entry + entry_error)


@dataclass(frozen=True)
class ResidualPrediction:
    r"""The prediction for one set of labels: norms :math:`\|y - u(k)\|`, errors, and the measure of y on the spectrum.

    ``weights[i]`` is the part of :math:`\|y\|^2` at ``eigenvalues[i]``, largest first: an eigenvalue of the matrix, or
    a node of a rule.
    """

    residuals: np.ndarray
    error: np.ndarray
    eigenvalues: np.ndarray
    weights: np.ndarray


class AbstractSpectrum(ABC):
    """A Gram matrix with its ridge added, through its eigenvalues or through its products with vectors."""

    # A bound on the distance, in the operator norm, of the matrix from the exact one.
    uncertainty: float
    ridge: float

    @property
    @abstractmethod
    def n(self) -> int:
        """The number of samples."""

    @property
    @abstractmethod
    def lambda_min(self) -> float:
        """The smallest eigenvalue; if it is below ``lambda_min_error``, it may not be positive."""

    @property
    @abstractmethod
    def lambda_max(self) -> float:
        """The largest eigenvalue."""

    @property
    def lambda_min_error(self) -> float:
        """A bound on the error of the smallest eigenvalue."""
        return self.uncertainty

    @property
    def lambda_max_error(self) -> float:
        """A bound on the error of the largest eigenvalue."""
        return self.uncertainty

    @property
    def is_singular(self) -> bool:
        """Whether the smallest eigenvalue is zero within its error."""
        return bool(self.lambda_min <= self.lambda_min_error)

    @property
    def largest_step(self) -> float:
        """The step size at and above which gradient descent diverges."""
        return 2.0 / self.lambda_max

    def check_step(self, eta: NumbersLike | None) -> float:
        """The checked step size, below that at which gradient descent diverges; half of that one by default."""
        if eta is None:
            return 0.5 * self.largest_step
        eta = float(number("eta", above=0.0)(eta))
        if eta >= self.largest_step:
            raise InvalidInput(
                f"Argument `eta` must be below 2 / lambda_max = {self.largest_step:.6g}, or gradient descent diverges, "
                f"but is {eta:g}."
            )
        return eta

    @abstractmethod
    def predictions(
        self, Y: NumbersLike, steps: NumbersLike, eta: NumbersLike | None = None
    ) -> list[ResidualPrediction]:
        """The predictions for each column of labels at the given steps; a number means 0, 1, ..., steps."""

    def residuals(self, y: NumbersLike, steps: NumbersLike, eta: NumbersLike | None = None) -> np.ndarray:
        r"""The predicted norm :math:`\|y - u(k)\|` at the given steps; a number means 0, 1, ..., steps."""
        return self.predictions(self._labels(array("y", 1)(y))[:, None], steps, eta)[0].residuals

    @abstractmethod
    def coefficients(self, y: NumbersLike, k: int | None = None, eta: NumbersLike | None = None) -> np.ndarray:
        r"""The coefficients of the kernel in predictions at other inputs, :math:`H^{-1} u(k)`; their limit without k.

        Several sets of labels are columns.
        """

    @abstractmethod
    def inverse_forms(self, Y: NumbersLike) -> list[Estimate]:
        r""":math:`y^\top H^{-1} y` of each column, with a bound on its error."""

    def inverse_form(self, y: NumbersLike) -> Estimate:
        r""":math:`y^\top H^{-1} y` with a bound on its error."""
        return self.inverse_forms(self._labels(array("y", 1)(y))[:, None])[0]

    def complexity(self, y: NumbersLike) -> Estimate:
        r"""The measure :math:`\sqrt{2\,y^\top H^{-1} y / n}` with a bound on its numerical error."""
        return as_measure(self.inverse_form(y), self.n)

    def require_inverse(self) -> None:
        """Raise `ComputationFailed` if the matrix is singular within its error."""
        if self.is_singular:
            raise ComputationFailed(
                f"The Gram matrix is singular as far as double precision can tell: lambda_min = {self.lambda_min:.2g} "
                f"with an uncertainty of {self.lambda_min_error:.2g}, lambda_max = {self.lambda_max:.4g}. Remove "
                "parallel inputs, or ask for a ridge.",
                self,
            )

    def _labels(self, y: Any) -> np.ndarray:
        y = array("y", np.ndim(y) if np.ndim(y) in (1, 2) else 1)(y)
        if len(y) != self.n:
            raise InvalidInput(f"Argument `y` must have one label per sample ({self.n}), but has shape {y.shape}.")
        return y


def as_measure(form: Estimate, n: int) -> Estimate:
    r"""The measure :math:`\sqrt{2\,y^\top H^{-1} y / n}` from the form :math:`y^\top H^{-1} y`."""
    value = float(np.sqrt(2.0 * form.value / n))
    low = float(np.sqrt(max(2.0 * (form.value - form.error) / n, 0.0)))
    return Estimate(value, value - low)


def step_numbers(steps: NumbersLike) -> np.ndarray:
    """The steps as an array: those given, or 0, 1, ... up to a number."""
    if np.ndim(steps) == 0:
        return np.arange(count("steps", low=0, high=10**7)(steps) + 1, dtype=float)
    return array("steps", 1)(steps)


def coefficient_factor(eigenvalues: np.ndarray, eta: float, k: int) -> np.ndarray:
    r""":math:`(1 - (1 - \eta\lambda)^k)/\lambda`, which has the limit :math:`\eta k` at zero."""
    rates = eta * eigenvalues
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = (1.0 - (1.0 - rates) ** int(k)) / eigenvalues
    return np.where(np.abs(rates) * k < 1e-12, eta * k, kept)


def explain_singular(X: NumbersLike, labels: NumbersLike | None = None) -> str:
    """A sentence that names the parallel inputs that make a Gram matrix singular, or says that there are none."""
    pairs = parallel_pairs(X)
    if not pairs:
        return "No two inputs are parallel: the matrix is singular because there are many more samples than directions."
    shown = ", ".join(f"{i} and {j}" for i, j in pairs[:5])
    more = f" and {len(pairs) - 5} more pairs" if len(pairs) > 5 else ""
    words = f"Parallel inputs: {shown}{more}."
    if labels is not None:
        y = array("y", 1)(labels)
        opposed = [pair for pair in pairs if y[pair[0]] != y[pair[1]]]
        words += f" In {len(opposed)} of {len(pairs)} the labels differ: no network can fit them." if opposed else ""
    return words
