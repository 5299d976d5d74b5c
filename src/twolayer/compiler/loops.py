"""Run many steps of a program on scalars for all replicas: by XLA, one GPU kernel, or native code.

A step maps a replica's state, its constants, and random numbers to its next state; the random numbers are a function of
two words of a key and of the step's number. The numbers of all replicas are lists of arrays, one array for each number
of a replica.
"""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.native import Kernel, compiled
from twolayer.compiler.scalar import Program
from twolayer.core.types import Numbers

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


def has_numba() -> bool:
    """Whether numba is installed, so that programs can be compiled to native code."""
    return importlib.util.find_spec("numba") is not None


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
    constants, keys = arranged(fixed, np.float64), arranged(words, np.uint32)

    def advance(block: int) -> None:
        kernel.advance(states[block], constants[block], keys[block], int(first), int(last))

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if blocks == 1 or cores == 1:
        for block in range(blocks):
            advance(block)
    else:
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(advance, range(blocks)))
    return states.reshape(blocks, program.state, width).transpose(1, 0, 2).reshape(program.state, -1)[:, :replicas]
