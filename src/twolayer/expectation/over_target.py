r"""Averages over the k target fields only, of products of the target and of functions of single fields.

A unit that is even or odd is orthogonal to the part of the target of the other parity. The target is folded: only its
part of the unit's parity is used, on half of the points if the rule is symmetric, and the other part adds the constant
``rest`` to the risk.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.closed.thresholds import thresholds
from twolayer.expectation.engine import by_coarser
from twolayer.expectation.qmc import (
    LOG2_POINTS,
    MAX_FIELDS,
    SCRAMBLINGS,
    by_scatter,
    scrambled_normals,
    turned_normals,
    within_reach,
)
from twolayer.expectation.rules import (
    ORDERS,
    QuadratureRule,
    coarser_orders,
    legendre_rule,
    order_for,
    panel_rule,
    symmetric_rule,
    tensor_rule,
)
from twolayer.expectation.smoothing import AbstractSmoothing, smoothings
from twolayer.expectation.tails import tail_share, target_values
from twolayer.expectation.tilted import REACH, TAIL, suits_smooth_target
from twolayer.problem import Problem

# Points that contribute less than this fraction of the accuracy are omitted; hundreds of them stay below rounding.
DROPPED = 1e-9
NEGLIGIBLE = 1e-24
# Nodes on each panel between kinks, by the number of target fields.
PANELS = {1: 48, 2: 32}


class TargetRule(eqx.Module):
    """Points, weights, and the values of the target (of its part with the parity of the units, if they have one)."""

    points: Float[Array, "points k"] = eqx.field(converter=jnp.asarray)  # independent standard normals
    weights: Float[Array, " points"] = eqx.field(converter=jnp.asarray)
    values: Float[Array, " points"] = eqx.field(converter=jnp.asarray)
    rest: Float[Array, ""] = eqx.field(converter=jnp.asarray)  # half the mean square of the part of the other parity

    def padded(self, size: int) -> "TargetRule":
        """Return the rule padded to ``size`` points by points of zero weight."""
        more = size - len(self.weights)
        points = jnp.concatenate([self.points, jnp.zeros((more, self.points.shape[1]))])
        weights, values = (jnp.concatenate([x, jnp.zeros(more)]) for x in (self.weights, self.values))
        return TargetRule(points, weights, values, self.rest)


class Member(NamedTuple):
    """A rule over the target's fields, and the smoothed activation that is averaged with it."""

    rule: TargetRule
    smoothing: AbstractSmoothing


class OverTarget(eqx.Module):
    """Several rules: the finest one, further independent clouds if it is a cloud, and coarser ones."""

    members: tuple[Member, ...]
    clouds: int = eqx.field(static=True)  # how many of them are independent clouds; one means a deterministic rule
    rtol: float = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        """Return value and error from the results of the members."""
        first, floor = results[0], self.members[0].smoothing.floor
        coarser = by_coarser((first, *results[self.clouds :]), floor)
        if self.clouds == 1:
            return coarser
        scattered = by_scatter(results[: self.clouds])
        return Estimate(scattered.value, jax.tree.map(lambda x, y: x + y, scattered.error, coarser.error))


def kind_of_rule(problem: Problem) -> tuple[str, str]:
    r"""Return the kind of rule for the target's fields, "hermite", "panels" or "cloud", or "" and the reason why none.

    Panels end at known kinks of the target along single fields. The same holds for the kink at zero of a student when
    k = 1, since :math:`u \propto \lambda^\star`. Otherwise the kinks of units are at different places, and are smoothed
    only by the part of the weights outside of the target's span.
    """
    target, kinks = problem.target, problem.student.activation.kinks
    if target.is_smooth and not (target.k == 1 and 0.0 in kinks) and suits_smooth_target(problem).ok:
        return "hermite", ""
    is_known = target.kinks is not None and (target.k == 1 or not target.is_smooth)
    if is_known and target.k in PANELS and tail_share(target, REACH) <= TAIL:
        return "panels", ""
    if target.k > MAX_FIELDS:
        return "", f"{target.k} target fields, limit {MAX_FIELDS}"
    reach = within_reach(problem)
    return ("cloud" if reach.ok else "", reach.reason)


