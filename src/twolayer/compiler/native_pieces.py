"""The source of a kernel for a long step, in pieces that are functions of their own.

A function takes a time to compile that grows as the square of its length; many short ones take far less, and the
compiler can still vectorise the loops over replicas in each of them. Numbers that one piece leaves to another stand in
a memory, in double precision.
"""

import heapq
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from twolayer.compiler.native_text import KernelConstants, body, cast, text
from twolayer.compiler.scalar import Node, Op, Program

# Steps whose numbers are drawn at once, for a single replica.
AHEAD = 32
# Operations from which a step is compiled in pieces, and those of a piece, more or less.
LONG_STEP, PIECE = 2500, 400
# The types of which double precision holds every number.
_HELD = {"float64", "float32", "int32", "uint32", "bool"}
# A number that memory cannot hold counts as this many that cross a cut.
NEVER = 1e9


class _Cut(NamedTuple):
    """A program in pieces: the numbers of the operations of each, and where results stand that others need."""

    parts: list[range]
    own: dict[int, int]  # results that stand in the place of an output, by its number, from the beginning
    places: dict[int, int]  # those of the others


def in_order_of_use(program: Program) -> Program:
    """Return the same program with its operations in the order in which its outputs need them, one after the other."""
    order: list[int] = []
    done: set[int] = set()
    for output in program.outputs:
        stack = [output.number]
        while stack:
            number = stack.pop()
            if number is None or number < 0 or number in done:
                continue
            needed = [x.number for x in program.ops[number].arguments if x.number is not None and x.number >= 0]
            missing = [x for x in needed if x not in done]
            if missing:
                stack += [number, *missing]
            else:
                done.add(number)
                order.append(number)
    place = {number: n for n, number in enumerate(order)}

    def moved(node: Node) -> Node:
        return node if node.number is None or node.number < 0 else node._replace(number=place[node.number])

    ops = tuple(Op(op.primitive, tuple(map(moved, op.arguments)), op.parameters, op.dtype)
                for op in (program.ops[number] for number in order))  # fmt: skip
    return Program(program.inputs, ops, tuple(map(moved, program.outputs)))


def _cut(program: Program, state: int) -> _Cut:
    """Cut a program where few numbers cross, and never one that memory cannot hold.

    Outputs take the places of the first ``state`` inputs.
    """
    number = len(program.ops)
    last = np.arange(number)  # the last use of each result
    for n, op in enumerate(program.ops):
        for x in op.arguments:
            if x.number is not None and x.number >= 0:
                last[x.number] = n
    for x in program.outputs:
        if x.number is not None and x.number >= 0:
            last[x.number] = number
    held = np.array([np.dtype(op.dtype).name in _HELD for op in program.ops])
    # How many results cross the place before each operation.
    steps = np.zeros(number + 2)
    np.add.at(steps, np.arange(number) + 1, np.where(held, 1.0, NEVER))
    np.add.at(steps, np.minimum(last, number) + 1, -np.where(held, 1.0, NEVER))
    crossing = np.cumsum(steps)[: number + 1]
    ends, first = [], 0
    while number - first > PIECE + PIECE // 2:
        possible = first + PIECE // 2 + np.flatnonzero(crossing[first + PIECE // 2 : number] < NEVER)
        near = possible[possible <= max(first + PIECE, possible.min(initial=number))]
        if not near.size:
            break
        first = int(near[np.argmin(crossing[near])])
        ends.append(first)
    edges = [0, *ends, number]
    parts = [range(a, b) for a, b in pairwise(edges)]
    piece = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    piece = np.append(piece, len(parts))
    needed_until = piece[np.minimum(last, number)]
    own = _settled(program, piece, state)
    crosses = [int(n) for n in np.flatnonzero(needed_until > piece[:number]) if n not in own]
    return _Cut(parts, own, _placed(crosses, piece, needed_until))


