r"""The spectrum of a Gram matrix, and the predictions for training that follow from it.

With :math:`H = \sum_i \lambda_i v_i v_i^\top`, gradient descent of step :math:`\eta` from outputs of zero leaves

.. math:: \|y - u(k)\| = \sqrt{\textstyle\sum_i (1 - \eta\lambda_i)^{2k} (v_i \cdot y)^2}, \qquad
          \|y - u(t)\| = \sqrt{\textstyle\sum_i e^{-2\lambda_i t} (v_i \cdot y)^2} \quad (\text{flow},\ t = \eta k)

and the test loss of the trained network is below :math:`\sqrt{2\,y^\top H^{-1} y / n}` up to terms that vanish with n.
"""

from dataclasses import dataclass

import numpy as np

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.estimate import Estimate
from twolayer.core.memory_limit import available_memory, bytes_in_words
from twolayer.core.types import NumbersLike
from twolayer.kernel.free import FreeSpectrum, free_spectrum
from twolayer.kernel.matrices import gram_with_error
from twolayer.kernel.solve import Solved, smallest_eigenvalue
from twolayer.kernel.spectra import (
    EIGENVALUE_ERROR,
    EPSILON,
    AbstractSpectrum,
    ResidualPrediction,
    as_measure,
    coefficient_factor,
    explain_singular,
    matrix_error,
    step_numbers,
)
from twolayer.problem.activations import ActivationLike
from twolayer.specification.fields import array, number

METHODS = ("auto", "exact", "free")
# Two matrices of this many rows take 6.4 GB in double precision; more does not fit usual machines.
MOST_ROWS = 20_000
# Columns of a panel of Cholesky's factor.
FACTOR_PANEL = 512


@dataclass(frozen=True)
class Spectrum(AbstractSpectrum):
    """Eigenvalues (largest first) and eigenvectors (columns) of a symmetric Gram matrix with its ridge added.

    ``uncertainty`` bounds the distance, in the operator norm, of the decomposed matrix from the exact one.
    """

    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    uncertainty: float
    ridge: float = 0.0

    @property
    def n(self) -> int:
        return self.eigenvalues.size

    @property
    def lambda_min(self) -> float:
        return float(self.eigenvalues[-1])

    @property
    def lambda_max(self) -> float:
        return float(self.eigenvalues[0])

    def projections(self, y: NumbersLike) -> np.ndarray:
        r"""The components :math:`v_i \cdot y` of labels along the eigenvectors; several sets of labels are columns."""
        return self.eigenvectors.T @ self._labels(y)

    def predictions(
        self, Y: NumbersLike, steps: NumbersLike, eta: NumbersLike | None = None
    ) -> list[ResidualPrediction]:
        eta, k = self.check_step(eta), step_numbers(steps)
        factors = np.abs(1.0 - eta * self.eigenvalues)
        predictions = []
        for projected in self.projections(Y).T:
            # No step lengthens the residual, so that each step adds at most the distance of the matrices.
            error = k * eta * self.uncertainty * float(np.linalg.norm(projected))
            predictions.append(ResidualPrediction(_norms(factors, k, projected), error, self.eigenvalues, projected**2))
        return predictions

    def flow(self, y: NumbersLike, times: NumbersLike) -> np.ndarray:
        r"""The predicted norm :math:`\|y - u(t)\|` of gradient flow at given times :math:`t = \eta k`."""
        times = array("times", 1)(times)
        return np.sqrt(np.exp(-2.0 * np.outer(times, self.eigenvalues)) @ self.projections(y) ** 2)

    def outputs(self, y: NumbersLike, k: int, eta: NumbersLike | None = None) -> np.ndarray:
        r"""The predicted outputs :math:`u(k) = (I - (I - \eta H)^k)\,y`."""
        eta = self.check_step(eta)
        kept = 1.0 - (1.0 - eta * self.eigenvalues) ** int(k)
        return self.eigenvectors @ (kept * self.projections(y))

    def coefficients(self, y: NumbersLike, k: int | None = None, eta: NumbersLike | None = None) -> np.ndarray:
        if k is None:
            self.require_inverse()
            kept = 1.0 / self.eigenvalues
        else:
            kept = coefficient_factor(self.eigenvalues, self.check_step(eta), k)
        projected = self.projections(y)
        return self.eigenvectors @ (kept.reshape((-1,) + (1,) * (projected.ndim - 1)) * projected)

    def inverse_forms(self, Y: NumbersLike) -> list[Estimate]:
        r""":math:`y^\top H^{-1} y` of each column; its error is :math:`\|\delta H\|\,\|H^{-1}y\|^2` to first order."""
        self.require_inverse()
        projected = self.projections(array("y", 2)(Y))
        values = np.sum(projected**2 / self.eigenvalues[:, None], axis=0)
        slopes = np.sum((projected / self.eigenvalues[:, None]) ** 2, axis=0)
        # Beyond first order: each eigenvalue may be smaller by the whole uncertainty.
        margin = 1.0 - self.uncertainty / self.lambda_min
        pairs = zip(values, slopes, strict=True)
        return [Estimate(float(value), float(self.uncertainty * slope / margin)) for value, slope in pairs]


