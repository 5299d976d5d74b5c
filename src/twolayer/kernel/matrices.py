r"""Gram matrices of gradients: of an infinitely wide network in closed form, and of a network of finite width.

.. math::
    H^\infty_{ij} = E_w[x_i \cdot x_j\,\mathbb 1\{w \cdot x_i \ge 0,\ w \cdot x_j \ge 0\}]
                  = \frac{x_i \cdot x_j\,(\pi - \theta_{ij})}{2\pi}, \qquad
    H_{ij} = \frac{x_i \cdot x_j}{m} \sum_r \sigma'(w_r \cdot x_i)\,\sigma'(w_r \cdot x_j)

The angle of two inputs that are nearly parallel is computed from the chord between them: from the cosine it would lose
half of its digits, and :math:`y^\top H^{-1} y` with it.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.machine import cores
from twolayer.core.precision import double
from twolayer.core.types import NumbersLike
from twolayer.kernel.profile import LAYERS, Profile, make_profile
from twolayer.problem import AbstractActivation
from twolayer.problem.activations import ActivationLike, Relu, as_activation
from twolayer.specification.fields import array, choice, number

# Above this cosine the angle is computed from the chord in double precision. At this value the cosine still gives the
# angle to 1e-13, and to 1e-6 in single precision.
NEARLY_PARALLEL = {"float64": 1.0 - 1e-5, "float32": 1.0 - 1e-3}
# Rows and columns of a tile: a few of them fit a core's cache.
TILE = 256
# Rows of a panel of inner products; a multiple of the tile, since tiles on the diagonal are read as a whole.
PANEL = 4 * TILE
# Units whose fields are in memory at once.
UNITS = 4096
# Norms that differ by less than the first number are equal; one that is one within the second number is exactly one.
SAME_NORM, LAST_DIGITS = 1e-12, 4e-15


def gram(
    X: NumbersLike,
    activation: ActivationLike = "relu",
    *,
    layers: str = "first",
    kappa: float | int = 1.0,
    others: NumbersLike | None = None,
) -> np.ndarray:
    r"""The Gram matrix of an infinitely wide network, :math:`H^\infty`.

    Parameters
    ----------
    X
        Inputs, one per row. For activations other than relu all must have the same norm.
    activation
        A name, an activation or a JAX function.
    layers
        Which layers are trained: ``"first"``, ``"second"`` or ``"both"``. Second-layer weights are signs.
    kappa
        Standard deviation of the first-layer weights at the start; for relu the first layer does not depend on it.
    others
        Inputs of the columns, if they differ from those of the rows: the kernel between two sets.

    Returns
    -------
    A float64 array, exactly symmetric without ``others``. Besides it, memory holds small tiles only.

    Notes
    -----
    The diagonal of relu's first layer is exactly one half. Checked against 40 digits (1e-13) and against networks of
    growing width.

    References
    ----------
    :cite:t:`arora2019`, equation 4.
    """
    return gram_with_error(X, activation, layers, kappa, others)[0]


def gram_with_error(
    X: NumbersLike,
    activation: ActivationLike = "relu",
    layers: str = "first",
    kappa: float | int = 1.0,
    others: NumbersLike | None = None,
) -> tuple[np.ndarray, float]:
    """The Gram matrix of `gram`, and a bound on the error of an entry beyond the rounding of inner products."""
    activation = as_activation(activation)
    layers = choice("layers", LAYERS)(layers)
    kappa = number("kappa", above=0.0)(kappa)
    U, norms = unit_rows(X)
    V, other_norms = (U, norms) if others is None else unit_rows(others, "others")
    if V.shape[1] != U.shape[1]:
        raise InvalidInput(f"Argument `others` must have {U.shape[1]} columns as `X`, but has {V.shape[1]}.")
    profile = make_profile(activation, layers, kappa, one_norm(activation, norms, other_norms))
    H = _products(U) if others is None else U @ V.T
    scales = (norms, other_norms) if profile.is_homogeneous else None
    _apply(H, U, V, profile, scales, is_symmetric=others is None)
    return H, profile.error * (float(np.max(norms) * np.max(other_norms)) if scales else 1.0)


def unit_rows(X: NumbersLike, name: str = "X") -> tuple[np.ndarray, np.ndarray]:
    """The rows divided by their norms, and the norms; a norm that is one up to rounding is set to one."""
    X = np.ascontiguousarray(array(name, 2)(X), dtype=np.float64)
    if 0 in X.shape:
        raise InvalidInput(f"Argument `{name}` must have at least one row and one column, but has shape {X.shape}.")
    # Rows are divided by their largest entry first, so that no square overflows or vanishes.
    largest = np.max(np.abs(X), axis=1)
    if not np.all(largest > 0.0):
        raise InvalidInput(
            f"Argument `{name}` must have no row of zeros, but row {int(np.argmin(largest))} is one: it has no angle."
        )
    U = X / largest[:, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", U, U))
    U /= lengths[:, None]
    norms = lengths * largest
    return U, np.where(np.abs(norms - 1.0) < LAST_DIGITS, 1.0, norms)


def one_norm(activation: AbstractActivation, *norms: np.ndarray) -> float:
    """The common norm of all inputs; raises `InvalidInput` where they differ and the kernel needs one; 1 for relu."""
    if isinstance(activation, Relu):
        return 1.0
    smallest, largest = min(map(np.min, norms)), max(map(np.max, norms))
    if largest - smallest > SAME_NORM * largest:
        raise InvalidInput(
            f"Argument `X` must have rows of one norm for activations other than relu, but norms are from "
            f"{smallest:.4g} to {largest:.4g}: divide each row by its norm."
        )
    return float(largest)


def _products(U: np.ndarray) -> np.ndarray:
    """Inner products of all rows, upper triangle only, which is half of the work of a general product.

    They are computed by panels of rows, since the routine of BLAS for this (syrk) ends in a segmentation fault on two
    threads at 20,000 rows (OpenBLAS of SciPy 1.17).
    """
    n = len(U)
    H = np.empty((n, n))
    for first in range(0, n, PANEL):
        rows = slice(first, first + PANEL)
        np.matmul(U[rows], U[first:].T, out=H[rows, first:])
    return H


def _apply(
    H: np.ndarray,
    U: np.ndarray,
    V: np.ndarray,
    profile: Profile,
    scales: tuple[np.ndarray, np.ndarray] | None,
    is_symmetric: bool,
) -> None:
    """Replace cosines by kernel values times norms (``scales``), in place, tile by tile on all cores."""
    has_scales = scales is not None and not all(np.all(norms == 1.0) for norms in scales)

    def work(corner: tuple[int, int]) -> None:
        rows, columns = slice(corner[0], corner[0] + TILE), slice(corner[1], corner[1] + TILE)
        values = _values(H[rows, columns], U[rows], V[columns], profile)
        if has_scales and scales is not None:
            values *= scales[0][rows, None] * scales[1][None, columns]
        if is_symmetric and corner[0] == corner[1]:
            values = np.triu(values) + np.triu(values, 1).T
        H[rows, columns] = values
        if is_symmetric and corner[0] != corner[1]:
            H[columns, rows] = values.T

    corners = product(range(0, H.shape[0], TILE), range(0, H.shape[1], TILE))
    chosen = (corner for corner in corners if not is_symmetric or corner[1] >= corner[0])
    _on_all_cores(work, chosen)


def apply_profile(cosines: np.ndarray, U: np.ndarray, V: np.ndarray, profile: Profile) -> None:
    """Replace cosines between unit rows of two sets by kernel values, in place; cosines may be float32."""
    _apply(cosines, U, V, profile, None, is_symmetric=False)


def _values(cosines: np.ndarray, U: np.ndarray, V: np.ndarray, profile: Profile) -> np.ndarray:
    rho = np.clip(cosines, -1.0, 1.0)
    theta = np.arccos(rho)
    limit = NEARLY_PARALLEL[rho.dtype.name]
    if max(rho.max(), -rho.min()) > limit:
        i, j = np.nonzero(np.abs(rho) > limit)
        rho[i, j], theta[i, j] = stable_angle(U[i], V[j])
    return profile.function(rho, theta)


def stable_angle(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Cosine and angle of nearly parallel unit vectors, :math:`\theta = 2\,\mathrm{atan2}(|u - v|, |u + v|)`."""
    chord, opposite = (np.sqrt(np.einsum("ij,ij->i", w, w)) for w in (u - v, u + v))
    theta = 2.0 * np.arctan2(chord, opposite)
    return np.where(chord < opposite, 1.0 - 0.5 * chord**2, 0.5 * opposite**2 - 1.0), theta


