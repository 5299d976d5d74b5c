r"""Closed forms for units that are all relu, and the one integral that has none, reduced to one dimension.

With slopes :math:`\theta` (steps) and :math:`\rho_{ab}` the correlation of two fields,

.. math::
    J_2 = \Theta_2(\rho_{12}) = \tfrac14 + \tfrac{\arcsin\rho_{12}}{2\pi}, \quad
    I_2 = \tfrac{1}{2\pi}\Big[\sqrt{C_{11}C_{22} - C_{12}^2} + C_{12}\big(\tfrac\pi2 + \arcsin\rho_{12}\big)\Big], \quad
    I_3 = \tfrac{C_{12}\sqrt{C_{11}C_{33} - C_{13}^2}}{2\pi C_{11}} + C_{23}\,\Theta_2(\rho_{13})

The four-field integral contains an orthant probability in four dimensions. Its derivative with respect to the
covariances between the two slopes and the two units is elementary: it is one smooth integral over an interpolation s.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.core.fields import count, static
from twolayer.core.linalg import pair_positions
from twolayer.expectation.base import AbstractEngine, Suits
from twolayer.expectation.moments import Moments, UnitIntegrals, from_units, unit_weights
from twolayer.problem import Overlaps, Problem
from twolayer.problem.activations import Relu

# Below this part of a field's variance a conditional variance is rounding: the field is then determined.
DEGENERATE = 1e-13
SAFETY = 4.0
FLOOR = 1e-13


def arcsine(c12: Array, c11: Array, c22: Array, scale: Array | float = 0.0) -> Array:
    r""":math:`\arcsin(c_{12}/\sqrt{c_{11} c_{22}})`, and zero where a field is determined.

    Zero is right there: a step at a kink counts one half, whatever the other field does. A variance is taken for
    rounding when it is a tiny part of ``scale``.
    """
    usable = jnp.logical_and(c11 > DEGENERATE * scale, c22 > DEGENERATE * scale)
    usable = jnp.logical_and(usable, jnp.logical_and(c11 > 0.0, c22 > 0.0))
    a, b = jnp.where(usable, c11, 1.0), jnp.where(usable, c22, 1.0)
    rho = jnp.where(usable, c12, 0.0) / jnp.sqrt(a * b)
    # (1 - rho)(1 + rho) has a square root of infinite slope at full correlation: no derivative is taken through there.
    rest = (1.0 - rho) * (1.0 + rho)
    inside = rest > 1e-30
    return jnp.where(inside, jnp.arctan2(rho, jnp.sqrt(jnp.where(inside, rest, 1.0))), jnp.sign(rho) * np.pi / 2)


def orthant(c12: Array, c11: Array, c22: Array, scale: Array | float = 0.0) -> Array:
    r""":math:`\Theta_2`, the probability that two fields are both positive."""
    return 0.25 + arcsine(c12, c11, c22, scale) / (2.0 * np.pi)


def _root(x: Array) -> Array:
    """A square root that is zero, with zero slope, where rounding makes its argument negative or zero."""
    return jnp.where(x > 0.0, jnp.sqrt(jnp.where(x > 0.0, x, 1.0)), 0.0)


def _ratio(x: Array, y: Array) -> Array:
    return jnp.where(y > 0.0, x / jnp.where(y > 0.0, y, 1.0), 0.0)


def two_steps_and_a_unit(V: dict[str, Array], scale: Array) -> Array:
    r""":math:`T_3 = E[\theta(x_a)\theta(x_b)(x_c)_+]` from the six covariances of the three fields.

    .. math:: T_3 = \sum_{i} \frac{V_{ci}}{\sqrt{2\pi V_{ii}}}\,
              \Theta_2\big(\rho\ \text{of the other two given}\ x_i = 0\big)
    """
    total = jnp.zeros_like(V["aa"])
    for i, first, second in (("a", "b", "c"), ("b", "a", "c"), ("c", "a", "b")):
        variance = V[i + i]
        is_free = variance > DEGENERATE * scale
        safe = jnp.where(is_free, variance, 1.0)
        to_first, to_second = V["".join(sorted(i + first))], V["".join(sorted(i + second))]
        c11 = V[first + first] - to_first**2 / safe
        c22 = V[second + second] - to_second**2 / safe
        c12 = V["".join(sorted(first + second))] - to_first * to_second / safe
        pull = V["".join(sorted("c" + i))] / jnp.sqrt(2.0 * np.pi * safe)
        total = total + jnp.where(is_free, pull * orthant(c12, c11, c22, scale), 0.0)
    return total


@lru_cache(maxsize=8)
def _rule(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre in phi on [0, pi/2] with s = sin(phi): nodes s and weights of ds."""
    x, w = np.polynomial.legendre.leggauss(order)
    phi = np.pi / 4 * (x + 1.0)
    return np.sin(phi), np.pi / 4 * w * np.cos(phi)


