"""The description that follows the overlap process, and the drivers that run it: native code, or XLA."""

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.core.errors import NotApplicable
from twolayer.core.fields import as_data, choice, static
from twolayer.core.pacing import strides
from twolayer.core.random import Purpose, purpose_key
from twolayer.core.registry import register
from twolayer.core.scalar import Program, Unsupported, scalarize
from twolayer.description import AbstractDescription, Applies, Exactness, Plan, Record, Status, blanked, is_alive
from twolayer.expectation import Auto, Chosen, choose, risk_along
from twolayer.problem import Gaussian, Overlaps, Problem
from twolayer.simulation.overlap import (
    Draw,
    Setting,
    State,
    Sums,
    bartlett_factor,
    batch_step,
    cholesky,
    draw,
    forces,
    overlaps_of,
    setting,
    single_step,
    start,
)
from twolayer.training import SGD

# Beyond this width a step written out in scalars takes longer to compile than it saves.
MAX_WIDTH = 8
MAX_OPS = 6000
# Samples of a batch held at once: what fits the caches of a core, and what fills a GPU.
BLOCK, GPU_BLOCK = 2**13, 2**22
# Samples of all replicas that are advanced at once.
SAMPLES = 2**22


class Run(NamedTuple):
    """Replicas in the middle of a run; arrays with the replicas along the first axis."""

    state: State
    lengths: Any
    words: Any  # two words of a key for each replica
    crossing: Any  # the first step at which the risk was below the threshold, -1 before


Advance = Callable[[Run, Any, Any], Run]


def watched_step(
    setting: Setting,
    chosen: Chosen | None,
    threshold: Any,
    state: State,
    lengths: Any,
    crossing: Any,
    drawn: Draw,
    at: Any,
) -> tuple[State, Any]:
    """One step on one sample, and whether the risk has fallen to the threshold after it; ``at`` counts steps."""
    state = single_step(setting, state, lengths, drawn)
    return state, _crossed(setting, chosen, threshold, state, crossing, at)


def _crossed(setting: Setting, chosen: Chosen | None, threshold: Any, state: State, crossing: Any, at: Any) -> Any:
    if chosen is None:
        return crossing
    risk = chosen.parts(setting.problem, overlaps_of(setting, state), ("excess_risk",))["excess_risk"]
    return jnp.where((crossing < 0.0) & (risk <= threshold), at, crossing)


