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
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.closed.relu_averages import safe_root
from twolayer.expectation.conditional import DETERMINED, FieldRules, Kind, Rules, Tables, smoothed, table_rule
from twolayer.expectation.doubt import lost_waves, ridge_doubts
from twolayer.expectation.engine import ROUNDING, TOO_MANY_KINKS, AbstractEngine, Suits, by_coarser, with_doubts
from twolayer.expectation.gaussian_moments import MOMENTS
from twolayer.expectation.mesh import WIDE, Extent, Monitor, even_rule, length_of, mesh, narrowest
from twolayer.expectation.rules import QuadratureRule, legendre_rule
from twolayer.expectation.slices import Slices, ratio
from twolayer.expectation.tails import least_reach, reach, reach_of_target, tail_share
from twolayer.expectation.tilted import REACH, TAIL
from twolayer.expectation.units_of import Kernels, fields_of, moved, places_of, sum_of, unit_kinds
from twolayer.problem import Overlaps, Problem

# Fewest and most nodes of each rule, and nodes per unit of the variable t of a field. It is that of a student's row of
# the length LONG, or LONGER for waves; longer ones are less accurate.
FEWEST, MOST, PER_LENGTH, LONG, LONGER = 26, 160, 1.2, 3.0, 6.0
# The relative accuracy below which there are more nodes, and how many more for each further digit.
USUAL, PER_DIGIT = 1e-6, 0.2
# The share of the nodes in the coarser rules that give the error.
COARSER = (0.85, 0.65)
# The accuracy of long rows by the usual number of nodes, below which an integrator gains nothing: each evaluation is
# expensive, and a method of few stages with interpolated save points needs the fewest.
RTOL = 2e-6
# The fraction of an average that lies beyond the reach of the rules, in units of their relative accuracy.
BEYOND = 1e-4
# Terms of the series.
TERMS = 12
# Units of the student and of the target together, for moments with two slopes and for others.
MOST_UNITS, MOST_PAIRED = 10, 24
# Units of the student for moments with two slopes, since the work grows with their pairs; and units with kinks for
# other moments, which rules along single fields serve more accurately where rows are nearly parallel.
MOST_SLOPES, MOST_KINKED = 4, 2
# Kinks of all units together, at each of which the rules along a field break, and nodes between them.
MOST_KINKS, BETWEEN = 8, 0.75
# The share of what the series leaves out for two slopes of one unit that counts as left out for those of two units, as
# conditioning on the second of two nearly parallel fields removes less of it than the conditional covariances say.
SHARED = 0.01
# How many times as many nodes there are for the target alone, whose averages are made once.
ALONE = 6


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
    T: Float[Array, "... u rows x"]


