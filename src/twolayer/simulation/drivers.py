"""Drivers that advance replicas of the overlap process by many steps: on arrays by XLA, or by a program on scalars."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.compiler.loops import Loop, WrittenOut, as_rows, counter, from_rows, sums_by_kernel
from twolayer.compiler.scalar import scalarize
from twolayer.core.linalg import cholesky
from twolayer.core.programs import KeptProgram, compiled
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.types import Numbers
from twolayer.description import Watch
from twolayer.problem import Overlaps
from twolayer.simulation.overlap import (
    Draw,
    Setting,
    State,
    Sums,
    bartlett_factor,
    batch_step,
    draw,
    draw_batch,
    forces,
    overlaps_of,
    several_steps,
    single_step,
    start,
)

# Samples of a batch held at once: at most as many as fit the caches of a core, and as many as fill a GPU.
BLOCK, GPU_BLOCK = 2**11, 2**22
# The most parts of a large batch that are summed beside one another; each has two blocks or more.
PARTS = 8
# Samples of all replicas that are advanced at once.
SAMPLES = 2**22


def crossed(setting: Setting, watch: Watch, state: State, thresholds: Numbers, crossing: Numbers, at: Numbers) -> Array:
    """The crossings of a replica after a step that led to the state; see `Watch.crossed`."""
    if not watch.is_on:
        return jnp.asarray(crossing)
    overlaps, risk = overlaps_of(setting, state), None
    if setting.risk is not None:
        risk = setting.risk.parts(setting.problem, overlaps.of_fields, ("excess_risk",))["excess_risk"]
    return watch.crossed(overlaps, risk, jnp.asarray(thresholds), jnp.asarray(crossing), at)


def varying(setting: Setting) -> list[Any]:
    """The numbers that may differ between cells of one program: of the training, the noise, and those made of d."""
    leaves = [*jax.tree.leaves(setting.training), setting.problem.noise_level, setting.d, setting.degrees, setting.chi]
    return [leaf for leaf in leaves if isinstance(leaf, np.ndarray | Array)]


def numbers_of(setting: Setting) -> Float[np.ndarray, " numbers"]:
    """The numbers of a setting that may differ between cells of one program, in one array."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in varying(setting)])


def with_numbers(setting: Setting, numbers: Float[Array, " numbers"] | None = None) -> Setting:
    """The setting with other numbers, or as it is without any; the inverse of `numbers_of`."""
    if numbers is None:
        return setting
    leaves = varying(setting)
    values, place = {}, 0
    for leaf in leaves:
        size = int(np.prod(leaf.shape))
        values[id(leaf)] = numbers[place : place + size].reshape(leaf.shape)
        place += size
    return jax.tree.map(lambda leaf: values.get(id(leaf), leaf), setting)


class RunState(NamedTuple):
    """The state of all replicas during a run; arrays have the replicas along the first axis."""

    state: State
    lengths: Any
    thresholds: Any  # one on the risk and one on the overlaps, for each replica
    words: Any  # two words of a key for each replica
    crossing: Any  # for each threshold the first step at which it was crossed, -1 before


# Computes the sums over a batch from the state of a replica, its key and the number of the step.
SumBatch = Callable[[State, Any, Any], "Sums"]


def begun(setting: Setting, watch: Watch, overlaps: Overlaps, key: Array, thresholds: Array) -> RunState:
    """The state of one replica at its start."""
    state = start(setting, overlaps)
    words = jax.random.key_data(purpose_key(key, Purpose.OVERLAPS))
    before = jnp.full(watch.size(setting.problem.k), -1.0)
    crossing = crossed(setting, watch, state, thresholds, before, 0.0)
    return RunState(state, jnp.sqrt(jnp.diagonal(overlaps.Q)), thresholds, words.astype(jnp.uint32), crossing)


