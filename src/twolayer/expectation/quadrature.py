"""Gauss-Hermite quadrature on the whole space of fields: smooth functions of few fields."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.core.estimate import Estimate
from twolayer.core.fields import count, static
from twolayer.core.linalg import root
from twolayer.expectation.base import ROUNDING, AbstractEngine, Suits
from twolayer.expectation.moments import Moments, fields_from_normals, from_cloud
from twolayer.expectation.tails import tail_share
from twolayer.problem import Overlaps, Problem

MAX_FIELDS = 3
ORDERS = {1: 96, 2: 64, 3: 40}
# A rule of half the order is far worse on an analytic function; where convergence is slow the two errors are
# comparable, and the difference may then be smaller than the error of the finer rule by about this factor.
SAFETY = 4.0
# The rule must reach where the average is made: this far out, and missing no more than this part of it.
REACH = 7.0
TAIL = 1e-4


@lru_cache(maxsize=32)
def tensor_rule(order: int, fields: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (points, fields) and weights of the product rule for independent standard normals."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(*[nodes] * fields, indexing="ij"), axis=-1).reshape(-1, fields)
    products = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * fields, indexing="ij")), axis=0).ravel()
    kept = products > 1e-24  # beyond, not even a steep polynomial adds a digit
    return grid[kept], products[kept]


class Quadrature(AbstractEngine):
    """Tensor Gauss-Hermite rule; its error is the difference from two coarser rules, times a safety factor."""

    order: int = static(count("order", low=2, high=128))
    fields: int = static(count("fields"))

    rtol: float = 0.0

    @classmethod
    def suits(cls, problem: Problem) -> Suits:
        fields = problem.p + problem.k
        if problem.student.activation.kinks or not problem.target.is_smooth:
            return Suits(False, "a function with kinks defeats a smooth rule")
        if tail_share(problem.target, REACH) > TAIL:
            return Suits(False, "the target grows so fast that the rule does not reach where its average is made")
        if fields > MAX_FIELDS:
            return Suits(False, f"{fields} fields, limit {MAX_FIELDS}")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem) -> "Quadrature":
        fields = problem.p + problem.k
        return cls(ORDERS[fields], fields)

    def variants(self) -> tuple[AbstractEngine, ...]:
        # Unrelated orders, one of them odd: rules of even order all miss what happens at the centre.
        return (self, Quadrature(int(0.7 * self.order) | 1, self.fields), Quadrature(self.order // 2, self.fields))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        fine = results[0]

        def spread(x: Any, y: Any, z: Any) -> Any:
            return SAFETY * (abs(x - y) + abs(x - z)) + ROUNDING * (1.0 + abs(x))

        return Estimate(fine, jax.tree.map(spread, *results))

    def moments(self, problem: Problem, overlaps: Overlaps) -> Moments:
        nodes, weights = tensor_rule(self.order, self.fields)
        fields = fields_from_normals(overlaps, jnp.asarray(nodes), root(overlaps.perpendicular))
        return from_cloud(problem, overlaps.a, fields, jnp.asarray(weights))

    @property
    def name(self) -> str:
        return f"Gauss-Hermite, {self.order} nodes per field, {self.fields} fields"
