"""Convert functions of small arrays to programs on scalars.

A function of small arrays, written once in ``jax.numpy`` for one replica, is traced, and its array operations are split
into operations on scalars. The result is a list of elementwise operations without branches or loops, which can be run
on vectors of replicas, inside a compiled kernel, or translated into another language.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.extend.core import Literal, Primitive
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import PyTree


class Unsupported(Exception):
    """An operation cannot be written as operations on scalars."""


class Op(NamedTuple):
    """One elementwise operation: a primitive of JAX and its arguments, which are earlier results or constants."""

    primitive: Any
    arguments: tuple["Node", ...]
    parameters: tuple[tuple[str, Any], ...]
    dtype: Any


class Node(NamedTuple):
    """The result of an operation (by its number), an input (by a negative number), or a constant."""

    number: int | None
    value: Any
    dtype: Any

    @property
    def is_input(self) -> bool:
        """Whether this is an input of the program."""
        return self.number is not None and self.number < 0


@dataclass(frozen=True)
class Program:
    """A list of elementwise operations on scalars, without branches or loops.

    It is no pytree, and its hash is kept: compiled functions take a program as one static argument, not as thousands.
    """

    inputs: tuple[Any, ...]  # dtypes
    ops: tuple[Op, ...]
    outputs: tuple[Node, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.inputs, self.ops, self.outputs))

    def __hash__(self) -> int:
        return self._hash

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the flat outputs for flat inputs, which are arrays of one shape, such as vectors of replicas."""
        shape = np.shape(inputs[0])
        done: list[Any] = []

        def get(node: Node) -> Any:
            if node.number is None:
                return jax.numpy.full(shape, node.value, node.dtype)
            return inputs[-1 - node.number] if node.number < 0 else done[node.number]

        for op in self.ops:
            done.append(op.primitive.bind(*map(get, op.arguments), **dict(op.parameters)))
        return [get(node) for node in self.outputs]


ELEMENTWISE = {
    "add", "add_any", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", "sign", "sqrt", "rsqrt", "cbrt",
    "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "logistic", "erfc", "erf_inv",
    "pow", "integer_pow", "square", "floor", "ceil", "round", "atan2", "asin", "acos", "atan", "sinh", "cosh", "eq",
    "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "shift_left", "shift_right_logical",
    "shift_right_arithmetic", "select_n", "convert_element_type", "is_finite", "nextafter", "clamp", "copy",
    "stop_gradient", "population_count", "bitcast_convert_type",
}  # fmt: skip
# Operations that index arithmetic applies to constants very often.
_FOLDED: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "max": np.maximum, "min": np.minimum,
    "select_n": lambda which, *cases: cases[int(which)], "convert_element_type": lambda x: x,
}  # fmt: skip
CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
         "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr", "remat": "jaxpr",
         "checkpoint": "jaxpr", "core_call": "call_jaxpr"}  # fmt: skip


