"""Fast steps of direct SGD: native code on a CPU, one kernel on a GPU.

Both draw their inputs where they are used, so that inputs are never written to memory.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.compiler.draws import four_normals, four_of, noise_normal
from twolayer.compiler.loops import kernel_options, on_all_cores
from twolayer.compiler.native import compiled_text
from twolayer.compiler.native_text import body, text
from twolayer.compiler.scalar import Program, Unsupported, scalarize
from twolayer.core.types import Numbers
from twolayer.problem import Gaussian, Problem
from twolayer.simulation.overlap import gradients
from twolayer.training import SGD
from twolayer.training.update import Weights, moved

if TYPE_CHECKING:
    from twolayer.simulation.direct import Frozen

# The most fields of one sample for which a step is written out in scalars.
MAX_FIELDS = 16
MAX_OPS = 4000
# The most weights and target entries, as numbers, that the registers of one GPU multiprocessor hold.
MAX_RESIDENT = 2**14
# Blocks of four random numbers that share a warp.
WARP_WIDTH = 128


class Steps(NamedTuple):
    """One step of SGD as programs on scalars: its random numbers, the loss of a sample, and the method itself."""

    four: Program  # makes four normal numbers of an input
    noise: Program  # makes the normal number of the label noise
    slopes: Program  # maps fields, second layer and label noise to the derivatives of the loss
    first: Program  # moves one entry of the weights, given that of the gradient and, with momentum, of the velocity
    second: Program  # moves one output weight, given its gradient
    p: int
    k: int
    d: int
    batch: int
    has_momentum: bool
    is_spherical: bool
    has_scale: bool = False  # whether the inputs have a spectrum, by which the normal numbers are scaled

    @property
    def quarter(self) -> int:
        """The number of blocks of four random numbers that make one input."""
        return four_of(self.d)


def written_out(problem: Problem, training: SGD) -> Steps | None:
    """One step as programs on scalars; None for problems that native code and kernels do not cover."""
    p, k, has_momentum = problem.p, problem.k, bool(training.has_momentum)
    is_fresh = isinstance(problem.inputs, Gaussian) and training.is_fresh and training.trains_first
    if (
        not is_fresh
        or problem.numbers_of_label > 1
        or training.is_riemannian
        or not training.is_classical
        or p + k > MAX_FIELDS
    ):
        return None
    word, number = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.uint32, jnp.float64))
    row, target = (jax.ShapeDtypeStruct((size,), jnp.float64) for size in (p, k))

    # A classical method moves every entry on its own, so that one entry stands for all.
    def first(w: Array, g: Array, *v: Array) -> list[Array]:
        velocity = v[0][None, None] if v else jnp.zeros((1, 0))
        after = moved(problem, training, Weights(w[None, None], velocity, jnp.zeros(1)), (g[None, None], jnp.zeros(1)))
        return [after.W, after.V]

    def second(a: Array, g: Array) -> Array:
        nothing = jnp.zeros((1, 0))
        return moved(problem, training, Weights(nothing, nothing, a[None]), (nothing, g[None])).a

    try:
        programs = (
            scalarize(four_normals, *[word] * 6),
            scalarize(noise_normal, *[word] * 5),
            scalarize(partial(gradients, problem), row, target, row, number),
            scalarize(first, *[number] * (3 if has_momentum else 2)),
            scalarize(second, number, number),
        )
    except Unsupported:
        return None
    if len(programs[2].ops) > MAX_OPS:
        return None
    batch = training.samples_per_step(problem)
    return Steps(*programs, p, k, problem.d, batch, has_momentum, training.is_spherical, not problem.is_isotropic)


def native(steps: Steps) -> Callable[..., None] | None:
    """The steps as native code; None where a function has no native form."""
    try:
        return compiled_text(_source(steps), "kernel", frozenset({"contract", "reassoc", "nsz"}))
    except Unsupported:
        return None


def _source(steps: Steps) -> str:
    """The loops around the programs: over steps, samples and entries of the input."""
    p, k, d, quarter = steps.p, steps.k, steps.d, steps.quarter

    def indent(depth: int, lines: Iterable[str]) -> list[str]:
        return ["    " * depth + line for line in lines]

    def lines_of(program: Program, prefix: str, inputs: list[str], outputs: list[str]) -> list[str]:
        """The program with its inputs, and the assignment of its results."""
        results = [text(node, prefix, inputs) for node in program.outputs]
        return [*body(program, prefix, inputs), *(f"{x} = {y}" for x, y in zip(outputs, results, strict=True))]

    def each(name: str, number: int = p) -> list[str]:
        return [f"{name}{j}" for j in range(number)]

    W, G = ([f"{name}[{j * d} + e]" for j in range(p)] for name in "WG")
    stars = [f"W_star[{r * d} + e]" for r in range(k)]
    words = ["k0", "k1", "np.uint32(b)", "np.uint32(nu)", "low", "high"]
    velocity = ["V[e]"] if steps.has_momentum else []
    # With one sample a step and no momentum, the gradient is not kept.
    is_plain = steps.batch == 1 and not steps.has_momentum
    scale = ", scale" if steps.has_scale else ""
    lines = [f"def kernel(W, V, a, W_star, lengths, words, first, last{scale}):"]
    lines += indent(1, [f"z = np.empty({4 * quarter}, np.float32)", "k0, k1 = words[0], words[1]"])
    lines += indent(
        1, [f"G, slopes = np.zeros({1 if is_plain else p * d}), np.empty({p})", *(f"a{j} = a[{j}]" for j in range(p))]
    )
    lines += indent(1, ["for time in range(first, last):"])
    lines += indent(2, ["low = np.uint32(time & 0xFFFFFFFF)", "high = np.uint32(time >> 32)"])
    lines += indent(2, [*(f"{b} = 0.0" for b in each("b")), f"for nu in range({steps.batch}):"])
    blocks = [f"z[{n * quarter} + b]" for n in range(4)]
    lines += indent(3, [f"for b in range({quarter}):", *indent(1, lines_of(steps.four, "d", words, blocks))])
    lines += indent(3, [f"for e in range({d}):", "    z[e] *= scale[e]"] if steps.has_scale else [])
    lines += indent(3, lines_of(steps.noise, "n", [*words[:2], *words[3:]], ["noise"]))
    fields = [*each("s"), *each("t", k)]
    lines += indent(3, [*(f"{field} = 0.0" for field in fields), f"for e in range({d}):", "    x = np.float64(z[e])"])
    lines += indent(4, [f"{field} += {row} * x" for field, row in zip(fields, W + stars, strict=True)])
    # Since they are also stored, the compiler does not move a division by a constant into the loop over the entries.
    slopes = [f"f{j} = slopes[{j}]" for j in range(p)] + each("g")
    lines += indent(3, lines_of(steps.slopes, "l", [*fields, *each("a"), "np.float64(noise)"], slopes))
    lines += indent(3, [f"{b} += {g}" for b, g in zip(each("b"), each("g"), strict=True)])
    lines += indent(3, [f"for e in range({d}):", "    x = np.float64(z[e])"])
    for j in range(p):
        step = lines_of(steps.first, f"m{j}_", [W[j], f"(f{j} * x)"], [W[j]]) if is_plain else [f"{G[j]} += f{j} * x"]
        lines += indent(4, step)
    if not is_plain:
        move = lines_of(steps.first, "m", ["W[e]", "G[e]", *velocity], ["W[e]", *velocity])
        lines += indent(2, [f"for e in range({p * d}):", *indent(1, move), "    G[e] = 0.0"])
    if steps.is_spherical:
        for j in range(p):
            lines += indent(2, ["q = 0.0", f"for e in range({d}):", f"    q += {W[j]} * {W[j]}"])
            lines += indent(2, [f"q = lengths[{j}] / math.sqrt(q)", f"for e in range({d}):", f"    {W[j]} *= q"])
    for j in range(p):
        lines += indent(2, lines_of(steps.second, f"h{j}_", [f"a{j}", f"b{j}"], [f"a{j}"]))
    lines += indent(1, [f"a[{j}] = a{j}" for j in range(p)])
    return "\n".join(lines) + "\n"


def advance_native(
    kernel: Callable[..., None],
    scale: Float[np.ndarray, " d"] | None,
    weights: Weights,
    frozen: "Frozen",
    first: Numbers,
    last: Numbers,
) -> Weights:
    """Advance all replicas from one step to another by native code, on all cores this process may use."""
    scales = [] if scale is None else [scale.astype(np.float32)]
    W, V, a = (np.array(x) for x in weights)
    W_star, lengths, words = (np.asarray(x) for x in (frozen.W_star, frozen.lengths, frozen.words))

    def advance(n: int) -> None:
        kernel(
            W[n].ravel(), V[n].ravel(), a[n], W_star[n].ravel(), lengths[n], words[n], int(first), int(last), *scales
        )

    on_all_cores(advance, len(a))
    return type(weights)(*(jnp.asarray(x) for x in (W, V, a)))


def fits_registers(steps: Steps) -> bool:
    """Whether the weights of one replica stay within the registers of a GPU multiprocessor."""
    resident = (steps.p * (2 if steps.has_momentum else 1) + steps.k) * 4 * _power(steps.quarter)
    return resident <= MAX_RESIDENT


def _power(n: int) -> int:
    return 1 << max(4, (n - 1).bit_length())


def quartered(steps: Steps, x: Array, width: int) -> Array:
    """Return rows in four parts, one for each number of a draw, each filled up with zeros to a width."""
    parts = jnp.pad(x, [(0, 0), (0, 0), (0, 4 * steps.quarter - steps.d)]).reshape(*x.shape[:2], 4, steps.quarter)
    return jnp.pad(parts, [(0, 0), (0, 0), (0, 0), (0, width - steps.quarter)])


def joined(steps: Steps, x: Array) -> Array:
    """Return the rows that `quartered` has divided."""
    return x[..., : steps.quarter].reshape(*x.shape[:2], 4 * steps.quarter)[..., : steps.d]


# This function is long because the kernel is one closure over the sizes: Pallas traces it as a whole.
@eqx.filter_jit
def advance_kernel(steps: Steps, weights: Weights, frozen: "Frozen", first: Numbers, last: Numbers) -> Weights:
    """Advance all replicas by one GPU kernel for many steps: a block of threads keeps a replica in registers."""
    from jax.experimental import pallas

    p, k, d, quarter = steps.p, steps.k, steps.d, steps.quarter
    width, replicas = _power(quarter), len(weights.a)
    rows = (weights.W, weights.V if steps.has_momentum else weights.W[:, :0], frozen.W_star)
    W, V, W_star = (quartered(steps, x, width) for x in rows)
    span = jnp.stack([jnp.asarray(first, jnp.int64), jnp.asarray(last, jnp.int64)])

    def kernel(span_ref: Any, W_ref: Any, V_ref: Any, a_ref: Any, star_ref: Any, fixed_ref: Any, words_ref: Any,
               W_out: Any, V_out: Any, a_out: Any) -> None:  # fmt: skip
        block = jnp.arange(width, dtype=jnp.uint32)
        inside = [(np.uint32(n * quarter) + block < np.uint32(d)) & (block < np.uint32(quarter)) for n in range(4)]
        star = [[star_ref[0, r, n, :] for n in range(4)] for r in range(k)]
        lengths = [fixed_ref[0, j] for j in range(p)]
        key = [words_ref[0, n] for n in range(2)]

        def body(step: Array, state: Any) -> Any:
            W, V, a = state
            low, high = (step & 0xFFFFFFFF).astype(jnp.uint32), (step >> 32).astype(jnp.uint32)
            wide = [jnp.full((width,), word) for word in (*key, np.uint32(0), low, high)]
            drawn = steps.four.run([*wide[:2], block, *wide[2:]])
            z = [jnp.where(here, x, np.float32(0.0)).astype(jnp.float64) for here, x in zip(inside, drawn, strict=True)]

            def product(row: Any) -> Array:
                return jnp.sum(sum(x * y for x, y in zip(row, z, strict=True)))

            xi = steps.noise.run([*key, jnp.uint32(0), low, high])[0].astype(jnp.float64)
            slopes = steps.slopes.run([*map(product, W), *map(product, star), *a, xi])
            gradient = [[slope * x for x in z] for slope in slopes[:p]]
            rows = zip(W, gradient, *([V] if steps.has_momentum else []), strict=True)
            after = [[steps.first.run(list(entry)) for entry in zip(*row, strict=True)] for row in rows]
            W = [[entry[0] for entry in row] for row in after]
            V = [[entry[1] for entry in row] for row in after] if steps.has_momentum else []
            if steps.is_spherical:
                scales = [
                    length / jnp.sqrt(jnp.sum(sum(w * w for w in row))) for length, row in zip(lengths, W, strict=True)
                ]
                W = [[scale * w for w in row] for scale, row in zip(scales, W, strict=True)]
            return W, V, [steps.second.run(list(pair))[0] for pair in zip(a, slopes[p:], strict=True)]

        def rows_of(ref: Any, number: int) -> list[list[Array]]:
            return [[ref[0, j, n, :] for n in range(4)] for j in range(number)]

        start = (rows_of(W_ref, p), rows_of(V_ref, p) if steps.has_momentum else [], [a_ref[0, j] for j in range(p)])
        W, V, a = jax.lax.fori_loop(span_ref[0], span_ref[1], body, start)
        for j in range(p):
            a_out[0, j] = a[j]
            for n in range(4):
                W_out[0, j, n, :] = W[j][n]
                if steps.has_momentum:
                    V_out[0, j, n, :] = V[j][n]

    def one(x: Array) -> Any:
        shape = (1, *x.shape[1:])
        return pallas.BlockSpec(shape, lambda i: (i, *[0] * (len(shape) - 1)))

    if not steps.has_momentum:  # an empty array has no block
        V = jnp.zeros((replicas, 1))
    inputs = (W, V, weights.a, W_star if k else jnp.zeros((replicas, 1)), frozen.lengths, frozen.words)
    W, V, a = pallas.pallas_call(
        kernel,
        grid=(replicas,),
        in_specs=[pallas.BlockSpec((2,), lambda i: (0,)), *map(one, inputs)],
        out_specs=[one(x) for x in (W, V, weights.a)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (W, V, weights.a)],
        **kernel_options(max(1, min(16, width // WARP_WIDTH))),
    )(span, *inputs)
    return type(weights)(joined(steps, W), joined(steps, V) if steps.has_momentum else weights.V, a)
