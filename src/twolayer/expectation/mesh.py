r"""Nodes for averages over one normal number that adapt to the length of a field: dense where a function has features.

The nodes are evenly spaced (or those of a Gauss-Legendre rule between kinks) in the variable

.. math:: t(y) = A\,\mathrm{arsinh}\frac{y}{\omega_0} + B \sum_i \mathrm{arsinh}\frac{y - c_i}{\omega_i} + \nu y

The first term resolves the normal density, a feature at :math:`c_i` of width :math:`\omega_i` has nodes at distances
proportional to its own size near it and to the distance from it further out, and a wave adds a constant density. As the
map is analytic, the trapezoidal rule converges geometrically. A wide feature takes no nodes: one number of nodes serves
rows of any length. Where all features are wide in units of the fields, the first term alone is enough, and its inverse
is known.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.break_points import Breaks
from twolayer.expectation.rules import QuadratureRule

# The density of nodes for the normal distribution: DENSITY at the origin, falling beyond this share of the reach.
DENSITY, CORE = 0.6, 0.25
# Nodes for a wave, per length of the pieces on which a short rule resolves it.
WAVE = 4.0
# Nodes for each kernel.
AMPLITUDE = 3.0
# Each piece must have this share of the density that its own kernel would give.
SHARE = 0.45
MOST_KERNELS = 6
# Features at least this many times as wide as the deviation of a field need no nodes of their own.
WIDE = 1.1
# Newton steps after each step along the line, and at the end.
POLISH = 2


class Features(NamedTuple):
    """Where a function of one number needs nodes: kernels (centre and width), kinks, and the density for its waves."""

    centres: tuple[float, ...]
    widths: tuple[float, ...]
    kinks: tuple[float, ...]
    wave: float


@lru_cache(maxsize=256)
def features_of(breaks: Breaks) -> Features:
    """Return few kernels that together resolve the pieces of a function."""
    wave = WAVE / breaks.wave if breaks.wave else 0.0
    if wave or not breaks.scales:
        return Features((), (), breaks.kinks, wave)
    centres, widths = np.array(breaks.scales).T
    points, needed = centres, SHARE / widths
    offered = 1.0 / np.sqrt((points[None, :] - centres[:, None]) ** 2 + widths[:, None] ** 2)
    density, chosen = np.zeros(len(points)), []
    while np.any(density < needed) and len(chosen) < MOST_KERNELS:
        gained = np.sum((density + offered >= needed) & (density < needed), axis=1)
        # Among equally good ones, the kernel in the middle of the places that it serves.
        gap = np.abs(centres - np.mean(points[density < needed]))
        best = int(np.argmax(gained - 1e-3 * gap / (1.0 + gap)))
        chosen.append(best)
        density = density + offered[best]
    return Features(tuple(centres[chosen].tolist()), tuple(widths[chosen].tolist()), breaks.kinks, 0.0)


class Extent(NamedTuple):
    """How far rules reach, in deviations, and whether all features are wide, so that nodes need not adapt to them."""

    edge: Array
    is_plain: Array | bool = False


class Monitor(NamedTuple):
    """The density of nodes along a standard normal number."""

    centres: Float[Array, " kernels"]
    widths: Float[Array, " kernels"]
    wave: Array
    extent: Extent

    @property
    def edge(self) -> Array:
        return self.extent.edge

    @property
    def core(self) -> Array:
        """The width of the kernel for the normal density."""
        return CORE * self.edge

    def at(self, y: Array) -> tuple[Array, Array]:
        """Return t(y) and its derivative, the density; one root serves both."""
        shape = (1,) * y.ndim + (-1,)
        z = (y[..., None] - self.centres.reshape(shape)) / self.widths.reshape(shape)
        factors, roots = _exp_arsinh(z)
        core, root = _exp_arsinh(y / self.core)
        folded = AMPLITUDE * jnp.log(jnp.prod(factors, axis=-1))
        kernels = AMPLITUDE * jnp.sum(1.0 / (self.widths.reshape(shape) * roots), axis=-1)
        count, density = DENSITY * self.core * jnp.log(core), DENSITY / root
        share = 1.0 - jnp.asarray(self.extent.is_plain, float)
        return count + share * (self.wave * y + folded), density + share * (self.wave + kernels)

    def count(self, y: Array) -> Array:
        """Return t(y)."""
        return self.at(y)[0]

    def density(self, y: Array) -> Array:
        """Return the derivative of t(y)."""
        return self.at(y)[1]


def _exp_arsinh(z: Array) -> tuple[Array, Array]:
    """Return exp(arsinh(z)), which takes less time to compile than arsinh, and the root of 1 + z^2."""
    root = jnp.sqrt(1.0 + z * z)
    size = jnp.abs(z) + root
    return jnp.where(z < 0.0, 1.0 / size, size), root


def even_rule(nodes: int) -> QuadratureRule:
    """Return the midpoint rule on [-1, 1], which is the best one where a function vanishes at both ends."""
    return QuadratureRule((2.0 * np.arange(nodes) + 1.0) / nodes - 1.0, np.full(nodes, 2.0 / nodes))


def mesh(monitor: Monitor, breaks: Float[Array, " breaks"], rule: QuadratureRule) -> tuple[Array, Array, Array]:
    """Return nodes and weights for a standard normal number, and the ends of the panels in the variable t.

    Parameters
    ----------
    monitor
        The density of the nodes.
    breaks
        Kinks, in any order; those beyond the reach give empty panels.
    rule
        The rule on [-1, 1] for each panel between kinks, in the variable t.
    """
    # Averages depend on the places of kinks, but not on where the other nodes are.
    monitor = jax.lax.stop_gradient(monitor)
    edge = jnp.reshape(monitor.edge, 1)
    ends = jnp.concatenate([-edge, jnp.sort(jnp.clip(breaks, -edge, edge)), edge])
    t_ends = monitor.count(ends)
    half = 0.5 * (t_ends[1:] - t_ends[:-1])
    middle = 0.5 * (t_ends[1:] + t_ends[:-1])
    t = middle[:, None] + half[:, None] * jnp.asarray(rule.points)[None, :]
    low, high = jnp.repeat(ends[:-1], t.shape[1]), jnp.repeat(ends[1:], t.shape[1])

    def adaptive() -> Array:
        return _inverse(monitor, t.ravel(), t_ends[0], low, high)

    def plain() -> Array:
        return monitor.core * jnp.sinh(t.ravel() / (DENSITY * monitor.core))

    is_plain = monitor.extent.is_plain
    y = adaptive() if isinstance(is_plain, bool) else jax.lax.cond(is_plain, plain, adaptive)
    weights = (half[:, None] * jnp.asarray(rule.weights)[None, :]).ravel() / monitor.density(y)
    return y, weights * jnp.exp(-0.5 * y * y) / np.sqrt(2.0 * np.pi), t_ends


def _inverse(monitor: Monitor, t: Array, start: Array, low: Array, high: Array) -> Array:
    """Return y(t) for increasing t, by following dy/dt = 1 / density and Newton's method."""
    times, first = jax.lax.stop_gradient((t, start))

    def advance(carry: tuple[Array, Array], time: Array) -> tuple[tuple[Array, Array], Array]:
        y, before = carry
        step = time - before
        middle = y + 0.5 * step / monitor.density(y)
        y = _bounded(y + step / monitor.density(middle), monitor.edge)
        count, density = monitor.at(y)
        y = _bounded(y - (count - time) / density, monitor.edge)
        return (y, time), y

    _, y = jax.lax.scan(advance, (-1.0 * monitor.edge, first), times)
    for _ in range(POLISH):
        # The last step makes the nodes differentiable in the places of kinks.
        y = jax.lax.stop_gradient(y)
        count, density = monitor.at(y)
        y = jnp.clip(y - (count - t) / density, low, high)
    return y