def _polynomial(x: Array, *coefficients: Array | float) -> Array:
    value = jax.numpy.full(x.shape, coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def scalar_erf(x: Array) -> Array:
    """Return the error function by the coefficients of the Cephes library; few kernel compilers have one."""
    a = jax.numpy.abs(x)
    near = jax.numpy.minimum(a, 1.0)
    z = near * near
    top = _polynomial(z, 9.60497373987051638749, 90.0260197203842689217, 2232.00534594684319226,
                      7003.32514112805075473, 55592.3013010394962768)  # fmt: skip
    low = _polynomial(z, 1.0, 33.5617141647503099647, 521.357949780152679795, 4594.32382970980127987,
                      22629.0000613890934246, 49267.3942608635921086)  # fmt: skip
    b = jax.numpy.minimum(jax.numpy.maximum(a, 1.0), 6.5)
    p = _polynomial(b, 2.46196981473530512524e-10, 0.564189564831068821977, 7.46321056442269912687,
                    48.6371970985681366614, 196.520832956077098242, 526.445194995477358631, 934.528527171957607540,
                    1027.55188689515710272, 557.535335369399327526)  # fmt: skip
    q = _polynomial(b, 1.0, 13.2281951154744992508, 86.7072140885989742329, 354.937778887819891062,
                    975.708501743205489753, 1823.90916687909736289, 2246.33760818710981792, 1656.66309194161350182,
                    557.535340817727675546)  # fmt: skip
    # Both branches share one division.
    ratio = jax.numpy.where(a < 1.0, near * top, p) / jax.numpy.where(a < 1.0, low, q)
    # The exponential is written as in the derivative, so that it is computed once for both.
    size = jax.numpy.where(a < 1.0, ratio, 1.0 - jax.numpy.exp(-jax.numpy.square(x)) * ratio)
    return jax.numpy.where(x < 0.0, -size, size)


# Operations that a program writes as several; all but the first are new in jax 0.12.
WRITTEN_AS: dict[str, Callable[..., Array]] = {
    "erf": scalar_erf,
    "exp_neg_sq": lambda x: jax.numpy.exp(-jax.numpy.square(x)),  # in the slope of erf
    "one_minus_square": lambda x: (1.0 + x) * (1.0 - x),
    "polynomial": lambda x, *coefficients: _polynomial(x, *reversed(coefficients)),  # constant first there
}


class Writer:
    """Collects the distinct operations of a program and simplifies those that constants make trivial."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.known: dict[Any, Node] = {}

    def constant(self, value: ArrayLike, dtype: DTypeLike) -> Node:
        """The node of a number that is known."""
        return Node(None, np.asarray(value, dtype).item(), np.dtype(dtype))

    def add(
        self, primitive: Primitive, arguments: tuple[Node, ...], parameters: dict[str, Any], dtype: DTypeLike
    ) -> Node:
        """The node of an operation on nodes, which is simplified where constants allow that."""
        name = primitive.name
        if all(node.number is None for node in arguments):
            values = [np.asarray(node.value, node.dtype) for node in arguments]
            if name in _FOLDED:  # NumPy gives the same without the cost of dispatching to JAX
                with np.errstate(all="ignore"):
                    return self.constant(_FOLDED[name](*values), dtype)
            with jax.ensure_compile_time_eval():
                return self.constant(primitive.bind(*map(jax.numpy.asarray, values), **parameters), dtype)
        if name == "select_n" and arguments[0].number is None:
            return arguments[1 + int(arguments[0].value)]
        zero, one = ([node.number is None and node.value == value for node in arguments] for value in (0, 1))
        if name == "mul" and any(zero):
            return self.constant(0, dtype)
        if (name == "mul" and one[0]) or (name == "add" and zero[0]):
            return arguments[1]
        if (name in ("mul", "div") and one[1]) or (name in ("add", "sub") and zero[1]):
            return arguments[0]
        if name == "div" and zero[0]:
            return self.constant(0, dtype)
        key = (name, arguments, tuple(sorted((k, str(v)) for k, v in parameters.items())))
        if key not in self.known:
            self.ops.append(Op(primitive, arguments, tuple(parameters.items()), np.dtype(dtype)))
            self.known[key] = Node(len(self.ops) - 1, None, np.dtype(dtype))
        return self.known[key]


def _array(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    out = np.empty(shape, dtype=object)
    for position, value in zip(np.ndindex(*shape), values, strict=True):
        out[position] = value
    return out


def scalarize(function: Callable[..., Any], *examples: PyTree) -> Program:
    """Convert a function to a program on scalars; the examples give the shapes and types of its arguments."""
    closed = jax.make_jaxpr(function)(*examples)
    writer = Writer()
    inputs: list[Any] = []
    arguments = []
    for aval in closed.in_avals:
        count = int(np.prod(aval.shape))
        nodes = [Node(-1 - len(inputs) - i, None, np.dtype(aval.dtype)) for i in range(count)]
        inputs += [np.dtype(aval.dtype)] * count
        arguments.append(_array(nodes, aval.shape))
    results = _interpret(writer, closed.jaxpr, closed.consts, arguments)
    outputs = [node for result in results for node in result.ravel()]
    return Program(tuple(inputs), *pruned(writer.ops, outputs))


def pruned(ops: list[Op], outputs: list[Node]) -> tuple[tuple[Op, ...], tuple[Node, ...]]:
    """Return only the operations that the outputs need, renumbered."""
    needed = set()
    for node in outputs:
        needed.add(node.number)
    for number in reversed(range(len(ops))):
        if number in needed:
            needed.update(node.number for node in ops[number].arguments)
    numbers = [number for number in range(len(ops)) if number in needed]
    place = {old: new for new, old in enumerate(numbers)}

    def moved(node: Node) -> Node:
        return node if node.number is None or node.number < 0 else node._replace(number=place[node.number])

    return (
        tuple(ops[n]._replace(arguments=tuple(map(moved, ops[n].arguments))) for n in numbers),
        tuple(map(moved, outputs)),
    )


def _dtype(atom: Any) -> Any:
    return atom.aval.dtype


def _interpret(writer: Writer, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    env: dict[Any, np.ndarray] = {}

    def const(value: Any) -> np.ndarray:
        value = np.asarray(value)
        return _array([writer.constant(x, value.dtype) for x in value.ravel()], value.shape)

    def read(atom: Any) -> np.ndarray:
        return const(np.asarray(atom.val, _dtype(atom))) if isinstance(atom, Literal) else env[atom]

    env.update(zip(jaxpr.constvars, map(const, consts), strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        results = _equation(writer, equation, values)
        env.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(writer: Writer, equation: Any, values: list[np.ndarray]) -> list[np.ndarray]:
    name, parameters = equation.primitive.name, equation.params
    aval = equation.outvars[0].aval
    name = parameters["name"] if name == "custom_jvp_call" and parameters.get("name") in WRITTEN_AS else name
    if name in CALLS:
        inner = parameters[CALLS[name]]
        jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
        return _interpret(writer, jaxpr, consts, values)
    if name == "platform_index":  # the last platform is the default
        return [_array([writer.constant(len(parameters["platforms"]) - 1, aval.dtype)], aval.shape)]
    which: Any = values[0].ravel()[0] if name == "cond" else None
    if which is not None and which.number is None:
        branch = parameters["branches"][int(which.value)]
        return _interpret(writer, branch.jaxpr, branch.consts, values[1:])
    if name == "scan":
        return _scan(writer, parameters, values, equation.outvars)
    if name in ELEMENTWISE or name in WRITTEN_AS:
        wide: Any = np.broadcast_arrays(*values) if values else values
        rows = [tuple(x[i] for x in wide) for i in np.ndindex(*aval.shape)]
        if name in ELEMENTWISE:
            return [_array([writer.add(equation.primitive, row, parameters, aval.dtype) for row in rows], aval.shape)]
        jaxpr = jax.make_jaxpr(WRITTEN_AS[name])(*[jax.ShapeDtypeStruct((), aval.dtype)] * len(values))
        parts = ([_array([x], ()) for x in row] for row in rows)
        return [_array([_interpret(writer, jaxpr.jaxpr, jaxpr.consts, x)[0][()] for x in parts], aval.shape)]
    if name == "split":
        return np.split(values[0], np.cumsum(parameters["sizes"])[:-1], axis=parameters["axis"])
    if name in _STRUCTURE:
        return [_STRUCTURE[name](writer, equation, *values)]
    raise Unsupported(name)


def _scan(writer: Writer, parameters: Any, values: list[np.ndarray], outputs: Any) -> list[np.ndarray]:
    """A loop of known length, written out.

    Its arguments are constants, what is carried, and rows of what is looped over; which is which is read off their
    shapes, since the names of the parameters that say so differ between versions of JAX.
    """
    inner, length = parameters["jaxpr"], parameters["length"]
    is_row = [x.ndim == len(aval.shape) + 1 for x, aval in zip(values, inner.in_avals, strict=True)]
    results_of_a_step = zip(outputs, inner.out_avals, strict=True)
    carried = sum(len(whole.aval.shape) == len(aval.shape) for whole, aval in results_of_a_step)
    first = is_row.count(False) - carried
    consts, carry, rows = values[:first], values[first : first + carried], values[first + carried :]
    order = reversed(range(length)) if parameters["reverse"] else range(length)
    stacked = [np.empty((length, *aval.shape), dtype=object) for aval in inner.out_avals[carried:]]
    for step in order:
        # A row of a vector is a node, which is a named tuple that NumPy would convert to an array.
        at = [_array(row[step].ravel() if row.ndim > 1 else [row[step]], row.shape[1:]) for row in rows]
        results = _interpret(writer, inner.jaxpr, inner.consts, [*consts, *carry, *at])
        carry = results[:carried]
        for whole, part in zip(stacked, results[carried:], strict=True):
            for place in np.ndindex(*part.shape):
                whole[(step, *place)] = part[place]
    return [*carry, *stacked]


def _sum(writer: Writer, nodes: Any, dtype: Any, primitive: Any = jax.lax.add_p) -> Node:
    total = nodes[0]
    for node in nodes[1:]:
        total = writer.add(primitive, (total, node), {}, dtype)
    return total


def _broadcast(writer: Writer, equation: Any, x: np.ndarray, *_: Any) -> np.ndarray:
    shape, dimensions = equation.params["shape"], equation.params["broadcast_dimensions"]
    wide = [1] * len(shape)
    for position, dimension in enumerate(dimensions):
        wide[dimension] = x.shape[position]
    return np.broadcast_to(x.reshape(wide), shape)


def _reduce(primitive: Any, start: float) -> Callable[..., np.ndarray]:
    def reduce(writer: Writer, equation: Any, x: np.ndarray) -> np.ndarray:
        axes, aval = equation.params["axes"], equation.outvars[0].aval
        moved: Any = np.moveaxis(x, axes, range(len(axes))).reshape(-1, *aval.shape)
        if moved.shape[0] == 0:
            return _array([writer.constant(start, aval.dtype)] * int(np.prod(aval.shape)), aval.shape)
        return _array(
            [_sum(writer, moved[(slice(None), *i)], aval.dtype, primitive) for i in np.ndindex(*aval.shape)], aval.shape
        )

    return reduce


def _dot(writer: Writer, equation: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (cx, cy), (bx, by) = equation.params["dimension_numbers"]
    aval = equation.outvars[0].aval
    zero = writer.constant(0, aval.dtype)

    def rows(z: np.ndarray, contracted: Sequence[int], batched: Sequence[int]) -> np.ndarray:
        """The entries by batch, remaining position, and position in the sum."""
        others = [axis for axis in range(z.ndim) if axis not in (*contracted, *batched)]
        sizes = [int(np.prod([z.shape[axis] for axis in axes])) for axes in (batched, others, contracted)]
        return np.transpose(z, (*batched, *others, *contracted)).reshape(sizes)

    def product(x: Any, y: Any) -> Node:
        terms = (writer.add(jax.lax.mul_p, pair, {}, aval.dtype) for pair in zip(x, y, strict=True))
        return _sum(writer, [zero, *terms], aval.dtype)

    pairs = zip(rows(x, cx, bx), rows(y, cy, by), strict=True)
    return _array([product(left, right) for u, v in pairs for left in u for right in v], aval.shape)


def _iota(writer: Writer, equation: Any, *_: Any) -> np.ndarray:
    aval, dimension = equation.outvars[0].aval, equation.params["dimension"]
    return _array([writer.constant(i[dimension], aval.dtype) for i in np.ndindex(*aval.shape)], aval.shape)


def _slice(writer: Writer, equation: Any, x: np.ndarray) -> np.ndarray:
    start, limit, strides = (equation.params[key] for key in ("start_indices", "limit_indices", "strides"))
    return x[tuple(map(slice, start, limit, strides or [None] * len(start)))]


def _dynamic_slice(writer: Writer, equation: Any, x: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    """Take a slice at constant indices, such as the index of an unrolled loop."""
    first: list[Any] = [start[()] for start in starts]
    if any(node.number is not None for node in first):
        raise Unsupported("slice at indices that are computed")
    sizes = equation.params["slice_sizes"]
    low = [min(max(int(node.value), 0), n - size) for node, n, size in zip(first, x.shape, sizes, strict=True)]
    return x[tuple(slice(start, start + size) for start, size in zip(low, sizes, strict=True))]


def _cumsum(writer: Writer, equation: Any, x: np.ndarray) -> np.ndarray:
    axis, aval = equation.params["axis"], equation.outvars[0].aval
    lines: Any = np.moveaxis(x, axis, -1).copy()
    forward = (
        lines[..., ::-1] if equation.params["reverse"] else lines
    )  # a view, through which the sums are written into `lines`
    for place in np.ndindex(*forward.shape[:-1]):
        for n in range(1, aval.shape[axis]):
            pair = (forward[(*place, n - 1)], forward[(*place, n)])
            forward[(*place, n)] = writer.add(jax.lax.add_p, pair, {}, aval.dtype)
    return np.moveaxis(lines, -1, axis)


def _gather(writer: Writer, equation: Any, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Index an array at constant indices: JAX applies the operation to the positions of its entries."""
    if any(node.number is not None for node in index.ravel()):
        raise Unsupported("gather at indices that are computed")
    positions = np.arange(x.size).reshape(x.shape)
    where = np.array([node.value for node in index.ravel()]).reshape(index.shape)
    parameters = dict(equation.params) | {"fill_value": None}
    with jax.ensure_compile_time_eval():
        gathered = np.asarray(equation.primitive.bind(positions, where, **parameters))
    return x.ravel()[gathered]


def _pad(writer: Writer, equation: Any, x: np.ndarray, filling: np.ndarray) -> np.ndarray:
    low, high, between = zip(*equation.params["padding_config"], strict=True)
    if any(between) or min(*low, *high) < 0:
        raise Unsupported("pad that cuts or spreads")
    shape = equation.outvars[0].aval.shape
    padded = _array([filling.ravel()[0]] * int(np.prod(shape)), shape)
    padded[tuple(slice(first, first + size) for first, size in zip(low, x.shape, strict=True))] = x
    return padded


# Operations that only move elements, whatever these are.
MOVES: dict[str, Callable[..., np.ndarray]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda w, e, x, *_: x.reshape(e.params["new_sizes"]),
    "squeeze": lambda w, e, x: x.reshape(e.outvars[0].aval.shape),
    "expand_dims": lambda w, e, x: x.reshape(e.outvars[0].aval.shape),
    "transpose": lambda w, e, x: np.transpose(x, e.params["permutation"]),
    "rev": lambda w, e, x: np.flip(x, e.params["dimensions"]),
    "slice": _slice,
    "concatenate": lambda w, e, *x: np.concatenate(x, axis=e.params["dimension"]),
    "stack": lambda w, e, *x: np.stack(x, axis=e.params.get("axis", e.params.get("dimension", 0))),
    "pad": _pad,
}
_STRUCTURE: dict[str, Callable[..., np.ndarray]] = MOVES | {
    "dynamic_slice": _dynamic_slice,
    "cumsum": _cumsum,
    "iota": _iota,
    "gather": _gather,
    "dot_general": _dot,
    "reduce_sum": _reduce(jax.lax.add_p, 0.0),
    "reduce_prod": _reduce(jax.lax.mul_p, 1.0),
    "reduce_max": _reduce(jax.lax.max_p, -np.inf),
    "reduce_min": _reduce(jax.lax.min_p, np.inf),
}
