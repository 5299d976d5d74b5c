"""The kernels for a GPU, interpreted on a CPU, against XLA: the same random numbers, so the same steps to rounding."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.ask import Ask, make_plan
from twolayer.compiler import loops
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.simulation import direct, direct_kernels, direct_spans, drivers, overlap, overlap_sgd
from twolayer.specification.fields import as_data

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU, on which test_gpu.py runs")

NOTHING = Watch(False, False)
CHOICES = [{"layers": tl.Both(0.7), "weight_decay": 0.2}, {"constraint": tl.Sphere(), "momentum": 0.5}]


def setting(d, **choices):
    return as_data(
        (tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(d), noise=0.1), tl.SGD(0.1, **choices))
    )


def begun(replicas, **choices):
    """The overlap process of some replicas at its start."""
    problem, training = setting(200, **choices)
    made = overlap.make_setting(problem, training)
    keys = jax.vmap(lambda n: replica_key(0, n))(jnp.arange(replicas))
    return made, overlap_sgd._begin(made, NOTHING, problem.draw_many(keys), keys, np.zeros((replicas, 2)))


def assert_same(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-13)


@pytest.mark.parametrize("choices", CHOICES)
def test_steps_taken_several_at_a_time_are_those_of_xla(choices, monkeypatch):
    """Several chunks for each replica, of which the last is not full, and steps that begin within a span."""
    monkeypatch.setattr(direct_spans, "MAX_AHEAD", 2)
    monkeypatch.setattr(direct_spans, "MAX_TURNS", 2)
    problem, training = setting(531, **choices)
    plan = make_plan(problem, training, Ask(until=1.0, save=2, replicas=2, seed=0))
    weights, frozen = direct._prepare("single", problem, training, plan.starts, plan.keys)
    steps = direct_kernels.written_out(problem, training)
    span = direct_spans._span(steps)
    assert span.ahead == 2 and span.chunks == 3 and span.width > steps.quarter
    begin, end = np.asarray(5), np.asarray(12)
    expected = direct._advance("single", problem, training, weights, frozen, begin, end)
    advanced = direct_spans.advance_spans(steps, weights, frozen, begin, end)
    assert_same(advanced, expected)
    # A run that is cut at the end of a span has the same bits.
    cut = direct_spans.advance_spans(steps, weights, frozen, begin, np.asarray(8))
    cut = direct_spans.advance_spans(steps, cut, frozen, np.asarray(8), end)
    assert all(np.array_equal(x, y) for x, y in zip(cut, advanced, strict=True))


def test_replicas_advanced_by_the_kernel_are_those_of_xla():
    """The last block of replicas is not full."""
    made, run = begun(3, constraint=tl.Sphere())
    program, span = drivers.written_out(made, NOTHING), (np.asarray(3), np.asarray(9))
    kernel, vectors = (
        drivers.advance_compiled(eqx.Partial(loop, program), run, *span) for loop in (loops.by_kernel, loops.by_vectors)
    )
    assert_same(kernel, vectors)


@pytest.mark.parametrize("choices", CHOICES)
def test_sums_over_a_batch_are_those_of_xla(choices, monkeypatch):
    """Several blocks that take several turns, of which the last is not full."""
    monkeypatch.setattr(loops, "MAX_BLOCKS", 3)
    made, run = begun(2, batch_size=1000, **choices)
    begin, end = np.asarray(3), np.asarray(5)
    expected = drivers.advance_xla(made, NOTHING, run, begin, end)
    sum_batch = drivers.sums_written_out(made)
    assert_same(drivers.advance_xla(made, NOTHING, run, begin, end, sum_batch=sum_batch), expected)


def test_no_more_products_than_registers():
    """Wide students take fewer steps at a time, but at least one."""
    for p, k, ahead in ((1, 1, 8), (4, 2, 6), (8, 8, 3)):
        problem = tl.Problem(tl.Committee(k, "square"), tl.Student(p, "square"), tl.Gaussian(20_000))
        span = direct_spans._span(direct_kernels.written_out(*as_data((problem, tl.SGD(0.1)))))
        assert span.ahead == ahead and (span.rows + k) * ahead + len(span.pairs) <= direct_spans.MAX_PRODUCTS
