r"""Several steps of direct SGD at a time on a GPU, for weights that do not fit into registers.

The inputs :math:`z_1, \dots, z_T` of the next steps do not depend on the weights, and a step moves the weights along
its input only. With the weights before these steps, :math:`W_0`,

.. math:: W_t = c_t W_0 + \sum_{s \le t} c_{ts}\, z_s^T, \qquad
          W_t z_{t+1} = c_t W_0 z_{t+1} + \sum_{s \le t} c_{ts}\, z_s \cdot z_{t+1}

so that one kernel computes all products :math:`W_0 z_t`, :math:`W^\star z_t` and :math:`z_s \cdot z_t`, the steps are
taken on the coefficients, and a second kernel draws the inputs again and moves the weights. These are read twice and
written once in T steps, and inputs are never written to memory.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.compiler.loops import counter, kernel_options
from twolayer.core.types import Numbers
from twolayer.simulation.direct_kernels import Steps, joined, quartered
from twolayer.training.update import Weights

if TYPE_CHECKING:
    from twolayer.simulation.direct import Frozen

# Steps taken at a time, and products that the registers of a thread hold beside the inputs of these steps.
MAX_AHEAD, MAX_PRODUCTS = 8, 60
# Blocks of four random numbers that a warp draws at once, and the most times that it does so for one replica and step.
WARP, MAX_TURNS = 32, 16


class _Span(NamedTuple):
    """How many steps are taken at a time, and how the entries of an input are divided among warps."""

    steps: Steps
    ahead: int
    chunks: int
    turns: int

    @property
    def width(self) -> int:
        """The blocks of four random numbers of an input, filled up to whole chunks."""
        return self.chunks * self.turns * WARP

    @property
    def rows(self) -> int:
        """The rows of the weights and of the velocity."""
        return self.steps.p * (2 if self.steps.has_momentum else 1)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of steps whose inputs are multiplied; the squares are needed on the sphere."""
        return [(s, t) for t in range(self.ahead) for s in range(t + self.steps.is_spherical)]


