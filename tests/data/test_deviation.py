"""Verdicts with few replicas: chance keeps its stated rate, coincidences decide nothing, wrong theories show."""

import numpy as np
import pytest
import xarray as xr

from twolayer.data.deviation import FALSE_ALARM, judge_description, shared_scatter, sharing, threshold


def dataset(risk):
    errors = {f"{name}_error": (("replica", "time"), np.zeros_like(risk)) for name in ("risk", "overlap")}
    times = np.linspace(0.0, 1.0, risk.shape[1])
    return xr.Dataset({"risk": (("replica", "time"), risk), **errors}, coords={"time": times})


def walks(random, shape, time):
    """Without any scatter at the start."""
    steps = random.standard_normal(shape)
    steps[..., 0] = 0.0
    return np.cumsum(steps, axis=-1)


def burst(random, shape, time):
    return (1e3 * np.exp(-0.5 * ((time - 0.5) / 0.05) ** 2) + np.sqrt(time)) * walks(random, shape, time)


def smooth(random, shape, time):
    """Few waves of random phases: paths that meet now and then, all of them at once by chance."""
    angles = np.arange(1, 7)[:, None] * time
    return random.standard_normal((*shape[:-1], 12)) @ np.concatenate([np.cos(angles), np.sin(angles)])


def wild(random, shape, time):
    return random.standard_normal(shape) * np.exp(2.0 * np.random.default_rng(5).standard_normal(len(time)))


def steep(random, shape, time):
    return random.standard_normal(shape) * np.exp(30.0 * time)


@pytest.mark.parametrize("replicas", [2, 4, 16])
@pytest.mark.parametrize("paths", [walks, burst, smooth, wild, steep])
def test_chance_exceeds_the_threshold_once_in_a_thousand_comparisons_at_most(paths, replicas):
    """However paths are correlated in time and wherever they scatter; 8000 comparisons, of which 8 are allowed."""
    times, comparisons = 33, 8000
    random = np.random.default_rng(replicas)
    x = paths(random, (comparisons, replicas, times), np.linspace(0.0, 1.0, times))
    scatter = shared_scatter(x.std(axis=1, ddof=1).T).T / np.sqrt(replicas)
    alarms = np.sum(np.any(np.abs(x.mean(axis=1)) > threshold(replicas, times, sharing(times)) * scatter, axis=1))
    assert alarms <= 22  # Poisson of mean 8: more has probability 2e-5
    assert FALSE_ALARM * comparisons == 8


def test_runs_that_coincide_by_chance_decide_nothing():
    """Four runs that scatter by 6e-3 but meet at one time, where the mean is as far off as elsewhere."""
    random = np.random.default_rng(3)
    runs = 1.0 + 6e-3 * random.standard_normal((4, 41))
    runs[:, 20] = 1.005 + 1e-8 * random.standard_normal(4)
    theory = np.linspace(1.3, 0.7, 41)[None]
    runs += theory - 1.0
    alone = np.abs(runs.mean(axis=0) - theory[0]) / (runs.std(axis=0, ddof=1) / 2.0)
    assert alone[20] > 100 * threshold(4, 41)  # by the scatter at that time alone
    finding, deviations = judge_description("SGD", "theory", dataset(runs), dataset(theory), "1", 300)
    assert finding.outcome == "agrees"
    assert finding.largest_z < 10.0
    assert deviations["risk"].scatter.max() == runs.std(axis=0, ddof=1).max()  # none is more than the largest seen


def test_four_runs_find_a_factor_of_two():
    """The second-order term of the risk twice too large, 0.04 t at an end of 0.1: a scatter of 2e-3 leaves no doubt."""
    time = np.linspace(0.0, 1.0, 41)
    right, wrong = 0.5 - 0.4 * time + 0.04 * time, 0.5 - 0.4 * time + 0.08 * time
    runs = right + 2e-3 * np.sqrt(time) * np.cumsum(np.random.default_rng(1).standard_normal((4, 41)), 1) / np.sqrt(41)
    for theory, outcome in [(right, "agrees"), (wrong, "differs")]:
        assert judge_description("SGD", "theory", dataset(runs), dataset(theory[None]), "1", 300)[0].outcome == outcome


@pytest.mark.parametrize("times", [1, 2, 3, 15, 16, 32, 100])
def test_scatter_is_shared_by_a_sixteenth_of_the_times_on_each_side(times):
    own = np.random.default_rng(times).exponential(size=(times, 2, 3))
    reach = max(1, times // 16)
    near = [np.sqrt((own[max(0, n - reach) : n + reach + 1] ** 2).mean(0)) for n in range(times)]
    np.testing.assert_allclose(shared_scatter(own), np.maximum(own, near), rtol=1e-14)
    assert sharing(times) == min(times, 2 * reach + 1)
    assert threshold(16, times, times) <= threshold(16, times)
