"""Apply a function to many rows in blocks of one shape: one compiled program serves any number of rows.

The numbers of a row do not depend on the other rows, nor on how many there are. A program for all rows at once would be
compiled again for every number of them, and might round a row differently.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from twolayer.compiler.loops import on_all_cores
from twolayer.core.precision import double
from twolayer.core.programs import QuickProgram

# Rows of a block on a CPU and on a GPU, and blocks of one call.
WIDTH, GPU_WIDTH = 32, 1024
BLOCKS = 64


def in_blocks(function: Callable[..., PyTree], common: PyTree, rows: PyTree, blocks: int = BLOCKS) -> PyTree:
    """Return ``function(common, row)`` for all rows, as NumPy arrays with the rows along the first axis.

    Parameters
    ----------
    function
        A function at the top of a module, since programs are kept by its identity.
    common
        Its first argument, the same for all rows.
    rows
        A pytree of NumPy arrays with the rows along the first axis.
    blocks
        How many blocks are computed by one call; calls are divided among the cores.
    """
    width = WIDTH if jax.default_backend() == "cpu" else GPU_WIDTH
    number = len(jax.tree.leaves(rows)[0])
    together = blocks * width
    calls = range(0, number, together)
    results: list[Any] = [None] * len(calls)

    def call(piece: int) -> None:
        # JAX keeps its settings for each thread.
        with double():
            results[piece] = of_call(piece)

    def of_call(piece: int) -> Any:
        first = calls[piece]
        here = min(together, number - first)
        # What fills up the last block, and the blocks that are not computed, is of no importance.
        members = np.minimum(np.arange(first, first + together), number - 1)

        def arranged(x: Any) -> np.ndarray:
            x = np.asarray(x)
            part = x[first : first + together] if here == together else x[members]
            return part.reshape(blocks, width, *x.shape[1:])

        result = _some_blocks(function, common, jax.tree.map(arranged, rows), np.asarray(-(-here // width)))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:here], jax.device_get(result))

    call(0)  # by one thread alone, so that the program is compiled once
    on_all_cores(lambda piece: call(piece + 1), len(calls) - 1)
    return jax.tree.map(lambda *parts: np.concatenate(parts), *results)


@QuickProgram
def _some_blocks(function: Callable[..., Any], common: PyTree, rows: PyTree, number: Any) -> Any:
    def of_block(n: Any) -> Any:
        return jax.vmap(partial(function, common))(jax.tree.map(lambda x: x[n], rows))

    shapes = jax.eval_shape(of_block, 0)
    blocks = len(jax.tree.leaves(rows)[0])
    empty = jax.tree.map(lambda x: jnp.zeros((blocks, *x.shape), x.dtype), shapes)
    # The number of blocks is not known to the compiler, which would treat few of them differently.
    return jax.lax.fori_loop(
        0, number, lambda n, table: jax.tree.map(lambda t, x: t.at[n].set(x), table, of_block(n)), empty
    )


def as_key(tree: PyTree) -> tuple[Hashable, ...]:
    """Return a value that is equal for trees of one structure with equal leaves; arrays are equal by their numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return (structure, *(leaf_key(leaf) for leaf in leaves))


def if_hashable(key: tuple[Hashable, ...]) -> Hashable | None:
    """Return the key, or None where a function of the user, such as a target, is a part of it that has no hash."""
    try:
        hash(key)
    except TypeError:
        return None
    return key


def leaf_key(leaf: object) -> Hashable:
    """Return a value that is equal for equal leaves."""
    if isinstance(leaf, np.ndarray | jax.Array):
        array = np.asarray(leaf)
        return (array.shape, array.dtype.str, array.tobytes())
    return cast(Hashable, leaf)


def alike(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the places of equal keys, in the order in which they first appear."""
    groups: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    return list(groups.values())
