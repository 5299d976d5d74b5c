"""Methods beyond plain SGD: their steps, their properties, and every description that covers them."""

import re
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.precision import double
from twolayer.specification.codec import from_json, to_json
from twolayer.training.methods import commutes_with_rotations, gain, is_linear

CLIP = 0.4


class Clipped(tl.AbstractMethod):
    """Heavy ball on gradients whose rows are clipped by their lengths: not linear, but it turns with the inputs."""

    def advance(self, W, V, move):
        lengths = jnp.sqrt(jnp.sum(move**2, axis=1, keepdims=True))
        V = 0.5 * V + move * jnp.minimum(1.0, CLIP / jnp.maximum(lengths, 1e-300))
        return W + V, V


class Averaged(tl.AbstractMethod):
    """Two velocities of which the second follows the first."""

    memory: ClassVar[int] = 2

    def advance(self, W, V, move):
        fast, slow = jnp.split(V, 2)
        fast = 0.3 * fast + move
        slow = 0.6 * slow + 0.4 * fast
        return W + slow, jnp.concatenate([fast, slow])


METHODS = {"Nesterov": tl.Nesterov(0.6), "clipped": Clipped(), "averaged": Averaged()}


def problem_of(d: int, activation: str = "erf") -> tl.Problem:
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3], [0.1]])
    return tl.Problem(tl.MultiIndex("z1 + 0.3*z1**2", k=1), tl.Student(2, activation), tl.Gaussian(d), start, noise=0.1)


@pytest.mark.parametrize(
    ("method", "rotates", "linear"),
    [
        (tl.HeavyBall(0.9), True, True),
        (tl.Nesterov(0.9), True, True),
        (Averaged(), True, True),
        (Clipped(), True, False),
        (tl.SignDescent(), False, False),
        (tl.SignDescent(0.5), False, False),
        (tl.RMSProp(), False, False),
        (tl.Adam(), False, False),
    ],
)
def test_properties_are_found(method, rotates, linear):
    assert commutes_with_rotations(method) == rotates
    assert is_linear(method) == linear


def test_the_gain_is_the_whole_response_to_one_move():
    with double():
        for method in (tl.HeavyBall(0.9), tl.Nesterov(0.9), Averaged()):
            W, V = method.advance(jnp.zeros((1, 1)), jnp.zeros((method.memory, 1)), jnp.ones((1, 1)))
            for _ in range(400):
                W, V = method.advance(W, V, jnp.zeros((1, 1)))
            assert float(gain(method)) == pytest.approx(float(W[0, 0]), rel=1e-12)
    assert float(gain(tl.HeavyBall(0.75))) == pytest.approx(4.0, rel=1e-6)


def test_methods_on_coordinates_take_the_steps_of_a_plain_loop():
    rng = np.random.default_rng(3)
    gradients, W = rng.normal(size=(5, 2, 4)), rng.normal(size=(2, 4))
    m, v, signed, squares = (np.zeros((2, 4)) for _ in range(4))
    expected = {"Adam": W.copy(), "RMSProp": W.copy(), "SignDescent": W.copy()}
    for t, g in enumerate(gradients, start=1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        expected["Adam"] -= 0.1 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-3)
        squares = 0.7 * squares + 0.3 * g * g
        expected["RMSProp"] -= 0.1 * g / (np.sqrt(squares) + 1e-3)
        signed = 0.5 * signed + 0.5 * g
        expected["SignDescent"] -= 0.1 * np.sign(signed)
    with double():
        for method in (tl.Adam(0.8, 0.9, 1e-3), tl.RMSProp(0.7, 1e-3), tl.SignDescent(0.5)):
            weights, memory = jnp.asarray(W), jnp.zeros((2 * method.memory, 4))
            for g in gradients:
                weights, memory = method.step(weights, memory, jnp.asarray(g), 0.1)
            np.testing.assert_allclose(weights, expected[type(method).__name__], rtol=1e-12)


