"""Fluctuations of one step around its mean in the limit, and corrections of order 1/d to that mean."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.linalg import pair_positions
from twolayer.core.types import Numbers
from twolayer.expectation import Chosen, Moments, increment_covariance
from twolayer.problem import BlockFrame, BlockOverlaps, Overlaps, Problem
from twolayer.theory.motion.drift import (
    Change,
    across,
    by_fields,
    changing,
    decayed,
    drift,
    lengths,
    mean_increments,
    pack,
    stein,
    tangent,
    unpack,
)
from twolayer.training import SGD


def moving_entries(problem: Problem, training: SGD, frame: BlockFrame | None = None) -> np.ndarray:
    """Indices of the entries that fluctuate: all but those of a frozen layer and the lengths on the sphere.

    Of inputs with a spectrum every block has a share of a length, which fluctuates; only their sum is fixed.
    """
    p, k = problem.p, problem.k
    blocks = 1 if frame is None else len(frame.ranks)
    rows, columns = np.triu_indices(p)
    ratio = training.layer_ratio
    moves_second = not (isinstance(ratio, float) and ratio == 0.0)
    is_free = np.ones(len(rows), bool) if not training.is_spherical or frame is not None else rows != columns
    first = np.full(blocks * (p * k + len(rows)), training.trains_first)
    of_first = np.concatenate([np.ones(blocks * p * k, bool), np.tile(is_free, blocks)])
    return np.flatnonzero(np.concatenate([np.full(p, moves_second), of_first & first]))


def sample_covariance(
    problem: Problem, training: SGD, overlaps: Overlaps, raw: Float[Array, "parts parts"], moments: Moments
) -> Float[Array, "entries entries"]:
    r"""The covariance of one sample's increments of the whole vector from the moment ``covariance`` of the fields.

    For inputs with a spectrum the fields :math:`\ell_l` that block l contributes have, given all fields
    :math:`\ell = \sum_l \ell_l`, the mean :math:`B_l \ell` and a covariance that does not depend on them,

    .. math::
        B_l = c_l \Omega_l \Omega^{-1}, \qquad
        K_{lm} = \mathrm{Cov}(\ell_l, \ell_m \mid \ell) = \delta_{lm} c_l \Omega_l - B_l \Omega B_m^T

    so that the parts :math:`f_j \ell_{l,u}` of an increment have the covariance
    :math:`B_l\,\mathrm{Cov}(f_i \ell, f_j \ell)\,B_m^T + E[f_i f_j]\,K_{lm}`, and no new average is needed.

    Parameters
    ----------
    problem, training, overlaps
        The problem, its training, and the current overlaps, by block where there are blocks.
    raw
        The moment ``covariance`` at `Overlaps.of_fields`.
    moments
        The other moments there.

    Notes
    -----
    Checked against: increments drawn one by one, by block as well.
    """
    if overlaps.blocks is None:
        return increment_covariance(problem, training, raw)
    frame, a, fields = overlaps.blocks.frame, overlaps.a, overlaps.of_fields
    p, n, blocks = problem.p, problem.p + problem.k, len(frame.ranks)
    Q, M, _ = changing(overlaps)
    own = jnp.block([[Q, M], [jnp.swapaxes(M, 1, 2), frame.P]]) * jnp.asarray(frame.eigenvalues)[:, None, None]
    B = by_fields(fields, own.reshape(blocks * n, n))
    rest = jax.scipy.linalg.block_diag(*own) - B @ fields.omega @ B.T
    pairs = p * (p + 1) // 2
    to_blocks = jax.scipy.linalg.block_diag(jnp.eye(p), *[B] * p, jnp.eye(pairs))
    both = jnp.kron(a[:, None] * moments.phi_hd * a[None, :], rest)
    spread = jax.scipy.linalg.block_diag(jnp.zeros((p, p)), both, jnp.zeros((pairs, pairs)))
    return increment_covariance(problem, training, to_blocks @ raw @ to_blocks.T + spread, frame)


def tangent_map(overlaps: Overlaps, entries: int) -> Float[Array, "entries entries"]:
    """The matrix of `tangent`, which brings rows back to their lengths to first order, on vectors of entries."""
    p, k = overlaps.M.shape
    blocks = None if overlaps.blocks is None else len(overlaps.blocks.frame.ranks)
    return jax.vmap(lambda x: pack(tangent(overlaps, unpack(x, p, k, blocks))))(jnp.eye(entries)).T


def noise_covariance(
    problem: Problem, training: SGD, overlaps: Overlaps, covariance: Float[Array, "entries entries"]
) -> Float[Array, "moving moving"]:
    r"""The covariance of the increments of the entries that move: :math:`T \Sigma T^T` with the map T of `tangent`.

    ``covariance`` is that of one sample's increments of the whole vector, `sample_covariance`.
    """
    frame = None if overlaps.blocks is None else overlaps.blocks.frame
    keep = moving_entries(problem, training, frame)
    if not training.is_spherical:
        return covariance[keep][:, keep]
    rows = tangent_map(overlaps, covariance.shape[0])[keep]
    return rows @ covariance @ rows.T


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
    step lags behind :math:`\dot X = F`. For inputs with a spectrum the first term is that of each block
    (`scaled_by_length`), and the lengths are sums over blocks.

    Parameters
    ----------
    problem, training, engine, overlaps
        The problem, its training, the engine of its moments, and the current overlaps.
    covariance
        The covariance of one sample's increments of the whole vector, `sample_covariance`, or an unbiased estimate.
    size
        :math:`\gamma/(pd)`, the time of one sample, in which the result is linear.

    Notes
    -----
    Checked against: the mean of the overlap process at growing d, free and spherical; the exact mean of a linear
    network, of which (iii) is all.
    """
    fields, moved = overlaps.of_fields, scaled_by_length(overlaps)

    def field(state: Change) -> Change:
        here = overlaps_at(overlaps, state)
        return drift(problem, training, here, engine.moments(problem, here.of_fields))

    def phi_hd(Q: Array, M: Array, P: Array) -> Array:
        return engine.parts(problem, Overlaps(Q, M, P, overlaps.a), ("phi_hd",))["phi_hd"]

    own = (fields.Q, fields.M, fields.P)
    by_length = jax.vmap(lambda *along: jax.jvp(phi_hd, own, along)[1])(*moved)
    state = changing(overlaps)
    lag = jax.jvp(field, (state,), (field(state),))[1]
    moments = engine.moments(problem, fields)
    return small_drift(problem, training, overlaps, moments, covariance, size, by_length, lag)


