"""Compute Hermite tensors: by exact arithmetic for polynomials, closed families, and quadrature for other functions."""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from twolayer.core.errors import InvalidInput
from twolayer.core.multivariate import in_hermite
from twolayer.core.precision import double
from twolayer.expectation.qmc import SCRAMBLINGS, T_QUANTILE, scrambled_normals
from twolayer.expectation.rules import QuadratureRule, gauss_hermite, legendre_rule
from twolayer.learnability.formula import Factor, Formula, vanishes
from twolayer.learnability.tensors import (
    MAX_MONOMIALS,
    HermiteTable,
    bound_beyond,
    factorials,
    monomial_count,
    monomials,
)
from twolayer.problem import AbstractTarget

ROUNDING = 5e-14
# Safety factor of errors, since two rules that agree may both be slightly wrong.
SAFETY = 4.0
# The line is cut at this many deviations; the weight beyond is 1e-32, or 1e-12 of He_8 squared at the narrower one.
REACH, NARROW = 12.0, 8.5
# For a function of that many variables: order of a product rule, and panels and nodes of a composite one.
GRID = {1: (128, 48, 24), 2: (80, 12, 16), 3: (40, 3, 12), 4: (20, 1, 14)}
LOG2_POINTS = 14
# Orders of tensors for functions that are not polynomials.
ORDERS = {1: 12, 2: 12, 3: 9, 4: 7}


def orders_for(k: int) -> int:
    """Return how many orders of tensors are computed for a function of k variables that is not a polynomial."""
    orders = ORDERS.get(k, 5)
    while orders > 2 and monomial_count(k, orders) > MAX_MONOMIALS:
        orders -= 1
    return orders


def hermite_values(x: np.ndarray, orders: int) -> np.ndarray:
    """Return He_0 .. He_orders at each point, an array of shape (orders + 1, points)."""
    polynomials = [np.ones_like(x), x]
    for n in range(1, orders):
        polynomials.append(x * polynomials[-1] - n * polynomials[-2])
    return np.stack(polynomials[: orders + 1])


# ------------------------------------------------------------------------------------------------ polynomials


def from_polynomial(terms: dict[tuple[int, ...], Any], k: int) -> HermiteTable:
    """Return the tensors of a polynomial with exact coefficients; its zeros are proved."""
    degree = max((sum(e) for e in terms), default=0)
    if monomial_count(k, degree) > MAX_MONOMIALS:
        raise InvalidInput(
            f"A polynomial of degree {degree} in {k} fields has more tensor entries than can be computed."
        )
    hermite = {e: c for e, c in in_hermite(terms).items() if isinstance(c, Fraction | int) or not vanishes(c)}
    degree = max((sum(e) for e in hermite), default=0)
    values, zeros = [], []
    for n in range(degree + 1):
        exact = [hermite.get(tuple(map(int, beta)), 0) for beta in monomials(k, n)]
        values.append(np.array([float(c) for c in exact]) * factorials(k, n))
        zeros.append(np.array([not c for c in exact]))
    errors = [ROUNDING * np.abs(c) for c in values]
    variance = float(sum(np.sum(c**2 / factorials(k, n)) for n, c in enumerate(values) if n))
    return HermiteTable(k, values, errors, variance, 0.0, zeros, how="exact")


# -------------------------------------------------------------------------------------------- closed families


@lru_cache(maxsize=8)
def line_points(breaks: tuple[float, ...], nodes: int, reach: float) -> QuadratureRule:
    """Return a rule on the line: panels of a quarter of a deviation, which also end at kinks."""
    ends = np.unique(np.concatenate([np.arange(-reach, reach + 0.1, 0.25), [b for b in breaks if abs(b) < reach]]))
    x, w = legendre_rule(nodes)
    half = 0.5 * np.diff(ends)
    points = (0.5 * (ends[1:] + ends[:-1])[:, None] + half[:, None] * x).ravel()
    weights = (half[:, None] * w).ravel() * np.exp(-0.5 * points**2) / math.sqrt(2.0 * math.pi)
    return QuadratureRule(points, weights)


