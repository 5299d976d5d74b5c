r"""Points where features are: the same averages as those of a cloud, by importance sampling along single fields.

A cloud of normals has few points in the tails, and few in a bump that is narrow or far out. Half of the points of a
probe are left as they are; the others are moved along one field each, to a wider normal distribution or to one about
the features of the function of that field,

.. math:: \ell \to \ell + \frac{C_{\cdot u}}{C_{uu}} (\ell'_u - \ell_u), \qquad \ell'_u \sim N(\mu_u, \tau_u^2)

which leaves the other fields given this one as they are. Weights are those of the mixture, a function of the moved
fields alone, so that no weight exceeds twice that of the cloud.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.closed.thresholds import thresholds
from twolayer.expectation.features import Breaks, activation_breaks, target_breaks
from twolayer.expectation.tails import tail_share
from twolayer.problem import AbstractActivation, Overlaps, Problem

# Tails are looked for with this many deviations.
WIDE = 3.0
# Features are within two deviations of the normal distribution that looks for them.
FEATURE = 4.0
# Pieces shorter than this are narrow: a cloud may have few points there once the field is long or they are far out.
NARROW = 0.5
# A target of which this part of the average is made beyond four deviations is looked at there.
GROWTH = 1e-3


def needs_probe(problem: Problem) -> bool:
    """Whether averages may be made where a cloud has few points: user's functions, growth, narrow features."""
    target = problem.target
    activations = [problem.student.activation] + ([] if target.units is None else [target.units.activation])
    if not all(map(_is_tame, activations)) or tail_share(target, 4.0) > GROWTH:
        return True
    if target.k > 1 or target.units is not None or target.polynomial is not None:
        return False
    breaks = target_breaks(target)
    return bool(np.any(np.diff(sorted((*breaks.kinks, *breaks.ends))) < NARROW))


def _is_tame(activation: AbstractActivation) -> bool:
    """Whether an activation is bounded or grows linearly, and looks the same or simpler at large fields."""
    coefficients = activation.coefficients
    return thresholds(activation) is not None or (coefficients is not None and len(coefficients) <= 2)


def _features(breaks: Breaks) -> tuple[float, float] | None:
    """The middle and the width of the features of a function; None where there are none to find."""
    places = (*breaks.kinks, *breaks.ends)
    if len(places) < 2:
        return None
    return 0.5 * (max(places) + min(places)), (max(places) - min(places)) / FEATURE


def probed(
    problem: Problem, overlaps: Overlaps, fields: Float[Array, "N n"]
) -> tuple[Float[Array, "N n"], Float[Array, " N"]]:
    """The fields of a cloud, half of them moved to where features may be, and the weights that undo it."""
    omega = jax.lax.stop_gradient(overlaps.omega)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(omega), 1e-300))
    p, n = problem.p, fields.shape[1]
    target = target_breaks(problem.target) if problem.k == 1 or problem.target.units is not None else None
    own = [_features(activation_breaks(problem.student.activation))] * p
    own += [None if target is None else _features(target)] * problem.k
    narrow = [(u, *feature) for u, feature in enumerate(own) if feature is not None]
    which = np.array([*range(n), *(u for u, _, _ in narrow)])
    middle = jnp.concatenate([jnp.zeros(n), jnp.asarray([m for _, m, _ in narrow])])
    width = jnp.concatenate([WIDE * lengths, jnp.asarray([w for _, _, w in narrow])])
    # Stretches of a net are nets; every other point is not, and lies in one half of space.
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
