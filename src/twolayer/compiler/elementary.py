"""Elementary functions as elementwise operations without branches, by the coefficients of the Cephes library.

They are accurate to a few units in the last place. Targets that have no such functions of their own, or whose own ones
cannot be vectorised, write these out instead.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def exp(x: Array) -> Array:
    """Return the exponential function; it is never zero or infinite."""
    x = jnp.minimum(jnp.maximum(x, -708.0), 709.0)
    n = jnp.floor(1.4426950408889634073599 * x + 0.5)
    r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6
    z = r * r
    top = r * ((1.26177193074810590878e-4 * z + 3.02994407707441961300e-2) * z + 9.99999999999999999910e-1)
    low = (3.00198505138664455042e-6 * z + 2.52448340349684104192e-3) * z + 2.27265548208155028766e-1
    value = 1.0 + 2.0 * top / (low * z + 2.00000000000000000005e0 - top)
    power = (n.astype(jnp.int64) + np.int64(1023)) << np.int64(52)
    return value * jax.lax.bitcast_convert_type(power, jnp.float64)


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    a = jnp.abs(x)
    near = jnp.minimum(a, 0.625)
    z = near * near
    top = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3
    low = ((z + 1.12811678491631932402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3
    size = jnp.where(a < 0.625, near * (1.0 + z * top / low), 1.0 - 2.0 / (exp(2.0 * a) + 1.0))
    return jnp.where(x >= 0.0, size, -size)


def logistic(x: Array) -> Array:
    """Return the logistic function."""
    return 1.0 / (1.0 + exp(-x))


def atan2(y: Array, x: Array) -> Array:
    """Return the angle of the point (x, y)."""
    rise, run = jnp.abs(y), jnp.abs(x)
    is_steep = rise > run
    small, large = jnp.where(is_steep, run, rise), jnp.where(is_steep, rise, run)
    is_wide = small > 0.66 * large  # beyond this slope the angle is counted from pi/4
    bottom = jnp.where(is_wide, small + large, large)
    t = jnp.where(is_wide, small - large, small) / jnp.where(bottom == 0.0, 1.0, bottom)
    z = t * t
    top = (-8.750608600031904122785e-1 * z - 1.615753718733365076637e1) * z - 7.500855792314704667340e1
    top = (top * z - 1.228866684490136173410e2) * z - 6.485021904942025371773e1
    low = ((z + 2.485846490142306297962e1) * z + 1.650270098316988542046e2) * z + 4.328810604912902668951e2
    low = (low * z + 4.853903996359136964868e2) * z + 1.945506571482613964425e2
    angle = t * (z * top / low) + t
    angle = jnp.where(is_wide, (np.pi / 4 + angle) + 3.061616997868383017e-17, angle)
    angle = jnp.where(is_steep, (np.pi / 2 - angle) + 6.123233995736765886e-17, angle)
    angle = jnp.where(x < 0.0, (np.pi - angle) + 1.2246467991473531772e-16, angle)
    return jnp.where(y < 0.0, -angle, angle)
