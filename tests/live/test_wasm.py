"""Programs on scalars as WebAssembly, against XLA and NumPy."""

import base64

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from twolayer.compiler import draws, elementary, wasm
from twolayer.compiler.array_loops import as_loops
from twolayer.compiler.loops import WrittenOut, counter
from twolayer.compiler.scalar import Unsupported, scalarize
from twolayer.compiler.wasm_binary import signed, unsigned

REAL = jax.ShapeDtypeStruct((), jnp.float64)
WORD = jax.ShapeDtypeStruct((), jnp.uint32)

CALL = """
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes(given.module)), { Math });
    const result = given.rows.map((row) => {
        const memory = new Float64Array(exports.memory.buffer);
        memory.set(given.numbers, given.numbers_at / 8);
        memory.set(row, given.free / 8);
        exports.f(given.free, given.free + 8 * row.length);
        return [...memory.slice(given.free / 8 + row.length, given.free / 8 + row.length + given.outputs)];
    });
"""


def called(program, shared, numbers, rows, compute):
    """Return the outputs of a program for rows of its first inputs, computed in a browser."""
    module = wasm.compiled_to_wasm(None, {"f": program}, shared)
    given = {"module": base64.b64encode(module.binary).decode(), "numbers_at": module.layout.numbers,
             "free": module.layout.free, "numbers": list(numbers), "rows": np.asarray(rows).tolist(),
             "outputs": len(program.outputs)}  # fmt: skip
    return np.array(compute(CALL, given))


def test_numbers_in_base_128_are_those_of_the_specification():
    assert unsigned(624485) == bytes([0xE5, 0x8E, 0x26])
    assert signed(-123456) == bytes([0xC0, 0xBB, 0x78])
    assert signed(64) == bytes([0xC0, 0x00]) and signed(-64) == bytes([0x40])


def test_operations_agree_with_xla(compute):
    def function(x, y, n):
        bits = jax.lax.bitcast_convert_type(x, jnp.uint64)
        small = jnp.abs(x) < 1.0
        words = (bits >> np.uint64(32)).astype(jnp.uint32) ^ np.uint32(0x9E3779B9)
        signed = jnp.floor(x).astype(jnp.int32)
        single = x.astype(jnp.float32) * np.float32(1.7) - np.float32(0.3)
        return (
            x + n * y, x - y, x * y, x / y, jnp.maximum(x, y), jnp.minimum(x, y), jnp.sqrt(jnp.abs(x)), -x,
            jax.lax.rsqrt(jnp.abs(x)), jnp.sign(x), jnp.floor(x), jnp.ceil(x), x**3, x**-2, jnp.square(x),
            jnp.sin(x), jnp.cos(x), jnp.arctan(x), jnp.arctan2(x, y), jnp.log(jnp.abs(x)), jnp.log1p(jnp.abs(x)),
            jnp.expm1(x), jnp.sinh(x), jnp.cosh(x), jnp.abs(x) ** y, jnp.where(small & (y > 0), x, y),
            jnp.where(jnp.logical_not(small) | (x == y), n, x), words.astype(jnp.float64),
            (words.astype(jnp.uint64) * np.uint64(0xD2511F53) >> np.uint64(32)).astype(jnp.float64),
            signed.astype(jnp.float64), (signed >> np.int32(1)).astype(jnp.float64), single.astype(jnp.float64),
            jnp.exp(x), jnp.tanh(x), jax.nn.sigmoid(x), jax.lax.erf(x),
            jnp.where(jnp.arcsin(jnp.clip(x, -1.0, 1.0)) > 0.1, jnp.arccos(jnp.clip(x, -1.0, 1.0)), 0.0),
        )  # fmt: skip

    program = scalarize(function, REAL, REAL, REAL)
    points = np.random.default_rng(0).normal(0.0, 2.0, (200, 2))
    found = called(program, 1, [1.5], points, compute)
    # One operation after the other, since XLA would fuse a product with a sum.
    expected = np.stack(program.run([*jnp.asarray(points.T), jnp.full(len(points), 1.5)]), axis=1)
    # Elementary functions of browser and XLA differ by a few units in the last place.
    np.testing.assert_allclose(found, expected, rtol=2e-14, atol=1e-15)


@pytest.mark.parametrize("name", ["exp", "tanh", "logistic"])
def test_elementary_functions_are_accurate(name):
    exact = {"exp": np.exp, "tanh": np.tanh, "logistic": special.expit}[name]
    x = np.concatenate([np.linspace(-20.0, 20.0, 4001), [-700.0, -1e-9, 1e-300, 0.0, 700.0 if name == "exp" else 40.0]])
    np.testing.assert_allclose(getattr(elementary, name)(jnp.asarray(x)), exact(x), rtol=2e-15)


