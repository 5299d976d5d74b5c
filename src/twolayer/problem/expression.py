"""Formulas of users, such as ``"tanh(z1) + z1*z2"``: parsed with a whitelist, never evaluated as Python.

The text is parsed to a syntax tree whose nodes must all be on the whitelist below. The tree is then interpreted over
JAX arrays to compute values, over polynomials to find out whether the formula is one, and over sympy expressions to
prove properties of it.
"""

import ast
import functools
import math
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.core.multivariate import Polynomial, TooLarge, compose, constant, unknown
from twolayer.core.precision import double
from twolayer.problem.activations import (
    AbstractActivation,
    AbstractPiecewiseLinear,
    Cosine,
    GaussianBump,
    Silu,
    as_activation,
)
from twolayer.problem.activations import names as activation_names
from twolayer.specification.registry import register

if TYPE_CHECKING:
    import sympy as sp

MAX_LENGTH = 2000
MAX_DEPTH = 40
MAX_POWER = 12
MAX_CONSTANT = 1e9
MAX_FIELDS = 32
# The largest value of a formula at ordinary fields, since squares of it are averaged.
MAX_VALUE = 1e100
# A formula whose products would expand to more terms is not passed to sympy, which might take forever.
MAX_EXPANDED = 20_000

_CONSTANTS = {"pi": math.pi}
_SMOOTH: dict[str, Callable[..., Any]] = {"exp": jnp.exp, "sin": jnp.sin, "cos": jnp.cos}
# Functions that are smooth where their argument is positive: sqrt(1 + z1**2) is smooth, sqrt(z1**2) is not.
_ROOTS: dict[str, Callable[..., Any]] = {"log": jnp.log, "sqrt": jnp.sqrt}
_KINKED: dict[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "sign": jnp.sign,
    "step": lambda x: jnp.heaviside(x, 0.5),
    "max": jnp.maximum,
    "min": jnp.minimum,
}
_JUMPING = ("sign", "step")
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _function_names() -> list[str]:
    hermite = (f"he{n}" for n in range(1, MAX_POWER + 1))
    return list(dict.fromkeys([*_SMOOTH, *_ROOTS, *_KINKED, *activation_names(), *hermite]))


def _activation(name: str) -> AbstractActivation | None:
    return as_activation(name) if name in activation_names() or re.fullmatch(r"he([1-9]|1[0-2])", name) else None


def _parse(text: Any) -> ast.expr:
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"A formula must be a text such as 'tanh(z1) + z1*z2', but is {shown(text)}.")
    if len(text) > MAX_LENGTH:
        raise InvalidInput(f"A formula may have {MAX_LENGTH} characters at most, but this one has {len(text)}.")
    return _tree(text)


@functools.lru_cache(maxsize=256)
def _tree(text: str) -> ast.expr:
    """Return the checked syntax tree of a formula, which is cached and must not be changed."""
    if "^" in text:
        refusal = InvalidInput(f"A power in a formula is written **, as in z1**2, but is ^ in {shown(text)}.")
        refusal.position = text.index("^")
        raise refusal
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of likely mistakes, which are refused below
            tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidInput):
            error.position = _place(text, error.position or 0)
            raise
        reason = error.msg if isinstance(error, SyntaxError) else error.__class__.__name__
        if reason.startswith(("invalid syntax", "invalid decimal literal")):
            reason = "a part of it is missing or out of place; a product is written with *, as in 2*z1"
        refusal = InvalidInput(f"The formula {shown(text)} cannot be read: {reason}.")
        if isinstance(error, SyntaxError):  # counted in characters, from 1; zero at the end of a text
            offset = error.offset - 1 if error.offset else len(text.strip())
            refusal.position = min(len(text) - len(text.lstrip()) + offset, len(text))
        raise refusal from None
    return tree


def _place(text: str, offset: int) -> int:
    """The place in a text of a part that begins so many bytes behind its leading spaces."""
    stripped = text.strip().encode()
    return len(text) - len(text.lstrip()) + len(stripped[:offset].decode(errors="ignore"))


def _check(node: ast.AST, depth: int) -> float | None:
    """Refuse every node that is not on the whitelist; return the value of a part without fields, None for others.

    A refusal tells the place of the innermost part that is refused.
    """
    try:
        return _checked(node, depth)
    except InvalidInput as error:
        if error.position is None:
            error.position = getattr(node, "col_offset", 0)
        raise


