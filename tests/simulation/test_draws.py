"""Random numbers inside of compiled loops: Philox, normal pairs and the lengths of Gaussian vectors."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from twolayer.compiler import draws


@pytest.mark.parametrize(
    ("rounds", "word", "answer"),
    [
        (7, 0, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
        (10, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (10, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_published_numbers(monkeypatch, rounds, word, answer):
    """Known answers of the authors of Philox-4x32, for counter and key of zeros and of ones."""
    monkeypatch.setattr(draws, "ROUNDS", rounds)
    x = jnp.uint32(word)
    assert tuple(int(y) for y in draws.philox((x, x), (x, x, x, x))) == answer


def some_normals(size=2**20):
    """Normal numbers as pairs (pairs, 2) in double precision, and the words from which they were made."""
    index = jnp.arange(size, dtype=jnp.uint32)
    key = (jnp.uint32(3), jnp.uint32(5))
    zero = jnp.zeros_like(index)
    words = jax.jit(lambda i: jnp.stack(draws.philox(key, (i, zero, zero, zero))))(index)
    radius, angle = words[::2].ravel(), words[1::2].ravel()
    return np.stack([np.asarray(x, dtype=np.float64) for x in draws.normal_pair(radius, angle)], axis=1), radius, angle


@pytest.mark.slow
def test_normal_numbers_follow_the_normal_law():
    """4 x 10^6 numbers: four moments with z < 5, the distance of the distribution functions, and no correlation."""
    pairs, *_ = some_normals()
    for x in (pairs.ravel(), *pairs.T):
        for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
            assert abs(np.mean(x**power) - mean) < 5 * np.sqrt(variance / x.size)
        assert stats.kstest(x, "norm").pvalue > 1e-6
    for power in (1, 2):
        x, y = (pairs**power - (power == 2)).T
        assert abs(np.mean(x * y)) < 5 * np.std(x * y) / np.sqrt(len(x))
    assert stats.kstest(np.sum(pairs**2, axis=1), "chi2", args=(2,)).pvalue > 1e-6


def test_normal_numbers_are_those_of_the_formula():
    """In double precision from the same words; at the ends of the range the length is sqrt(2 log 2^33)."""
    pairs, radius, angle = some_normals(2**14)
    u = (np.asarray(radius, dtype=np.float64) + 0.5) / 2.0**32
    theta = np.pi / 2 * np.asarray(angle).astype(np.int32).astype(np.float64) / 2.0**31
    sign = np.where(np.asarray(angle) % 2 == 1, -1.0, 1.0)
    exact = np.sqrt(-2 * np.log(u))[:, None] * np.stack([np.sin(theta), sign * np.cos(theta)], axis=1)
    away = u < 1 - 1e-3  # closer to one the spacing of single precision shows in the smallest lengths
    np.testing.assert_allclose(pairs[away], exact[away], atol=2e-6)
    np.testing.assert_allclose(pairs, exact, atol=1e-4)
    longest = float(draws.normal_pair(jnp.uint32(0), jnp.uint32(0))[1])
    np.testing.assert_allclose(longest, np.sqrt(2 * np.log(2.0**33)), rtol=1e-6)
    assert longest < draws.REACH


@pytest.mark.parametrize("degrees", [1, 2, 7, 20, 1000, 10**4])
def test_chi_is_the_quantile_transform(degrees):
    """Tail probabilities in 40 digits at several deviations: the error in units of the normal number."""
    mpmath.mp.dps = 40
    coefficients = jnp.asarray(draws.chi_coefficients(float(degrees)))
    for z in (-3.0, -1.3, 0.2, 2.0, 5.5):
        value = mpmath.mpf(float(draws.chi(jnp.asarray(z), float(degrees), coefficients)))
        below = mpmath.gammainc(mpmath.mpf(degrees) / 2, 0, value**2 / 2, regularized=True)
        accuracy = 1e-7 if len(coefficients) <= draws.SHORT else 2e-12  # that in which the series is summed
        assert abs(below - mpmath.ncdf(z)) / mpmath.npdf(z) < accuracy * max(1, degrees**0.5)


@pytest.mark.parametrize("degrees", [1, 3, 60, 10**6])
def test_chi_is_cut_at_zero_where_it_may_be_negative(degrees):
    """Where it cannot be, the program has no comparison; the numbers are the same."""
    z, table = jnp.linspace(-draws.REACH, draws.REACH, 301), draws.chi_coefficients(float(degrees))
    value = draws.chi(z, np.float64(degrees), table)
    np.testing.assert_array_equal(value, draws.chi(z, np.float64(degrees), jnp.asarray(table)))
    assert np.all(np.asarray(value) >= 0.0)
    traced = str(jax.make_jaxpr(lambda z: draws.chi(z, np.float64(degrees), table))(z))
    assert ("max" in traced) == (degrees < 60)


@pytest.mark.parametrize("degrees", [10**6, 10**9, 10**12])
def test_chi_of_many_degrees_is_nearly_normal(degrees):
    """Against the expansion of the quantile in 1 / sqrt(D), whose next term is of order 1 / D."""
    z = np.linspace(-5, 5, 11)
    u = np.asarray(draws.chi_above(jnp.asarray(z), jnp.asarray(draws.chi_coefficients(float(degrees)))))
    D = float(degrees)
    # chi^2 = D + sqrt(2 D) z + 2/3 (z^2 - 1) + ..., so that the first correction of sqrt(2)(chi - sqrt D) to z is
    first = (2.0 / 3.0 * (z**2 - 1) - z**2 / 2) / np.sqrt(2 * D)
    assert np.max(np.abs(u - z - first)) < 20.0 / D + 2e-8
