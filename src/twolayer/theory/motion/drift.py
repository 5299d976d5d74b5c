r"""The mean motion of the overlaps in the limit of high dimension."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.linalg import pair_positions, symmetrise
from twolayer.core.types import Numbers
from twolayer.expectation import Moments
from twolayer.problem import Overlaps, Problem
from twolayer.training import SGD


class Change(NamedTuple):
    """A change, or a rate of change, of the overlaps."""

    Q: Float[Array, "p p"]
    M: Float[Array, "p k"]
    a: Float[Array, " p"]


def pack(change: Change) -> Float[Array, " entries"]:
    """The change as one vector: a, then M row by row, then the pairs j <= l of Q."""
    rows, columns = np.triu_indices(len(change.a))
    return jnp.concatenate([change.a, change.M.reshape(-1), change.Q[rows, columns]])


def unpack(x: Float[Array, " entries"], p: int, k: int) -> Change:
    """The change from its vector; the inverse of `pack`."""
    return Change(x[p + p * k :][pair_positions(p)], x[p : p + p * k].reshape(p, k), x[:p])


def tangent(overlaps: Overlaps, change: Change) -> Change:
    r"""A small change after the rows are brought back to their lengths, to first order.

    .. math::
        \delta M_{jr} - \frac{M_{jr}}{2} \frac{\delta Q_{jj}}{Q_{jj}}, \qquad
        \delta Q_{jl} - \frac{Q_{jl}}{2} \Big(\frac{\delta Q_{jj}}{Q_{jj}} + \frac{\delta Q_{ll}}{Q_{ll}}\Big)

    It is linear in the change. The lengths are the current ones and not the initial ones: with those, a deviation by
    rounding would grow wherever the rows shrink.
    """
    growth = jnp.diagonal(change.Q) / jnp.diagonal(overlaps.Q)
    dM = change.M - 0.5 * overlaps.M * growth[:, None]
    dQ = change.Q - 0.5 * overlaps.Q * (growth[:, None] + growth[None, :])
    return Change(dQ - jnp.diag(jnp.diagonal(dQ)), dM, change.a)


def mean_increments(
    problem: Problem, training: SGD, overlaps: Overlaps, moments: Moments, variance: Numbers = 1.0
) -> Change:
    r"""The mean of what one sample adds, divided by :math:`\gamma_d/p`, at leading order in d.

    .. math:: g (D_a \varphi + \varphi^T D_a) + g^2 \frac{\gamma}{p} D_a \varphi^{HD} D_a, \qquad g D_a \psi, \qquad
              \kappa\,\chi

    for Q, M and a, with the gain g of the method (1 for plain SGD), without weight decay and before rows are brought
    back; ``variance`` multiplies the second term. Q and M stay where only the second layer is trained.
    """
    a = overlaps.a
    da = moments.chi * training.layer_ratio
    if not training.trains_first:
        return Change(jnp.zeros_like(overlaps.Q), jnp.zeros_like(overlaps.M), da)
    if training.moves_by_signs:
        return _increments_by_signs(problem, training, moments, da, variance)
    psi_gf = 2.0 * symmetrise(a[:, None] * moments.phi)
    psi_var = a[:, None] * moments.phi_hd * a[None, :]
    gain = training.gain
    dQ = symmetrise(gain * psi_gf + gain**2 * variance * training.learning_rate / problem.p * psi_var)
    return Change(dQ, gain * a[:, None] * moments.psi, da)


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
    decay = decay_rate(problem, training)
    return Change(change.Q - 2.0 * decay * overlaps.Q, change.M - decay * overlaps.M, change.a)


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

    Parameters
    ----------
    problem, training, overlaps
        The problem, its training, and the current overlaps.
    moments
        Gaussian moments at these overlaps.
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
