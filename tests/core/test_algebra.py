"""Readable formulas: the same polynomial, laid out as a person would."""

from fractions import Fraction

import numpy as np
import pytest
import sympy as sp

from twolayer.core.algebra import as_fraction, tidy

SYMBOLS = sp.symbols("w x y z")


def symbol(name):
    return sp.Symbol(name)


def terms_of(expression):
    polynomial = sp.Poly(sp.expand(expression), *SYMBOLS)
    names = [x.name for x in SYMBOLS]
    return {
        tuple((name, n) for name, n in zip(names, powers, strict=True) if n): Fraction(int(c.p), int(c.q))
        for powers, c in polynomial.terms()
    }


@pytest.mark.parametrize("seed", range(8))
def test_the_polynomial_is_the_same(seed):
    """Products of random polynomials, small ones that are factored and large ones that are not."""
    rng = np.random.default_rng(seed)

    def polynomial(terms):
        powers = rng.integers(0, 3, size=(terms, 4))
        scales = rng.integers(-6, 7, size=terms)
        return sum(sp.Rational(int(c), 6) * sp.prod([x ** int(n) for x, n in zip(SYMBOLS, e, strict=True)])
                   for c, e in zip(scales, powers, strict=True))  # fmt: skip

    expression = polynomial(2) * polynomial(3 if seed < 4 else 12)
    terms = terms_of(expression)
    for rank in ({}, {"x": 0, "z": 1}):
        assert sp.expand(tidy(terms, symbol, rank.get) - expression) == 0


def test_layout():
    w, x, y, z = SYMBOLS
    # Equal as sympy expressions, which means written in the same way: sympy does not expand to compare.
    assert tidy(terms_of(4 * x * (1 - x**2) * (1 - 6 * y)), symbol) == 4 * x * (1 - x**2) * (1 - 6 * y)
    assert tidy(terms_of(6 * x * y + 9 * x**2), symbol) == 3 * x * (3 * x + 2 * y)
    collected = tidy(terms_of(x * y * z + x * w * z + y * w + w), symbol, {"z": 0}.get)
    assert collected == x * z * (w + y) + w * (y + 1)
    assert tidy({}, symbol) == 0
    assert tidy({(("x", 2),): Fraction(-3, 2)}, symbol) == -3 * x**2 / 2


def test_negative_powers_go_in_front():
    terms = {(("x", -1), ("y", 1)): Fraction(1), (("x", 1),): Fraction(-2)}
    x, y = sp.symbols("x y")
    found = tidy(terms, symbol)
    assert sp.expand(found - (y / x - 2 * x)) == 0 and sp.denom(found) == x


def test_numbers_are_what_was_meant():
    assert as_fraction(1 / 3) == Fraction(1, 3)
    assert as_fraction(15 * (1 / 7)) == Fraction(15, 7)
    assert as_fraction(-0.1) == Fraction(-1, 10)
    assert as_fraction(0.0) == 0 and as_fraction(1e9) == 10**9
    assert as_fraction(1.23456789e-7) == Fraction(123456789, 10**15)
    assert float(as_fraction(np.pi)) == np.pi
    # A number without a simple fraction is printed as a decimal, and nothing is factored out of it.
    formula = tidy({(("x", 1),): Fraction(repr(np.pi)), (("y", 1),): Fraction(1, 2)}, symbol)
    assert float(formula.coeff(sp.Symbol("x"))) == np.pi and formula.coeff(sp.Symbol("y")) == sp.Rational(1, 2)
