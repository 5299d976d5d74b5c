r"""The spectrum of a Gram matrix, and what it says before anything is trained.

With :math:`H = \sum_i \lambda_i v_i v_i^\top`, gradient descent of step :math:`\eta` from outputs of zero leaves

.. math:: \|y - u(k)\| = \sqrt{\textstyle\sum_i (1 - \eta\lambda_i)^{2k} (v_i \cdot y)^2}, \qquad
          \|y - u(t)\| = \sqrt{\textstyle\sum_i e^{-2\lambda_i t} (v_i \cdot y)^2} \quad (\text{flow},\ t = \eta k)

and the test loss of the trained network is below :math:`\sqrt{2\,y^\top H^{-1} y / n}` up to terms that vanish with n.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.estimate import Estimate
from twolayer.core.fields import array, count, number
from twolayer.kernel.matrices import gram_with_error, parallel_pairs

EPSILON = float(np.finfo(float).eps)
# Of an entry of the matrix, in units of the last digit of the largest: inner products of some thousand terms.
ENTRY_ERROR = 8.0
# Of the eigenvalues, in units of the last digit of the largest, with a margin.
EIGENVALUE_ERROR = 16.0
# Double precision holds two matrices of this many rows in 6.4 GB; beyond, the exact route does not fit usual machines.
MOST_ROWS = 20_000


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues (largest first) and eigenvectors (columns) of a symmetric Gram matrix with its ridge added.

    ``uncertainty`` bounds how far, in the operator norm, the matrix that was decomposed is from the exact one.
    """

    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    uncertainty: float
    ridge: float = 0.0

    @property
    def n(self) -> int:
        """The number of samples."""
        return self.eigenvalues.size

    @property
    def lambda_min(self) -> float:
        """The smallest eigenvalue; below ``uncertainty`` it is not known to be positive."""
        return float(self.eigenvalues[-1])

    @property
    def lambda_max(self) -> float:
        """The largest eigenvalue."""
        return float(self.eigenvalues[0])

    @property
    def is_singular(self) -> bool:
        """Whether the smallest eigenvalue is zero as far as numbers can tell."""
        return bool(self.lambda_min <= self.uncertainty)

    @property
    def largest_step(self) -> float:
        """Gradient descent diverges at steps beyond it."""
        return 2.0 / self.lambda_max

    def check_step(self, eta: Any) -> float:
        """The step, or a refusal of one at which gradient descent diverges; half of the largest when it is None."""
        if eta is None:
            return 0.5 * self.largest_step
        eta = float(number("eta", above=0.0)(eta))
        if eta >= self.largest_step:
            raise InvalidInput(
                f"Argument `eta` must be below 2 / lambda_max = {self.largest_step:.6g}, or gradient descent diverges, "
                f"but is {eta:g}."
            )
        return eta

    def projections(self, y: Any) -> np.ndarray:
        r"""The components :math:`v_i \cdot y` of labels, eigenvector after eigenvector; columns are several labels."""
        return self.eigenvectors.T @ self._labels(y)

    def residuals(self, y: Any, steps: Any, eta: Any = None) -> np.ndarray:
        r"""The predicted norm :math:`\|y - u(k)\|` at each of the given steps (a number: at 0, 1, ..., steps)."""
        eta, k = self.check_step(eta), _steps(steps)
        return _norms(np.abs(1.0 - eta * self.eigenvalues), k, self.projections(y))

    def flow(self, y: Any, times: Any) -> np.ndarray:
        r"""The predicted norm :math:`\|y - u(t)\|` of gradient flow at given times :math:`t = \eta k`."""
        times = array("times", 1)(times)
        return np.sqrt(np.exp(-2.0 * np.outer(times, self.eigenvalues)) @ self.projections(y) ** 2)

    def outputs(self, y: Any, k: int, eta: Any = None) -> np.ndarray:
        r"""The predicted outputs :math:`u(k) = (I - (I - \eta H)^k)\,y`."""
        eta = self.check_step(eta)
        kept = 1.0 - (1.0 - eta * self.eigenvalues) ** int(k)
        return self.eigenvectors @ (kept * self.projections(y))

    def coefficients(self, y: Any, k: int | None = None, eta: Any = None) -> np.ndarray:
        r"""What multiplies the kernel in the prediction at another input: :math:`H^{-1} u(k)`; its limit without k."""
        if k is None:
            self.require_inverse()
            kept = 1.0 / self.eigenvalues
        else:
            rates = self.check_step(eta) * self.eigenvalues
            # (1 - (1 - rate)^k) / lambda, which has a limit at lambda = 0.
            with np.errstate(divide="ignore", invalid="ignore"):
                kept = (1.0 - (1.0 - rates) ** int(k)) / self.eigenvalues
            kept = np.where(np.abs(rates) * k < 1e-12, self.check_step(eta) * k, kept)
        projected = self.projections(y)
        return self.eigenvectors @ (kept.reshape((-1,) + (1,) * (projected.ndim - 1)) * projected)

    def inverse_form(self, y: Any) -> Estimate:
        r""":math:`y^\top H^{-1} y` with a bound on its error, :math:`\|\delta H\|\,\|H^{-1}y\|^2` to first order."""
        self.require_inverse()
        projected = self.projections(y)
        value = float(np.sum(projected**2 / self.eigenvalues))
        slope = float(np.sum((projected / self.eigenvalues) ** 2))
        # Beyond first order: each eigenvalue may be smaller by the whole uncertainty.
        margin = 1.0 - self.uncertainty / self.lambda_min
        return Estimate(value, self.uncertainty * slope / margin)

    def complexity(self, y: Any) -> Estimate:
        r"""The measure :math:`\sqrt{2\,y^\top H^{-1} y / n}` with a bound on its numerical error."""
        form = self.inverse_form(y)
        value = np.sqrt(2.0 * form.value / self.n)
        low = np.sqrt(max(2.0 * (form.value - form.error) / self.n, 0.0))
        return Estimate(float(value), float(value - low))

    def require_inverse(self) -> None:
        """Refuse a matrix that is singular as far as numbers can tell."""
        if self.is_singular:
            raise ComputationFailed(
                f"The Gram matrix is singular as far as double precision can tell: lambda_min = {self.lambda_min:.2g} "
                f"with an uncertainty of {self.uncertainty:.2g}, lambda_max = {self.lambda_max:.4g}. Remove parallel "
                "inputs, or ask for a ridge.",
                self,
            )

    def _labels(self, y: Any) -> np.ndarray:
        y = array("y", np.ndim(y) if np.ndim(y) in (1, 2) else 1)(y)
        if len(y) != self.n:
            raise InvalidInput(f"Argument `y` must have one label per sample ({self.n}), but has shape {y.shape}.")
        return y