class Ridges(AbstractEngine):
    """Rules along one and two fields that adapt to their length, and Mehler's series for the other fields."""

    rules: Rules
    # One adds the bound on what all rules may miss, zero does not.
    bound: Any = 0.0
    # The relative accuracy for which the rules are made, of which digits beyond the usual ones are counted.
    wanted: float = eqx.field(static=True, default=USUAL)

    floor: ClassVar[float] = ROUNDING

    @property
    def rtol(self) -> float:
        return RTOL * min(1.0, self.wanted / USUAL)

    @property
    def judges_first(self) -> bool:
        return True

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if moment == "covariance":
            return Suits(False, "no rule for four displacements")
        if problem.p == problem.k == 1:
            return Suits(False, "two fields only, for which there are smaller rules")
        if tail_share(problem.target, REACH) > TAIL:
            return Suits(False, "the target grows so fast that its average comes from far out")
        if not problem.student.activation.has_known_kinks:
            return Suits(False, TOO_MANY_KINKS)
        kinds = unit_kinds(problem)
        if kinds is None:
            return Suits(False, "the target is not known to be a sum of functions of one field each")
        if not kinds[0].is_continuous:
            return Suits(False, "the activation jumps, so that its derivative is not a function")
        if moment == "phi_hd" and problem.p > MOST_SLOPES:
            return Suits(
                False, f"{problem.p} units of the student, limit {MOST_SLOPES}: along each pair takes too long"
            )
        most = MOST_KINKED if kinds[0].kinks else MOST_SLOPES
        if problem.p > most and Slices.suits(problem, moment).ok:
            return Suits(False, f"{problem.p} units of the student, which rules along single fields serve better")
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
        edge = least_reach(BEYOND * min(rtol, USUAL))
        needed = max(length_of(kind.features, length, edge) for kind, length in zip(kinds, longest, strict=True))
        size = np.clip(round(PER_LENGTH * needed), FEWEST, MOST)
        digits = max(0.0, np.log10(USUAL / rtol))
        size = int(min(round(size * (1.0 + PER_DIGIT * digits)), MOST))
        return cls._of(size, size, 0.0, min(rtol, USUAL))

    @classmethod
    def _of(cls, nodes: int, size: int, bound: float, wanted: float) -> "Ridges":
        rules = Rules(_along(nodes, size), _along(ALONE * nodes, ALONE * size), table_rule(nodes, size))
        return cls(rules, np.asarray(bound), wanted)

    def variants(self) -> tuple[AbstractEngine, ...]:
        size = len(self.rules.along.line.weights)
        coarser = (self._of(round(share * size), size, 0.0, self.wanted) for share in COARSER)
        return (self, *coarser, self._of(size, size, 1.0, self.wanted))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        *rules, bounded = results
        return with_doubts(by_coarser(tuple(rules), self.floor), rules[0], (bounded,))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        kinds = unit_kinds(problem)
        assert kinds is not None
        return _Moments(self, problem, overlaps, kinds, wanted).values()

    @property
    def name(self) -> str:
        return f"rules along pairs of fields, {self.rules.along.line.size} adaptive nodes; Mehler's series"


def _along(nodes: int, size: int) -> FieldRules:
    """Return the rules along a field, padded to one size."""
    panel = _padded(legendre_rule(round(BETWEEN * nodes)), round(BETWEEN * size))
    return FieldRules(_padded(even_rule(nodes), size), panel)


def _padded(rule: QuadratureRule, size: int) -> QuadratureRule:
    """Return the rule padded at its right end, so that its points stay in order."""
    more = size - len(rule.weights)
    return QuadratureRule(np.append(rule.points, np.ones(more)), np.append(rule.weights, np.zeros(more)))