def overlaps_at(known: Overlaps, state: Change) -> Overlaps:
    """The overlaps with the target of others, and with the blocks of others where these have blocks."""
    if known.blocks is None:
        return Overlaps(state.Q, state.M, known.P, state.a)
    return Overlaps.by_block(BlockOverlaps(state.Q, state.M, known.blocks.frame), state.a)


def scaled_by_length(overlaps: Overlaps) -> tuple[Array, Array, Array]:
    r"""The derivatives of the covariance of the fields, block by block, along which averages change by the length.

    The part :math:`z_l` of an input that lies in the span of the weights in block l has a squared length that depends
    on the fields. By the derivative of a Gaussian average with respect to its covariance,

    .. math:: E\big[g(\ell)\,(|z_l|^2 - c_l r_l)\big] = 2\,\partial_\epsilon E_{\Omega + \epsilon c_l^2 \Omega_l}[g]

    with the rank :math:`r_l` of the span.
    """
    if overlaps.blocks is None:
        return overlaps.Q[None], overlaps.M[None], overlaps.P[None]
    Q, M, _ = changing(overlaps)
    square = jnp.asarray(overlaps.blocks.frame.eigenvalues)[:, None, None] ** 2
    return square * Q, square * M, square * overlaps.blocks.frame.P


def small_drift(
    problem: Problem,
    training: SGD,
    overlaps: Overlaps,
    moments: Moments,
    covariance: Float[Array, "entries entries"],
    size: Numbers,
    by_length: Float[Array, "blocks p p"],
    lag: Change,
) -> Change:
    r"""The terms of `corrections`, from the derivatives that they contain.

    These are the derivatives of :math:`\varphi^{HD}` along `scaled_by_length`, and that of the drift along itself.
    """
    a, n_b, state = overlaps.a, training.samples_per_step(problem), changing(overlaps)
    bracket = 2.0 * by_length
    if n_b > 1:
        bracket = bracket + (n_b - 1) * _square_of_force(moments, overlaps)
    bracket = bracket.reshape(state.Q.shape)
    down, along = across(a, bracket)
    dQ = size * down * 0.5 * (bracket + jnp.swapaxes(bracket, -1, -2)) * along
    mean = mean_increments(problem, training, overlaps, moments)
    decay = training.weight_decay * problem.p * size * n_b
    forced = mean_increments(problem, training, overlaps, moments, 0.0)
    dQ = dQ + decay * (problem.p * training.weight_decay * state.Q - forced.Q)
    dQ = dQ if training.trains_first else jnp.zeros_like(state.Q)
    total = Change(jnp.asarray(dQ), jnp.zeros_like(state.M), jnp.zeros_like(a))
    if training.is_spherical and training.trains_first:
        F = pack(decayed(problem, training, overlaps, mean))
        S = (covariance + n_b * F[:, None] * F[None, :]) * size
        total = jax.tree.map(jnp.add, tangent(overlaps, total), _second_order(overlaps, S))
    return jax.tree.map(lambda x, y: x - 0.5 * n_b * size * y, total, lag)


