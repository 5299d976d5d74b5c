r"""The averages of one unit over the rest of its field, with the Hermite polynomials of Mehler's formula.

.. math:: T_q(\mu) = \frac{1}{\sqrt{q!}} E_y[g(\mu + s y)\,\mathrm{He}_q(y)], \qquad E_y[g(\mu + s y)^2]

as rows, at some means or interpolated between the nodes of a table.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.break_points import Breaks
from twolayer.expectation.closed.averaged import Closed, hermite_rows
from twolayer.expectation.mesh import Extent, Features, Monitor, features_of, mesh, scaled
from twolayer.expectation.rules import QuadratureRule

# A rest of the field below this part of its length is zero.
DETERMINED = 1e-8
# Kinks are smoothed over the rest of the field, which a table resolves down to this part of its length.
SHARPEST = 1e-7
# The least width of a table, in units of the rest of the field.
NARROWEST = 1e-3


class Kind(NamedTuple):
    """A function of one number, the units that it serves, and where it needs nodes."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    units: tuple[int, ...]
    breaks: Breaks
    is_continuous: bool
    # Its averages where they have a closed form, and how many terms of their series are not zero.
    closed: Closed | None = None
    most_terms: int | None = None

    @property
    def features(self) -> Features:
        return features_of(self.breaks)

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.breaks.kinks


class Table(NamedTuple):
    """Chebyshev nodes on [-1, 1] and the matrix from values there to coefficients of Chebyshev polynomials."""

    nodes: np.ndarray
    to_coefficients: np.ndarray


class FieldRules(NamedTuple):
    """Rules along a field: on the whole line, and on each panel between kinks."""

    line: QuadratureRule
    panel: QuadratureRule


class Rules(NamedTuple):
    """The rules of one variant: along a field, the same for the target alone, and the nodes of tables."""

    along: FieldRules
    alone: FieldRules
    table: Table


def table_rule(nodes: int, size: int) -> Table:
    """Return the nodes of a table, padded to one size."""
    angles = np.pi * (np.arange(nodes)[::-1] + 0.5) / nodes
    matrix = 2.0 / nodes * np.cos(np.arange(nodes)[:, None] * angles[None, :])
    matrix[0] *= 0.5
    padded = np.zeros((size, size))
    padded[:nodes, :nodes] = matrix
    return Table(np.append(np.cos(angles), np.ones(size - nodes)), padded)


def smoothed(
    kind: Kind, mean: Float[Array, " x"], deviation: Array, extent: Extent, rules: Rules, terms: int
) -> Float[Array, "rows x"]:
    """Return the averages of a unit at each mean."""
    is_free = deviation > DETERMINED * (jnp.max(jnp.abs(mean)) / extent.edge + deviation)
    if kind.closed is not None:
        averages = kind.closed(mean, jnp.where(is_free, deviation, 1.0), terms)
    else:
        rule = rules.along.panel if kind.kinks else rules.along.line
        averages = _by_rule(kind, mean, deviation, extent, rule, terms)
    return jnp.where(is_free, averages, _plain(kind, mean, terms))


def _by_rule(
    kind: Kind, mean: Float[Array, " x"], deviation: Array, extent: Extent, rule: QuadratureRule, terms: int
) -> Float[Array, "rows x"]:
    def at(mu: Array) -> Array:
        monitor, breaks = scaled(kind.features, mu, deviation, extent)
        y, w, _ = mesh(monitor, breaks, rule)
        g = kind.value(mu + deviation * y)
        return jnp.append(hermite_rows(w * g, y, terms, jnp.sum), jnp.sum(w * g * g))

    return jax.vmap(at, out_axes=1)(mean)


def _plain(kind: Kind, mean: Float[Array, " x"], terms: int) -> Float[Array, "rows x"]:
    """Return the averages of a unit whose field is its mean."""
    g = kind.value(mean)
    return jnp.concatenate([g[None], jnp.zeros((terms - 1, len(mean))), (g * g)[None]])


class Tables(NamedTuple):
    """Tables of the averages of one kind of unit."""

    kind: Kind
    extent: Extent
    rules: Rules
    terms: int

    def at(self, mean: Float[Array, " x"], spread: Array, deviation: Array) -> Float[Array, "rows x"]:
        """Return the averages at many means, whose standard deviation is ``spread``."""
        kind, features = self.kind, self.kind.features
        if kind.closed is not None:
            return smoothed(kind, mean, deviation, self.extent, self.rules, self.terms)
        # A table need not be smaller than what the averages change over; derivatives would be those of rounding.
        scale = jnp.maximum(jnp.maximum(spread, NARROWEST * deviation), 1e-30)
        # Means are combinations of two numbers, each of them within the edge. Nothing falls off here, so that nodes are
        # dense where the averages vary, however wide that is.
        extent = Extent(np.sqrt(2.0) * self.extent.edge)
        sharp = jnp.where(deviation > SHARPEST * scale, jnp.maximum(deviation / scale, SHARPEST), 1e30)
        centres = jnp.asarray([*features.centres, *kind.kinks]) / scale
        widths = jnp.concatenate(
            [
                jnp.sqrt(jnp.asarray(features.widths) ** 2 + deviation**2) / scale,
                jnp.full(len(kind.kinks), 1.0) * sharp,
            ]
        )
        wave = features.wave * spread * jnp.exp(-0.5 * (features.wave * deviation) ** 2)
        monitor = jax.lax.stop_gradient(
            Monitor(jnp.clip(centres, -1e30, 1e30), jnp.clip(widths, 1e-12, 1e30), wave, extent)
        )
        breaks = jnp.asarray(kind.kinks) / scale
        size = len(self.rules.table.nodes)
        rule = QuadratureRule(self.rules.table.nodes, np.ones(size))
        z, _, t_ends = mesh(monitor, breaks, rule)
        values = smoothed(kind, scale * z, deviation, self.extent, self.rules, self.terms)
        coefficients = jnp.einsum(
            "cn,qpn->pqc", jnp.asarray(self.rules.table.to_coefficients), values.reshape(len(values), -1, size)
        )
        place = jnp.clip(mean / scale, -extent.edge, extent.edge)
        t = monitor.count(place)
        total = jnp.zeros((len(values), len(mean)))
        for panel in range(len(kind.kinks) + 1):
            low, high = t_ends[panel], t_ends[panel + 1]
            is_wide = high > low
            inside = jnp.clip((2.0 * t - low - high) / jnp.where(is_wide, high - low, 1.0), -1.0, 1.0)
            is_here = is_wide & (t >= low) & (t < high) if panel < len(kind.kinks) else is_wide & (t >= low)
            total = total + jnp.where(is_here[None, :], coefficients[panel] @ _chebyshev(inside, size), 0.0)
        is_free = deviation > DETERMINED * (spread + deviation)
        return jnp.where(is_free, total, _plain(kind, mean, self.terms))


def _chebyshev(x: Float[Array, " x"], size: int) -> Float[Array, "size x"]:
    """Return the Chebyshev polynomials of degrees below ``size``."""

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        before, now = carry
        return (now, 2.0 * x * now - before), now

    _, rows = jax.lax.scan(step, (x, jnp.ones_like(x)), None, length=size)
    return rows
