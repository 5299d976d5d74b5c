r"""Random numbers as functions of a key and a counter, written as elementwise operations on 32-bit words.

Philox (:cite:t:`salmon2011`) turns a counter into four words; a word becomes a normal number by inverting the
distribution function; a normal number becomes a :math:`\chi` variable of any number of degrees of freedom by a
polynomial. No draw depends on any other, nor on how many replicas, blocks, threads or devices there are.
"""

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
# No word makes a normal number beyond this many deviations: its tail probability is 2^-33.
REACH = 6.5

# Rational-free inversion of the error function in single precision (:cite:t:`giles2012`), in powers of w - 2.5 for
# w = -log(1 - x^2) below five, and of sqrt(w) - 3 above.
_CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
           -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
         1.00167406, 2.83297682)  # fmt: skip


def philox(key: tuple[Any, Any], counter: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Four random words from a key of two words and a counter of four (Philox-4x32-10)."""
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


def words(key: tuple[Any, Any], number: int, sample: Any, step: Any) -> list[Any]:
    """So many random words for one sample of one step; ``step`` is a pair of words (low, high)."""
    found: list[Any] = []
    for block in range(-(-number // 4)):
        first = jnp.zeros_like(sample) + np.uint32(block)
        found += philox(key, (first, sample, step[0], step[1]))
    return found[:number]


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    value = jnp.zeros_like(x) + np.float32(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + np.float32(coefficient)
    return value


def normal(word: Any) -> Any:
    """A standard normal number in single precision from a word: sign bit, and 31 bits for the tail probability."""
    v = ((word >> np.uint32(1)).astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-31)
    w = -jnp.log(v * (np.float32(2.0) - v))
    size = jnp.where(
        w < np.float32(5.0),
        _horner(_CENTRE, w - np.float32(2.5)),
        _horner(_TAIL, jnp.sqrt(jnp.maximum(w, np.float32(1.0))) - np.float32(3.0)),
    )
    size = size * (np.float32(1.0) - v) * np.float32(2.0**0.5)
    return jnp.where((word & np.uint32(1)) == np.uint32(1), -size, size)


# Up to here the library function is exact to rounding; it loses digits as the degrees of freedom grow.
LARGE = 1000.0


def _quantile(z: np.ndarray, degrees: float) -> np.ndarray:
    r""":math:`\sqrt2 (\chi_D - \sqrt D)` at the quantile of a standard normal number z."""
    from scipy.special import gammainccinv, gammaincinv, ndtr

    if degrees <= LARGE:
        lower, upper = gammaincinv(degrees / 2, ndtr(z)), gammainccinv(degrees / 2, ndtr(-z))
        return np.sqrt(2.0) * (np.sqrt(2.0 * np.where(z < 0.0, lower, upper)) - np.sqrt(degrees))
    return _large_quantile(z, degrees)


def _large_quantile(z: np.ndarray, degrees: float) -> np.ndarray:
    r"""The same for many degrees of freedom, by Newton's method on the logarithm of the nearer tail.

    With :math:`\chi = \sqrt D (1 + e)`, :math:`u = \sqrt{2D}\,e` and Stirling's series,

    .. math:: \log f(u) = -\tfrac12\log 2\pi - \tfrac1{6D} + \tfrac1{45D^3} - D e^2 + D\,r(e) - \log(1 + e), \qquad
              r(e) = \log(1 + e) - e + \tfrac{e^2}2

    and a tail is an integral of f over positive terms alone: no digit is lost, however small it is.
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


@lru_cache(maxsize=256)
def chi_coefficients(degrees: float, accuracy: float = 1e-13) -> np.ndarray:
    r"""Chebyshev coefficients of the map from a normal number to :math:`\sqrt2 (\chi_D - \sqrt D)`.

    It is the quantile transform: increasing, smooth, and close to the identity at large D, so that a short polynomial
    is exact to rounding. The range is that of `normal`.
    """
    for degree in (4, 6, 8, 12, 16, 24, 32, 48, 64, 96):
        series = np.polynomial.chebyshev.Chebyshev.interpolate(
            lambda z: _quantile(z, degrees), degree, domain=[-REACH, REACH]
        )
        if np.max(np.abs(series.coef[-2:])) < accuracy * np.max(np.abs(series.coef)):
            break
    return series.coef


def chi_table(degrees: list[int]) -> Float[np.ndarray, "columns terms"]:
    """The coefficients for several degrees of freedom, padded to one length; none gives zero terms."""
    rows = [chi_coefficients(float(number)) for number in degrees]
    longest = max((len(row) for row in rows), default=0)
    return np.array([np.pad(row, (0, longest - len(row))) for row in rows]).reshape(len(rows), longest)


def chi(z: Any, degrees: Any, coefficients: Any) -> Float[Array, "..."]:
    """A chi variable from a normal number, by Clenshaw's sum."""
    t = z / REACH
    b1 = b2 = jnp.zeros_like(t)
    for term in range(coefficients.shape[0] - 1, 0, -1):
        b1, b2 = 2.0 * t * b1 - b2 + coefficients[term], b1
    return jnp.sqrt(degrees) + (t * b1 - b2 + coefficients[0]) / np.sqrt(2.0)
