"""Convert functions of small arrays to loops over memory, where a program on scalars would be too long.

A function is traced as for `scalar.Program`, but an operation on arrays becomes one operation in a loop over their
elements. Every number has a place in a memory of its own, given as a whole number; what only moves numbers (transposed,
sliced, gathered and broadcast arrays) is arithmetic of places when the program is made, and no work when it runs.
Operations on arrays of one shape share a loop, in which they follow one another without memory.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal
from jaxtyping import PyTree

from twolayer.compiler.scalar import CALLS, ELEMENTWISE, MOVES, WRITTEN_AS, Node, Program, Unsupported, Writer, pruned


class Places(NamedTuple):
    """An array by the places of its elements."""

    at: np.ndarray
    dtype: Any


Value = Places | np.ndarray  # an array that is computed, or one that is known


class Loop(NamedTuple):
    """A program on scalars that runs for every element of arrays, one after the other.

    ``reads`` holds for each input of the body its place at each element, ``writes`` the same for each output.
    """

    body: Program
    reads: tuple[np.ndarray, ...]
    writes: tuple[np.ndarray, ...]


class ArrayProgram(NamedTuple):
    """Loops over one memory, whose first places are the inputs, followed by the constants."""

    inputs: int
    constants: tuple[tuple[Any, Any], ...]  # values and their types
    size: int
    loops: tuple[Loop, ...]
    outputs: np.ndarray

    @property
    def operations(self) -> int:
        """How many operations on scalars one run takes."""
        return sum(len(loop.body.ops) * int(np.prod(_shape(loop))) for loop in self.loops)


def _shape(loop: Loop) -> tuple[int, ...]:
    return loop.writes[0].shape


class _Open:
    """A loop to which operations are still added."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape, self.writer = shape, Writer()
        self.inputs: list[tuple[np.ndarray, Any]] = []
        self.nodes: dict[bytes, Node] = {}  # by the places of the array that a node is
        self.places: dict[Node, np.ndarray] = {}

    def node(self, value: Value) -> Node | None:
        """The node of an array, if it is known here."""
        return self.nodes.get(value.at.tobytes()) if isinstance(value, Places) else None

    def read(self, value: Places) -> Node:
        """The node of an array, which is read from memory unless it is known here."""
        node = self.node(value)
        if node is None:
            node = Node(-1 - len(self.inputs), None, np.dtype(value.dtype))
            self.inputs.append((value.at, np.dtype(value.dtype)))
            self.nodes[value.at.tobytes()] = node
            self.places[node] = value.at
        return node

    def closed(self, needed: np.ndarray) -> Loop | None:
        """The loop with only those operations whose results are needed later, which are marked by their places."""
        kept = [(node, at) for node, at in self.places.items() if not node.is_input and needed[at].any()]
        if not kept:
            return None
        ops, outputs = pruned(self.writer.ops, [node for node, _ in kept])
        used = sorted({node.number or 0 for op in ops for node in op.arguments if node.is_input}, reverse=True)
        moved = {number: -1 - n for n, number in enumerate(used)}

        def renumbered(node: Node) -> Node:
            return node._replace(number=moved[node.number or 0]) if node.is_input else node

        ops = tuple(op._replace(arguments=tuple(map(renumbered, op.arguments))) for op in ops)
        inputs = [self.inputs[-1 - number] for number in used]
        body = Program(tuple(dtype for _, dtype in inputs), ops, outputs)
        return Loop(body, tuple(at for at, _ in inputs), tuple(at for _, at in kept))