def _square_of_force(moments: Moments, overlaps: Overlaps) -> Float[Array, "blocks p p"]:
    r"""The products of the mean moves of two samples, without rates: :math:`c_l^2\,G\,\Omega_l\,G^T`, see `stein`."""
    G = stein(overlaps.of_fields, moments)
    Q, M, P = scaled_by_length(overlaps)
    return G[None] @ jnp.block([[Q, M], [jnp.swapaxes(M, 1, 2), P]]) @ G.T[None]


def _second_order(overlaps: Overlaps, S: Float[Array, "entries entries"]) -> Change:
    """The second-order term of rescaling rows to their lengths; S holds second moments of the increments.

    Where there are blocks, the length of a row is the sum over them.
    """
    p, k = overlaps.M.shape
    Q, M, _ = changing(overlaps)
    blocks, pairs = Q.size // (p * p), p * (p + 1) // 2
    N = lengths(Q)
    at_M = p + np.arange(blocks * p * k).reshape(blocks, p, k)
    at_Q = p + blocks * p * k + pairs * np.arange(blocks)[:, None, None] + pair_positions(p)
    at_N = at_Q[:, np.arange(p), np.arange(p)]
    with_lengths = jnp.sum(S[:, at_N], axis=1) / N[None, :]  # of every entry with the relative growth of every row
    both = jnp.sum(with_lengths[at_N], axis=0) / N[:, None]
    own, down, along = np.arange(p), *across(jnp.diagonal(both), Q)
    with_M = with_lengths[at_M, own[:, None]].reshape(M.shape)
    dM = -0.5 * with_M + 0.375 * M * down
    with_Q = with_lengths[at_Q, own[None, :]].reshape(Q.shape)  # of Q_jl with the length of l
    turned = jnp.swapaxes(with_Q, -1, -2)
    dQ = -0.5 * (with_Q + turned) + Q * (0.375 * (down + along) + 0.25 * both.reshape(down.shape[:-2] + both.shape))
    if Q.ndim == 2:
        dQ = dQ - jnp.diag(jnp.diagonal(dQ))
    return Change(dQ, dM, jnp.zeros_like(overlaps.a))
