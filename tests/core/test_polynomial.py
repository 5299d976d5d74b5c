"""Exact polynomials against NumPy's, at random points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import hermite_e, polynomial

from twolayer.core.errors import InvalidInput
from twolayer.core.multivariate import (
    MAX_DEGREE,
    Polynomial,
    compose,
    constant,
    divisors,
    from_coefficients,
    hermite,
    in_hermite,
    over_integers,
    square,
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
        _ = x ** (MAX_DEGREE + 1)


@given(polynomials)
def test_whole_coefficients_are_exact(f):
    whole, denominator = over_integers(f.terms)
    assert {exponents: c / denominator for exponents, c in whole.items()} == dict(f.terms)
    squared = Polynomial(3, {exponents: c / denominator**2 for exponents, c in square(whole).items()})
    assert squared == f * f  # quarters of whole numbers: floating point is exact here, too


def test_numbers_with_many_digits_stay_exact():
    whole, denominator = over_integers({(1,): 0.1, (0,): 1e9})
    assert (whole[(1,)] / denominator, whole[(0,)] / denominator) == (0.1, 1e9)
    assert over_integers({}) == ({}, 1) and square({}) == in_hermite({}) == {}


@given(polynomials)
def test_hermite_polynomials_of_several_unknowns_add_up_to_the_same(f):
    whole, denominator = over_integers(f.terms)
    total = constant(3, 0.0)
    for exponents, coefficient in in_hermite(whole).items():
        term = constant(3, coefficient / denominator)
        for index, degree in enumerate(exponents):
            term = term * compose(hermite(degree), unknown(3, index))
        total = total + term
    assert total == f


@pytest.mark.parametrize("n", range(13))
def test_hermite_of_a_hermite_polynomial_is_one_term(n):
    whole, denominator = over_integers(from_coefficients(hermite(n)).terms)
    assert in_hermite(whole) == {(n,): denominator}


def test_divisors():
    found, largest = divisors([(0, 1), (2, 1), (0, 2)], limit=100)
    assert found == {(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (0, 2)}
    assert sorted(largest) == [(0, 2), (2, 1)]
    # Counting stops at the limit: this one has 3^32 divisors.
    assert 1000 < len(divisors([(2,) * 32], limit=1000)[0]) < 2000