def _steps(steps: Any) -> np.ndarray:
    if np.ndim(steps) == 0:
        return np.arange(count("steps", low=0, high=10**7)(steps) + 1, dtype=float)
    return array("steps", 1)(steps)


def _norms(factors: np.ndarray, k: np.ndarray, projected: np.ndarray) -> np.ndarray:
    """Norms at several steps, in blocks of them; zero to the power zero is one."""
    squares = projected**2
    with np.errstate(divide="ignore"):
        logarithms = np.maximum(np.log(factors), -1e300)
    block = max(1, 2**22 // len(factors))
    parts = [np.exp(2.0 * np.outer(k[i : i + block], logarithms)) @ squares for i in range(0, len(k), block)]
    return np.sqrt(np.concatenate(parts))


def decompose(H: Any, ridge: float | int = 0.0, *, overwrite: bool = False, error: float = 0.0) -> Spectrum:
    """The spectrum of a symmetric matrix, by LAPACK's relatively robust representations.

    Parameters
    ----------
    H
        A symmetric float64 array.
    ridge
        Added to the diagonal; nothing is added unless asked.
    overwrite
        Whether the matrix may be destroyed: two matrices are held then, three otherwise.
    error
        Bound on the error of an entry beyond rounding.

    Returns
    -------
    Eigenvalues, eigenvectors and how well they are known.
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
    entries = len(H) * (ENTRY_ERROR * EPSILON * largest + error)
    return Spectrum(values[::-1], vectors[:, ::-1], entries + EIGENVALUE_ERROR * EPSILON * largest_value, ridge)


def spectrum(
    X: Any, activation: Any = "relu", *, layers: str = "first", kappa: float | int = 1.0, ridge: float | int = 0.0
) -> Spectrum:
    """The spectrum of the Gram matrix of a data set, by `gram` and `decompose`; two matrices are held at most.

    A matrix that is singular as far as numbers can tell, without a ridge, is refused by what needs its inverse; the
    pairs of parallel inputs that make it so are named by `explain_singular`.
    """
    X = array("X", 2)(X)
    check_size(len(X))
    H, error = gram_with_error(X, activation, layers, kappa)
    return decompose(H, ridge, overwrite=True, error=error)


def check_size(n: int) -> None:
    """Refuse what the exact route cannot hold."""
    if n > MOST_ROWS:
        raise InvalidInput(
            f"Argument `X` must have at most {MOST_ROWS} rows for the exact spectrum, which holds two matrices of that "
            f"size, but has {n}: take a subset, or use `kernel.lanczos`."
        )


def explain_singular(X: Any, labels: Any = None) -> str:
    """A sentence that names the parallel inputs behind a singular Gram matrix, or says that there are none."""
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


def complexity(X: Any, y: Any, activation: Any = "relu", *, ridge: float | int = 0.0) -> float:
    r"""The complexity measure :math:`\sqrt{2\,y^\top (H^\infty)^{-1} y / n}` of labels on inputs.

    ``spectrum(X).complexity(y)`` is the same with a bound on its error.

    References
    ----------
    :cite:t:`arora2019`, theorem 5.1.
    """
    return inverse_of(X, activation, ridge).complexity(y).value


def inverse_of(X: Any, activation: Any = "relu", ridge: float | int = 0.0) -> Spectrum:
    """The spectrum, with parallel inputs named where there is no inverse."""
    found = spectrum(X, activation, ridge=ridge)
    if found.is_singular:
        try:
            found.require_inverse()
        except ComputationFailed as failure:
            raise ComputationFailed(f"{failure} {explain_singular(X)}", found) from None
    return found


def residuals(X: Any, y: Any, eta: Any, steps: Any, activation: Any = "relu") -> np.ndarray:
    r"""The predicted norm :math:`\|y - u(k)\|` of the residual at steps 0, 1, ..., ``steps`` of gradient descent.

    A step size of :math:`2/\lambda_{\max}` or more, at which gradient descent diverges, is refused.

    References
    ----------
    :cite:t:`arora2019`, theorem 4.1.
    """
    return spectrum(X, activation).residuals(y, steps, eta)
