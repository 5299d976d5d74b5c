"""Training in phases: one clock through all of them, and the law of a run that was never cut."""

import numpy as np
import pytest

import twolayer as tl


def problem(d=200, p=2, **choices):
    return tl.Problem(tl.Committee(2, "erf"), tl.Student(p, "erf"), tl.Gaussian(d), noise=0.1, **choices)


def test_the_clock_runs_through_all_phases():
    schedule = tl.Schedule([tl.SGD(1.0), tl.SGD(0.5, batch_size=4)], [2.0])
    clock = schedule.clock(problem())  # a step of the first phase takes 1/400, of the second 4 * 0.5/400
    np.testing.assert_array_equal(clock.steps([0.0, 1.0, 2.0, 3.0]), [0, 400, 800, 1000])
    np.testing.assert_allclose(clock.time([0, 400, 800, 1000]), [0.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(clock.samples([0, 800, 1000]), [0, 800, 1600])


@pytest.mark.long
def test_equal_phases_are_one_training():
    """The ODE goes on as if nothing had happened, and thresholds are found in whatever phase they are crossed."""
    once = tl.SGD(0.5, layers=tl.Both(0.3))
    times = [0.5, 2.0, 4.0, 6.0]
    ask = {"until": 6.0, "save": times, "replicas": 2, "risk_threshold": 0.055, "overlap_threshold": 0.3}
    whole = tl.evolve(problem(), once, tl.SaadSolla(), **ask)
    cut = tl.evolve(problem(), tl.Schedule([once, once], [1.5]), tl.SaadSolla(), **ask)
    np.testing.assert_allclose(cut.Q.values, whole.Q.values, atol=1e-8)
    np.testing.assert_allclose(cut.time.values, whole.time.values)
    assert np.isfinite(whole.crossing_time.values).any() and (whole.crossing_time.values > 1.5).any()
    np.testing.assert_allclose(cut.crossing_time.values, whole.crossing_time.values, atol=1e-6)
    np.testing.assert_allclose(cut.overlap_time.values, whole.overlap_time.values, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("description", [pytest.param(tl.OverlapSGD(), marks=pytest.mark.long), tl.DirectSGD()])
def test_simulations_of_a_schedule_follow_the_ode(description):
    """A rate that falls, then the second layer alone: mean over 32 runs at d = 1000 against the theory, z < 5."""
    schedule = tl.Schedule([tl.SGD(3.0), tl.SGD(0.5), tl.SGD(1.0, layers=tl.Second(0.5))], [2.0, 3.0])
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [0.0, 0.3]])
    tree = tl.compare(
        problem(1000, start=start),
        schedule,
        [description, tl.SaadSolla()],
        until=5.0,
        save=[1.0, 2.5, 5.0],
        replicas=32,
    )
    ode, runs = tree["SaadSolla"], tree[type(description).__name__]
    for name in ("M", "Q", "a", "risk"):
        mean, error = runs[name].mean("replica"), runs[name].std("replica") / np.sqrt(31)
        gap = abs(mean - ode[name][0]).values
        assert np.all(gap < 5 * error.values + 3e-3), name  # the mean is shifted by order 1/d
    for result in (ode, runs):  # only the second layer moves in the last phase
        third = result.time.values > 3.0
        assert np.abs(result.a.values[:, third] - 1.0).min() > 0.01
        assert np.all(result.a.values[:, ~third] == 1.0)
    later = tl.evolve(problem(1000, start=start), schedule, description, until=5.0, save=[3.0, 5.0])
    np.testing.assert_allclose(later.Q.values[:, 1], later.Q.values[:, 2], atol=1e-12)


@pytest.mark.long
def test_layer_wise_training_by_the_batch_map():
    """Two giant steps on the first layer, then the second alone: the map against exact runs at d = 2000, z < 5."""
    start = tl.GivenOverlaps([[1.0, 0.2], [0.2, 0.8]], [[0.3, 0.1], [0.0, 0.3]])
    large = problem(2000, start=start)
    first, second = tl.SGD(1.0, batch_size=4000), tl.SGD(1.0, batch_size=4000, layers=tl.Second(0.5))
    times = first.clock(large).time([2, 4])
    schedule = tl.Schedule([first, second], [times[0]])
    ask = {"until": times[1], "save": times, "replicas": 16}
    runs = tl.evolve(large, schedule, tl.OverlapSGD(), **ask)
    by_map = tl.evolve(large, schedule, tl.BatchMap(), **ask)
    for name in ("M", "Q", "a"):
        mean, error = runs[name].mean("replica").values, runs[name].std("replica").values / np.sqrt(15)
        assert np.all(np.abs(mean - by_map[name].values[0]) < 5 * error + 1e-3), name
    np.testing.assert_allclose(by_map.Q.values[:, 1], by_map.Q.values[:, 2], atol=1e-12)
    assert np.abs(by_map.a.values[:, 2] - 1.0).min() > 1e-3


def test_a_schedule_that_cannot_be_is_refused():
    with pytest.raises(tl.InvalidInput, match="one time fewer"):
        tl.Schedule([tl.SGD(1.0), tl.SGD(0.5)], [1.0, 2.0])
    with pytest.raises(tl.InvalidInput, match="increasing"):
        tl.Schedule([tl.SGD(1.0), tl.SGD(0.5), tl.SGD(0.1)], [2.0, 1.0])
    with pytest.raises(tl.InvalidInput, match="velocity"):
        tl.Schedule([tl.SGD(1.0, momentum=0.5), tl.SGD(0.5)], [2.0])
