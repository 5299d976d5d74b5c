r"""Random numbers as functions of a key and a counter, written as elementwise operations on 32-bit words.

Philox (:cite:t:`salmon2011`) turns a counter into four words; two words become two normal numbers by the method of Box
and Muller; a normal number becomes a :math:`\chi` variable of any number of degrees of freedom by a polynomial. No draw
depends on any other, nor on the number of replicas, blocks, threads or devices. Logarithm, sine and cosine are written
out in single precision, so that every compiler gives the same numbers.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.types import Numbers

# Seven rounds are the fewest that pass all tests of the authors of Philox; ten, their default, cost a third more.
ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
# Largest size of a normal number, sqrt(2 log 2^33).
REACH = 6.77

# Best approximations in single precision, lowest power first: log(1 + f) / f for 1 + f between the square roots of 1/2
# and 2; sin(pi x / 2) / x and cos(pi x / 2) / (1 - x^2) in powers of x^2, for x between -1 and 1.
_LOG = (0.9999999750456061, -0.499999777412207, 0.33334160455894485, -0.2500294610546956, 0.19958417095074119,
        -0.1654373793039061, 0.1491737765525397, -0.14482185908317438, 0.08959912094542842)  # fmt: skip
_SINE = (1.570796320091996, -0.645963761291483, 0.07968992686657593, -0.00467415749591429, 0.0001516785317189005)
_COSINE = (0.9999999991287994, -0.23370050645447196, 0.019968607215242264, -0.0008935371296031049,
           2.360151099987034e-05)  # fmt: skip
_ROOT_HALF = np.int32(0x3F3504F3)  # the bits of sqrt(1/2)


def philox(key: tuple[Any, Any], counter: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Return four random words for a key of two words and a counter of four (Philox-4x32-7)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    for _ in range(ROUNDS):
        p0, p1 = c0.astype(jnp.uint64) * m0, c2.astype(jnp.uint64) * m1
        high0, low0 = (p0 >> np.uint64(32)).astype(jnp.uint32), p0.astype(jnp.uint32)
        high1, low1 = (p1 >> np.uint64(32)).astype(jnp.uint32), p1.astype(jnp.uint32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + np.uint32(WEYL[0]), k1 + np.uint32(WEYL[1])
    return c0, c1, c2, c3


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    value = jnp.zeros_like(x) + np.float32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + np.float32(coefficient)
    return value


def _log(x: Any) -> Any:
    """Return the natural logarithm of a positive number in single precision, computed from its bits."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - _ROOT_HALF) >> np.int32(23)
    f = jax.lax.bitcast_convert_type(bits - (exponent << np.int32(23)), jnp.float32) - np.float32(1.0)
    return exponent.astype(jnp.float32) * np.float32(np.log(2.0)) + f * _horner(_LOG, f)


