"""The tables of the diagram formula for polynomials, which depend on the student's activation and the target only.

See `polynomial_tables` for the formula.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from twolayer.core.multivariate import (
    Exponents,
    divisors,
    from_coefficients,
    in_hermite,
    over_integers,
    square,
)

# The largest length of a table, and number of products of two terms in the square of the target. At these limits the
# tables take seconds to build, once, and an evaluation takes about ten milliseconds.
MAX_TERMS = 100_000
MAX_PRODUCTS = 1_000_000


class Polynomials(NamedTuple):
    """The student's activation and the target, which determine the tables."""

    coefficients: tuple[float, ...]
    k: int
    terms: tuple[tuple[Exponents, float], ...]

    @property
    def degree(self) -> int:
        """The degree of the activation, at least two, so that there is a second derivative."""
        return max(len(self.coefficients) - 1, 2)

    @property
    def total_degree(self) -> int:
        """The degree of the largest product, two slopes and the square of the displacement."""
        target = max((sum(exponents) for exponents, _ in self.terms), default=0)
        return 2 * (self.degree - 1) + 2 * max(self.degree, target)


class Orders(NamedTuple):
    """Orders of differentiation as rows; ``up`` holds the index of the row with one more derivative in a field."""

    alpha: Int[np.ndarray, "terms fields"]
    up: Int[np.ndarray, "terms fields"]  # the number of rows if there is no such row

    @property
    def total(self) -> Int[np.ndarray, " terms"]:
        """The total order of each row."""
        return self.alpha.sum(axis=1)

    @property
    def highest(self) -> int:
        """The highest total order."""
        return int(self.total.max())


class DerivativeAverages(NamedTuple):
    """A polynomial, given by the averages of its derivatives at the covariance ``base`` times the identity."""

    orders: Orders
    averages: Float[np.ndarray, " terms"]
    base: float


class GrownTable(NamedTuple):
    """A table after some units were added; ``keep`` selects its rows from those of the stage before."""

    orders: Orders
    keep: Int[np.ndarray, " terms"]


class Stages(NamedTuple):
    r"""The intermediate tables of averages over three and four factors; the last unit needs no table.

    Two slopes with the square of the target, :math:`f^2 \sigma'_j \sigma'_l`; with the target and a unit,
    :math:`f \sigma'_j \sigma'_l \sigma_m`; with two units, :math:`\sigma'_j \sigma'_l \sigma_m \sigma_n`.
    """

    ff: tuple[GrownTable, ...]
    fs: tuple[GrownTable, ...]
    ss: tuple[GrownTable, ...]


def _orders(rows: Sequence[Exponents] | np.ndarray, fields: int) -> Orders:
    alpha = np.asarray(rows, dtype=np.int64).reshape(len(rows), fields)
    position = {tuple(row): index for index, row in enumerate(alpha.tolist())}
    up = np.full(alpha.shape, len(alpha))
    for row, index in position.items():
        for field in range(fields):
            up[index, field] = position.get((*row[:field], row[field] + 1, *row[field + 1 :]), len(alpha))
    return Orders(alpha, up)


def _block(orders: Orders, monomials: dict[Exponents, int], denominator: int) -> DerivativeAverages:
    """Return the block at the base where less cancels: where the sum of the norms of its terms is smaller."""
    hermite = in_hermite(monomials)
    is_hermite = _norms(hermite, math.factorial) < _norms(monomials, lambda n: math.prod(range(1, 2 * n, 2)))
    terms = hermite if is_hermite else monomials
    averages = np.zeros(len(orders.alpha))
    for index, exponents in enumerate(map(tuple, orders.alpha.tolist())):
        above = terms.get(exponents, 0) * math.prod(map(math.factorial, exponents))
        try:
            averages[index] = above / denominator
        except OverflowError:
            averages[index] = np.inf
    return DerivativeAverages(orders, averages, float(is_hermite))


def _norms(terms: dict[Exponents, int], squared_norm: Callable[[int], int]) -> int:
    return sum(math.isqrt(c * c * math.prod(map(squared_norm, exponents))) for exponents, c in terms.items())


@lru_cache(maxsize=64)
def student_block(polynomials: Polynomials) -> DerivativeAverages:
    """Return the block of the student's activation."""
    terms, denominator = over_integers(from_coefficients(polynomials.coefficients).terms)
    return _block(_orders(np.arange(polynomials.degree + 1), 1), terms, denominator)


