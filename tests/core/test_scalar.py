"""Programs written out in scalars: structure and constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.core.scalar import Unsupported, scalarize


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