def test_random_numbers_are_those_of_python_bit_by_bit(compute):
    """The numbers of steps, drawn four at a time, are those that XLA computes operation by operation."""

    def drawn(k0, k1, low, high, rate):
        numbers = draws.normals((k0, k1), 7, jnp.uint32(0), (low, high))
        chi = draws.chi(numbers[6], np.asarray(900.0), draws.chi_coefficients(900.0))
        return (*numbers[:6].astype(jnp.float64), chi * rate)

    def step(state, own, rate, *numbers):
        return [own * 0.0 + number + 0.0 * rate for number in numbers]

    program = scalarize(drawn, WORD, WORD, WORD, WORD, REAL)
    taken = scalarize(step, [REAL] * 7, REAL, REAL, *[REAL] * 7)
    module = wasm.compiled_to_wasm(WrittenOut(program, taken, 7, 2, 1), {}, 1)
    # Blocks of any length, and steps around the carry into the second word.
    lasts = [1, 2, 31, 32, 33, 70, 2**32 - 1, 2**32, 2**32 + 5]
    given = {"module": base64.b64encode(module.binary).decode(), "layout": module.layout, "lasts": lasts}
    script = """
        const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes(given.module)), { Math });
        const [numbers, free] = given.layout;
        const memory = new Float64Array(exports.memory.buffer);
        memory[numbers / 8] = 1;
        memory[free / 8 + 7] = 1;
        new Uint32Array(exports.memory.buffer).set([17, 4000000000], free / 4 + 16);
        const result = given.lasts.map((last) => {
            exports.advance(free, free + 56, free + 64, Math.max(0, last - 40), last);
            return [...memory.slice(free / 8, free / 8 + 7)];
        });
    """
    found = np.array(compute(script, given))
    low, high = counter(jnp.asarray(lasts) - 1)
    words = [jnp.full(len(lasts), word, jnp.uint32) for word in (17, 4000000000)]
    expected = np.stack(program.run([*words, low, high, jnp.ones(len(lasts))]), axis=1)
    np.testing.assert_array_equal(found, expected)


def test_loops_over_arrays_agree_with_xla(compute):
    """Sums, products, moved and gathered elements, constants and numbers of all types in loops over memory."""
    weights = np.linspace(-1.0, 2.0, 12).reshape(3, 4)
    matrix = np.array([[1.0, 2.0, 0.5], [3.0, 1.0, 0.0], [0.2, 0.1, 4.0]])  # what is known is decomposed at once

    def function(x, y, rate):
        outer = jnp.tanh(x[:, None] * y[None, :] - weights)
        taken = outer[np.array([2, 0, 2, 1])] @ jnp.flip(outer, axis=1).T
        where = jnp.where((taken > 0.1) & (jnp.floor(taken).astype(jnp.int32) < 1), taken, rate)
        cubes = jnp.einsum("ij,ik,il->jkl", outer, outer, outer)
        padded = jnp.pad(jnp.concatenate([where, weights.T], axis=1), ((1, 0), (0, 2)), constant_values=0.5)
        return (
            jnp.max(outer, axis=0), jnp.min(outer), jnp.prod(outer, axis=1), jnp.sum(cubes, axis=(0, 2)), padded,
            jax.lax.erf(cubes[0]), outer[:, ::2].T, x[::-1] * 2.0, rate * 1.0, jnp.ones(2),
            jax.scipy.linalg.lu_factor(matrix)[0] @ x,
        )  # fmt: skip

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((3,), (4,), ())]
    program = as_loops(function, *shapes)
    points = np.random.default_rng(1).normal(size=(20, 7))
    found = called(program, 1, [0.7], points, compute)
    each = jax.vmap(lambda row: jnp.concatenate([jnp.ravel(part) for part in function(row[:3], row[3:], 0.7)]))
    # Sums in another order.
    np.testing.assert_allclose(found, each(jnp.asarray(points)), rtol=1e-12, atol=1e-13)


def test_what_cannot_be_written_out_is_refused():
    program = scalarize(lambda x: jax.scipy.special.erfc(x), REAL)
    with pytest.raises(Unsupported, match="erfc"):
        wasm.compiled_to_wasm(None, {"f": program}, 0)
    with pytest.raises(Unsupported, match="sort"):
        as_loops(jnp.sort, jax.ShapeDtypeStruct((3,), jnp.float64))
    with pytest.raises(Unsupported, match="lu"):
        as_loops(lambda x: jax.lax.linalg.lu(x), jax.ShapeDtypeStruct((2, 2), jnp.float64))
    with pytest.raises(Unsupported, match="a sum of nothing"):
        as_loops(lambda x: jnp.sum(x[:0]), jax.ShapeDtypeStruct((3,), jnp.float64))
