"""Random keys: one per replica, one fold per purpose, so that no stream depends on how many others there are."""

import contextlib
import enum
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Int, Key


class Purpose(enum.IntEnum):
    """Purposes of random numbers. The same seed gives the same numbers in every version, so never reuse a value."""

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
    """Draw the same random numbers inside this block under all global settings of JAX.

    A key of ``seed_key`` fixes the generator, but not how the generator fills an array: JAX decides that by
    ``jax_threefry_partitionable`` when a draw is compiled.
    """
    with jax.threefry_partitionable(True):
        yield


def seed_key(seed: int) -> Key[Array, ""]:
    """Return the key that ``jax.random.key(seed)`` gives under the default settings of JAX, under all settings.

    The data of the key are computed here, since JAX's function depends on ``jax_default_prng_impl`` and
    ``jax_random_seed_offset``.
    """
    return key_of(seed_data(seed))


def seed_data(seed: int) -> np.ndarray:
    """Return the two words of which `seed_key` is made."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], dtype=np.uint32)


def key_of(data: np.ndarray | Array) -> Key[Array, ""]:
    """Return the key with some data."""
    return jax.random.wrap_key_data(jax.numpy.asarray(data), impl="threefry2x32")


def replica_key(seed: int, replica: int | Int[Array, ""]) -> Key[Array, ""]:
    """Return the key of all random numbers of one replica."""
    return jax.random.fold_in(seed_key(seed), replica)


def purpose_key(key: Key[Array, ""], purpose: Purpose) -> Key[Array, ""]:
    """Return the key for one purpose within a replica."""
    return jax.random.fold_in(key, int(purpose))