@register
class OverlapSGD(AbstractDescription):
    r"""SGD on fresh Gaussian data through its overlaps, exactly in law at any finite d.

    .. math:: M^+ = M + A^T \Lambda^\star, \qquad
              Q^{\perp +} = (L + A^T G)(L + A^T G)^T + A^T S A, \qquad S \sim \mathrm{Wishart}(1, d - k - p)

    with the coefficients A of the batch, its fields :math:`\Lambda^\star`, its coordinates G in the student's
    directions, and :math:`Q^\perp = L L^T` kept as a triangular factor, in double precision. No vector of size d is
    ever held, and the cost of a step does not depend on d.

    Parameters
    ----------
    backend
        ``"native"`` compiles the step to machine code (one sample a step, width up to eight, numba installed),
        ``"xla"`` runs anywhere, GPUs included; ``"auto"`` takes native code on a CPU where it can.
    """

    backend: str = static(choice("backend", ("auto", "native", "xla")), default="auto")

    @property
    def references(self) -> tuple[str, ...]:
        return ("arnaboldi2024batch",)

    def applies(self, problem: Problem, training: SGD) -> Applies:
        def no(reason: str) -> Applies:
            return Applies(False, Exactness.EXACT, reason)

        if not isinstance(problem.inputs, Gaussian):
            return no("it describes Gaussian inputs, but `problem.inputs` is a data set; `DirectSGD` covers it.")
        if not training.is_fresh:
            return no(
                f"it describes fresh batches, but `training.reuse` is {training.reuse}; `DirectSGD` covers reuse."
            )
        if problem.d <= problem.k:
            return no(f"it needs more dimensions than target fields, but d = {problem.d} and k = {problem.k}.")
        if training.samples_per_step(problem) >= 2**32 - 1:
            return no("a batch may have 2^32 samples at most.")
        try:
            Auto().assign(problem, ("excess_risk",))
        except NotApplicable as refusal:
            return no(str(refusal))
        return Applies(True, Exactness.EXACT, "the law of SGD at any d, at a cost free of d")

    def run(self, problem: Problem, training: SGD, plan: Plan) -> Record:
        problem, training = as_data((problem, training))
        made = setting(problem, training)
        chosen = choose(problem, ("excess_risk",))
        watch = chosen.variants()[0] if plan.risk_threshold is not None else None
        advance, engine = self._driver(made, watch, plan)
        run = _begin(made, plan.starts, plan.keys, plan.risk_threshold, watch)
        saved = [_measured(made, run)]
        interrupted = False
        total = int(plan.steps[-1])
        try:
            for first, last, is_saved in strides(plan.steps):
                run = jax.block_until_ready(advance(run, np.asarray(first), np.asarray(last)))
                plan.progress(last / total)
                if is_saved:
                    saved.append(_measured(made, run))
        except KeyboardInterrupt:
            interrupted = True
            if len(saved) < 2:
                raise
        return self._record(problem, training, plan, run, saved, chosen, engine, interrupted)

    def _driver(self, made: Setting, watch: Chosen | None, plan: Plan) -> tuple[Advance, str]:
        on_cpu = jax.default_backend() == "cpu"
        can_write_out = made.batch == 1 and made.problem.p <= MAX_WIDTH
        program = None
        if can_write_out:
            try:
                program = _written_out(made, watch, plan.risk_threshold)
            except Unsupported as missing:
                if self.backend == "native":
                    raise NotApplicable(f"No native code for this step: it contains `{missing}`.") from None
        has_numba = importlib.util.find_spec("numba") is not None
        if self.backend == "native" and (program is None or not has_numba):
            raise NotApplicable("Native code needs one sample a step, width up to eight, and numba installed.")
        if program is not None and has_numba and (self.backend == "native" or (on_cpu and self.backend == "auto")):
            return partial(_advance_native, _native(program, plan.replicas)), "native"
        if program is not None and not on_cpu:
            is_cuda = "NVIDIA" in jax.devices()[0].device_kind
            return partial(_advance_kernel if is_cuda else _advance_vector, program), "GPU kernel" if is_cuda else "xla"
        return partial(_advance_xla, made, watch, np.asarray(plan.risk_threshold or 0.0)), "xla"

    def _record(
        self,
        problem: Problem,
        training: SGD,
        plan: Plan,
        run: Run,
        saved: list[Any],
        chosen: Chosen,
        engine: str,
        interrupted: bool,
    ) -> Record:
        Q, M, a = (np.stack([np.asarray(getattr(one, name)) for one in saved], axis=1) for name in ("Q", "M", "a"))
        lost = ~np.logical_and.accumulate(is_alive(Q, a, plan.limit), axis=1)
        # What an interruption left out is missing, not diverged.
        missing = len(plan.steps) - len(saved)
        Q, M, a = (
            np.pad(blanked(lost, x), [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2), constant_values=np.nan)
            for x in (Q, M, a)
        )
        risk, error = risk_along(chosen, problem, Q, M, plan.starts.P, a)
        ended = Status.UNFINISHED if missing else Status.DONE
        status = np.where(lost.any(axis=1), Status.DIVERGED, ended).astype(np.int8)
        steps = np.asarray(run.crossing)
        crossing = np.where(steps >= 0.0, training.clock(problem).time(steps), np.nan)
        return Record(
            Q, M, a, risk, error, np.zeros_like(risk), status, crossing, f"{chosen.name}; steps: {engine}", interrupted
        )


@eqx.filter_jit
def _begin(made: Setting, starts: Overlaps, keys: Array, threshold: Any, watch: Chosen | None) -> Run:
    def one(Q: Array, M: Array, a: Array, key: Array) -> Run:
        state = start(made, Overlaps(Q, M, starts.P, a))
        words = jax.random.key_data(purpose_key(key, Purpose.OVERLAPS))
        crossing = _crossed(made, watch, threshold, state, jnp.asarray(-1.0), 0.0)
        return Run(state, jnp.sqrt(jnp.diagonal(Q)), words.astype(jnp.uint32), crossing)

    return jax.vmap(one)(starts.Q, starts.M, starts.a, keys)


class _Saved(NamedTuple):
    """The overlaps of all replicas at a save point."""

    Q: Any
    M: Any
    a: Any


