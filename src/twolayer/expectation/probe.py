r"""Compute the averages of a cloud by importance sampling along single fields, with points where features are.

A cloud of normals has few points in the tails, and few in a bump that is narrow or far out. Half of the points of a
probe are those of the cloud; the other points are moved along one field, to a wider normal distribution or to one
around the features of the function of that field,

.. math:: \ell \to \ell + \frac{C_{\cdot u}}{C_{uu}} (\ell'_u - \ell_u), \qquad \ell'_u \sim N(\mu_u, \tau_u^2)

which keeps the distribution of the other fields given this one. Weights are those of the mixture and depend on the
moved fields only, so that no weight exceeds twice that of the cloud.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.break_points import Breaks, activation_breaks, target_breaks
from twolayer.expectation.closed.thresholds import thresholds
from twolayer.expectation.tails import tail_share
from twolayer.problem import AbstractActivation, Overlaps, Problem

# Standard deviation of the points that probe the tails.
WIDE = 3.0
# Features are within two deviations of the normal distribution that probes them.
FEATURE = 4.0
# Pieces shorter than this are narrow: a cloud may have few points there once the field is long or they are far out.
NARROW = 0.5
# A target is probed beyond four deviations if this fraction of its average comes from there.
GROWTH = 1e-3


def needs_probe(problem: Problem) -> bool:
    """Whether averages may come from places with few points of a cloud: user's functions, growth, narrow features."""
    target = problem.target
    activations = [problem.student.activation] + ([] if target.units is None else [target.units.activation])
    if not all(map(_is_tame, activations)) or tail_share(target, 4.0) > GROWTH:
        return True
    if target.k > 1 or target.units is not None or target.polynomial is not None:
        return False
    breaks = target_breaks(target)
    return bool(np.any(np.diff(sorted((*breaks.kinks, *breaks.ends))) < NARROW))


def _is_tame(activation: AbstractActivation) -> bool:
    """Whether an activation is bounded or grows linearly, and is not more complicated at large fields."""
    coefficients = activation.coefficients
    return thresholds(activation) is not None or (coefficients is not None and len(coefficients) <= 2)


def _features(breaks: Breaks) -> tuple[float, float] | None:
    """Return the middle and the width of the features of a function; None if it has none."""
    places = (*breaks.kinks, *breaks.ends)
    if len(places) < 2:
        return None
    return 0.5 * (max(places) + min(places)), (max(places) - min(places)) / FEATURE


def probed(
    problem: Problem, overlaps: Overlaps, fields: Float[Array, "N n"]
) -> tuple[Float[Array, "N n"], Float[Array, " N"]]:
    """Return the fields of a cloud with half of them moved to where features may be, and the importance weights."""
    omega = jax.lax.stop_gradient(overlaps.omega)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(omega), 1e-300))
    p, n = problem.p, fields.shape[1]
    target = target_breaks(problem.target) if problem.k == 1 or problem.target.units is not None else None
    features = [_features(activation_breaks(problem.student.activation))] * p
    features += [None if target is None else _features(target)] * problem.k
    narrow = [(u, *feature) for u, feature in enumerate(features) if feature is not None]
    which = np.array([*range(n), *(u for u, _, _ in narrow)])
    middle = jnp.concatenate([jnp.zeros(n), jnp.asarray([m for _, m, _ in narrow])])
    width = jnp.concatenate([WIDE * lengths, jnp.asarray([w for _, _, w in narrow])])
    # Consecutive points of a net form a net; every second point does not, and lies in one half of space.
    number, left = np.arange(len(fields)), len(fields) // 2
    is_moved = jnp.asarray(number >= left)
    component = np.maximum(number - left, 0) * len(which) // (len(fields) - left)
    chosen = which[component]
    old = jnp.take_along_axis(fields, jnp.asarray(chosen)[:, None], axis=1)[:, 0]
    new = middle[component] + width[component] * old / lengths[chosen]
    step = jnp.where(is_moved, (new - old) / lengths[chosen] ** 2, 0.0)
    moved = fields + step[:, None] * omega[chosen]
    y = moved[:, which] / lengths[which][None, :]
    scaled = (moved[:, which] - middle[None, :]) / width[None, :]
    ratios = jnp.exp(0.5 * (y**2 - scaled**2)) * (lengths[which] / width)[None, :]
    weights = 1.0 / (0.5 + 0.5 * jnp.mean(ratios, axis=1)) / len(fields)
    return moved, weights
