r"""Nodes for averages over one normal number that adapt to the length of a field: dense where a function has features.

The nodes are evenly spaced (or those of a Gauss-Legendre rule between kinks) in the variable

.. math:: t(y) = A\,\mathrm{arsinh}\frac{y}{\omega_0} + B \sum_i \mathrm{arsinh}\frac{y - c_i}{\omega_i} + \nu y

The first term resolves the normal density, a feature at :math:`c_i` of width :math:`\omega_i` has nodes at distances
proportional to its own size near it and to the distance from it further out, and a wave adds a constant density. As the
map is analytic, the trapezoidal rule converges geometrically. A wide feature takes no nodes: one number of nodes serves
rows of any length.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.features import Breaks
from twolayer.expectation.rules import QuadratureRule

# The density of nodes for the normal distribution: DENSITY at the origin, falling beyond this share of the reach.
DENSITY, CORE = 0.6, 0.45
# Nodes for a wave, per length of the pieces on which a short rule resolves it.
WAVE = 4.0
# Nodes for each kernel.
AMPLITUDE = 3.0
# Each piece must have this share of the density that its own kernel would give.
SHARE = 0.45
MOST_KERNELS = 6
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


class Monitor(NamedTuple):
    """The density of nodes along a standard normal number."""

    centres: Float[Array, " kernels"]
    widths: Float[Array, " kernels"]
    wave: Array
    edge: Array

    @property
    def core(self) -> Array:
        """The width of the kernel for the normal density."""
        return CORE * self.edge

    def _kernels(self, y: Array) -> tuple[Array, Array]:
        shape = (1,) * y.ndim + (-1,)
        return self.centres.reshape(shape), self.widths.reshape(shape)

    def count(self, y: Array) -> Array:
        """Return t(y)."""
        centres, widths = self._kernels(y)
        folded = AMPLITUDE * jnp.log(jnp.prod(_exp_arsinh((y[..., None] - centres) / widths), axis=-1))
        return DENSITY * self.core * jnp.log(_exp_arsinh(y / self.core)) + self.wave * y + folded

    def density(self, y: Array) -> Array:
        """Return the derivative of t(y)."""
        centres, widths = self._kernels(y)
        kernels = AMPLITUDE * jnp.sum(jax.lax.rsqrt((y[..., None] - centres) ** 2 + widths**2), axis=-1)
        return DENSITY * self.core * jax.lax.rsqrt(y * y + self.core**2) + self.wave + kernels


def _exp_arsinh(z: Array) -> Array:
    """Return exp(arsinh(z)), which takes less time to compile than arsinh."""
    is_left = z < 0.0
    size = jnp.where(is_left, -z, z) + jnp.sqrt(1.0 + z * z)
    return jnp.where(is_left, 1.0 / size, size)


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
    y = _inverse(monitor, t.ravel(), t_ends[0], low, high)
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
        y = _bounded(y - (monitor.count(y) - time) / monitor.density(y), monitor.edge)
        return (y, time), y

    _, y = jax.lax.scan(advance, (-1.0 * monitor.edge, first), times)
    for _ in range(POLISH):
        # The last step makes the nodes differentiable in the places of kinks.
        y = jax.lax.stop_gradient(y)
        y = jnp.clip(y - (monitor.count(y) - t) / monitor.density(y), low, high)
    return y


def _bounded(y: Array, edge: Array) -> Array:
    return jnp.clip(y, -edge, edge)


def scaled(features: Features, mean: Array, scale: Array, edge: Array) -> tuple[Monitor, Array]:
    """Return the monitor and the breaks for a function of ``mean + scale * y``."""
    safe = jnp.maximum(scale, 1e-30)
    centres, widths = jnp.asarray(features.centres), jnp.asarray(features.widths)
    breaks = (jnp.asarray(features.kinks) - mean) / safe
    return Monitor((centres - mean) / safe, widths / safe, features.wave * scale, edge), breaks


def length_of(features: Features, scale: float, edge: float) -> float:
    """Return the length of a field of a given deviation in the variable t; nodes are needed in proportion to it."""
    core = CORE * edge
    kernels = zip(features.centres, features.widths, strict=True)
    covered = sum(np.arcsinh((edge * scale - c) / w) + np.arcsinh((edge * scale + c) / w) for c, w in kernels)
    return float(
        2.0 * DENSITY * core * np.arcsinh(edge / core) + AMPLITUDE * covered + 2.0 * features.wave * scale * edge
    )
