"""Formulas as functions of arrays: the value of each unknown, and of sums over units."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from twolayer.core.types import Numbers
from twolayer.theory.symbolic.indexed import FREE, Key


def evaluator(expressions: Sequence[Any], keys: Mapping[Any, Key]) -> Callable[..., list[Any]]:
    """A function of the values of all keys, in their order, that gives the values of the expressions."""
    import sympy as sp

    # Plain symbols replace sums and indexed symbols; dummies would be slow, since lambdify replaces each of them.
    places = {symbol: symbol if symbol.is_Symbol else sp.Symbol(f"x_{n}") for n, symbol in enumerate(keys)}
    # Whole numbers beyond double precision would turn arrays of numbers into arrays of objects.
    rationals = set().union(*(expression.atoms(sp.Rational) for expression in expressions))
    large = {x: sp.Float(x, 17) for x in rationals if max(abs(x.p), x.q) > 2**53}
    moved = {symbol: place for symbol, place in places.items() if symbol is not place} | large
    plain = [expression.xreplace(moved) if moved else expression for expression in expressions]
    return sp.lambdify(list(places.values()), plain, modules="math", cse=True)


def value(key: Key, arrays: Mapping[str, Any], module: ModuleType) -> Numbers:
    """The value of a key; with two last axes, for units j and l, when it is one of the index form at any width."""
    name, *index = key
    if name == "sum":
        return _aligned(*_summed(key[1], arrays, module), module)
    if not index:
        return arrays[name]
    if name == "P" or all(isinstance(x, int) for x in index):
        entry = arrays[name][(..., *(x - 1 for x in index))]
        return entry[..., None, None] if arrays["is_symbolic_p"] else entry
    return _aligned(*_along_units(key, arrays, module), module)


def _along_units(key: Key, arrays: Mapping[str, Any], module: Any) -> tuple[Any, str]:
    """An array over the letters of a key, and these letters."""
    name, *index = key
    array = arrays[name]
    if name == "Q" and index[0] == index[1]:
        return module.diagonal(array, axis1=-2, axis2=-1), index[0]
    if name == "M":
        return array[..., index[1] - 1], index[0]
    return array, "".join(index)


def _summed(monomial: Any, arrays: Mapping[str, Any], module: Any) -> tuple[Any, str]:
    """A sum over units as an array over the letters that are left."""
    operands = [_along_units(key, arrays, module) for key, _ in monomial]
    powers = [array**power for (array, _), (_, power) in zip(operands, monomial, strict=True)]
    left = "".join(letter for letter in FREE if any(letter in letters for _, letters in operands))
    formula = ",".join(f"...{letters}" for _, letters in operands) + f"->...{left}"
    return module.einsum(formula, *powers, optimize="greedy"), left


def _aligned(array: Any, letters: str, module: Any) -> Any:
    """An array over some of the letters j and l, in this order, as one over both."""
    missing = tuple(n - len(FREE) for n, letter in enumerate(FREE) if letter not in letters)
    return module.expand_dims(array, missing) if missing else array
