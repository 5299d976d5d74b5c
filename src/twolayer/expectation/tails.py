"""Bound what rules miss in the tails: for functions that grow fast, averages come from rare large fields."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaln

from twolayer.core.precision import double
from twolayer.core.programs import KeptProgram
from twolayer.core.types import Numbers
from twolayer.problem import AbstractTarget, Overlaps, Problem


def target_values(target: AbstractTarget, fields: Float[np.ndarray, "*n k"]) -> Float[np.ndarray, "*n"]:
    """Return the target at many fields, by one program for any number of them."""
    rows = fields.reshape(-1, target.k)
    firsts = range(0, len(rows), AT_ONCE)
    with double():
        members = [np.minimum(np.arange(first, first + AT_ONCE), len(rows) - 1) for first in firsts]
        values = [np.asarray(_target_values(target, rows[part])) for part in members]
    return np.concatenate(values)[: len(rows)].reshape(fields.shape[:-1])


@KeptProgram
def _target_values(target: AbstractTarget, fields: Float[np.ndarray | Array, "n k"]) -> Float[Array, " n"]:
    return target(jnp.asarray(fields))


def tail_share(target: AbstractTarget, reach: float) -> float:
    r"""Return the largest fraction of :math:`E[f^2]` from fields beyond ``reach`` deviations, along several lines."""
    if target.k == 0:
        return 0.0
    z = np.linspace(-14.0, 14.0, 5601)
    directions = [*np.eye(target.k), np.ones(target.k) / np.sqrt(target.k)]
    shares = []
    for direction in directions:
        values = target_values(target, z[:, None] * direction[None, :] @ _root(target))
        with np.errstate(over="ignore", invalid="ignore"):
            density = np.exp(2.0 * np.log(np.abs(values) + 1e-300) - 0.5 * z**2)
        total = np.sum(density)
        if not np.isfinite(total):
            return 1.0
        # A target that is zero along a line has no average there.
        shares.append(float(np.sum(density[np.abs(z) > reach]) / total) if np.any(values != 0.0) else 0.0)
    return max(shares)


def diverges(target: AbstractTarget) -> bool:
    r"""Whether :math:`E[f^2]` is infinite, as for ``exp(0.3*z1**2)``: its density still grows where others are zero."""
    if target.k == 0 or target.polynomial is not None or target.units is not None:
        return False
    z = np.concatenate([-DISTANCES[::-1], DISTANCES])
    is_far = np.abs(z) > FAR
    for direction in [*np.eye(target.k), np.ones(target.k) / np.sqrt(target.k)]:
        with np.errstate(all="ignore"):
            values = np.abs(target_values(target, z[:, None] * direction[None, :] @ _root(target)))
            density = 2.0 * np.log(np.nan_to_num(values, nan=np.inf) + 1e-300) - 0.5 * z**2
        if np.max(density[is_far]) > np.max(density[~is_far]):
            return True
    return False


def _root(target: AbstractTarget) -> np.ndarray:
    return np.linalg.cholesky(np.asarray(target.target_overlaps)).T


# Rows of fields at which a target is evaluated at once.
AT_ONCE = 8192
# Distances, in deviations, at which growth is measured; beyond the last one the normal density underflows.
DISTANCES = np.linspace(0.0, 38.0, 153)
# An average that is made beyond this distance is infinite, or too large for a number.
FAR = 30.0
# The largest reach of a rule, and the fraction of an average that it may leave out.
MOST, NEGLIGIBLE = 37.0, 1e-17
# A region that a cloud may miss is about so many deviations out.
RARE = 4.0
# The logarithm of a number that has overflowed.
OVERFLOW = 1e5


def _log_largest(values: Float[Array, "distances ..."]) -> Float[Array, "distances ..."]:
    """Return the logarithm of the largest absolute value up to each distance."""
    return jax.lax.cummax(jnp.nan_to_num(jnp.log(jnp.abs(values) + 1e-300), nan=OVERFLOW, posinf=OVERFLOW), axis=0)


class _Sizes(NamedTuple):
    """Logarithms of the largest modulus up to each distance from the origin, and of the weights of the units."""

    lengths: Float[Array, " n"]  # of the fields; no logarithm
    value: Float[Array, "distances p"]
    slope: Float[Array, "distances p"]
    target: Float[Array, " distances"]
    weights: Float[Array, " p"]


def _log_target(problem: Problem, P: Float[Array, "k k"]) -> Float[Array, " distances"]:
    """Return the logarithm of the largest modulus of the target up to each distance, along several lines."""
    directions = [*np.eye(problem.k), np.ones(problem.k) / np.sqrt(problem.k)][: problem.k + (problem.k > 1)]
    both = np.stack([*directions, *(-direction for direction in directions)])
    rows = jnp.asarray(both) @ jnp.linalg.cholesky(P).T
    values = problem.target(jnp.asarray(DISTANCES)[:, None, None] * rows[None, :, :])
    return _log_largest(jnp.max(jnp.abs(values), axis=1))


def _log_sizes(problem: Problem, overlaps: Overlaps) -> _Sizes:
    """No field is larger at the distance t than its length times t."""
    activation = problem.student.activation
    t = jnp.asarray(DISTANCES)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(overlaps.omega), 0.0))
    fields = t[:, None] * lengths[None, : problem.p]
    both = jnp.stack([fields, -fields])
    value, slope = (_log_largest(jnp.max(jnp.abs(x), axis=0)) for x in (activation(both), activation.derivative(both)))
    target = _log_target(problem, overlaps.P)
    return _Sizes(lengths, value, slope, target, jnp.log(jnp.abs(overlaps.a) * problem.student.scale + 1e-300))


def _log_envelopes(problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
    r"""The logarithm of a bound on the modulus of what each moment averages, at each distance from the origin.

    Each function is replaced by its largest modulus up to there. Entries of the moments stand behind the axis of
    distances.
    """
    lengths, value, slope, target, share = _log_sizes(problem, overlaps)
    t = jnp.asarray(DISTANCES)
    noise = jnp.broadcast_to(0.5 * jnp.log(problem.noise + 1e-300), t.shape)
    displacement = jax.nn.logsumexp(jnp.concatenate([target[:, None], value + share[None, :]], axis=1), axis=1)
    length = jnp.log(t[:, None] * lengths[None, :] + 1e-300)
    noisy = jnp.logaddexp(displacement, noise)
    envelopes = {
        "excess_risk": 2.0 * displacement - np.log(2.0),
        "chi": value + displacement[:, None],
        "v": slope[:, :, None] + length[:, None, :] + displacement[:, None, None],
        "phi_hd": slope[:, :, None] + slope[:, None, :] + 2.0 * noisy[:, None, None],
    }
    if "covariance" in wanted:
        force = jnp.log(jnp.abs(overlaps.a) + 1e-300)[None, :] + slope + noisy[:, None]
        linear = jax.nn.logsumexp(length, axis=1)[:, None] + force
        increments = jnp.concatenate([value + noisy[:, None], linear, 2.0 * force], axis=1)
        envelopes["covariance"] = 2.0 * jax.nn.logsumexp(increments, axis=1)[:, None, None]
    return {name: envelopes[name] for name in wanted}


def _log_radii(fields: int) -> np.ndarray:
    """Return the logarithm of the probability of each distance from the origin."""
    constant = (0.5 * fields - 1.0) * np.log(2.0) + float(gammaln(0.5 * fields)) - np.log(DISTANCES[1])
    return (fields - 1) * np.log(DISTANCES + 1e-300) - 0.5 * DISTANCES**2 - constant


def _log_shares(problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
    """Return the logarithm of a bound on the contribution of each distance to each moment."""
    radius = _log_radii(problem.p + problem.k)
    envelopes = _log_envelopes(problem, jax.lax.stop_gradient(overlaps), wanted)
    return {name: x + jnp.asarray(radius).reshape(-1, *[1] * (x.ndim - 1)) for name, x in envelopes.items()}


def reach(
    problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...], left_out: float = NEGLIGIBLE
) -> Float[Array, ""]:
    """Return how far a rule must reach for the wanted moments at the overlaps, in deviations.

    It may leave out this fraction of an average.
    """
    return _reach_for(left_out, *_log_shares(problem, overlaps, wanted).values())


def reach_of_target(problem: Problem, P: Float[Array, "k k"], left_out: float = NEGLIGIBLE) -> Float[Array, ""]:
    """Return how far a rule must reach for the average square of the target, in deviations."""
    square = 2.0 * _log_target(problem, jax.lax.stop_gradient(P)) + jnp.asarray(_log_radii(problem.k))
    return _reach_for(left_out, square)


def least_reach(left_out: float = NEGLIGIBLE) -> float:
    """Return the reach for a function that does not grow: the normal density falls to the fraction left out."""
    return float(np.sqrt(-2.0 * np.log(left_out)))


def _reach_for(left_out: float, *log_shares: Float[Array, "distances ..."]) -> Float[Array, ""]:
    needed = jnp.asarray(least_reach(left_out))
    for shares in log_shares:
        flat = shares.reshape(len(DISTANCES), -1)
        relative = flat - jnp.max(flat, axis=0)[None, :]
        counts = jnp.any(relative > np.log(left_out), axis=1)
        needed = jnp.maximum(needed, jnp.max(jnp.where(counts, jnp.asarray(DISTANCES), 0.0)))
    return jnp.minimum(needed, MOST)


def beyond(problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...], edge: Numbers) -> dict[str, Array]:
    """Return a bound on the contribution of fields more than ``edge`` deviations from the origin to each moment."""
    shares = _log_shares(problem, overlaps, wanted)
    is_out = jnp.asarray(DISTANCES) > edge
    return {
        name: jnp.sum(jnp.where(is_out.reshape(-1, *[1] * (x.ndim - 1)), jnp.exp(x), 0.0), axis=0)
        for name, x in shares.items()
    }


def unseen(problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...], share: float) -> dict[str, Array]:
    r"""A bound on what the moments miss when a target jumps on a region of this probability that no point has met.

    There the target is somewhere else in its range, of modulus F at most, and the student's output of modulus S:
    :math:`\tfrac12 (f - s)^2` differs by :math:`2 F (F + S)` at most, and other averages accordingly.
    """
    overlaps = jax.lax.stop_gradient(overlaps)
    sizes = _log_sizes(problem, overlaps)
    rare = int(np.searchsorted(DISTANCES, RARE))
    value, slope, target = (jnp.exp(x[rare]) for x in (sizes.value, sizes.slope, sizes.target))
    output = jnp.exp(sizes.weights) @ value
    bounds = {
        "excess_risk": 2.0 * target * (target + output),
        "chi": 2.0 * value * target,
        "v": 2.0 * RARE * slope[:, None] * sizes.lengths[None, :] * target,
        "phi_hd": 4.0 * slope[:, None] * slope[None, :] * target * (target + output),
    }
    if "covariance" in wanted:
        bounds["covariance"] = jnp.exp(_log_envelopes(problem, overlaps, ("covariance",))["covariance"][rare])
    return {name: share * bounds[name] for name in wanted}