class FieldAverages:
    """Rules along the fields of some units and the averages of all of them there, by one variant of the engine."""

    def __init__(
        self, engine: Ridges, along: FieldRules, kinds: tuple[Kind, ...], covariance: Array, edge: Array, terms: int
    ):
        self.rules, self.along, self.kinds, self.terms = engine.rules, along, kinds, terms
        # The bound covers the rounding of the covariances, from which small conditional ones are differences.
        rounding = engine.bound * 4.0 * np.finfo(float).eps
        self.covariance = covariance * (1.0 + rounding * jnp.eye(len(covariance)))
        self.extent = Extent(edge, self._has_wide_features())
        self.kernels = Kernels.of(kinds)
        self.wave = jnp.asarray(np.concatenate([[kind.features.wave] * len(kind.units) for kind in kinds]))

    def _has_wide_features(self) -> Array | bool:
        """Whether all features are wide in units of the deviations of the fields."""
        narrow = np.concatenate([[narrowest(kind.breaks)] * len(kind.units) for kind in self.kinds])
        if not np.all(narrow):
            return False
        return jax.lax.stop_gradient(jnp.all(WIDE * safe_root(jnp.diagonal(self.covariance)) <= narrow))

    def rule(self, given: Given, mean: Array, kernels: Kernels) -> tuple[Array, Array]:
        """Return nodes and weights along a normal number on which the fields of all units depend.

        ``given`` holds their slopes along it and what remains of them; ``mean`` are their means.
        """
        owner, own = kernels.owner, jnp.asarray(kernels.widths)
        slope = jnp.where(jnp.abs(given.means) > 1e-30, given.means, 1e-30)[owner]
        width = safe_root(own**2 + given.deviations[owner] ** 2) / jnp.abs(slope)
        # Kinks of fields that are determined are breaks only, since there is no layer around them.
        width = jnp.where((own == 0.0) & (width < DETERMINED), 1e30, jnp.clip(width, 1e-12, 1e30))
        centres = jnp.clip((jnp.asarray(kernels.centres) - mean[owner]) / slope, -1e30, 1e30)
        wave = jnp.sum(self.wave * jnp.abs(given.means) * jnp.exp(-0.5 * (self.wave * given.deviations) ** 2))
        rule = self.along.panel if len(kernels.breaks) else self.along.line
        nodes, weights, _ = mesh(Monitor(centres, width, wave, self.extent), centres[kernels.breaks], rule)
        return nodes, weights

    def lines(self, units: np.ndarray) -> _Line:
        """Return rules along the fields of some units, by one program, as compiling it takes longer than running it."""
        return jax.vmap(self._along)(jnp.asarray(units))

    def _along(self, unit: Array) -> _Line:
        C = self.covariance
        means = ratio(C[unit], safe_root(C[unit, unit]))
        given = Given(means, without(C - means[:, None] * means[None, :], unit))
        x, w = self.rule(given, jnp.zeros_like(means), self.kernels.along_one())

        def smooth(kind: Kind, *numbers: Array) -> Array:
            return jax.vmap(lambda mu, s: smoothed(kind, mu, s, self.extent, self.rules, self.terms))(*numbers)

        T = _of_kinds(self.kinds, smooth, means[:, None] * x[None, :], given.deviations)
        return _Line(given, x, means[unit] * x, w, T)

    def pairs(self, lines: _Line) -> Float[Array, "lines u"]:
        """Return the averages of the products of the first units, along whose fields the lines run, with all units."""
        number = len(lines.field)
        value = [kind.value(lines.field[np.array([u for u in kind.units if u < number], int)]) for kind in self.kinds]
        return jnp.einsum("rux,rx->ru", lines.T[:, :, 0], lines.weights * jnp.concatenate(value))

    def tabulated(self, kinds: tuple[Kind, ...], *numbers: Array) -> Float[Array, "u rows x"]:
        """Return the averages of units of these kinds at many means, given these, their deviation, and the rest."""

        def tabulate(kind: Kind, *numbers: Array) -> Array:
            return jax.vmap(Tables(kind, self.extent, self.rules, self.terms).at)(*numbers)

        return _of_kinds(kinds, tabulate, *numbers)


def _of_kinds(kinds: tuple[Kind, ...], make: Callable[..., Array], *numbers: Array) -> Float[Array, "u ..."]:
    """Return the averages of all units, kind by kind."""
    units = [np.asarray(kind.units) for kind in kinds]
    return jnp.concatenate([make(kind, *(x[rows] for x in numbers)) for kind, rows in zip(kinds, units, strict=True)])