def _checked(node: ast.AST, depth: int) -> float | None:
    if depth > MAX_DEPTH:
        raise InvalidInput(f"A formula may be nested {MAX_DEPTH} deep at most.")
    parts: list[float | None]
    match node:
        case ast.BinOp(left, ast.Pow(), right):
            parts = [_check(left, depth + 1), _check(right, depth + 1)]
            # A number may have any exponent; a power of fields must be a polynomial.
            if parts[1] is None or (parts[0] is None and parts[1] not in range(MAX_POWER + 1)):
                raise InvalidInput(
                    f"A power in a formula must be a whole number from 0 to {MAX_POWER}, "
                    f"but is {shown(ast.unparse(right))}."
                )
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            parts = [_check(left, depth + 1), _check(right, depth + 1)]
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            parts = [_check(operand, depth + 1)]
        case ast.Constant(int() | float() as value) if type(value) in (int, float):  # excludes bool, a subclass of int
            if not abs(value) <= MAX_CONSTANT:
                raise InvalidInput(f"A number in a formula may be {MAX_CONSTANT:g} at most, but one is {shown(value)}.")
            return float(value)
        case ast.Name(name):
            if name not in _CONSTANTS and _field_index(name) is None:
                allowed = ["z1", "z2", "z3", *_CONSTANTS]
                raise InvalidInput(f"The name {shown(name)} in a formula is not known: {nearest(name, allowed)}")
            return _CONSTANTS.get(name)
        case ast.Call(ast.Name(name), args, []):
            if name not in _function_names():
                raise InvalidInput(
                    f"The function {shown(name)} in a formula is not known: {nearest(name, _function_names())}"
                )
            if len(args) != (2 if name in ("max", "min") else 1):
                raise InvalidInput(f"The function {shown(name)} in a formula is given {len(args)} arguments.")
            parts = [_check(argument, depth + 1) for argument in args]
        case _:
            raise InvalidInput(
                f"The part {shown(ast.unparse(node))} is not allowed in a formula: only numbers, the fields z1, "
                f"z2, ..., + - * / ** and the functions {', '.join(_function_names()[:12])} and "
                f"he1 to he{MAX_POWER} are."
            )
    return None if None in parts else _constant(node)  # type: ignore[arg-type]


def _constant(node: ast.expr) -> float:
    """Return the value of a part without fields, which must be a finite real number."""
    try:
        with double(), jax.ensure_compile_time_eval():  # also while a function is compiled that takes the formula
            value = _evaluate(node, ())
        result = math.inf if isinstance(value, complex) else float(value)
    except (ArithmeticError, ValueError):  # a division by zero, or a power that overflows
        result = math.inf
    if not abs(result) <= MAX_VALUE:
        part = shown(ast.unparse(node))
        raise InvalidInput(f"The part {part} of a formula must be a finite real number of at most {MAX_VALUE:g}.")
    return result


def _has_fields(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and _field_index(part.id) is not None for part in ast.walk(node))


def _field_index(name: str) -> int | None:
    """Return the index of the field with this name; ``z`` is the first field."""
    if match := re.fullmatch(r"z([1-9][0-9]?)?", name):
        index = int(match.group(1) or 1) - 1
        return index if index < MAX_FIELDS else None
    return None


