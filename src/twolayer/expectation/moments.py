r"""The Gaussian moments that every theory of one-pass training needs: each equation once.

Fields :math:`\ell = (\lambda, \lambda^\star) \sim N(0, \Omega)`, displacement :math:`\mathcal E = f(\lambda^\star) - s`
(label noise is integrated by hand). There are two ways to the same moments: from a cloud of weighted points in the
fields, and from the integrals over two, three and four units when the target is a sum of units.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.problem import Overlaps, Problem


class Moments(eqx.Module):
    r"""Averages over the fields at given overlaps.

    .. math::
        v_{ju} = E[\sigma'(\lambda_j)\,\ell_u\,\mathcal E], \quad
        \varphi^{HD}_{jl} = E[\sigma'(\lambda_j)\sigma'(\lambda_l)\,\mathcal E^2], \quad
        \chi_j = E[\sigma(\lambda_j)\,\mathcal E], \quad
        \mathrm{excess} = \tfrac12 E[\mathcal (f - s)^2]

    The noise enters ``phi_hd`` alone.
    """

    v: Float[Array, "p n"]
    phi_hd: Float[Array, "p p"]
    chi: Float[Array, " p"]
    excess_risk: Float[Array, ""]

    @property
    def psi(self) -> Float[Array, "p k"]:
        r""":math:`\psi_{jr} = E[\sigma'(\lambda_j)\,\lambda^\star_r\,\mathcal E]`."""
        return self.v[:, self.v.shape[0] :]

    @property
    def phi(self) -> Float[Array, "p p"]:
        r""":math:`\varphi_{jl} = E[\sigma'(\lambda_j)\,\lambda_l\,\mathcal E]`, not symmetric."""
        return self.v[:, : self.v.shape[0]]


class UnitIntegrals(NamedTuple):
    r"""Averages over single units, for units u with activation :math:`\sigma_u`; j and l run over student units.

    .. math::
        I_2 = E[\sigma_u \sigma_w],\quad J_2 = E[\sigma'_j \sigma'_l],\quad I_3 = E[\sigma'_j\,\ell_u\,\sigma_w],\quad
        I_4 = E[\sigma'_j \sigma'_l \sigma_w \sigma_{w'}]
    """

    I2: Float[Array, "n n"]
    J2: Float[Array, "p p"]
    I3: Float[Array, "p n n"]
    I4: Float[Array, "p p n n"]


def unit_weights(problem: Problem, a: Float[Array, " p"]) -> Float[Array, " n"]:
    r"""The weights c in :math:`\mathcal E = \sum_u c_u \sigma_u(\ell_u)`: minus the student's, plus the target's."""
    assert problem.target.units is not None
    return jnp.concatenate([-a * problem.student.scale, jnp.asarray(problem.target.units.weights)])


def from_units(c: Float[Array, " n"], integrals: UnitIntegrals, noise: Float[Array, ""] | float) -> Moments:
    """The moments of a student and a target that are both sums of units."""
    I2, J2, I3, I4 = integrals
    p = J2.shape[0]
    return Moments(
        v=jnp.einsum("w,juw->ju", c, I3),
        phi_hd=jnp.einsum("w,x,jlwx->jl", c, c, I4) + noise * J2,
        chi=I2[:p] @ c,
        excess_risk=0.5 * c @ I2 @ c,
    )


def from_cloud(
    problem: Problem, a: Float[Array, " p"], fields: Float[Array, "N n"], weights: Float[Array, " N"]
) -> Moments:
    """The moments as weighted sums over points in the space of the fields."""
    p = problem.p
    lam, lam_star = fields[:, :p], fields[:, p:]
    slope = problem.student.activation.derivative(lam)
    eps = problem.target(lam_star) - problem.student(lam, a)
    force = slope * eps[:, None]
    weighted_force = weights[:, None] * force
    return Moments(
        v=weighted_force.T @ fields,
        phi_hd=weighted_force.T @ force + problem.noise * ((weights[:, None] * slope).T @ slope),
        chi=problem.student.activation(lam).T @ (weights * eps),
        excess_risk=0.5 * weights @ eps**2,
    )


def fields_from_normals(overlaps: Overlaps, g: Float[Array, "N n"], root: Float[Array, "p p"]) -> Float[Array, "N n"]:
    r"""Map standard normals to fields without inverting anything near-singular.

    .. math:: \lambda^\star = P^{1/2} g^\star, \qquad \lambda = M P^{-1} \lambda^\star + (Q^\perp)^{1/2} g
    """
    p = overlaps.M.shape[0]
    lam_star = g[:, p:] @ jnp.linalg.cholesky(overlaps.P).T
    lam = lam_star @ overlaps.projection.T + g[:, :p] @ root.T
    return jnp.concatenate([lam, lam_star], axis=1)
