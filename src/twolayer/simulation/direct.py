"""Stochastic gradient descent on the weights themselves, by which every theory is judged.

The steps differentiate the loss and use none of the Gaussian moments.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt

from twolayer.compiler.draws import four_normals, four_of, noise_normal, noise_normals
from twolayer.compiler.loops import backend_here
from twolayer.core.programs import KeptProgram, compiled_for
from twolayer.core.random import Purpose, purpose_key
from twolayer.description import (
    AbstractDescription,
    Applies,
    Exactness,
    Plan,
    Record,
    by_block,
    first_crossings,
    is_alive,
    seen_by_fields,
)
from twolayer.expectation import Auto, choose, risk_along
from twolayer.fitting import refusal, run_fits
from twolayer.problem import Gaussian, Overlaps, Problem, Samples
from twolayer.simulation.direct_kernels import advance_kernel, advance_native, fits_registers, native, written_out
from twolayer.simulation.direct_rows import embedded, excess_risk_on_rows, on_axes, random_rows, rows_refusal
from twolayer.simulation.direct_spans import advance_spans, steps_together
from twolayer.specification.fields import ONLY_WHEN_GIVEN, as_data, choice, flag, static
from twolayer.specification.registry import register
from twolayer.stepping import Advance, Stepper, in_phases, run_each, sealed
from twolayer.training import SGD, LookAhead, Repeated, RidgeRegression
from twolayer.training.update import Weights, at_rest, looked_ahead, queried, update

# Numbers drawn at once per replica, and replicas advanced together, are chosen to fit the caches of one core. Random
# numbers belong to the steps of a replica, so that the result does not depend on how a run is cut into blocks.
BLOCK_NUMBERS = 2**14
GROUP = 8
GROUP_NUMBERS = 2**13
GROUP_MEMORY = 2**23
GPU_NUMBERS = 2**28
WORTHWHILE = 10**9
PART_NUMBERS = 2**20
MAX_NUMBERS = 2**28


class Frozen(NamedTuple):
    """The arrays of a replica that do not change during training."""

    W_star: Float[Array, "k d"]
    lengths: Float[Array, " p"]
    words: UInt[Array, " two"]  # the two words of the key of fresh inputs
    data: Key[Array, ""]  # the key of all other random numbers
    X: Float[Array, "set d"]  # inputs of the fixed set; without rows when samples are fresh draws
    y: Float[Array, " set"]


def batch_loss(
    problem: Problem,
    W: Float[Array, "p d"],
    a: Float[Array, " p"],
    z: Float[Array, "n d"],
    y: Float[Array, " n"],
    counts: Float[Array, " n"] | float = 1.0,
) -> Float[Array, ""]:
    r"""The loss summed over samples, :math:`\sum_\nu \ell(y^\nu, s(z^\nu))`, each with its weight in ``counts``."""
    return jnp.sum(counts * problem.loss(y, problem.student(z @ W.T, a)))


class _Layout(NamedTuple):
    """How samples are grouped into draws: several whole steps in a block, or one step in several parts."""

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


def _group_size(problem: Problem, training: SGD, on_cpu: bool) -> int:
    """The number of replicas advanced together: it fits the cache of a core or fills a GPU, and fits the memory."""
    drawn = _numbers_drawn(problem, training)
    fixed = problem.d * (0 if problem.is_labelled_set else training.set_size(problem) or 0)
    weights = problem.d * problem.p
    if not on_cpu:
        return max(1, GPU_NUMBERS // max(drawn, fixed, weights))
    return max(1, min(max(GROUP, GROUP_NUMBERS // problem.d), GROUP_MEMORY // max(drawn, fixed // 16, 1)))


def _numbers_drawn(problem: Problem, training: SGD) -> int:
    """The numbers that a replica draws at once."""
    layout = _layout(problem, training)
    return problem.d * (layout.part_size if layout.parts > 1 else layout.steps_per_block * layout.batch)


def bytes_of_group(problem: Problem, training: SGD, replicas: int) -> float:
    """About the memory that replicas take which are advanced together on a CPU: weights, samples, and their copies."""
    together = min(replicas, _group_size(problem, training, on_cpu=True))
    drawn = 0 if training.has_fixed_set else 4 * _numbers_drawn(problem, training)  # in single precision, with copies
    fixed = problem.d * (training.set_size(problem) or 0)
    is_shared = isinstance(problem.inputs, Samples)  # by all replicas
    own = 8.0 * (3 * problem.d * (problem.p + problem.k) + (0 if is_shared else 2 * fixed)) + 4.0 * drawn
    return together * own + (8.0 * fixed if is_shared else 0.0)


@register
class DirectSGD(AbstractDescription):
    r"""Stochastic gradient descent on the weights.

    .. math:: w_j^+ = w_j - \frac{\gamma}{d}\,\partial_{w_j} \sum_\nu \ell^\nu

    Exact at finite d, by construction. Weights are kept in double precision. Inputs are drawn in single precision by
    default (``draws="single"``), whose law differs from the Gaussian by about :math:`10^{-7}` in any probability; use
    ``"double"`` to check that. Checked against: a plain NumPy loop, the exact one-step mean, the ODE limit.

    Parameters
    ----------
    draws
        The precision in which fresh inputs are drawn.
    backend
        ``"native"`` runs native code on a CPU or one kernel on a GPU; it covers fresh Gaussian inputs in single
        precision and up to sixteen fields without projected gradients, and all other cases fall back to ``"xla"``,
        which covers everything. ``"auto"`` takes native code for long runs only, since compiling it takes longer than a
        short run.
    equivalent
        Whether `Samples` with target directions are replaced by their Gaussian equivalent. Beside SGD on the data this
        is a control: the two differ only in what the data have beyond their covariance.
    """

    draws: str = static(choice("draws", ("single", "double")), default="single")
    backend: str = static(choice("backend", ("auto", "native", "xla")), default="auto")
    equivalent: bool = static(flag("equivalent"), default=False, metadata=ONLY_WHEN_GIVEN)

    @property
    def follows_data(self) -> bool:
        return not self.equivalent

    @property
    def references(self) -> tuple[str, ...]:
        return ()

    def applies(self, problem: Problem, training: SGD) -> Applies:
        size = problem.d * max(problem.p, training.set_size(problem) or 0)
        if size > MAX_NUMBERS:
            reason = f"weights or a fixed set of {size:.3g} numbers do not fit in memory; lower `d`."
            return Applies(False, Exactness.EXACT, reason)
        # The risk of a run is an average over the inputs.
        if isinstance(problem.inputs, Gaussian) and (missing := Auto().refusal(problem, ("excess_risk",))):
            return Applies(False, Exactness.EXACT, missing)
        if problem.has_data and (missing := rows_refusal(problem)):
            return Applies(False, Exactness.EXACT, missing)
        return Applies(True, Exactness.EXACT, "SGD on the weights; scatter between runs is part of the truth")

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        return self.run_phases(problem, (training,), (0,), plan)

    def run_phases(self, problem: Problem, phases: tuple[SGD, ...], firsts: tuple[int, ...], plan: Plan) -> Record:
        phases[0].samples_per_step(problem)  # raises for a batch larger than a reused set, before anything is drawn
        problem, phases = as_data((on_axes(problem), phases))
        training = phases[0]
        # Groups run one after the other: two JAX programs on two threads would compete for the same pool of threads.
        width = min(plan.replicas, _group_size(problem, training, jax.default_backend() == "cpu"))
        work = int(plan.steps[-1]) * training.samples_per_step(problem) * problem.d * plan.replicas
        drivers = [self._driver(problem, phase, work) for phase in phases]
        ranks = None if plan.starts.blocks is None else plan.starts.blocks.frame.ranks

        def group(first: int) -> Stepper:
            # The last group is filled up with its last replica, so that every group has the same compiled shape.
            members = np.minimum(np.arange(first, first + width), plan.replicas - 1)
            starts = jax.tree.map(np.asarray, plan.starts).replica(members)
            numbers = problem.d * (problem.p + problem.k + (training.set_size(problem) or 0))
            prepare = compiled_for(_prepare, numbers)
            weights, frozen = prepare(self.draws, problem, training, starts, _chosen(plan.keys, members))
            advances = [_with_frozen(driver.advance, frozen) for driver in drivers]
            return Stepper(
                weights,
                in_phases(advances, firsts),
                lambda weights: _measure(problem, ranks, weights, frozen),
                lambda row: not np.any(is_alive(row["Q"], row["a"], plan.limit)),
                together=math.lcm(*(driver.together for driver in drivers)),
            )

        makers = [partial(group, first) for first in range(0, plan.replicas, width)]
        saved, interrupted = run_each(makers, plan.steps, plan)
        rows = {name: np.concatenate([x[name] for x in saved])[: plan.replicas] for name in saved[0]}
        return self._record(problem, training, plan, rows, drivers[0].name, interrupted)

    def applies_to_fit(self, problem: Problem, fit: RidgeRegression) -> Applies:
        reason = refusal(problem, Auto())
        return Applies(not reason, Exactness.EXACT, reason or f"{fit.words}, exactly")

    def run_fit(self, problem: Problem, fit: RidgeRegression, plan: Plan) -> Record:
        setting = as_data((problem, fit))
        return run_fits(
            problem, fit, plan, Auto(), lambda step: _fitted(self.draws, *setting, plan.starts, plan.keys, step)
        )

    def _driver(self, problem: Problem, training: SGD, work: int) -> "_Driver":
        if self.draws == "single" and (self.backend == "native" or (self.backend == "auto" and work > WORTHWHILE)):
            steps, backend = written_out(problem, training), backend_here("auto")
            kernel = native(steps) if steps is not None and backend == "native" else None
            if kernel is not None:
                return _Driver(partial(advance_native, kernel, problem.input_scale), backend)
            if steps is not None and steps.has_scale:
                steps = None
            if steps is not None and steps.batch == 1 and backend == "GPU kernel":
                if fits_registers(steps):
                    return _Driver(partial(advance_kernel, steps), backend)
                return _Driver(partial(advance_spans, steps), backend, steps_together(steps))
        return _Driver(partial(_advance, self.draws, problem, training), "xla")

    def _record(
        self, problem: Problem, training: SGD, plan: Plan, rows: dict[str, np.ndarray], steps: str, interrupted: bool
    ) -> Record:
        rows, status = sealed(plan, rows)
        Q, M, a, set_risk = (rows[name] for name in ("Q", "M", "a", "risk"))
        others = by_block(rows)
        if isinstance(problem.inputs, Samples):
            risk = rows["rows_risk"] if problem.has_data else set_risk
            engine, error = "mean over the data set", np.zeros_like(risk)
        else:
            chosen = choose(problem, ("excess_risk",))
            engine = chosen.name
            risk, error = risk_along(chosen, problem, *seen_by_fields(plan.starts, rows), a)
        if training.has_fixed_set and not problem.is_labelled_set:
            others |= {"training_risk": set_risk, "training_risk_error": np.zeros_like(set_risk)}
        times = first_crossings(plan, risk, Q, M)
        name = f"{engine}; steps: {steps}"
        return Record(Q, M, a, risk, error, np.zeros_like(risk), status, *times, name, interrupted, others or None)


_AdvanceWeights = Callable[[Weights, Frozen, Any, Any], Weights]


class _Driver(NamedTuple):
    """How weights are advanced on this machine, under which name, and how many steps are computed at once."""

    advance: _AdvanceWeights
    name: str
    together: int = 1


def _with_frozen(advance: _AdvanceWeights, frozen: Frozen) -> Advance:
    return lambda weights, first, last: advance(weights, frozen, first, last)


@KeptProgram
def _chosen(keys: Array, members: np.ndarray | Array) -> Array:
    return keys[jnp.asarray(members)]


def _prepare(draws: str, problem: Problem, training: SGD, overlaps: Overlaps, keys: Array) -> tuple[Weights, Frozen]:
    """Weights and fixed data of a group of replicas."""
    size = training.set_size(problem)
    precision = jnp.float32 if draws == "single" else jnp.float64

    blocks = overlaps.blocks

    def one(Q: Array, M: Array, a: Array, key: Array) -> tuple[Weights, Frozen]:
        W, W_star = embedded(problem, Overlaps(Q, M, overlaps.P, a), None if blocks is None else blocks.frame, key)
        X, y = jnp.zeros((0, problem.d)), jnp.zeros(0)
        if size is not None and not problem.is_labelled_set:
            own = purpose_key(key, Purpose.DATASET)
            if problem.has_data:
                X = random_rows(problem, own, (size,))
            else:
                X = _scaled(problem, jax.random.normal(own, (size, problem.d), precision).astype(jnp.float64))
            y = _labels(problem, W_star, X, purpose_key(key, Purpose.LABEL_NOISE))
        words = jax.random.key_data(purpose_key(key, Purpose.DATA)).astype(jnp.uint32)
        return at_rest(training, W, a), Frozen(W_star, jnp.linalg.norm(W, axis=1), words, key, X, y)

    # One replica after the other: two batches of decompositions at once may wait for each other's threads forever.
    Q, M = (overlaps.Q, overlaps.M) if blocks is None else (blocks.Q, blocks.M)
    return jax.lax.map(lambda row: one(*row), (Q, M, overlaps.a, keys))


@KeptProgram
def _measure(problem: Problem, ranks: tuple[int, ...] | None, weights: Weights, frozen: Frozen) -> dict[str, Array]:
    """Overlaps, second layer, and the risk over the fixed set, which is zero where there is none.

    For inputs with a spectrum, whose blocks have the given ``ranks``, also the overlaps by block.
    """

    def one(weights: Weights, frozen: Frozen) -> dict[str, Array]:
        W, _, a = weights
        risk = jnp.zeros(())
        X, y = _fixed_set(problem, frozen)
        if y.shape[0]:
            risk = jnp.sum(problem.loss.error(y, problem.student(X @ W.T, a))) / y.shape[0]
        measured = {"Q": W @ W.T, "M": W @ frozen.W_star.T, "a": a, "risk": risk}
        if problem.has_data:
            measured["rows_risk"] = excess_risk_on_rows(problem, W, frozen.W_star, a)
        if ranks is not None:
            ends = np.cumsum(ranks)[:-1].tolist()
            parts = list(zip(jnp.split(W, ends, axis=1), jnp.split(frozen.W_star, ends, axis=1), strict=True))
            measured["Q_block"] = jnp.stack([part @ part.T for part, _ in parts])
            measured["M_block"] = jnp.stack([part @ star.T for part, star in parts])
        return measured

    return jax.vmap(one)(weights, frozen)


def _fixed_set(problem: Problem, frozen: Frozen) -> tuple[Array, Array]:
    """Inputs and labels of the samples that are used again; none when samples are fresh draws."""
    if problem.is_labelled_set:
        return jnp.asarray(problem.inputs.X, jnp.float64), jnp.asarray(problem.inputs.y, jnp.float64)  # pyright: ignore[reportAttributeAccessIssue]
    return frozen.X, frozen.y


def _scaled(problem: Problem, z: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """Standard normal numbers as inputs: with the standard deviations of a spectrum, along the axes."""
    scale = problem.input_scale
    return z if scale is None else z * jnp.asarray(scale).astype(z.dtype).reshape((1,) * (z.ndim - 1) + (-1,))


def _labels(problem: Problem, W_star: Array, z: Array, key: Array) -> Array:
    several = problem.numbers_of_label
    xi = jax.random.normal(key, z.shape[:-1] if several == 1 else (*z.shape[:-1], several), jnp.float64)
    return problem.label(z.astype(jnp.float64) @ W_star.T, xi)


def _fresh(problem: Problem, frozen: Frozen, steps: Array, samples: Array) -> tuple[Array, Array]:
    """Inputs and labels of some samples of some steps, each a function of the step and of the sample's number."""
    quarter = four_of(problem.d)
    shape = (len(steps), len(samples), quarter)
    block = jnp.broadcast_to(jnp.arange(quarter, dtype=jnp.uint32), shape)
    sample = jnp.broadcast_to(samples.astype(jnp.uint32)[:, None], shape)
    low, high = (
        jnp.broadcast_to(word.astype(jnp.uint32)[:, None, None], shape) for word in (steps & 0xFFFFFFFF, steps >> 32)
    )
    k0, k1 = frozen.words[0], frozen.words[1]
    z = jnp.concatenate(four_normals(k0, k1, block, sample, low, high), axis=-1)[..., : problem.d]
    z = _scaled(problem, z)
    number = noise_normal if problem.numbers_of_label == 1 else noise_normals
    xi = number(k0, k1, *(word[..., 0] for word in (sample, low, high))).astype(jnp.float64)
    return z, problem.label(z.astype(jnp.float64) @ frozen.W_star.T, xi)


