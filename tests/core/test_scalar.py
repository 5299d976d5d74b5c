"""Programs written out in scalars: structure and constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.compiler.scalar import Unsupported, scalarize


def test_padding_and_what_constants_make_of_it():
    """Blocks and diagonals are padded arrays; known entries fold away, and unknown ones stay."""

    def function(x):
        known = jnp.where(jnp.arange(3) > 1, 2.0, jnp.maximum(1.0, jnp.asarray(0.5)))
        return jnp.block([[jnp.diag(x), known[:, None]], [jnp.ones((1, 3)), x[:1, None]]]), jnp.pad(x, (1, 2))

    x = np.random.default_rng(0).standard_normal((5, 3))
    program = scalarize(function, x[0])
    assert not program.ops  # nothing is computed, only put in place
    found = np.stack([np.asarray(v) for v in program.run([jnp.asarray(column) for column in x.T])], axis=1)
    for row, values in zip(found, x, strict=True):
        expected = np.concatenate([np.ravel(part) for part in function(jnp.asarray(values))])
        np.testing.assert_array_equal(row, expected)
    with pytest.raises(Unsupported, match="pad"):
        scalarize(lambda x: jax.lax.pad(x, jnp.asarray(0.0, x.dtype), [(-1, 0, 0)]), x[0])


def test_loops_of_known_length_are_written_out():
    """A loop over rows, forward or backward, with its index; sums along an axis; what the index decides folds away."""

    def function(A, x):
        def body(total, at):
            row, column = at
            kept = jnp.where(jnp.arange(3) >= row, column, 0.0)
            return total + kept * x[row], total[row] * kept

        forward = jax.lax.scan(body, x, (jnp.arange(3), A))
        backward = jax.lax.scan(body, x, (jnp.arange(3), A), reverse=True)
        sums = [jax.lax.cumsum(A, axis=axis, reverse=back) for axis in (0, 1) for back in (True, False)]
        return forward, backward, sums, jax.lax.scan(lambda total, y: (total + y, total), x[0], x)

    rng = np.random.default_rng(1)
    A, x = rng.standard_normal((3, 3)), rng.standard_normal(3)
    program = scalarize(function, A, x)
    result = np.array([np.asarray(v) for v in program.run([jnp.asarray(v) for v in (*A.ravel(), *x)])])
    expected = [np.ravel(leaf) for leaf in jax.tree.leaves(function(jnp.asarray(A), jnp.asarray(x)))]
    np.testing.assert_allclose(result, np.concatenate(expected), rtol=1e-14)
    assert {op.primitive.name for op in program.ops} == {"add", "mul"}
    with pytest.raises(Unsupported, match="slice at indices"):
        scalarize(lambda i, x: jax.lax.dynamic_slice(x, (i,), (1,)), jnp.asarray(1), x)


@pytest.mark.parametrize("name", ["erf", "tanh", "expm1", "gelu"])
def test_slopes_of_activations_are_written_in_plain_operations(name):
    """JAX has operations of its own for parts of some slopes, and new ones from version to version."""
    functions = {"erf": jax.lax.erf, "tanh": jnp.tanh, "expm1": jnp.expm1, "gelu": jax.nn.gelu}
    slope = jax.vmap(jax.grad(jax.grad(functions[name])))
    x = np.linspace(-2.0, 2.0, 9)
    program = scalarize(slope, x)
    plain = np.stack([np.asarray(value) for value in program.run(list(jnp.asarray(x)))])
    np.testing.assert_allclose(plain, slope(jnp.asarray(x)), rtol=1e-13, atol=1e-14)


def test_a_program_is_one_static_argument():
    """Not one for each of its operations, which took milliseconds at every call; equal programs compile once."""
    programs = [scalarize(lambda x: jnp.exp(x) * x, np.zeros(3)) for _ in range(2)]
    assert jax.tree.leaves(programs) == programs
    assert programs[0] is not programs[1] and programs[0] == programs[1] and hash(programs[0]) == hash(programs[1])
    assert scalarize(lambda x: jnp.exp(x) + x, np.zeros(3)) != programs[0]
