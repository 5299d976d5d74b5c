"""Streams of random numbers belong to a replica and a purpose, and to nothing else."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import twolayer as tl
from twolayer.core.random import Purpose, purpose_key, replica_key


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