def _on_all_cores(work: Callable[[Any], None], tasks: Iterator[Any]) -> None:
    """Apply a function to all tasks on all cores; threads suffice, since NumPy releases the interpreter lock."""
    if cores() == 1:
        for task in tasks:
            work(task)
        return
    with ThreadPoolExecutor(cores()) as pool:
        for _ in pool.map(work, tasks):
            pass


def parallel_pairs(X: NumbersLike, tolerance: float = 1e-7, limit: int = 100) -> list[tuple[int, int]]:
    """Pairs of rows with equal or opposite directions, within a chord of ``tolerance``; the smaller index is first."""
    U, _ = unit_rows(X)
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(U), 4 * TILE):
        cosines = np.abs(U[start : start + 4 * TILE] @ U[start:].T)
        i, j = np.nonzero(np.triu(cosines, 1) > 1.0 - max(tolerance**2, 1e-12))
        chord, opposite = (
            np.linalg.norm(w, axis=1) for w in (U[start + i] - U[start + j], U[start + i] + U[start + j])
        )
        kept = np.minimum(chord, opposite) <= tolerance
        pairs += [(start + int(a), start + int(b)) for a, b in zip(i[kept], j[kept], strict=True)]
        if len(pairs) >= limit:
            return pairs[:limit]
    return pairs