def normal_pair(radius: np.ndarray | Array, angle: np.ndarray | Array) -> tuple[Any, Any]:
    r"""Return two independent standard normal numbers in single precision, given two random words.

    .. math:: \sqrt{-2 \log u}\,(\sin\theta, \pm\cos\theta)

    with u from the first word, and the angle within a half-plane and the sign from the second.
    """
    u = radius.astype(jnp.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    length = jnp.sqrt(jnp.maximum(np.float32(-2.0) * _log(u), np.float32(0.0)))
    x = jax.lax.bitcast_convert_type(angle, jnp.int32).astype(jnp.float32) * np.float32(2.0**-31)
    s = x * x
    sine, cosine = x * _horner(_SINE, s), (np.float32(1.0) - s) * _horner(_COSINE, s)
    return length * sine, length * jnp.where((angle & np.uint32(1)) == np.uint32(1), -cosine, cosine)


def normals(key: tuple[Any, Any], number: int, sample: Numbers, step: tuple[Any, Any]) -> Float[Array, " number"]:
    """Return ``number`` standard normal numbers for one sample of one step, which is a pair of words (low, high)."""
    block = jnp.arange(four_of(number), dtype=jnp.uint32)
    counter = (jnp.full_like(block, word) for word in (sample, *step))
    return jnp.stack(four_normals(*key, block, *counter), axis=1).ravel()[:number]


def normals_of(
    key: tuple[Any, Any], number: int, samples: Array, step: tuple[Any, Any]
) -> Float[Array, "number samples"]:
    """Return the numbers of `normals` for many samples of one step, along the last axis."""
    block = jnp.arange(four_of(number), dtype=jnp.uint32)[:, None] + jnp.zeros_like(samples)[None, :]
    counter = (jnp.broadcast_to(word, block.shape) for word in (samples[None, :], *step))
    # XLA would compute all four once more for each entry of the stack.
    four = jax.lax.optimization_barrier(four_normals(*key, block, *counter))
    return jnp.stack(four, axis=1).reshape(-1, len(samples))[:number]


def four_of(number: int) -> int:
    """Return how many draws of four numbers are needed for ``number`` numbers."""
    return -(-number // 4)


def four_normals(
    k0: Numbers, k1: Numbers, block: Numbers, sample: Numbers, low: Numbers, high: Numbers
) -> tuple[Any, Any, Any, Any]:
    """Return four standard normal numbers of one sample of one step, from one block of four words."""
    words = philox((k0, k1), (block, sample, low, high))
    return (*normal_pair(*words[:2]), *normal_pair(*words[2:]))


def noise_normal(k0: Numbers, k1: Numbers, sample: Numbers, low: Numbers, high: Numbers) -> Array:
    """Return the label noise of one sample of one step, a normal number from a block that no input uses."""
    return _of_label(k0, k1, sample, low, high)[0]


def noise_normals(k0: Numbers, k1: Numbers, sample: Numbers, low: Numbers, high: Numbers) -> Array:
    """Return two normal numbers of one sample along a last axis: its label noise, and one that chooses its label."""
    return jnp.stack(_of_label(k0, k1, sample, low, high)[:2], axis=-1)


def _of_label(k0: Numbers, k1: Numbers, sample: Numbers, low: Numbers, high: Numbers) -> tuple[Any, ...]:
    return four_normals(k0, k1, jnp.full_like(sample, np.uint32(0xFFFFFFFF)), sample, low, high)


# Largest degrees of freedom at which SciPy's function is exact to rounding; beyond, it loses digits.
LARGE = 1000.0


def _quantile(z: np.ndarray, degrees: float) -> np.ndarray:
    r"""Return :math:`\sqrt2 (\chi_D - \sqrt D)` at the quantile of a standard normal number z."""
    from scipy.special import gammainccinv, gammaincinv, ndtr

    if degrees <= LARGE:
        lower, upper = gammaincinv(degrees / 2, ndtr(z)), gammainccinv(degrees / 2, ndtr(-z))
        return np.sqrt(2.0) * (np.sqrt(2.0 * np.where(z < 0.0, lower, upper)) - np.sqrt(degrees))
    return _large_quantile(z, degrees)


def _large_quantile(z: np.ndarray, degrees: float) -> np.ndarray:
    r"""Return `_quantile` for many degrees of freedom, by Newton's method on the logarithm of the nearer tail.

    With :math:`\chi = \sqrt D (1 + e)`, :math:`u = \sqrt{2D}\,e` and Stirling's series,

    .. math:: \log f(u) = -\tfrac12\log 2\pi - \tfrac1{6D} + \tfrac1{45D^3} - D e^2 + D\,r(e) - \log(1 + e), \qquad
              r(e) = \log(1 + e) - e + \tfrac{e^2}2

    and a tail is an integral of f over positive terms only, so that no digit is lost, however small it is.
    """
    from scipy.special import log_ndtr

    x, w = np.polynomial.legendre.leggauss(40)
    ends = np.linspace(0.0, 12.0, 13)
    half = 0.5 * np.diff(ends)[:, None]
    t, weights = (half * x + (ends[:-1, None] + half)).ravel(), (half * w).ravel()

    def log_density(u: np.ndarray) -> np.ndarray:
        e = u / np.sqrt(2.0 * degrees)
        small = sum((-1.0) ** (n + 1) * e**n / n for n in range(3, 16))
        constant = -0.5 * np.log(2.0 * np.pi) - 1.0 / (6.0 * degrees) + 1.0 / (45.0 * degrees**3)
        return constant - degrees * e**2 + degrees * small - np.log1p(e)

    side = np.where(z < 0.0, -1.0, 1.0)
    u = np.array(z, dtype=float)
    for _ in range(8):
        tail = np.exp(log_density(u[:, None] + side[:, None] * t[None, :])) @ weights
        u = u + side * (np.log(tail) - log_ndtr(-np.abs(z))) * tail / np.exp(log_density(u))
    return u


# Number of terms up to which the polynomial is summed in single precision, the precision of the normal number.
SHORT = 16
# The degrees of polynomials that are tried.
POWERS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)


@lru_cache(maxsize=4096)
def chi_coefficients(degrees: float) -> np.ndarray:
    r"""Return the Chebyshev coefficients of the map from a normal number to :math:`\sqrt2 (\chi_D - \sqrt D)`.

    It is the quantile transform: increasing, smooth, and close to the identity at large D, so that a short polynomial
    is exact to the rounding in which it is summed. The range is that of `normal_pair`.
    """
    for degree in POWERS:
        series = np.polynomial.chebyshev.Chebyshev.interpolate(
            lambda z: _quantile(z, degrees), degree, domain=[-REACH, REACH]
        )
        accuracy = 1e-9 if degree < SHORT else 1e-13
        if np.max(np.abs(series.coef[-2:])) < accuracy * np.max(np.abs(series.coef)):
            break
    return series.coef


def chi_table(degrees: list[int]) -> Float[np.ndarray, "columns terms"]:
    """Return the coefficients for several degrees of freedom, padded to the same length."""
    rows = [chi_coefficients(float(number)) for number in degrees]
    longest = max((len(row) for row in rows), default=0)
    return np.array([np.pad(row, (0, longest - len(row))) for row in rows]).reshape(len(rows), longest)


def chi_above(z: np.ndarray | Array, coefficients: np.ndarray | Array) -> Float[Array, "..."]:
    r"""Return :math:`\sqrt2 (\chi_D - \sqrt D)` in double precision for a normal number, by Clenshaw's sum."""
    terms = coefficients.shape[-1]
    dtype = jnp.float32 if z.dtype == jnp.float32 and terms <= SHORT else jnp.float64
    t = jnp.asarray(z, dtype) * np.asarray(1.0 / REACH, dtype)
    b1 = b2 = jnp.zeros_like(t)
    coefficients = jnp.asarray(coefficients, dtype)
    for term in range(terms - 1, 0, -1):
        b1, b2 = t * b1 * np.asarray(2.0, dtype) - b2 + coefficients[..., term], b1
    return (t * b1 - b2 + coefficients[..., 0]).astype(jnp.float64)


def chi(z: np.ndarray | Array, degrees: Numbers, coefficients: np.ndarray | Array) -> Float[Array, "..."]:
    """Return a chi variable in double precision for a normal number."""
    value = jnp.sqrt(degrees) + chi_above(z, coefficients) * np.sqrt(0.5)
    # Chebyshev polynomials are at most one, so that at many degrees of freedom the sum is known to be positive.
    if isinstance(coefficients, np.ndarray) and isinstance(degrees, np.ndarray | np.floating):
        if np.all(np.sqrt(degrees) > np.sqrt(0.5) * np.sum(np.abs(coefficients), axis=-1)):
            return value
    return jnp.maximum(value, 0.0)