class _Tracer:
    """Collects loops; an operation joins the first loop of its shape that comes after all that it reads."""

    def __init__(self, inputs: int):
        self.count = inputs
        self.loops: list[_Open | Loop] = []
        self.maker: list[np.ndarray] = [np.full(inputs, -1)]
        self.constants: dict[tuple[Any, str], int] = {}

    # ----------------------------------------------------------------------------------------------------- places

    def new(self, shape: tuple[int, ...], maker: int) -> np.ndarray:
        """New places for an array that the loop of a number writes."""
        size = int(np.prod(shape))
        self.maker.append(np.full(size, maker))
        self.count += size
        return np.arange(self.count - size, self.count).reshape(shape)

    def placed(self, value: Value, dtype: Any) -> np.ndarray:
        """The places of an array; each different constant has one."""
        if isinstance(value, Places):
            return value.at
        at = []
        for number in np.asarray(value, dtype).ravel():
            key = (number.item(), np.dtype(dtype).name)
            if key not in self.constants:
                self.constants[key] = int(self.new((), -1))
            at.append(self.constants[key])
        return np.array(at, int).reshape(np.shape(value))

    def last(self, at: np.ndarray) -> int:
        """The last loop that writes any of these places, -1 for inputs and constants."""
        if len(self.maker) > 1:
            self.maker = [np.concatenate(self.maker)]
        return int(self.maker[0][at].max(initial=-1))

    # ------------------------------------------------------------------------------------------------- operations

    def elementwise(self, primitive: Any, values: Sequence[Value], parameters: dict[str, Any], aval: Any) -> Value:
        """One operation on every element of arrays of one shape."""
        shape = aval.shape
        given = [_widened(value, shape) for value in values]
        bounds = [-1]
        for value in given:
            if isinstance(value, Places):
                loop = self.last(value.at)
                there = self.loops[loop] if loop >= 0 else None
                bounds.append(loop if isinstance(there, _Open) and there.node(value) is not None else loop + 1)
        place = next((n for n in range(max(0, *bounds), len(self.loops)) if self._has(n, shape)), len(self.loops))
        if place == len(self.loops):
            self.loops.append(_Open(shape))
        loop: Any = self.loops[place]
        arguments = tuple(self._argument(loop, value) for value in given)
        node = loop.writer.add(primitive, arguments, parameters, aval.dtype)
        if node.number is None:
            return np.full(shape, node.value, node.dtype)
        if node not in loop.places:
            loop.places[node] = self.new(shape, place)
            loop.nodes[loop.places[node].tobytes()] = node
        return Places(loop.places[node], np.dtype(aval.dtype))

    def _has(self, place: int, shape: tuple[int, ...]) -> bool:
        loop = self.loops[place]
        return isinstance(loop, _Open) and loop.shape == shape

    def _argument(self, loop: _Open, value: Value) -> Node:
        if isinstance(value, Places):
            return loop.read(value)
        if value.size and (value == value.flat[0]).all():
            return loop.writer.constant(value.flat[0], value.dtype)
        return loop.read(Places(self.placed(value, value.dtype), value.dtype))

    def summed(self, primitive: Any, parts: Sequence[Places], aval: Any, is_product: bool = False) -> Places:
        """Combine rows along the first axis of parts, one after the other: their sum, or the sum of their products."""
        shape, length, dtype = aval.shape, len(parts[0].at), np.dtype(aval.dtype)
        if not length:
            raise Unsupported("a sum of nothing")
        total = self.new(shape, len(self.loops))
        for first in (True, False):
            rows = [part.at[0] if first else part.at[1:] for part in parts]
            if not first and length == 1:
                break
            writer, inputs = Writer(), [] if first else [Node(-1, None, dtype)]
            nodes = [Node(-1 - len(inputs) - n, None, dtype) for n in range(len(parts))]
            value = writer.add(jax.lax.mul_p, tuple(nodes), {}, dtype) if is_product else nodes[0]
            if not first:
                value = writer.add(primitive, (inputs[0], value), {}, dtype)
            all_of_total = np.broadcast_to(total, rows[0].shape)
            reads = (*([] if first else [all_of_total]), *rows)
            self.loops.append(Loop(Program((dtype,) * len(reads), tuple(writer.ops), (value,)), reads, (all_of_total,)))
        self.maker[-1][:] = len(self.loops) - 1
        return Places(total, dtype)

    def finished(self, inputs: int, outputs: np.ndarray) -> ArrayProgram:
        """The program with only what its outputs need, in a memory without gaps."""
        needed = np.zeros(self.count, bool)
        needed[outputs] = True
        loops: list[Loop] = []
        for loop in reversed(self.loops):
            closed = loop.closed(needed) if isinstance(loop, _Open) else loop
            if closed is not None and any(needed[at].any() for at in closed.writes):
                loops.append(closed)
                for at in (*closed.reads, *closed.writes):
                    needed[at] = True
        needed[:inputs] = True
        constants = {place: key for key, place in self.constants.items() if needed[place]}
        order = [*range(inputs), *constants]
        seen = np.zeros(self.count, bool)
        seen[order] = True
        for loop in reversed(loops):
            for at in loop.writes:
                fresh = at.ravel()[~seen[at.ravel()]]
                seen[fresh] = True
                order += dict.fromkeys(fresh.tolist())
        place = np.full(self.count, -1)
        place[order] = np.arange(len(order))
        moved = tuple(
            Loop(body, tuple(np.asarray(place[at]) for at in reads), tuple(np.asarray(place[at]) for at in writes))
            for body, reads, writes in reversed(loops)
        )
        kept = tuple((value, np.dtype(name)) for value, name in constants.values())
        return ArrayProgram(inputs, kept, len(order), moved, place[outputs])


