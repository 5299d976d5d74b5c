"""Drivers that advance replicas of the overlap process by many steps: on arrays by XLA, or by a program on scalars."""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.loops import Loop, WrittenOut, as_rows, counter, from_rows
from twolayer.compiler.scalar import scalarize
from twolayer.core.linalg import cholesky
from twolayer.core.types import Numbers
from twolayer.description import Watch
from twolayer.simulation.overlap import (
    Draw,
    Setting,
    State,
    Sums,
    bartlett_factor,
    batch_step,
    draw,
    forces,
    overlaps_of,
    several_steps,
    single_step,
)

# Samples of a batch held at once: as many as fit the caches of a core, and as many as fill a GPU.
BLOCK, GPU_BLOCK = 2**13, 2**22
# Samples of all replicas that are advanced at once.
SAMPLES = 2**22


def crossed(setting: Setting, watch: Watch, state: State, thresholds: Numbers, crossing: Numbers, at: Numbers) -> Array:
    """The crossings of a replica after a step that led to the state; see `Watch.crossed`."""
    if not watch.is_on:
        return jnp.asarray(crossing)
    overlaps, risk = overlaps_of(setting, state), None
    if setting.risk is not None:
        risk = setting.risk.parts(setting.problem, overlaps, ("excess_risk",))["excess_risk"]
    return watch.crossed(overlaps, risk, jnp.asarray(thresholds), jnp.asarray(crossing), at)


class RunState(NamedTuple):
    """The state of all replicas during a run; arrays have the replicas along the first axis."""

    state: State
    lengths: Any
    thresholds: Any  # one on the risk and one on the overlaps, for each replica
    words: Any  # two words of a key for each replica
    crossing: Any  # for each threshold the first step at which it was crossed, -1 before


@eqx.filter_jit
def advance_xla(setting: Setting, watch: Watch, run: RunState, first: Numbers, last: Numbers) -> RunState:
    """Advance all replicas from one step to another by XLA, for any batch size and width."""

    def one(run: RunState, step: Array) -> RunState:
        key, count = (run.words[0], run.words[1]), counter(step)
        if setting.batch == 1:
            drawn = draw(setting, key, jnp.uint32(0), count)
            state = single_step(setting, run.state, run.lengths, drawn)
        elif setting.training.is_fresh:
            state = _batch(setting, run, key, count)
        else:
            state = _batch_again(setting, run, key, count)
        at = (step + 1).astype(jnp.float64)
        return run._replace(state=state, crossing=crossed(setting, watch, state, run.thresholds, run.crossing, at))

    # As many replicas run at once as keep their samples within the memory of one large batch.
    width = max(1, SAMPLES // min(setting.batch, _block_size()))

    def every(step: Array, run: RunState) -> RunState:
        return jax.lax.map(lambda replica: one(replica, step), run, batch_size=min(width, len(run.crossing)))

    return jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), every, run)


def _block_size() -> int:
    return BLOCK if jax.default_backend() == "cpu" else GPU_BLOCK


def _batch_again(setting: Setting, run: RunState, key: Any, count: Any) -> State:
    """One step on a batch whose samples are used more than once, so that all of them are kept."""
    index = jnp.arange(setting.batch, dtype=jnp.uint32)
    drawn = jax.vmap(lambda i: draw(setting, key, i, count, with_rest=False))(index)
    G = jnp.concatenate([drawn.g, bartlett_factor(setting, key, count)], axis=1)
    return several_steps(setting, run.state, run.lengths, drawn.g_star, G, drawn.xi)


def _batch(setting: Setting, run: RunState, key: Any, count: Any) -> State:
    """One step on a batch, summed in blocks, so that memory does not grow with the batch."""
    p, k, r, n = setting.problem.p, setting.problem.k, setting.outside, setting.batch

    def of(index: Array) -> tuple[Array, Draw, Array]:
        drawn = draw(setting, key, index, count, with_rest=False)
        pull, da = forces(setting, run.state, drawn.g_star, drawn.g, drawn.xi)
        return pull, drawn, da

    def sums(first: Array, size: int) -> tuple[Sums, Array]:
        index = first.astype(jnp.uint32) + jnp.arange(size, dtype=jnp.uint32)
        A, drawn, da = jax.vmap(of)(index)
        inside = jnp.where(first + jnp.arange(size) < n, 1.0, 0.0)[:, None]
        A, da = A * inside, da * inside
        return Sums(A.T @ A, A.T @ drawn.g, A.T @ drawn.g_star, jnp.sum(da, axis=0)), A

    block_size = _block_size()
    if n <= block_size:
        total, A = sums(jnp.asarray(0), n)
    else:
        zero = Sums(jnp.zeros((p, p)), jnp.zeros((p, r)), jnp.zeros((p, k)), jnp.zeros(p))
        total = jax.lax.fori_loop(
            0,
            -(-n // block_size),
            lambda block, total: jax.tree.map(jnp.add, total, sums(block * block_size, block_size)[0]),
            zero,
        )
        A = None
    # The coefficients of few samples are a factor of their Gram matrix; for many, the Cholesky factor is smaller.
    R = A if A is not None and n <= p else cholesky(total.gram).T
    factor = bartlett_factor(setting, key, count)
    return batch_step(setting, run.state, run.lengths, total, factor, R)


def written_out(setting: Setting, watch: Watch) -> WrittenOut:
    """One step as a program on scalars; raises `Unsupported` where that is impossible."""
    word = jax.ShapeDtypeStruct((), jnp.uint32)

    def draws(k0: Any, k1: Any, low: Any, high: Any) -> tuple[Draw, Any]:
        at = low.astype(jnp.float64) + 2.0**32 * high.astype(jnp.float64) + 1.0
        return draw(setting, (k0, k1), jnp.uint32(0), (low, high)), at

    drawn, at = jax.eval_shape(draws, word, word, word, word)
    p, k = setting.problem.p, setting.problem.k
    real = partial(jax.ShapeDtypeStruct, dtype=jnp.float64)
    state: Any = State(*(real(shape) for shape in ((setting.rows, k), (setting.rows, setting.outside), (p,))))  # pyright: ignore[reportArgumentType]

    def step(state: State, crossing: Any, lengths: Any, thresholds: Any, drawn: Draw, at: Any) -> tuple[State, Any]:
        state = single_step(setting, state, lengths, drawn)
        return state, crossed(setting, watch, state, thresholds, crossing, at)

    size = watch.size(k)
    program = scalarize(step, state, real((size,)), real((p,)), real((2,)), drawn, at)
    numbers = sum(int(np.prod(leaf.shape)) for leaf in state) + size
    return WrittenOut(scalarize(draws, word, word, word, word), program, numbers, p + 2)


def advance_written(loop: Loop, run: RunState, first: Numbers, last: Numbers) -> RunState:
    """Advance all replicas by the loop of a program on scalars."""
    moving = (*run.state, run.crossing)
    rows = loop(as_rows(moving), as_rows((run.lengths, run.thresholds)), as_rows((run.words,)), first, last)
    *state, crossing = from_rows(moving, rows)
    return run._replace(state=State(*state), crossing=crossing)