class _Moments:
    """The moments of one problem at given overlaps, by the rules of one variant of the engine."""

    def __init__(
        self, engine: Ridges, problem: Problem, overlaps: Overlaps, kinds: tuple[Kind, ...], wanted: tuple[str, ...]
    ):
        self.bound, self.problem, self.overlaps, self.wanted = engine.bound, problem, overlaps, wanted
        self.p, self.kinds, self.fields = problem.p, kinds, fields_of(problem, overlaps)
        # All moments at once and without noise, so that no moment depends on what else is asked for.
        left_out = BEYOND * engine.wanted
        edge = reach(dataclasses.replace(problem, noise=0.0), overlaps, MOMENTS, left_out)
        terms = TERMS if "phi_hd" in wanted else 2
        self.all = FieldAverages(engine, engine.rules.along, kinds, self.fields.covariance, edge, terms)
        # What concerns the target alone does not depend on the student: along a trajectory it is computed once.
        directions, _ = sum_of(problem)
        of_target = [moved(kind, -self.p) for kind in kinds]
        self.target = FieldAverages(
            engine,
            engine.rules.alone,
            tuple(kind for kind in of_target if kind.units),
            jnp.asarray(directions) @ overlaps.P @ jnp.asarray(directions).T,
            reach_of_target(problem, overlaps.P, left_out),
            2,
        )

    def values(self) -> dict[str, Array]:
        p, c = self.p, self.fields.weights
        students = self.all.lines(np.arange(p))
        # The products of student and target are made along the student's fields.
        I2 = self.all.pairs(students)
        values = {"chi": I2 @ c, "v": jax.vmap(self._with_fields)(jnp.arange(p), students)}
        of_target = None
        if "excess_risk" in self.wanted:
            of_target = self.target.lines(np.arange(len(c) - p))
            squares = c[:p] @ I2[:, :p] @ c[:p] + c[p:] @ self.target.pairs(of_target) @ c[p:]
            values["excess_risk"] = 0.5 * squares + c[:p] @ I2[:, p:] @ c[p:]
        if "phi_hd" in self.wanted:
            values["phi_hd"] = self._of_slopes(students)
        values = {name: values[name] for name in self.wanted}
        nothing = jax.tree.map(jnp.zeros_like, values)
        missed = jax.lax.cond(self.bound > 0.0, lambda: self._missed(students, of_target), lambda: nothing)
        return {name: values[name] + missed[name] for name in self.wanted}

    def _missed(self, students: _Line, of_target: _Line | None) -> dict[str, Array]:
        """Return a bound on what all rules may miss; there are none along the target's fields without the risk."""
        rows = [(self.kinds[0], np.arange(self.p), self.all, students, 0)]
        rows += [(kind, np.asarray(kind.units), self.target, of_target, self.p) for kind in self.target.kinds]
        doubted = []
        for kind, units, averages, lines, first in rows:
            lengths = safe_root(jnp.diagonal(averages.covariance))[units]
            sizes = jnp.abs(self.fields.weights[first:])[units]
            rule = () if lines is None else (lines.field[units].T, lines.weights[units].T)
            doubted.append((kind, averages.extent.edge, lengths, sizes, *rule))
        lost = [
            self._lost(kind, np.array([u for u in kind.units if u >= self.p], int), students) for kind in self.kinds
        ]
        return ridge_doubts(
            self.problem, self.overlaps, doubted, self.wanted, self.all.extent.edge, jnp.max(jnp.stack(lost))
        )

    def _lost(self, kind: Kind, units: np.ndarray, students: _Line) -> Array:
        """Return how much of the target's waves is between the nodes along the student's fields."""
        if not len(units):
            return jnp.zeros(())
        slopes = students.given.means[:, units]
        rest = jax.vmap(lambda given: given.deviations)(students.given)[:, units]
        damping = jnp.exp(-0.5 * (kind.features.wave * rest) ** 2)
        return lost_waves(kind.breaks, students.x.T, students.weights.T, slopes, damping)

    def _with_fields(self, j: Array, line: _Line) -> Float[Array, " n"]:
        """Return the averages of a slope with each field of the problem and the displacement."""
        fields, given = self.fields, line.given
        slope = line.weights * self.kinds[0].slope(line.field)
        along, across = line.T[:, 0] @ (slope * line.x), line.T[:, 1] @ slope
        # Each field of the problem as a combination of x, the rest y of a unit's field, and an independent part.
        rate = ratio(fields.with_problem[j], safe_root(fields.covariance[j, j]))
        shared = fields.with_problem - given.means[:, None] * rate[None, :]
        lean = ratio(shared, given.deviations[:, None])
        return (fields.weights @ along) * rate + (fields.weights * across) @ lean

    def _of_slopes(self, students: _Line) -> Float[Array, "p p"]:
        """Return the averages of two slopes and the squared displacement."""
        squares, rests = jax.vmap(self._squared_slope)(students)
        phi = jnp.diag(squares + self.bound * rests)
        if self.p == 1:
            return phi
        rows, columns = np.triu_indices(self.p, 1)
        lines = jax.tree.map(lambda x: x[rows], students._replace(T=()))
        pairs, rest = jax.lax.map(
            lambda pair: self._two_slopes(*pair), (jnp.asarray(rows), jnp.asarray(columns), lines)
        )
        pairs = pairs + self.bound * (rest + SHARED * safe_root(rests[rows] * rests[columns]))
        return phi.at[rows, columns].set(pairs).at[columns, rows].set(pairs)

    def _squared_slope(self, line: _Line) -> tuple[Float[Array, ""], Float[Array, ""]]:
        square, rest = self._second_moment(self.kinds, self.fields.weights, line.T, line.given, 0.0)
        return self._forced(line.weights * self.kinds[0].slope(line.field) ** 2, square, rest)

    def _forced(
        self, slopes: Float[Array, " x"], square: Float[Array, " x"], rest: Float[Array, " x"]
    ) -> tuple[Array, Array]:
        """Return the average of slopes and the squared displacement, and a bound on the rest of it.

        Slopes of both signs cancel in the average, but not in the bound.
        """
        return slopes @ (square + self.problem.noise), jnp.abs(slopes) @ rest

    def _two_slopes(self, j: Array, l: Array, line: _Line) -> tuple[Float[Array, ""], Float[Array, ""]]:
        kind, first, x, w, c = self.kinds[0], line.given, line.x, line.weights, self.fields.weights
        betas = ratio(first.covariance[l], first.deviations[l])
        rest = first.covariance - betas[:, None] * betas[None, :]
        second = Given(betas, without(without(rest, j), l))
        means = first.means[:, None] * x[None, :]
        kernels = self.all.kernels.given(j, len(places_of(kind)))
        y, v = jax.vmap(lambda mean: self.all.rule(second, mean, kernels))(means.T)
        mean = (means[:, :, None] + betas[:, None, None] * y[None, :, :]).reshape(len(betas), -1)
        slopes = kind.slope(mean[j]) * kind.slope(mean[l])
        fixed = c[j] * kind.value(mean[j]) + c[l] * kind.value(mean[l])
        # The units j and l are determined; the others keep their order.
        others = jnp.arange(len(betas) - 2)
        others = others + jnp.where(others >= j, 1, 0)
        others = others + jnp.where(others >= l, 1, 0)
        kinds = (kind._replace(units=kind.units[:-2]), *(moved(kind, -2) for kind in self.kinds[1:]))
        kinds = tuple(kind for kind in kinds if kind.units)
        left = Given(betas[others], second.covariance[others][:, others])
        spread = safe_root(first.means**2 + betas**2)[others]
        T = self.all.tabulated(kinds, mean[others], spread, left.deviations)
        square, rest = self._second_moment(kinds, c[others], T, left, fixed)
        return self._forced((w[:, None] * v).ravel() * slopes, square, rest)

    def _second_moment(
        self, kinds: tuple[Kind, ...], c: Array, T: Float[Array, "u rows x"], given: Given, fixed: Array | float
    ) -> tuple[Float[Array, " x"], Float[Array, " x"]]:
        """Return the average of the squared displacement given the fields that the rule runs along.

        It comes with a bound on what the series leaves out of it. ``fixed`` is the part of the displacement that they
        determine.
        """
        terms = self.all.terms
        # The series of a polynomial ends.
        known = np.concatenate([[min(kind.most_terms or terms, terms)] * len(kind.units) for kind in kinds]).astype(int)
        series, square = c[:, None, None] * T[:, :terms], c[:, None] ** 2 * T[:, terms]
        sizes = given.deviations[:, None] * given.deviations[None, :]
        rho = jnp.clip(ratio(given.covariance, sizes), -1.0, 1.0) * (1.0 - jnp.eye(len(c)))
        powers = jnp.cumprod(jnp.broadcast_to(rho, (terms, *rho.shape)), axis=0)
        total = (fixed + jnp.sum(series[:, 0], axis=0)) ** 2 + jnp.sum(square - series[:, 0] ** 2, axis=0)
        for u, v in zip(*np.triu_indices(len(c), 1), strict=True):
            number = min(known[u], known[v])
            factors = 2.0 * powers[: number - 1, u, v]
            total = total + jnp.sum(factors[:, None] * series[u, 1:number] * series[v, 1:number], axis=0)
        endless = np.flatnonzero(known == terms)
        left_out = jnp.maximum(square - jnp.sum(series**2, axis=1), 0.0) + 1e-15 * jnp.abs(square)
        size = safe_root(left_out)[endless]
        rest = jnp.sum(size * (jnp.abs(powers[-1])[endless][:, endless] @ size), axis=0)
        return total, rest


def without(covariance: Array, unit: Array) -> Array:
    """Return a covariance in which one field is determined."""
    is_other = jnp.arange(len(covariance)) != unit
    return jnp.where(is_other[:, None] & is_other[None, :], covariance, 0.0)