def four_fields(C: Float[Array, "4 4"], order: int) -> Float[Array, ""]:
    r""":math:`I_4 = E[\theta(x_1)\theta(x_2)(x_3)_+(x_4)_+]`.

    With the four covariances between {1, 2} and {3, 4} multiplied by s,

    .. math:: I_4 = J_2 I_2 + \int_0^1 ds \sum_{i \in \{1,2\}} \sum_{j \in \{3,4\}} \frac{C_{ij}}{\sqrt{2\pi C_{ii}}}
              \,T_3\big(x_{i'}, x_j, x_{j'}\,\big|\,x_i = 0\big)
    """
    s, weights = (jnp.asarray(x) for x in _rule(order))
    scale = jnp.max(jnp.diagonal(C))
    integrand = jnp.zeros_like(s)
    for i, other in ((0, 1), (1, 0)):
        is_free = C[i, i] > 0.0
        safe = jnp.where(is_free, C[i, i], 1.0)
        for j, last in ((2, 3), (3, 2)):
            V = {
                "aa": jnp.broadcast_to(C[other, other] - C[other, i] ** 2 / safe, s.shape),
                "bb": C[j, j] - s**2 * C[j, i] ** 2 / safe,
                "cc": C[last, last] - s**2 * C[last, i] ** 2 / safe,
                "ab": s * (C[other, j] - C[other, i] * C[j, i] / safe),
                "ac": s * (C[other, last] - C[other, i] * C[last, i] / safe),
                "bc": C[j, last] - s**2 * C[j, i] * C[last, i] / safe,
            }
            term = C[i, j] / jnp.sqrt(2.0 * np.pi * safe) * two_steps_and_a_unit(V, scale)
            integrand = integrand + jnp.where(is_free, term, 0.0)
    start = orthant(C[0, 1], C[0, 0], C[1, 1]) * two_units(C[2, 3], C[2, 2], C[3, 3])
    return start + weights @ integrand


def two_units(c12: Array, c11: Array, c22: Array) -> Array:
    r""":math:`I_2 = E[(x_1)_+ (x_2)_+]`."""
    return (_root(c11 * c22 - c12**2) + c12 * (np.pi / 2 + arcsine(c12, c11, c22))) / (2.0 * np.pi)


def integrals(omega: Float[Array, "n n"], p: int, order: int) -> UnitIntegrals:
    """All integrals over one to four relu units, with the first p units being the student's."""
    n = omega.shape[0]
    diagonal = jnp.diagonal(omega)
    rows, columns = diagonal[:, None], diagonal[None, :]
    I2 = two_units(omega, rows, columns)
    theta = orthant(omega, rows, columns)[:p]
    own = diagonal[:p, None]
    area = _ratio(_root(own * columns - omega[:p] ** 2), own)
    I3 = omega[:p, :, None] * area[:, None, :] / (2.0 * np.pi) + omega[None, :, :] * theta[:, None, :]
    slopes, units = np.triu_indices(p), np.triu_indices(n)
    tuples = np.array([(j, l, w, x) for j, l in zip(*slopes, strict=True) for w, x in zip(*units, strict=True)])
    values = jax.vmap(lambda index: four_fields(omega[index][:, index], order))(jnp.asarray(tuples))
    I4 = values.reshape(len(slopes[0]), len(units[0]))[pair_positions(p)][:, :, pair_positions(n)]
    return UnitIntegrals(I2, theta[:, :p], I3, I4)


class ReluUnits(AbstractEngine):
    """Closed forms and one-dimensional integrals: the student and every unit of the target are relu."""

    order: int = static(count("order", low=4, high=256), default=20)

    rtol: float = 0.0

    @classmethod
    def suits(cls, problem: Problem) -> Suits:
        units = problem.target.units
        if not isinstance(problem.student.activation, Relu):
            return Suits(False, f"the student is {problem.student.activation}, not relu")
        if units is None or not isinstance(units.activation, Relu):
            return Suits(False, "the target is not a sum of relu units")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem) -> "ReluUnits":
        return cls()

    def variants(self) -> tuple[AbstractEngine, ...]:
        return (self, ReluUnits(self.order // 2))

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        fine, coarse = results
        return Estimate(fine, jax.tree.map(lambda x, y: SAFETY * abs(x - y) + FLOOR * (1.0 + abs(x)), fine, coarse))

    def moments(self, problem: Problem, overlaps: Overlaps) -> Moments:
        units = integrals(overlaps.omega, problem.p, self.order)
        return from_units(unit_weights(problem, overlaps.a), units, problem.noise)

    @property
    def name(self) -> str:
        return f"closed form (relu), {self.order} nodes for four fields"
