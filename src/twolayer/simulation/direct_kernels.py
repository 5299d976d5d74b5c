"""Fast steps of direct SGD: native code on a CPU, one kernel on a GPU.

Both draw their inputs where they are used, so that inputs are never written to memory.
"""

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.draws import four_normals, four_of, noise_normal
from twolayer.compiler.scalar import Program, Unsupported, scalarize
from twolayer.core.types import Numbers
from twolayer.problem import Gaussian, Problem
from twolayer.simulation.overlap import pulls
from twolayer.training import SGD
from twolayer.training.update import Weights

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
    """One step of SGD as programs on scalars, with the numbers that do not change during a run."""

    four: Program  # makes four normal numbers of an input
    noise: Program  # makes the normal number of the label noise
    pulls: Program  # maps fields, second layer and label noise to the pulls on both layers
    p: int
    k: int
    d: int
    batch: int
    keep: float
    momentum: float
    is_spherical: bool
    trains_second: bool

    @property
    def quarter(self) -> int:
        """The number of blocks of four random numbers that make one input."""
        return four_of(self.d)


def written_out(problem: Problem, training: SGD) -> Steps | None:
    """One step as programs on scalars; None for problems that native code and kernels do not cover."""
    p, k, d = problem.p, problem.k, problem.d
    is_fresh = isinstance(problem.inputs, Gaussian) and training.is_fresh and training.trains_first
    if not is_fresh or not training.is_classical or p + k > MAX_FIELDS:
        return None
    word, real = jax.ShapeDtypeStruct((), jnp.uint32), jax.ShapeDtypeStruct
    fields = (real((p,), jnp.float64), real((k,), jnp.float64), real((p,), jnp.float64), real((), jnp.float64))
    try:
        program = scalarize(lambda *x: pulls(problem, training, *x), *fields)
        four, noise = scalarize(four_normals, *[word] * 6), scalarize(noise_normal, *[word] * 5)
    except Unsupported:
        return None
    if len(program.ops) > MAX_OPS:
        return None
    batch = training.samples_per_step(problem)
    keep = 1.0 - float(training.weight_decay) * float(training.learning_rate) / d * batch
    trains_second = float(training.layer_ratio) != 0.0
    momentum = float(training.momentum) if training.has_momentum else 0.0
    return Steps(four, noise, program, p, k, d, batch, keep, momentum, training.is_spherical, trains_second)


def native(steps: Steps) -> Callable[..., None] | None:
    """The steps as native code; None without numba, or where a function has no native form."""
    if importlib.util.find_spec("numba") is None:
        return None
    from twolayer.compiler.native import compiled_text

    try:
        return compiled_text(_source(steps), "kernel", frozenset({"contract", "reassoc", "nsz"}))
    except Unsupported:
        return None


def _source(steps: Steps) -> str:
    from twolayer.compiler.native import body, text

    p, k, d, quarter = steps.p, steps.k, steps.d, steps.quarter
    words = ["k0", "k1", "np.uint32(b)", "np.uint32(nu)", "low", "high"]
    four = [text(node, "d", words) for node in steps.four.outputs]
    label = ["k0", "k1", "np.uint32(nu)", "low", "high"]
    fields = [*(f"s{j}" for j in range(p)), *(f"t{r}" for r in range(k)), *(f"a{j}" for j in range(p)), "xi"]
    pull = [text(node, "f", fields) for node in steps.pulls.outputs]
    W = [f"W[{j * d} + e]" for j in range(p)]

    def indent(depth: int, lines: list[str]) -> list[str]:
        return ["    " * depth + line for line in lines]

    # With one sample a step and no momentum, the pull is added to the weights directly.
    is_plain = steps.batch == 1 and not steps.momentum
    into = W if is_plain else [f"G[{j * d} + e]" for j in range(p)]
    lines = ["def kernel(W, V, a, W_star, lengths, words, first, last):"]
    lines += indent(1, [f"z = np.empty({4 * quarter}, np.float32)", "k0, k1 = words[0], words[1]"])
    lines += indent(1, [f"G = np.zeros({1 if is_plain else p * d})", *(f"a{j} = a[{j}]" for j in range(p))])
    lines += indent(1, ["for time in range(first, last):"])
    lines += indent(2, ["low = np.uint32(time & 0xFFFFFFFF)", "high = np.uint32(time >> 32)"])
    lines += indent(2, [*(f"b{j} = 0.0" for j in range(p)), f"for nu in range({steps.batch}):"])
    lines += indent(3, [f"for b in range({quarter}):", *indent(1, body(steps.four, "d", words))])
    lines += indent(4, [f"z[{n * quarter} + b] = {value}" for n, value in enumerate(four)])
    lines += indent(3, [*body(steps.noise, "n", label), f"xi = np.float64({text(steps.noise.outputs[0], 'n', label)})"])
    lines += indent(
        3, [*(f"s{j} = 0.0" for j in range(p)), *(f"t{r} = 0.0" for r in range(k)), f"for e in range({d}):"]
    )
    lines += indent(4, ["x = np.float64(z[e])", *(f"s{j} += {W[j]} * x" for j in range(p))])
    lines += indent(4, [f"t{r} += W_star[{r * d} + e] * x" for r in range(k)])
    lines += indent(3, [*body(steps.pulls, "f", fields), f"for e in range({d}):", "    x = np.float64(z[e])"])
    keep = f"{steps.keep!r} * " if is_plain and steps.keep != 1.0 else ""
    lines += indent(4, [f"{into[j]} = {keep}{into[j]} + ({pull[j]}) * x" for j in range(p)])
    if steps.trains_second:
        lines += indent(3, [f"b{j} += {pull[p + j]}" for j in range(p)])
    if not is_plain:
        lines += indent(2, [f"for e in range({p * d}):"])
        if steps.momentum:
            lines += indent(3, [f"V[e] = {steps.momentum!r} * V[e] + G[e]", f"W[e] = {steps.keep!r} * W[e] + V[e]"])
        else:
            lines += indent(3, [f"W[e] = {steps.keep!r} * W[e] + G[e]"])
        lines += indent(3, ["G[e] = 0.0"])
    if steps.is_spherical:
        for j in range(p):
            lines += indent(2, ["q = 0.0", f"for e in range({d}):", f"    q += {W[j]} * {W[j]}"])
            lines += indent(2, [f"q = lengths[{j}] / math.sqrt(q)", f"for e in range({d}):", f"    {W[j]} *= q"])
    lines += indent(2, [f"a{j} += b{j}" for j in range(p)])
    lines += indent(1, [f"a[{j}] = a{j}" for j in range(p)])
    return "\n".join(lines) + "\n"


