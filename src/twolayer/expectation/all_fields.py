r"""Averages of losses that are not quadratic, and of labels that are flipped: over all p + k fields at once.

The student's output enters such a loss nonlinearly, so that nothing comes apart into integrals of few fields. Points of
the target's fields do not depend on the student: they are made once, between the places where the target has kinks or
its labels jump, so that what is averaged over each part is smooth. Given them, the student's fields are normal numbers
with a covariance of their own, whatever the overlaps.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.core.precision import double
from twolayer.core.types import Numbers
from twolayer.expectation.engine import ROUNDING, AbstractEngine, AbstractRule, Suits, with_others
from twolayer.expectation.gaussian_moments import fields_from_normals
from twolayer.expectation.qmc import (
    LOG2_POINTS,
    MAX_FIELDS,
    SCRAMBLINGS,
    UNSEEN,
    by_scatter,
    sobol,
    turned_normals,
    within_reach,
)
from twolayer.expectation.rules import QuadratureRule, coarser_orders, legendre_rule, panel_rule, tensor_rule
from twolayer.problem import Flips, Overlaps, Problem

# What is reported of predictions besides the risk.
PREDICTIONS = ("classification_error", "square_error")
# Orders of the product rule along the target's field between its kinks, and along the student's, which may be long.
TARGET_ORDER, STUDENT_ORDER = 32, 96
# More parts than this, into which jumps cut the target's fields, are too many to have points of their own.
MOST_PARTS = 8
# Places along a line at which the label is compared, and halvings of an interval in which it jumps.
LINE, HALVINGS = 161, 44
# Beyond this many deviations there are no points; no probability is closer to zero or one than the second number.
EDGE, LEAST = 8.0, 2.0**-53


def noise_fields(problem: Problem) -> int:
    """Return how many normal numbers of the label noise an average contains: additive noise has one, flips none."""
    return int(problem.is_noisy and not isinstance(problem.noise, Flips))


def possible_labels(
    problem: Problem, lam_star: Float[Array, "N k"], xi: Float[Array, " N"] | None
) -> list[tuple[Float[Array, " N"], Numbers]]:
    """Return the labels that each point may have, with their probabilities."""
    y = problem.target(lam_star)
    if isinstance(problem.noise, Flips):
        flip = problem.noise.probability
        return [(y, 1.0 - flip), (-y, flip)]
    return [(y if xi is None else y + jnp.sqrt(problem.noise) * xi, 1.0)]


def from_labels(
    problem: Problem,
    a: Float[Array, " p"],
    fields: Float[Array, "N n"],
    weights: Float[Array, " N"],
    xi: Float[Array, " N"] | None,
    wanted: tuple[str, ...],
) -> dict[str, Array]:
    r"""Return the wanted averages of any loss as weighted sums over points in the space of the fields.

    .. math:: E[\sigma(\lambda_j)\,\mathcal E],\quad E[\sigma'(\lambda_j)\,\ell_u\,\mathcal E],\quad
              E[\sigma'(\lambda_j)\sigma'(\lambda_l)\,\mathcal E^2], \qquad \mathcal E = -\partial_s \ell(y, s)

    the risk :math:`E[\ell(y, s)]` above its floor, the probability of :math:`y s < 0` and :math:`E[(y - s)^2]`.
    """
    lam, loss = fields[:, : problem.p], problem.loss
    s = problem.student(lam, a)
    labels = possible_labels(problem, fields[:, problem.p :], xi)

    def mean(function: Callable[[Array], Array]) -> Array:
        """The average over the labels of each point, times its weight."""
        return weights * sum(share * function(y) for y, share in labels)

    def slope() -> Array:
        return problem.student.activation.derivative(lam)

    parts: dict[str, Callable[[], Array]] = {
        "excess_risk": lambda: jnp.sum(mean(lambda y: loss.error(y, s))) - loss.floor(problem.noise),
        "chi": lambda: problem.student.activation(lam).T @ mean(lambda y: loss.displacement(y, s)),
        "v": lambda: (slope() * mean(lambda y: loss.displacement(y, s))[:, None]).T @ fields,
        "phi_hd": lambda: (slope() * mean(lambda y: loss.displacement(y, s) ** 2)[:, None]).T @ slope(),
        "classification_error": lambda: jnp.sum(mean(lambda y: 0.5 * (1.0 - jnp.sign(y * s)))),
        "square_error": lambda: jnp.sum(mean(lambda y: (y - s) ** 2)),
    }
    return {name: parts[name]() for name in wanted}


def _refusal(problem: Problem, moment: str) -> str:
    if moment == "covariance":
        return "the covariance of the increments is known for quadratic losses with additive noise"
    if moment == "classification_error" and not problem.has_sign_labels:
        return "labels are not signs"
    return ""


# ----------------------------------------------------------------------------------------------------- product rules


class ProductRule(AbstractRule):
    """Gauss rules over all fields: on the panels between kinks of the target, and over the student given them.

    They serve smooth losses and activations with one field each of the target and of the student. The output of long
    rows varies faster than a rule over more fields could resolve with fewer points than nets have.
    """

    rule: QuadratureRule  # points: target, student, label noise
    others: tuple[AbstractEngine, ...] = ()

    floor: ClassVar[float] = ROUNDING

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if reason := _refusal(problem, moment):
            return Suits(False, reason)
        if moment == "classification_error":
            return Suits(False, "the sign of the output jumps, where a rule for smooth functions is inaccurate")
        if not (problem.loss.is_smooth and problem.student.activation.is_smooth):
            return Suits(False, "a rule for smooth functions is inaccurate for a loss or an activation with kinks")
        fields = problem.k + problem.p + noise_fields(problem)
        if problem.k != 1 or fields != 2:
            return Suits(False, f"{fields} fields, limit 2")
        if not problem.is_isotropic:
            return Suits(False, "with a spectrum the fields' covariance is not P, between whose kinks the rule is made")
        if problem.target.kinks is None:
            return Suits(False, "the kinks of the target are not at known places")
        return within_reach(problem)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "ProductRule":
        orders = ((order, *coarser_orders(order)) for order in (TARGET_ORDER, STUDENT_ORDER))
        rules = [_product(problem, *pair) for pair in zip(*orders, strict=True)]
        size = max(len(rule.weights) for rule in rules)
        return with_others([cls(rule.padded(size)) for rule in rules])

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        points, weights = jnp.asarray(self.rule.points), jnp.asarray(self.rule.weights)
        fields, xi = _fields(problem, overlaps, points)
        return from_labels(problem, overlaps.a, fields, weights, xi, wanted)

    @property
    def name(self) -> str:
        return f"product rule, {len(self.rule.weights)} points over all {self.rule.points.shape[1]} fields"


def _product(problem: Problem, order: int, other: int) -> QuadratureRule:
    root = np.linalg.cholesky(np.asarray(problem.P))
    ends = tuple(tuple(sorted({*row, 0.0})) for row in problem.target.kinks or ())  # zero, so that no panel is too long
    x, w = panel_rule(root, ends, legendre_rule(order), 1e-16)
    y, v = tensor_rule(other, 1, 1e-16)
    points = np.concatenate([np.repeat(x, len(y), axis=0), np.tile(y, (len(x), 1))], axis=1)
    weights = np.outer(w, v).ravel()
    is_kept = weights > 1e-18
    return QuadratureRule(points[is_kept], weights[is_kept])


def _fields(problem: Problem, overlaps: Overlaps, normals: Array) -> tuple[Array, Array | None]:
    """Return the fields at some points, and the normal numbers of additive label noise, if there is some."""
    n = problem.p + problem.k
    return fields_from_normals(overlaps, normals[:, :n]), normals[:, n] if noise_fields(problem) else None


# -------------------------------------------------------------------------------------------------------------- nets


class SplitNets(AbstractEngine):
    """Scrambled Sobol nets over all fields, each in every part of the target's fields between its kinks and jumps.

    Each net is a variant: their mean is the value, and their scatter the error.
    """

    normals: Float[Array, "nets points n"]  # target, student, label noise
    weights: Float[Array, "nets points"]
    is_kinked: bool = eqx.field(static=True)
    # The smallest error that is reported, relative to a number of order one.
    floor: float = eqx.field(static=True)
    parts_of_target: int = eqx.field(static=True)

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        if reason := _refusal(problem, moment):
            return Suits(False, reason)
        return within_reach(problem)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "SplitNets":
        is_kinked = not (problem.loss.is_smooth and problem.student.activation.is_smooth)
        nets = [_net(problem, seed, is_kinked) for seed in range(SCRAMBLINGS)]
        size = max(len(weights) for _, weights in nets)
        padded = [QuadratureRule(*net).padded(size) for net in nets]
        is_split = any(len(weights) > 2**LOG2_POINTS for _, weights in nets)
        is_unseen = not (problem.target.is_continuous or is_split)
        # Along an axis a net has one point in each of N intervals: jumps in one field have no scatter within one of
        # them. Where labels jump at places that are not known, they may do so where no point is.
        floor = 2.0 * UNSEEN if is_unseen else 2.0 / 2**LOG2_POINTS if is_kinked else ROUNDING
        points, weights = (np.stack(x) for x in zip(*padded, strict=True))
        return cls(jnp.asarray(points), jnp.asarray(weights), is_kinked or is_unseen, floor, size // 2**LOG2_POINTS)

    @property
    def rtol(self) -> float:
        return 1e-4 if self.is_kinked else 1e-5

    def variants(self) -> tuple[AbstractEngine, ...]:
        rest = (self.is_kinked, self.floor, self.parts_of_target)
        return tuple(SplitNets(x[None], w[None], *rest) for x, w in zip(self.normals, self.weights, strict=True))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        judged = by_scatter(results)
        floor = self.floor
        return Estimate(judged.value, jax.tree.map(lambda e, x: e + floor * (1.0 + abs(x)), judged.error, judged.value))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        normals = self.normals.reshape(-1, self.normals.shape[-1])
        fields, xi = _fields(problem, overlaps, normals)
        weights = self.weights.ravel() / self.weights.shape[0]
        return from_labels(problem, overlaps.a, fields, weights, xi, wanted)

    @property
    def name(self) -> str:
        nets, _, fields = self.normals.shape
        split = f" in {self.parts_of_target} parts of the target" if self.parts_of_target > 1 else ""
        return f"randomised QMC, {2**LOG2_POINTS} points{split} x {nets} scramblings, all {fields} fields"


def _net(problem: Problem, seed: int, is_kinked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of one net, as normal numbers, and their weights."""
    from scipy.special import ndtri

    k, target = problem.k, problem.target
    n = k + problem.p + noise_fields(problem)
    size = 2**LOG2_POINTS  # with very many fields a net is no better than independent points
    u = sobol(n, seed).random_base2(LOG2_POINTS) if n <= MAX_FIELDS else np.random.default_rng(seed).random((size, n))
    u = np.clip(u, LEAST, 1.0 - LEAST)
    points, weights = u[:, :0], np.full(len(u), 1.0 / len(u))
    rest = ndtri(u[:, k:])
    if is_kinked:
        rest = rest @ _frame(rest.shape[1], seed)
    if not target.is_smooth:
        split = _between_kinks(problem, u[:, :k]) or _between_jumps(problem, u[:, :k], seed)
        if split is None:
            return (turned_normals(n, LOG2_POINTS, seed) if n <= MAX_FIELDS else ndtri(u)), weights
        points, shares = split
        repeats = len(points) // len(u)
        return np.concatenate([points, np.tile(rest, (repeats, 1))], axis=1), np.tile(weights, repeats) * shares
    return np.concatenate([ndtri(u[:, :k]), rest], axis=1), weights


def _frame(size: int, seed: int) -> np.ndarray:
    """Return a random rotation."""
    frame, triangle = np.linalg.qr(np.random.default_rng((seed, 2)).standard_normal((size, size)))
    return frame * np.sign(np.diagonal(triangle))[None, :] if size > 1 else np.eye(size)


def _between_kinks(problem: Problem, u: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return normal numbers in every part between known kinks of single fields, part after part, with their shares."""
    kinks = problem.target.kinks
    if kinks is None or np.prod([len(row) + 1 for row in kinks]) > MOST_PARTS:
        return None
    points, shares = np.zeros((len(u), 0)), np.ones(len(u))
    for field, row in enumerate(np.linalg.cholesky(np.asarray(problem.P))):
        places = (np.asarray(kinks[field])[None, :] - (points @ row[:field])[:, None]) / row[field]
        own = np.tile(u[:, field], len(points) // len(u))
        points, shares = _in_parts(points, shares, np.sort(places, axis=1), own)
    return points, shares


def _in_parts(
    points: np.ndarray, shares: np.ndarray, places: np.ndarray, u: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Add one normal number to every point in each part of a line, given the places that divide it."""
    from scipy.special import ndtr, ndtri

    edge = np.full((len(points), 1), EDGE)
    ends = ndtr(np.concatenate([-edge, np.clip(places, -EDGE, EDGE), edge], axis=1))
    low, width = ends[:, :-1].T, np.diff(ends, axis=1).T  # parts come first
    inside = np.clip(low + u[None, :] * width, LEAST, 1.0 - LEAST)
    number = len(low)
    return (
        np.concatenate([np.tile(points, (number, 1)), ndtri(inside).reshape(-1, 1)], axis=1),
        (shares[None, :] * width).ravel(),
    )


def _between_jumps(problem: Problem, u: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return normal numbers in every part between jumps of signs, which are looked for along a random direction."""
    from scipy.special import ndtri

    if not problem.has_sign_labels:
        return None
    turn = _frame(problem.k, seed)
    others = ndtri(u[:, 1:])
    root = np.linalg.cholesky(np.asarray(problem.P))

    def label(x: np.ndarray) -> np.ndarray:
        """The labels of points with several places x along the first direction."""
        both = np.concatenate([x[..., None], np.broadcast_to(others[:, None, :], (*x.shape, problem.k - 1))], axis=-1)
        fields = (both @ turn @ root.T).reshape(-1, problem.k)
        with double():
            return np.asarray(problem.target(jnp.asarray(fields))).reshape(x.shape)

    line = np.broadcast_to(np.linspace(-EDGE, EDGE, LINE), (len(u), LINE))
    changes = np.diff(label(line), axis=1) != 0.0
    most = int(changes.sum(axis=1).max())
    if most + 1 > MOST_PARTS:
        return None
    # The first changes along each line; lines with fewer have parts of no size at the edge.
    order = np.argsort(~changes, axis=1, kind="stable")[:, :most]
    is_there = np.take_along_axis(changes, order, axis=1)
    low, high = np.take_along_axis(line, order, axis=1), np.take_along_axis(line, order + 1, axis=1)
    left = label(low)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        is_left = label(middle) == left
        low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
    places = np.where(is_there, high, EDGE)
    first, shares = _in_parts(np.zeros((len(u), 0)), np.ones(len(u)), places, u[:, 0])
    points = np.concatenate([first, np.tile(others, (most + 1, 1))], axis=1)
    return points @ turn, shares
