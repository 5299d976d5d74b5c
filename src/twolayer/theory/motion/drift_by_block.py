r"""The motion of the overlaps by block, for inputs with a spectrum."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from twolayer.core.linalg import cholesky
from twolayer.expectation import Moments
from twolayer.problem import BlockOverlaps, Overlaps, Problem
from twolayer.theory.motion.drift import decay_rate
from twolayer.training import SGD


class BlockChange(NamedTuple):
    """A rate of change of the overlaps by block and of the second layer."""

    Q: Float[Array, "blocks p p"]
    M: Float[Array, "blocks p k"]
    a: Float[Array, " p"]


def stein(overlaps: Overlaps, moments: Moments) -> Float[Array, "p n"]:
    r"""A matrix G with :math:`G\,\Omega_l = E[\nabla g]\,\Omega_l` in every block, from the moments :math:`v`.

    .. math:: v_{ju} = E[\sigma'(\lambda_j)\,\ell_u\,\mathcal E] = (G\,\Omega)_{ju}, \qquad
              \Omega = \sum_l c_l \Omega_l

    No derivative of the average is taken, so that any loss and any activation will do. At singular overlaps, such as
    perfect recovery, G is not unique, but its product with a block is: what :math:`\Omega` does not see, no block with
    an eigenvalue above zero does. The triangular factor of :math:`\Omega` then has columns of zeros, and the entries
    of G there are zero.
    """
    p, n = moments.v.shape
    # The target comes first, whose overlaps are never singular.
    order = jnp.concatenate([jnp.arange(p, n), jnp.arange(p)])
    factor = cholesky(overlaps.omega[order][:, order])
    is_free = jnp.diagonal(factor) > 0.0
    # Rows without a pivot are consistent with the others, and are left out.
    whole = jnp.where(is_free[:, None], factor, jnp.eye(n))
    rows = jnp.where(is_free[:, None], moments.v[:, order].T, 0.0)
    half = solve_triangular(whole, rows, lower=True)
    return solve_triangular(whole.T, half, lower=False).T[:, jnp.argsort(order)]


def block_drift(
    problem: Problem,
    training: SGD,
    state: BlockOverlaps,
    a: Float[Array, " p"],
    moments: Moments,
    variance: float = 1.0,
) -> BlockChange:
    r"""Time derivatives of the overlaps by block and of a, in the limit d to infinity.

    .. math::
        \dot M_l = c_l\,(G_s M_l + G_t P_l), \qquad
        \dot Q_l = c_l\,(G_s Q_l + G_t M_l^T) + (\cdot)^T
        + \frac{\gamma}{p}\,c_l f_l\,D_a \varphi^{HD} D_a, \qquad \dot a = \kappa\,\chi

    with the columns of the students and of the target of :math:`D_a G`, see `stein`. Weight decay, linear methods with
    memory and the sphere, which keeps :math:`\sum_l Q_{l,jj}`, are those of `drift`: weights of all eigenvalues decay
    alike, and a row is rescaled as a whole.

    Parameters
    ----------
    problem, training
        The problem and its training.
    state, a
        The overlaps by block, and the second layer.
    moments
        Gaussian moments at the covariance of the fields.
    variance
        1 with and 0 without the variance term (gradient flow).

    Notes
    -----
    Assumes what `drift` assumes. Checked against: `drift` for one block, phase retrieval with two blocks in plain NumPy
    and by simulation, direct SGD at growing d.
    """
    da = moments.chi * training.layer_ratio
    if not training.trains_first:
        return BlockChange(jnp.zeros_like(state.Q), jnp.zeros_like(state.M), da)
    p, c = len(a), jnp.asarray(state.frame.eigenvalues)[:, None, None]
    fields = Overlaps(*state.weighted(), a)
    gain = training.gain
    G = gain * a[:, None] * stein(fields, moments)
    students, targets = G[None, :, :p], G[None, :, p:]
    dM = c * (students @ state.M + targets @ state.frame.P)
    half = c * (students @ state.Q + targets @ jnp.swapaxes(state.M, 1, 2))
    spread = a[:, None] * moments.phi_hd * a[None, :]
    rate = variance * gain**2 * training.learning_rate / p
    dQ = half + jnp.swapaxes(half, 1, 2) + rate * c * jnp.asarray(state.frame.shares)[:, None, None] * spread[None]
    decay: Any = decay_rate(problem, training)
    dQ, dM = dQ - 2.0 * decay * state.Q, dM - decay * state.M
    if training.is_spherical:
        growth = 0.5 * jnp.diagonal(jnp.sum(dQ, axis=0)) / jnp.diagonal(jnp.sum(state.Q, axis=0))
        dM = dM - state.M * growth[None, :, None]
        dQ = dQ - state.Q * (growth[None, :, None] + growth[None, None, :])
    return BlockChange(dQ, dM, da)
