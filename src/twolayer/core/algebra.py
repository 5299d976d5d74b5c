"""Write polynomials in many unknowns as readable formulas: extract common factors, collect terms, factor if cheap."""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sympy as sp

# Unknown -> power, sorted; powers may be negative. A polynomial maps these to exact coefficients.
Monomial = tuple[tuple[Hashable, int], ...]
Terms = Mapping[Monomial, Fraction]

# Factoring takes milliseconds up to these sizes, and may take minutes beyond: it works on dense arrays of coefficients.
MAX_TERMS = 30
MAX_DENSE = 1000
# A coefficient with a larger denominator is printed as a decimal number.
MAX_DENOMINATOR = 10**6


def as_fraction(value: float) -> Fraction:
    """Return the fraction that a float stands for: a simple one within a few roundings, else its printed decimal.

    The square of 0.1 becomes 1/100, and 15 times 1/7 becomes 15/7 although the float was rounded twice.
    """
    simple = Fraction(value).limit_denominator(1000)
    if abs(float(simple) - value) <= 4 * math.ulp(value):
        return simple
    return Fraction(repr(float(value)))


def tidy(
    terms: Terms,
    symbol: Callable[[Any], Any],
    rank: Callable[[Any], int | None] = lambda key: None,
    times: "sp.Expr | int" = 1,
) -> "sp.Expr":
    """Return a polynomial as a sympy expression: the common factor in front, the quotient factored or collected.

    Parameters
    ----------
    terms
        The polynomial.
    symbol
        Function that gives the sympy expression of an unknown.
    rank
        Function that gives the order in which unknowns are collected by powers; None for unknowns that are not.
    times
        Expression to multiply by. Without it, sympy would multiply a sum by a number term by term.
    """
    import sympy as sp

    terms = {monomial: coefficient for monomial, coefficient in terms.items() if coefficient}
    if not terms:
        return sp.Integer(0)
    shift, content, quotient = _split_common_factor(terms)
    front = sp.Mul(times, sympy_number(content), *(symbol(key) ** power for key, power in shift))
    if len(quotient) == 1:
        return front
    factors = [(*_oriented(factor, rank), power) for factor, power in _factored(quotient)]
    sign = math.prod(sign**power for _, sign, power in factors)
    return sp.Mul(sign * front, *(_collected(factor, symbol, rank) ** power for factor, _, power in factors))


def _split_common_factor(terms: Terms) -> tuple[Monomial, Fraction, dict[Monomial, Fraction]]:
    """Split off the common factor: the lowest powers of the unknowns, the divisor of the coefficients, the quotient."""
    powers: dict[Hashable, list[int]] = {}
    for monomial in terms:
        for key, power in monomial:
            powers.setdefault(key, []).append(power)
    lowest = {
        key: min(exponents) if len(exponents) == len(terms) else min(0, *exponents) for key, exponents in powers.items()
    }
    shift = tuple(sorted(((key, power) for key, power in lowest.items() if power), key=repr))
    content = Fraction(1)
    if _are_simple(terms):
        content = Fraction(
            math.gcd(*(coefficient.numerator for coefficient in terms.values())),
            math.lcm(*(coefficient.denominator for coefficient in terms.values())),
        )
    if len(terms) == 1:
        content = next(iter(terms.values()))
    if not shift:
        return shift, content, {monomial: coefficient / content for monomial, coefficient in terms.items()}
    quotient = {}
    for monomial, coefficient in terms.items():
        remaining = dict(monomial)
        for key, power in shift:
            remaining[key] = remaining.get(key, 0) - power
        quotient[tuple((key, power) for key, power in remaining.items() if power)] = coefficient / content
    return shift, content, quotient


def _are_simple(terms: Terms) -> bool:
    return all(coefficient.denominator <= MAX_DENOMINATOR for coefficient in terms.values())


