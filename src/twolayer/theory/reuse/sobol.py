"""Scrambled Sobol nets whose points are computed inside compiled code, from a few direction numbers."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

BITS = 32
SOBOL_BITS = 30  # the bits of scipy's direction numbers


class Net(NamedTuple):
    """A scrambled net: direction numbers of each coordinate, one for each bit of a point's index, and a shift."""

    directions: np.ndarray  # (coordinates, bits of the number), whole numbers of 32 bits
    shift: np.ndarray  # (coordinates,)


@lru_cache(maxsize=16)
def _directions(coordinates: int, log2_points: int) -> np.ndarray:
    """Sobol's direction numbers (coordinates, bits): the points whose index in Gray code has a single bit."""
    from scipy.stats import qmc

    engine = qmc.Sobol(coordinates, scramble=False)
    columns = []
    for bit in range(log2_points):
        engine.reset()
        engine.fast_forward(2 ** (bit + 1) - 1)
        columns.append(np.rint(engine.random(1)[0] * 2.0**SOBOL_BITS).astype(np.uint64))
    directions = np.stack(columns, axis=1) if columns else np.zeros((coordinates, 0), np.uint64)
    return directions << np.uint64(BITS - SOBOL_BITS)


def scrambled_net(coordinates: int, log2_points: int, seed: int) -> Net:
    """Sobol's net under a random linear scrambling of its digits and a random shift (Matousek)."""
    rng = np.random.default_rng(seed)
    places = np.arange(BITS - 1, -1, -1, dtype=np.uint64)
    digits = (_directions(coordinates, log2_points)[..., None] >> places) & np.uint64(1)  # highest first
    mixing = np.tril(rng.integers(0, 2, (coordinates, BITS, BITS)), -1) + np.eye(BITS, dtype=int)
    mixed = np.einsum("cij,cbj->cbi", mixing, digits.astype(np.int64)) % 2
    directions = np.sum(mixed.astype(np.uint64) << places, axis=-1).astype(np.uint32)
    return Net(directions, rng.integers(0, 2**BITS, coordinates, dtype=np.uint64).astype(np.uint32))


def uniforms(net: Net, log2_points: int) -> Float[Array, "coordinates points"]:
    """The points of a net, one column each, inside the open unit cube."""
    number = jnp.arange(2**log2_points, dtype=jnp.uint32)
    directions, shift = jnp.asarray(net.directions), jnp.asarray(net.shift)

    def add(bit: Array, points: Array) -> Array:
        is_set = ((number >> bit.astype(jnp.uint32)) & 1).astype(bool)
        return points ^ jnp.where(is_set[None, :], directions[:, bit][:, None], jnp.uint32(0))

    start = jnp.broadcast_to(shift[:, None], (len(shift), 2**log2_points))
    points = jax.lax.fori_loop(0, log2_points, add, start)
    return (points.astype(jnp.float64) + 0.5) * 2.0**-BITS
