r"""The moments with at most one slope of any student, integrated first along one student field between its kinks.

For a function h of further fields (another unit, or the target), with :math:`C_{ju}` the covariances,

.. math:: E[\sigma'_j\,\ell_u\,h] = \frac{C_{ju}}{C_{jj}}\,E[\sigma'_j \lambda_j h]
          + \Big(C_{u\cdot} - \frac{C_{ju}}{C_{jj}} C_{j\cdot}\Big) \cdot E[\sigma'_j \nabla h]

by Stein's lemma for the part of the field u that is independent of the field j. Two fields suffice for a pair of units,
k + 1 for a target of k fields. Nothing is divided by a conditional variance, so singular overlaps need no special care.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.break_points import target_breaks
from twolayer.expectation.closed.relu_averages import safe_root
from twolayer.expectation.closed.thresholds import thresholds
from twolayer.expectation.doubt import Marginals, doubts
from twolayer.expectation.engine import ROUNDING, TOO_MANY_KINKS, AbstractEngine, AbstractRule, Suits, with_others
from twolayer.expectation.gaussian_moments import (
    TargetIntegrals,
    UnitIntegrals,
    from_target,
    from_units,
    student_weights,
    unit_weights,
)
from twolayer.expectation.rules import (
    RANGE,
    QuadratureRule,
    coarser_orders,
    legendre_rule,
    line_rule,
    order_for,
    tensor_rule,
)
from twolayer.expectation.tilted import kinks_along, suits_kinked_target, suits_smooth_target
from twolayer.problem import AbstractActivation, Overlaps, Problem
from twolayer.specification.fields import count, static

# Nodes on each panel between kinks.
PANEL = 48
# Distance, in widths, beyond which a kink smoothed by nearly determined fields has no effect: erf(8 / sqrt 2) is one.
SMEAR = 8.0


def ratio(x: Array, y: Array) -> Array:
    """Return x / y, and zero where y is zero, since a field without variance has no covariances."""
    return jnp.where(y > 0.0, x / jnp.where(y > 0.0, y, 1.0), 0.0)


def place(position: Array, scale: Array) -> Array:
    """Return the place of a kink in units of the deviation; outside of the range if the deviation is zero."""
    is_free = scale > 1e-300
    return jnp.where(is_free, position / jnp.where(is_free, scale, 1.0), 100.0 * RANGE * jnp.sign(position))


def one_slope_integrals(
    omega: Float[Array, "n n"],
    p: int,
    units: np.ndarray,
    along: Float[Array, "p units"],
    slopes: Float[Array, "p units"],
    size: Callable[[Array], Array] = lambda x: x,
) -> Float[Array, "p n units"]:
    r"""Return :math:`I_3` from :math:`E[\sigma'_j \lambda_j \sigma_w]` and :math:`E[\sigma'_j \sigma'_w]`.

    With ``size=abs`` and bounds on these averages, the result is a bound on :math:`I_3`.
    """
    rate = ratio(omega[:p], jnp.diagonal(omega)[:p, None])  # C_ju / C_jj
    conditional = omega[None, :, units] - rate[:, :, None] * omega[:p, None, units]
    return size(rate)[:, :, None] * along[:, None, :] + size(conditional) * slopes[:, None, :]


def pair(
    first: AbstractActivation, second: AbstractActivation, C: Float[Array, "2 2"], panel: QuadratureRule
) -> Float[Array, "3"]:
    r"""Return :math:`E[\sigma\rho],\ E[\sigma' x \rho],\ E[\sigma'\rho']` for :math:`\sigma(x), \rho(y)`.

    The outer rule runs along x and breaks at the kinks of the first function and, where y is nearly determined by x,
    around the places at which y passes a kink of the second; the inner rule runs along the part of y independent of x.
    """
    scale = safe_root(C[0, 0])
    pull = ratio(C[0, 1], scale)
    width = safe_root(C[1, 1] - pull**2)
    breaks = [place(jnp.asarray(kink), scale) for kink in first.kinks]
    for kink in second.kinks:
        centre, spread = place(jnp.asarray(kink) * jnp.sign(pull), abs(pull)), place(SMEAR * width, abs(pull))
        breaks += [centre, centre - spread, centre + spread]
    outer, outer_weights = line_rule(jnp.stack(breaks) if breaks else jnp.zeros(1), panel)
    x = scale * outer

    def at(mean: Array) -> tuple[Array, Array]:
        places = [place(kink - mean, width) for kink in second.kinks]
        inner, weights = line_rule(jnp.stack(places) if places else jnp.zeros(1), panel)
        y = mean + width * inner
        return weights @ second(y), weights @ second.derivative(y)

    value, slope = jax.vmap(at)(pull * outer)
    sigma, sigma_slope = first(x), first.derivative(x)
    averages = [sigma * value, sigma_slope * x * value, sigma_slope * slope]
    return jnp.stack([outer_weights @ average for average in averages])


class Slices(AbstractRule):
    """Rules on the ``panel`` between kinks along one field, and a product ``rule`` for the target fields.

    They compute the risk and the moments with one slope; two slopes involve too many fields at once.
    """

    panel: QuadratureRule
    rule: QuadratureRule | None
    order: int = static(count("order", low=0, high=128))
    # Whether features or growth may be missed, and whether a bound on what is missed is added to the moments.
    is_doubted: bool = eqx.field(static=True, default=True)
    is_doubting: bool = eqx.field(static=True, default=False)
    others: tuple[AbstractEngine, ...] = ()

    floor: ClassVar[float] = ROUNDING

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if moment not in ("excess_risk", "chi", "v"):
            return Suits(False, f"{problem.k + 3} fields, limit {problem.k + 1}")
        if not all(activation.has_known_kinks for activation in _activations(problem)):
            return Suits(False, TOO_MANY_KINKS)
        if problem.target.units is not None or suits_kinked_target(problem):
            return Suits(True)
        return suits_smooth_target(problem)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Slices":
        panels = [legendre_rule(n).padded(PANEL) for n in (PANEL, int(0.7 * PANEL), PANEL // 2)]
        doubted = not all(map(_is_plain, _activations(problem)))
        if problem.target.units is not None or suits_kinked_target(problem):
            doubted = doubted or (problem.k == 1 and bool(target_breaks(problem.target).ends))
            return with_others([cls(panel, None, 0, doubted) for panel in panels])
        order, _ = order_for(problem.target, rtol, 1.0)
        rules = [tensor_rule(n, problem.k, 1e-9 * rtol) for n in (order, *coarser_orders(order))]
        size = len(rules[0].weights)
        pairs = zip(panels, rules, strict=True)
        return with_others([cls(panel, rule.padded(size), order, doubted) for panel, rule in pairs])

    @property
    def doubters(self) -> tuple[AbstractEngine, ...]:
        return (dataclasses.replace(self, others=(), is_doubting=True),) if self.is_doubted else ()

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        activations = _activations(problem)
        if problem.target.units is not None:
            c = unit_weights(problem, overlaps.a)
            values = from_units(c, self._units(problem, overlaps, activations), 0.0)
        else:
            c = student_weights(problem, overlaps.a)
            of_student = self._units(problem, overlaps, activations)
            target = self._kinked_target if self.rule is None else self._target
            values = from_target(c, of_student, target(problem, overlaps), 0.0)
        values = {name: values[name] for name in wanted}
        if not self.is_doubting:
            return values
        missed = doubts(problem, overlaps, values, self._marginals(problem, overlaps))
        return {name: values[name] + missed[name] for name in wanted}

    def _marginals(self, problem: Problem, overlaps: Overlaps) -> Marginals:
        """Return the nodes along single fields."""
        lengths = safe_root(jnp.diagonal(overlaps.omega))

        def along(activation: AbstractActivation, scale: Array) -> tuple[Array, Array]:
            breaks = place(jnp.asarray(activation.kinks), scale) if activation.kinks else jnp.zeros(1)
            x, w = line_rule(breaks, self.panel)
            return scale * x, w

        student, *target = _activations(problem)
        of_student = jax.vmap(lambda scale: along(student, scale), out_axes=1)(lengths[: problem.p])
        if target:
            return Marginals(
                *of_student, *jax.vmap(lambda scale: along(target[0], scale), out_axes=1)(lengths[problem.p :])
            )
        if self.rule is None:
            x, w = line_rule(place(jnp.asarray(kinks_along(problem)), lengths[-1]), self.panel)
            return Marginals(*of_student, lengths[-1] * x[:, None], w[:, None])
        grid, weights = jnp.asarray(self.rule.points), jnp.asarray(self.rule.weights)
        fields = grid @ jnp.linalg.cholesky(overlaps.P).T
        return Marginals(*of_student, fields, jnp.broadcast_to(weights[:, None], fields.shape))

    def _units(self, problem: Problem, overlaps: Overlaps, kinds: list[AbstractActivation]) -> UnitIntegrals:
        """Return the integrals over pairs of units of the student, and of the target if it has units."""
        p, omega = problem.p, overlaps.omega
        groups = [np.arange(p), np.arange(p, p + problem.k)][: len(kinds)]
        blocks = [[self._pairs(kinds, groups, omega, i, j) for j in range(len(kinds))] for i in range(len(kinds))]
        whole = _join(blocks)
        I2 = 0.5 * (whole[..., 0] + whole[..., 0].T)
        along, slopes = whole[:p, :, 1], whole[:p, :, 2]
        I3 = one_slope_integrals(omega, p, np.concatenate(groups), along, slopes)
        return UnitIntegrals(I2, slopes[:, :p], I3, None)

    def _pairs(
        self, kinds: list[AbstractActivation], groups: list[np.ndarray], omega: Array, i: int, j: int
    ) -> Float[Array, "rows columns 3"]:
        """Return the integrals over all pairs between two groups of units with one activation each."""

        def at(u: Array, w: Array) -> Array:
            index = jnp.stack([u, w])
            return pair(kinds[i], kinds[j], omega[index][:, index], self.panel)

        return jax.vmap(lambda u: jax.vmap(lambda w: at(u, w))(jnp.asarray(groups[j])))(jnp.asarray(groups[i]))

    def _target(self, problem: Problem, overlaps: Overlaps) -> TargetIntegrals:
        p, omega, activation = problem.p, overlaps.omega, problem.student.activation
        assert self.rule is not None
        grid, weights = jnp.asarray(self.rule.points), jnp.asarray(self.rule.weights)
        root = jnp.linalg.cholesky(overlaps.P)

        def target_at(point: Float[Array, " k"]) -> Array:
            return problem.target(point[None, :])[0]

        value_and_slope = jax.vmap(jax.vmap(jax.value_and_grad(target_at)))

        def along(m: Float[Array, " k"], q: Array) -> tuple[Array, Array, Array]:
            """Return E[f sigma], E[sigma' x f] and E[sigma' grad f] for one student field of variance q."""
            scale = safe_root(q)
            breaks = [place(jnp.asarray(kink), scale) for kink in activation.kinks]
            outer, outer_weights = line_rule(jnp.stack(breaks) if breaks else jnp.zeros(1), self.panel)
            v = ratio(jax.scipy.linalg.solve_triangular(root, m, lower=True), scale)
            # The square root of I - v v^T, which is singular if the student's field is a function of the target's.
            left = safe_root(1.0 - v @ v)
            conditional = root - (root @ v)[:, None] * v[None, :] / (1.0 + left)
            points = ratio(m, scale)[None, None, :] * outer[:, None, None] + (grid @ conditional.T)[None, :, :]
            f, slope = value_and_slope(points)
            f, slope = f @ weights, jnp.einsum("xgk,g->xk", slope, weights)
            x = scale * outer
            sigma, sigma_slope = outer_weights * activation(x), outer_weights * activation.derivative(x)
            return sigma @ f, (sigma_slope * x) @ f, sigma_slope @ slope

        fs, along_field, slopes = jax.vmap(along)(overlaps.M, jnp.diagonal(overlaps.Q))
        rate = ratio(omega[:p], jnp.diagonal(omega)[:p, None])
        conditional = omega[None, :, p:] - rate[:, :, None] * omega[:p, None, p:]
        fv = rate * along_field[:, None] + jnp.einsum("jur,jr->ju", conditional, slopes)
        return TargetIntegrals(weights @ problem.target(grid @ root.T) ** 2, fs, fv)

    def _kinked_target(self, problem: Problem, overlaps: Overlaps) -> TargetIntegrals:
        r"""Return the integrals of a target of one field with known kinks, along its field given the student's.

        A jump has no slope that could be averaged, so that Stein's lemma does not help. Instead the fields are written
        in the two normals of the rule, :math:`\ell_u = c_u x + d_u y`, and a part that is independent of both.
        """
        p, omega, activation = problem.p, overlaps.omega, problem.student.activation
        kinks, length = jnp.asarray(kinks_along(problem)), jnp.sqrt(overlaps.P[0, 0])

        def along(row: Float[Array, " n"], q: Array) -> tuple[Array, Array]:
            """Return E[f sigma] and E[sigma' l_u f] for a student field of given covariances and variance."""
            scale = safe_root(q)
            pull = ratio(row[p], scale)
            width = safe_root(overlaps.P[0, 0] - pull**2)
            centre, spread = place(kinks * jnp.sign(pull), abs(pull)), place(SMEAR * width, abs(pull))
            own_kinks = place(jnp.asarray(activation.kinks), scale) if activation.kinks else jnp.zeros(1)
            breaks = jnp.concatenate([own_kinks, centre, centre - spread, centre + spread])
            outer, outer_weights = line_rule(breaks, self.panel)
            inner, weights = jax.vmap(lambda x: line_rule(place(kinks - pull * x, width), self.panel))(outer)
            f = weights * problem.target((pull * outer[:, None] + width * inner)[:, :, None])
            x = scale * outer
            slope = outer_weights * activation.derivative(x)
            level, lean = jnp.sum(f, axis=1), jnp.sum(f * inner, axis=1)
            c = ratio(row, scale)
            d = ratio(omega[p] - c * pull, width)
            return (outer_weights * activation(x)) @ level, c * ((slope * outer) @ level) + d * (slope @ lean)

        fs, fv = jax.vmap(along)(omega[:p], jnp.diagonal(overlaps.Q))
        nodes, weights = line_rule(place(kinks, length), self.panel)
        return TargetIntegrals(weights @ problem.target(length * nodes[:, None]) ** 2, fs, fv)

    @property
    def name(self) -> str:
        target = f", Gauss-Hermite of order {self.order} for the target" if self.order else ""
        return f"slices, {self.panel.size} nodes between kinks{target}"


def _activations(problem: Problem) -> list[AbstractActivation]:
    """Return the activations of the student and of the target's units, if it has units."""
    units = problem.target.units
    return [problem.student.activation] + ([] if units is None else [units.activation])


def _is_plain(activation: AbstractActivation) -> bool:
    """Whether a function is scale invariant, so that the length of its field does not matter."""
    one_kink = thresholds(activation)
    return activation.coefficients is not None or (one_kink is not None and one_kink.is_relu)


def _join(blocks: list[list[Array]]) -> Float[Array, "n n 3"]:
    return jnp.concatenate([jnp.concatenate(row, axis=1) for row in blocks], axis=0)
