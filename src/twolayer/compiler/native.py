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

from twolayer.compiler.native_pieces import AHEAD, LONG_STEP, source_in_pieces
from twolayer.compiler.native_text import KernelConstants, body, text
from twolayer.compiler.scalar import Program
from twolayer.core import compiling, program_cache
from twolayer.core.errors import Caution
from twolayer.core.whole_files import make_folder, write_whole


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


class Kernel(NamedTuple):
    """A compiled kernel, its constants, and how many replicas it advances at once."""

    advance: Callable[..., None]
    constants: np.ndarray
    width: int


# Replicas in one block, which fill the vector registers twice; of one cell among many, where part of a block is empty.
WIDTH, NARROW = 32, 16
# Fewer replicas than this are advanced one after the other.
FEW = 8
# Seconds of compilation that are told first.
LONG = 10.0


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
    """About how long a kernel takes to compile on one core: as the square of the length of a long function."""
    lengths = [part.count("\n") / 1000.0 for part in code.split("\ndef ")]
    return sum(max(2.5 * length**2, 1.5 * length) for length in lengths)


def compiled(draws: Program, step: Program, state: int, fixed: int, shared: int, replicas: int) -> Kernel:
    """Compile the kernel for ``replicas`` replicas; it advances the state in place and releases the GIL."""
    width = 1 if replicas < FEW else NARROW if shared else WIDTH
    is_long = len(draws.ops) + len(step.ops) > LONG_STEP and not shared
    write = (
        partial(source_in_pieces, draws, step, state, fixed)
        if is_long
        else partial(source, draws, step, state, fixed, shared)
    )
    code, constants = write(width=width)
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
    compiler = partial(njit, error_model="numpy", fastmath=set(fastmath), nogil=True)
    # numba reads the name with kept code
    space = {"__name__": __name__, "np": np, "math": math, "piece": compiler(), **functions()}
    file = _kept(code)
    exec(compile(code, "<kernel>" if file is None else str(file), "exec"), space)  # our own source, never a user's
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
