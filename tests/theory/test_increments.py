"""The parts of order 1/d, each against a brute-force average or the formula with a pseudo-inverse."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import MOMENTS, choose, increment_covariance
from twolayer.problem import Overlaps
from twolayer.theory.motion.drift import Change, drift, pack, tangent, unpack
from twolayer.theory.motion.increments import _second_order, _square_of_force, corrections, moving_entries

P, K = 3, 2


def random_overlaps(rank: int = P + K) -> Overlaps:
    A = np.random.default_rng(0).standard_normal((P + K, rank))
    A[P:, :K] += 2 * np.eye(K)
    omega = A @ A.T / rank
    a = np.array([1.0, -0.5, 0.7])
    return Overlaps(*(jnp.asarray(x) for x in (omega[:P, :P], omega[:P, P:], omega[P:, P:], a)))


def test_one_vector_and_back():
    """a, then M row by row, then the pairs j <= l of Q."""
    x = jnp.arange(P + P * K + P * (P + 1) / 2)
    change = unpack(x, P, K)
    np.testing.assert_array_equal(change.a, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(change.M, [[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    np.testing.assert_array_equal(change.Q, [[9.0, 10.0, 11.0], [10.0, 12.0, 13.0], [11.0, 13.0, 14.0]])
    np.testing.assert_array_equal(pack(change), x)


def test_bringing_rows_back_to_second_order():
    """The mean over random increments, brought back exactly: what is left after both orders is of the third."""
    overlaps = random_overlaps()
    steps = np.random.default_rng(1).standard_normal((40, P + P * K + P * (P + 1) // 2))
    mean, S = jnp.asarray(steps.mean(axis=0)), jnp.asarray(steps.T @ steps / len(steps))
    first, second = tangent(overlaps, unpack(mean, P, K)), _second_order(overlaps, S)
    Q, M = np.asarray(overlaps.Q), np.asarray(overlaps.M)

    def left(eta):
        total = np.zeros((P, P)), np.zeros((P, K))
        for step in steps:
            change = unpack(jnp.asarray(step), P, K)
            new_Q, new_M = Q + eta * np.asarray(change.Q), M + eta * np.asarray(change.M)
            scale = np.sqrt(np.diagonal(Q) / np.diagonal(new_Q))
            total[0][:] += (scale[:, None] * new_Q * scale - Q) / len(steps)
            total[1][:] += (scale[:, None] * new_M - M) / len(steps)
        rest = [x - eta * y - eta**2 * z for x, y, z in zip(total, first[:2], second[:2], strict=True)]
        return max(float(np.max(np.abs(x))) for x in rest)

    sizes = [left(eta) for eta in (2e-2, 1e-2, 5e-3)]
    np.testing.assert_allclose(np.log2(np.array(sizes[:-1]) / sizes[1:]), 3.0, atol=0.35)
    np.testing.assert_array_equal(np.diagonal(second.Q), 0.0)


@pytest.mark.parametrize("rank", [P + K, 3])
def test_the_square_of_the_force(rank):
    """v Omega^+ v^T from its parts within and outside the target's span, also where Omega has lost rank."""
    overlaps = random_overlaps(rank)
    target = tl.Committee(K, "erf", P=np.asarray(overlaps.P))
    problem = tl.Problem(target, tl.Student(P, "erf"), tl.Gaussian(50))
    moments = eqx.filter_jit(choose(problem).moments)(problem, overlaps)
    v = np.asarray(moments.v)
    expected = v @ np.linalg.pinv(np.asarray(overlaps.omega), rcond=1e-12, hermitian=True) @ v.T
    np.testing.assert_allclose(_square_of_force(moments, overlaps)[0], expected, atol=1e-12)


def test_the_tangent_is_linear_and_keeps_lengths():
    overlaps = random_overlaps()
    rng = np.random.default_rng(2)
    x, y = (unpack(jnp.asarray(rng.standard_normal(P + P * K + P * (P + 1) // 2)), P, K) for _ in range(2))
    both = Change(*(u + 2.0 * v for u, v in zip(x, y, strict=True)))
    one, other, sum_of_both = (pack(tangent(overlaps, change)) for change in (x, y, both))
    np.testing.assert_allclose(sum_of_both, one + 2.0 * other, atol=1e-13)
    np.testing.assert_array_equal(np.diagonal(tangent(overlaps, x).Q), 0.0)


@pytest.mark.parametrize(
    ("layers", "constraint", "entries"),
    [
        (tl.First(), tl.Free(), [*range(3, 15)]),
        (tl.First(), tl.Sphere(), [*range(3, 9), 10, 11, 13]),
        (tl.Both(), tl.Sphere(), [0, 1, 2, *range(3, 9), 10, 11, 13]),
        (tl.Second(), tl.Free(), [0, 1, 2]),
        (tl.Second(), tl.Sphere(), [0, 1, 2]),
    ],
)
def test_what_is_frozen_does_not_move(layers, constraint, entries):
    """Neither by noise, nor by the mean, nor by its corrections."""
    overlaps = random_overlaps()
    target = tl.Committee(K, "square", P=np.asarray(overlaps.P))
    problem = tl.Problem(target, tl.Student(P, "square"), tl.Gaussian(50), noise=0.1)
    training = tl.SGD(0.1, layers=layers, constraint=constraint, weight_decay=0.3)
    assert moving_entries(problem, training).tolist() == entries
    engine = choose(problem, (*MOMENTS, "covariance")).variants()[0]
    moments = engine.moments(problem, overlaps)
    sigma = increment_covariance(problem, training, engine.parts(problem, overlaps, ("covariance",))["covariance"])
    small = corrections(problem, training, engine, overlaps, sigma, 1e-3)
    frozen = np.setdiff1d(np.arange(15), entries)
    for change in (drift(problem, training, overlaps, moments), small):
        x = np.asarray(pack(change))
        np.testing.assert_array_equal(x[frozen], 0.0)
        assert np.all(x[entries] != 0.0)