SLOW = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "batch", "constraint"),
    [
        pytest.param("Nesterov", 1, tl.Free(), marks=pytest.mark.slow),
        ("clipped", 3, tl.Sphere()),
        pytest.param("Nesterov", 3, tl.Sphere(), marks=SLOW),
        pytest.param("clipped", 1, tl.Free(), marks=SLOW),
        pytest.param("averaged", 1, tl.Sphere(), marks=SLOW),
        pytest.param("averaged", 3, tl.Free(), marks=SLOW),
    ],
)
def test_the_overlap_process_has_the_law_of_sgd(name, batch, constraint, check_mean):
    method, replicas = METHODS[name], 5_000
    problem, training = problem_of(7), tl.SGD(0.8, batch, constraint=constraint, weight_decay=0.1, method=method)
    until = 4 * batch * 0.8 / (2 * 7)
    runs = [
        tl.evolve(problem, training, description, until=until, save=2, replicas=replicas, seed=seed).isel(time=-1)
        for seed, description in enumerate((tl.OverlapSGD(), tl.DirectSGD()))
    ]
    for name in ("Q", "M"):
        first, second = (run[name].values.reshape(replicas, -1) for run in runs)
        for power in (1, 2):
            moved = first.std(axis=0) > 1e-9  # lengths do not move on the sphere
            check_mean((first**power - second[::-1] ** power)[:, moved], np.zeros(moved.sum()), name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "constraint"),
    [
        (tl.HeavyBall(0.8), tl.Sphere()),
        pytest.param(tl.HeavyBall(0.8), tl.Free(), marks=SLOW),
        pytest.param(tl.Nesterov(0.8), tl.Free(), marks=SLOW),
        pytest.param(tl.Nesterov(0.8), tl.Sphere(), marks=SLOW),
    ],
)
def test_small_batches_follow_the_ode_with_the_gain(method, constraint, check_mean):
    """The mean of runs is off by order 1/d, here far below the standard error."""
    training = tl.SGD(0.2, constraint=constraint, layers=tl.Both(0.5), weight_decay=0.1, method=method)
    problem = problem_of(1000)
    runs, ode = (
        tl.evolve(problem, training, description, until=1.0, save=3, replicas=replicas)
        for description, replicas in ((tl.OverlapSGD(), 200), (tl.SaadSolla(), 1))
    )
    check_mean(runs.M[:, -1].values, ode.M[0, -1].values)
    check_mean(runs.a[:, -1].values, ode.a[0, -1].values)
    plain = tl.evolve(problem, tl.SGD(0.2, constraint=constraint), tl.SaadSolla(), until=1.0, save=3)
    assert abs(float(plain.M[0, -1, 0, 0] - ode.M[0, -1, 0, 0])) > 0.1


@pytest.mark.parametrize(
    "method", [tl.Nesterov(0.6), pytest.param(Clipped(), marks=SLOW), pytest.param(Averaged(), marks=SLOW)]
)
def test_large_batches_follow_the_map(method, check_mean):
    problem, training = problem_of(300), tl.SGD(0.5, 600, constraint=tl.Sphere(), method=method)
    runs, limit = (
        tl.evolve(problem, training, description, until=2.0, save=3, replicas=replicas)
        for description, replicas in ((tl.OverlapSGD(), 100), (tl.BatchMap(), 1))
    )
    shift = 2.0 / 300  # of order 1/n_b, in units of the overlaps
    deviation = np.abs(runs.M[:, -1].values.mean(axis=0) - limit.M[0, -1].values)
    assert np.all(deviation < 4 * runs.M[:, -1].values.std(axis=0) / 10 + shift)


@pytest.mark.parametrize("method", [pytest.param(tl.RMSProp(), marks=SLOW), tl.Adam()])
def test_methods_on_coordinates_are_simulated_and_refused_elsewhere(method):
    training = tl.SGD(0.2, method=method)
    result = tl.evolve(problem_of(20), training, tl.DirectSGD(), until=1.0, save=3, replicas=50)
    assert float(result.excess_risk[:, -1].mean()) < float(result.excess_risk[:, 0].mean())
    for description in (tl.OverlapSGD(), tl.SaadSolla(), tl.BatchMap()):
        with pytest.raises(tl.NotApplicable, match="does not commute with rotations"):
            tl.evolve(problem_of(20), training, description, until=1.0)
    assert from_json(to_json(training), tl.SGD) == training


@pytest.mark.parametrize(
    "method, batch, words",
    [
        (Clipped(), 1, "not linear in the gradient: with 1 sample a step it acts on single gradients.*`OverlapSGD`"),
        (Clipped(), 40, "not linear in the gradient: `BatchMap` describes it on large batches"),
        (tl.Adam(), 4, "rotations of the inputs: with 4 samples a step its denominators are random"),
        (tl.RMSProp(), 1, "with 1 sample a step its denominators are random, since they hold the squared gradients"),
        (tl.RMSProp(), 40, "after a step on a large batch the coordinates of the weights are not normal any more"),
    ],
)
def test_a_method_without_an_ode_is_refused_with_the_reason(method, batch, words):
    applies = tl.SaadSolla().applies(problem_of(20), tl.SGD(0.2, batch, method=method))
    assert not applies.ok and re.search(words, applies.statement)


def test_momentum_and_method_are_one_choice():
    assert tl.SGD(0.2, method=tl.HeavyBall(0.5)) == tl.SGD(0.2, momentum=0.5)
    assert tl.SGD(0.2, momentum=tl.Nesterov(0.5)) == tl.SGD(0.2, method=tl.Nesterov(0.5))
    with pytest.raises(tl.InvalidInput, match="two names of one choice"):
        tl.SGD(0.2, momentum=0.5, method=tl.Nesterov())
    with pytest.raises(tl.InvalidInput, match="`method`"):
        tl.SGD(0.2, method=0.5)
