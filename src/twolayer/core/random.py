"""Random keys: one per replica, one fold per purpose, so that no stream depends on how many others there are."""

import contextlib
import enum
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Int, Key


class Purpose(enum.IntEnum):
    """What random numbers are for. The values are part of the promise "same seed, same numbers": never reuse one."""

    SECOND_LAYER = 1
    START = 2
    FRAME = 3
    DATA = 4
    LABEL_NOISE = 5
    DATASET = 6
    OVERLAPS = 7
    PARTICLES = 12
    PATHS = 16
    CONTINUATION = 20


@contextlib.contextmanager
def fixed_generator() -> Iterator[None]:
    """Draw random numbers inside this block in one way, whatever the global settings of JAX are.

    A key of ``seed_key`` fixes its generator, but not how the generator fills an array: JAX decides that from
    ``jax_threefry_partitionable`` when a draw is compiled.
    """
    with jax.threefry_partitionable(True):
        yield


def seed_key(seed: int) -> Key[Array, ""]:
    """The key of a seed: that of ``jax.random.key(seed)`` under the default settings of JAX, and under all others.

    The words of the key are written down here, since the library's function follows ``jax_default_prng_impl`` and
    ``jax_random_seed_offset``.
    """
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], dtype=np.uint32)
    return jax.random.wrap_key_data(jax.numpy.asarray(words), impl="threefry2x32")


def replica_key(seed: int, replica: int | Int[Array, ""]) -> Key[Array, ""]:
    """The key from which everything random in one replica comes."""
    return jax.random.fold_in(seed_key(seed), replica)


def purpose_key(key: Key[Array, ""], purpose: Purpose) -> Key[Array, ""]:
    """The stream for one purpose within a replica."""
    return jax.random.fold_in(key, int(purpose))
