r"""Smooth students on smooth targets that are no sums of functions of one field each, such as ``tanh(z1) * z2``.

The displacement is :math:`\mathcal E = f - s`. The student alone, :math:`E[\sigma'_j \sigma'_l s^2]`, is a sum of
functions of one field each (`ridge_averages`). What contains the target is averaged over its k fields and one field j
of the student, by a trapezoidal product rule, which converges faster than a Gaussian one for functions with poles such
as tanh, and by a rule that adapts to the length of what the target leaves of that field. Given these, the other fields
are normal with correlations :math:`\rho_{lm}`, so that, by Mehler's formula,

.. math:: E[\sigma'_l \sigma_m \mid \lambda^\star, \lambda_j] = \sum_q \rho_{lm}^q\,S_{ql} T_{qm}

with averages S of the slope and T of the unit over the rest of one field (`conditional.Tables`), functions of one
number. The pair j, l is computed twice, given either of its fields, and the difference counts as an error.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtr

from twolayer.core.estimate import Estimate
from twolayer.expectation.closed.relu_averages import safe_root
from twolayer.expectation.conditional import Kind, Tables
from twolayer.expectation.doubt import Marginals, doubts
from twolayer.expectation.engine import AbstractEngine, Suits
from twolayer.expectation.gaussian_moments import MOMENTS, student_weights
from twolayer.expectation.mesh import even_rule
from twolayer.expectation.ridge_averages import (
    BEYOND,
    COARSER,
    MOST_SLOPES,
    TERMS,
    FieldAverages,
    Given,
    Ridges,
    without,
)
from twolayer.expectation.rules import QuadratureRule, target_values
from twolayer.expectation.slices import ratio
from twolayer.expectation.tails import reach
from twolayer.expectation.tilted import suits_smooth_target
from twolayer.expectation.units_of import unit_kinds
from twolayer.problem import AbstractTarget, Committee, Overlaps, Problem
from twolayer.problem.ridge_form import ridges_of
from twolayer.specification.fields import replaced

# Most target fields: the points of the product rule are those of the rule along a student's field for each of them.
MOST_FIELDS = 2
# Points of less weight than this fraction of the accuracy contribute nothing for a target of moderate growth.
DROPPED = 1e-9
# Where the product rule ends, in deviations; numbers of nodes from end to end, of which the last one judges the others,
# by averages of the target, of its square, and of its product with thresholds of this noise along the axes.
EDGE, NUMBERS, NOISE = 8.4, (20, 28, 36, 48, 64, 96), 0.5


class _Pairs(NamedTuple):
    """What contains the target, for the pairs of one unit of the student with all units, and the nodes along it."""

    with_square: Float[Array, " p"]
    with_student: Float[Array, " p"]
    left_out: Float[Array, " p"]
    field: Float[Array, " points"]
    weights: Float[Array, " points"]


class GivenTarget(AbstractEngine):
    """A product rule for the target's fields, an adaptive rule along one of the student's, and Mehler's series."""

    student: Ridges
    # The product rule for the target's fields; the engine that is built holds its coarser versions as well.
    grids: tuple[QuadratureRule, ...]
    number: int = eqx.field(static=True)

    @property
    def rtol(self) -> float:
        return self.student.rtol

    @property
    def judges_first(self) -> bool:
        return True

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if moment != "phi_hd":
            return Suits(False, "made for the moment with two slopes")
        if ridges_of(problem.target) is not None:
            return Suits(False, "the target is a sum of functions of one field each, for which there are faster rules")
        if not problem.student.activation.is_smooth:
            return Suits(False, "a series of functions with kinks converges slowly")
        if problem.p > MOST_SLOPES:
            return Suits(False, f"{problem.p} units of the student, limit {MOST_SLOPES}")
        if problem.k > MOST_FIELDS:
            return Suits(False, f"{problem.k} target fields, limit {MOST_FIELDS}")
        smooth = suits_smooth_target(problem)
        return Ridges.suits(_silent(problem), moment) if smooth.ok else smooth

    @classmethod
    def room(cls, problem: Problem, moment: str, rtol: float, p: int) -> float:
        points = _number_of_nodes(problem.target, rtol) ** problem.k
        return 8.0 * points * Ridges.build(_silent(problem), rtol).rules.along.line.size * p * 3.0 * TERMS

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "GivenTarget":
        number = _number_of_nodes(problem.target, rtol)
        grids = [_grid(round(share * number), problem.k, DROPPED * rtol) for share in (1.0, *COARSER)]
        size = len(grids[0].weights)
        return cls(Ridges.build(_silent(problem), rtol), tuple(grid.padded(size) for grid in grids), number)

    def variants(self) -> tuple[AbstractEngine, ...]:
        grids = (*self.grids, self.grids[0])
        pairs = zip(self.student.variants(), grids, strict=True)
        return tuple(GivenTarget(student, (grid,), self.number) for student, grid in pairs)  # pyright: ignore

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        return self.student.combine(results)

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        alone = self.student.parts(_silent(problem), overlaps, wanted)["phi_hd"]
        with_target = _WithTarget(self, problem, overlaps)
        pairs = jax.lax.map(with_target.along, jnp.arange(problem.p))
        both = pairs.with_square - 2.0 * pairs.with_student
        phi = {"phi_hd": alone + 0.5 * (both + both.T)}
        left_out = abs(both - both.T) + pairs.left_out + pairs.left_out.T

        def missed() -> Array:
            return left_out + doubts(problem, overlaps, phi, with_target.marginals(pairs))["phi_hd"]

        bound = jax.lax.cond(self.student.bound > 0.0, missed, lambda: jnp.zeros_like(left_out))
        return {"phi_hd": phi["phi_hd"] + bound}

    @property
    def name(self) -> str:
        fields = f"trapezoidal rule {self.number}^{self.grids[0].points.shape[1]} for the target"
        return f"{fields}, {self.student.rules.along.line.size} adaptive nodes along a field; Mehler's series"


