r"""Bound what a rule may have missed, by comparing its averages over single fields with accurate ones.

The nodes of a rule are fixed in units of the deviation of a field, and all of its orders miss a feature that is
narrower than their spacing, or an average that is made further out, in the same way. For functions of one field the
truth is cheap: a rule along the field that breaks at the features of the function and reaches as far as its growth
demands. The largest relative error of the averages of :math:`\sigma_j^2, \sigma_j'^2` (and :math:`f^2` for a target of
one field) is taken for the relative error of moments with two factors, that of the fourth powers for moments with four,
since they are as narrow and as far out as any product of so many factors; a wave that is not resolved counts whole.
In numbers, by Hölder's inequality,

.. math:: |E[\sigma'_j \sigma'_l \mathcal E^2]| \le \|\sigma'_j\|_4 \|\sigma'_l\|_4 \|\mathcal E\|_4^2, \qquad
          \|\mathcal E\|_4 \le \|f\|_4 + \textstyle\sum_j |c_j| \|\sigma_j\|_4
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.expectation.features import Breaks, activation_breaks, target_breaks
from twolayer.expectation.moments import student_weights
from twolayer.expectation.rules import legendre_rule, line_rule
from twolayer.expectation.tails import beyond, reach
from twolayer.problem import Overlaps, Problem

# Panels of equal length along a field, also for functions with features without end; nodes on each, and in the coarser
# rule that judges them.
EVEN, MANY, NODES, COARSER = 16, 256, 24, 17
# A wave whose square a rule misses by more than this is not resolved, and what the rule says of it is chance.
UNRESOLVED = 1e-2
# Nodes that a wave needs on the length of a piece that resolves it, wherever weights exceed this part of the largest.
PER_WAVE, SEEN = 12.0, 1e-3
# A product rule with fewer nodes on this length has less than two in a period of the wave.
PER_PERIOD = 2.5
# Phases at which the average of a wave is checked, in lengths of such a piece.
PHASES = (0.05, 0.11, 0.23)
# Averages of powers below this size are zero.
TINY = 1e-290


class Marginals(NamedTuple):
    """The nodes of a rule along each student field and each target field, with their weights."""

    student: Float[Array, "nodes p"]
    student_weights: Float[Array, "nodes p"]
    target: Float[Array, "points k"]
    target_weights: Float[Array, "points k"]


def _averages(function: Callable[[Array], Array], x: Array, w: Array) -> Float[Array, "2 ..."]:
    """Return the averages of the square and of the fourth power."""
    square = function(x) ** 2
    # A point of zero weight contributes nothing, even where the function overflows.
    shares = [jnp.where(w > 0.0, w * power, 0.0) for power in (square, square**2)]
    return jnp.stack([jnp.sum(share, axis=0) for share in shares])


def _exactly(function: Callable[[Array], Array], breaks: Breaks, length: Array, edge: Array) -> tuple[Array, Array]:
    """Return accurate averages of square and fourth power at a field of given length, and their error."""
    places = jnp.asarray([*breaks.kinks, *breaks.ends]) / jnp.maximum(length, 1e-150)
    panels = EVEN if breaks.is_settled else MANY
    places = jnp.concatenate([places, edge * jnp.linspace(-1.0, 1.0, panels + 1)[1:-1]])

    def by(nodes: int) -> Array:
        x, w = line_rule(places, legendre_rule(nodes), edge)
        return _averages(function, length * x, w)

    fine, coarse = by(NODES), by(COARSER)
    return fine, abs(fine - coarse)


def _relative(rule: Array, exact: Array, unsure: Array) -> Float[Array, "2"]:
    """Return the largest relative error of squares and of fourth powers; functions that vanish have none."""
    share = jnp.where(exact > TINY, (abs(rule - exact) + unsure) / jnp.maximum(exact, TINY), 0.0)
    return jnp.max(jnp.nan_to_num(share, nan=jnp.inf).reshape(2, -1), axis=1)


class _Checked(NamedTuple):
    """The fourth-power norms of a function at several fields, and the relative errors of squares and fourth powers."""

    norms: Float[Array, "..."]
    missed: Float[Array, "2"]


def _check(
    function: Callable[[Array], Array], breaks: Breaks, lengths: Array, edge: Array, nodes: Array, weights: Array
) -> _Checked:
    def at(shift: Array | float) -> tuple[Array, Array]:
        def moved(x: Array) -> Array:
            return function(x + shift)

        exact, unsure = jax.vmap(lambda length: _exactly(moved, breaks, length, edge), out_axes=1)(lengths)
        return exact, _relative(_averages(moved, nodes, weights), exact, unsure)

    exact, missed = at(0.0)
    if not breaks.is_settled:
        # A rule that does not resolve a wave may give its average by accident, but not at several phases.
        phases = jax.lax.map(lambda shift: at(shift)[1], breaks.wave * jnp.asarray(PHASES))
        missed = jnp.maximum(missed, jnp.max(phases, axis=0))
        missed = jnp.where(missed > UNRESOLVED, jnp.maximum(missed, 1.0), missed)
    return _Checked(exact[1] ** 0.25, missed)


def _check_target(problem: Problem, lengths: Array, edge: Array, nodes: Array, weights: Array) -> _Checked:
    """Check the averages of a target: by its units, or along its field if it has only one.

    For several fields, the order of the rule was chosen for the target already.
    """
    units = problem.target.units
    if units is not None:
        checked = _check(units.activation, activation_breaks(units.activation), lengths, edge, nodes, weights)
        return _Checked(jnp.abs(jnp.asarray(units.weights)) @ checked.norms, checked.missed)
    if problem.k == 1:
        link = _check(
            lambda x: problem.target(x[..., None]), target_breaks(problem.target), lengths, edge, nodes, weights
        )
        return _Checked(link.norms[0], link.missed)
    return _Checked(_averages(problem.target, nodes, weights[:, 0])[1] ** 0.25, jnp.zeros(2))


def _bounds(value: Array, slope: Array, lengths: Array, displacement: Array, noise: Any) -> dict[str, Array]:
    """Return bounds on the moments, from the norms of what they average and the lengths of the fields."""
    return {
        "excess_risk": 0.5 * displacement**2,
        "chi": value * displacement,
        "v": 3.0**0.25 * slope[:, None] * lengths[None, :] * displacement,
        "phi_hd": slope[:, None] * slope[None, :] * (displacement**2 + noise),
    }


def _lost(checked: _Checked, breaks: Breaks, lengths: Array, spacing: float) -> _Checked:
    """Let a wave count whole where a product rule has less than two nodes in a period, whatever its averages are."""
    if breaks.is_settled:
        return checked
    is_lost = PER_PERIOD * spacing * jnp.max(lengths) > breaks.wave
    return checked._replace(missed=checked.missed + jnp.where(is_lost, 1.0, 0.0))


def doubts(
    problem: Problem, overlaps: Overlaps, values: dict[str, Array], marginals: Marginals, spacing: float = 0.0
) -> dict[str, Array]:
    """Return a bound on what a rule may have missed of each moment, because of narrow features or growth.

    Parameters
    ----------
    problem, overlaps
        The problem, and the overlaps at which its moments are computed.
    values
        The moments by the rule.
    marginals
        The nodes of the rule along single fields.
    spacing
        The distance of neighbouring nodes of a product rule, in deviations of a field.
    """
    overlaps, values, marginals = jax.lax.stop_gradient((overlaps, values, marginals))
    activation, p, wanted = problem.student.activation, problem.p, tuple(values)
    edge = reach(problem, overlaps, wanted)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(overlaps.omega), 0.0))
    breaks, along_student = activation_breaks(activation), (marginals.student, marginals.student_weights)
    value = _check(activation, breaks, lengths[:p], edge, *along_student)
    value = _lost(value, breaks, lengths[:p], spacing)
    slope = _check(activation.derivative, breaks, lengths[:p], edge, *along_student)
    target = _check_target(problem, lengths[p:], edge, marginals.target, marginals.target_weights)
    displacement = target.norms + jnp.abs(student_weights(problem, overlaps.a)) @ value.norms
    bounds = _bounds(value.norms, slope.norms, lengths, displacement, problem.noise)
    if "covariance" in wanted:
        size = jnp.sqrt(jnp.abs(jnp.diagonal(values["covariance"])))
        bounds["covariance"] = size[:, None] * size[None, :]
    squares, powers = jnp.max(jnp.stack([value.missed, slope.missed]), axis=0)
    squares = jnp.maximum(squares, target.missed[0])
    outside = beyond(problem, overlaps, wanted, edge)
    # The target is met twice at most, and four times in the covariance.
    missed = {name: squares if name in ("excess_risk", "chi", "v") else squares + powers for name in wanted}
    if "covariance" in wanted:
        missed["covariance"] = squares + jnp.maximum(powers, target.missed[1])
    return {name: jnp.nan_to_num(missed[name] * bounds[name] + outside[name], nan=jnp.inf) for name in wanted}


def marginals_of(fields: Float[Array, "points n"], weights: Float[Array, " points"], p: int) -> Marginals:
    """Return the marginals of a rule with points in the space of all fields."""
    everywhere = jnp.broadcast_to(weights[:, None], fields.shape)
    return Marginals(fields[:, :p], everywhere[:, :p], fields[:, p:], everywhere[:, p:])


def _resolved(checked: _Checked, breaks: Breaks, nodes: Array, weights: Array) -> _Checked:
    """Let a wave count whole where the nodes are too far apart for it, as averages may agree by accident then."""
    if breaks.is_settled:
        return checked
    gaps = jnp.where(weights[1:] > SEEN * jnp.max(weights, axis=0)[None, :], jnp.abs(nodes[1:] - nodes[:-1]), 0.0)
    is_seen = jnp.max(gaps) * PER_WAVE <= breaks.wave
    return checked._replace(missed=jnp.where(is_seen, checked.missed, jnp.maximum(checked.missed, 1.0)))


def ridge_doubts(
    problem: Problem,
    overlaps: Overlaps,
    kinds: list[tuple[Any, Array, Array, Array, Array]],
    wanted: tuple[str, ...],
    edge: Array,
) -> dict[str, Array]:
    """Return the same bound for rules along pairs of fields of student and target that are sums of functions.

    ``kinds`` are the functions, the student's first, with the lengths of their fields, the sizes of their weights, and
    nodes and weights of the rule along each field.
    """
    overlaps, edge = jax.lax.stop_gradient((overlaps, edge))
    checked = []
    for kind, *numbers in kinds:
        length, size, nodes, weights = jax.lax.stop_gradient(numbers)
        value = _check(kind.value, kind.breaks, length, edge, nodes, weights)
        checked.append((_resolved(value, kind.breaks, nodes, weights), size))
    (kind, *numbers), (value, _) = kinds[0], checked[0]
    length, _, nodes, weights = jax.lax.stop_gradient(numbers)
    slope = _check(kind.slope, kind.breaks, length, edge, nodes, weights)
    displacement = jnp.sum(jnp.stack([size @ value.norms for value, size in checked]))
    own = jnp.sqrt(jnp.maximum(jnp.diagonal(overlaps.omega), 0.0))
    bounds = _bounds(value.norms, slope.norms, own, displacement, problem.noise)
    squares = jnp.max(jnp.stack([slope.missed[0], *(value.missed[0] for value, _ in checked)]))
    powers = jnp.maximum(slope.missed[1], value.missed[1])  # the target is met twice at most
    outside = beyond(problem, overlaps, wanted, edge)
    missed = {name: squares + powers if name == "phi_hd" else squares for name in wanted}
    return {name: jnp.nan_to_num(missed[name] * bounds[name] + outside[name], nan=jnp.inf) for name in wanted}
