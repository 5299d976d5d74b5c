"""Scrambled Sobol nets whose points are computed inside compiled code, from a few numbers of the same nets of scipy."""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.expectation.qmc import sobol

if TYPE_CHECKING:
    from scipy.stats import qmc

BITS = 32


class Net(NamedTuple):
    """A scrambled net: direction numbers of each coordinate, one for each bit of a point's index, and a shift."""

    directions: np.ndarray  # (coordinates, bits of the number), whole numbers of 32 bits
    shift: np.ndarray  # (coordinates,)


def scrambled_net(coordinates: int, log2_points: int, seed: int) -> Net:
    """The direction numbers and the shift of scipy's scrambled Sobol net.

    The first point of the net is the shift. A point whose index in Gray code has a single bit differs from it by the
    direction number of that bit.
    """
    engine = sobol(coordinates, seed, BITS)
    shift, directions = _whole(engine), np.zeros((coordinates, log2_points), np.uint32)
    for bit in range(log2_points):
        engine.fast_forward(2**bit - 1)  # to the point 2^(bit + 1) - 1
        directions[:, bit] = _whole(engine) ^ shift
    return Net(directions, shift)


def _whole(engine: "qmc.Sobol") -> np.ndarray:
    """The next point of a net as whole numbers."""
    return (engine.random(1)[0] * 2.0**BITS).astype(np.uint32)


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
