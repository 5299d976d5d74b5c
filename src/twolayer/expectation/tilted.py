r"""Students of noisy signs on any smooth target: the student is integrated in closed form, the target by a rule.

The slope of a noisy sign is a Gaussian bell, :math:`\sigma' = 2 N(\lambda; 0, \tau^2)`. A product with bells turns the
Gaussian distribution of the fields into another centred one, whose covariance is known; under it the student's units
given the target fields are error functions. Every average is then one over the k target fields, for any width p.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from twolayer.expectation.closed.thresholds import (
    Thresholds,
    UnitList,
    mixture,
    room_for,
    terms_for,
    thresholds,
    unit_list,
)
from twolayer.expectation.closed.units import conditioned, integrals, noisy_determinant, over_slope_pairs
from twolayer.expectation.engine import ROUNDING, AbstractEngine, AbstractRule, Suits, with_others
from twolayer.expectation.gaussian_moments import TargetIntegrals, from_target, student_weights
from twolayer.expectation.rules import (
    ORDERS,
    RANGE,
    QuadratureRule,
    SymmetricRule,
    coarser_orders,
    legendre_rule,
    line_rule,
    order_for,
    symmetric_rule,
)
from twolayer.expectation.tails import tail_share
from twolayer.problem import AbstractTarget, Overlaps, Problem
from twolayer.problem.kink_planes import kink_planes
from twolayer.problem.ridge_form import ridges_of
from twolayer.specification.fields import count, static

MAX_FIELDS = max(ORDERS)
# The rule must reach the fields from which the average comes: fields beyond the first number of deviations may
# contribute no more than the second number, as a fraction.
REACH, TAIL = 7.0, 1e-4
# A target is refused if its average still changes by this much at the finest rule.
UNSETTLED = 1e-3
# Points of less weight than this fraction of the accuracy contribute nothing for a target of moderate growth.
DROPPED = 1e-9
# Nodes between the kinks of a target of one field, and of two; places at which panels end besides, in deviations.
PANEL, PANEL_OF_TWO, EVEN = 32, 20, (-3.0, 0.0, 3.0)
# Up to so many units, rules along pairs of fields serve a target that is a sum of functions of one field each.
FEW_UNITS = 4
# An error function is constant beyond this argument.
FLAT = 6.0
# An empty rule, since bells need no integral along a line.
NO_LINE = QuadratureRule(np.zeros(0), np.zeros(0))


class Tilted(AbstractRule):
    """Closed forms for the student, and a Gauss-Hermite product rule for the k target fields."""

    student: Thresholds
    rule: SymmetricRule
    floor: float = eqx.field(static=True)
    order: int = static(count("order", low=2, high=128))
    # Whether the rule is for panels between the kinks of a target of one field.
    is_between_kinks: bool = eqx.field(static=True, default=False)
    others: tuple[AbstractEngine, ...] = ()

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        student = thresholds(problem.student.activation)
        if student is None or student.is_relu:
            return Suits(False, f"the slope of {problem.student.activation} is not a sum of Gaussian bells")
        if moment == "covariance":
            return Suits(False, "no closed form for four displacements")
        is_between_kinks = suits_kinked_target(problem) or _suits_planes(problem)
        return Suits(True) if is_between_kinks else suits_smooth_target(problem)

    @classmethod
    def room(cls, problem: Problem, moment: str, rtol: float, p: int) -> float:
        terms = terms_for(rtol)
        rows = p * len(mixture(problem.student.activation, terms, terms).weights)
        return room_for(moment, rows, rows, 0.5)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Tilted":
        activation = problem.student.activation
        student = thresholds(activation)
        assert student is not None
        terms = terms_for(rtol)
        is_between_kinks = suits_kinked_target(problem) or _suits_planes(problem)
        if is_between_kinks:
            order, zero = PANEL if problem.k == 1 else PANEL_OF_TWO, np.asarray(0.0)
            rules = [SymmetricRule(legendre_rule(n), zero) for n in (order, *coarser_orders(order))]
        else:
            order, _ = order_for(problem.target, rtol, float(np.sqrt(student.noise.min())))
            rules = [symmetric_rule(n, problem.k, DROPPED * rtol) for n in (order, *coarser_orders(order))]
        size = len(rules[0].half.weights)
        # Two mixtures may agree by accident; the known distance to the activation bounds the error.
        floor = max(ROUNDING, mixture(activation, terms, terms).sup_error)
        return with_others(
            [
                cls(mixture(activation, terms - fewer, terms), rule.padded(size), floor, order, is_between_kinks)
                for fewer, rule in enumerate(rules)
            ]
        )

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        units = unit_list([self.student] * problem.p)
        c = student_weights(problem, overlaps.a)
        with_four = "phi_hd" in wanted
        student_integrals = integrals(overlaps.omega, units, units, c, NO_LINE if with_four else None)
        values = from_target(
            c, student_integrals, self._target_integrals(problem, overlaps, units, c, with_four), problem.noise
        )
        return {name: values[name] for name in wanted}

    def _target_integrals(
        self, problem: Problem, overlaps: Overlaps, units: UnitList, c: Float[Array, " p"], with_four: bool
    ) -> TargetIntegrals:
        p, omega = problem.p, overlaps.omega
        noise, offsets = units.noise, jnp.asarray(units.offsets)

        def averages(L: Float[Array, "k k"], slopes: Float[Array, "rows k"]) -> tuple[Array, Array, Array, Array]:
            """Return E[f], E[f^2], points and the weighted odd part of f, for target fields of covariance L L^T."""
            if self.is_between_kinks:
                points, weights = self._between_kinks(problem, L, slopes)
                values = problem.target(points @ L.T)
                return weights @ values, weights @ values**2, points, weights * values
            grid, weights = jnp.asarray(self.rule.half.points), jnp.asarray(self.rule.half.weights)
            fields = grid @ L.T
            plus, minus = problem.target(fields), problem.target(-fields)
            zero = problem.target(jnp.zeros((1, len(L))))[0]
            mean = weights @ (plus + minus) + self.rule.centre * zero
            square = weights @ (plus**2 + minus**2) + self.rule.centre * zero**2
            return mean, square, grid, weights * (plus - minus)

        def steepness(S: Float[Array, "n n"], L: Float[Array, "k k"]) -> Float[Array, "rows k"]:
            """Return the combinations of normals of which the student's rows, given the target, are error functions."""
            R = solve_triangular(L, S[p:, :p], lower=True).T  # (p, k): covariances with independent normals
            conditional = jnp.maximum(jnp.diagonal(S)[:p] - jnp.sum(R**2, axis=1), 0.0)
            return R[units.fields] / jnp.sqrt(2.0 * (conditional[units.fields] + noise))[:, None]

        def one_slope(row: Array) -> Array:
            j = jnp.asarray(units.fields)[row]
            kappa = omega[j, j] + noise[row]
            S = omega - omega[:, j][:, None] * (omega[:, j] / kappa)[None, :]
            L = jnp.linalg.cholesky(S[p:, p:])
            _, _, grid, odd = averages(L, steepness(S, L))
            odd = odd @ grid  # E[g f]
            return 2.0 / jnp.sqrt(2.0 * np.pi * kappa) * S[:, p:] @ solve_triangular(L.T, odd, lower=False)

        def two_slopes(a: Array, b: Array) -> tuple[Array, Array]:
            i, j = jnp.asarray(units.fields)[a], jnp.asarray(units.fields)[b]
            det = noisy_determinant(omega[i, j], omega[i, i], omega[j, j], noise[a], noise[b])
            S = conditioned(omega, i, j, noise[a], noise[b], det)
            L = jnp.linalg.cholesky(S[p:, p:])
            slopes = steepness(S, L)
            mean, square, grid, odd = averages(L, slopes)
            student = (odd @ jax.lax.erf(grid @ slopes.T)) @ (units.weights * c[units.fields]) + (c @ offsets) * mean
            density = 2.0 / np.pi / jnp.sqrt(det)
            return density * square, density * student

        root = jnp.linalg.cholesky(overlaps.P)
        slopes = steepness(omega, root)
        mean, square, grid, odd = averages(root, slopes)
        hot = units.one_hot
        ffdd, fsdd = over_slope_pairs(two_slopes, units) if with_four else (None, None)
        return TargetIntegrals(
            ff=square,
            fs=hot.T @ (odd @ jax.lax.erf(grid @ slopes.T)) + offsets * mean,
            fv=hot.T @ jax.vmap(one_slope)(jnp.arange(len(units.fields))),
            ffdd=ffdd,
            fsdd=fsdd,
        )

    def _between_kinks(
        self, problem: Problem, L: Float[Array, "k k"], slopes: Float[Array, "rows k"]
    ) -> tuple[Float[Array, "points k"], Float[Array, " points"]]:
        """Return the rule for one target field, which breaks at its kinks and at the ends of steep error functions."""
        if problem.k == 2:
            return self._between_planes(problem, L)
        steep = FLAT / jnp.maximum(jnp.stack([jnp.max(abs(slopes)), jnp.min(abs(slopes))]), FLAT / RANGE)
        breaks = [jnp.asarray(kinks_along(problem)) / L[0, 0], steep, -steep, jnp.zeros(1)]
        points, weights = line_rule(jnp.concatenate(breaks), self.rule.half)
        return points[:, None], weights

    def _between_planes(
        self, problem: Problem, L: Float[Array, "2 2"]
    ) -> tuple[Float[Array, "points 2"], Float[Array, " points"]]:
        """Return the rule for two target fields, along the normal of the first planes of kinks and across it."""
        planes = kink_planes(problem.target)
        assert planes
        rows = jnp.asarray([plane.direction for plane in planes]) @ L
        length = jnp.linalg.norm(rows[0])
        along = rows[0] / length
        across = jnp.stack([-along[1], along[0]])
        x, w = line_rule(jnp.concatenate([jnp.asarray(planes[0].places) / length, jnp.asarray(EVEN)]), self.rule.half)

        def beside(x: Array) -> tuple[Array, Array]:
            if len(planes) == 1:
                return line_rule(jnp.asarray(EVEN), self.rule.half)
            shift, scale = (rows[1] @ along) * x, rows[1] @ across
            places = (jnp.asarray(planes[1].places) - shift) / jnp.where(jnp.abs(scale) > 1e-12, scale, 1e-12)
            return line_rule(jnp.concatenate([jnp.clip(places, -1e6, 1e6), jnp.asarray(EVEN)]), self.rule.half)

        y, v = jax.vmap(beside)(x)
        points = x[:, None, None] * along[None, None, :] + y[:, :, None] * across[None, None, :]
        return points.reshape(-1, 2), (w[:, None] * v).ravel()

    @property
    def name(self) -> str:
        terms = np.count_nonzero(self.student.weights)
        mixed = f", mixtures of {terms}" if terms > 1 else ""
        if self.is_between_kinks:
            return f"closed form of the student{mixed}; {self.order} nodes between kinks of the target"
        return f"closed form of the student{mixed}; Gauss-Hermite {self.order}^{self.rule.half.points.shape[1]}"


