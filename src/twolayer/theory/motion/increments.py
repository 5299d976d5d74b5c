"""Fluctuations of one step around its mean in the limit, and corrections of order 1/d to that mean."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.linalg import pair_positions, symmetrise
from twolayer.core.types import Numbers
from twolayer.expectation import Chosen, Moments
from twolayer.problem import Overlaps, Problem
from twolayer.theory.motion.drift import Change, decayed, drift, mean_increments, pack, tangent, unpack
from twolayer.training import SGD


def moving_entries(problem: Problem, training: SGD) -> np.ndarray:
    """Indices of the entries that fluctuate: all but those of a frozen layer and the lengths on the sphere."""
    p, k = problem.p, problem.k
    rows, columns = np.triu_indices(p)
    ratio = training.layer_ratio
    moves_second = not (isinstance(ratio, float) and ratio == 0.0)
    free = np.ones(len(rows), bool) if not training.is_spherical else rows != columns
    first = np.full(p * k + len(rows), training.trains_first)
    return np.flatnonzero(np.concatenate([np.full(p, moves_second), np.append(np.ones(p * k, bool), free) & first]))


def noise_covariance(
    problem: Problem, training: SGD, overlaps: Overlaps, covariance: Float[Array, "entries entries"]
) -> Float[Array, "moving moving"]:
    r"""The covariance of the increments of the entries that move: :math:`T \Sigma T^T` with the map T of `tangent`.

    ``covariance`` is that of one sample's increments of the whole vector, `increment_covariance`.
    """
    p, k = problem.p, problem.k
    keep = moving_entries(problem, training)
    if not training.is_spherical:
        return covariance[keep][:, keep]
    basis = jnp.eye(covariance.shape[0])
    columns = jax.vmap(lambda x: pack(tangent(overlaps, unpack(x, p, k))))(basis)[:, keep]
    return columns.T @ covariance @ columns


def corrections(
    problem: Problem,
    training: SGD,
    engine: Chosen,
    overlaps: Overlaps,
    covariance: Float[Array, "entries entries"],
    size: Numbers,
) -> Change:
    r"""The terms of order 1/d of the drift, for batches of :math:`n_b = o(d)`.

    Per unit of time, with :math:`\gamma_d = \gamma n_b / d` and the mean F of the increments,

    .. math::
        \text{(i)}\quad & \dot Q \mathrel{+}= \frac{\gamma}{pd} D_a \Big[
        E\big[\sigma'\sigma'^T \mathcal E^2 (\ell^T\Omega^+\ell - r)\big] + (n_b - 1)\,v\,\Omega^+ v^T \Big] D_a
        + \gamma_d \lambda_w \big(p \lambda_w Q - D_a\varphi - \varphi^T D_a\big) \\
        \text{(ii)}\quad & \text{on the sphere, with } S = \frac{\gamma}{pd} (\Sigma + n_b F F^T):\quad
        \dot M_{jr} \mathrel{+}= -\tfrac12 \frac{S_{M_{jr} Q_{jj}}}{N_j}
        + \tfrac38 M_{jr} \frac{S_{Q_{jj} Q_{jj}}}{N_j^2} \\
        & \dot Q_{jl} \mathrel{+}= -\tfrac12 \Big(\frac{S_{Q_{jl} Q_{jj}}}{N_j} + \frac{S_{Q_{jl} Q_{ll}}}{N_l}\Big)
        + Q_{jl} \Big( \tfrac38 \frac{S_{Q_{jj} Q_{jj}}}{N_j^2} + \tfrac38 \frac{S_{Q_{ll} Q_{ll}}}{N_l^2}
        + \tfrac14 \frac{S_{Q_{jj} Q_{ll}}}{N_j N_l} \Big) \\
        \text{(iii)}\quad & \dot X \mathrel{+}= -\frac{\gamma_d}{2p}\,\frac{\partial F}{\partial X} F

    The first comes from the length of the input and the samples of a batch pulling together, the second from the
    second order of rescaling rows to their lengths, the third from discrete time: a process that moves by F dt in each
    step lags behind :math:`\dot X = F`.

    Parameters
    ----------
    problem, training, engine, overlaps
        The problem, its training, the engine of its moments, and the current overlaps.
    covariance
        The covariance of one sample's increments of the whole vector, `increment_covariance`, or an unbiased estimate.
    size
        :math:`\gamma/(pd)`, the time of one sample, in which the result is linear.

    Notes
    -----
    Checked against: the mean of the overlap process at growing d, free and spherical; the exact mean of a linear
    network, of which (iii) is all.
    """
    p, n_b = problem.p, training.samples_per_step(problem)
    Q, M, P, a = overlaps.Q, overlaps.M, overlaps.P, overlaps.a
    one = jnp.ones(())

    def phi_hd(scale: Array) -> Array:
        return engine.parts(problem, Overlaps(scale * Q, scale * M, scale * P, a), ("phi_hd",))["phi_hd"]

    by_length = 2.0 * jax.jvp(phi_hd, (one,), (one,))[1]
    moments = engine.moments(problem, overlaps)
    mean = mean_increments(problem, training, overlaps, moments)
    bracket = by_length if n_b == 1 else by_length + (n_b - 1) * _square_of_force(moments, overlaps)
    decay = training.weight_decay * p * size * n_b
    psi_gf = 2.0 * symmetrise(a[:, None] * moments.phi)
    dQ = size * a[:, None] * symmetrise(bracket) * a[None, :] + decay * (p * training.weight_decay * Q - psi_gf)
    dQ = dQ if training.trains_first else jnp.zeros_like(Q)
    total = Change(jnp.asarray(dQ), jnp.zeros_like(M), jnp.zeros_like(a))

    if training.is_spherical and training.trains_first:
        F = pack(decayed(problem, training, overlaps, mean))
        S = (covariance + n_b * F[:, None] * F[None, :]) * size
        curved = _second_order(overlaps, S)
        total = jax.tree.map(jnp.add, tangent(overlaps, total), curved)

    def field(change: Change) -> Change:
        here = Overlaps(change.Q, change.M, P, change.a)
        return drift(problem, training, here, engine.moments(problem, here))

    state = Change(Q, M, a)
    lag = jax.jvp(field, (state,), (field(state),))[1]
    return jax.tree.map(lambda x, y: x - 0.5 * n_b * size * y, total, lag)


def _square_of_force(moments: Moments, overlaps: Overlaps) -> Float[Array, "p p"]:
    r""":math:`v\,\Omega^+ v^T`, from the parts of v within and outside the target's span."""
    within = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(overlaps.P), moments.psi.T, lower=True).T
    outside = moments.phi - moments.psi @ overlaps.projection.T
    values, vectors = jnp.linalg.eigh(overlaps.perpendicular)
    is_free = values > 1e-12 * jnp.max(jnp.abs(jnp.diagonal(overlaps.Q)))
    turned = outside @ vectors * jnp.where(is_free, 1.0 / jnp.sqrt(jnp.where(is_free, values, 1.0)), 0.0)[None, :]
    return within @ within.T + turned @ turned.T


def _second_order(overlaps: Overlaps, S: Float[Array, "entries entries"]) -> Change:
    """The second-order term of rescaling rows to their lengths; S holds second moments of the increments."""
    p, k = overlaps.M.shape
    Q, M = overlaps.Q, overlaps.M
    lengths = jnp.diagonal(Q)
    pairs = p + p * k + pair_positions(p)
    lengths_at = np.diagonal(pairs)
    # Second moments of the relative growth of the squared lengths, for each pair of neurons.
    both = S[lengths_at][:, lengths_at] / (lengths[:, None] * lengths[None, :])
    square = jnp.diagonal(both)
    with_M = jnp.stack([S[p + j * k + np.arange(k), lengths_at[j]] for j in range(p)]) / lengths[:, None]
    dM = -0.5 * with_M + 0.375 * M * square[:, None]
    with_Q = S[pairs][:, np.arange(p), lengths_at] / lengths[None, :]  # of Q_jl with the length of l
    dQ = -0.5 * (with_Q + with_Q.T) + Q * (0.375 * (square[:, None] + square[None, :]) + 0.25 * both)
    return Change(dQ - jnp.diag(jnp.diagonal(dQ)), dM, jnp.zeros_like(overlaps.a))
