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
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.break_points import Breaks, activation_breaks, target_breaks
from twolayer.expectation.gaussian_moments import student_weights
from twolayer.expectation.rules import QuadratureRule, legendre_rule, line_rule
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

Function = Callable[[Array], Array]


class Marginals(NamedTuple):
    """The nodes of a rule along each student field and each target field, with their weights."""

    student: Float[Array, "nodes p"]
    student_weights: Float[Array, "nodes p"]
    target: Float[Array, "points k"]
    target_weights: Float[Array, "points k"]


def _powers(function: Function, x: Array, w: Array) -> Float[Array, "2 ..."]:
    """Return the weighted squares and fourth powers at some nodes."""
    square = function(x) ** 2
    # A point of zero weight contributes nothing, even where the function overflows.
    return jnp.stack([jnp.where(w > 0.0, w * power, 0.0) for power in (square, square**2)])


def _averages(function: Function, x: Array, w: Array) -> Float[Array, "2 ..."]:
    """Return the averages of the square and of the fourth power."""
    return jnp.sum(_powers(function, x, w), axis=1)


def _exactly(
    functions: tuple[Function, ...], breaks: Breaks, length: Array, edge: Array
) -> tuple[Float[Array, "functions 2"], Float[Array, "functions 2"]]:
    """Return accurate averages of square and fourth power at a field of given length, and their error."""
    places = jnp.asarray([*breaks.kinks, *breaks.ends]) / jnp.maximum(length, 1e-150)
    panels = EVEN if breaks.is_settled else MANY
    places = jnp.concatenate([places, edge * jnp.linspace(-1.0, 1.0, panels + 1)[1:-1]])
    # Both rules on the same panels, whose ends are sorted once.
    both = (np.concatenate(parts) for parts in zip(legendre_rule(NODES), legendre_rule(COARSER), strict=True))
    x, w = line_rule(places, QuadratureRule(*both), edge)
    shares = jnp.stack([_powers(function, length * x, w) for function in functions])
    shares = shares.reshape(len(functions), 2, -1, NODES + COARSER)
    fine, coarse = jnp.sum(shares[..., :NODES], axis=(2, 3)), jnp.sum(shares[..., NODES:], axis=(2, 3))
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
    functions: tuple[Function, ...], breaks: Breaks, lengths: Array, edge: Array, *rule: Array
) -> list[_Checked]:
    """Check the averages of functions with the same breaks, by nodes and weights along fields of the given lengths.

    Without a ``rule`` nothing is missed, and only the norms are of interest.
    """

    def at(shift: Array | float) -> tuple[Array, Array]:
        moved = tuple(lambda x, function=function: function(x + shift) for function in functions)
        exact, unsure = jax.vmap(lambda length: _exactly(moved, breaks, length, edge), out_axes=2)(lengths)
        if not rule:
            return exact, jnp.zeros((len(functions), 2))
        averages = jnp.stack([_averages(function, *rule) for function in moved])
        return exact, jax.vmap(_relative)(averages, exact, unsure)

    if breaks.is_settled or not rule:
        exact, missed = at(0.0)
    else:
        # A rule that does not resolve a wave may give its average by accident, but not at several phases.
        exacts, phases = jax.lax.map(at, breaks.wave * jnp.asarray((0.0, *PHASES)))
        exact, missed = exacts[0], jnp.max(phases, axis=0)
        missed = jnp.where(missed > UNRESOLVED, jnp.maximum(missed, 1.0), missed)
    return [_Checked(powers[1] ** 0.25, share) for powers, share in zip(exact, missed, strict=True)]


