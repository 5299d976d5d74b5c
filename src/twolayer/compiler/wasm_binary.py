"""The binary format of WebAssembly, as far as programs on scalars need it: instructions, functions, one module.

See the WebAssembly core specification, release 2.0, chapter 5, for the numbers below.
"""

import struct
from collections.abc import Sequence

I32, I64, F32, F64, V128 = 0x7F, 0x7E, 0x7D, 0x7C, 0x7B
# Bytes of a page of memory.
PAGE = 2**16

# Instructions that take their operands from the stack, by their names in the text format.
PLAIN = {
    "end": 0x0B, "select": 0x1B,
    "i32.eqz": 0x45, "i32.eq": 0x46, "i32.ne": 0x47, "i32.lt_s": 0x48, "i32.lt_u": 0x49, "i32.gt_s": 0x4A,
    "i32.gt_u": 0x4B, "i32.le_s": 0x4C, "i32.le_u": 0x4D, "i32.ge_s": 0x4E, "i32.ge_u": 0x4F,
    "i64.eqz": 0x50, "i64.eq": 0x51, "i64.ne": 0x52, "i64.lt_s": 0x53, "i64.lt_u": 0x54, "i64.gt_s": 0x55,
    "i64.gt_u": 0x56, "i64.le_s": 0x57, "i64.le_u": 0x58, "i64.ge_s": 0x59, "i64.ge_u": 0x5A,
    "f32.eq": 0x5B, "f32.ne": 0x5C, "f32.lt": 0x5D, "f32.gt": 0x5E, "f32.le": 0x5F, "f32.ge": 0x60,
    "f64.eq": 0x61, "f64.ne": 0x62, "f64.lt": 0x63, "f64.gt": 0x64, "f64.le": 0x65, "f64.ge": 0x66,
    "i32.add": 0x6A, "i32.sub": 0x6B, "i32.mul": 0x6C, "i32.and": 0x71, "i32.or": 0x72, "i32.xor": 0x73,
    "i32.shl": 0x74, "i32.shr_s": 0x75, "i32.shr_u": 0x76,
    "i64.add": 0x7C, "i64.sub": 0x7D, "i64.mul": 0x7E, "i64.and": 0x83, "i64.or": 0x84, "i64.xor": 0x85,
    "i64.shl": 0x86, "i64.shr_s": 0x87, "i64.shr_u": 0x88,
    "f32.abs": 0x8B, "f32.neg": 0x8C, "f32.ceil": 0x8D, "f32.floor": 0x8E, "f32.nearest": 0x90, "f32.sqrt": 0x91,
    "f32.add": 0x92, "f32.sub": 0x93, "f32.mul": 0x94, "f32.div": 0x95, "f32.min": 0x96, "f32.max": 0x97,
    "f64.abs": 0x99, "f64.neg": 0x9A, "f64.ceil": 0x9B, "f64.floor": 0x9C, "f64.nearest": 0x9E, "f64.sqrt": 0x9F,
    "f64.add": 0xA0, "f64.sub": 0xA1, "f64.mul": 0xA2, "f64.div": 0xA3, "f64.min": 0xA4, "f64.max": 0xA5,
    "f64.copysign": 0xA6,
    "i32.wrap_i64": 0xA7, "i64.extend_i32_s": 0xAC, "i64.extend_i32_u": 0xAD,
    "f32.convert_i32_s": 0xB2, "f32.convert_i32_u": 0xB3, "f32.convert_i64_s": 0xB4, "f32.convert_i64_u": 0xB5,
    "f32.demote_f64": 0xB6, "f64.convert_i32_s": 0xB7, "f64.convert_i32_u": 0xB8, "f64.convert_i64_s": 0xB9,
    "f64.convert_i64_u": 0xBA, "f64.promote_f32": 0xBB,
    "i32.reinterpret_f32": 0xBC, "i64.reinterpret_f64": 0xBD, "f32.reinterpret_i32": 0xBE,
    "f64.reinterpret_i64": 0xBF,
}  # fmt: skip
# After the prefix 0xFC: conversions that do not trap.
SATURATING = {
    "i32.trunc_sat_f32_s": 0, "i32.trunc_sat_f32_u": 1, "i32.trunc_sat_f64_s": 2, "i32.trunc_sat_f64_u": 3,
    "i64.trunc_sat_f32_s": 4, "i64.trunc_sat_f32_u": 5, "i64.trunc_sat_f64_s": 6, "i64.trunc_sat_f64_u": 7,
}  # fmt: skip
# After the prefix 0xFD: vectors of 128 bits.
VECTOR = {
    "i32x4.splat": 0x11, "i64x2.splat": 0x12, "f32x4.splat": 0x13, "f64x2.splat": 0x14,
    "i32x4.eq": 0x37, "i32x4.ne": 0x38, "f32x4.eq": 0x41, "f32x4.ne": 0x42, "f32x4.lt": 0x43, "f32x4.gt": 0x44,
    "f32x4.le": 0x45, "f32x4.ge": 0x46, "f64x2.eq": 0x47, "f64x2.ne": 0x48, "f64x2.lt": 0x49, "f64x2.gt": 0x4A,
    "f64x2.le": 0x4B, "f64x2.ge": 0x4C, "v128.and": 0x4E, "v128.or": 0x50, "v128.xor": 0x51, "v128.bitselect": 0x52,
    "f32x4.demote_f64x2_zero": 0x5E, "f64x2.promote_low_f32x4": 0x5F,
    "i32x4.shl": 0xAB, "i32x4.shr_s": 0xAC, "i32x4.shr_u": 0xAD, "i32x4.add": 0xAE,
    "i32x4.sub": 0xB1, "i32x4.mul": 0xB5, "i64x2.extend_low_i32x4_s": 0xC7, "i64x2.extend_high_i32x4_s": 0xC8,
    "i64x2.extend_low_i32x4_u": 0xC9, "i64x2.extend_high_i32x4_u": 0xCA, "i64x2.shl": 0xCB, "i64x2.shr_u": 0xCD,
    "i64x2.add": 0xCE, "i64x2.mul": 0xD5, "i64x2.extmul_low_i32x4_u": 0xDE, "i64x2.extmul_high_i32x4_u": 0xDF,
    "f32x4.abs": 0xE0, "f32x4.neg": 0xE1, "f32x4.sqrt": 0xE3, "f32x4.add": 0xE4, "f32x4.sub": 0xE5,
    "f32x4.mul": 0xE6, "f32x4.div": 0xE7, "f32x4.pmin": 0xEA, "f32x4.pmax": 0xEB, "f64x2.abs": 0xEC,
    "f64x2.neg": 0xED, "f64x2.sqrt": 0xEF, "f64x2.add": 0xF0, "f64x2.sub": 0xF1, "f64x2.mul": 0xF2,
    "f64x2.div": 0xF3, "f64x2.pmin": 0xF6, "f64x2.pmax": 0xF7, "f32x4.convert_i32x4_s": 0xFA,
    "f32x4.convert_i32x4_u": 0xFB, "f64x2.convert_low_i32x4_s": 0xFE, "f64x2.convert_low_i32x4_u": 0xFF,
}  # fmt: skip
LOAD = {I32: 0x28, I64: 0x29, F32: 0x2A, F64: 0x2B}
STORE = {I32: 0x36, I64: 0x37, F32: 0x38, F64: 0x39}


