r"""Training on reused samples: the weights in a growing orthonormal frame, and one sample's coordinates in it.

Gaussian inputs that have been used for a step are no longer independent of the weights. The dependence is finite: write
the weights as :math:`W^t = B^t E` with orthonormal rows E that span the target, the start and the noise of each
gradient. In the limit a typical sample has independent normal coordinates x along E, moved along the noise of each
gradient by what the sample itself put there. Everything the dynamics needs are averages over one such sample.

Inputs with a spectrum, :math:`z = \sum_l \sqrt{c_l}\,u_l` with standard normal :math:`u_l` in the
:math:`d_l = \rho_l d` dimensions of block l, are independent in the blocks, and each block has such a frame of its
own: :math:`W^t = \sum_l B_l^t E_l`. The part of a gradient in block l is
:math:`\sqrt{c_l} \sum_\nu g^\nu u_l^\nu`, whose coefficients g are those of all blocks. The noise that the
orthonormalised gradient :math:`\hat g^r` makes there is a vector :math:`\sum_\nu \hat g^{r\nu} u_l^\nu` of length
:math:`\sqrt{n d_l}`, on which the sample itself, whose :math:`u_l` has the squared length :math:`d_l`, has moved its
coordinate by :math:`\hat g\,d_l / \sqrt{n d_l}`:

.. math:: \chi_l = x_l + \sqrt{\rho_l / \alpha}\;\hat g, \qquad h = \sum_l \sqrt{c_l}\,B_l\,\chi_l, \qquad
          \tfrac1d \nabla_{W_l} \sum_\nu \ell^\nu = \alpha\,\sqrt{c_l}\,E\big[g\,\chi_l^T\big]\,E_l

with one :math:`\hat g` in all blocks. So the response of the fields to earlier gradients has the weights
:math:`\sqrt{c_l \rho_l}` along the noise of block l, and this noise has the covariance
:math:`\alpha\,c_l \rho_l\,E[g g^T]`. One block of eigenvalue one is the isotropic case.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.linalg import cholesky, root
from twolayer.core.programs import KeptProgram
from twolayer.core.types import Numbers
from twolayer.problem import Overlaps, Problem
from twolayer.problem.spectrum_blocks import coordinates_of
from twolayer.stepping import Stepper, in_phases
from twolayer.theory.reuse.typical_samples import Layout, TypicalSamples
from twolayer.training import SGD, LookAhead, Repeated
from twolayer.training.update import Gradient, Weights, at_rest, looked_ahead, queried, update

# The new part of a gradient is rounding if its square is below this fraction of the square of the gradient.
NOTHING_NEW = 1e-14


def gradients_per_step(training: SGD) -> int:
    """The number of gradients that a step computes on its batch."""
    if isinstance(training.reuse, Repeated):
        return training.reuse.times
    return 2 if isinstance(training.reuse, LookAhead) else 1


class Traces(NamedTuple):
    """The earlier gradients of the samples, orthonormalised in mean square."""

    hat: Float[Array, "noise points"]
    gram: Float[Array, "noise noise"]  # the triangular factor: gradients are this times ``hat``


def start_in_frame(training: SGD, start: Overlaps, layout: Layout) -> Weights:
    r"""Weights with the overlaps of the start, by block: :math:`\hat M = M P_c^{-T}` and :math:`(Q^\perp)^{1/2}`."""
    if start.blocks is None:
        M = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(start.P), start.M.T, lower=True).T
        parts = [M, root(start.perpendicular)]
    else:
        blocks = start.blocks
        pairs = [coordinates_of(*x) for x in zip(blocks.frame.roots, blocks.Q, blocks.M, strict=True)]
        parts = [along for along, _ in pairs] + [beside for _, beside in pairs]
    B = jnp.zeros((layout.p, layout.size)).at[:, : layout.given].set(jnp.concatenate(parts, axis=1))
    return at_rest(training, B, start.a)


def answering(cloud: TypicalSamples, noise: Float[Array, "p all"]) -> Float[Array, "p noise"]:
    """The coefficients of weights, along the noise in all blocks, by which fields answer to earlier gradients."""
    if cloud.own is None:
        return noise
    p = cloud.layout.p
    return jnp.einsum("igls,l->igs", noise.reshape(p, -1, len(cloud.own), p), cloud.own).reshape(p, -1)


def in_all_blocks(cloud: TypicalSamples, row: Float[Array, "p noise"]) -> Float[Array, "p all"]:
    """What the samples themselves put into the noise of gradients, in all blocks."""
    if cloud.own is None:
        return row
    p = cloud.layout.p
    return jnp.einsum("igs,l->igls", row.reshape(p, -1, p), cloud.own).reshape(p, -1)


def fields(
    alpha: Numbers, cloud: TypicalSamples, traces: Traces, B: Float[Array, "p size"], remembered: Array
) -> Float[Array, "p points"]:
    r"""The local fields of the samples, :math:`h = B\,(x + \hat g / \sqrt\alpha)`.

    The second part, along the noise of gradients, is the memory: a sample that has been used is not independent of the
    weights. In the usual notation the first part is :math:`\vartheta^t` and the second :math:`\sum_{s<t} R(t, s)\,g^s`.
    ``remembered`` marks the gradients in which these samples have taken part.
    """
    answer = answering(cloud, B[:, cloud.layout.given :])
    return B @ cloud.x + (answer * remembered[None, :] / jnp.sqrt(alpha)) @ traces.hat


def gradient_in_frame(
    problem: Problem,
    alpha: Numbers,
    cloud: TypicalSamples,
    traces: Traces,
    weights: Weights,
    number: Numbers,
    begin: Numbers,
) -> tuple[Gradient, Traces, Float[Array, ""]]:
    r"""The gradient of the summed loss over :math:`n = \alpha d` samples, in the frame; its traces; the risk.

    With :math:`g = \partial_h \ell` (for the square loss :math:`\partial_h \tfrac12 (y - s)^2`) times how often a
    sample is in the batch, and its part :math:`\hat g^t` outside of the earlier ones,
    :math:`g^t = \sum_{r \le t} G_{tr}\,\hat g^r`, :math:`E[\hat g^r \hat g^{s T}] = \delta_{rs}`,

    .. math:: \tfrac1d \nabla_W \sum_\nu \ell^\nu = \alpha\,E\big[g^t \chi^T\big]\,E, \qquad
              \chi = x + \hat g / \sqrt\alpha

    whose entries along the noise of gradient r are :math:`\alpha E[g^t x_r^T] + \sqrt\alpha\,G_{tr}`. The first part is
    the response (Stein's identity: :math:`E[g^t x^T] = \Gamma_\star B^\star + \sum_s \Gamma(t, s) B^s`), valid for
    discontinuous slopes as for smooth ones, and free of any inverse; the second is the noise
    :math:`\zeta^t` of covariance :math:`\alpha E[g^t g^{s T}]`. In block l of a spectrum the first part has the factor
    :math:`\sqrt{c_l}`, which is in the coordinates of the samples here, and the second :math:`\sqrt{c_l \rho_l}`.

    Parameters
    ----------
    problem, alpha, cloud
        The problem; the number of samples in a set over d; typical samples of the set, in the frame.
    traces
        The earlier gradients of these samples.
    weights
        Where the gradient is taken.
    number, begin
        The number of the gradient, and of the first that its samples were part of.
    """
    layout, d = cloud.layout, problem.d
    p = layout.p
    block = jnp.arange(p * layout.gradients) // p
    remembered = ((block >= begin) & (block < number)).astype(jnp.float64)
    h = fields(alpha, cloud, traces, weights.W, remembered)
    c = weights.a * problem.student.scale
    activation = problem.student.activation
    units = activation(h)
    output = c @ units
    risk = jnp.sum(cloud.weights * problem.loss.error(cloud.y, output))
    excess = -problem.loss.displacement(cloud.y, output)
    if cloud.counts is not None:
        excess = excess * cloud.counts[number]
    g = c[:, None] * activation.derivative(h) * excess[None, :]
    weighted = g * cloud.weights[None, :]
    past = _averages(weighted, traces.hat) * remembered[None, :]
    new = g - past @ traces.hat
    squares = jnp.sum(weighted * g, axis=1)
    factor = cholesky((new * cloud.weights[None, :]) @ new.T, NOTHING_NEW * squares)
    hat = jax.lax.dynamic_update_slice(traces.hat, _solved(factor, new), (p * number, 0))
    row = jax.lax.dynamic_update_slice(past, factor, (0, p * number))
    gram = jax.lax.dynamic_update_slice(traces.gram, row, (p * number, 0))
    is_known = jnp.arange(layout.size) < layout.given + layout.blocks * p * number
    U = jnp.where(is_known[None, :], alpha * _averages(weighted, cloud.x), 0.0)
    U = U.at[:, layout.given :].add(jnp.sqrt(alpha) * in_all_blocks(cloud, row))
    slope = alpha * problem.student.scale * (units @ (excess * cloud.weights))
    return (d * U, d * slope), Traces(hat, gram), risk


def _averages(weighted: Float[Array, "p points"], rows: Float[Array, "n points"]) -> Float[Array, "p n"]:
    """The averages of products of two sets of functions.

    XLA is ten times faster with few columns on the right than with few rows on the left, and the barrier keeps it from
    rewriting one as the other.
    """
    return jax.lax.optimization_barrier(rows @ weighted.T).T


def _solved(factor: Float[Array, "p p"], new: Float[Array, "p points"]) -> Float[Array, "p points"]:
    """The inverse of the factor times the new parts; zero for rows without a pivot."""
    pivots = jnp.diagonal(factor)
    is_free = pivots > 0.0
    whole = factor + jnp.diag(jnp.where(is_free, 0.0, 1.0))
    inverse = jax.scipy.linalg.solve_triangular(whole, jnp.eye(len(pivots)), lower=True)
    return jnp.where(is_free[:, None], inverse, 0.0) @ new


class Constants(NamedTuple):
    """The data of a run that does not change."""

    problem: Problem
    training: SGD
    alpha: Any  # samples in a set, or in a batch where there is none, over d
    lengths: Any  # lengths of the rows at the start
    cloud: TypicalSamples


class Position(NamedTuple):
    """The current state of a run."""

    weights: Weights
    traces: Traces


@KeptProgram
def begin(
    problem: Problem, training: SGD, alpha: Numbers, start: Overlaps, cloud: TypicalSamples
) -> tuple[Constants, Position]:
    """The fixed data of a run, and its state at the start."""
    layout, points = cloud.layout, cloud.x.shape[1]
    noise = layout.p * layout.gradients
    traces = Traces(jnp.zeros((noise, points)), jnp.zeros((noise, noise)))
    constants = Constants(problem, training, jnp.asarray(alpha), jnp.sqrt(jnp.diagonal(start.Q)), cloud)
    return constants, Position(start_in_frame(training, start, layout), traces)


# The buffers of the state are reused for the result, so that the traces are updated without a copy.
@eqx.filter_jit(donate="all-except-first")
def step(constants: Constants, place: Position, t: Numbers) -> tuple[Position, tuple[Array, Array, Array]]:
    """The state after one step of training; weights, second layer and risk over the set before the step."""
    problem, training, alpha, lengths, cloud = constants
    weights, traces = place
    noise, p = traces.hat.shape[0], problem.p
    per_step = gradients_per_step(training)
    before, wanted, risk = weights, queried(training, weights), jnp.asarray(jnp.nan)
    if training.has_fixed_set and wanted.W is not weights.W:  # otherwise the gradient computes the risk as well
        used = (jnp.arange(noise) // p < t).astype(jnp.float64)
        h = fields(alpha, cloud, traces, weights.W, used)
        risk = jnp.sum(cloud.weights * problem.loss.error(cloud.y, problem.student(h.T, weights.a)))
        # The barrier puts all reading of the traces before their update, which would otherwise need a copy.
        risk, traces = jax.lax.optimization_barrier((risk, traces))

    def gradient_at(weights: Weights, traces: Traces, m: int) -> tuple[Gradient, Traces, Array]:
        first = jnp.zeros_like(t) if training.has_fixed_set else per_step * t
        return gradient_in_frame(problem, alpha, cloud, traces, weights, per_step * t + m, first)

    if isinstance(training.reuse, LookAhead):
        ahead, traces, _ = gradient_at(wanted, traces, 0)
        gradient, traces, _ = gradient_at(looked_ahead(problem, training.reuse.rate, wanted, ahead), traces, 1)
        weights = update(problem, training, weights, lengths, gradient)
    else:
        for m in range(per_step):
            wanted = queried(training, weights)
            gradient, traces, here = gradient_at(wanted, traces, m)
            risk = here if training.has_fixed_set and wanted.W is weights.W else risk
            weights = update(problem, training, weights, lengths, gradient)
    return Position(weights, traces), (before.W, before.a, risk)


class Shown(NamedTuple):
    """The state after a step, and the values before it, which the step computes on its way."""

    place: Position
    before: tuple[Array, Array, Array]  # weights in the frame, second layer, risk over the set (NaN for fresh batches)


def stepper(
    problem: Problem,
    phases: tuple[SGD, ...],
    firsts: tuple[int, ...],
    alpha: Numbers,
    start: Overlaps,
    cloud: TypicalSamples,
) -> Stepper:
    """A run over one cloud of typical samples, by trainings that begin at the steps ``firsts``."""
    constants, place = begin(problem, phases[0], alpha, start, cloud)

    def by(training: SGD, shown: Shown, first: Any, last: Any) -> Shown:
        for t in range(int(first), int(last)):
            shown = Shown(*step(constants._replace(training=training), shown.place, np.asarray(t)))
        return shown

    def measured(shown: Shown) -> dict[str, np.ndarray]:
        B, a, risk = (np.asarray(x) for x in shown.before)
        answer = np.asarray(answering(cloud, jnp.asarray(B[:, cloud.layout.given :])))
        behind = _behind(answer, np.asarray(shown.place.traces.gram))
        return {name: x[None] for name, x in {"B": B, "a": a, "risk": risk, "behind": behind}.items()}

    advance = in_phases([partial(by, training) for training in phases], firsts)
    # The values at a step are known once the step has been taken: the state is always one step ahead.
    return Stepper(
        Shown(*step(constants, place, np.asarray(0))),
        lambda shown, first, last: advance(shown, first + 1, last + 1),
        measured,
        is_kept=False,
    )


def _behind(rows: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """The rows times the inverse of the factor: the noise of weights in terms of the noise of gradients.

    A gradient that lies in the span of earlier ones has no pivot, and its response is zero.
    """
    from scipy.linalg import solve_triangular

    if not np.all(np.isfinite(rows)):
        return np.full_like(rows, np.nan)
    is_free = np.diagonal(gram) > 0.0
    used = int(np.max(np.flatnonzero(is_free), initial=-1)) + 1  # later gradients are not there yet
    whole = gram[:used, :used] + np.diag(np.where(is_free[:used], 0.0, 1.0))
    solved = solve_triangular(whole, rows[:, :used].T, lower=True, trans=1).T if used else rows[:, :0]
    return np.pad(np.where(is_free[:used], solved, 0.0), [(0, 0), (0, rows.shape[1] - used)])
