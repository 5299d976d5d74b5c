"""Loops over memory as machine code on vectors: the numbers of JAX, and those of a row whatever rows are beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.compiler import elementary
from twolayer.compiler.array_loops import as_loops
from twolayer.compiler.scalar import Unsupported
from twolayer.compiler.vector_loops import LANES, VectorCode


def test_the_angle_of_a_point_is_right_to_the_last_digits():
    rng = np.random.default_rng(0)
    y, x = rng.standard_normal((2, 20_000)) * 10.0 ** rng.uniform(-12, 12, (2, 20_000))
    edges = np.array([0.0, 1.0, -1.0, 1e-300, -1e-300, 1e300])
    y, x = (np.concatenate([a, b.ravel()]) for a, b in zip((y, x), np.meshgrid(edges, edges), strict=True))
    found = elementary.atan2(jnp.asarray(y), jnp.asarray(x))
    # Four units in the last place: the fraction, the sum with its argument, and the subtractions from pi are rounded.
    np.testing.assert_allclose(found, np.arctan2(y, x), rtol=9e-16, atol=0.0)
    assert np.isnan(elementary.atan2(jnp.array([np.nan, 1.0]), jnp.array([1.0, np.nan]))).all()


def everything(x, y):
    """A function with every kind of operation that has machine code, and every way to move numbers."""
    product = x @ y.T
    angle = jnp.arctan2(product, 1.0 + x[:, :2] ** 2)
    chosen = jnp.where((product > 0.3) & ~(x[:, :2] < 0.0) | (product == 0.0), jnp.sqrt(jnp.abs(product)), -angle)
    rates = jnp.exp(-(x**2)) + jnp.tanh(x) / (1.0 + jax.nn.sigmoid(x)) + jax.scipy.special.erf(x)
    powers = jnp.maximum(x, y[:1]) ** 3 + jnp.minimum(x, 0.5) ** -2 + jax.lax.rsqrt(1.0 + x * x) * jnp.floor(3.0 * x)
    others = jnp.stack([jnp.sign(x[0]), jnp.where(jnp.isfinite(x[1]), x[1], 0.0), (x[0] > 0.1).astype(float)])
    first, second = jnp.split(x, [1], axis=0)
    return chosen, rates.sum(axis=1), powers.max(axis=0), others.T[::-1], first + second[jnp.array([1, 0])]


def test_machine_code_has_the_numbers_of_jax():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 5 * LANES, 3, 3))
    x[0], y[1] = 0.0, 0.0
    y = y[:, :2]
    code = VectorCode(as_loops(everything, x[0], y[0]))
    given = np.concatenate([x.reshape(len(x), -1), y.reshape(len(y), -1)], axis=1).T
    found = code(given)
    expected = jax.vmap(lambda *row: jnp.concatenate([part.ravel() for part in everything(*row)]))(x, y)
    # The functions are right to a few units in the last place of numbers up to some hundred.
    np.testing.assert_allclose(found.T, expected, rtol=1e-12, atol=1e-14)
    order = rng.permutation(given.shape[1])[: 2 * LANES]
    assert np.array_equal(code(given[:, order]), found[:, order])


def test_extremes_with_what_is_no_number_are_none():
    nan = np.nan
    given = np.array([[1.0, nan, 2.0, nan, -1.0, 0.0, 3.0, -0.5], [nan, 1.0, 1.0, nan, 5.0, 0.0, -2.0, -0.25]])
    code = VectorCode(
        as_loops(lambda x, y: jnp.stack([jnp.maximum(x, y), jnp.minimum(x, y)]), given[0, 0], given[1, 0])
    )
    assert np.array_equal(code(given), [np.maximum(*given), np.minimum(*given)], equal_nan=True)


def test_stages_of_a_method():
    rng = np.random.default_rng(2)
    y, numbers, size, terms = (rng.standard_normal(shape) for shape in ((2, 16), (1, 16), 16, (4, 2, 16)))
    code = VectorCode(as_loops(lambda y, number: number * jnp.stack([y[1], -(y[0] ** 2)]), y[:, 0], numbers[0, 0]))
    weights = rng.standard_normal((4, 4))
    expected, moved = terms.copy(), y
    for stage in range(1, 4):
        moved = y + size * np.einsum("j,jnr->nr", weights[stage, :stage], expected[:stage])
        expected[stage] = numbers * np.stack([moved[1], -(moved[0] ** 2)])
    # Sums of a few numbers, rounded in another order, in squares of squares.
    np.testing.assert_allclose(code.stages(y, numbers, size, terms, weights), moved, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(terms, expected, rtol=1e-11, atol=1e-12)
    total = y + size * np.einsum("j,jnr->nr", weights[0], terms)
    np.testing.assert_allclose(code.combination(y, size, terms, weights[0]), total, rtol=1e-12, atol=1e-12)
    # Some stages after others, and weights of its own for each row.
    again = np.concatenate([terms[:2], np.zeros((2, 2, 16))])
    code.stages(y, numbers, size, again, weights, range(2, 4))
    assert np.array_equal(again, terms)
    own = rng.standard_normal((4, 16))
    total = y + size * np.einsum("jr,jnr->nr", own, terms)
    np.testing.assert_allclose(code.combination(y, size, terms, own), total, rtol=1e-12, atol=1e-12)


def test_what_has_no_machine_code_is_named():
    program = as_loops(lambda x: jax.scipy.special.erfinv(x), np.array([0.1, 0.2]))
    with pytest.raises(Unsupported, match="erf_inv"):
        VectorCode(program)