def _check_target(problem: Problem, lengths: Array, edge: Array, nodes: Array, weights: Array) -> _Checked:
    """Check the averages of a target: by its units, or along its field if it has only one.

    For several fields, the order of the rule was chosen for the target already.
    """
    units = problem.target.units
    if units is not None:
        (checked,) = _check((units.activation,), activation_breaks(units.activation), lengths, edge, nodes, weights)
        return _Checked(jnp.abs(jnp.asarray(units.weights)) @ checked.norms, checked.missed)
    if problem.k == 1:
        along = (lambda x: problem.target(x[..., None]),)
        (link,) = _check(along, target_breaks(problem.target), lengths, edge, nodes, weights)
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
    value, slope = _check((activation, activation.derivative), breaks, lengths[:p], edge, *along_student)
    value = _lost(value, breaks, lengths[:p], spacing)
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


def _widest(nodes: Array, weights: Array) -> Array:
    """Return the largest distance of neighbouring nodes, along the first axis, where weights count."""
    gaps = jnp.abs(nodes[1:] - nodes[:-1])
    return jnp.max(jnp.where(weights[1:] > SEEN * jnp.max(weights, axis=0)[None, :], gaps, 0.0), axis=0)


def lost_waves(breaks: Breaks, nodes: Array, weights: Array, slopes: Array, damping: Array) -> Array:
    """Return how much of a wave at most is between the nodes of rules along other fields.

    The wave has these slopes along the normal numbers of the rules, and is damped by what they do not determine.
    """
    if breaks.is_settled:
        return jnp.zeros(())
    spacing = PER_PERIOD * _widest(nodes, weights)[:, None] * jnp.abs(slopes)
    return jax.lax.stop_gradient(jnp.max(jnp.where(spacing > breaks.wave, damping, 0.0)))


def _resolved(checked: _Checked, breaks: Breaks, nodes: Array, weights: Array) -> _Checked:
    """Let a wave count whole where the nodes are too far apart for it, as averages may agree by accident then."""
    if breaks.is_settled:
        return checked
    is_seen = jnp.max(_widest(nodes, weights)) * PER_WAVE <= breaks.wave
    return checked._replace(missed=jnp.where(is_seen, checked.missed, jnp.maximum(checked.missed, 1.0)))


def ridge_doubts(
    problem: Problem,
    overlaps: Overlaps,
    kinds: list[tuple[Any, ...]],
    wanted: tuple[str, ...],
    edge: Array,
    lost: Array,
) -> dict[str, Array]:
    """Return the same bound for rules along pairs of fields of student and target that are sums of functions.

    ``kinds`` are the functions, the student's first, with the reach of the rules, the lengths of their fields, the
    sizes of their weights, and, where there is one, nodes and weights of the rule along each field. ``lost`` is the
    share of the target's waves that rules along the student's fields do not see.
    """
    overlaps, edge = jax.lax.stop_gradient((overlaps, edge))
    checked, slopes = [], []
    for kind, *numbers in kinds:
        own_edge, length, size, *rule = jax.lax.stop_gradient(numbers)
        functions = (kind.value,) if checked else (kind.value, kind.slope)  # the student's come first
        value, *more = _check(functions, kind.breaks, length, own_edge, *rule)
        checked.append((_resolved(value, kind.breaks, *rule) if rule else value, size))
        slopes += more
    (value, _), (slope,) = checked[0], slopes
    displacement = jnp.sum(jnp.stack([size @ value.norms for value, size in checked]))
    own = jnp.sqrt(jnp.maximum(jnp.diagonal(overlaps.omega), 0.0))
    bounds = _bounds(value.norms, slope.norms, own, displacement, problem.noise)
    squares = jnp.max(jnp.stack([lost, slope.missed[0], *(value.missed[0] for value, _ in checked)]))
    powers = jnp.maximum(slope.missed[1], value.missed[1])  # the target is met twice at most
    outside = beyond(problem, overlaps, wanted, edge)
    missed = {name: squares + powers if name == "phi_hd" else squares for name in wanted}
    return {name: jnp.nan_to_num(missed[name] * bounds[name] + outside[name], nan=jnp.inf) for name in wanted}