@register
class Expression(eqx.Module):
    """A formula in the fields ``z1, z2, ...``, given as text, which is checked on construction."""

    text: str = eqx.field(static=True)

    def __check_init__(self):
        _parse(self.text)

    @property
    def fields(self) -> int:
        """The highest index of a field in the formula."""
        indices = [_field_index(n.id) for n in ast.walk(_parse(self.text)) if isinstance(n, ast.Name)]
        return max((index + 1 for index in indices if index is not None), default=0)

    @property
    def _calls(self) -> list[tuple[str, ast.Call]]:
        """The functions that are called in it."""
        calls = [n for n in ast.walk(_parse(self.text)) if isinstance(n, ast.Call)]
        return [(call.func.id, call) for call in calls if isinstance(call.func, ast.Name)]

    @property
    def is_continuous(self) -> bool:
        """Whether no function in it has a jump."""
        return not any(name in _JUMPING for name, _ in self._calls)

    @property
    def is_smooth(self) -> bool:
        """Whether no function in it has a kink or a jump."""
        for name, call in self._calls:
            activation = _activation(name)
            if name in _KINKED or (activation is not None and not activation.is_smooth):
                return False
            if name in _ROOTS and not self._is_positive(call.args[0]):
                return False
        return True

    def _is_positive(self, node: ast.expr) -> bool:
        """Whether a part of the formula is positive on a set of lines through the space of the fields."""
        line = np.linspace(-8.0, 8.0, 161)
        directions = [*np.eye(max(self.fields, 1)), np.ones(max(self.fields, 1))]
        fields = np.concatenate([line[:, None] * direction for direction in directions])
        with np.errstate(all="ignore"):  # a division by zero is not positive either
            return bool(np.all(np.asarray(_evaluate(node, list(fields.T))) > 1e-3))

    def polynomial(self, k: int) -> Polynomial | None:
        """Return the formula as a polynomial in k fields, or None if it is not one."""
        try:
            return _as_polynomial(_parse(self.text), k)
        except (_NotPolynomial, TooLarge):  # a polynomial too large to expand is treated like any other function
            return None

    def obstacle(self, k: int) -> str:
        """Return the part of the formula that is not a polynomial, or the formula if it is too large to expand."""
        try:
            _as_polynomial(_parse(self.text), k)
        except _NotPolynomial as error:
            return str(error)
        except TooLarge:
            return self.text
        return ""

    def symbolic(self, k: int) -> tuple[Any, bool] | None:
        """Return the formula as a sympy expression in real symbols z1 .. zk, and whether its numbers are exact.

        A number of at most twelve digits is taken as the exact decimal, one with more digits as rounded. Returns None
        for a formula with an activation that has no known formula, for one that is too large to expand, and for one
        that sympy cannot represent.
        """
        import sympy as sp

        symbols = sp.symbols(f"z1:{k + 1}", real=True)
        tree = _parse(self.text)
        if _terms(tree) > MAX_EXPANDED:
            return None
        try:
            form = _as_symbolic(tree, symbols)
        except (_NoFormula, TypeError, ValueError, ArithmeticError, RecursionError):
            return None
        if form.has(sp.nan, sp.zoo, sp.oo, -sp.oo):
            return None
        return form, all(map(_is_short, ast.walk(tree)))

    def __call__(self, z: Float[Array, "*n k"]) -> Float[Array, "*n"]:
        fields = [z[..., index] for index in range(z.shape[-1])]
        return jnp.broadcast_to(_evaluate(_parse(self.text), fields), z.shape[:-1]).astype(z.dtype)


def _evaluate(node: ast.expr, fields: Sequence[Any]) -> Any:
    match node:
        case ast.BinOp(left, ast.Pow(), right):
            power = _evaluate(right, ())
            return _evaluate(left, fields) ** (int(power) if power == int(power) else power)
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_evaluate(left, fields), _evaluate(right, fields))
        case ast.UnaryOp(op, operand):
            value = _evaluate(operand, fields)
            return -value if isinstance(op, ast.USub) else value
        case ast.Constant(value):
            return float(value)  # type: ignore[arg-type]
        case ast.Name(name):
            return _CONSTANTS[name] if name in _CONSTANTS else fields[_field_index(name) or 0]
        case ast.Call(ast.Name(name), args):
            values = [jnp.asarray(_evaluate(argument, fields)) for argument in args]
            functions = _SMOOTH | _ROOTS | _KINKED
            if name in functions:
                return functions[name](*values)
            return as_activation(name)(values[0])
    raise AssertionError(f"A node on the whitelist cannot be evaluated: {ast.dump(node)}.")


class _NotPolynomial(Exception):
    """A part of the formula, given as argument, is not a polynomial."""


def _as_polynomial(node: ast.expr, k: int) -> Polynomial:
    if not _has_fields(node):
        return constant(k, _constant(node))
    match node:
        case ast.BinOp(left, ast.Pow(), right):
            return _as_polynomial(left, k) ** int(_constant(right))
        case ast.BinOp(left, ast.Add(), right):
            return _as_polynomial(left, k) + _as_polynomial(right, k)
        case ast.BinOp(left, ast.Sub(), right):
            return _as_polynomial(left, k) + _as_polynomial(right, k) * -1.0
        case ast.BinOp(left, ast.Mult(), right):
            return _as_polynomial(left, k) * _as_polynomial(right, k)
        case ast.BinOp(left, ast.Div(), right):
            divisor = _as_polynomial(right, k)
            if divisor.degree > 0 or not divisor.terms:
                raise _NotPolynomial(ast.unparse(node))
            return _as_polynomial(left, k) * (1.0 / divisor.terms[(0,) * k])
        case ast.UnaryOp(op, operand):
            return _as_polynomial(operand, k) * (-1.0 if isinstance(op, ast.USub) else 1.0)
        case ast.Name(name):
            return unknown(k, _field_index(name) or 0)
        case ast.Call(ast.Name(name), [argument]):
            activation = _activation(name)
            if activation is not None and activation.coefficients is not None:
                return compose(activation.coefficients, _as_polynomial(argument, k))
    raise _NotPolynomial(ast.unparse(node))