def after_step(
    setting: Setting, watch: Watch, run: RunState, step: Array, sum_batch: SumBatch | None = None
) -> RunState:
    """The state of one replica after a step, for any batch size and width.

    The sums over a batch may be given as a kernel, `sums_written_out`.
    """
    key, count = (run.words[0], run.words[1]), counter(step)
    if setting.batch == 1:
        drawn = draw(setting, key, jnp.uint32(0), count)
        state = single_step(setting, run.state, run.lengths, drawn)
    elif setting.training.is_fresh:
        state = _batch(setting, run, key, count, sum_batch)
    else:
        state = _batch_again(setting, run, key, count)
    at = (step + 1).astype(jnp.float64)
    return run._replace(state=state, crossing=crossed(setting, watch, state, run.thresholds, run.crossing, at))


def advance_xla(
    setting: Setting, watch: Watch, run: RunState, first: Numbers, last: Numbers, sum_batch: SumBatch | None = None
) -> RunState:
    """Advance all replicas from one step to another by XLA."""
    advance = compiled(_advance, never_optimised(setting))
    return advance(setting, watch, run, first, last, sum_batch)


def never_optimised(setting: Setting) -> bool:
    """Whether XLA would optimise for minutes, or without end: with jax 0.12 on a CPU all but plain steps on batches."""
    is_slow = jax.__version_info__ >= (0, 12) and jax.default_backend() == "cpu"
    training = setting.training
    is_plain = training.is_fresh and not training.has_momentum and setting.frame is None
    return is_slow and not is_plain and (setting.batch > 1 or not training.is_fresh)


def _advance(
    setting: Setting, watch: Watch, run: RunState, first: Numbers, last: Numbers, sum_batch: SumBatch | None
) -> RunState:
    # As many replicas run at once as keep their samples within the memory of one large batch.
    width = max(1, SAMPLES // min(setting.batch, _block_size()))

    def every(step: Array, run: RunState) -> RunState:
        size = min(width, len(run.crossing))
        return jax.lax.map(lambda replica: after_step(setting, watch, replica, step, sum_batch), run, batch_size=size)

    return jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), every, run)


def _block_size() -> int:
    return BLOCK if jax.default_backend() == "cpu" else GPU_BLOCK


def _batch_again(setting: Setting, run: RunState, key: Any, count: Any) -> State:
    """One step on a batch whose samples are used more than once, so that all of them are kept."""
    index = jnp.arange(setting.batch, dtype=jnp.uint32)
    drawn = jax.vmap(lambda i: draw(setting, key, i, count, with_rest=False))(index)
    G = jnp.concatenate([drawn.g, bartlett_factor(setting, key, count)], axis=1)
    return several_steps(setting, run.state, run.lengths, drawn.g_star, G, drawn.xi)


def _batch(setting: Setting, run: RunState, key: Any, count: Any, sum_batch: SumBatch | None) -> State:
    """One step on a batch, summed by a kernel or in blocks, so that memory does not grow with the batch."""
    n = setting.batch
    if sum_batch is not None:
        return _after_sums(setting, run, key, count, sum_batch(run.state, key, count))
    if n <= _block_size():
        return _after_sums(setting, run, key, count, *_sums(setting, run.state, key, count, jnp.arange(n), n))
    return _after_sums(setting, run, key, count, _summed(setting, run.state, key, count, 0, n))


def _sums(setting: Setting, state: State, key: Any, count: Any, place: Array, end: Numbers) -> tuple[Sums, Array]:
    """The sums over the samples of a batch at some places before an end, and the coefficients of each."""

    def of(drawn: Draw) -> tuple[Array, Array]:
        return forces(setting, state, drawn.g_star, drawn.g, drawn.xi)

    def in_precision(x: Array) -> Array:
        return x.astype(jnp.float32) if setting.is_single else x

    state = jax.tree.map(in_precision, state)
    # Without the barriers XLA would draw the numbers and compute the forces again for each product.
    numbers = draw_batch(setting, key, place.astype(jnp.uint32), count)
    drawn = jax.lax.optimization_barrier(jax.tree.map(in_precision, numbers))
    pulls, da = jax.vmap(of, in_axes=-1, out_axes=-1)(drawn)
    inside = jnp.where(place < end, 1.0, 0.0)[None, :]
    pulls, da = jax.lax.optimization_barrier((in_precision(pulls * inside), da * inside))
    sums = Sums(pulls @ pulls.T, pulls @ drawn.g.T, pulls @ drawn.g_star.T, jnp.sum(da, axis=1))
    sums, A = jax.tree.map(lambda x: x.astype(jnp.float64), (sums, pulls))
    return sums, A.T


