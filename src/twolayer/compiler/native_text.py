"""Operations on scalars as Python text that numba compiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from twolayer.compiler.scalar import Node, Program, Unsupported

_BINARY = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
           "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "shift_right_logical": ">>", "shift_right_arithmetic": ">>", "shift_left": "<<"}  # fmt: skip
_PREDICATES = {"eq", "ne", "lt", "le", "gt", "ge"}
_UNARY = {"sqrt": "math.sqrt", "abs": "abs", "floor": "math.floor", "sin": "math.sin", "cos": "math.cos",
          "atan2": "math.atan2", "asin": "math.asin", "acos": "math.acos", "atan": "math.atan", "log1p": "math.log1p",
          "expm1": "math.expm1", "tan": "math.tan", "sinh": "math.sinh", "cosh": "math.cosh"}  # fmt: skip


def cast(dtype: DTypeLike, text: str) -> str:
    """Return an expression converted to a type."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return f"({text})"
    return f"np.{dtype.name}({text})" if dtype != np.float64 else f"({text})"


def _bitcast(before: Any, after: Any) -> str:
    """Return the name of the function that reads the same bits as another type."""
    names = {("float32", "int32"): "bits_of_single", ("int32", "float32"): "single_of_bits"}
    names |= {("float64", "uint64"): "bits_of_double", ("uint64", "float64"): "double_of_bits"}
    names |= {("uint32", "int32"): "np.int32", ("int32", "uint32"): "np.uint32"}
    pair = (np.dtype(before).name, np.dtype(after).name)
    if pair not in names:
        raise Unsupported(f"bits of {pair[0]} as {pair[1]}")
    return names[pair]


def _constant(node: Node) -> str:
    if node.dtype == np.bool_:
        return str(bool(node.value))
    if node.dtype.kind == "f" and not np.isfinite(node.value):
        text = {"inf": "np.inf", "-inf": "-np.inf"}.get(str(float(node.value)), "np.nan")
        return cast(node.dtype, text)
    return cast(node.dtype, repr(node.value)) if node.dtype != np.float64 else repr(float(node.value))


def _line(name: str, arguments: list[str], parameters: dict[str, Any], dtype: Any) -> str:
    """Return the Python expression of one operation."""
    if name in _BINARY:
        text = f"{arguments[0]} {_BINARY[name]} {arguments[1]}"
        return f"({text})" if name in _PREDICATES else cast(dtype, text)
    if name == "neg":
        return cast(dtype, f"-{arguments[0]}")
    if name == "square":
        return cast(dtype, f"{arguments[0]} * {arguments[0]}")
    if name == "integer_pow":
        power = parameters["y"]
        text = " * ".join([arguments[0]] * abs(power)) if power else "1.0"
        return cast(dtype, text if power >= 0 else f"1.0 / ({text})")
    if name in ("max", "min"):
        return f"{name}({arguments[0]}, {arguments[1]})"
    if name == "select_n" and len(arguments) == 3:
        return f"({arguments[2]} if {arguments[0]} else {arguments[1]})"
    if name == "convert_element_type":
        return cast(dtype, arguments[0]) if np.dtype(dtype) != np.float64 else f"np.float64({arguments[0]})"
    if name in ("copy", "stop_gradient"):
        return arguments[0]
    if name == "not":
        return f"(not {arguments[0]})" if np.dtype(dtype) == np.bool_ else cast(dtype, f"~{arguments[0]}")
    if name == "sign":
        return f"(1.0 if {arguments[0]} > 0.0 else (-1.0 if {arguments[0]} < 0.0 else 0.0))"
    if name == "rsqrt":
        return f"(1.0 / math.sqrt({arguments[0]}))"
    if name == "pow":
        return f"({arguments[0]} ** {arguments[1]})"
    if name == "is_finite":
        return f"(abs({arguments[0]}) < np.inf)"
    if name == "log":
        return cast(dtype, f"math.log({arguments[0]})")
    if name in ("exp", "tanh", "logistic") and np.dtype(dtype) == np.float64:
        return f"{name}64({arguments[0]})"
    if name == "erfc":
        return f"math.erfc({arguments[0]})"
    if name in _UNARY:
        return cast(dtype, f"{_UNARY[name]}({', '.join(arguments)})")
    raise Unsupported(name)


class KernelConstants(dict[tuple[str, float], str]):
    """The names of the constants of a program, which are data: one kernel serves all learning rates and dimensions."""

    def text(self, node: Node) -> str:
        """Return a constant as a Python expression; numbers that simplify an operation stay in it."""
        if node.dtype.kind != "f" or not np.isfinite(node.value) or abs(float(node.value)) in (0.0, 0.5, 1.0, 2.0):
            return _constant(node)
        return self.setdefault((node.dtype.name, float(node.value)), f"c{len(self)}")

    def lines(self) -> list[str]:
        """Return the assignments of the constants from the elements of an array."""
        return [f"{name} = {cast(key[0], f'constants[{n}]')}" for n, (key, name) in enumerate(self.items())]

    def array(self) -> np.ndarray:
        """Return the array of the constants."""
        return np.array([*(value for _, value in self), 0.0])


def text(node: Node, prefix: str, inputs: Sequence[str], constants: KernelConstants | None = None) -> str:
    """Return a node as a Python expression; the result of an operation is named by the prefix and its number."""
    if node.number is None:
        return _constant(node) if constants is None else constants.text(node)
    return inputs[-1 - node.number] if node.number < 0 else f"{prefix}{node.number}"


def body(
    program: Program,
    prefix: str,
    inputs: Sequence[str],
    constants: KernelConstants | None = None,
    part: range | None = None,
) -> list[str]:
    """Return the operations of a program as Python assignments; constants are collected where these are given.

    With ``part`` these are the operations of these numbers only.
    """
    lines = []
    for number in range(len(program.ops)) if part is None else part:
        op = program.ops[number]
        arguments = [text(node, prefix, inputs, constants) for node in op.arguments]
        if op.primitive.name == "bitcast_convert_type":
            lines.append(f"{prefix}{number} = {_bitcast(op.arguments[0].dtype, op.dtype)}({arguments[0]})")
            continue
        lines.append(f"{prefix}{number} = {_line(op.primitive.name, arguments, dict(op.parameters), op.dtype)}")
    return lines