def _settled(program: Program, piece: Int[np.ndarray, " all"], state: int) -> dict[int, int]:
    """The results that can stand in the place of an output at once: nothing reads an input there in a later piece."""
    last = np.full(state, -1)
    for op, number in zip(program.ops, piece[:-1], strict=True):
        read = [-1 - x.number for x in op.arguments if x.number is not None and x.number < 0]
        last[[n for n in read if n < state]] = number
    for x in program.outputs:
        if x.number is not None and -state <= x.number < 0:
            last[-1 - x.number] = piece[-1]
    found: dict[int, int] = {}
    for n, x in enumerate(program.outputs):
        if x.number is not None and x.number >= 0 and (n >= state or last[n] <= piece[x.number]):
            found.setdefault(x.number, n)
    return found


def _placed(
    results: Sequence[int], piece: Int[np.ndarray, " all"], needed_until: Int[np.ndarray, " operations"]
) -> dict[int, int]:
    """A place for each result, which another one takes after the last piece that reads it.

    A piece reads all that it needs before it writes, so that its own results may take the places of what it has read.
    """
    places: dict[int, int] = {}
    taken: list[tuple[int, int]] = []  # until which piece, and the place
    size = 0
    for n in results:
        if taken and taken[0][0] <= piece[n]:
            place = heapq.heappop(taken)[1]
        else:
            place, size = size, size + 1
        places[n] = place
        heapq.heappush(taken, (int(needed_until[n]), place))
    return places


def _indent(depth: int, lines: Sequence[str]) -> list[str]:
    return ["    " * depth + line for line in lines]


def _pieces(
    name: str,
    program: Program,
    given: Sequence[tuple[str, str]],
    place_of: Callable[[int], str],
    constants: KernelConstants,
    loop: Sequence[str],
    arguments: str,
    outputs: Sequence[str],
) -> tuple[list[list[str]], Callable[[Node], str], int]:
    """Return the functions of a program in pieces, how a result is read from memory, and how many places it needs.

    ``given`` holds for each input of the program its name and an expression of it, ``outputs`` the places of the
    outputs, where they stand at once if no input there is still needed; if any input is there, these are the first.
    """
    cut = _cut(program, sum(place in outputs for _, place in given))
    names = [name for name, _ in given]

    def at_place(number: int) -> str:
        return outputs[cut.own[number]] if number in cut.own else place_of(cut.places[number])

    def read(number: int) -> str:
        dtype, at = np.dtype(program.ops[number].dtype), at_place(number)
        return f"({at} != 0.0)" if dtype == np.bool_ else cast(dtype, at)

    def value(node: Node) -> str:
        return read(node.number) if node.number is not None and node.number >= 0 else text(node, "t", names, constants)

    written = []
    for number, part in enumerate(cut.parts):
        used = {x.number for n in part for x in program.ops[n].arguments if x.number is not None}
        loads = [f"{given[-1 - n][0]} = {given[-1 - n][1]}" for n in sorted(used) if n < 0]
        loads += [f"t{n} = {read(n)}" for n in sorted(used) if 0 <= n < part.start]
        lines = body(program, "t", names, constants, part)
        kept = [n for n in part if n in cut.own or n in cut.places]
        stores = [f"{at_place(n)} = {cast(np.float64, f't{n}')}" for n in kept]
        inside = _indent(1 + len(loop), [*loads, *lines, *stores])
        head = [f"def {name}{number}({arguments}):"]
        written.append([*head, *_indent(1, _needed(constants, inside)), *_indent(1, loop), *inside])
    return written, value, 1 + max(cut.places.values(), default=-1)


def _needed(constants: KernelConstants, lines: Sequence[str]) -> list[str]:
    """The assignments of the constants that these lines use."""
    used = {name for line in lines for name in re.findall(r"\bc\d+\b", line)}
    return [line for line in constants.lines() if line.split(" ", 1)[0] in used]


