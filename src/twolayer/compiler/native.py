"""Compile a program on scalars to native code: a loop over time around a vectorised loop over replicas.

The functions below replace those of the C library, whose calls cannot be vectorised. They have no branches, use the
coefficients of the Cephes library, and are accurate to a few units in the last place.
"""

import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twolayer.compiler.scalar import Node, Program, Unsupported
from twolayer.core import compiling, program_cache
from twolayer.core.errors import Caution
from twolayer.core.whole_files import make_folder, write_whole

_BINARY = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^",
           "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "shift_right_logical": ">>", "shift_right_arithmetic": ">>", "shift_left": "<<"}  # fmt: skip
_PREDICATES = {"eq", "ne", "lt", "le", "gt", "ge"}
_UNARY = {"sqrt": "math.sqrt", "abs": "abs", "floor": "math.floor", "sin": "math.sin", "cos": "math.cos",
          "atan2": "math.atan2", "asin": "math.asin", "acos": "math.acos", "atan": "math.atan", "log1p": "math.log1p",
          "expm1": "math.expm1", "tan": "math.tan", "sinh": "math.sinh", "cosh": "math.cosh"}  # fmt: skip


@lru_cache(maxsize=1)
def functions() -> dict[str, Any]:
    """Return the numba functions that programs call; built on first use, since importing numba is slow."""
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    # `inspect.unwrap` removes the runtime type checks of the tests, which numba cannot compile.
    def inline(function: Any) -> Any:
        return njit(inline="always", error_model="numpy", fastmath={"contract"})(inspect.unwrap(function))

    def bitcast(before: Any, after: Any, target: Any) -> Any:
        def cast(typing: Any, value: Any) -> Any:
            def code(context, builder, signature, arguments):
                return builder.bitcast(arguments[0], target)

            return after(before), code

        return intrinsic(inspect.unwrap(cast))

    float_of_bits = bitcast(types.int64, types.float64, ir.DoubleType())
    bits_of_single = bitcast(types.float32, types.int32, ir.IntType(32))
    single_of_bits = bitcast(types.int32, types.float32, ir.FloatType())
    bits_of_double = bitcast(types.float64, types.uint64, ir.IntType(64))
    double_of_bits = bitcast(types.uint64, types.float64, ir.DoubleType())

    @inline
    def exp64(x):
        x = min(max(x, -708.0), 709.0)
        n = math.floor(1.4426950408889634073599 * x + 0.5)
        r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6
        z = r * r
        top = r * ((1.26177193074810590878e-4 * z + 3.02994407707441961300e-2) * z + 9.99999999999999999910e-1)
        low = (3.00198505138664455042e-6 * z + 2.52448340349684104192e-3) * z + 2.27265548208155028766e-1
        value = 1.0 + 2.0 * top / (low * z + 2.00000000000000000005e0 - top)
        return value * float_of_bits((np.int64(n) + np.int64(1023)) << np.int64(52))

    @inline
    def tanh64(x):
        a = abs(x)
        z = min(a, 0.625) * min(a, 0.625)
        top = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3
        low = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3
        size = min(a, 0.625) * (1.0 + z * top / low) if a < 0.625 else 1.0 - 2.0 / (exp64(2.0 * a) + 1.0)
        return size if x >= 0.0 else -size

    @inline
    def logistic64(x):
        return 1.0 / (1.0 + exp64(-x))

    return {
        "bits_of_single": bits_of_single, "single_of_bits": single_of_bits,
        "bits_of_double": bits_of_double, "double_of_bits": double_of_bits,
        "exp64": exp64, "tanh64": tanh64, "logistic64": logistic64,
    }  # fmt: skip


def _cast(dtype: Any, text: str) -> str:
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
        return _cast(node.dtype, text)
    return _cast(node.dtype, repr(node.value)) if node.dtype != np.float64 else repr(float(node.value))


def _line(name: str, arguments: list[str], parameters: dict[str, Any], dtype: Any) -> str:
    """Return the Python expression of one operation."""
    if name in _BINARY:
        text = f"{arguments[0]} {_BINARY[name]} {arguments[1]}"
        return f"({text})" if name in _PREDICATES else _cast(dtype, text)
    if name == "neg":
        return _cast(dtype, f"-{arguments[0]}")
    if name == "square":
        return _cast(dtype, f"{arguments[0]} * {arguments[0]}")
    if name == "integer_pow":
        power = parameters["y"]
        text = " * ".join([arguments[0]] * abs(power)) if power else "1.0"
        return _cast(dtype, text if power >= 0 else f"1.0 / ({text})")
    if name in ("max", "min"):
        return f"{name}({arguments[0]}, {arguments[1]})"
    if name == "select_n" and len(arguments) == 3:
        return f"({arguments[2]} if {arguments[0]} else {arguments[1]})"
    if name == "convert_element_type":
        return _cast(dtype, arguments[0]) if np.dtype(dtype) != np.float64 else f"np.float64({arguments[0]})"
    if name in ("copy", "stop_gradient"):
        return arguments[0]
    if name == "not":
        return f"(not {arguments[0]})" if np.dtype(dtype) == np.bool_ else _cast(dtype, f"~{arguments[0]}")
    if name == "sign":
        return f"(1.0 if {arguments[0]} > 0.0 else (-1.0 if {arguments[0]} < 0.0 else 0.0))"
    if name == "rsqrt":
        return f"(1.0 / math.sqrt({arguments[0]}))"
    if name == "pow":
        return f"({arguments[0]} ** {arguments[1]})"
    if name == "is_finite":
        return f"(abs({arguments[0]}) < np.inf)"
    if name == "log":
        return _cast(dtype, f"math.log({arguments[0]})")
    if name in ("exp", "tanh", "logistic") and np.dtype(dtype) == np.float64:
        return f"{name}64({arguments[0]})"
    if name == "erfc":
        return f"math.erfc({arguments[0]})"
    if name in _UNARY:
        return _cast(dtype, f"{_UNARY[name]}({', '.join(arguments)})")
    raise Unsupported(name)


