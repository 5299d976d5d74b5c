"""Find the kinks and jumps of a formula: at known places along single fields, or on surfaces of several fields."""

import ast
from collections.abc import Callable
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from twolayer.core.multivariate import TooLarge
from twolayer.core.precision import double
from twolayer.problem import expression as formulas
from twolayer.problem.activations.found_kinks import rounded

# Values beyond this many standard deviations do not contribute to averages.
REACH = 40.0
# Two zeros of one function that are closer than the spacing of this grid may be missed.
GRID = 16001
# A formula that jumps more often than this oscillates too much for rules between its jumps.
MOST = 24


@lru_cache(maxsize=256)
def kinks_of(text: str, k: int) -> tuple[tuple[float, ...], ...] | None:
    """Return the places along each of k fields where a formula has a kink or a jump.

    They are the zeros of the arguments of ``abs``, ``sign``, ``step``, roots and logarithms, the zeros of the
    difference of the arguments of ``max`` and ``min``, and the places where the argument of an activation is at one of
    its kinks.

    Parameters
    ----------
    text
        The formula.
    k
        The number of fields.

    Returns
    -------
    The sorted places for each field; None if a kink lies on a surface of several fields, such as ``abs(z1 + z2)``, or
    if there are more than ``MOST`` kinks along one field.
    """
    places: list[set[float]] = [set() for _ in range(k)]
    for call in ast.walk(formulas._parse(text)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        for surface in _surfaces(call.func.id, call.args):
            for factor in _factors(surface):
                fields = _fields(factor, k)
                if len(fields) > 1:
                    return None
                if fields:
                    places[fields[0]] |= set(_zeros(_along(factor, fields[0], k)))
    if max(map(len, places), default=0) > MOST:
        return None
    return tuple(tuple(sorted(row)) for row in places)


def _surfaces(name: str, args: list[ast.expr]) -> list[ast.expr]:
    """Return the expressions whose zeros are the kinks of a call."""
    if name in ("max", "min"):
        return [ast.BinOp(args[0], ast.Sub(), args[1])]
    if name in formulas._KINKED or name in formulas._ROOTS:
        return [args[0]]
    activation = formulas._activation(name)
    kinks = activation.kinks if activation is not None else ()
    return [ast.BinOp(args[0], ast.Sub(), ast.Constant(kink)) if kink else args[0] for kink in kinks]


def _factors(node: ast.expr) -> list[ast.expr]:
    """Return expressions one of which is zero wherever the product, quotient or power is zero or changes sign."""
    match node:
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            return _factors(left) + _factors(right)
        case ast.BinOp(left, ast.Pow(), _) | ast.UnaryOp(_, left):
            return _factors(left)
    return [node]


def _fields(node: ast.expr, k: int) -> list[int]:
    """Return the fields on which an expression depends; fields that cancel in a polynomial do not count."""
    try:
        polynomial = formulas._as_polynomial(node, k)
    except (formulas._NotPolynomial, TooLarge):
        indices = (formulas._field_index(n.id) for n in ast.walk(node) if isinstance(n, ast.Name))
        return sorted({index for index in indices if index is not None})
    used = [exponents for exponents, c in polynomial.terms.items() if c != 0.0]
    return sorted({r for exponents in used for r, power in enumerate(exponents) if power})


def _along(node: ast.expr, field: int, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the expression as a function of one field, with the others at zero."""

    def values(z: np.ndarray) -> np.ndarray:
        with double():
            fields = [jnp.asarray(z if r == field else np.zeros_like(z)) for r in range(k)]
            return np.broadcast_to(np.asarray(formulas._evaluate(node, fields)), z.shape)

    return values


def _zeros(function: Callable[[np.ndarray], np.ndarray]) -> list[float]:
    """Return the zeros and sign changes of a function of one number, including zeros without a change of sign."""
    z = np.linspace(-REACH, REACH, GRID)
    values = function(z)
    sign = np.sign(values)
    # An interval of zeros, as of relu, ends at kinks of the inner function, which are listed separately.
    alone = (sign[1:-1] == 0) & (sign[:-2] != 0) & (sign[2:] != 0)
    exact = z[1:-1][alone]
    crossing = np.flatnonzero(sign[:-1] * sign[1:] < 0)
    low, high, left_sign = z[crossing], z[crossing + 1], sign[crossing]
    size = np.abs(values)
    dips = 1 + np.flatnonzero((size[1:-1] < size[:-2]) & (size[1:-1] < size[2:]) & ~alone & (sign[1:-1] != 0))
    dips = np.setdiff1d(dips, np.concatenate([crossing, crossing + 1]))
    first, last = z[dips - 1], z[dips + 1]
    for _ in range(64):
        middle = 0.5 * (low + high)
        is_left = np.sign(function(middle)) == left_sign
        low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
        inner, outer = (2.0 * first + last) / 3.0, (first + 2.0 * last) / 3.0
        is_lower = np.abs(function(inner)) < np.abs(function(outer))
        first, last = np.where(is_lower, first, inner), np.where(is_lower, outer, last)
    bottom = 0.5 * (first + last)
    touched = bottom[np.abs(function(bottom)) < 1e-10]
    return [float(place) for place in np.unique(np.concatenate([exact, rounded(high, 1e-14), touched]))]
