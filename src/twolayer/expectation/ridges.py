r"""Students and targets that are sums of functions of one field each, whatever these functions are.

The displacement is :math:`\mathcal E = \sum_u c_u\,g_u(h_u)` with Gaussian fields :math:`h_u`. Averages with one other
factor are made along the field of that factor; given it, each unit is averaged over the rest of its own field. The
moments with two slopes are made along their two fields j and l. Given these, the other fields are normal with means
:math:`\mu_u` linear in them, deviations :math:`s_u` and correlations :math:`\rho_{uv}`, so that, by Mehler's formula,

.. math:: E[g_u g_v \mid j, l] = \sum_q \rho_{uv}^q\,T_{qu} T_{qv}, \qquad
          T_{qu}(\mu) = \frac{1}{\sqrt{q!}} E_y[g_u(\mu + s_u y)\,\mathrm{He}_q(y)]

These are functions of one number, made once for a pair j, l and a unit u, and interpolated. All rules adapt to the
length of the fields (`mesh`). The norm of what the series leaves out is known, and bounds its error.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.base import ROUNDING, AbstractEngine, Suits, by_coarser, with_doubts
from twolayer.expectation.closed.relu import safe_root
from twolayer.expectation.conditional import DETERMINED, Kind, Rules, Tables, smoothed, table_rule
from twolayer.expectation.doubt import ridge_doubts
from twolayer.expectation.mesh import Monitor, even_rule, length_of, mesh
from twolayer.expectation.moments import MOMENTS
from twolayer.expectation.rules import QuadratureRule, legendre_rule
from twolayer.expectation.slices import Slices, ratio
from twolayer.expectation.tails import LEAST, reach, tail_share
from twolayer.expectation.tilted import REACH, TAIL
from twolayer.expectation.units_of import Fields, fields_of, unit_kinds
from twolayer.problem import Overlaps, Problem

# Fewest and most nodes of each rule, and nodes per unit of the variable t of a field. It is that of a student's row of
# the length LONG, or LONGER for waves; longer ones are less accurate.
FEWEST, MOST, PER_LENGTH, LONG, LONGER = 32, 160, 1.2, 3.0, 6.0
# The share of the nodes in the coarser rules that give the error.
COARSER = (0.72, 0.52)
# The accuracy of long rows, below which an integrator gains nothing: each evaluation is expensive, and a method of few
# stages with interpolated save points needs the fewest.
RTOL = 2e-6
# Terms of the series.
TERMS = 20
# Units of the student and of the target together, for moments with two slopes and for others.
MOST_UNITS, MOST_PAIRED = 10, 24
# Units of the student for moments with two slopes: equations of motion with more of them would take minutes.
MOST_SLOPES = 2
# Kinks of all units together, at each of which the rules along a field break, and nodes between them.
MOST_KINKS, BETWEEN = 8, 0.75


class Given(NamedTuple):
    """The fields of all units given some standard normals: slopes of their means, and the remaining covariance."""

    means: Float[Array, "... u"]
    covariance: Float[Array, "u u"]

    @property
    def deviations(self) -> Float[Array, " u"]:
        return safe_root(jnp.diagonal(self.covariance))


class _Line(NamedTuple):
    """A rule along the field of one unit: nodes of the normal number and of the field, and averages of all units."""

    given: Given
    x: Float[Array, "... x"]
    field: Float[Array, "... x"]
    weights: Float[Array, "... x"]
    T: Float[Array, "... u x columns"]


class Ridges(AbstractEngine):
    """Rules along one and two fields that adapt to their length, and Mehler's series for the other fields."""

    rules: Rules
    # One adds the bound on what all rules may miss, zero does not.
    bound: Any = 0.0

    floor: ClassVar[float] = ROUNDING

    @property
    def rtol(self) -> float:
        return RTOL

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if moment == "covariance":
            return Suits(False, "no rule for four displacements")
        if problem.p == problem.k == 1:
            return Suits(False, "two fields only, for which there are smaller rules")
        if tail_share(problem.target, REACH) > TAIL:
            return Suits(False, "the target grows so fast that its average comes from far out")
        kinds = unit_kinds(problem)
        if kinds is None:
            return Suits(False, "the target is not known to be a sum of functions of one field each")
        if not kinds[0].is_continuous:
            return Suits(False, "the activation jumps, so that its derivative is not a function")
        if moment == "phi_hd" and problem.p > MOST_SLOPES:
            return Suits(
                False, f"{problem.p} units of the student, limit {MOST_SLOPES}: along each pair takes too long"
            )
        if problem.p > MOST_SLOPES and Slices.suits(problem, moment).ok:
            return Suits(False, f"{problem.p} units of the student, which rules along single fields serve faster")
        limit = MOST_UNITS if moment == "phi_hd" else MOST_PAIRED
        number = sum(len(kind.units) for kind in kinds)
        if number > limit:
            return Suits(False, f"{number} units of student and target, limit {limit}")
        kinks = sum(len(kind.units) * len(kind.kinks) for kind in kinds)
        if kinks > MOST_KINKS:
            return Suits(False, f"{kinks} kinks of all units, limit {MOST_KINKS}")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Ridges":
        kinds = unit_kinds(problem)
        assert kinds is not None
        longest = [(LONG if kind.breaks.is_settled else LONGER) if i == 0 else 1.0 for i, kind in enumerate(kinds)]
        needed = max(length_of(kind.features, length, LEAST) for kind, length in zip(kinds, longest, strict=True))
        size = int(np.clip(round(PER_LENGTH * needed), FEWEST, MOST))
        return cls._of(size, size, 0.0)

    @classmethod
    def _of(cls, nodes: int, size: int, bound: float) -> "Ridges":
        line = _padded(even_rule(nodes), size)
        panel = _padded(legendre_rule(round(BETWEEN * nodes)), round(BETWEEN * size))
        return cls(Rules(line, panel, table_rule(nodes, size)), np.asarray(bound))

    def variants(self) -> tuple[AbstractEngine, ...]:
        size = len(self.rules.line.weights)
        coarser = (self._of(round(share * size), size, 0.0) for share in COARSER)
        return (self, *coarser, self._of(size, size, 1.0))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        *rules, bounded = results
        return with_doubts(by_coarser(tuple(rules), self.floor), rules[0], (bounded,))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        kinds = unit_kinds(problem)
        assert kinds is not None
        return _Averages(self, problem, overlaps, kinds, wanted).moments()

    @property
    def name(self) -> str:
        return f"rules along pairs of fields, {self.rules.line.size} adaptive nodes; Mehler's series"


