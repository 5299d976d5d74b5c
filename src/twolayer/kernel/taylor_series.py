r"""Taylor series of formulas in one linear form, with bounds on what is left out.

A part of a formula that varies along one direction only is a function of :math:`s = \beta \cdot x / \|\beta\|`, and its
series :math:`\sum_p c_p s^p` is computed from the formula by the rules for sums, products, quotients and functions of
series. Beside the coefficients a majorant :math:`F(R) \ge \sum_p |c_p| R^p` is computed by the same rules for absolute
values, at several radii: where it is finite at an :math:`R > 1`, :math:`|c_p| \le F(R)/R^p` bounds every later term.
"""

import ast
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.core.precision import double
from twolayer.problem.expression import Expression

# Powers of a series at most, radii at which majorants are known, and the largest of them.
MOST_POWERS = 3000
RADII, LARGEST_RADIUS = 400, 16.0
# The terms that are left out change the bound by this part of it at most.
NEGLIGIBLE = 1e-12
# Larger sums of terms cancel so much that labels would lose their digits.
LARGEST_SUM = 1e8
# What rounding may take from a sum of terms, as a part of it.
ROUNDING = 1e-13
# Gradients whose other directions are below this part of the first are parallel.
PARALLEL = 1e-9


class Powers(NamedTuple):
    """Coefficients of the powers 0, 1, ... of a unit form, and a bound on the sum of ``p |c_p|`` of those left out."""

    coefficients: np.ndarray
    rest: float


def direction(node: ast.expr, k: int) -> np.ndarray:
    """The vector c such that a part of a formula in k fields is a function of ``c . z``; of unit length."""
    formula = Expression(ast.unparse(node))
    with double():
        points = 0.1 * np.random.default_rng(0).standard_normal((8, k))
        gradients = np.asarray(jax.vmap(jax.grad(lambda z: formula(z)))(points))
    if not np.isfinite(gradients).all():
        raise InvalidInput(f"The part {_words(node)} has no bound: it has no Taylor series at zero.")
    _, sizes, rows = np.linalg.svd(gradients)
    if len(sizes) > 1 and sizes[1] > PARALLEL * max(float(sizes[0]), 1e-300):
        raise InvalidInput(f"The part {_words(node)} has no bound: it varies along more than one direction.")
    return rows[0]


def taylor(node: ast.expr, form: np.ndarray, length: float) -> Powers:
    """The series of a part of a formula in powers of a unit form, ``c . z = length s`` for the unit vector c given."""
    radii = np.concatenate([[1.0], 1.0 + np.geomspace(1e-4, LARGEST_RADIUS - 1.0, RADII)])
    powers = 64
    while True:
        coefficients, majorant = _expand(node, length * form, powers, radii)
        rest = _rest(coefficients, majorant[1:], radii[1:])
        if not math.isfinite(rest):
            end = length * radii[np.isfinite(majorant)][-1] if np.isfinite(majorant[0]) else _radius(node, form, length)
            raise InvalidInput(
                f"The part {_words(node)} has no bound at a vector of length {length:g}: the sum of p |alpha_p| "
                f"|beta|^p is known to be finite for lengths below {end:.3g} only."
            )
        total = float(np.sum(np.abs(coefficients)))
        if total > LARGEST_SUM:
            raise InvalidInput(
                f"The part {_words(node)} must have a shorter vector for a bound: the terms of its Taylor series add "
                f"up to {total:.2g} before they cancel."
            )
        weighted = float(np.sum(np.arange(powers + 1) * np.abs(coefficients)))
        if rest <= NEGLIGIBLE * weighted or powers >= MOST_POWERS:
            return Powers(coefficients, rest)
        powers = min(2 * powers, MOST_POWERS)


def _radius(node: ast.expr, form: np.ndarray, high: float) -> float:
    """The largest length below ``high`` at which the majorant is finite, by bisection."""
    low = 0.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        is_finite = math.isfinite(_expand(node, middle * form, 8, np.ones(1))[1][0])
        low, high = (middle, high) if is_finite else (low, middle)
    return low


def _rest(coefficients: np.ndarray, majorant: np.ndarray, radii: np.ndarray) -> float:
    """The bound on the sum of ``p |c_p|`` beyond the given coefficients, from the radius at which it is smallest."""
    p = np.arange(len(coefficients))
    with np.errstate(over="ignore", invalid="ignore"):
        # What the majorant leaves for later terms, and the largest p R^-p among these.
        left = majorant - np.abs(coefficients) @ radii[None, :] ** p[:, None] + ROUNDING * majorant
        largest = np.maximum(float(len(p)), 1.0 / np.log(radii))
        bounds = np.maximum(left, 0.0) * largest * radii**-largest
    known = bounds[np.isfinite(bounds)]
    return float(np.min(known)) if known.size else math.inf