def _draw(
    draws: str, problem: Problem, training: SGD, frozen: Frozen, steps: Array, samples: Array
) -> tuple[Array, Array]:
    """Inputs and labels of some samples of some steps, along the first two axes."""
    shape = (len(steps), len(samples))
    is_fresh = training.set_size(problem) is None
    if is_fresh and draws == "single" and not problem.has_data:
        return _fresh(problem, frozen, steps, samples)
    data = jax.random.fold_in(jax.random.fold_in(purpose_key(frozen.data, Purpose.DATA), steps[0]), samples[0])
    if is_fresh:
        if problem.has_data:
            z = random_rows(problem, data, shape)
        else:
            z = _scaled(problem, jax.random.normal(data, (*shape, problem.d), jnp.float64))
        return z, _labels(problem, frozen.W_star, z, jax.random.fold_in(data, int(Purpose.LABEL_NOISE)))
    X, y = _fixed_set(problem, frozen)
    if training.batch_size is None:  # the whole set; samples beyond its end have weight zero
        rows = jnp.broadcast_to(jnp.minimum(samples, X.shape[0] - 1), shape)
    else:
        rows = jax.random.randint(data, shape, 0, X.shape[0])
    return X[rows], y[rows]


_GradientOf = Callable[[Weights], tuple[Array, Array]]


