"""SGD: what it accepts, its defaults, and the clock."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.training import Clock
from twolayer.training.update import at_rest, queried, update

PROBLEM = tl.Problem(tl.Committee(2, "erf"), tl.Student(4, "erf"), tl.Gaussian(50))
DATA = tl.Problem(tl.Labels(), tl.Student(2, "erf"), tl.Samples(np.ones((6, 3)), np.ones(6)))


def test_defaults():
    training = tl.SGD(0.5)
    assert training.batch_size == 1 and training.samples_per_step(PROBLEM) == 1
    assert training.is_fresh and not training.is_spherical and not training.has_momentum
    assert training.layer_ratio == 0.0 and training.weight_decay == 0.0
    assert (training.reuse, training.layers, training.constraint) == (tl.Fresh(), tl.First(), tl.Free())
    reused = tl.SGD(0.5, reuse=tl.Reused(3.0))
    assert reused.batch_size is None and not reused.is_fresh
    assert tl.Both().ratio == 1.0


def test_choices():
    training = tl.SGD(0.5, batch_size=3, layers=tl.Both(0.25), constraint=tl.Sphere(), momentum=0.9)
    assert training.layer_ratio == 0.25 and training.is_spherical and training.has_momentum
    assert training.batch_size == 3


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"learning_rate": 0.0}, "`learning_rate` must be a finite number above 0, but is 0.0"),
        ({"learning_rate": -0.1}, "`learning_rate`"),
        ({"learning_rate": float("nan")}, "`learning_rate`"),
        ({"learning_rate": float("inf")}, "`learning_rate`"),
        ({"learning_rate": "0.1"}, "`learning_rate`"),
        ({"learning_rate": None}, "`learning_rate`"),
        ({"learning_rate": True}, "`learning_rate`"),
        ({"learning_rate": [0.1]}, "`learning_rate`"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1, but is 0"),
        ({"batch_size": -1}, "`batch_size`"),
        ({"weight_decay": -1e-9}, "`weight_decay` must be a finite number at least 0"),
        ({"weight_decay": float("nan")}, "`weight_decay`"),
        ({"momentum": 1.0}, "`momentum` must be a finite number at least 0 and below 1"),
        ({"momentum": -0.1}, "`momentum`"),
    ],
)
def test_bad_values_are_refused(arguments, words):
    with pytest.raises(InvalidInput, match=words):
        tl.SGD(**({"learning_rate": 0.1} | arguments))


def test_bad_types_are_refused_without_the_type_checker_too(fresh_python):
    """The checker of the test session would answer first; users do not have it."""
    program = """
import twolayer as tl
bad = [("batch_size", 2.5), ("batch_size", "3"), ("batch_size", True), ("reuse", "Fresher"), ("reuse", tl.First()),
       ("layers", "Reused"), ("layers", 1.0), ("constraint", "Fresh"), ("constraint", tl.Fresh())]
for field, value in bad:
    try:
        tl.SGD(0.1, **{field: value})
    except tl.InvalidInput as error:
        assert f"`{field}`" in str(error), error
    else:
        print("accepted", field, value)