def _expand(node: ast.expr, fields: np.ndarray, powers: int, radii: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients up to a power, and the majorant at the radii (infinite where it is not known to be finite)."""

    def of(part: ast.expr) -> tuple[np.ndarray, np.ndarray]:
        return _expand(part, fields, powers, radii)

    polynomial = Expression(ast.unparse(node)).polynomial(len(fields))
    if polynomial is not None and polynomial.degree <= powers:
        c = np.zeros(powers + 1)
        for exponents, coefficient in polynomial.terms.items():
            c[sum(exponents)] += coefficient * float(np.prod(fields ** np.asarray(exponents)))
        return c, np.abs(c) @ radii[None, :] ** np.arange(powers + 1)[:, None]
    with np.errstate(all="ignore"):
        match node:
            case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
                (a, A), (b, B) = of(left), of(right)
                return (a + b if isinstance(op, ast.Add) else a - b), A + B
            case ast.BinOp(left, ast.Mult(), right):
                (a, A), (b, B) = of(left), of(right)
                return np.convolve(a, b)[: powers + 1], A * B
            case ast.BinOp(left, ast.Div(), right):
                (a, A), (b, B) = of(left), _inverse(*of(right), node)
                return np.convolve(a, b)[: powers + 1], A * B
            case ast.BinOp(left, ast.Pow(), ast.Constant(int() as power)) if power > 0:
                a, A = of(left)
                c = a
                for _ in range(power - 1):
                    c = np.convolve(c, a)[: powers + 1]
                return c, A**power
            case ast.UnaryOp(op, operand):
                a, A = of(operand)
                return -a if isinstance(op, ast.USub) else a, A
            case ast.Call(ast.Name(name), [argument]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*of(argument), node)
    raise InvalidInput(
        f"The part {_words(node)} has no bound: a target must be a sum of polynomials, and of functions of one linear "
        f"form made of {', '.join(_FUNCTIONS)} and quotients."
    )


def _solve(a: np.ndarray, first: float, term: Callable[[int, np.ndarray], float]) -> np.ndarray:
    """A series from its first coefficient and a rule for each later one in terms of those before."""
    c = np.zeros_like(a)
    c[0] = first
    for p in range(1, len(a)):
        c[p] = term(p, c)
    return c


def _inverse(a: np.ndarray, A: np.ndarray, node: ast.expr) -> tuple[np.ndarray, np.ndarray]:
    if a[0] == 0.0:
        raise InvalidInput(f"The part {_words(node)} has no bound: it has no Taylor series at zero.")
    c = _solve(a, 1.0 / a[0], lambda p, c: -float(a[1 : p + 1] @ c[p - 1 :: -1][:p]) / a[0])
    gap = 2.0 * abs(a[0]) - A  # |a_0| less the sum of all others
    return c, np.where(gap > 0.0, 1.0 / gap, np.inf)


def _logarithm(a: np.ndarray, A: np.ndarray, node: ast.expr) -> tuple[np.ndarray, np.ndarray]:
    _need_positive(a, node)
    k = np.arange(len(a))
    c = _solve(a, math.log(a[0]), lambda p, c: (a[p] - float((k[1:p] * c[1:p]) @ a[p - 1 : 0 : -1]) / p) / a[0])
    return c, abs(c[0]) - _log1m((A - a[0]) / a[0])


def _root(a: np.ndarray, A: np.ndarray, node: ast.expr) -> tuple[np.ndarray, np.ndarray]:
    _need_positive(a, node)
    first = math.sqrt(a[0])
    c = _solve(a, first, lambda p, c: (a[p] - float(c[1:p] @ c[p - 1 : 0 : -1])) / (2.0 * first))
    x = (A - a[0]) / a[0]
    return c, np.where(x < 1.0, first * (2.0 - np.sqrt(1.0 - x)), np.inf)


def _exponential(a: np.ndarray, A: np.ndarray, node: ast.expr) -> tuple[np.ndarray, np.ndarray]:
    k = np.arange(len(a))
    c = _solve(a, math.exp(a[0]), lambda p, c: float((k[1 : p + 1] * a[1 : p + 1]) @ c[p - 1 :: -1][:p]) / p)
    return c, np.exp(A - abs(a[0]) + a[0])


def _cosine(a: np.ndarray, A: np.ndarray, node: ast.expr) -> tuple[np.ndarray, np.ndarray]:
    return _waves(a, A)[0]


def _sine(a: np.ndarray, A: np.ndarray, node: ast.expr) -> tuple[np.ndarray, np.ndarray]:
    return _waves(a, A)[1]


def _waves(a: np.ndarray, A: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cosine and sine of a series, from the exponential of i times it."""
    k = np.arange(len(a))
    c: Any = np.zeros(len(a), complex)
    c[0] = np.exp(1j * a[0])
    for p in range(1, len(a)):
        c[p] = 1j * ((k[1 : p + 1] * a[1 : p + 1]) @ c[p - 1 :: -1][:p]) / p
    G, cosine, sine = A - abs(a[0]), abs(math.cos(a[0])), abs(math.sin(a[0]))
    return [
        (c.real, cosine * np.cosh(G) + sine * np.sinh(G)),
        (c.imag, sine * np.cosh(G) + cosine * np.sinh(G)),
    ]


_FUNCTIONS: dict[str, Callable[[np.ndarray, np.ndarray, ast.expr], tuple[np.ndarray, np.ndarray]]] = {
    "exp": _exponential,
    "log": _logarithm,
    "sqrt": _root,
    "cos": _cosine,
    "sin": _sine,
}


def _log1m(x: np.ndarray) -> np.ndarray:
    """log(1 - x), minus infinity from one on."""
    return np.where(x < 1.0, np.log1p(-np.minimum(x, 1.0)), -np.inf)


def _need_positive(a: np.ndarray, node: ast.expr) -> None:
    if a[0] <= 0.0:
        raise InvalidInput(f"The part {_words(node)} has no bound: it has no Taylor series at zero.")


def _words(node: ast.expr) -> str:
    return shown(ast.unparse(node))
