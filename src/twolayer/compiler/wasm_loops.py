"""Write loops over memory (`arrays`) as functions of WebAssembly, one for each loop."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from twolayer.compiler.array_loops import ArrayProgram, Loop
from twolayer.compiler.wasm_binary import F32, F64, I32, I64, Function, Module
from twolayer.compiler.wasm_code import Scalars, type_of

BYTES = 8  # of one place in memory, whatever it holds
_FORMATS = {F64: "<d", F32: "<f", I32: "<i", I64: "<q"}


class _Access(NamedTuple):
    """Where a loop finds an array: a first address and a step along each axis, of the numbers or of their addresses."""

    first: int
    steps: tuple[int, ...]
    is_listed: bool


class Looped:
    """The functions of one program in a module, from an address on; `size` is how many bytes of memory they take."""

    def __init__(self, program: ArrayProgram, module: Module, base: int, calls: dict[str, int]):
        self.program, self.module, self.base, self.calls = program, module, base, calls
        self.size = BYTES * program.size
        for n, (value, dtype) in enumerate(program.constants):
            bits = struct.pack(_FORMATS[type_of(dtype)], value).ljust(BYTES, b"\0")
            module.data.append((base + BYTES * (program.inputs + n), bits))
        self.functions = [module.add(self._loop(loop)) for loop in program.loops]

    def entry(self, numbers: int, shared: int) -> Function:
        """The function ``(from, to)``, whose last ``shared`` inputs are read at the address of the shared numbers."""
        function, own = Function([I32, I32]), self.program.inputs - shared
        for n in range(self.program.inputs):
            function.constant(I32, 0)
            if n < own:
                function.get(0)
                function.load(F64, BYTES * n)
            else:
                function.constant(I32, 0)
                function.load(F64, numbers + BYTES * (n - own))
            function.store(F64, self.base + BYTES * n)
        for number in self.functions:
            function.call(number)
        for n, place in enumerate(self.program.outputs):
            function.get(1)
            function.constant(I32, 0)
            function.load(F64, self.base + BYTES * int(place))
            function.store(F64, BYTES * n)
        return function

    def _loop(self, loop: Loop) -> Function:
        function = Function([])
        shape = loop.writes[0].shape
        accesses = [self._access(at) for at in (*loop.reads, *loop.writes)]
        axes, accesses = _merged(shape, accesses)
        counters = [function.local(I32) for _ in axes]
        for counter in counters:
            function.constant(I32, 0)
            function.set(counter)
            function.loop()
        addresses: dict[tuple[int, ...], int] = {}
        inputs = []
        for access, dtype in zip(accesses, loop.body.inputs, strict=False):
            offset = _address(function, access, counters, addresses)
            function.load(type_of(dtype), offset)
            inputs.append(function.local(type_of(dtype)))
            function.set(inputs[-1])
        writer = Scalars(loop.body, function, inputs, self.calls)
        writer.write(range(len(loop.body.ops)))
        for access, node in zip(accesses[len(loop.reads) :], loop.body.outputs, strict=True):
            offset = _address(function, access, counters, addresses)
            writer.push(node)
            function.store(type_of(node.dtype), offset)
        for counter, count in zip(reversed(counters), reversed(axes), strict=True):
            function.get(counter)
            function.constant(I32, 1)
            function.do("i32.add")
            function.set(counter)
            function.get(counter)
            function.constant(I32, count)
            function.do("i32.lt_u")
            function.again_if()
            function.do("end")
        return function

    def _access(self, places: np.ndarray) -> _Access:
        at = self.base + BYTES * places
        first, steps = int(at[(0,) * at.ndim]), []
        grid = np.full(at.shape, first)
        for axis, count in enumerate(at.shape):
            second = tuple(int(other == axis) for other in range(at.ndim))
            steps.append(int(at[second]) - first if count > 1 else 0)
            along = [count if other == axis else 1 for other in range(at.ndim)]
            grid = grid + steps[-1] * np.arange(count).reshape(along)
        if (grid == at).all() and min(steps, default=0) >= 0:  # an address is its offset and a number above zero
            return _Access(first, tuple(steps), is_listed=False)
        table = self.base + self.size
        listed = at.astype("<i4").tobytes()
        self.module.data.append((table, listed))
        self.size += -(-len(listed) // BYTES) * BYTES
        strides = [int(np.prod(at.shape[axis + 1 :])) * 4 if n > 1 else 0 for axis, n in enumerate(at.shape)]
        return _Access(table, tuple(strides), is_listed=True)


def _merged(shape: tuple[int, ...], accesses: Sequence[_Access]) -> tuple[list[int], list[_Access]]:
    """The axes along which something moves, with neighbours that all arrays pass in one go as one."""
    axes: list[tuple[int, list[int]]] = []
    for axis, count in enumerate(shape):
        if count == 1:
            continue
        steps = [access.steps[axis] for access in accesses]
        if axes and all(outer == count * inner for outer, inner in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * count, steps)
        else:
            axes.append((count, steps))
    moved = [access._replace(steps=tuple(steps[n] for _, steps in axes)) for n, access in enumerate(accesses)]
    return [count for count, _ in axes], moved


def _address(function: Function, access: _Access, counters: list[int], known: dict[tuple[int, ...], int]) -> int:
    """Push an address, and return the offset from it at which the number is."""
    if not any(access.steps):
        function.constant(I32, 0)
    else:
        if access.steps not in known:
            pushed = 0
            for counter, step in zip(counters, access.steps, strict=True):
                if step:
                    function.get(counter)
                    function.constant(I32, step)
                    function.do("i32.mul", *["i32.add"] * (pushed > 0))
                    pushed += 1
            known[access.steps] = function.local(I32)
            function.set(known[access.steps])
        function.get(known[access.steps])
    if not access.is_listed:
        return access.first
    function.load(I32, access.first)
    return 0
