r"""The mean motion of the overlaps in the limit of high dimension, by block where the inputs have a spectrum."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from twolayer.core.linalg import cholesky, pair_positions, symmetrise
from twolayer.core.types import Numbers
from twolayer.expectation import Moments
from twolayer.problem import Overlaps, Problem
from twolayer.training import SGD


class Change(NamedTuple):
    """A change, or a rate of change, of the overlaps; those by block have the blocks along the first axis."""

    Q: Float[Array, "*blocks p p"]
    M: Float[Array, "*blocks p k"]
    a: Float[Array, " p"]


def changing(overlaps: Overlaps) -> Change:
    """The overlaps that change, by block where there are blocks."""
    state = overlaps if overlaps.blocks is None else overlaps.blocks
    return Change(*(jnp.asarray(x) for x in (state.Q, state.M, overlaps.a)))


def pack(change: Change) -> Float[Array, " entries"]:
    """The change as one vector: a, then M row by row, then the pairs j <= l of Q, each of them block by block."""
    rows, columns = np.triu_indices(len(change.a))
    return jnp.concatenate([change.a, change.M.reshape(-1), change.Q[..., rows, columns].reshape(-1)])


def unpack(x: Float[Array, " entries"], p: int, k: int, blocks: int | None = None) -> Change:
    """The change from its vector; the inverse of `pack`."""
    leading = () if blocks is None else (blocks,)
    ends = p + p * k * (blocks or 1)
    pairs = x[ends:].reshape(*leading, -1)
    return Change(pairs[..., pair_positions(p)], x[p:ends].reshape(*leading, p, k), x[:p])


def lengths(Q: Float[Array, "*blocks p p"]) -> Float[Array, " p"]:
    """The squared lengths of the rows, or their changes: sums over the blocks where there are blocks."""
    return jnp.diagonal(Q if Q.ndim == 2 else jnp.sum(Q, axis=0))


def across(x: Float[Array, " p"], Q: Float[Array, "*blocks p p"]) -> tuple[Array, Array]:
    """Numbers of the rows as arrays that multiply the rows, and the columns, of overlaps such as Q."""
    leading = (1,) * (Q.ndim - 2)
    return x.reshape(*leading, -1, 1), x.reshape(*leading, 1, -1)


def tangent(overlaps: Overlaps, change: Change) -> Change:
    r"""A small change after the rows are brought back to their lengths, to first order.

    .. math::
        \delta M_{jr} - \frac{M_{jr}}{2} \frac{\delta Q_{jj}}{Q_{jj}}, \qquad
        \delta Q_{jl} - \frac{Q_{jl}}{2} \Big(\frac{\delta Q_{jj}}{Q_{jj}} + \frac{\delta Q_{ll}}{Q_{ll}}\Big)

    It is linear in the change. The lengths are the current ones and not the initial ones: with those, a deviation by
    rounding would grow wherever the rows shrink. A row is rescaled as a whole: where there are blocks, the lengths are
    sums over them.
    """
    Q, M, _ = changing(overlaps)
    rows, columns = across(lengths(change.Q) / lengths(Q), Q)
    dM = change.M - 0.5 * M * rows
    dQ = change.Q - 0.5 * Q * (rows + columns)
    if Q.ndim == 2:
        dQ = dQ - jnp.diag(jnp.diagonal(dQ))
    return Change(dQ, dM, change.a)


def mean_increments(
    problem: Problem, training: SGD, overlaps: Overlaps, moments: Moments, variance: Numbers = 1.0
) -> Change:
    r"""The mean of what one sample adds, divided by :math:`\gamma_d/p`, at leading order in d.

    .. math:: g (D_a \varphi + \varphi^T D_a) + g^2 \frac{\gamma}{p} D_a \varphi^{HD} D_a, \qquad g D_a \psi, \qquad
              \kappa\,\chi

    for Q, M and a, with the gain g of the method (1 for plain SGD), without weight decay and before rows are brought
    back; ``variance`` multiplies the second term. Q and M stay where only the second layer is trained. For overlaps by
    block see `increments_by_block`.
    """
    a = overlaps.a
    da = moments.chi * training.layer_ratio
    if not training.trains_first:
        state = changing(overlaps)
        return Change(jnp.zeros_like(state.Q), jnp.zeros_like(state.M), da)
    if overlaps.blocks is not None:
        return Change(*increments_by_block(training, overlaps, moments, variance), da)
    if training.moves_by_signs:
        return _increments_by_signs(problem, training, moments, da, variance)
    psi_gf = 2.0 * symmetrise(a[:, None] * moments.phi)
    psi_var = a[:, None] * moments.phi_hd * a[None, :]
    gain = training.gain
    dQ = symmetrise(gain * psi_gf + gain**2 * variance * training.learning_rate / problem.p * psi_var)
    return Change(dQ, gain * a[:, None] * moments.psi, da)


def stein(overlaps: Overlaps, moments: Moments) -> Float[Array, "p n"]:
    r"""A matrix G with :math:`G\,\Omega_l = E[\nabla g]\,\Omega_l` in every block, from the moments :math:`v`.

    .. math:: v_{ju} = E[\sigma'(\lambda_j)\,\ell_u\,\mathcal E] = (G\,\Omega)_{ju}, \qquad
              \Omega = \sum_l c_l \Omega_l

    No derivative of the average is taken, so that any loss and any activation will do; ``overlaps`` are those of the
    fields.
    """
    return by_fields(overlaps, moments.v)


def by_fields(overlaps: Overlaps, rows: Float[Array, "m n"]) -> Float[Array, "m n"]:
    r"""A matrix G with :math:`G\,\Omega` equal to the given rows, which are of this form.

    At singular overlaps, such as perfect recovery, G is not unique, but its product with a block is: what
    :math:`\Omega` does not see, no block with an eigenvalue above zero does. The triangular factor of :math:`\Omega`
    then has columns of zeros, and the entries of G there are zero.
    """
    p, n = overlaps.M.shape[0], rows.shape[1]
    # The target comes first, whose overlaps are never singular.
    order = jnp.concatenate([jnp.arange(p, n), jnp.arange(p)])
    factor = cholesky(overlaps.omega[order][:, order])
    is_free = jnp.diagonal(factor) > 0.0
    # Rows without a pivot are consistent with the others, and are left out.
    whole = jnp.where(is_free[:, None], factor, jnp.eye(n))
    given = jnp.where(is_free[:, None], rows[:, order].T, 0.0)
    half = solve_triangular(whole, given, lower=True)
    return solve_triangular(whole.T, half, lower=False).T[:, jnp.argsort(order)]


def increments_by_block(
    training: SGD, overlaps: Overlaps, moments: Moments, variance: Numbers = 1.0
) -> tuple[Float[Array, "blocks p p"], Float[Array, "blocks p k"]]:
    r"""The mean of what one sample adds to the overlaps by block, divided by :math:`\gamma_d/p`.

    .. math::
        c_l\,(G_s Q_l + G_t M_l^T) + (\cdot)^T + \frac{\gamma}{p}\,c_l f_l\,D_a \varphi^{HD} D_a, \qquad
        c_l\,(G_s M_l + G_t P_l)

    for Q_l and M_l, with the columns of the students and of the target of :math:`D_a G`, see `stein`; linear methods
    and ``variance`` as in `mean_increments`.

    Notes
    -----
    Checked against: the isotropic equations for one block, phase retrieval with two blocks in plain NumPy and by
    simulation, direct SGD at growing d.
    """
    assert overlaps.blocks is not None
    Q, M, a = changing(overlaps)
    p, frame, gain = len(a), overlaps.blocks.frame, training.gain
    c = jnp.asarray(frame.eigenvalues)[:, None, None]
    G = gain * a[:, None] * stein(overlaps.of_fields, moments)
    students, targets = G[None, :, :p], G[None, :, p:]
    half = c * (students @ Q + targets @ jnp.swapaxes(M, 1, 2))
    spread = a[:, None] * moments.phi_hd * a[None, :]
    rate: Any = variance * gain**2 * training.learning_rate / p
    dQ = half + jnp.swapaxes(half, 1, 2) + rate * c * jnp.asarray(frame.shares)[:, None, None] * spread[None]
    return dQ, c * (students @ M + targets @ frame.P)


def _increments_by_signs(
    problem: Problem, training: SGD, moments: Moments, da: Float[Array, " p"], variance: Numbers
) -> Change:
    r"""The mean of what one sample of `SignDescent` adds, divided by :math:`\gamma_d/p`.

    .. math:: p\,c\,(\varphi + \varphi^T) + \gamma p\,\varphi^{HD}, \qquad p\,c\,\psi, \qquad c = \sqrt{2/\pi}

    with the forces :math:`\mathrm{sign}(a_j \sigma'_j \mathcal E)` in all averages (`SignForces`). The coordinates of
    the gradient of row j are :math:`-c_j z_i`. The fields shift the mean of each coordinate of the input by little, so
    that :math:`E[\mathrm{sign} z_i | \ell] = c\,E[z_i | \ell]` where no row has a coordinate of order one. The squared
    length of a step is d.
    """
    p, shrink = problem.p, np.sqrt(2.0 / np.pi)
    dQ = 2.0 * shrink * symmetrise(moments.phi) + variance * training.learning_rate * moments.phi_hd
    return Change(p * symmetrise(dQ), p * shrink * moments.psi, da)


def decayed(problem: Problem, training: SGD, overlaps: Overlaps, change: Change) -> Change:
    r"""The change with weight decay of the first layer: :math:`-2p\lambda_w Q` and :math:`-p\lambda_w M` are added.

    Every update on a sample that is used again decays the weights.
    """
    if not training.trains_first:
        return change
    decay, state = decay_rate(problem, training), changing(overlaps)
    return Change(change.Q - 2.0 * decay * state.Q, change.M - decay * state.M, change.a)


def decay_rate(problem: Problem, training: SGD) -> Numbers:
    """The rate at which weight decay shrinks the rows, per unit of time."""
    return problem.p * training.weight_decay * training.updates_per_step


def drift(
    problem: Problem,
    training: SGD,
    overlaps: Overlaps,
    moments: Moments,
    variance: float = 1.0,
) -> Change:
    r"""Time derivatives of Q, M and a in the limit d to infinity with :math:`n_b = o(d)`.

    .. math::
        \dot M = D_a \psi, \qquad
        \dot Q = \Phi = D_a \varphi + \varphi^T D_a + \frac{\gamma}{p} D_a \varphi^{HD} D_a, \qquad
        \dot a = \kappa\,\chi

    with :math:`D_a = \mathrm{diag}(a)`; weight decay adds :math:`-p\lambda_w M` and :math:`-2p\lambda_w Q`. A linear
    method with memory, such as heavy ball or Nesterov, acts on times far longer than its memory as plain SGD whose
    moves are multiplied by its gain :math:`g = 1/(1-\beta)`: the forces by g, the variance by :math:`g^2`. On the
    sphere, with rows of squared length :math:`N_j`,

    .. math::
        \dot M_{jr} = (D_a \psi)_{jr} - \frac{M_{jr}}{2} \frac{\Phi_{jj}}{N_j}, \qquad
        \dot Q_{jl} = \Phi_{jl} - \frac{Q_{jl}}{2} \Big(\frac{\Phi_{jj}}{N_j} + \frac{\Phi_{ll}}{N_l}\Big)

    For inputs with a spectrum the overlaps move by block (`increments_by_block`); weights of all eigenvalues decay
    alike, and a row is rescaled as a whole, which keeps :math:`\sum_l Q_{l,jj}`.

    Parameters
    ----------
    problem, training, overlaps
        The problem, its training, and the current overlaps.
    moments
        Gaussian moments at the covariance of the fields, `Overlaps.of_fields`.
    variance
        1 with and 0 without the variance term (gradient flow).

    Returns
    -------
    Derivatives of Q, M and a in units where one unit of time is ``p d / learning_rate`` samples.

    Notes
    -----
    Assumes fresh samples (or single ones that are used several times in a row, with the moments of `Again`), the
    square or the correlation loss and a linear method; or `SignDescent` on single samples, with the moments of
    `SignForces`. Checked against: the closed solution of phase retrieval at p = 1, a plain NumPy solution for erf,
    direct SGD at growing d, the overlap process with momentum. A projection of the gradient on the tangent space
    (`Sphere`) removes from a step what `tangent` removes as well, so that both variants of the sphere have the same
    derivatives.

    References
    ----------
    :cite:t:`saad1995`; normalisation of :cite:t:`arnaboldi2023`.
    """
    change = decayed(problem, training, overlaps, mean_increments(problem, training, overlaps, moments, variance))
    return tangent(overlaps, change) if training.is_spherical and training.trains_first else change