@lru_cache(maxsize=64)
def target_block(polynomials: Polynomials, power: int) -> DerivativeAverages:
    """Return the block of the target (``power`` one) or of its square (two)."""
    terms, denominator = over_integers(dict(polynomials.terms))
    if power == 2:
        terms, denominator = square(terms), denominator**2
    return _block(_orders(sorted(_target_orders(polynomials, power)), polynomials.k), terms, denominator)


@lru_cache(maxsize=64)
def _target_orders(polynomials: Polynomials, power: int) -> set[Exponents]:
    """Return the orders at which the derivative of the target (or of its square) is not zero, including order zero."""
    orders, largest = divisors([(0,) * polynomials.k, *dict(polynomials.terms)], MAX_TERMS)
    if power == 2 and len(orders) <= MAX_TERMS:
        orders, _ = divisors({tuple(np.add(e1, e2).tolist()) for e1 in largest for e2 in largest}, MAX_TERMS)
    return orders


def _joining(degree: int) -> dict[str, tuple[int, ...]]:
    """Return the degrees of the units that are added in each chain of `Stages`; slopes have one less."""
    return {"ff": (degree - 1, degree - 1), "fs": (degree - 1, degree - 1, degree), "ss": (degree - 1, degree, degree)}


@lru_cache(maxsize=64)
def stages_of(polynomials: Polynomials) -> Stages:
    """Return the intermediate tables of averages with two slopes."""
    degree = polynomials.degree
    averages = student_block(polynomials).averages
    # Orders at which the average of a derivative can be nonzero: half of them if there is a parity.
    is_live = np.array([np.any(averages[order::2] != 0.0) for order in range(degree + 1)])
    starts = {
        "ff": target_block(polynomials, 2).orders,
        "fs": target_block(polynomials, 1).orders,
        "ss": _orders(np.arange(degree), 1),
    }
    last = {"ff": is_live[1:], "fs": is_live, "ss": is_live}
    return Stages(**{name: _chain(starts[name], units, last[name]) for name, units in _joining(degree).items()})


def _chain(start: Orders, units: tuple[int, ...], is_live: np.ndarray) -> tuple[GrownTable, ...]:
    """Return the stages when units of these degrees are added, all but the last one, whose live orders are given.

    A derivative of higher total order than the remaining units can have is omitted.
    """
    left = sum(units)
    keep = np.flatnonzero(start.total <= left)
    stages = [GrownTable(_orders(start.alpha[keep], start.alpha.shape[1]), keep)]
    for unit in units[:-1]:
        left -= unit
        before = stages[-1].orders.alpha
        alpha = np.column_stack([np.repeat(before, unit + 1, axis=0), np.tile(np.arange(unit + 1), len(before))])
        keep = np.flatnonzero(alpha.sum(axis=1) <= left)
        stages.append(GrownTable(_orders(alpha[keep], alpha.shape[1]), keep))
    orders, keep = stages.pop()
    live = is_live[orders.total]
    return (*stages, GrownTable(Orders(orders.alpha[live], orders.up[live]), keep[live]))


def _longest(totals: np.ndarray, units: tuple[int, ...]) -> int:
    """Return the length of the longest table of `_chain` from the total orders at its start, without building it."""
    left = sum(units)
    number, longest = np.bincount(totals[totals <= left], minlength=left + 1), 0
    for unit in units[:-1]:
        left -= unit
        number = np.convolve(number, np.ones(unit + 1, dtype=int))[: left + 1]
        longest = max(longest, int(number.sum()))
    return longest


def refusal(polynomials: Polynomials, moment: str) -> str:
    """Return why the tables for a moment are too large, or an empty string."""
    powers = (1,) if moment in ("chi", "v") else (1, 2)
    products = len(polynomials.terms) ** 2
    if 2 in powers and products > MAX_PRODUCTS:
        return f"the square of the target needs {products} products of terms, the limit is {MAX_PRODUCTS}"
    lengths = []
    for power in powers:
        orders = _target_orders(polynomials, power)
        lengths.append(len(orders))
        if moment == "phi_hd" and len(orders) <= MAX_TERMS:
            units = _joining(polynomials.degree)["fs" if power == 1 else "ff"]
            lengths.append(_longest(np.array([sum(exponents) for exponents in orders]), units))
    if moment == "phi_hd":
        lengths.append(_longest(np.arange(polynomials.degree), _joining(polynomials.degree)["ss"]))
    if max(lengths) > MAX_TERMS:
        return f"the exact average is a sum of {max(lengths)} terms or more, the limit is {MAX_TERMS}"
    if not all(np.all(np.isfinite(target_block(polynomials, power).averages)) for power in powers):
        return "the coefficients of the target exceed the range of floating-point numbers"
    return ""