def unsigned(value: int) -> bytes:
    """Return a whole number in base 128, least significant digits first."""
    out = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        out.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(out)


def signed(value: int) -> bytes:
    """Return a signed number in base 128, least significant digits first."""
    out = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        is_last = (value == 0 and not digit & 0x40) or (value == -1 and bool(digit & 0x40))
        out.append(digit | (0 if is_last else 0x80))
        if is_last:
            return bytes(out)


def _listed(items: Sequence[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)


def _named(text: str) -> bytes:
    return unsigned(len(text.encode())) + text.encode()


class Function:
    """The body of a function: its instructions, and locals that are declared as they are needed."""

    def __init__(self, parameters: Sequence[int], results: Sequence[int] = ()):
        self.parameters, self.results = tuple(parameters), tuple(results)
        self.locals: list[int] = []
        self.code = bytearray()

    def local(self, kind: int) -> int:
        """Declare a local and return its number."""
        self.locals.append(kind)
        return len(self.parameters) + len(self.locals) - 1

    def do(self, *names: str) -> None:
        """Append instructions without immediate operands."""
        for name in names:
            if name in PLAIN:
                self.code.append(PLAIN[name])
            elif name in SATURATING:
                self.code += b"\xfc" + unsigned(SATURATING[name])
            else:
                self.code += b"\xfd" + unsigned(VECTOR[name])

    def get(self, *numbers: int) -> None:
        """Push locals."""
        for number in numbers:
            self.code += b"\x20" + unsigned(number)

    def set(self, number: int) -> None:
        """Pop into a local."""
        self.code += b"\x21" + unsigned(number)

    def constant(self, kind: int, value: int | float | bool) -> None:
        """Push a number; whole numbers are taken by their bits."""
        if kind in (I32, I64):
            bits = 32 if kind == I32 else 64
            whole = int(value) & (2**bits - 1)
            whole -= 2**bits if whole >= 2 ** (bits - 1) else 0
            self.code += (b"\x41" if kind == I32 else b"\x42") + signed(whole)
        else:
            self.code += b"\x43" + struct.pack("<f", value) if kind == F32 else b"\x44" + struct.pack("<d", value)

    def vector(self, values: bytes) -> None:
        """Push a vector given by its 16 bytes."""
        self.code += b"\xfd\x0c" + values

    def shuffle(self, lanes: Sequence[int]) -> None:
        """Combine two vectors into one; the lanes number their 16 and 16 bytes."""
        self.code += b"\xfd\x0d" + bytes(lanes)

    def load(self, kind: int, offset: int) -> None:
        """Pop an address and push the number at the offset from it."""
        self.code += bytes([LOAD[kind]]) + unsigned(2 if kind in (I32, F32) else 3) + unsigned(offset)

    def store(self, kind: int, offset: int) -> None:
        """Pop an address and a number, and write the number at the offset from the address."""
        if kind == V128:
            self.code += b"\xfd\x0b" + unsigned(3) + unsigned(offset)
        else:
            self.code += bytes([STORE[kind]]) + unsigned(2 if kind in (I32, F32) else 3) + unsigned(offset)

    def call(self, function: int) -> None:
        """Call a function by its number."""
        self.code += b"\x10" + unsigned(function)

    def loop(self) -> None:
        """Begin a loop, to whose first instruction `again_if` jumps; ``end`` ends it."""
        self.code += b"\x03\x40"

    def begin_if(self) -> None:
        """Pop a condition and begin what is done where it holds; ``end`` ends it."""
        self.code += b"\x04\x40"

    def again_if(self) -> None:
        """Pop a condition and begin the innermost loop again where it holds."""
        self.code += b"\x0d\x00"

    def encoded(self) -> bytes:
        """Return the function as the code section holds it."""
        runs: list[list[int]] = []
        for kind in self.locals:
            if runs and runs[-1][1] == kind:
                runs[-1][0] += 1
            else:
                runs.append([1, kind])
        body = _listed([unsigned(count) + bytes([kind]) for count, kind in runs]) + bytes(self.code) + b"\x0b"
        return unsigned(len(body)) + body


def _joined(data: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Bytes at addresses, those that follow one another together."""
    joined: list[tuple[int, bytes]] = []
    for address, content in data:
        if joined and joined[-1][0] + len(joined[-1][1]) == address:
            joined[-1] = (joined[-1][0], joined[-1][1] + content)
        else:
            joined.append((address, content))
    return joined


class Module:
    """Functions and one memory with its first content; imports come first in the numbering of functions."""

    def __init__(self, pages: int = 1):
        self.pages = pages
        self.imports: list[tuple[str, Function]] = []
        self.functions: list[Function] = []
        self.data: list[tuple[int, bytes]] = []
        self.exports: dict[str, int] = {}

    def imported(self, name: str, parameters: int) -> int:
        """Import a function of numbers in double precision from ``Math``; before any function is added."""
        self.imports.append((name, Function([F64] * parameters, [F64])))
        return len(self.imports) - 1

    def add(self, function: Function, name: str | None = None) -> int:
        """Add a function, exported where it has a name, and return its number."""
        self.functions.append(function)
        number = len(self.imports) + len(self.functions) - 1
        if name is not None:
            self.exports[name] = number
        return number

    def encoded(self) -> bytes:
        """Return the module."""
        everything = [*(function for _, function in self.imports), *self.functions]
        kinds = [(f.parameters, f.results) for f in everything]
        types = list(dict.fromkeys(kinds))
        numbers = [unsigned(types.index(kind)) for kind in kinds]
        first = len(self.imports)
        imports = [
            _named("Math") + _named(name) + b"\x00" + number
            for (name, _), number in zip(self.imports, numbers[:first], strict=True)
        ]
        exports = [_named("memory") + b"\x02\x00"]
        exports += [_named(name) + b"\x00" + unsigned(number) for name, number in self.exports.items()]
        sections = {
            1: _listed(
                [b"\x60" + _listed([bytes([x]) for x in a]) + _listed([bytes([x]) for x in b]) for a, b in types]
            ),
            2: _listed(imports),
            3: _listed(numbers[first:]),
            5: _listed([b"\x00" + unsigned(self.pages)]),
            7: _listed(exports),
            10: _listed([function.encoded() for function in self.functions]),
            11: _listed([b"\x00\x41" + signed(at) + b"\x0b" + unsigned(len(x)) + x for at, x in _joined(self.data)]),
        }
        return b"\x00asm\x01\x00\x00\x00" + b"".join(
            bytes([number]) + unsigned(len(content)) + content for number, content in sections.items()
        )