class Kernel(NamedTuple):
    """A compiled kernel, its constants, and how many replicas it advances at once."""

    advance: Callable[..., None]
    constants: np.ndarray
    width: int


class KernelConstants(dict[tuple[str, float], str]):
    """The names of the constants of a program, which are data: one kernel serves all learning rates and dimensions."""

    def text(self, node: Node) -> str:
        """Return a constant as a Python expression; numbers that simplify an operation stay in it."""
        if node.dtype.kind != "f" or not np.isfinite(node.value) or abs(float(node.value)) in (0.0, 0.5, 1.0, 2.0):
            return _constant(node)
        return self.setdefault((node.dtype.name, float(node.value)), f"c{len(self)}")

    def lines(self) -> list[str]:
        """Return the assignments of the constants from the elements of an array."""
        return [f"{name} = {_cast(key[0], f'constants[{n}]')}" for n, (key, name) in enumerate(self.items())]

    def array(self) -> np.ndarray:
        """Return the array of the constants."""
        return np.array([*(value for _, value in self), 0.0])


# Replicas in one block, which fill the vector registers twice; of one cell among many, where part of a block is empty;
# and steps whose numbers are drawn at once.
WIDTH, NARROW = 32, 16
AHEAD = 32
# Fewer replicas than this are advanced one after the other.
FEW = 8
# Seconds of compilation that are told first.
LONG = 10.0


def text(node: Node, prefix: str, inputs: Sequence[str], constants: KernelConstants | None = None) -> str:
    """Return a node as a Python expression; the result of an operation is named by the prefix and its number."""
    if node.number is None:
        return _constant(node) if constants is None else constants.text(node)
    return inputs[-1 - node.number] if node.number < 0 else f"{prefix}{node.number}"


def body(program: Program, prefix: str, inputs: Sequence[str], constants: KernelConstants | None = None) -> list[str]:
    """Return the operations of a program as Python assignments; constants are collected where these are given."""
    lines = []
    for number, op in enumerate(program.ops):
        arguments = [text(node, prefix, inputs, constants) for node in op.arguments]
        if op.primitive.name == "bitcast_convert_type":
            lines.append(f"{prefix}{number} = {_bitcast(op.arguments[0].dtype, op.dtype)}({arguments[0]})")
            continue
        lines.append(f"{prefix}{number} = {_line(op.primitive.name, arguments, dict(op.parameters), op.dtype)}")
    return lines