def _padded(rule: QuadratureRule, size: int) -> QuadratureRule:
    """Return the rule padded at its right end, so that its points stay in order."""
    more = size - len(rule.weights)
    return QuadratureRule(np.append(rule.points, np.ones(more)), np.append(rule.weights, np.zeros(more)))


class _Averages:
    """The averages of one problem at given overlaps, by the rules of one variant of the engine."""

    def __init__(
        self, engine: Ridges, problem: Problem, overlaps: Overlaps, kinds: tuple[Kind, ...], wanted: tuple[str, ...]
    ):
        self.engine, self.problem, self.overlaps, self.kinds, self.wanted = engine, problem, overlaps, kinds, wanted
        self.p = problem.p
        self.terms = TERMS if "phi_hd" in wanted else 2
        # All moments at once and without noise, so that no moment depends on what else is asked for.
        self.edge = reach(dataclasses.replace(problem, noise=0.0), overlaps, MOMENTS)
        self.fields = self._fields()
        # The kernels of all units, with the unit of each; kinks are kernels without a width of their own.
        self.owner, self.centre, self.width, wave = _kernels(kinds)
        self.wave = jnp.asarray(wave)

    def _fields(self) -> Fields:
        fields = fields_of(self.problem, self.overlaps)
        # The bound covers the rounding of the covariances, from which small conditional ones are differences.
        rounding = self.engine.bound * 4.0 * np.finfo(float).eps
        identity = jnp.eye(len(fields.weights))
        return fields._replace(covariance=fields.covariance * (1.0 + rounding * identity))

    # ------------------------------------------------------------------------------------------------------- rules

    def _rule(self, given: Given, mean: Array) -> tuple[Array, Array]:
        """Return nodes and weights along a normal number on which the fields of all units depend.

        ``given`` holds their slopes along it and what remains of them; ``mean`` are their means.
        """
        slopes, rest, kinks = given.means, given.deviations, jnp.asarray(np.asarray(self.width) == 0.0)
        slope = jnp.where(jnp.abs(slopes) > 1e-30, slopes, 1e-30)
        width = safe_root(jnp.asarray(self.width) ** 2 + rest[self.owner] ** 2) / jnp.abs(slope[self.owner])
        # Kinks of fields that are determined are breaks only, since there is no layer around them.
        width = jnp.where(kinks & (width < DETERMINED), 1e30, jnp.clip(width, 1e-12, 1e30))
        centres = jnp.clip((jnp.asarray(self.centre) - mean[self.owner]) / slope[self.owner], -1e30, 1e30)
        wave = jnp.sum(self.wave * jnp.abs(slopes) * jnp.exp(-0.5 * (self.wave * rest) ** 2))
        breaks = centres[np.flatnonzero(np.asarray(self.width) == 0.0)]
        rule = self.engine.rules.panel if len(breaks) else self.engine.rules.line
        nodes, weights, _ = mesh(Monitor(centres, width, wave, self.edge), breaks, rule)
        return nodes, weights

    def _given(self, unit: Array) -> Given:
        """Return all fields given that of one unit."""
        C = self.fields.covariance
        means = ratio(C[unit], safe_root(C[unit, unit]))
        rest = C - means[:, None] * means[None, :]
        return Given(means, _without(rest, unit))

    def _units(self, mean: Float[Array, "u x"], deviations: Float[Array, " u"]) -> Float[Array, "u x columns"]:
        """Return the averages of all units, at given means and deviations."""
        blocks = []
        for kind in self.kinds:
            units = np.asarray(kind.units)
            make = jax.vmap(lambda mu, s, kind=kind: smoothed(kind, mu, s, self.edge, self.engine.rules, self.terms))
            blocks.append(make(mean[units], deviations[units]))
        return jnp.concatenate(blocks)

    def _along(self, unit: Array) -> _Line:
        """Return the rule along the field of a unit, and the averages of all units at its nodes."""
        given = self._given(unit)
        x, w = self._rule(given, jnp.zeros(len(self.fields.weights)))
        T = self._units(given.means[:, None] * x[None, :], given.deviations)
        return _Line(given, x, given.means[unit] * x, w, T)

    # ----------------------------------------------------------------------------------------------------- moments

    def moments(self) -> dict[str, Array]:
        p, c = self.p, self.fields.weights
        # One program along the fields of all units, since compiling it takes longer than running it.
        lines = jax.vmap(self._along)(jnp.arange(len(c)))
        students = jax.tree.map(lambda x: x[:p], lines)
        value = jnp.concatenate([kind.value(lines.field[np.asarray(kind.units)]) for kind in self.kinds])
        I2 = jnp.einsum("rux,rx->ru", lines.T[..., 0], lines.weights * value)
        values = {"chi": (I2 @ c)[:p], "v": jax.vmap(self._with_fields)(jnp.arange(p), students)}
        # The products of student and target are made along the student's fields.
        values["excess_risk"] = 0.5 * (c[:p] @ I2[:p, :p] @ c[:p] + c[p:] @ I2[p:, p:] @ c[p:])
        values["excess_risk"] += c[:p] @ I2[:p, p:] @ c[p:]
        if "phi_hd" in self.wanted:
            phi = jnp.diag(jax.vmap(self._squared_slope)(students))
            if p > 1:
                rows, columns = np.triu_indices(p, 1)
                pairs = jax.lax.map(
                    lambda pair: self._two_slopes(*pair),
                    (jnp.asarray(rows), jnp.asarray(columns), jax.tree.map(lambda x: x[rows], students)),
                )
                phi = phi.at[rows, columns].set(pairs).at[columns, rows].set(pairs)
            values["phi_hd"] = phi
        missed = ridge_doubts(self.problem, self.overlaps, self._doubted(lines), self.wanted, self.edge)
        bound = self.engine.bound
        return {name: values[name] + jnp.where(bound > 0.0, missed[name], 0.0) for name in self.wanted}

    def _doubted(self, lines: _Line) -> list[tuple[Kind, Array, Array, Array, Array]]:
        """Return each kind with the lengths of its fields, their weights, and the rules along them."""
        lengths, size = safe_root(jnp.diagonal(self.fields.covariance)), jnp.abs(self.fields.weights)
        groups = [(self.kinds[0], np.arange(self.p))]
        groups += [(kind, np.array([u for u in kind.units if u >= self.p], int)) for kind in self.kinds]
        return [
            (kind, lengths[units], size[units], lines.field[units].T, lines.weights[units].T)
            for kind, units in groups
            if len(units)
        ]

    def _with_fields(self, j: Array, line: _Line) -> Float[Array, " n"]:
        """Return the averages of a slope with each field of the problem and the displacement."""
        fields, given = self.fields, line.given
        slope = line.weights * self.kinds[0].slope(line.field)
        along, across = line.T[:, :, 0] @ (slope * line.x), line.T[:, :, 1] @ slope
        # Each field of the problem as a combination of x, the rest y of a unit's field, and an independent part.
        rate = ratio(fields.with_problem[j], safe_root(fields.covariance[j, j]))
        shared = fields.with_problem - given.means[:, None] * rate[None, :]
        lean = ratio(shared, given.deviations[:, None])
        return (fields.weights @ along) * rate + (fields.weights * across) @ lean

    def _squared_slope(self, line: _Line) -> Float[Array, ""]:
        square = self._second_moment(line.T, line.given) + self.problem.noise
        return (line.weights * self.kinds[0].slope(line.field) ** 2) @ square

    def _two_slopes(self, j: Array, l: Array, line: _Line) -> Float[Array, ""]:
        kind, first, x, w = self.kinds[0], line.given, line.x, line.weights
        width = first.deviations[l]
        betas = ratio(first.covariance[l], width)
        rest = first.covariance - betas[:, None] * betas[None, :]
        second = Given(betas, _without(_without(rest, j), l))
        means = first.means[:, None] * x[None, :]
        y, v = jax.vmap(lambda mean: self._rule(second, mean))(means.T)
        mean = (means[:, :, None] + betas[:, None, None] * y[None, :, :]).reshape(len(betas), -1)
        weights = (w[:, None] * v).ravel()
        spread = safe_root(first.means**2 + betas**2)
        T = self._tabulated(mean, spread, second.deviations)
        slopes = kind.slope(mean[j]) * kind.slope(mean[l])
        return (weights * slopes) @ (self._second_moment(T, second) + self.problem.noise)

    def _tabulated(self, mean: Array, spread: Array, deviations: Array) -> Float[Array, "u x columns"]:
        blocks = []
        for kind in self.kinds:
            units = np.asarray(kind.units)
            tables = Tables(kind, self.edge, self.engine.rules, self.terms)
            blocks.append(jax.vmap(tables.at)(mean[units], spread[units], deviations[units]))
        return jnp.concatenate(blocks)

    def _second_moment(self, T: Float[Array, "u x columns"], given: Given) -> Float[Array, " x"]:
        """Return the average of the squared displacement given the fields that the rule runs along."""
        c, terms = self.fields.weights, self.terms
        series, square = c[:, None, None] * T[:, :, :terms], c[:, None] ** 2 * T[:, :, terms]
        sizes = given.deviations[:, None] * given.deviations[None, :]
        rho = jnp.clip(ratio(given.covariance, sizes), -1.0, 1.0) * (1.0 - jnp.eye(len(c)))
        powers = jnp.cumprod(jnp.broadcast_to(rho, (terms - 1, *rho.shape)), axis=0)
        mean = jnp.sum(series[:, :, 0], axis=0)
        orders = jnp.moveaxis(series[:, :, 1:], 2, 0)  # (q, u, x)
        crossed = jnp.sum(orders * jnp.matmul(powers, orders), axis=(0, 1))
        total = mean**2 + jnp.sum(square - series[:, :, 0] ** 2, axis=0) + crossed
        left_out = jnp.maximum(square - jnp.sum(series**2, axis=2), 0.0) + 1e-15 * jnp.abs(square)
        size = safe_root(left_out)
        rest = jnp.sum(size * (jnp.abs(powers[-1] * rho) @ size), axis=0)
        return total + self.engine.bound * rest


def _without(covariance: Array, unit: Array) -> Array:
    """Return a covariance in which one field is determined."""
    is_other = jnp.arange(len(covariance)) != unit
    return jnp.where(is_other[:, None] & is_other[None, :], covariance, 0.0)


def _kernels(kinds: tuple[Kind, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the unit, centre and width of each kernel of all units, and the density for the waves of each unit."""
    rows, waves = [], []
    for kind in kinds:
        features = kind.features
        places = [*zip(features.centres, features.widths, strict=True), *((kink, 0.0) for kink in features.kinks)]
        rows += [(u, *place) for u in kind.units for place in places]
        waves += [features.wave] * len(kind.units)
    table = np.array(rows).reshape(-1, 3)
    return table[:, 0].astype(int), table[:, 1], table[:, 2], np.array(waves)
