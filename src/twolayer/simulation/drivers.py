"""What carries replicas of the overlap process from one step to another: XLA, one GPU kernel, or native code."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.compiler.loops import Native, WrittenOut, by_kernel, by_native, by_vectors, counter
from twolayer.compiler.scalar import Unsupported, scalarize
from twolayer.core.linalg import cholesky
from twolayer.expectation import Chosen
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

MAX_OPS = 6000
# Samples of a batch held at once: what fits the caches of a core, and what fills a GPU.
BLOCK, GPU_BLOCK = 2**13, 2**22
# Samples of all replicas that are advanced at once.
SAMPLES = 2**22


class Watch(eqx.Module):
    """What is watched for at every step: the excess risk, and the overlap with each target direction."""

    risk: Chosen | None
    overlaps: bool = eqx.field(static=True)

    def size(self, setting: Setting) -> int:
        """The number of thresholds that a replica may cross; one that is never crossed when nothing is watched."""
        return max(1, int(self.risk is not None) + (setting.problem.k if self.overlaps else 0))

    def crossed(
        self, setting: Setting, state: State, thresholds: Float[Array, " two"], crossing: Float[Array, " n"], at: Any
    ) -> Float[Array, " n"]:
        """The steps at which thresholds were first crossed: ``at`` for those that are crossed now."""
        if self.risk is None and not self.overlaps:
            return crossing
        overlaps = overlaps_of(setting, state)
        reached = []
        if self.risk is not None:
            risk = self.risk.parts(setting.problem, overlaps, ("excess_risk",))["excess_risk"]
            reached.append((thresholds[0] - risk)[None])
        if self.overlaps:  # squares, so that no root is taken at every step
            lengths = jnp.diagonal(overlaps.Q)[:, None] * jnp.diagonal(overlaps.P)[None, :]
            reached.append(jnp.max(overlaps.M * overlaps.M - thresholds[1] * thresholds[1] * lengths, axis=0))
        return jnp.where((crossing < 0.0) & (jnp.concatenate(reached) >= 0.0), at, crossing)


class Run(NamedTuple):
    """Replicas in the middle of a run; arrays with the replicas along the first axis."""

    state: State
    lengths: Any
    thresholds: Any  # on the risk, and on the overlaps
    words: Any  # two words of a key for each replica
    crossing: Any  # for each threshold the first step at which it was crossed, -1 before


Advance = Callable[[Run, Any, Any], Run]


@eqx.filter_jit
def advance_xla(made: Setting, watch: Watch, run: Run, first: Any, last: Any) -> Run:
    """All replicas from one step to another, by XLA: any batch size and width."""

    def one(run: Run, step: Array) -> Run:
        key, count = (run.words[0], run.words[1]), counter(step)
        if made.batch == 1:
            drawn = draw(made, key, jnp.uint32(0), count)
            state = single_step(made, run.state, run.lengths, drawn)
        elif made.training.is_fresh:
            state = _batch(made, run, key, count)
        else:
            state = _batch_again(made, run, key, count)
        at = (step + 1).astype(jnp.float64)
        return run._replace(state=state, crossing=watch.crossed(made, state, run.thresholds, run.crossing, at))

    # As many replicas at once as keep their samples within the memory for one large batch.
    width = max(1, SAMPLES // min(made.batch, _block_size()))

    def every(step: Array, run: Run) -> Run:
        return jax.lax.map(lambda replica: one(replica, step), run, batch_size=min(width, len(run.crossing)))

    return jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), every, run)


def _block_size() -> int:
    return BLOCK if jax.default_backend() == "cpu" else GPU_BLOCK


def _batch_again(made: Setting, run: Run, key: Any, count: Any) -> State:
    """One step on a batch whose samples are used more than once: all of them are held."""
    index = jnp.arange(made.batch, dtype=jnp.uint32)
    drawn = jax.vmap(lambda i: draw(made, key, i, count, with_rest=False))(index)
    G = jnp.concatenate([drawn.g, bartlett_factor(made, key, count)], axis=1)
    return several_steps(made, run.state, run.lengths, drawn.g_star, G, drawn.xi)


def _batch(made: Setting, run: Run, key: Any, count: Any) -> State:
    """One step on a batch, summed in blocks: memory does not grow with the batch."""
    p, k, r, n = made.problem.p, made.problem.k, made.outside, made.batch

    def of(index: Array) -> tuple[Array, Draw, Array]:
        drawn = draw(made, key, index, count, with_rest=False)
        pull, da = forces(made, run.state, drawn.g_star, drawn.g, drawn.xi)
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
    # Few samples are their own triangular factor; of many only the Gram matrix matters.
    R = A if A is not None and n <= p else cholesky(total.gram).T
    factor = bartlett_factor(made, key, count)
    return batch_step(made, run.state, run.lengths, total, factor, R)


def written_out(made: Setting, watch: Watch) -> WrittenOut:
    """The step of a setting on scalars; `Unsupported` where it cannot be written out, or would be too long."""
    word = jax.ShapeDtypeStruct((), jnp.uint32)

    def draws(k0: Any, k1: Any, low: Any, high: Any) -> tuple[Draw, Any]:
        at = low.astype(jnp.float64) + 2.0**32 * high.astype(jnp.float64) + 1.0
        return draw(made, (k0, k1), jnp.uint32(0), (low, high)), at

    drawn, at = jax.eval_shape(draws, word, word, word, word)
    p, k = made.problem.p, made.problem.k
    rows = 2 * p if made.training.has_momentum else p
    real = partial(jax.ShapeDtypeStruct, dtype=jnp.float64)
    state: Any = State(*(real(shape) for shape in ((rows, k), (rows, made.outside), (p,))))  # pyright: ignore[reportArgumentType]

    def step(state: State, crossing: Any, lengths: Any, thresholds: Any, drawn: Draw, at: Any) -> tuple[State, Any]:
        state = single_step(made, state, lengths, drawn)
        return state, watch.crossed(made, state, thresholds, crossing, at)

    size = watch.size(made)
    program = scalarize(step, state, real((size,)), real((p,)), real((2,)), drawn, at)
    if len(program.ops) > MAX_OPS:
        raise Unsupported(f"{len(program.ops)} operations")
    numbers = sum(int(np.prod(leaf.shape)) for leaf in state) + size
    return WrittenOut(scalarize(draws, word, word, word, word), program, numbers, p + 2)


def _flat(run: Run) -> list[Any]:
    """The numbers of the state, one array of replicas each: those of M, L and a, then the crossing steps."""
    replicas = len(run.crossing)
    return [row for part in (*run.state, run.crossing) for row in part.reshape(replicas, -1).T]


def _unflat(run: Run, rows: Any) -> Run:
    stack = jnp.stack if isinstance(rows, list) else np.stack
    found, place = [], 0
    for part in (*run.state, run.crossing):
        size = int(np.prod(part.shape[1:]))
        found.append(stack([*rows[place : place + size]], axis=1).reshape(part.shape) if size else part)
        place += size
    return run._replace(state=State(*found[:3]), crossing=found[3])


def _fixed(run: Run) -> list[Any]:
    return [*run.lengths.T, *run.thresholds.T]


def advance_vector(program: WrittenOut, run: Run, first: Any, last: Any) -> Run:
    """All replicas by the programs on scalars, each number a vector of replicas: elementwise work for a GPU."""
    return _unflat(run, by_vectors(program, _flat(run), _fixed(run), list(run.words.T), first, last))


def advance_kernel(program: WrittenOut, run: Run, first: Any, last: Any) -> Run:
    """The same in one GPU kernel for many steps: the state stays in registers."""
    return _unflat(run, by_kernel(program, _flat(run), _fixed(run), list(run.words.T), first, last))


def advance_native(made: Native, run: Run, first: Any, last: Any) -> Run:
    """All replicas by native code, blocks of replicas over the cores that this process may use."""
    return _unflat(run, by_native(made, _flat(run), _fixed(run), list(run.words.T), first, last))
