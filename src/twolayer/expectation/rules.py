"""Points and weights for Gaussian averages in few dimensions, and the number of points that a function needs."""

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.types import Numbers
from twolayer.expectation.engine import SAFETY
from twolayer.expectation.tails import target_values
from twolayer.problem import AbstractTarget

# Beyond this many deviations a function that grows less than exp(z^2 / 8) contributes nothing.
RANGE = 10.0
# Orders to try, from cheap to expensive, by the number of fields.
ORDERS = {1: (16, 24, 32, 48, 64, 96, 128), 2: (12, 16, 24, 32, 48, 64), 3: (12, 16, 20, 24, 32)}
# Points of a fine grid along a line; a feature that is narrower than its spacing is missed.
LINE = 4001
# Fewest nodes for the cosine of two directions, for which two coarser rules still differ, and most nodes.
LEAST_COSINES, MOST_COSINES = 4, 32


class QuadratureRule(NamedTuple):
    """Points and weights of a rule, as data, so that rules padded to one size compile to one program."""

    points: Any
    weights: Any

    def padded(self, size: int) -> "QuadratureRule":
        """Return the rule padded to ``size`` points by points of zero weight."""
        more = size - len(self.weights)
        points = np.concatenate([self.points, np.zeros((more, *np.shape(self.points)[1:]))])
        return QuadratureRule(points, np.append(self.weights, np.zeros(more)))

    @property
    def size(self) -> int:
        """The number of points with nonzero weight."""
        return int(np.count_nonzero(self.weights))


class SymmetricRule(NamedTuple):
    """A symmetric rule: one point of each pair x, -x with its weight, and the weight of the point zero."""

    half: QuadratureRule
    centre: Any

    def padded(self, size: int) -> "SymmetricRule":
        """Return the rule padded to ``size`` pairs by points of zero weight."""
        return SymmetricRule(self.half.padded(size), self.centre)


def coarser_orders(order: int) -> tuple[int, int]:
    """Return two coarser orders for comparison, one of them odd, since rules of even order have no point at zero."""
    return int(0.7 * order) | 1, order // 2


