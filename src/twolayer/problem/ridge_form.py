r"""Write a target as a sum of functions of one field each, :math:`f = \sum_u c_u\,g_u(d_u \cdot \lambda^\star)`.

Committees are such sums, and so are formulas whose terms depend on one linear form each, such as
``tanh(z1 + z2) + abs(z2)``. Products of fields are sums of powers of linear forms,
:math:`z_1 z_2 = \tfrac14 (z_1 + z_2)^2 - \tfrac14 (z_1 - z_2)^2`, so that ``sin(z1) + z1*z2`` is one as well.
"""

import ast
import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput
from twolayer.core.multivariate import Polynomial, TooLarge, constant
from twolayer.problem import expression as formulas
from twolayer.problem.activations import AbstractActivation
from twolayer.problem.kinks import MOST, _factors, _surfaces, _zeros
from twolayer.problem.targets import AbstractTarget

# Coefficients below this size, relative to the largest one, are zero, and directions this close are equal.
TINY = 1e-12
# Products of more fields, or of higher powers, take too many linear forms.
MOST_FORMS = 16

Direction = tuple[float, ...]


class Along(eqx.Module):
    """A formula or a target along one line of its fields, as a function of one number."""

    function: Any
    line: Direction = eqx.field(static=True)
    kinks: tuple[float, ...] = eqx.field(static=True, default=())
    is_continuous: bool = eqx.field(static=True, default=True)
    degree: int | None = eqx.field(static=True, default=None)  # of a polynomial

    def __call__(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        return self.function(x[..., None] * jnp.asarray(self.line, x.dtype).reshape((1,) * x.ndim + (-1,)))


class Ridge(NamedTuple):
    """One term of a sum: a function of one number, the direction of its field, and its weight."""

    function: AbstractActivation | Along
    direction: Direction
    weight: Any


def ridges_of(target: AbstractTarget) -> tuple[Ridge, ...] | None:
    """Return the target as a sum of functions of one field each; None if it is not known to be one."""
    k = target.k
    if target.units is not None:
        activation, weights = target.units
        if not activation.has_known_kinks:
            return None
        return tuple(Ridge(activation, _axis(r, k), weights[r]) for r in range(k))
    text = _text(target)
    if text is not None:
        return _of_formula(text, k)
    if k == 1 and target.kinks is not None:
        along = Along(target, (1.0,), target.kinks[0], target.is_continuous, _degree(target.polynomial))
        return (Ridge(along, (1.0,), 1.0),)
    return None


def _degree(polynomial: Polynomial | None) -> int | None:
    return None if polynomial is None else polynomial.degree


def _text(target: AbstractTarget) -> str | None:
    for name in ("function", "link"):
        formula = getattr(target, name, None)
        if isinstance(formula, formulas.Expression):
            return formula.text
    return None


def _axis(r: int, k: int) -> Direction:
    return tuple(float(i == r) for i in range(k))


@lru_cache(maxsize=256)
def _of_formula(text: str, k: int) -> tuple[Ridge, ...] | None:
    polynomial, groups = constant(k, 0.0), {}
    try:
        for factor, node in _summands(formulas._parse(text), 1.0):
            try:
                polynomial = polynomial + formulas._as_polynomial(node, k) * factor
            except (formulas._NotPolynomial, TooLarge):
                directions = _directions(node, k)
                if len(directions) != 1:
                    return None
                groups.setdefault(directions.pop(), []).append(f"({factor!r})*({ast.unparse(node)})")
        mixed = _take_single_fields(polynomial, groups, k)
        products = _powers_of_forms(mixed, k)
        if products is None:
            return None
        return *(_along(" + ".join(terms), direction) for direction, terms in groups.items()), *products
    except InvalidInput:  # a formula that becomes too long or too deep when it is taken apart
        return None


def _summands(node: ast.expr, factor: float) -> list[tuple[float, ast.expr]]:
    """Return the terms of a sum with their factors."""
    match node:
        case ast.BinOp(left, ast.Add(), right):
            return _summands(left, factor) + _summands(right, factor)
        case ast.BinOp(left, ast.Sub(), right):
            return _summands(left, factor) + _summands(right, -factor)
        case ast.UnaryOp(op, operand):
            return _summands(operand, -factor if isinstance(op, ast.USub) else factor)
        case ast.BinOp(left, ast.Mult(), right) if not formulas._has_fields(left):
            return _summands(right, factor * formulas._constant(left))
        case ast.BinOp(left, ast.Mult() | ast.Div() as op, right) if not formulas._has_fields(right):
            value = formulas._constant(right)
            return _summands(left, factor * value if isinstance(op, ast.Mult) else factor / value)
    return [(factor, node)]


def _directions(node: ast.expr, k: int) -> set[Direction]:
    """Return the directions of the linear forms through which an expression depends on the fields."""
    if not formulas._has_fields(node):
        return set()
    try:
        polynomial = formulas._as_polynomial(node, k)
    except (formulas._NotPolynomial, TooLarge):
        polynomial = None
    if polynomial is not None and polynomial.degree <= 1:
        form = np.array([polynomial.terms.get(tuple(int(i == r) for i in range(k)), 0.0) for r in range(k)])
        if not np.any(form):
            return set()
        form = form / form[np.flatnonzero(form)[0]]
        return {tuple(float(x) for x in np.round(form / np.linalg.norm(form), 14))}
    children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if isinstance(node, ast.Call):
        children = list(node.args)
    return set().union(*(_directions(child, k) for child in children))


def _take_single_fields(polynomial: Polynomial, groups: dict[Direction, list[str]], k: int) -> Polynomial:
    """Move the monomials of one field, and the constant, to the groups of their directions; return the others."""
    mixed = {}
    for exponents, coefficient in polynomial.terms.items():
        used = [r for r, power in enumerate(exponents) if power]
        if len(used) > 1:
            mixed[exponents] = coefficient
            continue
        r = used[0] if used else 0
        direction = _axis(r, k) if used or not groups else next(iter(groups))
        groups.setdefault(direction, []).append(f"({coefficient!r})*z{r + 1}**{exponents[r]}")
    return Polynomial(k, mixed)


def _powers_of_forms(mixed: Polynomial, k: int) -> tuple[Ridge, ...] | None:
    """Write products of fields as sums of powers of linear forms."""
    weights: dict[tuple[int, Direction], float] = {}
    quadratic = np.zeros((k, k))
    for exponents, coefficient in mixed.terms.items():
        degree = sum(exponents)
        if degree == 2:
            i, j = (r for r, power in enumerate(exponents) if power)
            quadratic[i, j] = quadratic[j, i] = 0.5 * coefficient
            continue
        # The mixed difference of order `exponents` of the power of a linear form leaves the product of the fields.
        for counts in itertools.product(*(range(power + 1) for power in exponents)):
            if any(counts):
                share = math.prod(math.comb(a, b) for a, b in zip(exponents, counts, strict=True))
                share *= (-1.0) ** (degree - sum(counts)) * coefficient / math.factorial(degree)
                key = degree, tuple(float(count) for count in counts)
                weights[key] = weights.get(key, 0.0) + share
    values, vectors = np.linalg.eigh(quadratic) if k else (np.zeros(0), np.zeros((0, 0)))
    for value, vector in zip(values, vectors.T, strict=True):
        if abs(value) > TINY * np.max(np.abs(values)):
            weights[2, tuple(float(x) for x in vector)] = float(value)
    if len(weights) > MOST_FORMS:
        return None
    return tuple(Ridge(_power(degree), form, weight) for (degree, form), weight in weights.items())


@lru_cache(maxsize=32)
def _power(degree: int) -> Along:
    return Along(formulas.Expression(f"z1**{degree}"), (1.0,), degree=degree)


def _along(text: str, direction: Direction) -> Ridge:
    formula, k = formulas.Expression(text), len(direction)
    line = np.asarray(direction) / np.dot(direction, direction)
    kinks = () if formula.is_smooth else _kinks_along(text, line)
    along = Along(formula, tuple(float(x) for x in line), kinks, formula.is_continuous, _degree(formula.polynomial(k)))
    return Ridge(along, direction, 1.0)


def _kinks_along(text: str, line: np.ndarray) -> tuple[float, ...]:
    """Return the places along a line at which a formula of the field along it has a kink or a jump."""
    places: set[float] = set()
    for call in ast.walk(formulas._parse(text)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            for surface in _surfaces(call.func.id, call.args):
                for factor in _factors(surface):
                    if formulas._has_fields(factor):
                        places |= set(_zeros(_on_line(factor, line)))
    if len(places) > MOST:
        raise InvalidInput(f"A formula may have {MOST} kinks along one field at most, but {text} has {len(places)}.")
    return tuple(sorted(places))


def _on_line(node: ast.expr, line: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    from twolayer.core.precision import double

    def values(x: np.ndarray) -> np.ndarray:
        with double():
            fields = [jnp.asarray(x * component) for component in line]
            return np.broadcast_to(np.asarray(formulas._evaluate(node, fields)), x.shape)

    return values