def _span(steps: Steps) -> _Span:
    chunks = -(-steps.quarter // (WARP * MAX_TURNS))
    return _Span(steps, steps_together(steps), chunks, -(-steps.quarter // (WARP * chunks)))


def steps_together(steps: Steps) -> int:
    """How many steps are taken at a time: as many as the registers of a thread hold the products of."""
    fields = steps.p * (2 if steps.has_momentum else 1) + steps.k
    return max(n for n in range(1, MAX_AHEAD + 1) if n == 1 or fields * n + n * (n + 1) // 2 <= MAX_PRODUCTS)


@eqx.filter_jit
def advance_spans(steps: Steps, weights: Weights, frozen: "Frozen", first: Numbers, last: Numbers) -> Weights:
    """Advance all replicas from one step to another by GPU kernels that take several steps at a time.

    These begin at multiples of `steps_together`, so that a run may be cut there without changing a bit.
    """
    span, p = _span(steps), steps.p
    first, last = (jnp.asarray(step, jnp.int64) for step in (first, last))
    rows = jnp.concatenate([weights.W, weights.V], axis=1) if steps.has_momentum else weights.W
    rows, star = (quartered(steps, x, span.width) for x in (rows, frozen.W_star))

    def body(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, a = state
        begin = number * span.ahead
        products = _products(span, rows, star, frozen.words, begin)
        squares = _squares(span, rows) if steps.is_spherical else None
        is_step = [(first <= begin + t) & (begin + t < last) for t in range(span.ahead)]
        coefficients, a = _follow(span, products, squares, a, frozen, begin, jnp.stack(is_step))
        return _combined(span, rows, coefficients, frozen.words, begin), a

    rows, a = jax.lax.fori_loop(first // span.ahead, -(-last // span.ahead), body, (rows, weights.a))
    rows = joined(steps, rows)
    return type(weights)(rows[:, :p], rows[:, p:] if steps.has_momentum else weights.V, a)


def _inputs(span: _Span, words_ref: Any, begin_ref: Any, chunk: Array, turn: Array) -> list[list[Array]]:
    """The entries of the inputs of all steps that one warp draws at once: a list of four vectors for each step."""
    steps = span.steps
    block = jnp.arange(WARP, dtype=jnp.uint32) + ((chunk * span.turns + turn) * WARP).astype(jnp.uint32)
    here = block < np.uint32(steps.quarter)
    inside = [here & (np.uint32(n * steps.quarter) + block < np.uint32(steps.d)) for n in range(4)]
    drawn = []
    for t in range(span.ahead):
        low, high = counter(begin_ref[0] + t)
        wide = [jnp.full((WARP,), word) for word in (words_ref[0, 0], words_ref[0, 1], np.uint32(0), low, high)]
        four = steps.four.run([*wide[:2], block, *wide[2:]])
        drawn.append([jnp.where(is_in, z, np.float32(0.0)) for is_in, z in zip(inside, four, strict=True)])
    return drawn


def _at(turn: Array) -> Any:
    from jax.experimental import pallas

    return pallas.ds(turn * WARP, WARP)


def _specs(span: _Span, *arrays: Array) -> list[Any]:
    """The part of each array that one warp sees: all of a replica, or one chunk of its rows."""
    from jax.experimental import pallas

    def spec(x: Array) -> Any:
        if x.ndim == 4:
            return pallas.BlockSpec((1, x.shape[1], 4, span.turns * WARP), lambda r, c: (r, 0, 0, c))
        if x.ndim == 1:
            return pallas.BlockSpec(x.shape, lambda r, c: (0,))
        return pallas.BlockSpec((1, *x.shape[1:]), lambda r, c: (r, *[0] * (x.ndim - 1)))

    return [spec(x) for x in arrays]


def _products(span: _Span, rows: Array, star: Array, words: Array, begin: Array) -> Array:
    """The products of all rows with the inputs of the next steps, and of these inputs: one row for each replica."""
    from jax.experimental import pallas

    ahead, replicas, fields = span.ahead, len(rows), span.rows + span.steps.k
    number = fields * ahead + len(span.pairs)

    def kernel(begin_ref: Any, words_ref: Any, rows_ref: Any, star_ref: Any, out_ref: Any) -> None:
        chunk = pallas.program_id(1)
        refs = [(rows_ref, j) for j in range(span.rows)] + [(star_ref, r) for r in range(span.steps.k)]

        def body(turn: Array, sums: list[Array]) -> list[Array]:
            drawn = _inputs(span, words_ref, begin_ref, chunk, turn)
            sums = list(sums)
            for n in range(4):
                z = [four[n].astype(jnp.float64) for four in drawn]
                for place, (ref, j) in enumerate(refs):
                    row = ref[0, j, n, _at(turn)]
                    for t in range(ahead):
                        sums[place * ahead + t] += row * z[t]
                for place, (s, t) in enumerate(span.pairs):
                    sums[fields * ahead + place] += z[s] * z[t]
            return sums

        for n, total in enumerate(jax.lax.fori_loop(0, span.turns, body, [jnp.zeros((WARP,))] * number)):
            out_ref[0, 0, n] = jnp.sum(total)

    inputs = (begin[None], words, rows, star if span.steps.k else words)
    sums = pallas.pallas_call(
        kernel,
        grid=(replicas, span.chunks),
        in_specs=_specs(span, *inputs),
        out_specs=pallas.BlockSpec((1, 1, number), lambda r, c: (r, c, 0)),
        out_shape=jax.ShapeDtypeStruct((replicas, span.chunks, number), jnp.float64),
        **kernel_options(1),
    )(*inputs)
    return jnp.sum(sums, axis=1)


def _squares(span: _Span, rows: Array) -> Array:
    """The products of each neuron's row with itself and with its velocity, as small matrices."""
    parts = rows.reshape(len(rows), -1, span.steps.p, 4 * span.width)
    return jnp.einsum("ruje,rvje->rjuv", parts, parts)


def _follow(
    span: _Span, products: Array, squares: Array | None, a: Array, frozen: "Frozen", begin: Array, is_step: Array
) -> tuple[Array, Array]:
    """The coefficients of weights and velocity after the steps, along themselves before and the inputs; and the a.

    The method moves every entry of the weights in the same way, and linearly; so it moves coefficients, too.
    """
    steps, ahead, p, replicas = span.steps, span.ahead, span.steps.p, len(a)
    kinds, fields = span.rows // p, span.rows + span.steps.k
    split = products[:, : fields * ahead].reshape(replicas, fields, ahead)
    own = split[:, : span.rows].reshape(replicas, kinds, p, ahead).transpose(0, 2, 1, 3)  # replica, neuron, kind, step
    s, t = (np.array([pair[n] for pair in span.pairs], int) for n in range(2))
    among = jnp.zeros((replicas, ahead, ahead)).at[:, s, t].set(products[:, fields * ahead :])
    among = among.at[:, t, s].set(products[:, fields * ahead :])
    size = kinds + ahead
    # Along which basis vectors a row has coefficients: itself and its velocity before the steps, then the inputs.
    along = jnp.concatenate([own, jnp.broadcast_to(among[:, None], (replicas, p, ahead, ahead))], axis=2)
    gram = None
    if squares is not None:
        top = jnp.concatenate([squares, own], axis=3)
        gram = jnp.concatenate([top, along.transpose(0, 1, 3, 2)], axis=2)

    def step(state: tuple[list[Array], Array], t: Array) -> tuple[tuple[list[Array], Array], None]:
        rows, a = state
        low, high = (jnp.full((replicas,), word) for word in counter(begin + t))
        zero = jnp.zeros_like(low)
        xi = steps.noise.run([frozen.words[:, 0], frozen.words[:, 1], zero, low, high])[0].astype(jnp.float64)
        lam = jnp.sum(rows[0] * along[..., t], axis=2)
        slopes = steps.slopes.run([*lam.T, *split[:, span.rows :, t].T, *a.T, xi])
        gradient = jnp.zeros((replicas, p, size)).at[:, :, kinds + t].set(jnp.stack(slopes[:p], axis=1))
        moved = steps.first.run([rows[0], gradient, *rows[1:]])[:kinds]
        if gram is not None:
            square = jnp.einsum("rju,rjuv,rjv->rj", moved[0], gram, moved[0])
            moved[0] = moved[0] * (frozen.lengths / jnp.sqrt(square))[..., None]
        after = jnp.stack([steps.second.run([a[:, j], slopes[p + j]])[0] for j in range(p)], axis=1)
        kept = [jnp.where(is_step[t], new, old) for new, old in zip(moved, rows, strict=True)]
        return (kept, jnp.where(is_step[t], after, a)), None

    start = [jnp.zeros((replicas, p, size)).at[:, :, kind].set(1.0) for kind in range(kinds)]
    (rows, a), _ = jax.lax.scan(step, (start, a), jnp.arange(ahead))
    return jnp.concatenate(rows, axis=1), a


def _combined(span: _Span, rows: Array, coefficients: Array, words: Array, begin: Array) -> Array:
    """The rows after the steps, given their coefficients; the inputs are drawn again."""
    from jax.experimental import pallas

    p = span.steps.p

    def kernel(begin_ref: Any, words_ref: Any, rows_ref: Any, coefficients_ref: Any, out_ref: Any) -> None:
        chunk = pallas.program_id(1)
        _, many, size = coefficients.shape
        factors = [[coefficients_ref[0, j, u] for u in range(size)] for j in range(many)]

        def body(turn: Array, nothing: Array) -> Array:
            drawn = _inputs(span, words_ref, begin_ref, chunk, turn)
            for n in range(4):
                z = [four[n].astype(jnp.float64) for four in drawn]
                before = [rows_ref[0, j, n, _at(turn)] for j in range(many)]
                for j in range(many):
                    basis = [*before[j % p :: p], *z]
                    out_ref[0, j, n, _at(turn)] = sum(c * x for c, x in zip(factors[j], basis, strict=True))
            return nothing

        jax.lax.fori_loop(0, span.turns, body, 0)

    inputs = (begin[None], words, rows, coefficients)
    return pallas.pallas_call(
        kernel,
        grid=(len(rows), span.chunks),
        in_specs=_specs(span, *inputs),
        out_specs=_specs(span, rows)[0],
        out_shape=jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        input_output_aliases={2: 0},  # every warp reads its part before it writes it
        **kernel_options(1),
    )(*inputs)
