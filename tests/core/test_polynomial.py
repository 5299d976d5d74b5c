"""Exact polynomials against NumPy's, at random points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import hermite_e, polynomial

from twolayer.core.errors import InvalidInput
from twolayer.core.polynomial import (
    MAX_DEGREE,
    Polynomial,
    compose,
    constant,
    from_coefficients,
    hermite,
    unknown,
)

POINTS = np.random.default_rng(0).uniform(-1.5, 1.5, (20, 3))
# Sums of at most some hundred products of numbers below 1e3, in float64.
CLOSE = {"rtol": 1e-11, "atol": 1e-9}


def value(poly: Polynomial, points=POINTS):
    """The value by NumPy's own evaluation of a table of coefficients (three unknowns)."""
    table = np.zeros((poly.degree + 1,) * 3)
    for exponents, coefficient in poly.terms.items():
        table[exponents] += coefficient
    return polynomial.polyval3d(*points.T, table)


exponents = st.tuples(*[st.integers(0, 2)] * 3)
coefficients = st.integers(-8, 8).map(lambda n: n / 4)
polynomials = st.dictionaries(exponents, coefficients.filter(bool), max_size=5).map(lambda t: Polynomial(3, t))


@given(polynomials, polynomials, coefficients, st.integers(0, 3))
def test_algebra(f, g, c, power):
    np.testing.assert_allclose(value(f + g), value(f) + value(g), **CLOSE)
    np.testing.assert_allclose(value(f * g), value(f) * value(g), **CLOSE)
    np.testing.assert_allclose(value(f + c), value(f) + c, **CLOSE)
    np.testing.assert_allclose(value(f * c), value(f) * c, **CLOSE)
    np.testing.assert_allclose(value(f**power), value(f) ** power, **CLOSE)
    for result in (f + g, f * g, f * c, f**power, f + f * -1.0):
        assert all(coefficient != 0.0 for coefficient in result.terms.values())  # zeros are left out
    assert (f + f * -1.0).terms == {} and (f * 0.0).degree == 0
    if f.terms and g.terms:
        assert (f * g).degree == f.degree + g.degree


@given(st.lists(coefficients, min_size=1, max_size=4), polynomials)
def test_composition(outer, inner):
    expected = polynomial.polyval(value(inner), np.array(outer))
    np.testing.assert_allclose(value(compose(tuple(outer), inner)), expected, **CLOSE)


def test_building_blocks():
    np.testing.assert_array_equal(value(constant(3, 2.5)), 2.5)
    assert constant(3, 0.0).terms == {}
    for index in range(3):
        np.testing.assert_array_equal(value(unknown(3, index)), POINTS[:, index])
    assert from_coefficients((1.0, 0.0, 3.0)).terms == {(0,): 1.0, (2,): 3.0}


def test_embed_renames_and_merges_unknowns():
    f = Polynomial(2, {(1, 0): 2.0, (1, 2): 3.0})
    x, y, z = POINTS.T
    np.testing.assert_allclose(value(f.embed(3, (2, 0))), 2 * z + 3 * z * x**2, **CLOSE)
    np.testing.assert_allclose(value(f.embed(3, (1, 1))), 2 * y + 3 * y**3, **CLOSE)


@pytest.mark.parametrize("n", range(13))
def test_hermite_is_the_probabilists(n):
    x = np.linspace(-2, 2, 11)
    expected = hermite_e.hermeval(x, [0.0] * n + [1.0])
    # He_12 has coefficients up to 1e4, whose sum loses some digits.
    np.testing.assert_allclose(polynomial.polyval(x, hermite(n)), expected, rtol=1e-10, atol=1e-9)
    assert hermite(n)[-1] == 1.0 and len(hermite(n)) == n + 1


def test_the_degree_is_limited():
    x = unknown(1, 0)
    assert (x**MAX_DEGREE).degree == MAX_DEGREE
    with pytest.raises(InvalidInput, match="degree"):
        x ** (MAX_DEGREE + 1)
