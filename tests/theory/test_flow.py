"""The runner of flows: thresholds are crossed at roots of the solution, whatever was saved; errors are bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

import twolayer as tl
from tests.systems import phase_retrieval, time_to_overlap
from twolayer.description import Plan, Status
from twolayer.expectation.engine import by_coarser
from twolayer.problem import Overlaps
from twolayer.theory.motion.flow import AbstractFlow, Accuracy, Flows, Saved, follow

PROBLEM = tl.Problem(
    tl.PhaseRetrieval(),
    tl.Student(2, "square"),
    tl.Gaussian(300),
    start=tl.GivenOverlaps(Q=[[1.0, 0.1], [0.1, 0.8]], M=[[0.3], [-0.2]]),
)
THRESHOLDS = {"risk_threshold": 0.3, "overlap_threshold": 0.8}


SLOW = [pytest.param(tl.SaadSolla(), marks=pytest.mark.long), pytest.param(tl.MeanField(), marks=pytest.mark.long)]


@pytest.mark.slow
@pytest.mark.parametrize("description", [tl.HDMF(), *SLOW], ids=lambda d: type(d).__name__)
def test_crossings_are_roots_of_the_solution_and_not_save_points(description):
    few = tl.evolve(PROBLEM, tl.SGD(0.05), description, until=3.0, save=2, **THRESHOLDS)
    times = np.linspace(0.0, 3.0, 301)[1:]
    many = tl.evolve(PROBLEM, tl.SGD(0.05), description, until=3.0, save=times, **THRESHOLDS)
    lengths = np.sqrt(np.diagonal(many.Q.values[0], axis1=1, axis2=2))
    alignment = np.max(np.abs(many.M.values[0, :, :, 0]) / lengths, axis=1)
    curves = {"crossing_time": many.excess_risk.values[0] - 0.3, "overlap_time": alignment - 0.8}
    for name, curve in curves.items():
        spline = CubicSpline(many.time.values, curve)
        root = brentq(spline, 0.02, 2.9)
        located = float(few[name].values.ravel()[0])
        # The spline through 301 points is wrong by less than 1e-7 here; save points are 0.01 apart.
        assert located == pytest.approx(root, abs=1e-6)
        assert float(many[name].values.ravel()[0]) == pytest.approx(located, abs=1e-8)


@pytest.mark.parametrize(("description", "variance"), [(tl.SaadSolla(), 1.0), (tl.MeanField(), 0.0)])
def test_crossings_are_those_of_the_exact_solution(description, variance):
    """One neuron on the sphere, saved at both ends alone; the limit of many units has no variance of SGD."""
    gamma, start, reached = 0.05, 0.3, 0.8
    options = {"overlap_threshold": reached, "risk_threshold": 2.0 * (1.0 - 0.7**2)}
    training = tl.SGD(gamma, constraint=tl.Sphere())
    result = tl.evolve(phase_retrieval(start), training, description, until=2.0, save=2, **options)
    located = float(result.overlap_time[0, 0]), float(result.crossing_time[0])
    exact = [time_to_overlap(start, level, variance * gamma, 0.0) for level in (reached, 0.7)]
    np.testing.assert_allclose(located, exact, rtol=1e-8)


class Saturation(AbstractFlow):
    """Numbers that grow and saturate, x' = r x (1 - x), with one variant of their rates."""

    rates: jax.Array

    def velocity(self, state):
        return self.rates * state * (1.0 - state)

    def risk(self, state):
        return jnp.sum((1.0 - state) ** 2)

    def largest(self, state):
        return jnp.max(state)

    def alignment(self, state, direction):
        return jnp.max(state)

    def saved(self, state, kept):
        return Saved(jnp.diag(state), state[:, None], state, self.risk(state), {})

    def is_together(self, starts):
        return False

    @property
    def is_coarse(self):
        return True

    @property
    def interpolates(self):
        return True


@pytest.mark.parametrize("judges_first", [False, True])
def test_errors_of_solutions_are_not_smaller_than_the_true_ones(judges_first):
    """Rates are wrong by 1e-9 up to 1e-3, coarser variants by more; the exact solution is known."""
    rng, times = np.random.default_rng(7), np.linspace(0.0, 6.0, 9)
    for _ in range(6):
        starts, rates, size = rng.uniform(1e-3, 0.5, (2, 3)), rng.uniform(0.5, 2.0, 3), 10.0 ** rng.uniform(-9.0, -3.0)
        wrong = size * rng.standard_normal(3)
        variants = [Saturation(jnp.asarray(rates + factor * wrong)) for factor in (1.0, -3.0, 40.0)]
        flows = Flows(variants, lambda results: by_coarser(results, 1e-12), "saturation", judges_first)
        eye = jnp.broadcast_to(jnp.eye(3), (2, 3, 3))
        plan = Plan(
            Overlaps(eye, jnp.zeros((2, 3, 1)), jnp.eye(1), jnp.ones((2, 3))),
            jax.random.split(jax.random.key(0), 2),
            times,
            times,
        )
        rtol = rng.choice([1e-6, 1e-9])  # the error of the averages or that of the integrator is larger
        accuracy = Accuracy(np.asarray(rtol), np.asarray(0.01 * rtol), 1000)
        record = follow(flows, 1, plan, jnp.asarray(starts), (), accuracy, lambda x, sign: x + sign * 1e-15)
        exact = 1.0 / (1.0 + (1.0 / starts[:, None] - 1.0) * np.exp(-rates * times[:, None]))
        gaps = np.max(np.abs(record.a - exact), axis=2)
        assert np.all(gaps <= record.overlap_error)
        assert np.all(np.abs(record.excess_risk - np.sum((1.0 - exact) ** 2, axis=2)) <= record.risk_error)
        # They are of use: within a factor of what the rates or the tolerance of the less accurate solutions explain.
        assert np.max(record.overlap_error) <= 200.0 * size + 2e-3


@pytest.mark.parametrize(("judges_first", "status"), [(False, Status.DIVERGED), (True, Status.DONE)])
def test_a_variant_that_only_judges_does_not_end_a_trajectory(judges_first, status):
    """From 2 a growth saturates at 1, and with a rate of the other sign it diverges: the error is infinite then."""
    variants = [Saturation(jnp.asarray([rate])) for rate in (1.0, -5.0)]
    flows = Flows(variants, lambda results: by_coarser(results, 1e-12), "saturation", judges_first)
    times = np.array([0.0, 1.0, 2.0])
    start = Overlaps(jnp.ones((1, 1, 1)), jnp.zeros((1, 1, 1)), jnp.eye(1), jnp.ones((1, 1)))
    plan = Plan(start, jax.random.split(jax.random.key(0), 1), times, times)
    accuracy = Accuracy(np.asarray(1e-6), np.asarray(1e-8), 1000)
    record = follow(flows, 1, plan, jnp.full((1, 1), 2.0), (), accuracy, lambda x, sign: x + sign * 1e-15)
    assert record.status[0] == status
    np.testing.assert_allclose(record.a[0, :, 0], 1.0 / (1.0 - 0.5 * np.exp(-times)), rtol=1e-4)
    assert record.risk_error[0, 0] < 1e-9
    assert np.all(np.isinf(record.risk_error[0, 1:])) and np.all(np.isinf(record.overlap_error[0, 1:]))
