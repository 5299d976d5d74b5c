"""What counts as an exit: by risk or by overlap, of free students, of both layers, in a schedule."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import twolayer as tl
from tests.verbs.exit_times import error_of, predicted, setting
from twolayer.analyses.escape.exit_result import plain
from twolayer.analyses.escape.exit_starts import overlap_thresholds
from twolayer.description import Plan, first_crossings
from twolayer.theory.formulas import phase_retrieval as theory

if TYPE_CHECKING:
    import xarray as xr


def from_overlap(d: int, training: tl.SGD, p: int = 1) -> "xr.Dataset":
    """The ODE from overlaps of the size that a random start has."""
    m = np.full((p, 1), 1.0 / np.sqrt(d))
    start = tl.GivenOverlaps(np.eye(p) + (1.0 - np.eye(p)) / d, m)
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d), start=start)
    return tl.exit_time(problem, training, threshold=0.1, replicas=0)


def test_a_free_student_escapes_in_a_time_that_grows_with_log_d():
    """Its risk falls to two thirds by shrinking, at once and at any d; the overlap takes log(d) over its growth rate.

    On the plateau m = 0 the squared length q is at rest, and the squared cosine grows as exp(12 (1 - q) t).
    """
    gamma = 0.05
    q = np.linspace(0.05, 0.95, 200_001)
    one, two = 1.0 - q, 1.0 + q**2
    change = 4 * (one * q - 2 * q**2) + 4 * gamma * ((one**2 + 2 * two) * q - 4 * one * q**2 + 8 * q**3)
    q = q[np.argmax(change < 0.0)]
    small, large = (from_overlap(d, tl.SGD(gamma)) for d in (300, 300_000))
    growth = (predicted(large, "ode") - predicted(small, "ode")) / np.log(1000.0)
    assert growth == pytest.approx(1.0 / (12.0 * (1.0 - q)), rel=0.02)
    assert small.attrs["criterion"] == "overlap" and plain(small)["criterion"] == "overlap"
    assert "squared cosine" in plain(small)["definition"] and small.attrs["definition"] in tl.summary(small)


def test_free_runs_escape_in_a_time_that_grows_with_log_d():
    def measured(d):
        problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d))
        return tl.exit_time(problem, tl.SGD(0.05), threshold=0.1, replicas=256, starts=256, until=20.0)

    small, large = measured(300), measured(3000)
    for result in (small, large):  # noise makes them leave earlier than the ODE, as on the sphere
        assert 0.0 < predicted(result, "ode") - float(result.measured_mean) < 0.2
    growth = float(large.measured_mean - small.measured_mean)
    error = np.hypot(small.measured_mean_error, large.measured_mean_error)
    assert abs(growth - 0.13 * np.log(10.0)) < 5 * error and growth > 5 * error


@pytest.mark.long
def test_with_both_layers_trained_the_escape_grows_with_log_d():
    small, large = (from_overlap(d, tl.SGD(0.1, layers=tl.Both()), 2) for d in (300, 300_000))
    assert small.attrs["criterion"] == "overlap"
    assert (predicted(large, "ode") - predicted(small, "ode")) / np.log(1000.0) > 0.1


def test_both_definitions_are_the_same_for_one_neuron_on_the_sphere():
    result = tl.exit_time(*setting(1, 1000, 0.0), replicas=0)
    assert result.attrs["criterion"] == "risk" and "0.9 of its initial value" in tl.summary(result)
    m = np.array([0.01, -0.2, 0.6])
    starts = tl.Overlaps(jnp.ones((3, 1, 1)), jnp.asarray(m)[:, None, None], jnp.eye(1), jnp.ones((3, 1)))
    level = overlap_thresholds(starts, 0.1)
    np.testing.assert_allclose(1.0 - level**2, 0.9 * (1.0 - m**2))


def test_the_overlap_is_that_of_the_nearest_neuron_whatever_the_lengths():
    Q = jnp.array([[[4.0, 0.0], [0.0, 0.25]]])
    M = jnp.array([[[0.2, 0.6], [0.1, -0.2]]])
    starts = tl.Overlaps(Q, M, jnp.diag(jnp.array([1.0, 4.0])), jnp.ones((1, 2)))
    cosines = np.array([0.1, 0.15, 0.2, 0.2])
    np.testing.assert_allclose(overlap_thresholds(starts, 0.3) ** 2, 0.3 + 0.7 * np.max(cosines) ** 2)


def test_a_description_that_looks_at_its_save_points_has_one_threshold_for_each_run():
    times = np.array([0.0, 1.0, 2.0])
    starts = tl.Overlaps(jnp.ones((2, 1, 1)), jnp.zeros((2, 1, 1)), jnp.eye(1), jnp.ones((2, 1)))
    keys = jax.random.split(jax.random.key(0), 2)
    plan = Plan(starts, keys, np.arange(3), times, overlap_threshold=np.array([0.3, 0.5]))
    M = np.broadcast_to(np.array([0.1, 0.4, 0.6])[None, :, None, None], (2, 3, 1, 1))
    reached = first_crossings(plan, np.ones((2, 3)), np.ones((2, 3, 1, 1)), M)[1]
    np.testing.assert_array_equal(reached, [[1.0], [2.0]])


NO_EXIT = {
    "nothing to leave": (tl.GivenOverlaps([[4.0]], [[2.0]]), tl.SGD(0.1)),
    "a row of the start is zero": (tl.GivenOverlaps([[0.0]], [[0.0]]), tl.SGD(0.1)),
    "must train the first layer": (tl.RandomStart(), tl.SGD(0.1, layers=tl.Second())),
}


@pytest.mark.parametrize(("words", "given"), NO_EXIT.items(), ids=NO_EXIT)
def test_where_there_is_no_exit_by_overlap_it_is_said(words, given):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), start=given[0])
    with pytest.raises(tl.InvalidInput, match=words):
        tl.exit_time(problem, given[1])


def schedule(problem: tl.Problem, switch: float, first: float = 0.05, second: float = 0.03) -> "xr.Dataset":
    training = tl.Schedule([tl.SGD(rate, constraint=tl.Sphere()) for rate in (first, second)], [switch])
    return tl.exit_time(problem, training, threshold=0.2, replicas=0, until=4.0)


def test_the_ode_of_a_schedule_exits_where_its_phases_say():
    """From m0 the first phase reaches the overlap that the closed solution says; the second goes on from there."""
    start = tl.GivenOverlaps([[1.0]], [[0.1]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000), start=start)
    result = schedule(problem, 0.25)
    level = 1.0 - 0.8 * (1.0 - 0.01)
    switched = brentq(
        lambda m2: float(theory.exact_times(0.01, 0.05, 0.0, (m2 - 0.01) / 0.99)) - 0.25, 0.02, 0.2, xtol=1e-15
    )
    expected = 0.25 + float(theory.exact_times(switched, 0.03, 0.0, (level - switched) / (1.0 - switched)))
    assert abs(predicted(result, "ode") - expected) <= error_of(result, "ode") < 1e-6
    assert list(result.estimate.values) == ["ode"] and "steps_per_time" not in result.attrs
    assert plain(result)["steps"] is None and "largest learning rate 0.05" in tl.summary(result)
    early = schedule(problem, 3.0)  # exits within the first phase
    alone = tl.exit_time(problem, tl.SGD(0.05, constraint=tl.Sphere()), threshold=0.2, replicas=0)
    assert predicted(early, "ode") == pytest.approx(predicted(alone, "ode"), abs=1e-7)


@pytest.mark.long
def test_runs_of_a_schedule_exit_where_its_ode_says():
    start = tl.GivenOverlaps([[1.0]], [[0.3]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(3000), start=start)
    training = tl.Schedule([tl.SGD(rate, constraint=tl.Sphere()) for rate in (0.05, 0.02)], [0.1])
    result = tl.exit_time(problem, training, threshold=0.4, replicas=256)
    assert predicted(result, "ode") > 0.1 and not result.censored.any()
    assert result.attrs["outcome"] in ("agrees", "finite-d effect")
    assert abs(float(result.measured_mean) - predicted(result, "ode")) < 0.01


def test_a_schedule_that_never_trains_the_first_layer_is_refused():
    problem, _ = setting(1, 100, 0.0)
    training = tl.Schedule([tl.SGD(0.1, layers=tl.Second()), tl.SGD(0.2, layers=tl.Second())], [1.0])
    with pytest.raises(tl.NotApplicable, match="must train the first layer"):
        tl.exit_time(problem, training)
