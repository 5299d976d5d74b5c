"""Compile programs on scalars to WebAssembly, which browsers and node run.

The module holds the loop over time of one step, as native code does: the numbers of the next steps are drawn together,
four steps in the lanes of a vector, and the steps follow one another in registers. What does not change from step to
step is computed before the loop. Learning rate, dimension and noise are data, in the memory of the module.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.compiler import elementary
from twolayer.compiler.array_loops import ArrayProgram
from twolayer.compiler.loops import WrittenOut
from twolayer.compiler.scalar import Node, Program, Unsupported, scalarize
from twolayer.compiler.wasm_binary import F64, I32, I64, PAGE, V128, Function, Module
from twolayer.compiler.wasm_code import HIGH_WORDS, LOW_WORDS, SHAPES, Lanes, Scalars
from twolayer.compiler.wasm_loops import Looped

# Steps whose numbers are drawn together, and steps in the lanes of one vector.
AHEAD, LANES = 32, 4
# Operations of a program beyond which it is too long to send and to compile.
MAX_OPS = 20_000
# Bytes of memory before the shared numbers; an address of zero is never used.
FIRST = 64

# Functions of the browser, as accurate as those of Python; and our own, which are faster.
_IMPORTED = {"sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "atan2": 2, "sinh": 1, "cosh": 1, "log": 1,
             "log1p": 1, "expm1": 1, "cbrt": 1, "pow": 2}  # fmt: skip
_OWN: dict[str, Callable[..., Any]] = {
    "exp": elementary.exp, "tanh": elementary.tanh, "logistic": elementary.logistic
}  # fmt: skip


class MemoryLayout(NamedTuple):
    """Where the memory of a module holds what, in bytes: the shared numbers, and what is free for replicas."""

    numbers: int
    free: int


class Compiled(NamedTuple):
    """A module as bytes, and the layout of its memory."""

    binary: bytes
    layout: MemoryLayout


def _varies(program: Program, changing: Sequence[bool]) -> list[bool]:
    """For each operation, whether it depends on an input that changes from step to step."""
    varies: list[bool] = []

    def of(node: Node) -> bool:
        return node.number is not None and (changing[-1 - node.number] if node.number < 0 else varies[node.number])

    for op in program.ops:
        varies.append(any(map(of, op.arguments)))
    return varies


# ------------------------------------------------------------------------------------------------------ functions


@lru_cache(maxsize=1)
def _own_programs() -> dict[str, Program]:
    """Our elementary functions as programs."""
    return {name: scalarize(function, jax.ShapeDtypeStruct((), jnp.float64)) for name, function in _OWN.items()}


def _with_functions(programs: Sequence[Program]) -> tuple[Module, dict[str, int]]:
    """A module with the functions that the programs call, and their numbers."""
    used = {op.primitive.name for program in programs for op in program.ops if op.dtype == np.float64}
    module = Module()
    calls = {name: module.imported(name, count) for name, count in _IMPORTED.items() if name in used}
    for name, program in _own_programs().items():
        if name in used:
            function = Function([F64], [F64])
            writer = Scalars(program, function, [0], {})
            writer.write(range(len(program.ops)))
            writer.push(program.outputs[0])
            calls[name] = module.add(function)
    return module, calls


def _loaded(function: Function, base: int | None, address: int, count: int, kind: int = F64) -> list[int]:
    """Locals with numbers read one after the other from an address, relative to a local where one is given."""
    size = 8 if kind == F64 else 4
    variables = []
    for n in range(count):
        function.constant(I32, 0) if base is None else function.get(base)
        function.load(kind, address + size * n)
        variables.append(function.local(kind))
        function.set(variables[-1])
    return variables


def _straight(program: Program, shared: int, numbers_at: int, calls: dict[str, int]) -> Function:
    """A function ``(from, to)`` that reads its first inputs at an address, the last ``shared`` ones where they are."""
    if any(np.dtype(dtype) != np.float64 for dtype in program.inputs):
        raise Unsupported("inputs that are not in double precision")
    function = Function([I32, I32])
    inputs = _loaded(function, 0, 0, len(program.inputs) - shared)
    inputs += _loaded(function, None, numbers_at, shared)
    writer = Scalars(program, function, inputs, calls)
    writer.write(range(len(program.ops)))
    for n, node in enumerate(program.outputs):
        function.get(1)
        writer.push(node)
        function.store(F64, 8 * n)
    return function


def _splat(function: Function, local: int, kind: int) -> tuple[int, ...]:
    """The lanes of a vector that all hold the number of a local."""
    held = function.local(V128)
    function.get(local)
    function.do(f"{SHAPES[kind]}.splat")
    function.set(held)
    return (held, held) if kind in (F64, I64) else (held,)


class _TimeLoop(NamedTuple):
    """The locals of the loop over time."""

    time: int  # the step before the block
    within: int  # the step within the block, times eight: an offset in the buffer
    end: int  # of the block, in the same units


def _drawn(function: Function, draws: Lanes, course: _TimeLoop, varying: list[int], buffer: int) -> None:
    """Draw the numbers of a block of steps into the buffer."""
    pair = [function.local(V128) for _ in range(2)]
    low, high = draws.inputs[2][0], draws.inputs[3][0]
    function.constant(I32, 0)
    function.set(course.within)
    function.loop()
    for half, local in enumerate(pair):
        function.get(course.within)
        function.constant(I32, 3)
        function.do("i32.shr_u", "i64.extend_i32_u")
        function.get(course.time)
        function.do("i64.add", "i64x2.splat")
        function.vector(struct.pack("<qq", 2 * half, 2 * half + 1))
        function.do("i64x2.add")
        function.set(local)
    for words, local in ((LOW_WORDS, low), (HIGH_WORDS, high)):
        function.get(*pair)
        function.shuffle(words)
        function.set(local)
    draws.write(varying)
    for n, node in enumerate(draws.program.outputs):
        for half, local in enumerate(draws.registers(node)):
            function.get(course.within, local)
            function.store(V128, buffer + 8 * AHEAD * n + 16 * half)
    _advance(function, course.within, 8 * LANES)
    function.get(course.within)
    function.constant(I32, 8 * AHEAD)
    function.do("i32.lt_u")
    function.again_if()
    function.do("end")


def _advance(function: Function, local: int, by: int) -> None:
    function.get(local)
    function.constant(I32, by)
    function.do("i32.add")
    function.set(local)


def _stepped(
    function: Function, writer: Scalars, course: _TimeLoop, varying: list[int], state: int, numbers: int, buffer: int
) -> None:
    """Take the steps of a block, whose numbers are in the buffer."""
    function.constant(I32, 0)
    function.set(course.within)
    function.loop()
    for n in range(numbers):
        function.get(course.within)
        function.load(F64, buffer + 8 * AHEAD * n)
        function.set(writer.inputs[len(writer.inputs) - numbers + n])
    writer.write(varying)
    for node in writer.program.outputs:
        writer.push(node)
    for n in reversed(range(state)):
        function.set(writer.inputs[n])
    _advance(function, course.within, 8)
    function.get(course.within, course.end)
    function.do("i32.lt_u")
    function.again_if()
    function.do("end")


def _advancing(written: WrittenOut, numbers_at: int, buffer: int, calls: dict[str, int]) -> Function:
    """The function ``(state, own, words, first, last)`` that takes the steps of one replica.

    The first three are addresses: of its state, of its own constants, and of the words of its key.
    """
    draws, step, state, fixed, shared = written
    numbers, own = len(draws.outputs), fixed - shared
    function = Function([I32, I32, I32, F64, F64])
    moving = _loaded(function, 0, 0, state)
    constants = _loaded(function, 1, 0, own)
    common = _loaded(function, None, numbers_at, shared)
    key = _loaded(function, 2, 0, 2, I32)
    drawn = [function.local(F64) for _ in range(numbers)]

    lanes = [_splat(function, local, I32) for local in key]
    lanes += [(function.local(V128),) for _ in range(2)]
    lanes += [_splat(function, local, F64) for local in common]
    drawing = Lanes(draws, function, lanes)
    stepping = Scalars(step, function, [*moving, *constants, *common, *drawn], calls)
    of_draws = _varies(draws, [False] * 2 + [True] * 2 + [False] * shared)
    of_step = _varies(step, [True] * state + [False] * (own + shared) + [True] * numbers)
    drawing.hold_constants()
    drawing.write([n for n, varies in enumerate(of_draws) if not varies])
    stepping.write([n for n, varies in enumerate(of_step) if not varies])

    course = _TimeLoop(function.local(I64), function.local(I32), function.local(I32))
    last = function.local(I64)
    for parameter, local in ((3, course.time), (4, last)):
        function.get(parameter)
        function.do("i64.trunc_sat_f64_s")
        function.set(local)
    function.get(course.time, last)
    function.do("i64.lt_s")
    function.begin_if()
    function.loop()
    _drawn(function, drawing, course, [n for n, varies in enumerate(of_draws) if varies], buffer)
    _end_of_block(function, course, last)
    _stepped(function, stepping, course, [n for n, varies in enumerate(of_step) if varies], state, numbers, buffer)
    function.get(course.time)
    function.constant(I64, AHEAD)
    function.do("i64.add")
    function.set(course.time)
    function.get(course.time, last)
    function.do("i64.lt_s")
    function.again_if()
    function.do("end", "end")
    for n, local in enumerate(moving):
        function.get(0, local)
        function.store(F64, 8 * n)
    return function


def _end_of_block(function: Function, course: _TimeLoop, last: int) -> None:
    """Set the end of the block: all of it, or what is left until the last step."""
    function.constant(I64, AHEAD)
    function.get(last, course.time)
    function.do("i64.sub")
    function.constant(I64, AHEAD)
    function.get(last, course.time)
    function.do("i64.sub", "i64.lt_s", "select", "i32.wrap_i64")
    function.constant(I32, 3)
    function.do("i32.shl")
    function.set(course.end)


def compiled_to_wasm(advance: WrittenOut | None, others: dict[str, Program | ArrayProgram], shared: int) -> Compiled:
    """Compile a step and other programs to one module.

    The step becomes the exported function ``advance(state, own, words, first, last)`` for one replica. Each of the
    others becomes a function ``(from, to)`` of addresses; its last ``shared`` inputs are the shared numbers, as they
    are for the step.
    """
    straight = [] if advance is None else [advance.draws, advance.step]
    for program in others.values():
        straight += [loop.body for loop in program.loops] if isinstance(program, ArrayProgram) else [program]
    longest = max(len(program.ops) for program in straight)
    if longest > MAX_OPS:
        raise Unsupported(f"{longest} operations")
    buffer = FIRST + 16 * (-(-8 * shared // 16))
    free = buffer + (0 if advance is None else 8 * AHEAD * len(advance.draws.outputs))
    module, calls = _with_functions(straight)
    if advance is not None:
        if advance.shared != shared:
            raise ValueError("All programs of a module have the same shared numbers.")
        module.add(_advancing(advance, FIRST, buffer, calls), "advance")
    for name, program in others.items():
        if isinstance(program, ArrayProgram):
            looped = Looped(program, module, free, calls)
            module.add(looped.entry(FIRST, shared), name)
            free += 16 * -(-looped.size // 16)
        else:
            module.add(_straight(program, shared, FIRST, calls), name)
    module.pages = 1 + free // PAGE
    return Compiled(module.encoded(), MemoryLayout(FIRST, free))
