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
from twolayer.problem import Overlaps, Problem

MAX_FIELDS = 3
ORDERS = {1: 96, 2: 64, 3: 40}
# A rule of half the order is far worse on an analytic function; where convergence is slow the two errors are
# comparable, and the difference may then be smaller than the error of the finer rule by about this factor.
SAFETY = 4.0


@lru_cache(maxsize=32)
def tensor_rule(order: int, fields: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (points, fields) and weights of the product rule for independent standard normals."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(*[nodes] * fields, indexing="ij"), axis=-1).reshape(-1, fields)
    products = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * fields, indexing="ij")), axis=0).ravel()
    kept = products > 1e-24  # beyond, not even a steep polynomial adds a digit
    return grid[kept], products[kept]


class Quadrature(AbstractEngine):
    """Tensor Gauss-Hermite rule; its error is the difference from the rule of half the order, times a safety factor."""

    order: int = static(count("order", low=2, high=128))
    fields: int = static(count("fields"))

    rtol: float = 0.0

    @classmethod
    def suits(cls, problem: Problem) -> Suits:
        fields = problem.p + problem.k
        if problem.student.activation.kinks or not problem.target.is_smooth:
            return Suits(False, "a function with kinks defeats a smooth rule")
        if fields > MAX_FIELDS:
            return Suits(False, f"{fields} fields, limit {MAX_FIELDS}")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem) -> "Quadrature":
        fields = problem.p + problem.k
        return cls(ORDERS[fields], fields)

    def variants(self) -> tuple[AbstractEngine, ...]:
        return (self, Quadrature(self.order // 2, self.fields))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        fine, coarse = results
        error = jax.tree.map(lambda x, y: SAFETY * abs(x - y) + ROUNDING * (1.0 + abs(x)), fine, coarse)
        return Estimate(fine, error)

    def moments(self, problem: Problem, overlaps: Overlaps) -> Moments:
        nodes, weights = tensor_rule(self.order, self.fields)
        fields = fields_from_normals(overlaps, jnp.asarray(nodes), root(overlaps.perpendicular))
        return from_cloud(problem, overlaps.a, fields, jnp.asarray(weights))

    @property
    def name(self) -> str:
        return f"Gauss-Hermite, {self.order} nodes per field, {self.fields} fields"