@eqx.filter_jit
def _measured(made: Setting, run: Run) -> _Saved:
    def one(state: State) -> _Saved:
        overlaps = overlaps_of(made, state)
        return _Saved(overlaps.Q, overlaps.M, overlaps.a)

    return jax.vmap(one)(run.state)


def _counter(step: Any) -> tuple[Any, Any]:
    """The number of a step as two words."""
    return (step & 0xFFFFFFFF).astype(jnp.uint32), (step >> 32).astype(jnp.uint32)


@eqx.filter_jit
def _advance_xla(made: Setting, watch: Chosen | None, threshold: Any, run: Run, first: Any, last: Any) -> Run:
    """All replicas from one step to another, by XLA: any batch size and width."""

    def one(run: Run, step: Array) -> Run:
        key, counter = (run.words[0], run.words[1]), _counter(step)
        if made.batch == 1:
            drawn = draw(made, key, jnp.uint32(0), counter)
            state = single_step(made, run.state, run.lengths, drawn)
        else:
            state = _batch(made, run, key, counter)
        crossing = _crossed(made, watch, threshold, state, run.crossing, (step + 1).astype(jnp.float64))
        return Run(state, run.lengths, run.words, crossing)

    # As many replicas at once as keep their samples within the memory for one large batch.
    width = max(1, SAMPLES // min(made.batch, _block_size()))

    def every(step: Array, run: Run) -> Run:
        return jax.lax.map(lambda replica: one(replica, step), run, batch_size=min(width, len(run.crossing)))

    return jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), every, run)


def _block_size() -> int:
    return BLOCK if jax.default_backend() == "cpu" else GPU_BLOCK


def _batch(made: Setting, run: Run, key: Any, counter: Any) -> State:
    """One step on a batch, summed in blocks: memory does not grow with the batch."""
    p, k, r, n = made.problem.p, made.problem.k, made.outside, made.batch

    def of(index: Array) -> tuple[Array, Draw, Array]:
        drawn = draw(made, key, index, counter, with_rest=False)
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
    factor = bartlett_factor(made, key, counter)
    return batch_step(made, run.state, run.lengths, total, factor, R)


class _WrittenOut(NamedTuple):
    """A step as programs on scalars: the random numbers of a step, and the step given them."""

    draws: Program
    step: Program
    state: int  # numbers of the state, the crossing step among them
    fixed: int


def _written_out(made: Setting, watch: Chosen | None, threshold: Any) -> _WrittenOut:
    word = jax.ShapeDtypeStruct((), jnp.uint32)

    def draws(k0: Any, k1: Any, low: Any, high: Any) -> tuple[Draw, Any]:
        at = low.astype(jnp.float64) + 2.0**32 * high.astype(jnp.float64) + 1.0
        return draw(made, (k0, k1), jnp.uint32(0), (low, high)), at

    drawn, at = jax.eval_shape(draws, word, word, word, word)
    p, k = made.problem.p, made.problem.k
    rows = 2 * p if made.training.has_momentum else p
    real = partial(jax.ShapeDtypeStruct, dtype=jnp.float64)
    state: Any = State(*(real(shape) for shape in ((rows, k), (rows, made.outside), (p,))))  # pyright: ignore[reportArgumentType]

    def step(state: State, crossing: Any, lengths: Any, drawn: Draw, at: Any) -> tuple[State, Any]:
        return watched_step(made, watch, threshold, state, lengths, crossing, drawn, at)

    program = scalarize(step, state, real(()), real((p,)), drawn, at)
    if len(program.ops) > MAX_OPS:
        raise Unsupported(f"{len(program.ops)} operations")
    numbers = sum(int(np.prod(leaf.shape)) for leaf in state) + 1
    return _WrittenOut(scalarize(draws, word, word, word, word), program, numbers, p)


def _flat(run: Run) -> list[Any]:
    """The numbers of the state, one array of replicas each: those of M, L and a, then the crossing step."""
    replicas = len(run.crossing)
    parts = [part.reshape(replicas, -1).T for part in run.state]
    return [*(row for part in parts for row in part), run.crossing]


def _unflat(run: Run, rows: Any) -> Run:
    found, place = [], 0
    for part in run.state:
        size = int(np.prod(part.shape[1:]))
        block = [rows[place + i] for i in range(size)]
        stacked = (
            jnp.stack(block, axis=1) if isinstance(rows, list) else np.stack(block, axis=1) if block else np.zeros(0)
        )
        found.append(stacked.reshape(part.shape))
        place += size
    return Run(State(*found), run.lengths, run.words, rows[place])