def _grid(number: int, k: int, dropped: float) -> QuadratureRule:
    """Return the trapezoidal product rule for k independent standard normals."""
    line = EDGE * even_rule(number).points
    share = np.exp(-0.5 * line**2) * (2.0 * EDGE / number) / np.sqrt(2.0 * np.pi)
    points = np.stack(np.meshgrid(*[line] * k, indexing="ij"), axis=-1).reshape(-1, k)
    weights = np.prod(np.stack(np.meshgrid(*[share] * k, indexing="ij")), axis=0).ravel()
    is_kept = weights > dropped
    return QuadratureRule(points[is_kept], weights[is_kept])


def _number_of_nodes(target: AbstractTarget, rtol: float) -> int:
    """Return the smallest number of nodes along each field that resolves the target."""
    rules = [_grid(number, target.k, 0.0) for number in NUMBERS]
    root = np.linalg.cholesky(np.asarray(target.target_overlaps))
    values = target_values(target, np.concatenate([points for points, _ in rules]) @ root.T)
    averages, first = [], 0
    for points, weights in rules:
        f = values[first : first + len(weights)]
        thresholds = ndtr(points / NOISE)
        averages.append(np.concatenate([[weights @ f**2, weights @ f], (weights * f) @ thresholds]))
        first += len(weights)
    *tried, truth = averages
    scale = np.sqrt(truth[0]) + truth[0]
    left = [np.max(np.abs(x - truth)) / max(scale, 1e-300) for x in tried]
    return next((number for number, error in zip(NUMBERS, left, strict=False) if error < rtol), NUMBERS[-2])


def _silent(problem: Problem) -> Problem:
    """Return the problem with a target that is zero, whose fields are the same."""
    k = problem.k
    zero = Committee(k, "linear", P=problem.target.target_overlaps, second_layer=np.zeros(k))
    return replaced(problem, target=zero)


