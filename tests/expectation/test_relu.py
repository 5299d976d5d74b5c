"""The relu integrals against independent routes: known kernels, sampling, homogeneity, degenerate covariances."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import Auto, ThresholdUnits, choose, estimate
from twolayer.expectation.closed import relu_averages
from twolayer.problem import Overlaps

from .test_closed_forms import moments, random_overlaps


@partial(jax.jit, static_argnums=(1, 2))
def four_fields(C, order, are_relu=(True, True)):
    return relu_averages.two_steps_and_two_units(C, are_relu, relu_averages.interpolation_rule(order))


def covariance(seed: int, duplicate: tuple[int, int] | None = None) -> np.ndarray:
    A = np.random.default_rng(seed).standard_normal((4, 5)) / np.sqrt(5)
    if duplicate:
        A[duplicate[1]] = A[duplicate[0]]
    return A @ A.T


@pytest.mark.parametrize("rho", [-1.0, -0.9, 0.0, 0.5, 1 - 1e-9, 1.0])
def test_two_fields_are_the_arc_cosine_kernels(rho):
    """E[theta theta] and E[relu relu] of unit fields by the angle; E[theta(x) relu(y)^2] through four fields."""
    angle = np.arccos(rho)
    one = jnp.ones(())
    assert float(relu_averages.orthant(jnp.asarray(rho), one, one)) == pytest.approx(
        (np.pi - angle) / (2 * np.pi), abs=1e-12
    )
    kernel = (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    assert float(relu_averages.two_units(jnp.asarray(rho), one, one)) == pytest.approx(kernel, abs=1e-12)
    C = np.array([[1.0, rho], [rho, 1.0]])[np.ix_([0, 0, 1, 1], [0, 0, 1, 1])]
    square = (np.pi - angle + np.sin(angle) * np.cos(angle)) / (2 * np.pi)
    # At correlation 1 - 1e-9 the conditional variances lose half of their digits.
    assert float(four_fields(jnp.asarray(C), 32)) == pytest.approx(square, abs=1e-12 if abs(rho) < 0.999 else 1e-6)


@pytest.mark.parametrize("are_relu", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("duplicate", [None, (0, 1), (2, 3), (0, 2), (1, 3)])
def test_four_fields_against_sampling(duplicate, are_relu):
    """10^6 samples, z < 5; duplicates make the covariance singular (one neuron twice, a student on its teacher)."""
    C = covariance(2, duplicate)
    values, vectors = np.linalg.eigh(C)
    root = vectors * np.sqrt(np.maximum(values, 0))
    x = np.random.default_rng(1).standard_normal((1_000_000, 4)) @ root.T
    if duplicate:
        x[:, duplicate[1]] = x[:, duplicate[0]]
    third, fourth = (
        np.maximum(x[:, i], 0) if kind else np.sign(x[:, i]) for i, kind in zip((2, 3), are_relu, strict=True)
    )
    sample = (x[:, 0] > 0) * (x[:, 1] > 0) * third * fourth
    value = float(four_fields(jnp.asarray(C), 32, are_relu))
    assert abs(sample.mean() - value) < 5 * sample.std() / 1000


@pytest.mark.slow
def test_four_fields_converge_with_the_order_of_the_rule():
    C = jnp.asarray(covariance(0))
    errors = [abs(float(four_fields(C, order) - four_fields(C, 64))) for order in (4, 8, 12)]
    assert errors[1] < errors[0] / 30 and errors[2] < errors[1] / 30


def test_four_fields_scale_and_factorise():
    C = covariance(3)
    scales = np.array([2.0, 0.5, 3.0, 0.1])
    scaled = float(four_fields(jnp.asarray(C * np.outer(scales, scales)), 32))
    assert scaled == pytest.approx(3.0 * 0.1 * float(four_fields(jnp.asarray(C), 32)), rel=1e-12)
    blocks = np.block([[C[:2, :2], np.zeros((2, 2))], [np.zeros((2, 2)), C[2:, 2:]]])
    product = relu_averages.orthant(*map(jnp.asarray, (C[0, 1], C[0, 0], C[1, 1]))) * relu_averages.two_units(
        *map(jnp.asarray, (C[2, 3], C[2, 2], C[3, 3]))
    )
    assert float(four_fields(jnp.asarray(blocks), 32)) == pytest.approx(float(product), rel=1e-12)
    swapped = C[np.ix_([1, 0, 3, 2], [1, 0, 3, 2])]
    assert float(four_fields(jnp.asarray(swapped), 32)) == pytest.approx(
        float(four_fields(jnp.asarray(C), 32)), rel=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, 0])
def test_moments_agree_with_the_cloud_within_its_error(rank):
    problem = tl.Problem(tl.Committee(2, "relu"), tl.Student(2, "relu"), tl.Gaussian(50), noise=0.2)
    engine = choose(problem).engine_of("phi_hd")
    assert isinstance(engine, ThresholdUnits)
    overlaps = random_overlaps(2, np.eye(2), 5, rank)
    cloud = estimate(Auto(engines=("Cloud",)).choose(problem), problem, overlaps)
    closed = moments(engine, problem, overlaps)
    for x, value, error in zip(*map(jax.tree.leaves, (closed, cloud.value, cloud.error)), strict=True):
        assert np.all(np.abs(x - value) <= error)


@pytest.mark.long
def test_perfect_recovery_is_a_fixed_point_with_finite_gradients():
    problem = tl.Problem(tl.Committee(2, "relu"), tl.Student(2, "relu"), tl.Gaussian(50))

    def excess(Q, M):
        return choose(problem).moments(problem, Overlaps(Q, M, jnp.eye(2), jnp.ones(2))).excess_risk

    value, gradients = jax.value_and_grad(excess, argnums=(0, 1))(jnp.eye(2), jnp.eye(2))
    assert abs(value) < 1e-15 and all(np.all(np.isfinite(gradient)) for gradient in gradients)
    start = tl.GivenOverlaps(np.eye(2), np.eye(2))
    still = tl.Problem(problem.target, problem.student, problem.inputs, start=start)
    result = tl.evolve(still, tl.SGD(0.5), tl.SaadSolla(), until=2.0, save=3)
    np.testing.assert_allclose(result.M.values[0], np.broadcast_to(np.eye(2), (3, 2, 2)), atol=1e-10)


@pytest.mark.long
def test_relu_committee_follows_direct_sgd():
    problem = tl.Problem(tl.Committee(2, "relu"), tl.Student(2, "relu"), tl.Gaussian(500), noise=0.05)
    tree = tl.compare(problem, tl.SGD(0.5), [tl.DirectSGD(), tl.SaadSolla()], until=3.0, save=8, replicas=12)
    assert tree.attrs["outcome"] == "agrees", tree.attrs["verdict"]
    assert np.max(tree["SaadSolla"].risk_error.values) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "distance", [0.0, 1e-7, pytest.param(1e-5, marks=pytest.mark.long), pytest.param(1e-2, marks=pytest.mark.long)]
)
def test_the_risk_has_the_gradient_of_the_force_where_students_nearly_are_targets(distance):
    """Two routes to -p dR/dw_j on all fields: the chain rule through Q and M, and the averages ``v``, at any distance.

    Root and arcsine, differentiated one by one, would lose all digits here.
    """
    X = np.eye(4)[[0, 1, 0, 1]]
    X[:2] += distance * np.random.default_rng(0).standard_normal((2, 4))
    omega = jnp.asarray(X @ X.T)
    problem = tl.Problem(tl.Committee(2, "relu"), tl.Student(2, "relu"), tl.Gaussian(50))
    engine = choose(problem).variants()[0]

    def risk(Q, M):
        return engine.parts(problem, Overlaps(Q, M, jnp.eye(2), jnp.ones(2)), ("excess_risk",))["excess_risk"]

    Q, M = omega[:2, :2], omega[:2, 2:]
    by_Q, by_M = jax.grad(risk, argnums=(0, 1))(Q, M)
    force = engine.parts(problem, Overlaps(Q, M, jnp.eye(2), jnp.ones(2)), ("v",))["v"]
    found = -2.0 * jnp.concatenate([(by_Q + by_Q.T) @ Q + by_M @ M.T, (by_Q + by_Q.T) @ M + by_M], axis=1)
    # A few roundings of numbers of order one; the forces themselves are of the order of the distance.
    np.testing.assert_allclose(found, force, atol=1e-15)
