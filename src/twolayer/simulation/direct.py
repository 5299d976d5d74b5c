"""SGD on the weights themselves: the judge of every theory.

It differentiates the loss and uses none of the Gaussian moments for its steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from twolayer.core.errors import NotApplicable
from twolayer.core.fields import as_data, choice, static
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.registry import register
from twolayer.description import (
    AbstractDescription,
    Applies,
    Exactness,
    Plan,
    Record,
    Status,
    blanked,
    first_crossing,
    is_alive,
)
from twolayer.expectation import Auto, choose, risk_along
from twolayer.problem import Gaussian, Overlaps, Problem, Samples, embed
from twolayer.training import SGD

# Numbers drawn at once per replica, and replicas advanced together: what fits the caches of one core. The
# stream of a replica is attached to its own steps, so that the cut of a run does not matter.
BLOCK_NUMBERS = 2**14
GROUP = 8
GROUP_NUMBERS = 2**13
GROUP_MEMORY = 2**23
PART_NUMBERS = 2**20
CALL_NUMBERS = 2**26
MAX_NUMBERS = 2**28


class Weights(NamedTuple):
    """The state of one replica."""

    W: Float[Array, "p d"]
    V: Float[Array, "p d"]  # velocity; of size zero without momentum
    a: Float[Array, " p"]


class Frozen(NamedTuple):
    """What a replica keeps from its start."""

    W_star: Float[Array, "k d"]
    lengths: Float[Array, " p"]
    data: Key[Array, ""]
    X: Float[Array, "set d"]  # the fixed set; of size zero when samples are fresh draws
    y: Float[Array, " set"]


def batch_loss(
    problem: Problem,
    W: Float[Array, "p d"],
    a: Float[Array, " p"],
    z: Float[Array, "n d"],
    y: Float[Array, " n"],
    counts: Float[Array, " n"] | float = 1.0,
) -> Float[Array, ""]:
    r"""The loss summed over samples, :math:`\sum_\nu \ell(y^\nu, s(z^\nu))`; ``counts`` says how often each counts."""
    return jnp.sum(counts * problem.loss(y, problem.student(z @ W.T, a)))


def update(
    problem: Problem, training: SGD, weights: Weights, lengths: Float[Array, " p"], gradient: tuple[Array, Array]
) -> Weights:
    r"""One step from the gradient of the summed loss.

    .. math:: W^+ = (1 - \gamma_d \lambda_w) W - \frac{\gamma}{d} \nabla_W \sum_\nu \ell^\nu, \qquad
              a^+ = a - \kappa \frac{\gamma}{d} \nabla_a \sum_\nu \ell^\nu

    with :math:`\gamma_d = \gamma n_b / d`; heavy ball adds :math:`\beta V` to the step; on the sphere each row then
    returns to its initial length.
    """
    W, V, a = weights
    rate = training.learning_rate / problem.d
    move = -rate * gradient[0]
    if training.has_momentum:
        move = V = training.momentum * V + move
    decay = training.weight_decay * rate * training.samples_per_step(problem)
    W = (1.0 - decay) * W + move
    if training.is_spherical:
        W = W * (lengths / jnp.linalg.norm(W, axis=1))[:, None]
    return Weights(W, V, a - training.layer_ratio * rate * gradient[1])


class _Layout(NamedTuple):
    """How the samples of a run are cut into draws: whole steps per block, or one step in several parts."""

    batch: int
    steps_per_block: int
    parts: int
    part_size: int


def _layout(problem: Problem, training: SGD) -> _Layout:
    batch = training.samples_per_step(problem)
    fitting = max(1, BLOCK_NUMBERS // problem.d)
    if batch <= fitting:
        return _Layout(batch, max(1, fitting // batch), 1, batch)
    # Large batches are summed in parts of bounded size, so that memory does not grow with the batch.
    size = min(batch, max(1, PART_NUMBERS // problem.d))
    return _Layout(batch, 1, -(-batch // size), size)


def _group_size(problem: Problem, training: SGD) -> int:
    """Replicas advanced together: what fits the cache, and their draws and fixed sets the memory."""
    layout = _layout(problem, training)
    drawn = problem.d * (layout.part_size if layout.parts > 1 else layout.steps_per_block * layout.batch)
    fixed = problem.d * (0 if isinstance(problem.inputs, Samples) else training.set_size(problem) or 0)
    fitting = GROUP_MEMORY // max(drawn, fixed // 16, 1)
    return max(1, min(max(GROUP, GROUP_NUMBERS // problem.d), fitting))


def _stride(problem: Problem, training: SGD, replicas: int) -> int:
    """Steps taken in one call: about half a second of work, so that an interruption is noticed soon."""
    layout = _layout(problem, training)
    blocks = CALL_NUMBERS // (problem.d * layout.batch * layout.steps_per_block * replicas)
    return layout.steps_per_block * max(1, blocks)


@register
class DirectSGD(AbstractDescription):
    r"""Stochastic gradient descent on the weights.

    .. math:: w_j^+ = w_j - \frac{\gamma}{d}\,\partial_{w_j} \sum_\nu \ell^\nu

    Exact at finite d, by construction. Weights are kept in double precision. Inputs are drawn in single precision by
    default (``draws="single"``), whose law differs from the Gaussian by about :math:`10^{-7}` in any probability;
    ``"double"`` is there to check that. Checked against: a plain NumPy loop, the exact one-step mean, the ODE limit.
    """

    draws: str = static(choice("draws", ("single", "double")), default="single")

    @property
    def references(self) -> tuple[str, ...]:
        return ()

    def applies(self, problem: Problem, training: SGD) -> Applies:
        size = problem.d * max(problem.p, training.set_size(problem) or 0)
        if size > MAX_NUMBERS:
            reason = f"weights or a fixed set of {size:.3g} numbers do not fit in memory; lower `d`."
            return Applies(False, Exactness.EXACT, reason)
        if isinstance(problem.inputs, Gaussian):
            try:
                Auto().assign(problem, ("excess_risk",))  # the risk of a run is an average over the inputs
            except NotApplicable as refusal:
                return Applies(False, Exactness.EXACT, str(refusal))
        return Applies(True, Exactness.EXACT, "SGD on the weights; scatter between runs is part of the truth")

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        training.samples_per_step(problem)  # refuses a batch larger than a reused set before anything is drawn
        problem, training = as_data((problem, training))
        # In few dimensions more replicas fit together. Groups follow one another: two JAX programs on two threads would
        # wait for each other's share of the same pool.
        width = min(plan.replicas, _group_size(problem, training))
        # The last group is filled up with its last replica, so that every group has the same compiled shape.
        firsts = range(0, plan.replicas, width)
        finished: list[_Trajectory] = []
        interrupted = False

        def report(groups_done: int, fraction: float) -> None:
            plan.progress((groups_done + fraction) / len(firsts))

        try:
            for number, first in enumerate(firsts):
                members = np.minimum(np.arange(first, first + width), plan.replicas - 1)
                share = partial(report, number)
                finished.append(self._run_group(problem, training, plan, members, share))
        except KeyboardInterrupt:
            interrupted = True
            if not finished:
                raise
        kept = min(plan.replicas, width * len(finished))
        whole = _Trajectory(*(np.concatenate(parts)[:kept] for parts in zip(*finished, strict=True)))
        return self._record(problem, plan, whole, interrupted)

    def _run_group(
        self,
        problem: Problem,
        training: SGD,
        plan: Plan,
        members: np.ndarray,
        share: Callable[[float], None],
    ) -> "_Trajectory":
        overlaps = Overlaps(plan.starts.Q[members], plan.starts.M[members], plan.starts.P, plan.starts.a[members])
        weights, frozen = _prepare(self.draws, problem, training, overlaps, plan.keys[members])
        saved = [jax.device_get(_measure(problem, weights, frozen))]
        stride = _stride(problem, training, len(members))
        for before, after in zip(plan.steps[:-1], plan.steps[1:], strict=True):
            for first in range(before, after, stride):
                last = min(first + stride, after)
                weights = _advance(self.draws, problem, training, weights, frozen, np.asarray(first), np.asarray(last))
                jax.block_until_ready(weights)
                share(float(last / plan.steps[-1]))
            saved.append(jax.device_get(_measure(problem, weights, frozen)))
            if not np.any(is_alive(saved[-1].Q, saved[-1].a, plan.limit)):
                break
        share(1.0)
        blank = jax.tree.map(lambda x: np.full_like(x, np.nan), saved[-1])
        saved += [blank] * (len(plan.steps) - len(saved))
        return _Trajectory(*(np.stack(column, axis=1) for column in zip(*saved, strict=True)))

    def _record(self, problem: Problem, plan: Plan, path: "_Trajectory", interrupted: bool) -> Record:
        lost = ~np.logical_and.accumulate(is_alive(path.Q, path.a, plan.limit), axis=1)
        Q, M, a = (blanked(lost, x) for x in (path.Q, path.M, path.a))
        if isinstance(problem.inputs, Samples):
            engine, risk, error = "mean over the data set", blanked(lost, path.risk), np.zeros_like(path.risk)
        else:
            chosen = choose(problem, ("excess_risk",))
            engine = chosen.name
            risk, error = risk_along(chosen, problem, Q, M, plan.starts.P, a)
        status = np.where(lost.any(axis=1), Status.DIVERGED, Status.DONE).astype(np.int8)
        crossing = first_crossing(plan, risk)
        return Record(Q, M, a, risk, error, np.zeros_like(risk), status, crossing, engine, interrupted)


class _Trajectory(NamedTuple):
    """What is measured at the save points, per replica."""

    Q: Any
    M: Any
    a: Any
    risk: Any  # over a data set; zero for Gaussian inputs, whose risk follows from the overlaps


@eqx.filter_jit
def _prepare(draws: str, problem: Problem, training: SGD, overlaps: Overlaps, keys: Array) -> tuple[Weights, Frozen]:
    """Weights and fixed data of a group of replicas."""
    size = training.set_size(problem)

    def one(Q: Array, M: Array, a: Array, key: Array) -> tuple[Weights, Frozen]:
        W, W_star = embed(Overlaps(Q, M, overlaps.P, a), problem.d, key)
        V = jnp.zeros_like(W) if training.has_momentum else jnp.zeros((problem.p, 0))
        X, y = jnp.zeros((0, problem.d)), jnp.zeros(0)
        if size is not None and not isinstance(problem.inputs, Samples):
            X = _normals(draws, purpose_key(key, Purpose.DATASET), (size, problem.d)).astype(jnp.float64)
            y = _labels(problem, W_star, X, purpose_key(key, Purpose.LABEL_NOISE))
        return Weights(W, V, a), Frozen(W_star, jnp.linalg.norm(W, axis=1), key, X, y)

    return jax.vmap(one)(overlaps.Q, overlaps.M, overlaps.a, keys)


@eqx.filter_jit
def _measure(problem: Problem, weights: Weights, frozen: Frozen) -> _Trajectory:
    def one(weights: Weights, frozen: Frozen) -> _Trajectory:
        W, _, a = weights
        risk = jnp.zeros(())
        if isinstance(problem.inputs, Samples):
            X, y = jnp.asarray(problem.inputs.X, jnp.float64), jnp.asarray(problem.inputs.y, jnp.float64)
            risk = batch_loss(problem, W, a, X, y) / y.shape[0]
        return _Trajectory(W @ W.T, W @ frozen.W_star.T, a, risk)

    return jax.vmap(one)(weights, frozen)


def _normals(draws: str, key: Array, shape: tuple[int, ...]) -> Array:
    return jax.random.normal(key, shape, jnp.float32 if draws == "single" else jnp.float64)


def _labels(problem: Problem, W_star: Array, z: Array, key: Array) -> Array:
    noise = jax.random.normal(key, z.shape[:-1], jnp.float64)
    return problem.target(z.astype(jnp.float64) @ W_star.T) + jnp.sqrt(problem.noise) * noise


def _draw(
    draws: str, problem: Problem, training: SGD, frozen: Frozen, index: Any, part: Any, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """Inputs and labels of one draw: a function of the index (of a block or step) and the part alone."""
    data = jax.random.fold_in(jax.random.fold_in(purpose_key(frozen.data, Purpose.DATA), index), part)
    if training.set_size(problem) is None:
        z = _normals(draws, data, (*shape, problem.d))
        return z, _labels(problem, frozen.W_star, z, jax.random.fold_in(data, int(Purpose.LABEL_NOISE)))
    if isinstance(problem.inputs, Samples):
        X, y = jnp.asarray(problem.inputs.X, jnp.float64), jnp.asarray(problem.inputs.y, jnp.float64)
    else:
        X, y = frozen.X, frozen.y
    if training.batch_size is None:  # the whole set, part after part; what runs over the end is not counted
        rows = jnp.broadcast_to(jnp.minimum(part * shape[-1] + jnp.arange(shape[-1]), X.shape[0] - 1), shape)
    else:
        rows = jax.random.randint(data, shape, 0, X.shape[0])
    return X[rows], y[rows]


@eqx.filter_jit
def _advance(
    draws: str, problem: Problem, training: SGD, weights: Weights, frozen: Frozen, before: Any, after: Any
) -> Weights:
    """Take a group of replicas from step ``before`` to step ``after``.

    The result does not depend on how a run is cut.
    """
    layout = _layout(problem, training)

    def gradient(weights: Weights, z: Array, y: Array, counts: Array | float = 1.0) -> tuple[Array, Array]:
        def loss(W: Array, a: Array) -> Array:
            return batch_loss(problem, W, a, z, y, counts)

        return jax.grad(loss, argnums=(0, 1))(weights.W, weights.a)

    def steps_of_a_block(weights: Weights, frozen: Frozen, index: Array) -> Weights:
        z, y = _draw(draws, problem, training, frozen, index, 0, (layout.steps_per_block, layout.batch))

        def step(s: Array, weights: Weights) -> Weights:
            inputs = z[s].astype(jnp.float64)
            return update(problem, training, weights, frozen.lengths, gradient(weights, inputs, y[s]))

        first = index * layout.steps_per_block
        low, high = jnp.maximum(before - first, 0), jnp.minimum(after - first, layout.steps_per_block)
        return jax.lax.fori_loop(low, high, step, weights)

    def step_in_parts(weights: Weights, frozen: Frozen, index: Array) -> Weights:
        def part(number: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
            z, y = _draw(draws, problem, training, frozen, index, number, (layout.part_size,))
            inside = number * layout.part_size + jnp.arange(layout.part_size) < layout.batch
            part_gradient = gradient(weights, z.astype(jnp.float64), y, inside.astype(jnp.float64))
            return jax.tree.map(jnp.add, total, part_gradient)

        zero = (jnp.zeros_like(weights.W), jnp.zeros_like(weights.a))
        return update(problem, training, weights, frozen.lengths, jax.lax.fori_loop(0, layout.parts, part, zero))

    if layout.parts == 1:
        first, last = before // layout.steps_per_block, -(-after // layout.steps_per_block)
        body = steps_of_a_block
    else:
        first, last = before, after
        body = step_in_parts
    replicas = jax.vmap(body, in_axes=(0, 0, None))
    return jax.lax.fori_loop(first, last, lambda index, weights: replicas(weights, frozen, index), weights)