@eqx.filter_jit
def _advance_vector(program: _WrittenOut, run: Run, first: Any, last: Any) -> Run:
    """All replicas by the programs on scalars, each number a vector of replicas: elementwise work for a GPU."""
    lengths, words = list(run.lengths.T), list(run.words.T)

    def body(step: Array, flat: list[Array]) -> list[Array]:
        low, high = (jnp.full(words[0].shape, word) for word in _counter(step))
        numbers = program.draws.run([*words, low, high])
        return program.step.run([*flat, *lengths, *numbers])

    flat = jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), body, _flat(run))
    return _unflat(run, flat)


# Replicas in one block of a GPU kernel, and warps that share them.
LANES, WARPS = 128, 4


@eqx.filter_jit
def _advance_kernel(program: _WrittenOut, run: Run, first: Any, last: Any) -> Run:
    """The same in one GPU kernel for many steps: the state stays in registers."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    flat, replicas = _flat(run), len(run.crossing)
    members = np.minimum(np.arange(-(-replicas // LANES) * LANES), replicas - 1)
    state = jnp.stack(flat)[:, members]
    fixed = jnp.asarray(run.lengths).T[:, members]
    words = jnp.asarray(run.words).T[:, members]
    span = jnp.stack([jnp.asarray(first, jnp.int64), jnp.asarray(last, jnp.int64)])

    def kernel(span_ref: Any, state_ref: Any, fixed_ref: Any, words_ref: Any, out_ref: Any) -> None:
        lengths = [fixed_ref[n, :] for n in range(program.fixed)]
        keys = [words_ref[n, :] for n in range(2)]

        def body(step: Array, flat: list[Array]) -> list[Array]:
            low, high = (jnp.full((LANES,), word) for word in _counter(step))
            numbers = program.draws.run([*keys, low, high])
            return program.step.run([*flat, *lengths, *numbers])

        start = [state_ref[n, :] for n in range(program.state)]
        for n, row in enumerate(jax.lax.fori_loop(span_ref[0], span_ref[1], body, start)):
            out_ref[n, :] = row

    def columns(rows: int) -> Any:
        return pallas.BlockSpec((rows, LANES), lambda i: (0, i))

    found = pallas.pallas_call(
        kernel,
        grid=(len(members) // LANES,),
        in_specs=[pallas.BlockSpec((2,), lambda i: (0,)), columns(program.state), columns(program.fixed), columns(2)],
        out_specs=columns(program.state),
        out_shape=jax.ShapeDtypeStruct(state.shape, state.dtype),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
    )(span, state, fixed, words)
    return _unflat(run, list(found[:, :replicas]))


def _native(program: _WrittenOut, replicas: int) -> Any:
    from twolayer.simulation.native import compiled

    return program, compiled(program.draws, program.step, program.state, program.fixed, replicas)


def _advance_native(made: tuple[_WrittenOut, Any], run: Run, first: Any, last: Any) -> Run:
    """All replicas by native code, blocks of replicas over the cores that this process may use."""
    program, kernel = made
    replicas, width = len(run.crossing), kernel.width
    blocks = -(-replicas // width)
    members = np.minimum(np.arange(blocks * width), replicas - 1)  # the last block is filled up with the last replica

    def arranged(rows: list[Any], dtype: Any) -> np.ndarray:
        table = np.stack([np.asarray(row, dtype) for row in rows])[:, members]
        return np.ascontiguousarray(table.reshape(len(rows), blocks, width).transpose(1, 0, 2)).reshape(blocks, -1)

    state = arranged(_flat(run), np.float64)
    lengths, words = arranged(list(run.lengths.T), np.float64), arranged(list(run.words.T), np.uint32)

    def advance(block: int) -> None:
        kernel.advance(state[block], lengths[block], words[block], int(first), int(last))

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if blocks == 1 or cores == 1:
        for block in range(blocks):
            advance(block)
    else:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(advance, range(blocks)))
    rows = state.reshape(blocks, program.state, width).transpose(1, 0, 2).reshape(program.state, -1)[:, :replicas]
    return _unflat(run, rows)