def _summed(setting: Setting, state: State, key: Any, count: Any, first: Numbers, number: int) -> Sums:
    """The sums over a number of samples of a batch, in blocks of one size."""
    p, blocks = setting.problem.p, -(-number // _block_size())
    size, end = -(-number // blocks), jnp.minimum(first + number, setting.batch)
    gram, along, star = (jnp.zeros((p, columns)) for columns in (p, setting.outside, setting.inside))

    def more(block: Array, total: Sums) -> Sums:
        place = jnp.asarray(first + block * size) + jnp.arange(size)
        return jax.tree.map(jnp.add, total, _sums(setting, state, key, count, place, end)[0])

    return jax.lax.fori_loop(0, blocks, more, Sums(gram, along, star, jnp.zeros(p)))


def _after_sums(
    setting: Setting, run: RunState, key: Any, count: Any, total: Sums, A: Float[Array, "n p"] | None = None
) -> State:
    """The state after a step on a batch with these sums, and for a small one with the coefficients of its samples."""
    # The coefficients of few samples are a factor of their Gram matrix; for many, the Cholesky factor is smaller.
    R = A if A is not None and setting.batch <= setting.problem.p else cholesky(total.gram).T
    factor = bartlett_factor(setting, key, count)
    return batch_step(setting, run.state, run.lengths, total, factor, R)


def takes_parts(setting: Setting) -> bool:
    """Whether a batch is summed in parts on all cores: a large one on a CPU, each sample of which is used once."""
    return setting.batch >= 4 * BLOCK and setting.training.is_fresh and jax.default_backend() == "cpu"


def in_parts(setting: Setting, watch: Watch) -> Callable[[RunState, Any, Any], RunState]:
    """The function that advances replicas by steps on large batches, each in parts that are summed on all cores.

    How a batch is divided depends on its size alone, and so do the numbers. Calls of compiled functions return before
    they have ended, and XLA runs those that do not need each other beside one another.
    """
    parts = min(PARTS, setting.batch // (2 * BLOCK))
    size = -(-setting.batch // parts)
    numbers, rest = eqx.partition(setting, eqx.is_array)
    leaves, tree = jax.tree.flatten(numbers)  # to flatten a setting at each call takes as long as a part

    def setting_of(leaves: list[Array]) -> Setting:
        return eqx.combine(jax.tree.unflatten(tree, leaves), rest)

    @jax.jit
    def part(leaves: list[Array], state: State, words: Array, step: Array, number: Array) -> Sums:
        return _summed(setting_of(leaves), state, (words[0], words[1]), counter(step), number * size, size)

    @jax.jit
    def after(leaves: list[Array], run: RunState, step: Array, sums: list[Sums]) -> RunState:
        setting, key = setting_of(leaves), (run.words[0], run.words[1])
        total = jax.tree.map(lambda *x: sum(x[1:], x[0]), *sums)
        state = _after_sums(setting, run, key, counter(step), total)
        at = (step + 1).astype(jnp.float64)
        return run._replace(state=state, crossing=crossed(setting, watch, state, run.thresholds, run.crossing, at))

    def advance(run: RunState, first: Any, last: Any) -> RunState:
        runs = [jax.tree.map(lambda x, n=n: jnp.asarray(x)[n], run) for n in range(len(run.crossing))]
        for step in np.arange(int(first), int(last)):
            sums = [[part(leaves, one.state, one.words, step, n) for n in np.arange(parts)] for one in runs]
            runs = [after(leaves, one, step, own) for one, own in zip(runs, sums, strict=True)]
        return jax.tree.map(lambda *x: jnp.stack(x), *runs)

    return advance


def sums_written_out(setting: Setting) -> SumBatch:
    """The sums over a batch by a GPU kernel that keeps no sample; raises `Unsupported` where that is impossible."""
    p, k, r = setting.problem.p, setting.inside, setting.outside
    below = np.tril_indices(p)

    def sample(index: Array, weight: Array, words: list[Array], state: State) -> tuple[Array, ...]:
        drawn = draw(setting, (words[0], words[1]), index, (words[2], words[3]), with_rest=False)
        A, da = (weight * x for x in forces(setting, state, drawn.g_star, drawn.g, drawn.xi))
        star, along = (A[:, None] * x[None, :] for x in (drawn.g_star, drawn.g))
        return A[below[0]] * A[below[1]], along, star, da

    word, real = jax.ShapeDtypeStruct((), jnp.uint32), partial(jax.ShapeDtypeStruct, dtype=jnp.float64)
    state: Any = State(*(real(shape) for shape in ((setting.rows, k), (setting.rows, r), (p,))))  # pyright: ignore[reportArgumentType]
    program = scalarize(sample, word, real(()), [word] * 4, state)

    def sum_batch(state: State, key: Any, count: Any) -> Sums:
        numbers = [number for part in state for number in part.ravel()]
        sums = jnp.stack(sums_by_kernel(program, setting.batch, [*key, *count], numbers))
        half, along, star, da = jnp.split(sums, np.cumsum([len(below[0]), p * r, p * k]))
        gram = jnp.zeros((p, p)).at[below].set(half).at[below[::-1]].set(half)
        return Sums(gram, along.reshape(p, r), star.reshape(p, k), da)

    return sum_batch


def written_out(setting: Setting, watch: Watch, is_shared: bool = False) -> WrittenOut:
    """One step as a program on scalars; raises `Unsupported` where that is impossible.

    A program that ``is_shared`` takes the numbers of the setting as constants of a replica.
    """
    word = jax.ShapeDtypeStruct((), jnp.uint32)
    real = partial(jax.ShapeDtypeStruct, dtype=jnp.float64)
    own = [real((len(numbers_of(setting)),))] if is_shared else []  # pyright: ignore[reportArgumentType]

    def draws(k0: Any, k1: Any, low: Any, high: Any, *numbers: Any) -> tuple[Draw, Any]:
        at = low.astype(jnp.float64) + 2.0**32 * high.astype(jnp.float64) + 1.0
        return draw(with_numbers(setting, *numbers), (k0, k1), jnp.uint32(0), (low, high)), at

    drawn, at = jax.eval_shape(draws, word, word, word, word, *own)
    p, k = setting.problem.p, setting.problem.k
    shapes = ((setting.rows, setting.inside), (setting.rows, setting.outside), (p,))
    state: Any = State(*map(real, shapes))  # pyright: ignore[reportArgumentType]

    def step(state: State, crossing: Any, lengths: Any, thresholds: Any, *others: Any) -> tuple[State, Any]:
        *numbers, drawn, at = others
        here = with_numbers(setting, *numbers)
        state = single_step(here, state, lengths, drawn)
        return state, crossed(here, watch, state, thresholds, crossing, at)

    size, shared = watch.size(k), own[0].shape[0] if own else 0
    program = scalarize(step, state, real((size,)), real((p,)), real((2,)), *own, drawn, at)
    held = sum(int(np.prod(leaf.shape)) for leaf in state) + size
    return WrittenOut(scalarize(draws, word, word, word, word, *own), program, held, p + 2 + shared, shared)


def advance_written(loop: Loop, run: RunState, first: Numbers, last: Numbers) -> RunState:
    """Advance all replicas by the loop of a program on scalars."""
    moving = (*run.state, run.crossing)
    rows = loop(as_rows(moving), as_rows((run.lengths, run.thresholds)), as_rows((run.words,)), first, last)
    *state, crossing = from_rows(moving, rows)
    return run._replace(state=State(*state), crossing=crossing)


# For loops that JAX compiles: the rows are divided and joined in the same compiled program.
advance_compiled = KeptProgram(advance_written)
