"""Run many steps of a program on scalars for all replicas: by XLA, one GPU kernel, or native code.

A step maps a replica's state, its constants, and random numbers to its next state; the random numbers are a function of
two words of a key and of the step's number. The numbers of all replicas are lists of arrays, one array for each number
of a replica.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from twolayer.compiler.native import Kernel, compiled, source
from twolayer.compiler.scalar import Program, Unsupported
from twolayer.core.errors import NotApplicable
from twolayer.core.machine import cores
from twolayer.core.programs import KeptProgram
from twolayer.core.types import Numbers

# Operations of a step beyond which compiling it takes longer than it saves.
MAX_OPS = 6000
# Replicas in one block of a GPU kernel, and warps among which they are divided.
LANES, WARPS = 128, 4
# The same for a sum over samples: its terms fill the registers of a thread, and more small blocks than large ones fit.
SUM_LANES, SUM_WARPS = 64, 2
# Blocks among which a sum over samples is divided: many times more than run at once, so that none waits for the last.
MAX_BLOCKS = 2**12


class WrittenOut(NamedTuple):
    """A step as two programs on scalars: its random numbers, and the next state given them."""

    draws: Program  # random numbers, given two words of a key, two of the step's number, and the shared constants
    step: Program  # next state, given the state, the constants of a replica, and the random numbers
    state: int  # how many numbers the state has
    fixed: int  # how many constants a replica has
    shared: int = 0  # how many of these, the last ones, are the same for all replicas of a block and serve ``draws``


def counter(step: Array) -> tuple[Any, Any]:
    """Return the number of a step as two words."""
    return (step & 0xFFFFFFFF).astype(jnp.uint32), (step >> 32).astype(jnp.uint32)


@KeptProgram
def by_vectors(
    program: WrittenOut, state: list[Any], fixed: list[Any], words: list[Any], first: Numbers, last: Numbers
) -> list[Array]:
    """Return the state after the steps from ``first`` to ``last``, by XLA: elementwise operations on any device."""

    def body(step: Array, flat: list[Array]) -> list[Array]:
        low, high = (jnp.full(words[0].shape, word) for word in counter(step))
        numbers = program.draws.run([*words, low, high, *fixed[program.fixed - program.shared :]])
        return program.step.run([*flat, *fixed, *numbers])

    return jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), body, state)


@KeptProgram
def by_kernel(
    program: WrittenOut, state: list[Any], fixed: list[Any], words: list[Any], first: Numbers, last: Numbers
) -> list[Array]:
    """Return the state after the steps from ``first`` to ``last``, by one GPU kernel that keeps it in registers.

    Both may be arrays with a number for each block of replicas.
    """
    from jax.experimental import pallas

    replicas = len(state[0])
    members = np.minimum(np.arange(-(-replicas // LANES) * LANES), replicas - 1)
    tables = [jnp.stack(rows)[:, members] for rows in (state, fixed, words)]
    blocks = len(members) // LANES
    span = jnp.stack([jnp.broadcast_to(jnp.asarray(step, jnp.int64), (blocks,)) for step in (first, last)])

    def kernel(span_ref: Any, state_ref: Any, fixed_ref: Any, words_ref: Any, out_ref: Any) -> None:
        constants = [fixed_ref[n, :] for n in range(program.fixed)]
        keys = [words_ref[n, :] for n in range(2)]

        def body(step: Array, flat: list[Array]) -> list[Array]:
            low, high = (jnp.full((LANES,), word) for word in counter(step))
            numbers = program.draws.run([*keys, low, high, *constants[program.fixed - program.shared :]])
            return program.step.run([*flat, *constants, *numbers])

        start = [state_ref[n, :] for n in range(program.state)]
        for n, row in enumerate(jax.lax.fori_loop(span_ref[0, 0], span_ref[1, 0], body, start)):
            out_ref[n, :] = row

    def columns(rows: int) -> Any:
        return pallas.BlockSpec((rows, LANES), lambda i: (0, i))

    advanced = pallas.pallas_call(
        kernel,
        grid=(blocks,),
        in_specs=[
            pallas.BlockSpec((2, 1), lambda i: (0, i)),
            *(columns(rows) for rows in (program.state, program.fixed, 2)),
        ],
        out_specs=columns(program.state),
        out_shape=jax.ShapeDtypeStruct(tables[0].shape, tables[0].dtype),
        **kernel_options(WARPS),
    )(span, *tables)
    return list(advanced[:, :replicas])


def kernel_options(warps: int) -> dict[str, Any]:
    """Return how Pallas compiles a kernel; on a CPU it is interpreted, slowly, so that it can be tested."""
    from jax.experimental.pallas import triton

    options = triton.CompilerParams(num_warps=warps, num_stages=1)
    return {"compiler_params": options, "interpret": jax.default_backend() == "cpu"}


def sums_by_kernel(program: Program, number: int, words: list[Any], numbers: list[Any]) -> list[Array]:
    """Return the sums of the results of a program over ``number`` samples, by one GPU kernel.

    The program maps the index of a sample, a weight that is zero beyond the last sample, and the given words and
    numbers to the terms of the sums. Only the sums of each block are written to memory.
    """
    from jax.experimental import pallas

    blocks = min(MAX_BLOCKS, -(-number // SUM_LANES))
    tables = [jnp.stack(words), jnp.stack(numbers)]

    def kernel(words_ref: Any, numbers_ref: Any, out_ref: Any) -> None:
        begin = pallas.program_id(0).astype(jnp.int64) * SUM_LANES + jnp.arange(SUM_LANES, dtype=jnp.int64)
        given = [jnp.full((SUM_LANES,), ref[n]) for ref in (words_ref, numbers_ref) for n in range(ref.shape[0])]

        def body(turn: Array, sums: list[Array]) -> list[Array]:
            index = begin + turn.astype(jnp.int64) * (blocks * SUM_LANES)
            terms = program.run([index.astype(jnp.uint32), (index < number).astype(jnp.float64), *given])
            return [total + term for total, term in zip(sums, terms, strict=True)]

        zero = [jnp.zeros((SUM_LANES,))] * len(program.outputs)
        turns = -(-number // (blocks * SUM_LANES))
        for n, total in enumerate(jax.lax.fori_loop(0, turns, body, zero)):
            out_ref[n, 0] = jnp.sum(total)

    results = len(program.outputs)
    sums = pallas.pallas_call(
        kernel,
        grid=(blocks,),
        in_specs=[pallas.BlockSpec(table.shape, lambda i: (0,)) for table in tables],
        out_specs=pallas.BlockSpec((results, 1), lambda i: (0, i)),
        out_shape=jax.ShapeDtypeStruct((results, blocks), jnp.float64),
        **kernel_options(SUM_WARPS),
    )(*tables)
    return list(jnp.sum(sums, axis=1))


class Native(NamedTuple):
    """A program with its compiled native kernel."""

    program: WrittenOut
    kernel: Kernel


def native(program: WrittenOut, replicas: int) -> Native:
    """Compile a program to native code for ``replicas`` replicas."""
    return Native(program, compiled(*program, replicas=replicas))


def by_native(
    compiled_program: Native, state: list[Any], fixed: list[Any], words: list[Any], first: Numbers, last: Numbers
) -> np.ndarray:
    """Return the state after the steps from ``first`` to ``last``, by native code on all available cores."""
    kernel = compiled_program.kernel
    replicas, blocks = len(state[0]), -(-len(state[0]) // kernel.width)
    # The last block is filled up with the last replica.
    members = np.minimum(np.arange(blocks * kernel.width), replicas - 1)

    def table(rows: list[Any], dtype: Any) -> np.ndarray:
        return np.stack([np.asarray(row, dtype) for row in rows], axis=1)[members]

    tables = table(state, np.float64), table(fixed, np.float64), table(words, np.uint32)
    constants = np.tile(kernel.constants, (blocks, 1))
    spans = np.tile([int(first), int(last)], (blocks, 1))
    return native_blocks(kernel, *tables, constants, spans)[:replicas].T


def native_blocks(
    kernel: Kernel, state: np.ndarray, fixed: np.ndarray, words: np.ndarray, constants: np.ndarray, spans: np.ndarray
) -> np.ndarray:
    """Return the state (replicas, numbers) of whole blocks of replicas after the steps of each block's own span.

    ``constants`` (blocks, numbers) and ``spans`` (blocks, 2) have a row for each block.
    """
    width = kernel.width

    def arranged(table: np.ndarray) -> np.ndarray:
        blocks = table.reshape(-1, width, table.shape[1])
        return np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(len(blocks), -1)

    states, numbers, keys = arranged(state), arranged(fixed), arranged(words)
    # The longest come first, so that all cores end at about the same time.
    order = np.argsort(spans[:, 0] - spans[:, 1], kind="stable").tolist()
    firsts, lasts = spans[:, 0].tolist(), spans[:, 1].tolist()

    def advance(piece: int) -> None:
        block = order[piece]
        rows = states[block], numbers[block], keys[block], constants[block]
        kernel.advance(*rows, firsts[block], lasts[block])

    on_all_cores(advance, len(order))
    return states.reshape(-1, state.shape[1], width).transpose(0, 2, 1).reshape(state.shape)


def on_all_cores(work: Callable[[int], None], number: int) -> None:
    """Do the numbered pieces of work, which release the GIL, on all cores that this process may use."""
    pieces = iter(range(number))  # a thread takes the next one, which is atomic

    def take(_: int = 0) -> None:
        for piece in pieces:
            work(piece)

    workers = min(number, cores())
    if workers <= 1:
        take()
    else:
        list(_threads(cores()).map(take, range(workers)))


@cache
def _threads(number: int) -> ThreadPoolExecutor:
    """Threads that stay between calls: a short call would take longer to start them than to compute."""
    return ThreadPoolExecutor(number, thread_name_prefix="twolayer")


# ------------------------------------------------------------------------------------------------ choice of a backend


def backend_here(wanted: str) -> str:
    """Return how programs on scalars run: ``"native"``, by one ``"GPU kernel"``, or as vectors by ``"xla"``.

    Native code serves a CPU, and every machine where it is ``wanted``.
    """
    if wanted == "native" or jax.default_backend() == "cpu":
        return "native"
    return "GPU kernel" if "NVIDIA" in jax.devices()[0].device_kind else "xla"


def written(wanted: str, write: Callable[[], WrittenOut], most: int = MAX_OPS) -> WrittenOut | None:
    """Return a step as programs on scalars, or None where it is computed on arrays by XLA.

    One of more than ``most`` operations counts as one that cannot be written out. A step that cannot be written out
    raises `NotApplicable` where native code is ``wanted``.
    """
    if wanted == "xla":
        return None
    try:
        program = write()
        if len(program.step.ops) > most:
            raise Unsupported(f"{len(program.step.ops)} operations")
        if backend_here(wanted) == "native":  # an operation may have no native form
            source(*program, width=1)
    except Unsupported as missing:
        if wanted == "native":
            raise NotApplicable(f"There is no native code for this step, since it contains `{missing}`.") from None
        return None
    return program


# Advances the rows of the state, given those of the constants, two words of a key, and the first and last step.
Loop = Callable[[list[Any], list[Any], list[Any], Any, Any], Any]


def loop_here(wanted: str, program: WrittenOut, replicas: int) -> tuple[Loop, str]:
    """Return the function that runs a program on this machine, and the name of its backend."""
    backend = backend_here(wanted)
    if backend == "native":
        return partial(by_native, native(program, replicas)), backend
    return eqx.Partial(by_kernel if backend == "GPU kernel" else by_vectors, program), backend


Tree = TypeVar("Tree", bound=tuple[Any, ...])


def as_rows(tree: tuple[Any, ...]) -> list[Any]:
    """Return the entries of a tuple of arrays, each entry as one array over replicas."""
    is_traced = any(isinstance(part, Tracer) for part in tree)
    if jax.default_backend() == "cpu" and not is_traced:  # to split an array of JAX is a program for each of its shapes
        tree = tuple(map(np.asarray, tree))
    return [row for part in tree for row in part.reshape(len(part), -1).T]


def from_rows(tree: Tree, rows: list[Any] | np.ndarray) -> Tree:
    """Return the tuple of arrays with the shapes of ``tree`` from its rows; the inverse of `as_rows`."""
    stack = jnp.stack if isinstance(rows, list) else np.stack
    parts, place = [], 0
    for part in tree:
        size = int(np.prod(part.shape[1:]))
        parts.append(stack([*rows[place : place + size]], axis=1).reshape(part.shape) if size else part)
        place += size
    return tree._make(parts) if hasattr(tree, "_make") else tuple(parts)  # pyright: ignore