def network_gram(
    X: NumbersLike, W: NumbersLike, activation: ActivationLike = "relu", *, layers: str = "first"
) -> np.ndarray:
    r"""The Gram matrix of a network of finite width with second-layer weights of plus or minus one.

    Parameters
    ----------
    X, W
        Inputs and first-layer weights, one per row.
    activation, layers
        As in `gram`.

    Returns
    -------
    A float64 array. Its distance to `gram` of weights drawn from :math:`N(0, \kappa^2 I)` falls as one over the root
    of the width.
    """
    X, W = array("X", 2)(X), array("W", 2)(W)
    if X.shape[1] != W.shape[1]:
        raise InvalidInput(f"Argument `W` must have {X.shape[1]} columns as `X`, but has {W.shape[1]}.")
    blocks = (W[start : start + UNITS] @ X.T for start in range(0, len(W), UNITS))
    return gram_of_fields(X @ X.T, blocks, activation, layers)


def gram_of_fields(
    products: np.ndarray, blocks: Iterator[np.ndarray], activation: ActivationLike = "relu", layers: str = "first"
) -> np.ndarray:
    """The Gram matrix of a network from the inner products of its inputs and its fields, in blocks of units."""
    activation = as_activation(activation)
    layers = choice("layers", LAYERS)(layers)
    n, m = len(products), 0
    slopes, outputs = np.zeros((n, n)), np.zeros((n, n) if layers != "first" else (1, 1))
    for fields in blocks:
        m += len(fields)
        if layers != "second":
            slope = _slopes(activation, fields)
            slopes += slope.T @ slope
        if layers != "first":
            output = _at(activation, fields)
            outputs += output.T @ output
    slopes *= products
    return (slopes + outputs) / m if layers != "first" else np.divide(slopes, m, out=slopes)


def _slopes(activation: AbstractActivation, fields: np.ndarray) -> np.ndarray:
    # Sums of zeros and ones over a block are exact in single precision, which takes half of the time.
    if isinstance(activation, Relu):
        return (np.asarray(fields) >= 0.0).astype(np.float32)
    with double():
        return np.asarray(activation.derivative(jnp.asarray(fields, dtype=jnp.float64)))


def _at(activation: AbstractActivation, fields: np.ndarray) -> np.ndarray:
    with double():
        return np.asarray(activation(jnp.asarray(fields, dtype=jnp.float64)))
