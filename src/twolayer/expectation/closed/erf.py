r"""Closed forms for units that are all :math:`\mathrm{erf}(x/\sqrt2)` :cite:p:`saad1995`."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.core.linalg import pair_positions
from twolayer.expectation.base import AbstractEngine, Suits, exact_combine
from twolayer.expectation.moments import Moments, UnitIntegrals, from_units, unit_weights
from twolayer.problem import Overlaps, Problem
from twolayer.problem.activations import Erf


def arcsine_matrix(C: Float[Array, "n n"]) -> Float[Array, "n n"]:
    r""":math:`\arcsin\big(C_{uw} / \sqrt{(1 + C_{uu})(1 + C_{ww})}\big)` for all pairs, accurate at any correlation."""
    diagonal = jnp.diagonal(C)
    # (1 + C_uu)(1 + C_ww) - C_uw^2 written so that it stays above one: no cancellation, no clipping.
    determinant = diagonal[:, None] * diagonal[None, :] - C**2
    rest = 1.0 + diagonal[:, None] + diagonal[None, :] + jnp.maximum(determinant, 0.0)
    return jnp.arctan2(C, jnp.sqrt(rest))


def integrals(omega: Float[Array, "n n"], p: int) -> UnitIntegrals:
    r"""All integrals over one to four erf units, with the first p units being the student's.

    .. math::
        I_2 = \tfrac2\pi \arcsin\frac{C_{12}}{\sqrt{(1+C_{11})(1+C_{22})}}, \quad
        J_2 = \tfrac2\pi \frac1{\sqrt{(1+C_{11})(1+C_{22}) - C_{12}^2}}, \quad
        I_3 = \tfrac2\pi \frac{C_{23}(1+C_{11}) - C_{12}C_{13}}{(1+C_{11})\sqrt{(1+C_{11})(1+C_{33}) - C_{13}^2}}

    and :math:`I_4 = \frac{4}{\pi^2 \sqrt{\det K}} \arcsin(\dots)` with :math:`K = C_{\{12\}} + 1` and the arcsine
    matrix of the covariance of the other two conditioned on the first two with unit noise,
    :math:`S = C - C_{\cdot,12} K^{-1} C_{12,\cdot}`. Valid for any covariance, singular ones included.
    """
    diagonal = jnp.diagonal(omega)
    one = 1.0 + diagonal
    student = omega[:p]  # (p, n): covariances of student units with all
    lambda3 = one[:p, None] * one[None, :] - student**2  # (1 + C_jj)(1 + C_ww) - C_jw^2, at least 1
    numerator = omega[None, :, :] * one[:p, None, None] - student[:, :, None] * student[:, None, :]
    I3 = 2.0 / np.pi * numerator / (one[:p, None, None] * jnp.sqrt(lambda3)[:, None, :])
    J2 = 2.0 / np.pi / jnp.sqrt(lambda3[:, :p])

    def pair(j: Array, l: Array) -> Array:
        k11, k22, k12 = one[j], one[l], omega[j, l]
        det = k11 * k22 - k12**2
        cj, cl = omega[:, j], omega[:, l]
        cross = jnp.outer(cj, cl)
        S = omega - (k22 * jnp.outer(cj, cj) - k12 * (cross + cross.T) + k11 * jnp.outer(cl, cl)) / det
        return 4.0 / np.pi**2 / jnp.sqrt(det) * arcsine_matrix(S)

    rows, columns = np.triu_indices(p)
    half = jax.vmap(pair)(jnp.asarray(rows), jnp.asarray(columns))
    return UnitIntegrals(2.0 / np.pi * arcsine_matrix(omega), J2, I3, half[pair_positions(p)])


class ErfUnits(AbstractEngine):
    """Closed forms: the student and every unit of the target are erf."""

    rtol: float = 0.0

    @classmethod
    def suits(cls, problem: Problem) -> Suits:
        units = problem.target.units
        if not isinstance(problem.student.activation, Erf):
            return Suits(False, f"the student is {problem.student.activation}, not erf")
        if units is None or not isinstance(units.activation, Erf):
            return Suits(False, "the target is not a sum of erf units")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem) -> "ErfUnits":
        return cls()

    def variants(self) -> tuple[AbstractEngine, ...]:
        return (self,)

    def combine(self, results: tuple) -> Estimate:
        return exact_combine(results)

    def moments(self, problem: Problem, overlaps: Overlaps) -> Moments:
        return from_units(unit_weights(problem, overlaps.a), integrals(overlaps.omega, problem.p), problem.noise)

    @property
    def name(self) -> str:
        return "closed form (erf)"