def line_coefficients(
    function: Callable[[np.ndarray], np.ndarray], orders: int, breaks: tuple[float, ...] = (0.0,), scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return E[g(s x) He_n(x)] for n up to ``orders`` with errors, and E[g(s x)^2], for a function of one variable."""
    averages = []
    for nodes in (24, 17):
        x, w = line_points(tuple(b / scale for b in breaks), nodes, REACH)
        values = function(scale * x)
        averages.append((hermite_values(x, orders) @ (w * values), float(w @ values**2), w @ np.abs(values)))
    (fine, square, size), (coarse, _, _) = averages
    norms = np.sqrt([float(math.factorial(n)) for n in range(orders + 1)])
    error = SAFETY * np.abs(fine - coarse) + ROUNDING * norms * (math.sqrt(square) + size)
    return fine, error, square


def _degrees(factor: Factor, limit: int) -> frozenset[int]:
    """Return the degrees that the Hermite series of a function of one variable can have."""
    powers = factor.powers
    if powers is not None:
        return frozenset(e for (e,) in in_hermite({(n,): c for n, c in powers.items()}))  # pyright: ignore
    parity = factor.parity()
    return frozenset(n for n in range(limit + 1) if parity == 0 or (-1) ** n == parity)


def _factor_table(factor: Factor, orders: int) -> tuple[np.ndarray, np.ndarray, tuple[frozenset[int], ...], float]:
    """Return the coefficients of a factor with errors, its possible degrees, and the mean of its square."""
    limit = 2 * MAX_DEGREE
    if len(factor.variables) > 1:
        grid = grid_coefficients(lambda z: factor.function()(*np.moveaxis(z, -1, 0)), len(factor.variables), orders)
        return *grid, (frozenset(range(limit + 1)),) * len(factor.variables), np.nan
    degrees = _degrees(factor, limit)
    value, error, square = line_coefficients(factor.function(), orders, tuple(factor.kinks(REACH)))
    possible = np.array([n in degrees for n in range(orders + 1)])
    return np.where(possible, value, 0.0), np.where(possible, error, 0.0), (degrees,), square


MAX_DEGREE = 24


def from_terms(
    terms: list[tuple[float, list[Factor]]], k: int, evaluate: Callable[[np.ndarray], np.ndarray]
) -> HermiteTable:
    """Return the tensors of a sum of products, which are products of the coefficients of the factors."""
    orders = orders_for(k)
    exponents = [monomials(k, n) for n in range(orders + 1)]
    values = [np.zeros(len(m)) for m in exponents]
    errors = [np.zeros(len(m)) for m in exponents]
    possible = [np.zeros(len(m), dtype=bool) for m in exponents]
    support = []
    cache: dict[Any, Any] = {}
    for number, factors in terms:
        tables = []
        degrees: list[frozenset[int]] = [frozenset([0])] * k
        for factor in factors:
            key = (factor.form, factor.variables)
            if key not in cache:
                cache[key] = _factor_table(factor, orders)
            table = cache[key]
            tables.append((factor.variables, table[0], table[1]))
            for place, allowed in zip(factor.variables, table[2], strict=True):
                degrees[place] = allowed
        support.append(tuple(degrees))
        for n, betas in enumerate(exponents):
            allowed = np.all([[b in degrees[i] for b in betas[:, i]] for i in range(k)], axis=0)
            value, error = np.full(len(betas), number), np.zeros(len(betas))
            for variables, c, e in tables:
                at = tuple(betas[:, i] for i in variables)
                value, error = value * c[at], np.abs(value) * e[at] + error * (np.abs(c[at]) + e[at])
            values[n] += np.where(allowed, value, 0.0)
            errors[n] += np.where(allowed, error, 0.0)
            possible[n] |= allowed
    variance = _variance(evaluate, k, float(values[0][0]))
    zeros = [~p for p in possible]
    used = tuple(support)
    return HermiteTable(
        k, values, errors, variance, bound_beyond(values, errors, variance, k), zeros, used, how="closed family"
    )


Ridge = tuple[Callable[[np.ndarray], np.ndarray], tuple[float, ...], float, np.ndarray]


def from_ridges(ridges: list[Ridge], evaluate: Callable[[np.ndarray], np.ndarray]) -> HermiteTable:
    r"""Return the tensors :math:`C_n = \sum_r w_r h_n\,\hat a_r^{\otimes n}` of :math:`\sum_r w_r g_r(a_r \cdot z)`.

    A ridge consists of a function, its kinks, its weight and its vector;
    :math:`h_n = E[g_r(|a_r| x)\,\mathrm{He}_n(x)]`. A constant may be omitted.
    """
    rows = np.stack([row for *_, row in ridges])
    k = rows.shape[1]
    orders = orders_for(k)
    values = [np.zeros(monomial_count(k, n)) for n in range(orders + 1)]
    errors = [np.zeros(monomial_count(k, n)) for n in range(orders + 1)]
    for function, kinks, weight, row in ridges:
        length = float(np.linalg.norm(row))
        c, e, _ = line_coefficients(function, orders, (0.0, *kinks), length)
        for n in range(orders + 1):
            shape = np.prod((row / length) ** monomials(k, n), axis=1)
            values[n] += weight * c[n] * shape
            errors[n] += abs(weight) * (e[n] + ROUNDING * abs(c[n])) * np.abs(shape)
    variance = _variance(evaluate, k, _mean(evaluate, k))
    return HermiteTable(
        k, values, errors, variance, bound_beyond(values, errors, variance, k), ridges=rows, how="closed family"
    )


# ------------------------------------------------------------------------------------------------- quadrature


@lru_cache(maxsize=16)
def axis_rules(k: int) -> tuple[tuple[QuadratureRule, QuadratureRule], ...]:
    """Return pairs of a fine and a coarse rule for one of k variables: for smooth functions, and with panels from 0."""
    order, panels, nodes = GRID[k]
    pairs = [(gauss_hermite(order), gauss_hermite(int(0.7 * order) | 1))]

    def composite(nodes: int) -> QuadratureRule:
        ends = np.linspace(-NARROW, NARROW, 2 * panels + 1)
        x, w = legendre_rule(nodes)
        half = 0.5 * np.diff(ends)
        points = (0.5 * (ends[1:] + ends[:-1])[:, None] + half[:, None] * x).ravel()
        weights = (half[:, None] * w).ravel() * np.exp(-0.5 * points**2) / math.sqrt(2.0 * math.pi)
        return QuadratureRule(points, weights / weights.sum())

    return (*pairs, (composite(nodes), composite(int(0.7 * nodes) | 1)))


def _on_grid(values: np.ndarray, rule: QuadratureRule, k: int, orders: int) -> np.ndarray:
    """Return all averages of values with Hermite polynomials of the variables, one axis after the other."""
    matrix = hermite_values(np.asarray(rule.points), orders) * rule.weights
    for _ in range(k):
        values = np.tensordot(values, matrix, axes=(0, 1))
    return values


def grid_of(rule: QuadratureRule, k: int) -> np.ndarray:
    """Return the points of a product rule, an array of shape (n, .., n, k)."""
    return np.stack(np.meshgrid(*[rule.points] * k, indexing="ij"), axis=-1)


def grid_coefficients(
    function: Callable[[np.ndarray], np.ndarray], k: int, orders: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return E[f He_b1(z1) .. He_bk(zk)] for all b up to ``orders`` in each variable, with errors from a coarser rule.

    The rule is a product rule for smooth functions, or a composite one for jumps where a variable is zero: the one that
    agrees better with its coarser version. From five variables on, scrambled nets are used.
    """
    if k > max(GRID):
        return _cloud_coefficients(function, k, orders)
    best: tuple[np.ndarray, np.ndarray] | None = None
    norms = np.sqrt([float(math.factorial(n)) for n in range(orders + 1)])
    for _ in range(k - 1):
        norms = np.multiply.outer(norms, np.sqrt([float(math.factorial(n)) for n in range(orders + 1)]))
    for fine, coarse in axis_rules(k):
        results = [_on_grid(function(grid_of(rule, k)), rule, k, orders) for rule in (fine, coarse)]
        if not all(np.all(np.isfinite(r)) for r in results):
            continue
        error = SAFETY * np.abs(results[0] - results[1]) + ROUNDING * norms * _typical(results[0])
        if best is None or np.sum(error / norms) < np.sum(best[1] / norms):
            best = results[0], error
        if np.max(error / norms) < 1e-12 * _typical(results[0]):
            break
    if best is None:
        raise InvalidInput("The averages of the target are not finite.")
    return best


def _typical(coefficients: np.ndarray) -> float:
    return float(np.max(np.abs(coefficients.ravel()[: 1 + 4 * coefficients.ndim]))) + 1e-300


def _cloud_coefficients(
    function: Callable[[np.ndarray], np.ndarray], k: int, orders: int
) -> tuple[np.ndarray, np.ndarray]:
    estimates = []
    for seed in range(SCRAMBLINGS):
        z = scrambled_normals(k, LOG2_POINTS, seed)
        values = function(z)
        tables = [hermite_values(z[:, i], orders) for i in range(k)]
        result = np.zeros((orders + 1,) * k)
        for n in range(orders + 1):
            for beta in monomials(k, n):
                product = values
                for i, b in enumerate(beta):
                    product = product * tables[i][b] if b else product
                result[tuple(beta)] = np.mean(product)
        estimates.append(result)
    mean = np.mean(estimates, axis=0)
    return mean, T_QUANTILE * np.std(estimates, axis=0, ddof=1) / math.sqrt(SCRAMBLINGS) + ROUNDING


def from_values(function: Callable[[np.ndarray], np.ndarray], k: int, orders: int | None = None) -> HermiteTable:
    """Return the tensors of any function of k variables, by quadrature."""
    orders = orders_for(k) if orders is None else orders
    value, error = grid_coefficients(function, k, orders)
    at = [tuple(monomials(k, n).T) for n in range(orders + 1)]
    values, errors = [value[place] for place in at], [error[place] for place in at]
    variance = _variance(function, k, float(values[0][0]))
    return HermiteTable(k, values, errors, variance, bound_beyond(values, errors, variance, k), how="quadrature")


def _variance(function: Callable[[np.ndarray], np.ndarray], k: int, mean: float) -> float:
    if k > max(GRID):
        return float(np.mean([np.mean((function(scrambled_normals(k, LOG2_POINTS, s)) - mean) ** 2) for s in range(4)]))
    fine, _ = axis_rules(k)[1]
    return float(_on_grid((function(grid_of(fine, k)) - mean) ** 2, fine, k, 0).ravel()[0])


def _mean(function: Callable[[np.ndarray], np.ndarray], k: int) -> float:
    if k > max(GRID):
        return float(np.mean([np.mean(function(scrambled_normals(k, LOG2_POINTS, s))) for s in range(4)]))
    fine, _ = axis_rules(k)[1]
    return float(_on_grid(function(grid_of(fine, k)), fine, k, 0).ravel()[0])


# ---------------------------------------------------------------------------------------------------- targets


def values_of(target: AbstractTarget, formula: Formula | None, root: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the target as a function of NumPy arrays of independent normals; ``root`` maps them to fields.

    The formula is used if there is one, so that nothing is compiled. Values on grids are cached, since grids recur.
    """
    form = None if formula is None else formula.function()
    cache: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def evaluate(z: np.ndarray) -> np.ndarray:
        if z.shape in cache and np.array_equal(cache[z.shape][0], z):
            return cache[z.shape][1]
        fields = z @ root.T
        if form is not None:
            values = form(*np.moveaxis(fields, -1, 0))
        else:
            with double():
                values = np.asarray(target(jnp.asarray(fields)), dtype=float)
        cache[z.shape] = z, values
        return values

    return evaluate


def table_of(
    target: AbstractTarget, formula: Formula | None, root: np.ndarray, evaluate: Callable[[np.ndarray], np.ndarray]
) -> HermiteTable:
    """Return the Hermite tensors of a target in whitened variables, by the most accurate method that applies."""
    k = target.k
    is_white = np.allclose(root, np.eye(k), rtol=0, atol=1e-14)
    if formula is not None and is_white:
        polynomial = formula.polynomial
        if polynomial is not None and formula.is_exact:
            return from_polynomial(polynomial, k)
        terms = formula.terms() if polynomial is None else None
        if terms is not None and any(len(factor.variables) > 1 for _, factors in terms for factor in factors):
            ridges = formula.ridges()
            if ridges is not None:
                parts: list[Ridge] = [(f.function(), tuple(f.kinks(REACH)), 1.0, row) for f, row in ridges]
                return from_ridges(parts, evaluate)
        if terms is not None and (len(terms) > 1 or len(terms[0][1]) > 1 or k == 1):
            return from_terms(terms, k, evaluate)
    units = target.units
    if units is not None:
        activation = units.activation

        def unit(x: np.ndarray) -> np.ndarray:
            return numpy_values(activation, x)

        weights = np.asarray(units.weights)
        return from_ridges(
            [(unit, tuple(activation.kinks), float(w), row) for w, row in zip(weights, root, strict=True)], evaluate
        )
    rounded_polynomial = target.polynomial
    if rounded_polynomial is not None and k <= max(GRID):
        return _complete(from_values(evaluate, k, max(rounded_polynomial.degree, 1)))
    return from_values(evaluate, k)


def numpy_values(activation: Callable[[Array], Array], x: np.ndarray) -> np.ndarray:
    """Return an activation of a NumPy array, in double precision."""
    with double():
        return np.asarray(activation(jnp.asarray(x)), dtype=float)


def _complete(table: HermiteTable) -> HermiteTable:
    """Mark a table as complete: the function has no higher orders."""
    return dataclasses.replace(table, beyond=0.0, variance=float(np.sum(table.sizes()[1:] ** 2)))
