r"""The spectrum of a Gram matrix that does not fit the memory, from its products with vectors.

The largest eigenvalue, the density and all predictions come from Lanczos's process (`kernel/krylov.py`), the
measure from conjugate gradients (`kernel/solve.py`), with a bound that holds for any x, and r = y - Hx,

.. math:: y^\top H^{-1} y = y^\top x + x^\top r + r^\top H^{-1} r, \qquad
          0 \le r^\top H^{-1} r \le \|r\|^2 / \lambda_{\min}

where r is computed in double precision from x itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.errors import ComputationFailed
from twolayer.core.estimate import Estimate
from twolayer.core.types import NumbersLike
from twolayer.kernel.device import chosen_devices
from twolayer.kernel.krylov import Krylov, processes, random_signs
from twolayer.kernel.products import PRECISIONS, GramProduct
from twolayer.kernel.solve import (
    HANDOVER,
    Preconditioner,
    Solved,
    conjugate_gradients,
    norm_of_difference,
    refine,
    smallest_eigenvalue,
)
from twolayer.kernel.spectra import (
    EIGENVALUE_ERROR,
    EPSILON,
    AbstractSpectrum,
    ResidualPrediction,
    coefficient_factor,
    matrix_error,
    step_numbers,
)
from twolayer.problem.activations import ActivationLike
from twolayer.specification.fields import array, choice, count, number

if TYPE_CHECKING:
    from distributed import Client

# Nodes of the rules of labels; nodes and number of the random vectors that give the density.
NODES = 100
DENSITY_NODES, PROBES = 60, 8
# Columns of the matrix in the preconditioner.
RANK = 1000
# The relative residual of the solves that give the smallest eigenvalue.
INVERSE_TOLERANCE = 1e-3
# Corrections end when the bound on the last term of the measure is below this fraction of its value.
ENOUGH = 1e-12
# The most memory, in bytes, for the Krylov directions of labels that are computed at once.
HELD = 2**30


@dataclass(frozen=True)
class FreeSpectrum(AbstractSpectrum):
    """A Gram matrix with its ridge added, known by its products with vectors.

    ``eigenvalues`` are not those of the matrix but nodes of its density, largest first: node i represents ``counts[i]``
    eigenvalues, a number that need not be whole, and the counts add up to n. The extremes are separate estimates.
    """

    product: GramProduct
    inner: GramProduct
    precondition: Preconditioner
    largest: Estimate
    smallest: Estimate
    eigenvalues: np.ndarray
    counts: np.ndarray
    uncertainty: float
    inner_uncertainty: float
    ridge: float = 0.0
    nodes: int = NODES

    @property
    def n(self) -> int:
        return self.product.n

    @property
    def lambda_min(self) -> float:
        return float(self.smallest.value)

    @property
    def lambda_max(self) -> float:
        return float(self.largest.value)

    @property
    def lambda_min_error(self) -> float:
        return float(self.smallest.error)

    @property
    def lambda_max_error(self) -> float:
        return float(self.largest.error)

    def predictions(
        self, Y: NumbersLike, steps: NumbersLike, eta: NumbersLike | None = None
    ) -> list[ResidualPrediction]:
        eta, k = self.check_step(eta), step_numbers(steps)
        # A rule with k nodes or more is exact for k steps.
        nodes = min(self.nodes, int(np.max(k, initial=1.0)) + 2)
        return [self._predict(run, k, eta) for run in self._follow(self._columns(Y), nodes)]

    def _predict(self, run: Krylov, k: np.ndarray, eta: float) -> ResidualPrediction:
        rule = run.rule
        norms = rule.residuals(k, min(eta, (2.0 - 1e-12) / float(rule.nodes[-1])))
        # No step lengthens the residual, so that each step adds at most the distance of the matrices.
        shift = k * eta * (self.inner_uncertainty + self.uncertainty) * run.length
        return ResidualPrediction(
            np.asarray(norms.value), np.asarray(norms.error) + shift, rule.nodes[::-1], rule.weights[::-1]
        )

    def coefficients(self, y: NumbersLike, k: int | None = None, eta: NumbersLike | None = None) -> np.ndarray:
        y = self._labels(y)
        Y = y.reshape(self.n, -1)
        if k is None:
            return self._solve(Y).solutions.reshape(y.shape)
        size, steps = self.check_step(eta), count("k", low=0)(k)
        runs = self._follow(Y, min(self.nodes, max(steps, 1)))
        columns = [run.apply(lambda eigenvalues: coefficient_factor(eigenvalues, size, steps)) for run in runs]
        return np.stack(columns, axis=1).reshape(y.shape)

    def inverse_forms(self, Y: NumbersLike) -> list[Estimate]:
        self.require_inverse()
        Y = self._columns(Y)
        solved = self._solve(Y)
        low = self.lambda_min - self.lambda_min_error
        forms = []
        for y, x, r in zip(Y.T, solved.solutions.T, solved.residuals.T, strict=True):
            rest = float(r @ r) / low
            rounding = 4.0 * EPSILON * float(np.linalg.norm(x)) * float(np.linalg.norm(y))
            margin = max(1.0 - self.uncertainty / low, EPSILON)
            error = 0.5 * rest + self.uncertainty * float(x @ x) / margin + rounding
            forms.append(Estimate(float(y @ x + x @ r) + 0.5 * rest, error))
        return forms

    def _solve(self, Y: np.ndarray) -> Solved:
        self.require_inverse()
        low = self.lambda_min - self.lambda_min_error

        def is_enough(X: np.ndarray, R: np.ndarray) -> bool:
            rest = np.einsum("ij,ij->j", R, R) / low
            value, size = np.abs(np.einsum("ij,ij->j", X, Y)), np.einsum("ij,ij->j", X, X)
            return bool(np.all(rest <= np.maximum(ENOUGH * value, 0.1 * self.uncertainty * size)))

        handover = HANDOVER[self.inner.dtype.name]
        solved = refine(self._outer, self._inner, self.precondition, Y, handover, is_enough)
        if not solved.is_definite:
            raise ComputationFailed("Conjugate gradients met a direction along which the Gram matrix is not positive.")
        return solved

    def _columns(self, Y: Any) -> np.ndarray:
        return self._labels(array("y", 2)(Y))

    def _follow(self, Y: np.ndarray, nodes: int) -> list[Krylov]:
        together = max(1, HELD // (8 * self.n * nodes))
        parts = [processes(self._inner, Y[:, i : i + together], nodes) for i in range(0, Y.shape[1], together)]
        return [run for part in parts for run in part]

    def _outer(self, vectors: np.ndarray) -> np.ndarray:
        return self.product(vectors) + self.ridge * vectors

    def _inner(self, vectors: np.ndarray) -> np.ndarray:
        return self.inner(vectors) + self.ridge * vectors


# Large: each of its twelve arguments is an option of its own of a numerical method, with a default.
def free_spectrum(
    X: NumbersLike,
    activation: ActivationLike = "relu",
    *,
    layers: str = "first",
    kappa: float | int = 1.0,
    ridge: float | int = 0.0,
    precision: str = "double",
    devices: NumbersLike | None = None,
    client: "Client | None" = None,
    rank: NumbersLike = RANK,
    nodes: NumbersLike = NODES,
    seed: NumbersLike = 0,
    progress: Callable[[str, float], None] | None = None,
) -> FreeSpectrum:
    r"""The spectrum of the Gram matrix of a data set without the matrix.

    Parameters
    ----------
    X, activation, layers, kappa
        As in `gram`.
    ridge
        A number added to the diagonal, zero by default.
    precision
        The precision of the inner products. With ``"single"`` residuals are still computed in double precision, and the
        measure has the same error; errors of results from Lanczos's process include the distance of the matrices.
    devices
        The number of accelerators that compute the products, all by default; with 0 the cores of this machine.
    client
        A client of Dask, whose workers compute the products instead.
    rank
        Columns of the matrix in the preconditioner.
    nodes
        The most nodes of the rules of labels; residuals are exact up to this many steps.
    seed
        The seed of the columns and of the random vectors.
    progress
        Called with the name of the current part and the fraction of it that is done.

    Returns
    -------
    The same as `spectrum`, but without eigenvectors, and with the density instead of single eigenvalues. Errors of the
    extremes hold with probability 1 - 1e-6 over the random vectors. Memory holds the inputs, a strip of the matrix (all
    of it where it fits), and some hundred numbers for each sample.

    Notes
    -----
    Checked against the exact spectrum; in single precision the measure agrees to the bound of double precision.
    """
    tell = progress or (lambda name, fraction: None)
    ridge = float(number("ridge", low=0.0)(ridge))
    precision, seed = choice("precision", PRECISIONS)(precision), count("seed", low=0)(seed)
    accelerators = [] if client is not None else chosen_devices(devices)

    def make(kind: str, keep: bool | None) -> GramProduct:
        kernel: dict[str, Any] = {"layers": layers, "kappa": kappa, "precision": kind, "keep": keep}
        return GramProduct(X, activation, devices=accelerators, client=client, **kernel)

    # Next to a matrix in single precision, the host computes the few products in double precision without storing it.
    inner = make(precision, None)
    product = inner if precision == "double" else make("double", None if accelerators else False)
    n = product.n
    tell("preconditioner", 0.0)
    diagonal = product.diagonal
    chosen = np.sort(np.random.default_rng([seed, 6]).choice(n, min(count("rank")(rank), -(-n // 4)), replace=False))
    precondition = Preconditioner(product.columns(chosen), chosen, diagonal, ridge, inner.main_device)

    def apply(vectors: np.ndarray) -> np.ndarray:
        return inner(vectors) + ridge * vectors

    tell("density", 0.0)
    eigenvalues, counts, top = _density(apply, n, seed, lambda fraction: tell("density", fraction))
    gap = 0.0 if inner is product else norm_of_difference(inner, product, n, seed=seed)
    uncertainty = matrix_error(n, float(np.max(diagonal)), product.entry_error)
    uncertainty += EIGENVALUE_ERROR * EPSILON * float(top.value)

    tell("smallest eigenvalue", 0.0)

    def solve(vectors: np.ndarray) -> Solved:
        return conjugate_gradients(apply, precondition, vectors, INVERSE_TOLERANCE)

    low = smallest_eigenvalue(solve, n, seed=seed, tell=lambda fraction: tell("smallest eigenvalue", fraction))
    return FreeSpectrum(
        product,
        inner,
        precondition,
        Estimate(top.value, top.error + gap + uncertainty),
        Estimate(low.value, low.error + gap + uncertainty),
        eigenvalues,
        counts,
        uncertainty,
        gap,
        ridge,
        count("nodes", low=2)(nodes),
    )


def _density(
    product: Callable[[np.ndarray], np.ndarray], n: int, seed: int, tell: Callable[[float], None]
) -> tuple[np.ndarray, np.ndarray, Estimate]:
    """Nodes of the density of eigenvalues (largest first), their counts, and the largest eigenvalue."""
    runs = processes(product, random_signs(n, PROBES, seed), DENSITY_NODES, tell)
    nodes = np.concatenate([run.rule.nodes for run in runs])
    counts = np.concatenate([run.rule.weights for run in runs]) / PROBES
    order = np.argsort(nodes)[::-1]
    return nodes[order], counts[order], max((run.largest for run in runs), key=lambda estimate: estimate.value)
