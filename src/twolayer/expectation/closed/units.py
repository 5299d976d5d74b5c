r"""Closed forms for students and targets whose units are all noisy thresholds :cite:p:`saad1995`.

The formulas are for rows, the single thresholds of which units consist (`thresholds.py`); covariances are those of the
fields, with the noise :math:`\tau^2` of each row added to its variance: :math:`\kappa = C + \tau^2`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from twolayer.core.linalg import pair_positions
from twolayer.expectation.closed.linear import mean_square_of_linear, pairs_of_linear, quartic_of_linear
from twolayer.expectation.closed.relu_averages import (
    COINCIDENT,
    Three,
    arcsine,
    difference,
    interpolation_rule,
    orthant,
    safe_root,
    two_steps_and_a_relu,
    two_steps_and_a_sign,
    two_steps_and_two_units,
    two_units,
)
from twolayer.expectation.closed.thresholds import (
    Thresholds,
    UnitList,
    mixture,
    room_for,
    terms_for,
    thresholds,
    unit_list,
)
from twolayer.expectation.engine import ROUNDING, AbstractEngine, AbstractRule, Suits, with_others
from twolayer.expectation.gaussian_moments import UnitIntegrals, from_units, unit_weights
from twolayer.expectation.rules import QuadratureRule
from twolayer.problem import Overlaps, Problem

# Nodes of the one-dimensional integral for two steps and two units; sixteen give twelve digits where no two fields
# nearly coincide, and nine of them near recovery. Below the tolerance there are more.
NODES, MORE, FINE = 16, 28, 1e-8
# The angle between two relus that nearly coincide is of the order of the square root of rounding. Coarser versions are
# computed at covariances changed by rounding, away from coincidence, so that the error includes it.
NUDGE = 2e-15


def noisy_determinant(C12: Array, C11: Array, C22: Array, t1: Array, t2: Array) -> Array:
    r"""Return :math:`(C_{11} + \tau_1^2)(C_{22} + \tau_2^2) - C_{12}^2` without cancellation."""
    determinant = difference(C11, C22, C12, C12)
    # For a field with itself the difference is pure rounding, whose square root would be much larger.
    determinant = jnp.where(determinant > COINCIDENT * C11 * C22, determinant, 0.0)
    return determinant + t1 * C22 + t2 * C11 + t1 * t2


def means(S: Float[Array, " rows"], units: UnitList) -> Float[Array, " rows"]:
    r"""Return :math:`E[g]` of each row for field variances S: zero, or :math:`\sqrt{\kappa/2\pi}` for relus."""
    return jnp.where(jnp.asarray(units.is_relu), safe_root(S + units.noise) / np.sqrt(2.0 * np.pi), 0.0)


def products(C: Float[Array, "rows rows"], units: UnitList) -> Float[Array, "rows rows"]:
    r"""Return :math:`E[g_a g_b]` for all pairs of rows, given the covariances of their fields.

    .. math::
        \text{two signs: } \tfrac2\pi \arcsin\frac{C_{ab}}{\sqrt{\kappa_a\kappa_b}}, \qquad
        \text{sign and relu: } \frac{C_{ab}}{\sqrt{2\pi\kappa_a}}, \qquad
        \text{two relus: as in } \texttt{relu.py}
    """
    variance, noise = jnp.diagonal(C), units.noise
    kinds = set(units.is_relu.tolist())
    if kinds == {False}:
        root = safe_root(noisy_determinant(C, variance[:, None], variance[None, :], noise[:, None], noise[None, :]))
        return 2.0 / np.pi * jnp.arctan2(C, root)
    kappa = variance + noise
    angle = arcsine(C, kappa[:, None], kappa[None, :])
    relus = two_units(C, kappa[:, None], kappa[None, :])
    if kinds == {True}:
        return relus
    is_relu = jnp.asarray(units.is_relu)
    of_sign = 1.0 / jnp.sqrt(2.0 * np.pi * jnp.where(is_relu, 1.0, kappa))
    mixed = C * jnp.where(is_relu[:, None], of_sign[None, :], of_sign[:, None])
    both, neither = is_relu[:, None] & is_relu[None, :], ~is_relu[:, None] & ~is_relu[None, :]
    return jnp.where(both, relus, jnp.where(neither, 2.0 / np.pi * angle, mixed))


def weighted_square(
    S: Float[Array, "n n"], units: UnitList, weights: Float[Array, " rows"], once: bool = True
) -> Float[Array, ""]:
    r"""Return :math:`E[(\sum_a w_a g_a)^2]` at the covariance S of the fields.

    With ``once``, each pair of signs is computed once, since the arctangents of pairs dominate the cost; without it all
    pairs are computed, which is faster for derivatives, since these need no arctangents.
    """
    if np.any(units.is_relu) or not once:
        C = S if len(units.fields) == len(S) else S[units.fields][:, units.fields]
        return weights @ products(C, units) @ weights
    left, right = np.triu_indices(len(units.fields))
    first, second = units.fields[left], units.fields[right]
    variance = jnp.diagonal(S)
    determinant = noisy_determinant(
        S[first, second], variance[first], variance[second], units.noise[left], units.noise[right]
    )
    angles = 2.0 / np.pi * jnp.arctan2(S[first, second], safe_root(determinant))
    return jnp.sum(jnp.where(left == right, 1.0, 2.0) * weights[left] * weights[right] * angles)


def mean_square(
    S: Float[Array, "n n"], units: UnitList, c: Float[Array, " units"], once: bool = True
) -> Float[Array, ""]:
    r"""Return :math:`E[(\sum_u c_u \sigma_u)^2]` at the covariance S of the fields."""
    weights = c[units.fields] * units.weights
    offset = c @ units.offsets
    mean = weights @ means(jnp.diagonal(S)[units.fields], units)
    total = weighted_square(S, units, weights, once) + 2.0 * offset * mean + offset**2
    return total + mean_square_of_linear(S, units, c) if units.has_linear else total


def integrals(
    omega: Float[Array, "n n"],
    slopes: UnitList,
    units: UnitList,
    c: Float[Array, " units"],
    line: QuadratureRule | None,
    nudge: Array | float = 0.0,
) -> UnitIntegrals:
    r"""Return all integrals over the slopes of the student's units and the values of the given units.

    For signs, with slopes :math:`\sigma' = 2 N(0, \tau^2)`,

    .. math::
        J_2 = \frac{2}{\pi\sqrt{\kappa_1\kappa_2 - C_{12}^2}}, \qquad
        I_3 = \frac2\pi \frac{C_{23}\kappa_1 - C_{12}C_{13}}{\kappa_1 \sqrt{\kappa_1\kappa_3 - C_{13}^2}}

    and the four-field average is J_2 times the two-field average at the covariance conditioned on the slopes,
    :math:`S = C - C_{\cdot,12} K^{-1} C_{12,\cdot}` with :math:`K = C_{\{12\}} + \mathrm{diag}(\tau^2)`.
    They are valid for any covariance, including singular ones. Steps need an integral along ``line``; if it is None,
    the four-field average is omitted. ``nudge`` changes the covariances given a field, as rounding does.
    """
    C = omega[units.fields][:, units.fields]
    averages, offsets = units.to_units(means(jnp.diagonal(C), units), 0), jnp.asarray(units.offsets)
    I2 = units.to_units(products(C, units), 0, 1)
    I2 = I2 + offsets[:, None] * offsets[None, :]
    I2 = I2 + offsets[:, None] * averages[None, :] + averages[:, None] * offsets[None, :]
    of_steps = bool(slopes.is_relu[0])
    J2, I3 = (_step_pairs if of_steps else _bell_pairs)(omega, slopes, units)
    quartic = None
    if line is not None:
        quartic = (
            _step_quartic(omega, slopes, units, c, line, nudge) if of_steps else _bell_quartic(omega, slopes, units, c)
        )
    if units.has_linear:
        more = pairs_of_linear(omega, slopes, units)
        I2, J2, I3 = I2 + more[0], J2 + more[1], I3 + more[2]
        if quartic is not None and of_steps:
            quartic = quartic + quartic_of_linear(omega, slopes, units, c, mean_square(omega, units, c, once=False))
    return UnitIntegrals(I2, J2, I3, quartic)


def _covariances(omega: Array, slopes: UnitList, units: UnitList) -> tuple[Array, Array, Array, Array]:
    """Return covariances of slopes with fields and with units, noisy variances of slopes, determinants with units."""
    to_fields = omega[slopes.fields]  # (slopes, n)
    cross = to_fields[:, units.fields]  # (slopes, rows)
    diagonal = jnp.diagonal(omega)
    slope_variance, unit_variance = diagonal[slopes.fields], diagonal[units.fields]
    noise_own, noise_other = slopes.noise, units.noise
    det = noisy_determinant(
        cross, slope_variance[:, None], unit_variance[None, :], noise_own[:, None], noise_other[None, :]
    )
    return to_fields, cross, slope_variance + noise_own, det


def _bell_pairs(omega: Array, slopes: UnitList, units: UnitList) -> tuple[Array, Array]:
    """Return J2 and I3 for slopes that are bells, the derivatives of noisy signs."""
    J2 = slopes.to_units(2.0 / np.pi / jnp.sqrt(_covariances(omega, slopes, slopes)[3]), 0, 1)
    to_fields, cross, kappa, det = _covariances(omega, slopes, units)
    S = omega[:, units.fields][None, :, :] - to_fields[:, :, None] * (cross / kappa[:, None])[:, None, :]
    of_signs = 2.0 / np.pi / safe_root(jnp.where(jnp.asarray(units.is_relu)[None, :], 1.0, det))
    of_relus = jnp.broadcast_to((1.0 / jnp.sqrt(2.0 * np.pi * kappa))[:, None], det.shape)
    factor = jnp.where(jnp.asarray(units.is_relu)[None, :], of_relus, of_signs)
    return J2, units.to_units(slopes.to_units(S * factor[:, None, :], 0), 2)


def _step_pairs(omega: Array, slopes: UnitList, units: UnitList) -> tuple[Array, Array]:
    """Return J2 and I3 for slopes that are steps, the derivatives of relus.

    A unit whose field is zero has slope zero, so that a row of zero weights never moves.
    """
    hot, weights = slopes.one_hot, units.one_hot
    _, among, kappa, _ = _covariances(omega, slopes, slopes)
    J2 = hot.T @ orthant(among, kappa[:, None], kappa[None, :]) @ hot
    to_fields, cross, _, det = _covariances(omega, slopes, units)
    noisy = jnp.diagonal(omega)[units.fields] + units.noise
    is_relu, is_free = jnp.asarray(units.is_relu), kappa > 0.0
    safe = jnp.where(is_free, kappa, 1.0)
    # By Stein's lemma: the covariance with the slope times a bell, and the covariance with the unit times its slope.
    area = jnp.where(is_relu[None, :] & is_free[:, None], safe_root(det) / (2.0 * np.pi * safe[:, None]), 0.0)
    bell = 1.0 / jnp.sqrt(2.0 * np.pi * jnp.where(is_relu, 1.0, noisy))
    slope = jnp.where(is_relu[None, :], orthant(cross, kappa[:, None], noisy[None, :]), bell[None, :])
    I3 = jnp.einsum("aj,au,aw,wx->jux", hot, to_fields, area, weights)
    I3 = I3 + jnp.einsum("aj,uw,aw,wx->jux", hot, omega[:, units.fields], slope, weights)
    pull = jnp.where(is_free, 1.0 / jnp.sqrt(2.0 * np.pi * safe), 0.0)
    I3 = I3 + jnp.einsum("aj,au,a,x->jux", hot, to_fields, pull, jnp.asarray(units.offsets))
    moves = jnp.where(is_free, 1.0, 0.0)
    return J2 * moves[:, None] * moves[None, :], I3 * moves[:, None, None]


def _bell_quartic(omega: Array, slopes: UnitList, units: UnitList, c: Array) -> Array:
    """Return the average of two bells and the squared sum of units, for all pairs of slopes."""
    det = _covariances(omega, slopes, slopes)[3]
    noise = slopes.noise

    def pair(a: Array, b: Array) -> Array:
        S = conditioned(
            omega, jnp.asarray(slopes.fields)[a], jnp.asarray(slopes.fields)[b], noise[a], noise[b], det[a, b]
        )
        return 2.0 / np.pi / jnp.sqrt(det[a, b]) * mean_square(S, units, c)

    return over_slope_pairs(pair, slopes)


def conditioned(omega: Array, i: Array, j: Array, noise_i: Array, noise_j: Array, det: Array) -> Float[Array, "n n"]:
    r"""Return the covariance of all fields given that two are zero up to noise, :math:`C - C_{ij} K^{-1} C_{ij}^T`."""
    kii, kjj, kij = omega[i, i] + noise_i, omega[j, j] + noise_j, omega[i, j]
    ci, cj = omega[:, i], omega[:, j]
    # K^-1 is applied to the two columns first, since products of the columns would square their size.
    ti, tj = (kjj * ci - kij * cj) / det, (kii * cj - kij * ci) / det
    S = omega - ci[:, None] * ti[None, :] - cj[:, None] * tj[None, :]
    return 0.5 * (S + S.T)


def over_slope_pairs(pair: Callable[[Array, Array], Any], slopes: UnitList) -> PyTree:
    """Evaluate a symmetric function of two slope rows for all pairs, and sum it to a matrix over student units."""
    rows, columns = np.triu_indices(len(slopes.fields))
    values = jax.vmap(pair)(jnp.asarray(rows), jnp.asarray(columns))
    return jax.tree.map(lambda x: slopes.to_units(x[pair_positions(len(slopes.fields))], 0, 1), values)


def _step_quartic(
    omega: Array, slopes: UnitList, units: UnitList, c: Array, line: QuadratureRule, nudge: Array | float
) -> Array:
    """Return the average of two steps and the squared sum of units; slopes and units are single thresholds here."""
    p, noise = len(slopes.fields), units.noise
    weights = c[units.fields] * units.weights
    offset = c @ units.offsets
    left, right = np.triu_indices(p)
    variance = jnp.diagonal(omega)[slopes.fields]
    total = offset**2 * orthant(omega[left, right], variance[left], variance[right])

    def covariance(index: Array, rows: Array) -> Array:
        """Return the covariance of two slopes and then units, given by their rows, with the noise of each added."""
        fields = jnp.concatenate([index, jnp.asarray(units.fields)[rows]])
        return omega[fields][:, fields] + jnp.diag(jnp.concatenate([jnp.zeros(2), noise[rows]]))

    def triple(index: Array, row: Array, is_relu: bool) -> Array:
        C = covariance(index, row[None])
        V = Three(aa=C[0, 0], bb=C[1, 1], cc=C[2, 2], ab=C[0, 1], ac=C[0, 2], bc=C[1, 2])
        average = two_steps_and_a_relu if is_relu else two_steps_and_a_sign
        return average(V, jnp.max(jnp.diagonal(C)))

    def quadruple(index: Array, row: Array, are_relu: tuple[bool, bool]) -> Array:
        return two_steps_and_two_units(covariance(index, row), are_relu, line, nudge)

    slope_pairs = jnp.asarray(np.stack([left, right], axis=1))
    over = lambda average, rows: jax.vmap(lambda i: jax.vmap(lambda row: average(i, row))(rows))(slope_pairs)  # noqa: E731
    relus, signs = np.flatnonzero(units.is_relu), np.flatnonzero(~units.is_relu)
    if np.any(units.offsets != 0.0):
        for rows, is_relu in ((relus, True), (signs, False)):
            if len(rows):
                once = over(lambda i, row, kind=is_relu: triple(i, row, kind), jnp.asarray(rows))
                total = total + 2.0 * offset * once @ weights[rows]
    for first, second, kinds in (
        (relus, relus, (True, True)),
        (relus, signs, (True, False)),
        (signs, signs, (False, False)),
    ):
        grid = np.array([(u, w) for u in first for w in second if kinds[0] != kinds[1] or u <= w]).reshape(-1, 2)
        if len(grid):
            twice = over(lambda i, row, are=kinds: quadruple(i, row, are), jnp.asarray(grid))
            multiplicity = np.where(grid[:, 0] == grid[:, 1], 1.0, 2.0)
            total = total + twice @ (multiplicity * weights[grid[:, 0]] * weights[grid[:, 1]])
    moves = jnp.where(variance > 0.0, slopes.weights, 0.0)
    return total[pair_positions(p)] * moves[:, None] * moves[None, :]


def _directions(n: int) -> Float[np.ndarray, "n n"]:
    """Return a possible effect of rounding on a covariance: variances up, covariances down, by different amounts."""
    sizes = np.random.default_rng(0).uniform(0.5, 1.5, (n, n))
    sizes = 0.5 * (sizes + sizes.T)
    return np.where(np.eye(n, dtype=bool), sizes, -sizes)


class ThresholdUnits(AbstractRule):
    """Closed forms for a student and a target whose units are erf, tanh, sigmoid, relu, leaky relu or abs.

    tanh and sigmoid are mixtures of thresholds; two steps and two units need an integral along a ``line``. The error of
    both is measured by fewer terms and fewer points. Erf needs neither.
    """

    student: Thresholds
    target: Thresholds
    line: QuadratureRule
    nudge: Any
    floor: float = eqx.field(static=True)
    others: tuple[AbstractEngine, ...] = ()

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        units = problem.target.units
        student = thresholds(problem.student.activation)
        if student is None:
            return Suits(False, f"no closed form for a {problem.student.activation} student")
        if units is None:
            return Suits(False, "the target is not a sum of units")
        target = thresholds(units.activation)
        if target is None:
            return Suits(False, f"no closed form for {units.activation} units in the target")
        if moment == "covariance":
            return Suits(False, "no closed form for four displacements")
        return Suits(True)

    @classmethod
    def room(cls, problem: Problem, moment: str, rtol: float, p: int) -> float:
        assert problem.target.units is not None
        terms = terms_for(rtol)
        kinds = [mixture(x, terms, terms) for x in (problem.student.activation, problem.target.units.activation)]
        rows = p * len(kinds[0].weights)
        nodes = float(NODES) if any(unit.is_relu for unit in kinds) else 0.5
        return room_for(moment, rows, rows + problem.k * len(kinds[1].weights), nodes)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "ThresholdUnits":
        assert problem.target.units is not None
        student, target = problem.student.activation, problem.target.units.activation

        terms, size = terms_for(rtol), NODES if rtol >= FINE else MORE
        # Two mixtures may agree by accident; the known distance to the activation bounds the error.
        floor = max(ROUNDING, *(mixture(activation, terms, terms).sup_error for activation in (student, target)))

        def member(fewer: int, nodes: int, nudge: float) -> "ThresholdUnits":
            line = interpolation_rule(nodes).padded(size)
            units = [mixture(activation, terms - fewer, terms) for activation in (student, target)]
            return cls(units[0], units[1], line, np.asarray(nudge), floor)

        finest = member(0, size, 0.0)
        kinds = (finest.student, finest.target)
        if not any(unit.is_relu for unit in kinds) and all(unit.is_exact for unit in kinds):
            return finest
        nudge = NUDGE if any(unit.is_relu for unit in kinds) else 0.0
        return with_others([finest, member(1, int(0.7 * size), nudge), member(2, size // 2, nudge)])

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        c = unit_weights(problem, overlaps.a)
        units = unit_list([self.student] * problem.p + [self.target] * problem.k)
        slopes = unit_list([self.student] * problem.p)
        line = self.line if "phi_hd" in wanted else None
        omega = overlaps.omega * (1.0 + self.nudge * _directions(problem.p + problem.k))
        if wanted == ("excess_risk",):
            return {"excess_risk": 0.5 * mean_square(omega, units, c, once=False)}
        values = from_units(c, integrals(omega, slopes, units, c, line, jnp.asarray(self.nudge)), problem.noise)
        return {name: values[name] for name in wanted}

    @property
    def name(self) -> str:
        sizes = [np.count_nonzero(unit.weights) for unit in (self.student, self.target)]
        mixed = f", mixtures of {max(sizes)}" if max(sizes) > 1 else ""
        line = f", {self.line.size} nodes for four fields" if self.student.is_relu else ""
        return f"closed form (thresholds{mixed}{line})"
