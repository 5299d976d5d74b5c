"""Write programs on scalars as instructions of WebAssembly: a number in each local, or four steps in vectors."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from twolayer.compiler.scalar import Node, Op, Program, Unsupported
from twolayer.compiler.wasm_binary import F32, F64, I32, I64, V128, Function

_KINDS = {"float64": F64, "float32": F32, "int64": I64, "uint64": I64, "int32": I32, "uint32": I32, "bool": I32}
_PREFIX = {F64: "f64", F32: "f32", I64: "i64", I32: "i32"}
_PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")
_SAME = {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "and": "and", "or": "or",
         "xor": "xor", "shift_left": "shl", "sqrt": "sqrt", "abs": "abs", "neg": "neg", "floor": "floor",
         "ceil": "ceil", "max": "max", "min": "min"}  # fmt: skip


def type_of(dtype: DTypeLike) -> int:
    """The kind of number of a type, as the binary format writes it."""
    name = np.dtype(dtype).name
    if name not in _KINDS:
        raise Unsupported(f"numbers of type {name}")
    return _KINDS[name]


def _sign(dtype: Any) -> str:
    """The suffix of instructions that depend on whether whole numbers have a sign."""
    return "_s" if np.dtype(dtype).kind == "i" else "_u"


class Scalars:
    """Writes the operations of a program into a function, one number in each local."""

    def __init__(self, program: Program, function: Function, inputs: Sequence[int], calls: dict[str, int]):
        self.program, self.function, self.inputs, self.calls = program, function, list(inputs), calls
        self.place: dict[int, int] = {}

    def push(self, node: Node) -> None:
        """Push the value of a node."""
        if node.number is None:
            self.function.constant(type_of(node.dtype), node.value)
        else:
            self.function.get(self.inputs[-1 - node.number] if node.number < 0 else self.place[node.number])

    def write(self, numbers: Sequence[int]) -> None:
        """Append the operations with these numbers."""
        for number in numbers:
            op = self.program.ops[number]
            self._operation(op)
            self.place[number] = self.function.local(type_of(op.dtype))
            self.function.set(self.place[number])

    def _operation(self, op: Op) -> None:
        name, kind, arguments = op.primitive.name, type_of(op.dtype), op.arguments
        prefix, given = _PREFIX[kind], arguments[0].dtype
        if name == "select_n":
            for node in (arguments[2], arguments[1], arguments[0]):
                self.push(node)
            return self.function.do("select")
        if name == "integer_pow":
            return self._power(op, dict(op.parameters)["y"])
        for node in arguments:
            self.push(node)
        if name in _PREDICATES:
            suffix = "" if np.dtype(given).kind == "f" or name in ("eq", "ne") else _sign(given)
            self.function.do(f"{_PREFIX[type_of(given)]}.{name}{suffix}")
        elif name == "square":
            self.push(arguments[0])
            self.function.do(f"{prefix}.mul")
        elif name in ("copy", "stop_gradient"):
            pass
        elif name in ("shift_right_logical", "shift_right_arithmetic"):
            self.function.do(f"{prefix}.shr_{'s' if name.endswith('c') else 'u'}")
        elif name == "convert_element_type":
            self._convert(given, op.dtype)
        elif name == "bitcast_convert_type":
            if type_of(given) != kind:
                self.function.do(f"{prefix}.reinterpret_{_PREFIX[type_of(given)]}")
        elif kind == F64 and name in self.calls:
            self.function.call(self.calls[name])
        else:
            self._plain(name, kind, prefix, arguments[0])

    def _plain(self, name: str, kind: int, prefix: str, first: Node) -> None:
        if name == "neg" and kind in (I32, I64):
            self.function.constant(kind, -1)
            return self.function.do(f"{prefix}.mul")
        if name == "not" and np.dtype(first.dtype) == np.bool_:
            return self.function.do("i32.eqz")
        if name == "rsqrt" and kind == F64:
            self.function.do("f64.sqrt")
            held = self.function.local(F64)
            self.function.set(held)
            self.function.constant(F64, 1.0)
            self.function.get(held)
            return self.function.do("f64.div")
        if name == "sign" and kind == F64:  # (x > 0) - (x < 0); the argument is on the stack once
            self.function.constant(F64, 0.0)
            self.function.do("f64.gt", "f64.convert_i32_s")
            self.push(first)
            self.function.constant(F64, 0.0)
            return self.function.do("f64.lt", "f64.convert_i32_s", "f64.sub")
        if name == "is_finite" and np.dtype(first.dtype) == np.float64:
            self.function.do("f64.abs")
            self.function.constant(F64, np.inf)
            return self.function.do("f64.lt")
        instruction = f"{prefix}.{_SAME.get(name, name)}"
        try:
            self.function.do(instruction)
        except KeyError:
            raise Unsupported(f"{name} of {np.dtype(first.dtype).name}") from None

    def _power(self, op: Op, power: int) -> None:
        prefix = _PREFIX[type_of(op.dtype)]
        if power < 0:
            self.function.constant(type_of(op.dtype), 1.0)
        self.push(op.arguments[0])
        for _ in range(abs(power) - 1):
            self.push(op.arguments[0])
            self.function.do(f"{prefix}.mul")
        if power < 0:
            self.function.do(f"{prefix}.div")

    def _convert(self, before: Any, after: Any) -> None:
        old, new = type_of(before), type_of(after)
        if np.dtype(after) == np.bool_ and np.dtype(before) != np.bool_:
            raise Unsupported(f"conversion from {np.dtype(before).name} to bool")
        if old == new:
            return
        a, b = _PREFIX[old], _PREFIX[new]
        if (old, new) == (I64, I32):
            self.function.do("i32.wrap_i64")
        elif old in (I32, I64) and new in (I32, I64):
            self.function.do(f"{b}.extend_{a}{_sign(before)}")
        elif old in (I32, I64):
            self.function.do(f"{b}.convert_{a}{_sign(before)}")
        elif new in (I32, I64):
            self.function.do(f"{b}.trunc_sat_{a}{_sign(after)}")
        else:
            self.function.do("f32.demote_f64" if new == F32 else "f64.promote_f32")


LOW_WORDS = [*range(4), *range(8, 12), *range(16, 20), *range(24, 28)]
HIGH_WORDS = [x + 4 for x in LOW_WORDS]
_LOWER_HALVES = [*range(8), *range(16, 24)]
_UPPER_HALF = [*range(8, 16), *range(8, 16)]
_FORMATS = {F64: "<d", F32: "<f", I64: "<q", I32: "<i"}
SHAPES = {F64: "f64x2", F32: "f32x4", I64: "i64x2", I32: "i32x4"}


class Lanes:
    """Writes the operations of a program for four steps at once: a vector for each number, two where it has 64 bits."""

    def __init__(self, program: Program, function: Function, inputs: Sequence[tuple[int, ...]]):
        self.program, self.function, self.inputs = program, function, list(inputs)
        self.place: dict[int, tuple[int, ...]] = {}
        self.constants: dict[tuple[int, Any], int] = {}

    def hold_constants(self) -> None:
        """Put all constants into locals, from which they come faster than from the code."""
        for op in self.program.ops:
            for node in op.arguments:
                if node.number is None:
                    self._constant(type_of(node.dtype), node.value)
                    if type_of(node.dtype) == I64 and 0 <= node.value < 2**32:  # for products of words
                        self._constant(I32, node.value)

    def _constant(self, kind: int, value: Any) -> int:
        if (kind, value) not in self.constants:
            self.constants[kind, value] = self.function.local(V128)
            self.function.vector(_bits(kind, value))
            self.function.set(self.constants[kind, value])
        return self.constants[kind, value]

    def registers(self, node: Node) -> tuple[int, ...]:
        """Return the locals that hold a node."""
        if node.number is None:
            one = self.constants[type_of(node.dtype), node.value]
            return (one, one) if type_of(node.dtype) in (F64, I64) else (one,)
        return self.inputs[-1 - node.number] if node.number < 0 else self.place[node.number]

    def write(self, numbers: Sequence[int]) -> None:
        """Append the operations with these numbers."""
        for number in numbers:
            op = self.program.ops[number]
            halves = 2 if type_of(op.dtype) in (F64, I64) else 1
            if op.primitive.name in _PREDICATES:
                halves = len(self.registers(op.arguments[0]))
            held = tuple(self.function.local(V128) for _ in range(halves))
            for half, local in enumerate(held):
                self._operation(op, half)
                self.function.set(local)
            self.place[number] = held

    def _source(self, node: Node, name: str) -> Op | None:
        """The operation of a name that made a node, if that is what made it."""
        op = self.program.ops[node.number] if node.number is not None and node.number >= 0 else None
        return op if op is not None and op.primitive.name == name else None

    def _operation(self, op: Op, half: int) -> None:
        name, arguments = op.primitive.name, op.arguments
        if name == "convert_element_type":
            return self._convert(op, half)
        if name == "mul" and np.dtype(op.dtype) == np.uint64 and self._product_of_words(op, half):
            return None
        if name == "select_n":
            return self._select(op, half)
        if name.startswith("shift_"):
            self.function.get(self.registers(arguments[0])[half])
            if arguments[1].number is not None:
                raise Unsupported("shifts by a number that is computed")
            self.function.constant(I32, arguments[1].value)
            suffix = {"shift_left": "shl", "shift_right_logical": "shr_u", "shift_right_arithmetic": "shr_s"}[name]
            return self._do(f"{SHAPES[type_of(op.dtype)]}.{suffix}")
        for node in arguments:
            self.function.get(self.registers(node)[half])
        if name == "bitcast_convert_type":
            return None
        shape = SHAPES[type_of(arguments[0].dtype)]
        if name in ("and", "or", "xor"):
            shape = "v128"
        known = {"max": "pmax", "min": "pmin"} | {name: name for name in _PREDICATES}
        return self._do(f"{shape}.{known.get(name) or _SAME.get(name, name)}")

    def _do(self, instruction: str) -> None:
        try:
            self.function.do(instruction)
        except KeyError:
            raise Unsupported(instruction) from None

    def _product_of_words(self, op: Op, half: int) -> bool:
        """Multiply words of 32 bits to 64, for which there is one instruction, instead of numbers of 64 bits."""
        wide, constant = op.arguments
        conversion = self._source(wide, "convert_element_type")
        if conversion is None or np.dtype(conversion.arguments[0].dtype) != np.uint32:
            return False
        if constant.number is not None or constant.value >= 2**32:
            return False
        self.function.get(self.registers(conversion.arguments[0])[0], self.constants[I32, constant.value])
        self.function.do(f"i64x2.extmul_{('low', 'high')[half]}_i32x4_u")
        return True

    def _select(self, op: Op, half: int) -> None:
        mask = self.registers(op.arguments[0])
        for node in (op.arguments[2], op.arguments[1]):
            self.function.get(self.registers(node)[half])
        if len(mask) == (2 if type_of(op.dtype) in (F64, I64) else 1):
            self.function.get(mask[half])
        elif len(mask) == 1:
            self.function.get(mask[0])
            self.function.do(f"i64x2.extend_{('low', 'high')[half]}_i32x4_s")
        else:
            self.function.get(*mask)
            self.function.shuffle(LOW_WORDS)
        self.function.do("v128.bitselect")

    def _convert(self, op: Op, half: int) -> None:
        node = op.arguments[0]
        before, after, registers = np.dtype(node.dtype).name, np.dtype(op.dtype).name, self.registers(node)
        pair, side = (before, after), ("low", "high")[half]
        words = {("uint32", "float32"): "f32x4.convert_i32x4_u", ("int32", "float32"): "f32x4.convert_i32x4_s"}
        if before == after or {before, after} <= {"uint32", "int32"}:
            self.function.get(registers[half])
        elif pair in words:
            self.function.get(registers[0])
            self.function.do(words[pair])
        elif pair in (("uint32", "uint64"), ("uint32", "int64"), ("int32", "int64")):
            self.function.get(registers[0])
            self.function.do(f"i64x2.extend_{side}_i32x4{_sign(before)}")
        elif before in ("uint64", "int64") and after in ("uint32", "int32"):
            shifted = self._source(node, "shift_right_logical")
            is_high = shifted is not None and shifted.arguments[1].value == 32
            self.function.get(*(self.registers(shifted.arguments[0]) if shifted is not None and is_high else registers))
            self.function.shuffle(HIGH_WORDS if is_high else LOW_WORDS)
        elif pair == ("float32", "float64") or (before in ("uint32", "int32") and after == "float64"):
            self.function.get(registers[0])
            if half:
                self.function.get(registers[0])
                self.function.shuffle(_UPPER_HALF)
            to = "promote_low_f32x4" if before == "float32" else f"convert_low_i32x4{_sign(before)}"
            self.function.do(f"f64x2.{to}")
        elif pair == ("float64", "float32"):
            for register in registers:
                self.function.get(register)
                self.function.do("f32x4.demote_f64x2_zero")
            self.function.shuffle(_LOWER_HALVES)
        else:
            raise Unsupported(f"conversion from {before} to {after} in vectors")


def _bits(kind: int, value: Any) -> bytes:
    """The bytes of a vector whose lanes are all one number."""
    if kind in (I32, I64):
        bits = 32 if kind == I32 else 64
        one = (int(value) & (2**bits - 1)).to_bytes(bits // 8, "little")
    else:
        one = struct.pack(_FORMATS[kind], value)
    return one * (16 // len(one))