def source_in_pieces(draws: Program, step: Program, state: int, fixed: int, *, width: int) -> tuple[str, np.ndarray]:
    """Return the Python source of the kernel for a long step, called as that of a short one, and its constants."""
    draws, step = in_order_of_use(draws), in_order_of_use(step)
    numbers, constants = len(draws.outputs), KernelConstants()
    # A single replica draws the numbers of several steps at once.
    lanes, lane = (width, "i") if width > 1 else (AHEAD, "j")
    drawn = (state + fixed) * width
    live = drawn + numbers * lanes  # of the step; those of the draws follow
    time = "time" if width > 1 else "(time + j)"
    words = [("k0", "words[i]"), ("k1", f"words[{width} + i]")]
    words += [("low", f"np.uint32({time} & 0xFFFFFFFF)"), ("high", f"np.uint32({time} >> 32)")]
    given = [(f"x{n}", f"memory[{n * width} + i]") for n in range(state + fixed)]
    given += [(f"g{n}", f"memory[{drawn + n * lanes} + {lane}]") for n in range(numbers)]
    states, buffer = [place for _, place in given[:state]], [place for _, place in given[state + fixed :]]
    over = [f"for i in range({width}):"] if width > 1 else []
    every = over or [f"for j in range({AHEAD}):"]
    more = "" if width > 1 else ", i, j"
    both = f"memory, constants{more}"
    stepping, result, places = _pieces(
        "step", step, given, lambda n: f"memory[{live + n * width} + i]", constants, over, both, states
    )
    begin = live + places * width
    call = "memory, constants, words, time" + ("" if width > 1 else ", i")
    drawing, number, more_places = _pieces(
        "draw", draws, words, lambda n: f"memory[{begin + n * lanes} + {lane}]", constants, every, call, buffer
    )
    values = [number(node) for node in draws.outputs]
    moves = [f"{place} = {value}" for place, value in zip(buffer, values, strict=True) if place not in value]
    ends = _ends([_from_memory(result(node), given) for node in step.outputs], states)
    head = [f"def finish({both}):", *_indent(1, [*_needed(constants, ends), *over])]
    last = [[*head, *_indent(1 + len(over), ends)]] if ends else []
    calls = [f"step{n}({both})" for n in range(len(stepping))]
    calls += [f"finish({both})"] * len(last)
    functions = [*stepping, *drawing, *last]
    size = begin + more_places * lanes
    drawing_calls = [f"draw{n}({call})" for n in range(len(drawing))]
    drawing_calls += [*every, *_indent(1, moves)] if moves else []
    inner = _indent(1, calls)
    loop = (
        ["for time in range(first, last):", *_indent(1, drawing_calls), *inner]
        if width > 1
        else [
            f"for time in range(first, last, {AHEAD}):",
            *_indent(1, [*drawing_calls, f"for j in range(min({AHEAD}, last - time)):", *inner]),
        ]
    )
    lines = [
        "def kernel(state, numbers, words, constants, first, last):",
        *_indent(1, _needed(constants, moves)),
        *_indent(1, [f"memory = np.zeros({size})", "i = 0"]),
        *_indent(
            1, [f"memory[:{state * width}] = state", f"memory[{state * width}:{drawn}] = numbers[:{fixed * width}]"]
        ),
        *_indent(1, loop),
        *_indent(1, [f"state[:] = memory[:{state * width}]"]),
    ]
    code = ["\n".join(["@piece", *function]) for function in functions]
    return "\n".join([*code, *lines]) + "\n", constants.array()


def _ends(results: Sequence[str], states: Sequence[str]) -> list[str]:
    """The assignments that bring results to the places of the state where they do not stand yet.

    Every result is read before one is written, since a state may be another one from before.
    """
    late = [n for n, value in enumerate(results) if value.strip("()") != states[n]]
    return [f"y{n} = {results[n]}" for n in late] + [f"{states[n]} = y{n}" for n in late]


def _from_memory(expression: str, given: Sequence[tuple[str, str]]) -> str:
    """An input by its place in memory; other expressions stay as they are."""
    return dict(given).get(expression, expression)
