r"""Lanczos's process: functions of a symmetric matrix applied to vectors, from its products with them.

Started from labels y it gives, after k products, a rule with k nodes for the measure of y on the spectrum,

.. math:: y^\top f(H)\,y = \sum_i f(\lambda_i)\,(v_i \cdot y)^2 \approx \|y\|^2 \sum_{j \le k} w_j f(\theta_j)

exact for polynomials of degree 2k - 1 (Gauss), and :math:`f(H)\,y` itself, exact for those of degree k - 1. The
predicted residual and :math:`y^\top H^{-1} y` are such forms. With random signs instead of y it gives traces of
functions, and their error from the scatter over the signs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.estimate import Estimate
from twolayer.core.types import NumbersLike
from twolayer.specification.fields import array, count, number

Product = Callable[[np.ndarray], np.ndarray]
# The error of a rule is this factor times its distance from a rule with three quarters of the nodes.
SAFETY = 4.0
# The process ends when the next direction is below this fraction of the largest coefficient, which is rounding.
ENDED = 1e-13


@dataclass(frozen=True)
class SpectralRule:
    """Nodes (smallest first) and weights for the measure of a vector on the spectrum, and those of a coarser rule."""

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
        r"""The form :math:`y^\top H^{-1} y`, which a Gauss rule approaches from below."""
        if self.nodes[0] <= 0.0:
            raise ComputationFailed("The Gram matrix is singular in double precision: it has no inverse.")
        return self.form(lambda theta: 1.0 / theta)

    def complexity(self, n: int) -> Estimate:
        r"""The measure :math:`\sqrt{2\,y^\top H^{-1} y / n}`."""
        form = self.inverse_form()
        value = float(np.sqrt(2.0 * form.value / n))
        return Estimate(value, float(np.sqrt(2.0 * (form.value + form.error) / n)) - value)

    def residuals(self, steps: NumbersLike, eta: float | int) -> Estimate:
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


@dataclass(frozen=True)
class Krylov:
    """One process: its orthonormal directions (rows), its tridiagonal matrix, and the norm of its first vector."""

    basis: np.ndarray
    diagonal: np.ndarray
    beside: np.ndarray  # off-diagonal entries; the last one is the size of the next direction, unless the process ended
    length: float

    @property
    def has_ended(self) -> bool:
        """Whether the directions span the whole Krylov space of the vector, so that every rule is exact."""
        return self.beside.size < self.diagonal.size

    @property
    def rule(self) -> SpectralRule:
        """The Gauss rule, together with a rule of three quarters of its nodes."""
        k = self.diagonal.size
        few = k if self.has_ended else max(1, 3 * k // 4)
        rules = []
        for size in (k, few):
            values, vectors = self._eigen(size)
            rules += [values, self.length**2 * vectors[0] ** 2]
        return SpectralRule(*rules)

    @property
    def largest(self) -> Estimate:
        """The largest eigenvalue of the tridiagonal matrix; an eigenvalue of the full matrix lies within its error."""
        values, vectors = self._eigen(self.diagonal.size)
        rest = 0.0 if self.has_ended else float(self.beside[-1] * abs(vectors[-1, -1]))
        return Estimate(float(values[-1]), rest)

    def apply(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        r"""The vector :math:`f(H)\,y`."""
        values, vectors = self._eigen(self.diagonal.size)
        return self.length * (vectors @ (function(values) * vectors[0])) @ self.basis

    def _eigen(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        from scipy.linalg import eigh_tridiagonal

        eigen: Any = eigh_tridiagonal(self.diagonal[:size], self.beside[: size - 1])
        return eigen


def processes(product: Product, Y: np.ndarray, nodes: int, tell: Callable[[float], None] | None = None) -> list[Krylov]:
    """One process for each column; products are computed for all columns at once, and all directions are kept."""
    n, columns = Y.shape
    lengths = np.linalg.norm(Y, axis=0)
    nodes = min(nodes, n)
    basis = np.zeros((columns, nodes, n))
    diagonal, beside = np.zeros((columns, nodes)), np.zeros((columns, nodes))
    steps_taken = np.full(columns, nodes)
    basis[:, 0] = (Y / lengths).T
    going = np.arange(columns)
    for k in range(nodes):
        moved = product(np.ascontiguousarray(basis[going, k].T)).T
        for place, new in zip(going, moved, strict=True):
            diagonal[place, k] = new @ basis[place, k]
            directions = basis[place, : k + 1]
            for _ in range(2):  # a single pass leaves rounding along directions that have converged
                new = new - (directions @ new) @ directions
            size = beside[place, k] = float(np.linalg.norm(new))
            if size < ENDED * np.max(np.abs(diagonal[place, : k + 1])) or k + 1 == n:
                steps_taken[place] = k + 1
                beside[place, k] = 0.0
            elif k + 1 < nodes:
                basis[place, k + 1] = new / size
        going = np.array(
            [place for place in going if not (steps_taken[place] == k + 1 and beside[place, k] == 0.0)], int
        )
        if tell is not None:
            tell((k + 1) / nodes)
        if going.size == 0:
            break
    return [
        Krylov(basis[c, :k], diagonal[c, :k], beside[c, : k if beside[c, k - 1] > 0.0 else k - 1], float(lengths[c]))
        for c, k in enumerate(steps_taken)
    ]


def lanczos(product: Product, y: NumbersLike, nodes: NumbersLike = 100) -> SpectralRule:
    """The rule for a vector, by ``nodes`` products; all directions are kept and orthogonalised."""
    y = array("y", 1)(y)
    if not np.any(y):
        raise InvalidInput("Argument `y` must not be zero everywhere.")
    return processes(product, y[:, None], count("nodes", low=2)(nodes))[0].rule


def random_signs(n: int, probes: NumbersLike, seed: NumbersLike) -> np.ndarray:
    """The random vectors with which traces are estimated, as columns."""
    rng = np.random.default_rng([count("seed", low=0)(seed), 3])
    return rng.choice([-1.0, 1.0], (count("probes", low=2)(probes), n)).T


def trace(
    product: Product,
    n: int,
    function: Callable[[np.ndarray], np.ndarray],
    *,
    probes: NumbersLike = 16,
    nodes: NumbersLike = 50,
    seed: int = 0,
) -> Estimate:
    r"""The trace of a function of the matrix, :math:`\sum_i f(\lambda_i)`, by stochastic Lanczos quadrature.

    The error is four standard errors over the random signs plus the largest error of a rule.
    """
    runs = processes(product, random_signs(n, probes, seed), count("nodes", low=2)(nodes))
    return trace_of([run.rule for run in runs], function)


def trace_of(rules: list[SpectralRule], function: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """The trace of a function from the rules of several vectors of random signs."""
    forms = [rule.form(function) for rule in rules]
    values = np.array([float(form.value) for form in forms])
    scatter = 4.0 * float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return Estimate(float(np.mean(values)), scatter + max(float(form.error) for form in forms))
