"""Run many steps of a program on scalars for all replicas: by XLA, one GPU kernel, or native code.

A step maps a replica's state, its constants, and random numbers to its next state; the random numbers are a function of
two words of a key and of the step's number. The numbers of all replicas are lists of arrays, one array for each number
of a replica.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.native import Kernel, compiled, source
from twolayer.compiler.scalar import Program, Unsupported
from twolayer.core.errors import NotApplicable
from twolayer.core.machine import cores
from twolayer.core.types import Numbers

# Operations of a step beyond which compiling it takes longer than it saves.
MAX_OPS = 6000
# Replicas in one block of a GPU kernel, and warps among which they are divided.
LANES, WARPS = 128, 4


class WrittenOut(NamedTuple):
    """A step as two programs on scalars: its random numbers, and the next state given them."""

    draws: Program  # random numbers, given two words of a key and two of the step's number
    step: Program  # next state, given the state, the constants of a replica, and the random numbers
    state: int  # how many numbers the state has
    fixed: int  # how many constants a replica has


def counter(step: Array) -> tuple[Any, Any]:
    """Return the number of a step as two words."""
    return (step & 0xFFFFFFFF).astype(jnp.uint32), (step >> 32).astype(jnp.uint32)


@eqx.filter_jit
def by_vectors(
    program: WrittenOut, state: list[Any], fixed: list[Any], words: list[Any], first: Numbers, last: Numbers
) -> list[Array]:
    """Return the state after the steps from ``first`` to ``last``, by XLA: elementwise operations on any device."""

    def body(step: Array, flat: list[Array]) -> list[Array]:
        low, high = (jnp.full(words[0].shape, word) for word in counter(step))
        numbers = program.draws.run([*words, low, high])
        return program.step.run([*flat, *fixed, *numbers])

    return jax.lax.fori_loop(jnp.asarray(first), jnp.asarray(last), body, state)


@eqx.filter_jit
def by_kernel(
    program: WrittenOut, state: list[Any], fixed: list[Any], words: list[Any], first: Numbers, last: Numbers
) -> list[Array]:
    """Return the state after the steps from ``first`` to ``last``, by one GPU kernel that keeps it in registers."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    replicas = len(state[0])
    members = np.minimum(np.arange(-(-replicas // LANES) * LANES), replicas - 1)
    tables = [jnp.stack(rows)[:, members] for rows in (state, fixed, words)]
    span = jnp.stack([jnp.asarray(first, jnp.int64), jnp.asarray(last, jnp.int64)])

    def kernel(span_ref: Any, state_ref: Any, fixed_ref: Any, words_ref: Any, out_ref: Any) -> None:
        constants = [fixed_ref[n, :] for n in range(program.fixed)]
        keys = [words_ref[n, :] for n in range(2)]

        def body(step: Array, flat: list[Array]) -> list[Array]:
            low, high = (jnp.full((LANES,), word) for word in counter(step))
            numbers = program.draws.run([*keys, low, high])
            return program.step.run([*flat, *constants, *numbers])

        start = [state_ref[n, :] for n in range(program.state)]
        for n, row in enumerate(jax.lax.fori_loop(span_ref[0], span_ref[1], body, start)):
            out_ref[n, :] = row

    def columns(rows: int) -> Any:
        return pallas.BlockSpec((rows, LANES), lambda i: (0, i))

    advanced = pallas.pallas_call(
        kernel,
        grid=(len(members) // LANES,),
        in_specs=[pallas.BlockSpec((2,), lambda i: (0,)), columns(program.state), columns(program.fixed), columns(2)],
        out_specs=columns(program.state),
        out_shape=jax.ShapeDtypeStruct(tables[0].shape, tables[0].dtype),
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
    )(span, *tables)
    return list(advanced[:, :replicas])


class Native(NamedTuple):
    """A program with its compiled native kernel."""

    program: WrittenOut
    kernel: Kernel


def native(program: WrittenOut, replicas: int) -> Native:
    """Compile a program to native code for ``replicas`` replicas."""
    return Native(program, compiled(program.draws, program.step, program.state, program.fixed, replicas))


def by_native(
    compiled_program: Native, state: list[Any], fixed: list[Any], words: list[Any], first: Numbers, last: Numbers
) -> np.ndarray:
    """Return the state after the steps from ``first`` to ``last``, by native code on all available cores."""
    program, kernel = compiled_program
    replicas, width = len(state[0]), kernel.width
    blocks = -(-replicas // width)
    members = np.minimum(np.arange(blocks * width), replicas - 1)  # the last block is filled up with the last replica

    def arranged(rows: list[Any], dtype: Any) -> np.ndarray:
        table = np.stack([np.asarray(row, dtype) for row in rows])[:, members]
        return np.ascontiguousarray(table.reshape(len(rows), blocks, width).transpose(1, 0, 2)).reshape(blocks, -1)

    states = arranged(state, np.float64)
    numbers, keys = arranged(fixed, np.float64), arranged(words, np.uint32)

    def advance(block: int) -> None:
        kernel.advance(states[block], numbers[block], keys[block], kernel.constants, int(first), int(last))

    on_all_cores(advance, blocks)
    return states.reshape(blocks, program.state, width).transpose(1, 0, 2).reshape(program.state, -1)[:, :replicas]


def on_all_cores(work: Callable[[int], None], number: int) -> None:
    """Do the numbered pieces of work, which release the GIL, on all cores that this process may use."""
    workers = min(number, cores())
    if workers == 1:
        for piece in range(number):
            work(piece)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(number)))


# ------------------------------------------------------------------------------------------------ choice of a backend


def backend_here(wanted: str) -> str:
    """Return how programs on scalars run: ``"native"``, by one ``"GPU kernel"``, or as vectors by ``"xla"``.

    Native code serves a CPU, and every machine where it is ``wanted``.
    """
    if wanted == "native" or jax.default_backend() == "cpu":
        return "native"
    return "GPU kernel" if "NVIDIA" in jax.devices()[0].device_kind else "xla"


def written(wanted: str, write: Callable[[], WrittenOut]) -> WrittenOut | None:
    """Return a step as programs on scalars, or None where it is computed on arrays by XLA.

    A step that cannot be written out raises `NotApplicable` where native code is ``wanted``.
    """
    if wanted == "xla":
        return None
    try:
        program = write()
        if len(program.step.ops) > MAX_OPS:
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
    return partial(by_kernel if backend == "GPU kernel" else by_vectors, program), backend


Tree = TypeVar("Tree", bound=tuple[Any, ...])


def as_rows(tree: tuple[Any, ...]) -> list[Any]:
    """Return the entries of a tuple of arrays, each entry as one array over replicas."""
    if jax.default_backend() == "cpu":  # to split an array of JAX is a program for each of its shapes
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
