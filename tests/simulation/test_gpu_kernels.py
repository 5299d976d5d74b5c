"""The kernels for a GPU, interpreted on a CPU, against XLA: the same random numbers, so the same steps to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.compiler import loops
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.simulation import drivers, overlap, overlap_sgd
from twolayer.specification.fields import as_data

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU, on which test_gpu.py runs")

CHOICES = [{"layers": tl.Both(0.7), "weight_decay": 0.2}, {"constraint": tl.Sphere(), "momentum": 0.5}]


def setting(d, **choices):
    return as_data(
        (tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(d), noise=0.1), tl.SGD(0.1, **choices))
    )


def assert_same(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-13)


@pytest.mark.parametrize("choices", CHOICES)
def test_sums_over_a_batch_are_those_of_xla(choices, monkeypatch):
    """Several blocks that take several turns, of which the last is not full."""
    monkeypatch.setattr(loops, "MAX_BLOCKS", 3)
    problem, training = setting(200, batch_size=1000, **choices)
    made, nothing = overlap.make_setting(problem, training), Watch(False, False)
    keys = jax.vmap(lambda n: replica_key(0, n))(jnp.arange(2))
    run = overlap_sgd._begin(made, nothing, problem.draw_many(keys), keys, np.zeros((2, 2)))
    begin, end = np.asarray(3), np.asarray(5)
    expected = drivers.advance_xla(made, nothing, run, begin, end)
    sum_batch = drivers.sums_written_out(made)
    assert_same(drivers.advance_xla(made, nothing, run, begin, end, sum_batch=sum_batch), expected)