@lru_cache(maxsize=64)
def gauss_hermite(order: int) -> QuadratureRule:
    """Return the Gauss-Hermite rule for one standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    return QuadratureRule(nodes, weights / weights.sum())


@lru_cache(maxsize=32)
def tensor_rule(order: int, fields: int, dropped: float = 1e-24) -> QuadratureRule:
    """Return the product rule for independent standard normals, with points of shape (points, fields).

    Points of less weight than ``dropped`` are omitted; they contribute nothing for a function of moderate growth.
    """
    nodes, weights = gauss_hermite(order)
    grid = np.stack(np.meshgrid(*[nodes] * fields, indexing="ij"), axis=-1).reshape(-1, fields)
    products = np.prod(np.stack(np.meshgrid(*[weights] * fields, indexing="ij")), axis=0).ravel()
    is_kept = products > dropped
    return QuadratureRule(grid[is_kept], products[is_kept])


def symmetric_rule(order: int, fields: int, dropped: float) -> SymmetricRule:
    """Return the product rule as pairs of points x and -x."""
    grid, weights = tensor_rule(order, fields, dropped)
    # The points are in lexicographic order, so that x and -x are at opposite positions, and zero is in the middle.
    pairs, has_centre = divmod(len(grid), 2)
    return SymmetricRule(
        QuadratureRule(grid[-pairs:], weights[-pairs:]), np.asarray(weights[pairs] if has_centre else 0.0)
    )


@lru_cache(maxsize=32)
def legendre_rule(order: int) -> QuadratureRule:
    """Return the Gauss-Legendre rule on [-1, 1]."""
    return QuadratureRule(*np.polynomial.legendre.leggauss(order))


def line_rule(
    breaks: Float[Array, " breaks"], rule: QuadratureRule, reach: Numbers = RANGE
) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """Return nodes and weights for one standard normal and a function that is smooth between the breaks.

    They are those of Gauss-Legendre rules on the panels between breaks; a break beyond the ``reach`` gives a panel of
    length zero.
    """
    edge = jnp.reshape(jnp.asarray(reach, breaks.dtype), 1)
    ends = jnp.concatenate([-edge, jnp.sort(jnp.clip(breaks, -edge[0], edge[0])), edge])
    x, w = jnp.asarray(rule.points), jnp.asarray(rule.weights)
    half = 0.5 * (ends[1:] - ends[:-1])
    nodes = 0.5 * (ends[1:] + ends[:-1])[:, None] + half[:, None] * x[None, :]
    weights = half[:, None] * w[None, :] * jnp.exp(-0.5 * nodes**2) / np.sqrt(2.0 * np.pi)
    return nodes.ravel(), weights.ravel()


def panel_rule(
    root: Float[np.ndarray, "k k"], kinks: tuple[tuple[float, ...], ...], rule: QuadratureRule, dropped: float = 1e-24
) -> QuadratureRule:
    """Return a product rule for independent standard normals g and a function with kinks in the fields ``root @ g``.

    Field after field, it uses Gauss-Legendre rules on the panels between the kinks, whose places in one normal depend
    on the normals before it, since ``root`` is triangular. A function with these kinks is integrated as accurately as
    a smooth one. The points have shape (points, k).
    """
    x, w = np.asarray(rule.points), np.asarray(rule.weights)
    points, weights = np.zeros((1, 0)), np.ones(1)
    for field, row in enumerate(root):
        places = (np.asarray(kinks[field])[None, :] - (points @ row[:field])[:, None]) / row[field]
        edge = np.full((len(points), 1), RANGE)
        ends = np.concatenate([-edge, np.sort(np.clip(places, -RANGE, RANGE), axis=1), edge], axis=1)
        half = 0.5 * np.diff(ends, axis=1)
        nodes = (0.5 * (ends[:, 1:] + ends[:, :-1])[:, :, None] + half[:, :, None] * x).reshape(len(points), -1)
        shares = (half[:, :, None] * w).reshape(len(points), -1) * np.exp(-0.5 * nodes**2) / np.sqrt(2.0 * np.pi)
        before = np.repeat(points[:, None, :], nodes.shape[1], axis=1)
        points = np.concatenate([before, nodes[:, :, None]], axis=2).reshape(-1, field + 1)
        weights = (weights[:, None] * shares).ravel()
        is_kept = weights > dropped
        points, weights = points[is_kept], weights[is_kept]
    return QuadratureRule(points, weights)


def _cosine_recurrence(dimension: int, order: int) -> np.ndarray:
    r"""Return ratios of squared norms of the monic polynomials orthogonal under :math:`(1 - \rho^2)^{(D-3)/2}`."""
    j = np.arange(1.0, order + 1)
    below = (2.0 * j + dimension - 2.0) * (2.0 * j + dimension - 4.0)
    return np.concatenate([[1.0 / dimension], (j * (j + dimension - 3.0))[1:] / below[1:]])


@lru_cache(maxsize=64)
def cosine_rule(order: int, dimension: int) -> QuadratureRule:
    r"""Return the Gauss rule for the cosine :math:`\rho = g \cdot g'` of two independent directions in D dimensions.

    Its density is proportional to :math:`(1 - \rho^2)^{(D-3)/2}` (Gauss-Jacobi with both exponents (D-3)/2). In one
    dimension the cosine is a sign, and two nodes are exact.
    """
    if dimension == 1:
        return QuadratureRule(np.array([-1.0, 1.0]), np.array([0.5, 0.5]))
    beside = np.sqrt(_cosine_recurrence(dimension, order - 1)[: order - 1])
    nodes, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return QuadratureRule(nodes, vectors[0] ** 2)


def cosine_order(dimension: int, rtol: float) -> int:
    """Return the order with this relative error for a function that is analytic within distance one of [-1, 1]."""
    norms = np.cumprod(_cosine_recurrence(dimension, MOST_COSINES))
    return max(LEAST_COSINES, int(np.argmax(np.append(norms[:-1], 0.0) < rtol)) + 1)


def _missed_on_lines(target: AbstractTarget, orders: tuple[int, ...]) -> dict[int, float]:
    """Return, by order, the relative error of the average of the target's square along the axes and the diagonal."""
    k = target.k
    directions = np.array([*np.eye(k), *([np.ones(k) / np.sqrt(k)] if k > 1 else [])])
    directions = directions @ np.linalg.cholesky(np.asarray(target.target_overlaps)).T
    grid = np.linspace(-RANGE, RANGE, LINE)
    density = np.exp(-0.5 * grid**2) * (grid[1] - grid[0]) / np.sqrt(2.0 * np.pi)
    rules = [QuadratureRule(grid, density), *(gauss_hermite(order) for order in orders)]
    nodes = np.concatenate([points for points, _ in rules])
    values = target_values(target, nodes[:, None, None] * directions[None, :, :]) ** 2
    bounds = np.cumsum([0] + [len(weights) for _, weights in rules])
    squares = [w @ values[i:j] for (_, w), (i, j) in zip(rules, pairwise(bounds), strict=True)]
    scale = np.max(np.sqrt(squares[0]) + squares[0]) + 1e-300
    return {n: float(np.max(np.abs(x - squares[0])) / scale) for n, x in zip(orders, squares[1:], strict=True)}


def order_for(target: AbstractTarget, rtol: float, narrowest: float) -> tuple[int, float]:
    """Return the order of a product rule for products of the target and of thresholds, and its remaining error.

    Orders are raised until a rule and one of 0.7 times its order agree on averages of the target, its square, and its
    product with a threshold of the ``narrowest`` noise along each axis. Since two rules may miss
    the same narrow feature, averages along lines must also agree with those over a fine grid.
    """
    from scipy.special import erf

    orders = ORDERS[target.k]
    on_lines = _missed_on_lines(target, orders)
    tried = sorted({n for order in orders for n in (order, coarser_orders(order)[0])})
    rules = [tensor_rule(order, target.k) for order in tried]
    bounds = np.cumsum([0] + [len(weights) for _, weights in rules])
    root = np.linalg.cholesky(np.asarray(target.target_overlaps))
    values = target_values(target, np.concatenate([grid for grid, _ in rules]) @ root.T)
    averages = {}
    for order, (grid, weights), (first, last) in zip(tried, rules, pairwise(bounds), strict=True):
        f = values[first:last]
        thresholds = erf(grid / (np.sqrt(2.0) * narrowest))
        averages[order] = np.concatenate([[weights @ f, weights @ f**2], (weights * f) @ thresholds])
    left = np.inf
    for order in orders:
        fine, coarse = averages[order], averages[coarser_orders(order)[0]]
        scale = np.sqrt(max(fine[1], 1e-300)) + fine[1]
        left = max(float(np.max(np.abs(fine - coarse)) / scale), on_lines[order])
        if SAFETY * left < rtol:
            return order, left
    return orders[-1], left
