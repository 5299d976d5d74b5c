r"""Exact averages of products of polynomials in Gaussian fields, over any commutative ring.

Factors :math:`F_b`, which are polynomials in their fields, are averaged together by the diagram formula: links between
fields of different factors, and for each factor the average of the derivatives that correspond to its links,

.. math:: E\Big[\prod_b F_b\Big] = \sum_N \prod_{u<v} \frac{C_{uv}^{N_{uv}}}{N_{uv}!}
          \prod_b E\big[\partial^{\alpha_b} F_b\big], \qquad \alpha_u = \sum_v N_{uv}

Averages within a factor follow from :math:`E[x_u G] = \sum_v C_{uv} E[\partial_v G]`. Covariances may be numbers
(``Fraction``: the averages are then exact) or symbols (elements of a polynomial ring: the averages are then formulas).
There are no divisions, so that two factors may share a field, and any covariance may be zero.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, Protocol, runtime_checkable

from twolayer.core.multivariate import Exponents, TooLarge


@runtime_checkable
class Coefficient(Protocol):
    """An exact number, or an element of a polynomial ring."""

    def __add__(self, other: Any, /) -> Any: ...

    def __mul__(self, other: Any, /) -> Any: ...


Covariance = Callable[[Any, Any], Any]


class FieldPolynomial(NamedTuple):
    """A polynomial in named fields, as a mapping from exponents to exact coefficients."""

    fields: tuple[Hashable, ...]
    terms: Mapping[Exponents, Any]


def slope(factor: FieldPolynomial, index: int) -> FieldPolynomial:
    """Return the derivative of a factor with respect to its field number ``index``."""
    lowered = {
        (*exponents[:index], exponents[index] - 1, *exponents[index + 1 :]): exponents[index] * coefficient
        for exponents, coefficient in factor.terms.items()
        if exponents[index]
    }
    return FieldPolynomial(factor.fields, lowered)


class Wick:
    """Averages of products of polynomials at one covariance, ``covariance(field, field)``.

    Raises `TooLarge` once the sum over links has more than ``max_terms`` terms.

    Checked against: Gauss-Hermite rules, which are exact for polynomials.
    """

    def __init__(self, covariance: Covariance, max_terms: int = 100_000):
        self.covariance = covariance
        self.max_terms = max_terms
        self._moments: dict[tuple[tuple[Hashable, ...], Exponents], Any] = {}

    def average(self, *factors: FieldPolynomial) -> Coefficient:
        """Return the average of the product of the factors."""
        fields = [field for factor in factors for field in factor.fields]
        room = [max((e[n] for e in factor.terms), default=0) for factor in factors for n in range(len(factor.fields))]
        states: dict[Exponents, Any] = {(0,) * len(fields): 1}
        end = 0
        for factor in factors:
            begin, end = end, end + len(factor.fields)
            for u, v in itertools.product(range(begin, end), range(end, len(fields))):
                C = self.covariance(fields[u], fields[v])
                if C != 0:
                    states = _linked(states, u, v, C, room)
                    self._check(states)
            states = self._closed(states, factor, begin, end)
            self._check(states)
        return sum(states.values())

    def _closed(
        self, states: dict[Exponents, Any], factor: FieldPolynomial, begin: int, end: int
    ) -> dict[Exponents, Any]:
        """Return the states after a factor has all its links: it is averaged, and its links are removed."""
        averages: dict[Exponents, Any] = {}
        closed: dict[Exponents, Any] = {}
        for links, value in states.items():
            orders = links[begin:end]
            if orders not in averages:
                averages[orders] = self._derivative(factor, orders)
            if averages[orders] != 0:
                key = (*links[:begin], *(0 for _ in orders), *links[end:])
                closed[key] = closed.get(key, 0) + value * averages[orders]
        return closed

    def _check(self, states: dict[Exponents, Any]) -> None:
        if sum(_length(value) for value in states.values()) > self.max_terms:
            raise TooLarge(f"An average of polynomials may have at most {self.max_terms} terms.")

    def _derivative(self, factor: FieldPolynomial, orders: Exponents) -> Any:
        """Return the average of one derivative of a factor."""
        total: Any = 0
        for exponents, coefficient in factor.terms.items():
            if all(n >= order for n, order in zip(exponents, orders, strict=True)):
                falling = math.prod(math.perm(n, order) for n, order in zip(exponents, orders, strict=True))
                left = tuple(n - order for n, order in zip(exponents, orders, strict=True))
                total = total + self._moment(factor.fields, left) * (falling * coefficient)
        return total

    def _moment(self, fields: tuple[Hashable, ...], exponents: Exponents) -> Any:
        """Return the average of one monomial, by pairing one field with each of the others."""
        if sum(exponents) % 2:
            return 0
        if not any(exponents):
            return 1
        if (fields, exponents) not in self._moments:
            first = next(n for n, exponent in enumerate(exponents) if exponent)
            reduced = (*exponents[:first], exponents[first] - 1, *exponents[first + 1 :])
            total: Any = 0
            for n, exponent in enumerate(reduced):
                C = self.covariance(fields[first], fields[n]) if exponent else 0
                if C != 0:
                    lower = (*reduced[:n], exponent - 1, *reduced[n + 1 :])
                    total = total + C * (exponent * self._moment(fields, lower))
            self._moments[fields, exponents] = total
        return self._moments[fields, exponents]


def _length(value: Any) -> int:
    """Return the number of terms of a formula; 1 for a number."""
    return len(value) if hasattr(value, "__len__") else 1


def _linked(states: dict[Exponents, Any], u: int, v: int, C: Any, room: list[int]) -> dict[Exponents, Any]:
    """Return the states after any number of links between fields u and v, up to the ``room`` of each field."""
    powers = [1]
    for n in range(1, min(room[u], room[v]) + 1):
        powers.append(powers[-1] * C * Fraction(1, n))
    linked: dict[Exponents, Any] = {}
    for links, value in states.items():
        for n in range(min(room[u] - links[u], room[v] - links[v]) + 1):
            more = list(links)
            more[u] += n
            more[v] += n
            key = tuple(more)
            linked[key] = linked.get(key, 0) + value * powers[n]
    return linked
