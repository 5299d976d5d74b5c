"""Random keys: one per replica, one fold per purpose, so that no stream depends on how many others there are."""

import enum

import jax
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


def replica_key(seed: int, replica: int | Int[Array, ""]) -> Key[Array, ""]:
    """The key from which everything random in one replica comes."""
    return jax.random.fold_in(jax.random.key(seed), replica)


def purpose_key(key: Key[Array, ""], purpose: Purpose) -> Key[Array, ""]:
    """The stream for one purpose within a replica."""
    return jax.random.fold_in(key, int(purpose))
