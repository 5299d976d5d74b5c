r"""The Gaussian moments that theories of one-pass training need.

Fields :math:`\ell = (\lambda, \lambda^\star) \sim N(0, \Omega)`, displacement :math:`\mathcal E = f(\lambda^\star) -
s`, or :math:`f(\lambda^\star)` for the correlation loss (the label noise is integrated analytically). The moments are
computed in three ways: from a cloud of weighted points in the fields; from integrals over few units if the target is a
sum of units; and from those of the student together with integrals over the target if it is not.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.linalg import root
from twolayer.core.types import Numbers
from twolayer.expectation.sample_parts import covariance_of_parts
from twolayer.problem import Correlation, Overlaps, Problem

# In the order of difficulty, since the number of fields in one integral grows from k + 1 to k + 3.
MOMENTS = ("excess_risk", "chi", "v", "phi_hd")
# Those that contain the output of the student through the displacement alone.
FORCES = ("chi", "v", "phi_hd")
# The covariance of the increments involves all fields at once.
ALL = (*MOMENTS, "covariance")


class Moments(eqx.Module):
    r"""The averages over the fields at given overlaps.

    .. math::
        v_{ju} = E[\sigma'(\lambda_j)\,\ell_u\,\mathcal E], \quad
        \varphi^{HD}_{jl} = E[\sigma'(\lambda_j)\sigma'(\lambda_l)\,\mathcal E^2], \quad
        \chi_j = E[\sigma(\lambda_j)\,\mathcal E], \quad
        \mathrm{excess} = \tfrac12 E[\mathcal (f - s)^2]

    The label noise enters ``phi_hd`` only.
    """

    v: Float[Array, "p n"]
    phi_hd: Float[Array, "p p"]
    chi: Float[Array, " p"]
    excess_risk: Float[Array, ""]

    @property
    def psi(self) -> Float[Array, "p k"]:
        r"""The moments :math:`\psi_{jr} = E[\sigma'(\lambda_j)\,\lambda^\star_r\,\mathcal E]`."""
        return self.v[:, self.v.shape[0] :]

    @property
    def phi(self) -> Float[Array, "p p"]:
        r"""The moments :math:`\varphi_{jl} = E[\sigma'(\lambda_j)\,\lambda_l\,\mathcal E]`, which are not symmetric."""
        return self.v[:, : self.v.shape[0]]


class UnitIntegrals(NamedTuple):
    r"""The averages over units u with activation :math:`\sigma_u`; j and l run over the student's units.

    .. math::
        I_2 = E[\sigma_u \sigma_w],\quad J_2 = E[\sigma'_j \sigma'_l],\quad I_3 = E[\sigma'_j\,\ell_u\,\sigma_w],\quad
        \mathrm{quartic}_{jl} = E\big[\sigma'_j \sigma'_l \big(\textstyle\sum_u c_u \sigma_u\big)^2\big]

    The last one is summed over units where it is computed, since its n^2 terms are not needed one by one.
    """

    I2: Float[Array, "units units"]
    J2: Float[Array, "p p"]
    I3: Float[Array, "p n units"]
    quartic: Float[Array, "p p"] | None


class TargetIntegrals(NamedTuple):
    r"""The averages that contain a target which is not a sum of units; s is the student's output.

    .. math::
        ff = E[f^2],\quad fs_j = E[f \sigma_j],\quad fv_{ju} = E[\sigma'_j\,\ell_u f],\quad
        ffdd_{jl} = E[\sigma'_j \sigma'_l f^2],\quad fsdd_{jl} = E[\sigma'_j \sigma'_l f s]
    """

    ff: Float[Array, ""]
    fs: Float[Array, " p"]
    fv: Float[Array, "p n"]
    ffdd: Float[Array, "p p"] | None = None
    fsdd: Float[Array, "p p"] | None = None


def unit_weights(problem: Problem, a: Float[Array, " p"]) -> Float[Array, " n"]:
    r"""Return the weights c in :math:`\mathcal E = \sum_u c_u \sigma_u(\ell_u)`: the target's minus the student's."""
    assert problem.target.units is not None
    return jnp.concatenate([-student_weights(problem, a), jnp.asarray(problem.target.units.weights)])


def student_weights(problem: Problem, a: Float[Array, " p"]) -> Float[Array, " p"]:
    r"""Return the weights c in :math:`s = \sum_j c_j \sigma(\lambda_j)`."""
    return a * problem.student.scale


def opposed_weights(problem: Problem, a: Float[Array, " p"]) -> Float[Array, " p"]:
    """Return the output weights with which the student enters the displacement: zero for the correlation loss."""
    return jnp.zeros_like(a) if isinstance(problem.loss, Correlation) else a


def from_units(c: Float[Array, " n"], units: UnitIntegrals, noise: Numbers) -> dict[str, Array]:
    """Return the moments of a student and a target that are both sums of units."""
    p = units.J2.shape[0]
    parts = {
        "excess_risk": 0.5 * jnp.sum(c[:, None] * units.I2 * c[None, :]),
        "chi": jnp.sum(units.I2[:p] * c[None, :], axis=1),
        "v": jnp.sum(units.I3 * c[None, None, :], axis=2),
    }
    if units.quartic is not None:
        parts["phi_hd"] = units.quartic + noise * units.J2
    return parts


def from_target(
    c: Float[Array, " p"], student: UnitIntegrals, target: TargetIntegrals, noise: Numbers
) -> dict[str, Array]:
    """Return the moments for a target that is not a sum of units; c are the student's weights."""
    parts = {
        "excess_risk": 0.5 * (target.ff - 2.0 * c @ target.fs + c @ student.I2 @ c),
        "chi": target.fs - student.I2 @ c,
        "v": target.fv - student.I3 @ c,
    }
    if student.quartic is not None and target.ffdd is not None and target.fsdd is not None:
        parts["phi_hd"] = target.ffdd - 2.0 * target.fsdd + student.quartic + noise * student.J2
    return parts


def from_cloud(
    problem: Problem,
    a: Float[Array, " p"],
    fields: Float[Array, "N n"],
    weights: Float[Array, " N"],
    wanted: tuple[str, ...],
) -> dict[str, Array]:
    """Return the wanted moments as weighted sums over points in the space of the fields."""
    p = problem.p
    lam, lam_star = fields[:, :p], fields[:, p:]
    slope = problem.student.activation.derivative(lam)
    eps = problem.target(lam_star) - problem.student(lam, a)
    force = slope * eps[:, None]
    weighted_force = weights[:, None] * force
    parts = {
        "excess_risk": 0.5 * weights @ eps**2,
        "chi": problem.student.activation(lam).T @ (weights * eps),
        "v": weighted_force.T @ fields,
        "phi_hd": weighted_force.T @ force + problem.noise * ((weights[:, None] * slope).T @ slope),
    }
    if "covariance" in wanted:
        parts["covariance"] = covariance_of_parts(problem, a, fields, weights)
    return {name: parts[name] for name in wanted}


def fields_from_normals(overlaps: Overlaps, g: Float[Array, "N n"]) -> Float[Array, "N n"]:
    r"""Map standard normals to fields without inverting nearly singular matrices; the first k give the target fields.

    .. math:: \lambda^\star = P^{1/2} g^\star, \qquad \lambda = M P^{-1} \lambda^\star + (Q^\perp)^{1/2} g
    """
    k = overlaps.M.shape[1]
    lam_star = g[:, :k] @ jnp.linalg.cholesky(overlaps.P).T
    lam = lam_star @ overlaps.projection.T + g[:, k:] @ root(overlaps.perpendicular).T
    return jnp.concatenate([lam, lam_star], axis=1)