def over_target(problem: Problem, rtol: float, padded: bool) -> OverTarget:
    """Build the rules for a problem, sized for a relative accuracy; if ``padded``, they compile to one program."""
    kind, _ = kind_of_rule(problem)
    finest, *coarser = smoothings(problem.student.activation, rtol)
    if kind == "cloud":
        clouds = [_cloud(problem, seed) for seed in range(SCRAMBLINGS)]
        members = [Member(rule, finest) for rule in clouds] + [Member(clouds[0], smoothing) for smoothing in coarser]
        name = f"randomised QMC, {2**LOG2_POINTS} points x {SCRAMBLINGS} scramblings, {problem.k} target fields"
        has_kinks = not (problem.student.activation.is_smooth and problem.target.is_smooth)
        return OverTarget(tuple(members), SCRAMBLINGS, 1e-4 if has_kinks else 1e-7, f"{name}; {finest.name}")
    rules, name = _hermite(problem, rtol) if kind == "hermite" else _panels(problem)
    folded = [_folded(problem, rule, DROPPED * rtol) for rule in rules]
    if padded:
        size = max(len(rule.weights) for rule in folded)
        folded = [rule.padded(size) for rule in folded]
    steps = [finest, *coarser] if coarser else [finest] * len(folded)
    members = [Member(rule, smoothing) for rule, smoothing in zip(folded, steps, strict=True)]
    return OverTarget(tuple(members), 1, 0.0, f"{name}; {finest.name}")


def _root(problem: Problem) -> Float[np.ndarray, "k k"]:
    return np.linalg.cholesky(np.asarray(problem.P))


def _hermite(problem: Problem, rtol: float) -> tuple[list[QuadratureRule], str]:
    k, activation = problem.k, problem.student.activation
    units = thresholds(activation)
    if not activation.is_smooth:
        order = ORDERS[k][-1]
    else:
        # A unit aligned with a target direction varies over its noise, in units of the length of that direction.
        noise = float(units.noise.min()) if units is not None else 1.0
        longest = max(1.0, float(np.linalg.eigvalsh(np.asarray(problem.P)).max()))
        order, _ = order_for(problem.target, rtol, (noise / longest) ** 0.5)
    orders = (order, *coarser_orders(order))
    name = f"Gauss-Hermite {order}^{k}"
    if not activation.parity:
        return [tensor_rule(n, k) for n in orders], name
    rules = []
    for n in orders:
        half, centre = symmetric_rule(n, k, NEGLIGIBLE)
        points = np.concatenate([half.points, np.zeros((1, k))])
        rules.append(QuadratureRule(points, np.append(2.0 * half.weights, centre)))
    return rules, name


def _panels(problem: Problem) -> tuple[list[QuadratureRule], str]:
    kinks = problem.target.kinks
    assert kinks is not None
    # More panels than kinks: a field without kinks is cut in the middle as well, and one direction is cheap, so that an
    # oscillating target is resolved there.
    even = {-3.0, 0.0, 3.0} if problem.k == 1 else {0.0}
    places = tuple(tuple(sorted({*row, *even})) for row in kinks)
    nodes = PANELS[problem.k]
    panels = [legendre_rule(n) for n in (nodes, *coarser_orders(nodes))]
    rules = [panel_rule(_root(problem), places, panel) for panel in panels]
    return rules, f"Gauss-Legendre {nodes}^{problem.k} between kinks"


def _cloud(problem: Problem, seed: int) -> TargetRule:
    make = scrambled_normals if problem.target.is_smooth else turned_normals
    points = make(problem.k, LOG2_POINTS, seed)
    return _folded(problem, QuadratureRule(points, np.full(len(points), 1.0 / len(points))))


def _folded(problem: Problem, rule: QuadratureRule, dropped: float = 0.0) -> TargetRule:
    """Return the rule with the values of the target, or of its part with the parity of the student if it has one.

    Points are omitted where the weight times a bound on the averaged functions is below ``dropped``.
    """
    target, activation = problem.target, problem.student.activation
    fields = rule.points @ _root(problem).T
    plus, minus = target_values(target, fields), target_values(target, -fields)
    size = (1.0 + plus**2 + minus**2) * (1.0 + np.sum(rule.points**2, axis=1)) ** (activation.growth + 1)
    is_kept = rule.weights * size > dropped
    points, weights, plus, minus = rule.points[is_kept], rule.weights[is_kept], plus[is_kept], minus[is_kept]
    parity = activation.parity
    if not parity:
        return TargetRule(points, weights, plus, 0.0)
    rest = 0.125 * weights @ (plus - parity * minus) ** 2
    return TargetRule(points, weights, 0.5 * (plus + parity * minus), rest)
