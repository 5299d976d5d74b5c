r"""The risk of noisy signs whose directions outside of the target's span are uniform and independent.

Two units of the student have the covariance :math:`C_{ij} = u_{ij} + v_{ij}\,\rho` with the cosine :math:`\rho` of
their directions, over which

.. math:: A_{ij} = E_\rho\Big[\arcsin\frac{C_{ij}}{\sqrt{\kappa_i \kappa_j}}\Big], \qquad
          dA_{ij} = G_{ij}\,du + G'_{ij}\,dv
                    - \tfrac12 (u\,G + v\,G')_{ij}\Big(\frac{d\kappa_i}{\kappa_i} + \frac{d\kappa_j}{\kappa_j}\Big)

with :math:`G = E_\rho[(\kappa_i\kappa_j - C_{ij}^2)^{-1/2}]` and :math:`G' = E_\rho[\rho\,(\ldots)^{-1/2}]`. A
derivative therefore needs one root for each pair and cosine, and no arcsine. Pairs with a unit of the target, and of a
unit with itself, do not depend on the cosine.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.closed.relu_averages import difference
from twolayer.expectation.closed.thresholds import Thresholds
from twolayer.expectation.closed.units import noisy_determinant
from twolayer.expectation.rules import QuadratureRule


class _Rows(NamedTuple):
    """Single thresholds: their units' directions and lengths, their weights, and the noise of each."""

    b: Float[Array, "rows k"]
    s: Float[Array, " rows"]
    weights: Float[Array, " rows"]
    noise: Float[Array, " rows"]

    @property
    def variance(self) -> Float[Array, " rows"]:
        """The variances of the fields."""
        return jnp.sum(self.b**2, axis=1) + self.s**2


def risk_over_directions(
    student: Thresholds,
    target: Thresholds,
    c: Float[Array, " units"],
    units: tuple[Float[Array, "n k"], Float[Array, " n"]],
    root: Float[Array, "k k"],
    cosines: QuadratureRule,
) -> Float[Array, ""]:
    """Return half the mean square of the displacement, averaged over the directions of the units.

    Parameters
    ----------
    student, target
        Activations that are sums of noisy signs.
    c
        The weights of the units of the student and of the target in the displacement.
    units
        The components b of the student's units along the target's directions, and their lengths s outside of the span.
    root
        The Cholesky factor of the target's overlaps.
    cosines
        The rule for the cosine of two directions.
    """
    b, s = units
    n = len(s)
    own = _rows(student, b, s, c[:n])
    others = _rows(target, root, jnp.zeros(len(root)), c[n:])
    # Rows of one unit have one direction.
    unit = np.repeat(np.arange(n), len(student.noise))
    among = jnp.asarray(unit[:, None] != unit[None, :], float)
    kappa = own.variance + own.noise
    rho, shares = (jax.lax.stop_gradient(jnp.asarray(x)) for x in cosines)
    angles = mean_angles(own.b @ own.b.T, own.s[:, None] * own.s[None, :], kappa[:, None], kappa[None, :], rho, shares)
    square = own.weights @ (among * angles) @ own.weights
    itself = jax.vmap(lambda rows: rows.weights @ _angles(rows, rows, rows.variance[0]) @ rows.weights)
    square = square + jnp.sum(itself(jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), own)))
    square = square + 2.0 * own.weights @ _angles(own, others) @ others.weights
    square = square + others.weights @ _angles(others, others) @ others.weights
    offset = student.offset * jnp.sum(c[:n]) + target.offset * jnp.sum(c[n:])
    return square / np.pi + 0.5 * offset**2


def _rows(kind: Thresholds, b: Array, s: Array, c: Array) -> _Rows:
    terms = len(kind.noise)
    weights = (c[:, None] * jnp.asarray(kind.weights)[None, :]).ravel()
    noise = jnp.tile(jnp.asarray(kind.noise), len(s))
    return _Rows(jnp.repeat(b, terms, axis=0), jnp.repeat(s, terms), weights, noise)


def _angles(first: _Rows, second: _Rows, covariance: Array | None = None) -> Float[Array, "rows others"]:
    """Return the arcsines of the correlations of noisy fields; by default only b contributes to the covariances."""
    C = first.b @ second.b.T if covariance is None else covariance
    numbers = (first.variance[:, None], second.variance[None, :], first.noise[:, None], second.noise[None, :])
    return jnp.arctan2(C, jnp.sqrt(noisy_determinant(C, *numbers)))


@jax.custom_jvp
def mean_angles(
    u: Float[Array, "n m"],
    v: Float[Array, "n m"],
    first: Float[Array, "n 1"],
    second: Float[Array, "1 m"],
    rho: Float[Array, " cosines"],
    weights: Float[Array, " cosines"],
) -> Float[Array, "n m"]:
    r"""Return :math:`\sum_n w_n \arcsin((u + v\rho_n)/\sqrt{\kappa_1\kappa_2})`.

    There are no derivatives with respect to the cosines and their weights.
    """
    determinant = difference(first, second, u, u)

    def add(total: Array, node: tuple[Array, Array]) -> tuple[Array, None]:
        t = v * node[0]
        return total + node[1] * jnp.arctan2(u + t, jnp.sqrt(determinant - t * (2.0 * u + t))), None

    return jax.lax.scan(add, jnp.zeros_like(u), (rho, weights))[0]


@mean_angles.defjvp
def _slope_of_angles(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    u, v, first, second, rho, weights = primals
    du, dv, dfirst, dsecond, *_ = tangents
    determinant = difference(first, second, u, u)

    def add(totals: tuple[Array, Array], node: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        t = v * node[0]
        slope = node[1] * jax.lax.rsqrt(determinant - t * (2.0 * u + t))
        return (totals[0] + slope, totals[1] + node[0] * slope), None

    (G, G_rho), _ = jax.lax.scan(add, (jnp.zeros_like(u), jnp.zeros_like(u)), (rho, weights))
    across = 0.5 * (u * G + v * G_rho)
    return mean_angles(*primals), G * du + G_rho * dv - across * (dfirst / first + dsecond / second)
