"""Streams of random numbers belong to a replica and a purpose, and to nothing else."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.precision import double
from twolayer.core.random import Purpose, purpose_key, replica_key, seed_key


def data(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_keys_differ_by_seed_replica_and_purpose():
    keys = {
        data(purpose_key(replica_key(seed, replica), purpose))
        for seed in range(3)
        for replica in range(5)
        for purpose in Purpose
    }
    assert len(keys) == 3 * 5 * len(Purpose)


def test_purposes_keep_their_numbers():
    # Part of "same seed, same numbers": a new purpose takes a new number, none is renumbered.
    fixed = {"SECOND_LAYER": 1, "START": 2, "FRAME": 3, "DATA": 4, "LABEL_NOISE": 5, "DATASET": 6}
    assert {purpose.name: purpose.value for purpose in Purpose}.items() >= fixed.items()
    assert len({purpose.value for purpose in Purpose}) == len(Purpose)


def test_the_stream_of_a_replica_does_not_depend_on_their_number():
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf", "gaussian"), tl.Gaussian(20))
    keys = jnp.stack([replica_key(4, replica) for replica in range(5)])
    draw = eqx.filter_jit(problem.draw_many)
    few, many = draw(keys[:2]), draw(keys)
    for name in ("Q", "M", "a"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:2])
    assert np.abs(np.diff(many.M[:, 0, 0])).min() > 1e-6  # replicas do differ


def test_start_and_second_layer_are_streams_of_their_own():
    fixed, drawn = (
        tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf", layer), tl.Gaussian(20)).draw(replica_key(0, 0))
        for layer in ("ones", "gaussian")
    )
    np.testing.assert_array_equal(fixed.M, drawn.M)
    key = replica_key(0, 0)
    start = tl.RandomStart().draw(purpose_key(key, Purpose.START), 3, jnp.eye(2), 20)
    np.testing.assert_array_equal(drawn.Q, start.Q)
    np.testing.assert_array_equal(drawn.a, jax.random.normal(purpose_key(key, Purpose.SECOND_LAYER), (3,)))


SETTINGS = {"jax_threefry_partitionable": False, "jax_default_prng_impl": "rbg", "jax_random_seed_offset": 7}


@contextlib.contextmanager
def global_settings(settings):
    """Everything that follows as if the user had switched JAX so."""
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def results_of_a_seed():
    """Numbers of every kind of draw: starts, second layers, frames, data sets, samples, phases."""
    inputs = tl.Gaussian(20)
    gaussian = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf", "gaussian"), inputs, noise=0.1)
    signs = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf", "rademacher"), inputs, noise=0.1)
    step = tl.SGD(0.5)
    runs = [
        (signs, tl.SGD(0.5, batch_size=4, reuse=tl.Reused(alpha=1.0)), tl.DirectSGD()),
        (gaussian, tl.Schedule([step, step], [0.1]), tl.OverlapSGD(backend="xla")),
    ]
    results = [tl.evolve(*run, until=0.3, save=2, replicas=2, seed=5) for run in runs]
    return [data[name].values for data in results for name in ("Q", "M", "a", "risk")]


@pytest.mark.slow
def test_global_settings_of_jax_do_not_change_the_numbers_of_a_seed():
    expected = results_of_a_seed()
    with global_settings(SETTINGS):
        results = results_of_a_seed()
    for before, now in zip(expected, results, strict=True):
        np.testing.assert_array_equal(before, now)


def test_each_setting_alone_leaves_keys_and_draws_as_they_are():
    def draws():
        with double():
            key = purpose_key(replica_key(5, 2), Purpose.START)
            return data(key), np.asarray(jax.random.normal(key, (7,))).tolist()

    expected = draws()
    for name, value in SETTINGS.items():
        with global_settings({name: value}):
            assert draws() == expected, name


def test_a_seed_is_the_key_that_jax_makes_of_it_by_default():
    for seed in (0, 5, 2**31 - 1, 2**40 + 3):
        assert data(seed_key(seed)) == data(jax.random.key(seed))