def advance_native(
    kernel: Callable[..., None], weights: Weights, frozen: "Frozen", first: Numbers, last: Numbers
) -> Weights:
    """Advance all replicas from one step to another by native code, on all cores this process may use."""
    W, V, a = (np.array(x) for x in weights)
    W_star, lengths, words = (np.asarray(x) for x in (frozen.W_star, frozen.lengths, frozen.words))

    def advance(n: int) -> None:
        kernel(W[n].ravel(), V[n].ravel(), a[n], W_star[n].ravel(), lengths[n], words[n], int(first), int(last))

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(min(cores, len(a))) as pool:
        list(pool.map(advance, range(len(a))))
    return Weights(W, V, a)  # pyright: ignore[reportArgumentType]: XLA takes NumPy's arrays as they are


def fits_a_kernel(steps: Steps) -> bool:
    """Whether the weights of one replica stay within the registers of a GPU multiprocessor."""
    resident = (steps.p * (2 if steps.momentum else 1) + steps.k) * 4 * _power(steps.quarter)
    return steps.batch == 1 and resident <= MAX_RESIDENT


def _power(n: int) -> int:
    return 1 << max(4, (n - 1).bit_length())


# This function is long because the kernel is one closure over the sizes: Pallas traces it as a whole.
@eqx.filter_jit
def advance_kernel(steps: Steps, weights: Weights, frozen: "Frozen", first: Numbers, last: Numbers) -> Weights:
    """Advance all replicas by one GPU kernel for many steps: a block of threads keeps a replica in registers."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    p, k, d, quarter = steps.p, steps.k, steps.d, steps.quarter
    width, replicas = _power(quarter), len(weights.a)

    def quartered(x: Array) -> Array:
        """Rows in four parts, one for each number of a draw, each padded to a power of two."""
        parts = jnp.pad(x, [(0, 0), (0, 0), (0, 4 * quarter - d)]).reshape(replicas, -1, 4, quarter)
        return jnp.pad(parts, [(0, 0), (0, 0), (0, 0), (0, width - quarter)])

    W, V, W_star = quartered(weights.W), quartered(weights.V if steps.momentum else weights.W[:, :0]), frozen.W_star
    W_star = quartered(W_star)
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
            pulls_of_sample = steps.pulls.run([*map(product, W), *map(product, star), *a, xi])
            moves = [[pulls_of_sample[j] * x for x in z] for j in range(p)]
            if steps.momentum:
                V = [
                    [steps.momentum * v + m for v, m in zip(*rows, strict=True)] for rows in zip(V, moves, strict=True)
                ]
                moves = V
            W = [[steps.keep * w + m for w, m in zip(*rows, strict=True)] for rows in zip(W, moves, strict=True)]
            if steps.is_spherical:
                scales = [
                    length / jnp.sqrt(jnp.sum(sum(w * w for w in row))) for length, row in zip(lengths, W, strict=True)
                ]
                W = [[scale * w for w in row] for scale, row in zip(scales, W, strict=True)]
            return W, V, [x + pulls_of_sample[p + j] for j, x in enumerate(a)] if steps.trains_second else a

        def rows_of(ref: Any, number: int) -> list[list[Array]]:
            return [[ref[0, j, n, :] for n in range(4)] for j in range(number)]

        start = (rows_of(W_ref, p), rows_of(V_ref, p) if steps.momentum else [], [a_ref[0, j] for j in range(p)])
        W, V, a = jax.lax.fori_loop(span_ref[0], span_ref[1], body, start)
        for j in range(p):
            a_out[0, j] = a[j]
            for n in range(4):
                W_out[0, j, n, :] = W[j][n]
                if steps.momentum:
                    V_out[0, j, n, :] = V[j][n]

    def one(x: Array) -> Any:
        shape = (1, *x.shape[1:])
        return pallas.BlockSpec(shape, lambda i: (i, *[0] * (len(shape) - 1)))

    if not steps.momentum:  # an empty array has no block
        V = jnp.zeros((replicas, 1))
    inputs = (W, V, weights.a, W_star if k else jnp.zeros((replicas, 1)), frozen.lengths, frozen.words)
    W, V, a = pallas.pallas_call(
        kernel,
        grid=(replicas,),
        in_specs=[pallas.BlockSpec((2,), lambda i: (0,)), *map(one, inputs)],
        out_specs=[one(x) for x in (W, V, weights.a)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (W, V, weights.a)],
        compiler_params=triton.CompilerParams(num_warps=max(1, min(16, width // WARP_WIDTH)), num_stages=1),
    )(span, *inputs)

    def joined(x: Array) -> Array:
        return x[..., :quarter].reshape(replicas, p, 4 * quarter)[..., :d]

    return type(weights)(joined(W), joined(V) if steps.momentum else weights.V, a)