def _bounded(y: Array, edge: Array) -> Array:
    return jnp.clip(y, -edge, edge)


def scaled(features: Features, mean: Array, scale: Array, extent: Extent) -> tuple[Monitor, Array]:
    """Return the monitor and the breaks for a function of ``mean + scale * y``."""
    safe = jnp.maximum(scale, 1e-30)
    centres, widths = jnp.asarray(features.centres), jnp.asarray(features.widths)
    breaks = (jnp.asarray(features.kinks) - mean) / safe
    return Monitor((centres - mean) / safe, widths / safe, features.wave * scale, extent), breaks


def narrowest(breaks: Breaks) -> float:
    """Return the width of the narrowest feature of a function: zero at a kink, infinity for a polynomial."""
    if breaks.kinks:
        return 0.0
    features = features_of(breaks)
    return min(features.widths, default=np.inf) if not features.wave else 0.5 * breaks.wave


def length_of(features: Features, scale: float, edge: float) -> float:
    """Return the length of a field of a given deviation in the variable t; nodes are needed in proportion to it."""
    core = CORE * edge
    kernels = zip(features.centres, features.widths, strict=True)
    covered = sum(np.arcsinh((edge * scale - c) / w) + np.arcsinh((edge * scale + c) / w) for c, w in kernels)
    return float(
        2.0 * DENSITY * core * np.arcsinh(edge / core) + AMPLITUDE * covered + 2.0 * features.wave * scale * edge
    )