assert tl.SGD(0.1, batch_size=4.0).batch_size == 4
"""
    assert fresh_python(program) == ""


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: tl.Reused(0.0), "`alpha`"),
        (lambda: tl.Reused(-1.0), "`alpha`"),
        (lambda: tl.Reused(float("inf")), "`alpha`"),
        (lambda: tl.Both(-0.5), "`ratio`"),
        (lambda: tl.Both("1"), "`ratio`"),
    ],
)
def test_bad_choices_are_refused(build, words):
    with pytest.raises(InvalidInput, match=words):
        build()


@pytest.mark.parametrize("alpha, size", [(3.0, 150), (0.5, 25), (0.001, 1), (0.07, 4)])
def test_the_size_of_a_reused_set(alpha, size):
    training = tl.SGD(0.1, reuse=tl.Reused(alpha))
    assert training.set_size(PROBLEM) == size
    assert training.samples_per_step(PROBLEM) == size  # the whole set unless batch_size says less


def test_sets_and_batches():
    assert tl.SGD(0.1).set_size(PROBLEM) is None
    assert tl.SGD(0.1, batch_size=10**6).samples_per_step(PROBLEM) == 10**6  # fresh samples never run out
    assert tl.SGD(0.1, batch_size=7, reuse=tl.Reused(1.0)).samples_per_step(PROBLEM) == 7
    assert tl.SGD(0.1, batch_size=50, reuse=tl.Reused(1.0)).samples_per_step(PROBLEM) == 50
    with pytest.raises(InvalidInput, match="`batch_size` is 51, but the reused set has 50 samples"):
        tl.SGD(0.1, batch_size=51, reuse=tl.Reused(1.0)).samples_per_step(PROBLEM)


def test_a_data_set_is_the_set():
    assert tl.SGD(0.1).set_size(DATA) == 6 and tl.SGD(0.1).samples_per_step(DATA) == 1
    assert tl.SGD(0.1, reuse=tl.Reused(99.0)).samples_per_step(DATA) == 6
    assert tl.SGD(0.1, batch_size=2, reuse=tl.Reused(99.0)).samples_per_step(DATA) == 2


@given(
    rate=st.floats(1e-3, 10.0),
    p=st.integers(1, 100),
    d=st.integers(2, 10**6),
    batch=st.integers(1, 10**5),
    step=st.integers(0, 10**9),
)
def test_the_clock(rate, p, d, batch, step):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d))
    clock = tl.SGD(rate, batch_size=batch).clock(problem)
    samples, time = clock.samples(step), clock.time(step)
    assert samples == batch * step
    assert time == pytest.approx(rate * samples / (p * d), rel=1e-13)  # a few roundings
    assert clock.time_per_step == pytest.approx(rate * batch / (p * d), rel=1e-13)
    assert clock.steps(time) == step  # and back, exactly
    assert clock.steps(clock.time(step) + 0.4 * clock.time_per_step) == step or step > 10**8  # the nearest step


def test_the_clock_takes_arrays():
    clock = Clock(time_per_sample=0.5, samples_per_step=4)
    np.testing.assert_array_equal(clock.steps([0.0, 0.9, 1.1, 4.0]), [0, 0, 1, 2])
    np.testing.assert_array_equal(clock.time(np.arange(3)), [0.0, 2.0, 4.0])
    np.testing.assert_array_equal(clock.samples(np.arange(3)), [0, 4, 8])
    assert np.asarray(clock.steps([1.0])).dtype == np.int64


def test_one_gamma_for_every_batch_size():
    """(n_b, gamma_d) = (1, gamma/d) and (d, gamma) of the papers take the same time per sample."""
    one, many = tl.SGD(0.3).clock(PROBLEM), tl.SGD(0.3, batch_size=50).clock(PROBLEM)
    assert one.time_per_sample == many.time_per_sample == pytest.approx(0.3 / (4 * 50), rel=1e-15)
    assert many.time_per_step == pytest.approx(0.3 / 4, rel=1e-14)  # d samples: gamma / p


def test_numbers_are_leaves_and_sizes_are_not():
    training = tl.SGD(0.3, batch_size=7, layers=tl.Both(0.5), weight_decay=0.1, momentum=0.2)
    assert sorted(jax.tree.leaves(training)) == [0.1, 0.2, 0.3, 0.5]
    assert jax.grad(lambda rate: tl.SGD(rate).learning_rate ** 2)(3.0) == 6.0
    assert jax.jit(lambda m: jnp.asarray(tl.SGD(0.1, momentum=m).has_momentum))(0.0)  # unknown when compiling: kept


@pytest.mark.parametrize("momentum", [0.6, tl.Nesterov(0.6)])
def test_momentum_on_a_parabola(momentum):
    """One row of weights pulled to the origin: a plain loop with the published formulas."""
    training = tl.SGD(0.5, batch_size=50, momentum=momentum, weight_decay=0.1)
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50))
    w, v, rate, keep = np.array([[1.0, -2.0, 0.5]]), np.zeros((1, 3)), 0.5 / 50, 1 - 0.5 * 0.1
    weights = at_rest(training, jnp.asarray(w), jnp.ones(1))
    for _ in range(5):
        ahead = w + 0.6 * v if isinstance(momentum, tl.Nesterov) else w
        v = 0.6 * v - rate * 20.0 * ahead
        w = keep * w + v
        gradient = 20.0 * queried(training, weights).W, jnp.zeros(1)
        weights = update(problem, training, weights, jnp.ones(1), gradient)
    np.testing.assert_allclose(weights.W, w, rtol=1e-13)


def test_heavy_ball_is_its_number():
    assert tl.SGD(0.1, momentum=tl.HeavyBall(0.3)) == tl.SGD(0.1, momentum=0.3)
    with pytest.raises(tl.InvalidInput, match="beta"):
        tl.Nesterov(1.0)
    with pytest.raises(tl.InvalidInput, match="momentum"):
        tl.SGD(0.1, momentum="nesterov")


def test_descriptions_without_momentum_say_so():
    training = tl.SGD(0.1, batch_size=5, momentum=tl.Nesterov(0.3))
    for description in (tl.SDE(), tl.MeanField(), tl.HDMF()):
        answer = description.applies(PROBLEM, training)
        assert not answer.ok and "Nesterov" in answer.statement
    for description in (tl.DirectSGD(), tl.OverlapSGD(), tl.BatchMap(), tl.SaadSolla()):
        assert description.applies(PROBLEM, training).ok