def _terms(node: ast.expr) -> int:
    """Return a bound on the number of terms of a part of a formula after expanding its products and powers."""
    match node:
        case ast.BinOp(left, ast.Pow(), right) if _has_fields(left):
            power = int(_constant(right))
            return math.comb(min(_terms(left), MAX_EXPANDED) + power - 1, power) if power else 1
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            return _terms(left) * _terms(right)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            return _terms(left) + _terms(right)
        case ast.UnaryOp(_, operand):
            return _terms(operand)
        case ast.Call(ast.Name(name), [argument]):
            activation = _activation(name)
            if activation is None or activation.coefficients is None:
                return _terms(argument) if _terms(argument) > MAX_EXPANDED else 1
            return math.comb(min(_terms(argument), MAX_EXPANDED) + activation.growth, activation.growth)
        case ast.Call(_, args):
            return max(_terms(argument) for argument in args)
    return 1


class _NoFormula(Exception):
    """An activation has no known formula."""


def _is_short(node: ast.AST) -> bool:
    """Whether a number has so few digits that it is meant exactly, not rounded from another."""
    return not (isinstance(node, ast.Constant) and len(repr(node.value).split("e")[0].replace(".", "").strip("0")) > 12)


def symbolic_activation(activation: AbstractActivation, x: "sp.Expr") -> "sp.Expr | None":
    """Return an activation applied to a sympy expression; None if its formula is not known."""
    import sympy as sp

    if activation.coefficients is not None:
        numbers = [sp.Rational(repr(c)) for c in activation.coefficients]
        return sum((c * x**n for n, c in enumerate(numbers)), start=sp.Integer(0))
    if isinstance(activation, AbstractPiecewiseLinear):
        numbers = [sp.Rational(repr(float(c))) for c in (activation.offset, activation.slope)]
        pairs = [(sp.Rational(repr(float(t))), sp.Rational(repr(float(s)))) for t, s in activation.hinges]
        return sum((s * sp.Max(x - t, 0) for t, s in pairs), start=numbers[0] + numbers[1] * x)
    if isinstance(activation, Silu):
        return x / (1 + sp.exp(-sp.Rational(repr(activation.slope)) * x))
    if isinstance(activation, Cosine) and activation.phase == 0.0:
        return sp.cos(sp.Rational(repr(activation.frequency)) * x)
    if isinstance(activation, GaussianBump):
        centre, width = (sp.Rational(repr(number)) for number in (activation.centre, activation.width))
        return sp.exp(-(((x - centre) / width) ** 2) / 2)
    formulas: dict[str, Callable[[Any], Any]] = {
        "Erf": lambda x: sp.erf(x / sp.sqrt(2)),
        "Relu": lambda x: sp.Max(x, 0),
        "Tanh": sp.tanh,
        "Sigmoid": lambda x: 1 / (1 + sp.exp(-x)),
        "Softplus": lambda x: sp.log(1 + sp.exp(x)),
        "Gelu": lambda x: x * (1 + sp.erf(x / sp.sqrt(2))) / 2,
    }
    form = formulas.get(type(activation).__name__)
    return None if form is None else form(x)


def _as_symbolic(node: ast.expr, fields: Sequence[Any]) -> Any:
    import sympy as sp

    match node:
        case ast.BinOp(left, ast.Pow(), right):
            return _as_symbolic(left, fields) ** _as_symbolic(right, fields)
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_as_symbolic(left, fields), _as_symbolic(right, fields))
        case ast.UnaryOp(op, operand):
            value = _as_symbolic(operand, fields)
            return -value if isinstance(op, ast.USub) else value
        case ast.Constant(value):
            return sp.Rational(repr(value))
        case ast.Name(name):
            return sp.pi if name in _CONSTANTS else fields[_field_index(name) or 0]
        case ast.Call(ast.Name(name), args):
            values = [_as_symbolic(argument, fields) for argument in args]
            functions: dict[str, Callable[..., Any]] = {
                "abs": lambda x: _over_factors(sp.Abs, x),
                "sign": lambda x: _over_factors(sp.sign, x),
                "step": lambda x: (1 + _over_factors(sp.sign, x)) / 2,
                "max": sp.Max,
                "min": sp.Min,
                **{
                    name_of_function: getattr(sp, name_of_function)
                    for name_of_function in ("exp", "sin", "cos", "log", "sqrt")
                },
            }
            if name in functions:
                return functions[name](*values)
            form = symbolic_activation(as_activation(name), values[0])
            if form is not None:
                return form
    raise _NoFormula


def _over_factors(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function to the factors of a product, as holds for the sign and the absolute value."""
    import sympy as sp

    return sp.Mul(*(function(factor) for factor in sp.Mul.make_args(x)))