def source(
    draws: Program, step: Program, state: int, fixed: int, shared: int = 0, *, width: int
) -> tuple[str, np.ndarray]:
    """Return the Python source of the kernel, and its constants.

    ``draws`` maps two words of a key and two of the step to random numbers; ``step`` maps the state, the constants of a
    replica, and the random numbers to the state. The last ``shared`` constants of a replica are the same for all of a
    block, and ``draws`` takes them too: they follow the constants of the kernel in their array.

    A block has ``width`` replicas. The width is a literal in the source,
    because the compiler vectorises the loop only if it can see that no two numbers share an address. For a single
    replica, the numbers of several steps are drawn at once instead, and that loop is vectorised.
    """
    numbers, constants = len(draws.outputs), KernelConstants()
    before = [f"x{n} = state[{n * width} + i]" for n in range(state)]
    before += [f"x{state + n} = numbers[{n * width} + i]" for n in range(fixed - shared)]
    common = [f"n{n}" for n in range(shared)]
    names = [*(f"x{n}" for n in range(state + fixed - shared)), *common]
    key = ["k0 = words[i]", f"k1 = words[{width} + i]"]
    count = ["low = np.uint32({} & 0xFFFFFFFF)", "high = np.uint32({} >> 32)"]
    words = ["k0", "k1", "low", "high", *common]
    drawing = body(draws, "d", words, constants)
    drawn = [text(node, "d", words, constants) for node in draws.outputs]
    after = [f"state[{n * width} + i] = {{}}" for n in range(state)]
    inputs = [*names, *(f"g{n}" for n in range(numbers))]
    stepping = body(step, "t", inputs, constants)
    results = [text(node, "t", inputs, constants) for node in step.outputs]

    def indent(depth: int, lines: Sequence[str]) -> list[str]:
        return ["    " * depth + line for line in lines]

    # Local variables, since the compiler could not know that nothing is written to an array of constants.
    head = ["def kernel(state, numbers, words, constants, first, last):"]
    head += indent(1, constants.lines())
    head += indent(1, [f"{name} = constants[{len(constants) + 1 + n}]" for n, name in enumerate(common)])
    if width > 1:
        stores = [line.format(value) for line, value in zip(after, results, strict=True)]
        lines = [
            *head,
            *indent(1, [f"buffer = np.empty({max(1, numbers) * width})", "for time in range(first, last):"]),
            *indent(2, [line.format("time") for line in count]),
            *indent(2, [f"for i in range({width}):"]),
            *indent(3, [*key, *drawing, *(f"buffer[{n * width} + i] = {value}" for n, value in enumerate(drawn))]),
            *indent(2, [f"for i in range({width}):"]),
            *indent(3, [f"g{n} = buffer[{n * width} + i]" for n in range(numbers)]),
            *indent(3, [*before, *stepping, *stores]),
        ]
    else:
        lines = [
            *head,
            *indent(1, [f"buffer = np.empty({max(1, numbers) * AHEAD})", "i = 0", *key, *before]),
            *indent(1, [f"for block in range(first, last, {AHEAD}):"]),
            *indent(2, [f"for j in range({AHEAD}):"]),
            *indent(3, [line.format("(block + j)") for line in count]),
            *indent(3, [*drawing, *(f"buffer[{n * AHEAD} + j] = {value}" for n, value in enumerate(drawn))]),
            *indent(2, [f"for j in range(min({AHEAD}, last - block)):"]),
            *indent(3, [f"g{n} = buffer[{n * AHEAD} + j]" for n in range(numbers)]),
            *indent(3, stepping),
            *indent(3, [f"y{n} = {value}" for n, value in enumerate(results)]),
            *indent(3, [f"x{n} = y{n}" for n in range(state)]),
            *indent(1, [f"state[{n}] = x{n}" for n in range(state)]),
        ]
    return "\n".join(lines) + "\n", constants.array()


def seconds_to_compile(code: str) -> float:
    """About how long a kernel takes to compile on one core: as the square of its length."""
    return 10.0 * (code.count("\n") / 2000.0) ** 2


def compiled(draws: Program, step: Program, state: int, fixed: int, shared: int, replicas: int) -> Kernel:
    """Compile the kernel for ``replicas`` replicas; it advances the state in place and releases the GIL."""
    width = 1 if replicas < FEW else NARROW if shared else WIDTH
    code, constants = source(draws, step, state, fixed, shared, width=width)
    return Kernel(compiled_text(code, "kernel", frozenset({"contract"})), constants, width)


@lru_cache(maxsize=64)
def compiled_text(code: str, name: str, fastmath: frozenset[str]) -> Callable[..., None]:
    """Compile the source of a function that this package has written, once; the function releases the GIL."""
    from numba import njit

    seconds = seconds_to_compile(code)
    if seconds > LONG:
        warnings.warn(
            f"A step of {code.count(chr(10))} operations is compiled to native code first, which takes about "
            f"{round(seconds, -1):.0f} seconds.",
            Caution,
            stacklevel=2,
        )
    space = {"__name__": __name__, "np": np, "math": math, **functions()}  # numba reads the name with kept code
    file = _kept(code)
    exec(compile(code, "<kernel>" if file is None else str(file), "exec"), space)  # our own source, never a user's
    compiler = partial(njit, error_model="numpy", fastmath=set(fastmath), nogil=True)
    return compiler()(space[name]) if file is None else _Kept(space[name], compiler, file)


class _Kept:
    """A function whose compiled code numba reads from disk at its first call, or compiles again if that is damaged."""

    def __init__(self, function: Callable[..., None], compiler: Callable[..., Any], file: Path):
        self.function, self.compiler, self.file = function, compiler, file
        self.call = compiler(cache=True)(function)
        self.is_ready = False

    def __call__(self, *arguments: Any) -> None:
        if self.is_ready:
            return self.call(*arguments)
        with compiling.of_native():
            self._call_first(*arguments)
        self.is_ready = True

    def _call_first(self, *arguments: Any) -> None:
        try:
            self.call(*arguments)
        except Exception:  # a damaged file fails in many ways, all of them before the function begins
            for damaged in self.file.parent.glob(f"__pycache__/{self.file.stem}.*"):
                damaged.unlink(missing_ok=True)
            self.call = self.compiler()(self.function)
            self.call(*arguments)


def _kept(code: str) -> Path | None:
    """The file beside which numba keeps the compiled code for other processes; None if nothing is kept.

    Its name depends on all that the code does, since numba only sees whether the file has changed.
    """
    cache = program_cache.keep()
    if cache is None:
        return None
    text = "\n".join([code, inspect.getsource(inspect.unwrap(functions)), version("numba"), version("llvmlite")])
    file = cache.native / f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:24]}.py"
    try:
        if not file.exists():
            make_folder(file.parent)
            write_whole(file, code.encode())
    except OSError:
        return None
    return file
