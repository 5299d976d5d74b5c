r"""One student unit and a target of one field, both arbitrary functions, by nested rules between known breaks.

The outer rule runs along the target's field, the inner one along the independent part of the student's,

.. math:: \lambda^\star = \sqrt{P}\,g, \qquad \lambda = \frac{M}{\sqrt P}\,g + \sqrt{Q - M^2/P}\;x

Both break at the kinks of the two functions and at the ends of the pieces on which these are resolved
(`features.breaks_of`), in the argument of each function, so that a bump is resolved at any length of the row. As the
remaining part of the student's field vanishes, its features become features along the target's field: the outer rule
breaks where they are, and at the ends of the interval around them in which they matter. Both rules reach as far as the
growth of the functions demands (`tails.reach`).
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.break_points import Breaks, activation_breaks, target_breaks
from twolayer.expectation.closed.relu_averages import safe_root
from twolayer.expectation.doubt import doubts, marginals_of
from twolayer.expectation.engine import ROUNDING, AbstractEngine, Suits, by_coarser, with_doubts
from twolayer.expectation.gaussian_moments import from_cloud
from twolayer.expectation.rules import QuadratureRule, legendre_rule, line_rule
from twolayer.expectation.slices import SMEAR, place
from twolayer.expectation.tails import beyond, reach
from twolayer.expectation.tilted import suits_smooth_target
from twolayer.problem import Custom, Overlaps, Problem

# Nodes on each panel, in the rule and in the coarser ones that give its error.
NODES = (24, 17, 12)
# Growth up to polynomials of this degree does not count as fast.
LOW_DEGREE = 4
# Panels of equal length along the target's field and along the rest of the student's, and for functions with features
# without end. Odd numbers: a panel that ended at zero, as at most kinks, would be empty there and of no defined slope.
OUTER, INNER, MANY = 7, 5, 25


class Panels(AbstractEngine):
    """Nested Gauss-Legendre rules on panels that end at the features of both functions."""

    panel: QuadratureRule
    student: Breaks = eqx.field(static=True)
    target: Breaks = eqx.field(static=True)
    # One adds the bound on what is beyond the reach of the rule or not resolved by it, zero does not.
    bound: Any = 0.0

    floor: ClassVar[float] = ROUNDING

    @property
    def rtol(self) -> float:
        return 0.0

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if problem.p != 1 or problem.k != 1:
            return Suits(False, f"{problem.p + problem.k} fields, limit 2")
        activation = problem.student.activation
        is_low = activation.growth <= LOW_DEGREE if activation.coefficients is not None else activation.growth <= 1
        is_plain = not isinstance(activation, Custom) and is_low
        # A rectifier is scale invariant, and only moments with two slopes involve more than one of its kinks.
        if is_plain and (activation.is_smooth or moment in ("excess_risk", "chi", "v")):
            if suits_smooth_target(problem).ok:
                return Suits(False, "functions without kinks, narrow features or fast growth need smaller rules only")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Panels":
        panel = legendre_rule(NODES[0])
        breaks = activation_breaks(problem.student.activation), target_breaks(problem.target)
        return cls(panel, *breaks, np.asarray(0.0))

    def variants(self) -> tuple[AbstractEngine, ...]:
        coarser = [legendre_rule(n).padded(NODES[0]) for n in NODES[1:]]
        coarser_rules = [Panels(rule, self.student, self.target, np.asarray(0.0)) for rule in coarser]
        return (self, *coarser_rules, Panels(self.panel, self.student, self.target, np.asarray(1.0)))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        *rules, bounded = results
        return with_doubts(by_coarser(tuple(rules), self.floor), rules[0], (bounded,))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        edge = reach(problem, overlaps, wanted)
        fields, weights = self._points(overlaps, edge)
        values = from_cloud(problem, overlaps.a, fields, weights, wanted)
        if self._is_settled:
            missed = beyond(problem, overlaps, wanted, edge)
        else:  # waves become shorter than the panels once a row is long
            missed = doubts(problem, overlaps, values, marginals_of(fields, weights, problem.p))
        return {name: value + jnp.where(self.bound > 0.0, missed[name], 0.0) for name, value in values.items()}

    def _points(self, overlaps: Overlaps, edge: Array) -> tuple[Float[Array, "points 2"], Float[Array, " points"]]:
        length = jnp.sqrt(overlaps.P[0, 0])
        pull = overlaps.M[0, 0] / length
        # The bound also covers the rounding of this difference for a student along the target.
        rounding = self.bound * 4.0 * np.finfo(float).eps * (overlaps.Q[0, 0] + pull**2)
        width = safe_root(overlaps.Q[0, 0] - pull**2 + rounding)
        feature_places = jnp.asarray([*self.target.kinks, *self.target.ends])
        edges, kinks = self.student.ends, jnp.asarray(self.student.kinks)
        felt = jnp.concatenate([kinks, jnp.asarray([edges[0], edges[-1]] if edges else [])])
        spread = place(SMEAR * width, abs(pull))
        met = [place(jnp.sign(pull) * x, abs(pull)) for x in (jnp.asarray([*self.student.kinks, *edges]), felt)]
        breaks = [place(feature_places, length), met[0], met[1] - spread, met[1] + spread, self._even(OUTER, edge)]
        outer, outer_weights = line_rule(jnp.concatenate(breaks), self.panel, edge)

        def inner_rule(g: Array) -> tuple[Array, Array]:
            places = place(jnp.asarray([*self.student.kinks, *edges]) - pull * g, width)
            return line_rule(jnp.concatenate([places, self._even(INNER, edge)]), self.panel, edge)

        inner, inner_weights = jax.vmap(inner_rule)(outer)
        lam = pull * outer[:, None] + width * inner
        lam_star = jnp.broadcast_to(length * outer[:, None], lam.shape)
        weights = outer_weights[:, None] * inner_weights
        return jnp.stack([lam.ravel(), lam_star.ravel()], axis=1), weights.ravel()

    @property
    def _is_settled(self) -> bool:
        return self.student.is_settled and self.target.is_settled

    def _even(self, panels: int, edge: Array) -> Float[Array, " breaks"]:
        number = panels if self._is_settled else MANY
        return edge * jnp.linspace(-1.0, 1.0, number + 1)[1:-1]

    @property
    def name(self) -> str:
        return f"nested rules, {self.panel.size} nodes between kinks and features"