def _widened(value: Value, shape: tuple[int, ...]) -> Value:
    if isinstance(value, Places):
        return Places(np.broadcast_to(value.at, shape), value.dtype)
    return np.broadcast_to(value, shape)


def _dtypes(values: Sequence[Value]) -> list[Any]:
    return [np.dtype(value.dtype) for value in values]


def as_loops(function: Callable[..., Any], *examples: PyTree) -> ArrayProgram:
    """Convert a function to loops over memory; the examples give the shapes and types of its arguments."""
    closed = jax.make_jaxpr(function)(*examples)
    count = sum(int(np.prod(aval.shape)) for aval in closed.in_avals)
    tracer, arguments, place = _Tracer(count), [], 0
    for aval in closed.in_avals:
        size = int(np.prod(aval.shape))
        arguments.append(Places(np.arange(place, place + size).reshape(aval.shape), np.dtype(aval.dtype)))
        place += size
    results = _interpret(tracer, closed.jaxpr, closed.consts, arguments)
    outputs = [tracer.placed(result, np.float64).ravel() for result in results]
    return tracer.finished(count, np.concatenate(outputs))


def _interpret(tracer: _Tracer, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Value]) -> list[Value]:
    env: dict[Any, Value] = {}

    def read(atom: Any) -> Value:
        return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else env[atom]  # pyright: ignore[reportAttributeAccessIssue]

    env.update(zip(jaxpr.constvars, map(np.asarray, consts), strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        results = _equation(tracer, equation, [read(atom) for atom in equation.invars])
        env.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(tracer: _Tracer, equation: Any, values: list[Value]) -> list[Value]:
    name, parameters, aval = equation.primitive.name, equation.params, equation.outvars[0].aval
    name = parameters["name"] if name == "custom_jvp_call" and parameters.get("name") in WRITTEN_AS else name
    if name in CALLS:
        inner = parameters[CALLS[name]]
        jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
        return _interpret(tracer, jaxpr, consts, values)
    if name == "platform_index":  # the last platform is the default
        return [np.asarray(len(parameters["platforms"]) - 1, aval.dtype)]
    if name == "cond" and isinstance(values[0], np.ndarray):
        branch = parameters["branches"][int(values[0])]
        return _interpret(tracer, branch.jaxpr, branch.consts, values[1:])
    if name in WRITTEN_AS:
        wide = [_widened(value, aval.shape) for value in values]
        jaxpr = jax.make_jaxpr(WRITTEN_AS[name])(*[jax.ShapeDtypeStruct(aval.shape, aval.dtype)] * len(wide))
        return _interpret(tracer, jaxpr.jaxpr, jaxpr.consts, wide)
    known = [value for value in values if isinstance(value, np.ndarray)]
    if len(known) == len(values):
        return _folded(equation, known)
    if name in ELEMENTWISE:
        return [tracer.elementwise(equation.primitive, values, parameters, aval)]
    if name == "split":
        at, dtype = tracer.placed(values[0], aval.dtype), np.dtype(aval.dtype)
        parts = np.split(at, np.cumsum(parameters["sizes"])[:-1], axis=parameters["axis"])
        return [Places(part, dtype) for part in parts]
    return [_other(tracer, name, equation, values)]


def _folded(equation: Any, values: list[np.ndarray]) -> list[Value]:
    """The results of an operation on arrays that are known, which may be several, as of a decomposition."""
    with jax.ensure_compile_time_eval():
        outputs = equation.primitive.bind(*map(jax.numpy.asarray, values), **equation.params)
        return [np.asarray(result) for result in (outputs if equation.primitive.multiple_results else (outputs,))]


_SUMS = {"reduce_sum": jax.lax.add_p, "reduce_prod": jax.lax.mul_p, "reduce_max": jax.lax.max_p,
         "reduce_min": jax.lax.min_p}  # fmt: skip


def _other(tracer: _Tracer, name: str, equation: Any, values: list[Value]) -> Value:
    """What moves numbers, and sums of them."""
    aval = equation.outvars[0].aval
    dtypes = _dtypes(values)
    if name == "gather":
        if not isinstance(values[1], np.ndarray):
            raise Unsupported("gather at places that are computed")
        at = tracer.placed(values[0], dtypes[0])
        positions, parameters = np.arange(at.size).reshape(at.shape), dict(equation.params) | {"fill_value": None}
        with jax.ensure_compile_time_eval():
            taken = np.asarray(equation.primitive.bind(*map(jax.numpy.asarray, (positions, values[1])), **parameters))
        return Places(at.ravel()[taken], dtypes[0])
    at = [tracer.placed(value, dtype) for value, dtype in zip(values, dtypes, strict=True)]
    if name in _SUMS:
        axes = equation.params["axes"]
        rows = np.moveaxis(at[0], axes, range(len(axes))).reshape(-1, *aval.shape)
        return tracer.summed(_SUMS[name], [Places(rows, dtypes[0])], aval)
    if name == "dot_general":
        left, right = _dot(equation, *at)
        return tracer.summed(jax.lax.add_p, [Places(left, aval.dtype), Places(right, aval.dtype)], aval, True)
    if name in MOVES:
        return Places(np.asarray(MOVES[name](Writer(), equation, *at), int).reshape(aval.shape), np.dtype(aval.dtype))
    raise Unsupported(name)


def _dot(equation: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of both factors, by the position in the sum and then by the element of the result."""
    (cx, cy), (bx, by) = equation.params["dimension_numbers"]
    shape = equation.outvars[0].aval.shape

    def rows(z: np.ndarray, contracted: Sequence[int], batched: Sequence[int]) -> tuple[np.ndarray, list[int]]:
        others = [axis for axis in range(z.ndim) if axis not in (*contracted, *batched)]
        sizes = [int(np.prod([z.shape[axis] for axis in axes])) for axes in (contracted, batched, others)]
        return np.transpose(z, (*contracted, *batched, *others)).reshape(sizes), sizes

    (left, a), (right, b) = rows(x, cx, bx), rows(y, cy, by)
    whole = (a[0], a[1], a[2], b[2])
    left = np.broadcast_to(left[:, :, :, None], whole).reshape(-1, *shape)
    return left, np.broadcast_to(right[:, :, None, :], whole).reshape(-1, *shape)