def _norms(factors: np.ndarray, k: np.ndarray, projected: np.ndarray) -> np.ndarray:
    """The norms of the residual at several steps, in blocks of steps; zero to the power zero is one."""
    squares = projected**2
    with np.errstate(divide="ignore"):
        logarithms = np.maximum(np.log(factors), -1e300)
    block = max(1, 2**22 // len(factors))
    parts = [np.exp(2.0 * np.outer(k[i : i + block], logarithms)) @ squares for i in range(0, len(k), block)]
    return np.sqrt(np.concatenate(parts))


def decompose(H: NumbersLike, ridge: float | int = 0.0, *, overwrite: bool = False, error: float = 0.0) -> Spectrum:
    """The spectrum of a symmetric matrix, by LAPACK's relatively robust representations.

    Parameters
    ----------
    H
        A symmetric float64 array.
    ridge
        A number added to the diagonal, zero by default.
    overwrite
        Whether the matrix may be overwritten: memory then holds two matrices instead of three.
    error
        Bound on the error of an entry beyond rounding.

    Returns
    -------
    Eigenvalues, eigenvectors and their uncertainty.
    """
    from scipy.linalg import eigh

    ridge = float(number("ridge", low=0.0)(ridge))
    H = array("H", 2)(H)
    if H.shape[0] != H.shape[1]:
        raise InvalidInput(f"Argument `H` must be a square matrix, but has shape {H.shape}.")
    H = H if overwrite and H.flags.c_contiguous else H.copy()
    largest = float(np.max(np.abs(np.diagonal(H)), initial=0.0))
    if ridge:
        H[np.diag_indices_from(H)] += ridge
    # The transpose of a C array is what LAPACK works on: no copy is made.
    values, vectors = eigh(H.T, overwrite_a=True, driver="evr", check_finite=False)
    largest_value = float(values[-1])
    uncertainty = matrix_error(len(H), largest, error) + EIGENVALUE_ERROR * EPSILON * largest_value
    return Spectrum(values[::-1], vectors[:, ::-1], uncertainty, ridge)


def spectrum(
    X: NumbersLike,
    activation: ActivationLike = "relu",
    *,
    layers: str = "first",
    kappa: float | int = 1.0,
    ridge: float | int = 0.0,
) -> Spectrum:
    """The spectrum of the Gram matrix of a data set, by `gram` and `decompose`; memory holds at most two matrices.

    Methods that need the inverse raise `ComputationFailed` where the matrix is singular within its error;
    `explain_singular` names the pairs of parallel inputs that make it so.
    """
    X = array("X", 2)(X)
    check_rows(len(X))
    H, error = gram_with_error(X, activation, layers, kappa)
    return decompose(H, ridge, overwrite=True, error=error)


def check_rows(n: int) -> None:
    """Raise `InvalidInput` for more samples than the exact method can hold in memory."""
    if n > MOST_ROWS:
        raise InvalidInput(
            f"Argument `X` must have at most {MOST_ROWS} rows for the exact spectrum, which holds two matrices of that "
            f'size, but has {n}: take a subset, or `free_spectrum` (`method="free"`).'
        )


def choose_method(method: str, n: int, matrices: int = 2) -> tuple[str, str]:
    """The exact or the matrix-free method for this number of samples, and the reason in words."""
    if method == "exact":
        check_rows(n)
    if method != "auto":
        return method, "as asked"
    if n > MOST_ROWS:
        return "free", f"n = {n} is beyond {MOST_ROWS}"
    need, there = 8.0 * matrices * n**2, available_memory()
    if need > there:
        return (
            "free",
            f"{matrices} matrices of {n} rows need {bytes_in_words(need)}, and {bytes_in_words(there)} are there",
        )
    return "exact", f"{matrices} matrices of {n} rows fit the memory"


def complexity(
    X: NumbersLike,
    y: NumbersLike,
    activation: ActivationLike = "relu",
    *,
    ridge: float | int = 0.0,
    method: str = "auto",
) -> float:
    r"""The complexity measure :math:`\sqrt{2\,y^\top (H^\infty)^{-1} y / n}` of labels on inputs.

    `measure` is the same with a bound on its error.

    References
    ----------
    :cite:t:`arora2019`, theorem 5.1.
    """
    return measure(X, y, activation, ridge=ridge, method=method).value


def measure(
    X: NumbersLike,
    y: NumbersLike,
    activation: ActivationLike = "relu",
    *,
    layers: str = "first",
    kappa: float | int = 1.0,
    ridge: float | int = 0.0,
    method: str = "auto",
) -> Estimate:
    r"""The complexity measure of labels with a bound on its numerical error, without the spectrum.

    It uses Cholesky's factor, with one matrix and a twentieth of the time of the spectrum, or no matrix where that does
    not fit (see `free_spectrum`). The smallest eigenvalue, which the error needs, comes from solves with random
    vectors.
    """
    X, y = array("X", 2)(X), array("y", 1)(y)
    if len(y) != len(X):
        raise InvalidInput(f"Argument `y` must have one label per sample ({len(X)}), but has shape {y.shape}.")
    if choose_method(method, len(X), 1)[0] == "free":
        kernel_spectrum = free_spectrum(X, activation, layers=layers, kappa=kappa, ridge=ridge)
        _require(kernel_spectrum, X)
        return kernel_spectrum.complexity(y)
    ridge = float(number("ridge", low=0.0)(ridge))
    H, error = gram_with_error(X, activation, layers, kappa)
    largest = float(np.max(np.diagonal(H)))
    H[np.diag_indices_from(H)] += ridge
    return as_measure(_by_cholesky(H, y, matrix_error(len(H), largest, error), X), len(X))


def _by_cholesky(H: np.ndarray, y: np.ndarray, uncertainty: float, X: np.ndarray) -> Estimate:
    """The form :math:`y^T H^{-1} y` by Cholesky's factor; the matrix is overwritten."""
    from scipy.linalg import LinAlgError, cho_solve

    # The computed factor is exact for a matrix that differs by at most a few last digits of the trace.
    uncertainty += EIGENVALUE_ERROR * EPSILON * float(np.trace(H))
    try:
        # The transpose of a C array is what LAPACK works on: no copy is made.
        factor = (lower_factor(H).T, False)
    except LinAlgError:
        raise ComputationFailed(
            "The Gram matrix is singular as far as double precision can tell: it has no Cholesky factor. Remove "
            f"parallel inputs, or ask for a ridge. {explain_singular(X)}"
        ) from None

    def solve(vectors: np.ndarray) -> Solved:
        return Solved(cho_solve(factor, vectors, check_finite=False), np.zeros_like(vectors), 1, True)

    smallest = smallest_eigenvalue(solve, len(y))
    low = float(smallest.value - smallest.error)
    if low <= uncertainty:
        raise ComputationFailed(
            f"The Gram matrix is singular as far as double precision can tell: lambda_min = {smallest.value:.2g} with "
            f"an uncertainty of {uncertainty:.2g}. Remove parallel inputs, or ask for a ridge. {explain_singular(X)}"
        )
    x = solve(y).solutions
    return Estimate(float(y @ x), uncertainty * float(x @ x) / (1.0 - uncertainty / low))


def lower_factor(H: np.ndarray) -> np.ndarray:
    """Cholesky's factor L of H = L L^T, in place, panel by panel; entries above the diagonal do not change.

    LAPACK is called for panels only: on two threads its own factorisation of 20,000 rows ends in a segmentation fault,
    as syrk does (see `gram`).
    """
    from scipy.linalg import cholesky, solve_triangular

    for first in range(0, len(H), FACTOR_PANEL):
        last = min(first + FACTOR_PANEL, len(H))
        H[first:, first:last] -= H[first:, :first] @ H[first:last, :first].T
        corner = cholesky(H[first:last, first:last], lower=True, check_finite=False)
        H[first:last, first:last] = corner
        if last < len(H):
            below = solve_triangular(corner, H[last:, first:last].T, lower=True, check_finite=False)
            H[last:, first:last] = below.T
    return H


def _require(kernel_spectrum: AbstractSpectrum, X: np.ndarray) -> None:
    """Raise `ComputationFailed` for a singular matrix, with the names of the parallel inputs."""
    try:
        kernel_spectrum.require_inverse()
    except ComputationFailed as failure:
        raise ComputationFailed(f"{failure} {explain_singular(X)}", kernel_spectrum) from None


def residuals(
    X: NumbersLike,
    y: NumbersLike,
    eta: NumbersLike,
    steps: NumbersLike,
    activation: ActivationLike = "relu",
    *,
    method: str = "auto",
) -> np.ndarray:
    r"""The predicted norm :math:`\|y - u(k)\|` of the residual at steps 0, 1, ..., ``steps`` of gradient descent.

    A step size of :math:`2/\lambda_{\max}` or more, at which gradient descent diverges, raises `InvalidInput`.

    References
    ----------
    :cite:t:`arora2019`, theorem 4.1.
    """
    X = array("X", 2)(X)
    kernel_spectrum: Spectrum | FreeSpectrum
    if choose_method(method, len(X))[0] == "free":
        kernel_spectrum = free_spectrum(X, activation)
    else:
        kernel_spectrum = spectrum(X, activation)
    return kernel_spectrum.residuals(y, steps, eta)