def _gradient(
    problem: Problem, weights: Weights, z: Array, y: Array, counts: Array | float = 1.0
) -> tuple[Array, Array]:
    """The gradient of the loss summed over some samples, with respect to both layers."""

    def loss(W: Array, a: Array) -> Array:
        return batch_loss(problem, W, a, z, y, counts)

    return jax.grad(loss, argnums=(0, 1))(weights.W, weights.a)


def _in_parts(
    problem: Problem, layout: _Layout, take: Callable[[Array], tuple[Array, Array]], weights: Weights
) -> tuple[Array, Array]:
    """The gradient over a batch, summed in parts; ``take`` returns inputs and labels of the samples of given number."""

    def part(number: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
        samples = number * layout.part_size + jnp.arange(layout.part_size)
        z, y = take(samples)
        inside = (samples < layout.batch).astype(jnp.float64)
        return jax.tree.map(jnp.add, total, _gradient(problem, weights, z.astype(jnp.float64), y, inside))

    return jax.lax.fori_loop(0, layout.parts, part, (jnp.zeros_like(weights.W), jnp.zeros_like(weights.a)))


def _updates(problem: Problem, training: SGD, weights: Weights, frozen: Frozen, gradient: _GradientOf) -> Weights:
    """All updates on one batch, given a function that computes its gradient at any weights."""

    def follow(weights: Weights) -> Weights:
        wanted = queried(training, weights)
        step_gradient = gradient(wanted)
        if isinstance(training.reuse, LookAhead):
            step_gradient = gradient(looked_ahead(problem, training.reuse.rate, wanted, step_gradient))
        return update(problem, training, weights, frozen.lengths, step_gradient)

    if isinstance(training.reuse, Repeated):
        return jax.lax.fori_loop(0, training.reuse.times, lambda _, weights: follow(weights), weights)
    return follow(weights)


@KeptProgram
def _advance(
    draws: str, problem: Problem, training: SGD, weights: Weights, frozen: Frozen, before: Any, after: Any
) -> Weights:
    """Take a group of replicas from step ``before`` to step ``after``.

    The result does not depend on how a run is cut.
    """
    layout, epoch = _layout(problem, training), training.steps_per_epoch(problem)
    length = epoch or (layout.steps_per_block if layout.parts == 1 else 1)  # steps whose samples are chosen together
    updates, in_parts = partial(_updates, problem, training), partial(_in_parts, problem, layout)

    def steps_of_a_block(weights: Weights, frozen: Frozen, index: Array) -> Weights:
        first = index * length
        z, y = _draw(draws, problem, training, frozen, first + jnp.arange(length), jnp.arange(layout.batch))

        def step(s: Array, weights: Weights) -> Weights:
            inputs = z[s].astype(jnp.float64)
            return updates(weights, frozen, lambda weights: _gradient(problem, weights, inputs, y[s]))

        low, high = jnp.maximum(before - first, 0), jnp.minimum(after - first, length)
        return jax.lax.fori_loop(low, high, step, weights)

    def step_in_parts(weights: Weights, frozen: Frozen, index: Array) -> Weights:
        def take(samples: Array) -> tuple[Array, Array]:
            z, y = _draw(draws, problem, training, frozen, index[None], samples)
            return z[0], y[0]

        return updates(weights, frozen, partial(in_parts, take))

    def steps_of_an_epoch(weights: Weights, frozen: Frozen, index: Array) -> Weights:
        X, y = _fixed_set(problem, frozen)
        order = jax.random.permutation(jax.random.fold_in(purpose_key(frozen.data, Purpose.DATA), index), len(y))

        def step(s: Array, weights: Weights) -> Weights:
            def take(samples: Array) -> tuple[Array, Array]:
                # Samples beyond the end of the batch have weight zero.
                rows = order[s * layout.batch + jnp.minimum(samples, layout.batch - 1)]
                return X[rows], y[rows]

            return updates(weights, frozen, partial(in_parts, take))

        low, high = jnp.maximum(before - index * length, 0), jnp.minimum(after - index * length, length)
        return jax.lax.fori_loop(low, high, step, weights)

    body = steps_of_an_epoch if epoch else steps_of_a_block if layout.parts == 1 else step_in_parts
    replicas = jax.vmap(body, in_axes=(0, 0, None))
    first, last = before // length, -(-after // length)
    return jax.lax.fori_loop(first, last, lambda index, weights: replicas(weights, frozen, jnp.asarray(index)), weights)


@KeptProgram
def _fitted(
    draws: str, problem: Problem, fit: RidgeRegression, starts: Overlaps, keys: Array, step: Any
) -> Float[Array, "replicas p"]:
    """The second layers of all replicas, each fitted on the samples of a step, which are drawn as those of `SGD`."""
    training = SGD(1.0, batch_size=fit.samples)
    layout, p = _layout(problem, training), problem.p

    def one(row: tuple[Array, Array, Array, Array]) -> Array:
        start = Overlaps(row[0][None], row[1][None], starts.P, row[2][None])
        weights, frozen = jax.tree.map(lambda x: x[0], _prepare(draws, problem, training, start, row[3][None]))

        def part(number: Array, total: tuple[Array, Array]) -> tuple[Array, Array]:
            samples = number * layout.part_size + jnp.arange(layout.part_size)
            z, y = _draw(draws, problem, training, frozen, jnp.asarray(step)[None], samples)
            features = problem.student.activation(z[0].astype(jnp.float64) @ weights.W.T)
            features = jnp.where((samples < layout.batch)[:, None], features, 0.0)
            return total[0] + features.T @ features, total[1] + features.T @ y[0]

        totals = jax.lax.fori_loop(0, layout.parts, part, (jnp.zeros((p, p)), jnp.zeros(p)))
        return fit.solve(*(total / layout.batch for total in totals))

    return jax.lax.map(one, (starts.Q, starts.M, starts.a, keys))