class _WithTarget:
    """The averages that contain the target, at given overlaps, by the rules of one variant of the engine."""

    def __init__(self, engine: GivenTarget, problem: Problem, overlaps: Overlaps):
        self.c, self.rules = student_weights(problem, overlaps.a), engine.student.rules
        kinds = unit_kinds(_silent(problem))
        assert kinds is not None
        self.kind = kinds[0]._replace(units=tuple(range(problem.p)))
        left_out = BEYOND * engine.student.wanted
        edge = reach(dataclasses.replace(problem, noise=0.0), overlaps, MOMENTS, left_out)
        rest = overlaps.perpendicular
        self.averages = FieldAverages(engine.student, self.rules.along, (self.kind,), rest, edge, TERMS)
        points, weights = (jnp.asarray(part) for part in engine.grids[0])
        self.weights, self.lam_star = weights, points @ jnp.linalg.cholesky(overlaps.P).T
        self.target = problem.target(self.lam_star)
        self.means = self.lam_star @ overlaps.projection.T
        self.determined = safe_root(jnp.sum(overlaps.projection * overlaps.M, axis=1))

    def along(self, j: Array) -> _Pairs:
        """Return the averages of the pairs of unit j, along what the target leaves of its field."""
        C = self.averages.covariance
        betas = ratio(C[j], safe_root(C[j, j]))
        given = Given(betas, without(C - betas[:, None] * betas[None, :], j))
        y, v = jax.vmap(lambda mean: self.averages.rule(given, mean, self.averages.kernels))(self.means)
        means = (self.means.T[:, :, None] + betas[:, None, None] * y[None, :, :]).reshape(len(betas), -1)
        spread = safe_root(self.determined**2 + betas**2)
        T, S, both = (self._tabulated(kind, means, spread, given) for kind in self._functions())
        field, weights = means[j], (self.weights[:, None] * v).ravel()
        target = jnp.broadcast_to(self.target[:, None], y.shape).ravel()
        forced = weights * target * self.kind.slope(field)
        sizes = given.deviations[:, None] * given.deviations[None, :]
        others = 1.0 - jnp.eye(len(betas))
        rho = jnp.clip(ratio(given.covariance, sizes), -1.0, 1.0) * others
        powers = jnp.concatenate([others[None], jnp.cumprod(jnp.broadcast_to(rho, (TERMS - 1, *rho.shape)), axis=0)])
        products = jnp.einsum("x,lqx,mqx->qlm", forced, S[:, :TERMS], T[:, :TERMS])
        with_student = jnp.sum(powers * products, axis=0) @ self.c + self.c * (both[:, 0] @ forced)
        left = [safe_root(jnp.maximum(x[:, TERMS] - jnp.sum(x[:, :TERMS] ** 2, axis=1), 0.0)) for x in (S, T)]
        left_out = jnp.einsum("x,lx,mx->lm", abs(forced), *left) * jnp.abs(powers[-1] * rho)
        return _Pairs(S[:, 0] @ (forced * target), with_student, 2.0 * left_out @ jnp.abs(self.c), field, weights)

    def _functions(self) -> tuple[Kind, Kind, Kind]:
        """Return the unit, its slope, and the product of both."""
        value, slope = self.kind.value, self.kind.slope
        plain = self.kind._replace(closed=None, most_terms=None)
        return self.kind, plain._replace(value=slope), plain._replace(value=lambda x: value(x) * slope(x))

    def _tabulated(self, kind: Kind, means: Array, spread: Array, given: Given) -> Float[Array, "p rows x"]:
        return jax.vmap(Tables(kind, self.averages.extent, self.rules, TERMS).at)(means, spread, given.deviations)

    def marginals(self, pairs: _Pairs) -> Marginals:
        """Return the nodes along single fields."""
        weights = jnp.broadcast_to(self.weights[:, None], self.lam_star.shape)
        return Marginals(pairs.field.T, pairs.weights.T, self.lam_star, weights)
