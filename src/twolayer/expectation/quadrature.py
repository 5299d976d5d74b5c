"""Gauss-Hermite quadrature over all fields, for smooth functions of few fields, and exactly for polynomials."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.expectation.doubt import doubts, marginals_of
from twolayer.expectation.engine import ROUNDING, AbstractEngine, AbstractRule, Suits, with_others
from twolayer.expectation.gaussian_moments import fields_from_normals, from_cloud
from twolayer.expectation.rules import QuadratureRule, coarser_orders, tensor_rule
from twolayer.expectation.tails import tail_share
from twolayer.problem import Overlaps, Problem
from twolayer.specification.fields import count, static

ORDERS = {1: 96, 2: 64, 3: 40, 4: 24}
MAX_FIELDS = max(ORDERS)
MAX_POINTS = 2**18
# The rule must reach the fields from which the average comes: fields beyond the first number of deviations may
# contribute no more than the second number, as a fraction.
REACH, TAIL = 7.0, 1e-4


def _exact_order(problem: Problem) -> int | None:
    """Return the order that integrates every moment exactly if all functions are polynomials, else None."""
    student, target = problem.student.activation.coefficients, problem.target.polynomial
    if student is None or target is None:
        return None
    displacement = max(len(student) - 1, target.degree)
    # The covariance of the increments has the highest degree: four slopes and four displacements.
    return 2 * (len(student) - 2 + displacement) + 1


class Quadrature(AbstractRule):
    """A Gauss-Hermite product rule over all p + k fields."""

    rule: QuadratureRule
    order: int = static(count("order", high=128))
    others: tuple[AbstractEngine, ...] = ()
    # Whether a bound on what all orders may miss is added to the moments.
    is_doubting: bool = eqx.field(static=True, default=False)

    floor: ClassVar[float] = ROUNDING

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        fields = problem.p + problem.k
        exact = _exact_order(problem)
        if exact is not None and exact <= 128 and exact**fields <= MAX_POINTS:
            return Suits(True)
        if not (problem.student.activation.is_smooth and problem.target.is_smooth):
            return Suits(False, "a rule for smooth functions is inaccurate for a function with kinks")
        if fields > MAX_FIELDS:
            return Suits(False, f"{fields} fields, limit {MAX_FIELDS}")
        if tail_share(problem.target, REACH) > TAIL:
            return Suits(False, "the target grows so fast that its average comes from beyond the reach of the rule")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Quadrature":
        fields = problem.p + problem.k
        exact = _exact_order(problem)
        if exact is not None and exact <= 128 and exact**fields <= MAX_POINTS:
            return cls(tensor_rule(exact, fields, 0.0), exact)
        return cls.of_order(ORDERS[fields], fields)

    @classmethod
    def of_order(cls, order: int, fields: int) -> "Quadrature":
        """Return the rule of an order with coarser ones for its error."""
        rules = [tensor_rule(n, fields) for n in (order, *coarser_orders(order))]
        size = len(rules[0].weights)
        return with_others([cls(rule.padded(size), order) for rule in rules])

    @property
    def doubters(self) -> tuple[AbstractEngine, ...]:
        return (dataclasses.replace(self, others=(), is_doubting=True),) if self.others else ()

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        fields, weights = fields_from_normals(overlaps, jnp.asarray(self.rule.points)), jnp.asarray(self.rule.weights)
        values = from_cloud(problem, overlaps.a, fields, weights, wanted)
        if not self.is_doubting:
            return values
        spacing = np.pi / self.order**0.5  # of the zeros of a Hermite polynomial near the origin
        missed = doubts(problem, overlaps, values, marginals_of(fields, weights, problem.p), spacing)
        return {name: values[name] + missed[name] for name in wanted}

    @property
    def name(self) -> str:
        fields = self.rule.points.shape[1]
        return f"Gauss-Hermite {self.order}^{fields}" + ("" if self.others else " (exact)")
