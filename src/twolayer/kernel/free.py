r"""Beyond memory: quantities of a Gram matrix from its products with vectors, which are made strip by strip.

Lanczos's process from labels y gives, after k products, a rule with k nodes for the measure of y on the spectrum,

.. math:: y^\top f(H)\,y = \sum_i f(\lambda_i)\,(v_i \cdot y)^2 \approx \|y\|^2 \sum_{j \le k} w_j f(\theta_j)

exact for polynomials of degree 2k - 1 (Gauss). The predicted residual and :math:`y^\top H^{-1} y` are such forms. From
random signs in place of y it gives traces of functions, with the scatter of the signs as error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.estimate import Estimate
from twolayer.core.fields import array, choice, count, number
from twolayer.kernel.matrices import apply_profile, unit_rows
from twolayer.kernel.profile import LAYERS, make_profile
from twolayer.problem.activations import Relu, as_activation

# Numbers in a strip of the matrix: what is held beside the inputs.
STRIP = 2**24
# The error of a rule is this many times its distance from one with three quarters of the nodes.
SAFETY = 4.0


class GramProduct:
    """Products of the Gram matrix of unit-norm inputs with vectors; a strip of it is held at a time.

    Each strip is made for the columns from its own on, and used twice, since the matrix is symmetric.
    """

    def __init__(self, X: Any, activation: Any = "relu", *, layers: str = "first", kappa: float | int = 1.0):
        self.inputs, norms = unit_rows(X)
        self.profile = make_profile(as_activation(activation), choice("layers", LAYERS)(layers), float(kappa))
        if np.max(np.abs(norms - 1.0)) > 1e-6 and not isinstance(as_activation(activation), Relu):
            raise InvalidInput("Argument `X` must have rows of unit norm: divide each row by its norm.")
        self.norms = norms if self.profile.is_homogeneous else np.ones_like(norms)

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.inputs)

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """The product with a vector, or with each column of several."""
        U, n = self.inputs, self.n
        scaled = self.norms.reshape((-1,) + (1,) * (vector.ndim - 1)) * vector
        result = np.zeros_like(scaled)
        rows = max(1, STRIP // n)
        for first in range(0, n, rows):
            last = min(first + rows, n)
            strip = U[first:last] @ U[first:].T
            apply_profile(strip, U[first:last], U[first:], self.profile)
            result[first:last] += strip @ scaled[first:]
            result[last:] += strip[:, last - first :].T @ scaled[first:last]
        return self.norms.reshape((-1,) + (1,) * (vector.ndim - 1)) * result


@dataclass(frozen=True)
class SpectralRule:
    """Nodes and weights for the measure of a vector on the spectrum, and those of a rule that is coarser."""

    nodes: np.ndarray
    weights: np.ndarray
    coarser_nodes: np.ndarray
    coarser_weights: np.ndarray

    def form(self, function: Callable[[np.ndarray], Any]) -> Estimate:
        r"""The form :math:`y^\top f(H)\,y`; the error is an estimate, from the coarser rule."""
        value = np.asarray(function(self.nodes)) @ self.weights
        coarse = np.asarray(function(self.coarser_nodes)) @ self.coarser_weights
        rounding = 1e-13 * np.abs(value)
        return Estimate(value, SAFETY * np.abs(value - coarse) + rounding)

    def inverse_form(self) -> Estimate:
        r""":math:`y^\top H^{-1} y`, which a Gauss rule meets from below."""
        if self.nodes[0] <= 0.0:
            raise ComputationFailed("The Gram matrix is singular as far as numbers can tell: there is no inverse.")
        return self.form(lambda theta: 1.0 / theta)

    def complexity(self, n: int) -> Estimate:
        r"""The measure :math:`\sqrt{2\,y^\top H^{-1} y / n}`."""
        form = self.inverse_form()
        value = float(np.sqrt(2.0 * form.value / n))
        return Estimate(value, float(np.sqrt(2.0 * (form.value + form.error) / n)) - value)

    def residuals(self, steps: Any, eta: float | int) -> Estimate:
        r"""The predicted norms :math:`\|y - u(k)\|` at the given steps of gradient descent."""
        eta = float(number("eta", above=0.0)(eta))
        if eta >= 2.0 / self.nodes[-1]:
            raise InvalidInput(
                f"Argument `eta` must be below 2 / lambda_max = {2.0 / self.nodes[-1]:.6g}, or gradient descent "
                f"diverges, but is {eta:g}."
            )
        k = array("steps", 1)(steps)
        squares = self.form(lambda theta: np.abs(1.0 - eta * theta)[None, :] ** (2.0 * k[:, None]))
        norms = np.sqrt(np.maximum(squares.value, 0.0))
        return Estimate(norms, np.sqrt(np.maximum(squares.value, 0.0) + squares.error) - norms)


def lanczos(product: Callable[[np.ndarray], np.ndarray], y: Any, nodes: Any = 100) -> SpectralRule:
    """The rule for a vector, by so many products; all directions are kept orthogonal, n times ``nodes`` numbers."""
    y = array("y", 1)(y)
    nodes = min(count("nodes", low=2)(nodes), len(y))
    length = float(np.linalg.norm(y))
    if length == 0.0:
        raise InvalidInput("Argument `y` must not be zero everywhere.")
    basis = np.zeros((nodes, len(y)))
    diagonal, beside = [], []
    basis[0] = y / length
    for k in range(nodes):
        moved = product(basis[k])
        diagonal.append(float(moved @ basis[k]))
        for _ in range(2):  # once leaves rounding along directions that have converged
            moved = moved - basis[: k + 1].T @ (basis[: k + 1] @ moved)
        size = float(np.linalg.norm(moved))
        if k + 1 == nodes or size < 1e-13 * max(map(abs, diagonal)):
            break
        beside.append(size)
        basis[k + 1] = moved / size
    found = len(diagonal)
    few = found if found < nodes else max(1, 3 * found // 4)  # a process that ends early is exact
    return SpectralRule(*_gauss(diagonal, beside, found, length), *_gauss(diagonal, beside, few, length))


def _gauss(diagonal: list[float], beside: list[float], size: int, length: float) -> tuple[np.ndarray, np.ndarray]:
    from scipy.linalg import eigh_tridiagonal

    values, vectors = eigh_tridiagonal(np.array(diagonal[:size]), np.array(beside[: size - 1]))
    return values, length**2 * vectors[0] ** 2


def trace(
    product: Callable[[np.ndarray], np.ndarray],
    n: int,
    function: Callable[[np.ndarray], np.ndarray],
    *,
    probes: Any = 16,
    nodes: Any = 50,
    seed: int = 0,
) -> Estimate:
    r"""The trace of a function of the matrix, :math:`\sum_i f(\lambda_i)`, by stochastic Lanczos quadrature.

    The error is four standard errors over the random signs plus the largest error of a rule.
    """
    rng = np.random.default_rng([count("seed", low=0)(seed), 3])
    found = [
        lanczos(product, rng.choice([-1.0, 1.0], n), nodes).form(function)
        for _ in range(count("probes", low=2)(probes))
    ]
    values = np.array([float(each.value) for each in found])
    scatter = 4.0 * float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return Estimate(float(np.mean(values)), scatter + max(float(each.error) for each in found))
