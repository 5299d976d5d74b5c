"""Run loops over memory on many rows at once, as machine code on vectors of eight numbers.

XLA does not vectorise a function of small arrays over rows, and a program on scalars is too long where it has 10^4
operations. Here every place of an `ArrayProgram` holds a vector with the numbers of eight rows, so that each operation
of a loop is one instruction. The code is written with LLVM, which numba brings along. A row has the same numbers, bit
for bit, whatever rows are beside it.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from twolayer.compiler import elementary
from twolayer.compiler.array_loops import ArrayProgram, Loop
from twolayer.compiler.scalar import Node, Op, Program, Unsupported, scalarize

# Rows of a vector, and bytes of a number.
LANES, BYTES = 8, 8
# Functions that are written out on numbers where they occur.
_WRITTEN: dict[str, Callable[..., Any]] = {
    "atan2": elementary.atan2, "exp": elementary.exp, "tanh": elementary.tanh, "logistic": elementary.logistic,
}  # fmt: skip
_FLOATS = {"add": "fadd", "add_any": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGERS = {"add": "add", "sub": "sub", "mul": "mul", "shift_left": "shl", "shift_right_logical": "lshr",
             "shift_right_arithmetic": "ashr"}  # fmt: skip
_BITS = {"and": "and_", "or": "or_", "xor": "xor"}
_PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_INTRINSICS = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor"}
_EXTREMES = {"max": ">=", "min": "<="}


class VectorCode:
    """Compiled loops; a call maps inputs (numbers, rows) to outputs (numbers, rows), with eight times as many rows."""

    def __init__(self, program: ArrayProgram):
        self.inputs, self.outputs, self.size = program.inputs, len(program.outputs), program.size
        module = _new_module()
        run = _write_run(module, program)
        _write_stages(module, _write_combine(module, "combine"), run)
        _write_combine(module, "mix", is_own=True)
        self._engine = _compiled(str(module))
        self._run = self._function("run", "pppi")
        self._stages = self._function("stages", "ppppppiiiii")
        self._combine, self._mix = (self._function(name, "pppppiii") for name in ("combine", "mix"))

    def _function(self, name: str, arguments: str) -> Any:
        kinds = [ctypes.c_void_p if letter == "p" else ctypes.c_int64 for letter in arguments]
        return ctypes.CFUNCTYPE(None, *kinds)(self._engine.get_function_address(name))

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """The outputs of all rows; other threads go on meanwhile."""
        rows = inputs.shape[1]
        assert inputs.shape[0] == self.inputs and rows % LANES == 0
        inputs = np.ascontiguousarray(inputs, float)
        outputs, memory = np.empty((self.outputs, rows)), np.empty((self.size, LANES))
        self._run(*_addresses(inputs, outputs, memory), rows // LANES)
        return outputs

    def stages(
        self,
        y: np.ndarray,
        numbers: np.ndarray,
        size: np.ndarray,
        slopes: np.ndarray,
        weights: np.ndarray,
        stages: range | None = None,
    ) -> np.ndarray:
        """Fill in slopes of a Runge-Kutta method for ``dy/dt = self(y, numbers)``, and return the last argument.

        Parameters
        ----------
        y, numbers
            The states and the numbers of all rows, along the last axis.
        size
            The step of each row.
        slopes
            The slopes of all stages (stages, numbers, rows), of which the first ones are given.
        weights
            The weights of the slopes in the argument of each stage (stages, stages).
        stages
            The stages whose slopes are filled in, one after the other; by default all but the first.
        """
        count, rows = y.shape
        moved, memory = np.concatenate([y, numbers]), np.empty((self.size, LANES))
        arrays = moved, y, size, slopes, weights, memory
        assert len(moved) == self.inputs and count == self.outputs and rows % LANES == 0
        assert all(x.dtype == np.float64 and x.flags.c_contiguous for x in arrays)
        stages = range(1, len(slopes)) if stages is None else stages
        assert weights.shape == (len(slopes), len(slopes)) and 0 < stages.start < stages.stop <= len(slopes)
        self._stages(*_addresses(*arrays), len(slopes), count, rows // LANES, stages.start, stages.stop)
        return moved[:count]

    def combination(self, y: np.ndarray, size: np.ndarray, terms: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The sum ``y + size * (w_0 terms_0 + w_1 terms_1 + ...)`` of all rows, with weights that they share or own."""
        result = np.empty_like(y)
        arrays = result, y, size, terms, weights
        assert all(x.dtype == np.float64 and x.flags.c_contiguous for x in arrays)
        combine = self._combine if weights.ndim == 1 else self._mix
        combine(*_addresses(*arrays), len(weights), y.shape[0], y.shape[1] // LANES)
        return result


def _addresses(*arrays: np.ndarray) -> list[int]:
    return [x.ctypes.data for x in arrays]


# ------------------------------------------------------------------------------------------------------ compilation


def _new_module() -> Any:
    """An empty module of LLVM."""
    from llvmlite import ir

    return ir.Module(name="loops")


def _compiled(text: str) -> Any:
    """The engine that holds the machine code of a module."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    machine = target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True)
    module = binding.parse_assembly(text)
    module.verify()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


class _Function:
    """A function of a module that is being written, and the types that it needs: of pointers and whole numbers."""

    def __init__(self, module: Any, name: str, arguments: str):
        from llvmlite import ir

        self.ir, self.module = ir, module
        self.whole, self.double = ir.IntType(64), ir.DoubleType()
        self.vector = ir.VectorType(self.double, LANES)
        kinds = {"p": self.double.as_pointer(), "i": self.whole}
        signature = ir.FunctionType(ir.VoidType(), [kinds[letter] for letter in arguments])
        self.function = ir.Function(module, signature, name)
        self.builder: Any = ir.IRBuilder(self.function.append_basic_block("entry"))

    def ended(self) -> Any:
        """The function after its last line."""
        self.builder.ret_void()
        return self.function

    def intrinsic(self, name: str, arguments: int) -> Any:
        """A function of vectors that LLVM has."""
        name = f"llvm.{name}.v{LANES}f64"
        if name not in self.module.globals:
            signature = self.ir.FunctionType(self.vector, [self.vector] * arguments)
            self.ir.Function(self.module, signature, name)
        return self.module.globals[name]

    def integer(self, value: int) -> Any:
        return self.ir.Constant(self.whole, int(value))

    def loop(self, count: Any, body: Callable[[Any], None]) -> None:
        """Write a loop whose body is given the number of each turn, of which there is at least one."""
        builder = self.builder
        before = builder.block
        block = builder.append_basic_block("loop")
        after = builder.append_basic_block("after")
        builder.branch(block)
        builder.position_at_end(block)
        turn = builder.phi(self.whole)
        turn.add_incoming(self.integer(0), before)
        body(turn)
        following = builder.add(turn, self.integer(1))
        turn.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, count), block, after)
        builder.position_at_end(after)

    def at(self, pointer: Any, index: Any) -> Any:
        """The address of the vector that begins at an index of numbers."""
        place = self.builder.gep(pointer, [index])
        return self.builder.bitcast(place, self.vector.as_pointer())

    def load(self, pointer: Any, index: Any) -> Any:
        return self.builder.load(self.at(pointer, index), align=BYTES)

    def store(self, value: Any, pointer: Any, index: Any) -> None:
        self.builder.store(value, self.at(pointer, index), align=BYTES)

    def splat(self, value: Any) -> Any:
        """A vector with the same number in all lanes."""
        ir, builder = self.ir, self.builder
        empty = ir.Constant(self.vector, ir.Undefined)
        one = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(one, empty, mask)


def _write_combine(module: Any, name: str, is_own: bool = False) -> Any:
    """Write the function of `VectorCode.combination`, for weights that all rows share or that are those of each."""
    writer = _Function(module, name, "pppppiii")
    result, y, size, terms, weights, count, numbers, blocks = writer.function.args
    builder = writer.builder
    rows = builder.mul(blocks, writer.integer(LANES))
    whole = builder.mul(rows, numbers)

    def of_block(block: Any) -> None:
        first = builder.mul(block, writer.integer(LANES))
        factor = writer.load(size, first)

        def of_number(number: Any) -> None:
            index = builder.add(builder.mul(number, rows), first)
            before = builder.block
            inner = builder.append_basic_block("terms")
            after = builder.append_basic_block("summed")
            builder.branch(inner)
            builder.position_at_end(inner)
            term, total = builder.phi(writer.whole), builder.phi(writer.vector)
            term.add_incoming(writer.integer(0), before)
            total.add_incoming(writer.ir.Constant(writer.vector, [0.0] * LANES), before)
            if is_own:
                weight = writer.load(weights, builder.add(builder.mul(term, rows), first))
            else:
                weight = writer.splat(builder.load(builder.gep(weights, [term])))
            value = writer.load(terms, builder.add(builder.mul(term, whole), index))
            product = builder.fmul(weight, value, flags=("contract",))
            added = builder.fadd(total, product, flags=("contract",))
            following = builder.add(term, writer.integer(1))
            term.add_incoming(following, inner)
            total.add_incoming(added, inner)
            builder.cbranch(builder.icmp_signed("<", following, count), inner, after)
            builder.position_at_end(after)
            moved = builder.fmul(factor, added, flags=("contract",))
            writer.store(builder.fadd(writer.load(y, index), moved, flags=("contract",)), result, index)

        writer.loop(numbers, of_number)

    writer.loop(blocks, of_block)
    return writer.ended()


def _write_stages(module: Any, combine: Any, run: Any) -> Any:
    """Write the function of `VectorCode.stages`."""
    writer = _Function(module, "stages", "ppppppiiiii")
    moved, y, size, slopes, weights, memory, count, numbers, blocks, start, stop = writer.function.args
    builder = writer.builder
    whole = builder.mul(builder.mul(blocks, writer.integer(LANES)), numbers)

    def of_stage(turn: Any) -> None:
        stage = builder.add(turn, start)
        own = builder.gep(weights, [builder.mul(stage, count)])
        builder.call(combine, [moved, y, size, slopes, own, stage, numbers, blocks])
        builder.call(run, [moved, builder.gep(slopes, [builder.mul(stage, whole)]), memory, blocks])

    writer.loop(builder.sub(stop, start), of_stage)
    return writer.ended()


# ---------------------------------------------------------------------------------------------------- the operations


def _write_run(module: Any, program: ArrayProgram) -> Any:
    """Write the function of `VectorCode`."""
    writer = _Function(module, "run", "pppi")
    inputs, outputs, memory, blocks = writer.function.args
    builder = writer.builder
    for n, (value, dtype) in enumerate(program.constants):
        number = writer.ir.Constant(writer.vector, [float(value)] * LANES)
        if np.dtype(dtype) not in (np.float64, np.bool_):
            raise Unsupported(f"a constant of type {np.dtype(dtype)} in memory")
        writer.store(number, memory, writer.integer((program.inputs + n) * LANES))
    rows = builder.mul(blocks, writer.integer(LANES))

    def of_block(block: Any) -> None:
        first = builder.mul(block, writer.integer(LANES))
        for n in range(program.inputs):
            index = builder.add(builder.mul(writer.integer(n), rows), first)
            writer.store(writer.load(inputs, index), memory, writer.integer(n * LANES))
        for number, loop in enumerate(program.loops):
            _write_loop(writer, memory, loop, number)
        for n, place in enumerate(program.outputs):
            index = builder.add(builder.mul(writer.integer(n), rows), first)
            writer.store(writer.load(memory, writer.integer(int(place) * LANES)), outputs, index)

    writer.loop(blocks, of_block)
    return writer.ended()


def _write_loop(writer: _Function, memory: Any, loop: Loop, number: int) -> None:
    """Write one loop over the elements of arrays."""
    count = int(np.prod(loop.writes[0].shape))

    def of_element(element: Any) -> None:
        def index(at: np.ndarray, name: str) -> Any:
            return _index(writer, at.ravel(), element, f"{name}{number}")

        values = [
            _restored(writer, writer.load(memory, index(at, f"read{n}_")), dtype)
            for n, (at, dtype) in enumerate(zip(loop.reads, loop.body.inputs, strict=True))
        ]
        results = _Operations(writer).run(loop.body, values)
        for n, (at, value) in enumerate(zip(loop.writes, results, strict=True)):
            writer.store(_kept(writer, value), memory, index(at, f"write{n}_"))

    if count == 1:
        of_element(writer.integer(0))
    else:
        writer.loop(writer.integer(count), of_element)


def _index(writer: _Function, places: np.ndarray, element: Any, name: str) -> Any:
    """The index in memory of an array's element: arithmetic where its places follow one another, a table elsewhere."""
    ir, builder = writer.ir, writer.builder
    step = int(places[1] - places[0]) if len(places) > 1 else 0
    if (np.diff(places) == step).all():
        moved = builder.mul(element, writer.integer(step * LANES))
        return builder.add(moved, writer.integer(int(places[0]) * LANES))
    kind = ir.ArrayType(ir.IntType(32), len(places))
    table = ir.GlobalVariable(writer.module, kind, name)
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(kind, [int(place) * LANES for place in places])
    entry = builder.load(builder.gep(table, [writer.integer(0), element]))
    return builder.zext(entry, writer.whole)


def _restored(writer: _Function, value: Any, dtype: Any) -> Any:
    """A vector from memory as the type that it stands for; memory holds floating-point numbers only."""
    if np.dtype(dtype) == np.bool_:
        return writer.builder.fcmp_ordered("!=", value, writer.ir.Constant(writer.vector, [0.0] * LANES))
    if np.dtype(dtype) != np.float64:
        raise Unsupported(f"numbers of type {np.dtype(dtype)} in memory")
    return value


def _kept(writer: _Function, value: Any) -> Any:
    """A vector as memory holds it."""
    element = value.type.element
    if element == writer.double:
        return value
    if isinstance(element, writer.ir.IntType) and element.width == 1:
        return writer.builder.uitofp(value, writer.vector)
    raise Unsupported(f"numbers of type {element} in memory")


class _Operations:
    """Writes operations on vectors, one instruction each where there is one."""

    def __init__(self, writer: _Function):
        self.writer, self.ir, self.builder = writer, writer.ir, writer.builder

    def kind(self, dtype: Any) -> Any:
        """The type of a vector of numbers."""
        name = np.dtype(dtype).name
        widths = {"bool": 1, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64}
        if name == "float64":
            return self.writer.vector
        if name not in widths:
            raise Unsupported(f"numbers of type {name}")
        return self.ir.VectorType(self.ir.IntType(widths[name]), LANES)

    def constant(self, value: Any, dtype: Any) -> Any:
        value = float(value) if np.dtype(dtype) == np.float64 else int(value)
        return self.ir.Constant(self.kind(dtype), [value] * LANES)

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """Write a program, and return its outputs."""
        done: list[Any] = []

        def get(node: Node) -> Any:
            if node.number is None:
                return self.constant(node.value, node.dtype)
            return inputs[-1 - node.number] if node.number < 0 else done[node.number]

        for op in program.ops:
            done.append(self.operation(op, [get(node) for node in op.arguments]))
        return [get(node) for node in program.outputs]

    def operation(self, op: Op, values: list[Any]) -> Any:
        name, parameters = op.primitive.name, dict(op.parameters)
        given = np.dtype(op.arguments[0].dtype)
        if name in ("copy", "stop_gradient"):
            return values[0]
        if name in _WRITTEN and given == np.float64:
            return self.run(_written(name), values)[0]
        if name == "select_n" and len(values) == 3:
            return self.builder.select(values[0], values[2], values[1])
        if name == "convert_element_type":
            return self.converted(values[0], given, np.dtype(op.dtype))
        if name == "bitcast_convert_type":
            return self.builder.bitcast(values[0], self.kind(op.dtype))
        if name in _PREDICATES and given.kind in "fiub":
            return self.compared(_PREDICATES[name], values, given)
        if name == "integer_pow":
            return self.power(values[0], parameters["y"])
        if given == np.float64:
            return self.of_floats(name, values)
        return self.of_integers(name, values, given)

    def compared(self, symbol: str, values: list[Any], given: Any) -> Any:
        if given.kind == "f":
            is_unordered = symbol == "!="  # true of NaN
            compare = self.builder.fcmp_unordered if is_unordered else self.builder.fcmp_ordered
            return compare(symbol, *values)
        compare = self.builder.icmp_signed if given.kind == "i" else self.builder.icmp_unsigned
        return compare(symbol, *values)

    def of_floats(self, name: str, values: list[Any]) -> Any:
        builder, contract = self.builder, ("contract",)
        one, zero = self.constant(1.0, np.float64), self.constant(0.0, np.float64)
        if name in _FLOATS:
            return getattr(builder, _FLOATS[name])(*values, flags=contract)
        if name in _INTRINSICS:
            return builder.call(self.writer.intrinsic(_INTRINSICS[name], len(values)), values)
        if name in _EXTREMES:  # NaN where one of them is
            chosen = builder.select(builder.fcmp_unordered(_EXTREMES[name], *values), *values)
            return builder.select(builder.fcmp_unordered("uno", values[1], values[1]), values[1], chosen)
        if name == "neg":
            return builder.fneg(values[0])
        if name == "square":
            return builder.fmul(values[0], values[0], flags=contract)
        if name == "rsqrt":
            return builder.fdiv(one, self.of_floats("sqrt", values))
        if name == "sign":
            above = builder.uitofp(builder.fcmp_ordered(">", values[0], zero), self.writer.vector)
            return builder.fsub(above, builder.uitofp(builder.fcmp_ordered("<", values[0], zero), self.writer.vector))
        if name == "is_finite":
            return builder.fcmp_ordered("<", self.of_floats("abs", values), self.constant(np.inf, np.float64))
        raise Unsupported(name)

    def of_integers(self, name: str, values: list[Any], given: Any) -> Any:
        builder = self.builder
        if name == "not":
            return builder.not_(values[0])
        if name in _BITS:
            return getattr(builder, _BITS[name])(*values)
        if name in _INTEGERS and given != np.bool_:
            return getattr(builder, _INTEGERS[name])(*values)
        raise Unsupported(f"{name} of {given}")

    def converted(self, value: Any, before: Any, after: Any) -> Any:
        builder, kind = self.builder, self.kind(after)
        if before == after:
            return value
        if after == np.float64 and before.kind in "iub":
            return (builder.sitofp if before.kind == "i" else builder.uitofp)(value, kind)
        if before == np.float64 and after.kind == "i":
            return builder.fptosi(value, kind)
        raise Unsupported(f"conversion from {before} to {after}")

    def power(self, value: Any, power: int) -> Any:
        product, one = None, self.constant(1.0, np.float64)
        for _ in range(abs(power)):
            product = value if product is None else self.builder.fmul(product, value, flags=("contract",))
        product = one if product is None else product
        return product if power >= 0 else self.builder.fdiv(one, product)


@lru_cache
def _written(name: str) -> Program:
    """A function of one or two numbers as operations that have instructions."""
    number = jax.ShapeDtypeStruct((), np.float64)
    return scalarize(_WRITTEN[name], *[number] * (2 if name == "atan2" else 1))