def sympy_number(value: Fraction) -> "sp.Expr":
    """Return a coefficient as a sympy number: a fraction, or a decimal where the fraction would be unreadable."""
    import sympy as sp

    if value.denominator <= MAX_DENOMINATOR:
        return sp.Rational(value.numerator, value.denominator)
    return sp.Float(sp.Rational(value.numerator, value.denominator), 17)


def _factored(terms: dict[Monomial, Fraction]) -> list[tuple[dict[Monomial, Fraction], int]]:
    """Return the factors of a polynomial with their powers; a polynomial that is too large stays one factor."""
    keys = sorted({key for monomial in terms for key, _ in monomial}, key=repr)
    dense = math.prod(1 + max(dict(monomial).get(key, 0) for monomial in terms) for key in keys[:MAX_TERMS])
    if len(terms) > MAX_TERMS or dense > MAX_DENSE or not _are_simple(terms):
        return [(terms, 1)]
    from sympy import QQ
    from sympy.polys.rings import PolyRing

    ring = PolyRing([f"x{n}" for n in range(len(keys))], QQ)
    exponents = {tuple(dict(monomial).get(key, 0) for key in keys): c for monomial, c in terms.items()}
    content, factor_list = ring.from_dict(
        {e: QQ(c.numerator, c.denominator) for e, c in exponents.items()}
    ).factor_list()
    factors = []
    for factor, power in _merged(factor_list):
        plain = {
            tuple((key, n) for key, n in zip(keys, e, strict=True) if n): Fraction(int(c.numerator), int(c.denominator))
            for e, c in factor.items()
        }
        factors.append((plain, power))
    # The common divisor of the coefficients was split off before, so the content is 1 or -1.
    return factors if content > 0 else [({(): Fraction(-1)}, 1), *factors]


def _oriented(
    terms: dict[Monomial, Fraction], rank: Callable[[Any], int | None]
) -> tuple[dict[Monomial, Fraction], int]:
    """Choose the sign of a factor that reads best, and return the factor and this sign.

    Terms without collected unknowns are mostly positive. On a tie the constant is positive: 1 - x, not x - 1.
    """
    leading = {m: c for m, c in terms.items() if all(rank(key) is None for key, _ in m)} or terms
    balance = sum(1 if coefficient > 0 else -1 for coefficient in leading.values())
    if balance > 0 or (balance == 0 and terms.get((), 0) >= 0):
        return terms, 1
    return {monomial: -coefficient for monomial, coefficient in terms.items()}, -1


def _merged(factors: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Multiply out factors whose product has no more terms than they have: (x - 1)(x + 1) becomes x**2 - 1."""
    factors = list(factors)
    for (first, power), (second, other_power) in itertools.combinations(factors, 2):
        if power == other_power and len(first * second) <= max(len(first), len(second)):
            unchanged = [pair for pair in factors if pair[0] not in (first, second)]
            return _merged([*unchanged, (first * second, power)])
    return factors


def _collected(terms: dict[Monomial, Fraction], symbol: Callable[[Any], Any], rank: Callable[[Any], int | None]) -> Any:
    """Collect terms by powers of the unknown with the lowest rank that has several powers, or return the plain sum."""
    import sympy as sp

    keys = {key for monomial in terms for key, _ in monomial}
    for key in sorted((key for key in keys if rank(key) is not None), key=lambda key: (rank(key), repr(key))):
        groups: dict[int, dict[Monomial, Fraction]] = {}
        for monomial, coefficient in terms.items():
            power = dict(monomial).get(key, 0)
            groups.setdefault(power, {})[tuple(pair for pair in monomial if pair[0] != key)] = coefficient
        if len(groups) > 1:
            return sp.Add(*(tidy(group, symbol, rank, symbol(key) ** power) for power, group in groups.items()))
    return sp.Add(
        *(
            sp.Mul(sympy_number(coefficient), *(symbol(key) ** power for key, power in monomial))
            for monomial, coefficient in terms.items()
        )
    )