def kinks_along(problem: Problem) -> tuple[float, ...]:
    """Return the known kinks of a target of one field that is not smooth."""
    return (problem.target.kinks or ((),))[0]


def _suits_planes(problem: Problem) -> bool:
    """Whether the target has two fields and kinks on planes of at most two directions, so that panels end at them."""
    target = problem.target
    if target.k != 2 or target.is_smooth or tail_share(target, REACH) > TAIL:
        return False
    if problem.p <= FEW_UNITS and ridges_of(target) is not None:
        return False
    planes = kink_planes(target)
    return planes is not None and 1 <= len(planes) <= 2


def suits_kinked_target(problem: Problem) -> bool:
    """Whether the target has one field with known kinks, so that a rule between them can be used."""
    target = problem.target
    return target.k == 1 and not target.is_smooth and target.kinks is not None and tail_share(target, REACH) <= TAIL


def suits_smooth_target(problem: Problem) -> Suits:
    """Return whether a product rule over the k target fields is accurate."""
    target: AbstractTarget = problem.target
    if not target.is_smooth:
        return Suits(False, "a rule for smooth functions is inaccurate for a target with kinks")
    if target.k > MAX_FIELDS:
        return Suits(False, f"{target.k} target fields, limit {MAX_FIELDS}")
    if tail_share(target, REACH) > TAIL:
        return Suits(False, "the target grows so fast that its average comes from beyond the reach of the rule")
    error = order_for(target, UNSETTLED, 1.0)[1]
    if error > UNSETTLED:
        return Suits(False, f"the target oscillates: the finest rule is only accurate to {error:.0e}")
    return Suits(True)
