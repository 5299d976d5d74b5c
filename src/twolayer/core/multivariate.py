"""Polynomials in several variables as exact objects: sums, products, powers, derivatives, Hermite polynomials."""

import itertools
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Union

import numpy as np

from twolayer.core.errors import InvalidInput

# Largest degree whose averages are exact to 1e-12 with coefficients in double precision (2e-13 for He_24).
MAX_DEGREE = 24
MAX_TERMS = 20_000


class TooLarge(InvalidInput):
    """A polynomial has too many terms or too high a degree to be expanded."""


Exponents = tuple[int, ...]


class Polynomial(NamedTuple):
    """A polynomial in ``variables`` unknowns: a mapping from exponents to nonzero coefficients."""

    variables: int
    terms: Mapping[Exponents, float]

    @property
    def degree(self) -> int:
        """The total degree; 0 for a constant."""
        return max((sum(exponents) for exponents in self.terms), default=0)

    def __add__(self, other: Union["Polynomial", float]) -> "Polynomial":  # type: ignore[override]
        other = self._lift(other)
        terms = dict(self.terms)
        for exponents, coefficient in other.terms.items():
            terms[exponents] = terms.get(exponents, 0.0) + coefficient
        return Polynomial(self.variables, {e: c for e, c in terms.items() if c != 0.0})

    def __mul__(self, other: Union["Polynomial", float]) -> "Polynomial":  # type: ignore[override]
        other = self._lift(other)
        if self.degree + other.degree > MAX_DEGREE:
            raise TooLarge(f"A polynomial may have degree {MAX_DEGREE} at most.")
        return Polynomial(self.variables, _product(self.terms, other.terms, MAX_TERMS))

    def __pow__(self, power: int) -> "Polynomial":
        return math.prod([self] * power, start=constant(self.variables, 1.0))

    def _lift(self, other: Union["Polynomial", float]) -> "Polynomial":
        return other if isinstance(other, Polynomial) else constant(self.variables, other)

    def embed(self, variables: int, positions: tuple[int, ...]) -> "Polynomial":
        """Return the same polynomial in more unknowns: unknown i becomes unknown ``positions[i]``."""
        terms: dict[Exponents, float] = {}
        for exponents, coefficient in self.terms.items():
            wide = [0] * variables
            for position, exponent in zip(positions, exponents, strict=True):
                wide[position] += exponent
            terms[tuple(wide)] = terms.get(tuple(wide), 0.0) + coefficient
        return Polynomial(variables, terms)


def constant(variables: int, value: float) -> Polynomial:
    """Return a constant polynomial."""
    return Polynomial(variables, {(0,) * variables: float(value)} if value != 0.0 else {})


def unknown(variables: int, index: int) -> Polynomial:
    """Return the polynomial that equals one unknown."""
    return Polynomial(variables, {tuple(int(i == index) for i in range(variables)): 1.0})


def from_coefficients(coefficients: tuple[float, ...]) -> Polynomial:
    """Return the polynomial in one unknown with the given coefficients, constant first."""
    return Polynomial(1, {(power,): float(c) for power, c in enumerate(coefficients) if c != 0.0})


def hermite(n: int) -> tuple[float, ...]:
    """Return the coefficients, constant first, of the probabilists' Hermite polynomial He_n (leading coefficient 1)."""
    return tuple(float(c) for c in np.polynomial.hermite_e.herme2poly([0.0] * n + [1.0]))


def compose(outer: tuple[float, ...], inner: Polynomial) -> Polynomial:
    """Return the polynomial outer(inner), by Horner's rule."""
    result = constant(inner.variables, 0.0)
    for coefficient in reversed(outer):
        result = result * inner + coefficient
    return result


def over_integers(terms: Mapping[Exponents, float]) -> tuple[dict[Exponents, int], int]:
    """Return coefficients as exact fractions: their integer numerators, and the common denominator."""
    ratios = {exponents: float(coefficient).as_integer_ratio() for exponents, coefficient in terms.items()}
    denominator = max((below for _, below in ratios.values()), default=1)  # all of them are powers of two
    return {exponents: above * (denominator // below) for exponents, (above, below) in ratios.items()}, denominator


def square(terms: Mapping[Exponents, int]) -> dict[Exponents, int]:
    """Return the square of a polynomial with integer coefficients, without rounding."""
    return _product(terms, terms)


def _product(
    first: Mapping[Exponents, Any], second: Mapping[Exponents, Any], most: float | int = math.inf
) -> dict[Exponents, Any]:
    """Return the terms of a product; more than ``most`` of them raise `TooLarge`."""
    terms: dict[Exponents, Any] = {}
    for e1, c1 in first.items():
        if len(terms) > most:
            raise TooLarge(f"A polynomial may have {most} terms at most.")
        for e2, c2 in second.items():
            exponents = tuple(map(operator.add, e1, e2))
            terms[exponents] = terms.get(exponents, 0) + c1 * c2
    return {exponents: coefficient for exponents, coefficient in terms.items() if coefficient}


def in_hermite(terms: Mapping[Exponents, Any]) -> dict[Exponents, Any]:
    r"""Return a polynomial as a sum of products of Hermite polynomials, without rounding.

    Coefficients are integers, fractions, or any other numbers that can be added exactly.

    .. math:: x^n = \sum_m \frac{n!}{2^m\,m!\,(n - 2m)!}\,\mathrm{He}_{n-2m}(x)
    """
    result = dict(terms)
    for index in range(len(next(iter(terms), ()))):
        total: dict[Exponents, Any] = {}
        for exponents, coefficient in result.items():
            n = exponents[index]
            for m in range(n // 2 + 1):
                pairings = math.factorial(n) // (2**m * math.factorial(m) * math.factorial(n - 2 * m))
                lower = (*exponents[:index], n - 2 * m, *exponents[index + 1 :])
                total[lower] = total.get(lower, 0) + coefficient * pairings
        result = total
    return {exponents: coefficient for exponents, coefficient in result.items() if coefficient}


def divisors(exponents: Iterable[Exponents], limit: int) -> tuple[set[Exponents], list[Exponents]]:
    """Return all monomials that divide one of the given ones, and the given ones that divide no other.

    The search stops soon after the number of divisors has passed the limit.
    """
    dividing: set[Exponents] = set()
    largest: list[Exponents] = []
    for monomial in sorted(set(exponents), key=sum, reverse=True):
        if monomial in dividing:
            continue
        largest.append(monomial)
        below = itertools.product(*(range(exponent + 1) for exponent in monomial))
        dividing.update(itertools.islice(below, limit + 1))
        if len(dividing) > limit:
            break
    return dividing, largest
