"""Averages of products of polynomials: against Gauss-Hermite rules, which are exact for them, and known values."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from twolayer.core.multivariate import TooLarge, hermite
from twolayer.expectation.wick import FieldPolynomial, Wick, slope


def covariance_of(matrix):
    return lambda u, v: matrix[u][v]


def random_covariance(rng, fields, rank):
    """Exact small fractions, of a rank that may be less than full."""
    root = [[Fraction(int(rng.integers(-4, 5)), 5) for _ in range(rank)] for _ in range(fields)]
    return [[sum(x * y for x, y in zip(u, v, strict=True)) for v in root] for u in root], root


def random_factor(rng, fields, degree, terms=4):
    exponents = [e for e in itertools.product(range(degree + 1), repeat=len(fields)) if sum(e) <= degree]
    chosen = rng.choice(len(exponents), size=min(terms, len(exponents)), replace=False)
    return FieldPolynomial(fields, {exponents[n]: Fraction(int(rng.integers(-3, 4)), 2) for n in chosen})


def by_quadrature(factors, root, nodes=9):
    """The same average over independent normals, with a product rule exact up to degree 17 in each."""
    root = np.array(root, dtype=float)
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.array(list(itertools.product(points, repeat=root.shape[1])))
    weight = np.prod(list(itertools.product(weights / weights.sum(), repeat=root.shape[1])), axis=1)
    fields = grid @ root.T
    values = np.ones(len(grid))
    for factor in factors:
        own = fields[:, list(factor.fields)]
        values = values * sum(float(c) * np.prod(own ** np.array(e), axis=1) for e, c in factor.terms.items())
    return float(weight @ values), float(weight @ np.abs(values))


@pytest.mark.parametrize("seed", range(6))
def test_products_against_exact_quadrature(seed):
    """Three or four factors, of one field and of two; fields may be shared, and the covariance may be singular."""
    rng = np.random.default_rng(seed)
    matrix, root = random_covariance(rng, 4, rank=3 if seed % 2 else 4)
    factors = [
        random_factor(rng, (0, 1), 4),
        random_factor(rng, (2,), 3),
        random_factor(rng, (3,), 3),
        random_factor(rng, (2 if seed < 3 else 0,), 2),
    ]
    exact = Wick(covariance_of(matrix)).average(*factors)
    assert isinstance(exact, Fraction | int)
    value, size = by_quadrature(factors, root)
    # The rule rounds a sum of positive and negative parts: the error is relative to the sum of absolute values.
    assert abs(float(exact) - value) < 1e-13 * max(size, 1.0)


def test_hermite_polynomials_are_orthogonal():
    """Mehler: E[He_m(x) He_n(y)] = n! rho^n if m = n, else 0. Exactly."""
    rho = Fraction(3, 7)
    wick = Wick(lambda u, v: Fraction(1) if u == v else rho)

    def he(field, degree):
        return FieldPolynomial((field,), {(n,): int(c) for n, c in enumerate(hermite(degree)) if c})

    for m, n in itertools.product(range(7), repeat=2):
        assert wick.average(he("x", m), he("y", n)) == (math.factorial(n) * rho**n if m == n else 0)


def test_moments_count_pairings():
    """E[x^2n] = (2n - 1)!!, and E[x y z w] is the sum over three pairings."""
    wick = Wick(lambda u, v: 1)
    assert [wick.average(FieldPolynomial(("x",), {(n,): 1})) for n in range(9)] == [1, 0, 1, 0, 3, 0, 15, 0, 105]
    C = {frozenset(pair): number for number, pair in enumerate(itertools.combinations("xyzw", 2), start=1)}
    wick = Wick(lambda u, v: C[frozenset((u, v))])
    x, y, z, w = (FieldPolynomial((name,), {(1,): 1}) for name in "xyzw")
    assert wick.average(x, y, z, w) == 1 * 6 + 2 * 5 + 3 * 4


def test_slope_is_the_derivative():
    factor = FieldPolynomial(("x", "y"), {(3, 1): 2, (0, 2): 5, (1, 0): 1})
    assert slope(factor, 0).terms == {(2, 1): 6, (0, 0): 1}
    assert slope(factor, 1).terms == {(3, 0): 2, (0, 1): 10}


def test_a_sum_that_is_too_long_is_refused():
    wick = Wick(lambda u, v: Fraction(1, 3), max_terms=10)
    with pytest.raises(TooLarge, match="10 terms"):
        wick.average(*(FieldPolynomial((name,), {(6,): 1}) for name in "xyzw"))
