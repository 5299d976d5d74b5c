"""Measured exit times: stages, runs that never exit, and the distance that the ODE's error must cover."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from tests.verbs.exit_times import REPLICAS, error_of, measured_sample, model_error, one, predicted, setting
from twolayer.analyses.escape import measurement
from twolayer.analyses.escape.exit_result import plain
from twolayer.analyses.escape.exit_time import ExitTime
from twolayer.analyses.escape.sample import Sample
from twolayer.core.precision import double
from twolayer.description import Plan, Record
from twolayer.theory.formulas import phase_retrieval as theory


@pytest.mark.long
def test_going_on_in_stages_changes_no_law(check_same_law, monkeypatch):
    quantity = ExitTime(replicas=REPLICAS, seed=1, until=6.0)
    problem, training = setting(1, 1000, 0.0)
    monkeypatch.setattr(measurement, "OverlapSGD", tl.DirectSGD)  # who cannot end its runs at their exit goes in stages
    # By time 6 all but a handful have exited.
    seen = []
    known = measurement.continued
    monkeypatch.setattr(measurement, "continued", lambda *args: seen.append(args) or known(*args))
    with double():
        cut = quantity.measure(problem, training, ode=Sample(np.array([0.5]), 6.0)).times
    assert len(seen) > 5
    check_same_law(np.nan_to_num(cut, nan=6.0), np.minimum(one().measured.values, 6.0), "stages")


def test_a_stage_begins_where_the_last_one_ended_with_numbers_of_its_own():
    starts = tl.Overlaps(jnp.ones((3, 2, 2)), jnp.full((3, 2, 1), 0.1), jnp.eye(1), jnp.ones((3, 2)))
    steps, thresholds = np.array([0, 9]), np.array([0.1, 0.2, 0.3])
    plan = Plan(starts, jax.random.split(jax.random.key(0), 3), steps, 0.1 * steps, thresholds)
    Q, M, a = (2.0 * np.stack([np.asarray(x)] * 2, axis=1) for x in (plan.starts.Q, plan.starts.M, plan.starts.a))
    lost = np.array([False, True, False])
    nothing = np.zeros((3, 2))
    record = Record(Q, M, a, nothing, nothing, nothing, lost, nothing[:, 0], nothing[:, :1], "")
    later = [measurement._onwards(plan, record, lost, stage) for stage in (0, 1)]
    np.testing.assert_array_equal(
        later[0].starts.M[:2], np.asarray(plan.starts.M)[:2] * np.array([2.0, 1.0])[:, None, None]
    )
    np.testing.assert_array_equal(later[0].starts.Q[2], 2.0 * np.asarray(plan.starts.Q)[2])
    assert later[0].risk_threshold[0] == 0.1 and later[0].risk_threshold[1] < 1e-300  # what has diverged never exits
    words = [np.asarray(jax.random.key_data(each.keys)) for each in (plan, *later)]
    assert len(np.unique(np.concatenate(words), axis=0)) == 9


def test_what_a_fixed_set_remembers_is_not_cut_into_stages(monkeypatch):
    """Each stage would draw a new set of samples, although the training has one."""
    seen = []
    known = measurement.run_part
    monkeypatch.setattr(measurement, "run_part", lambda *args: seen.append(args[-1]) or known(*args))
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(20))
    training = tl.SGD(0.02, reuse=tl.Reused(2.0))
    tl.exit_time(problem, training, threshold=0.9, replicas=4, until=4.0, description=tl.DirectSGD())
    assert seen == ["stage 0"]


@pytest.mark.long
def test_a_simulation_on_the_weights_is_looked_at_step_by_step():
    """At d = 20 the initial risk, and with it the threshold, differs between starts."""
    problem, training = setting(1, 20, 0.1)
    step = float(training.clock(problem).time_per_step)
    asked: dict = {"replicas": 16, "seed": 2, "until": 100 * step}
    found = tl.exit_time(problem, training, threshold=0.2, description=tl.DirectSGD(), starts=16, **asked)
    times = step * np.arange(1, 101)
    risk = tl.evolve(problem, training, tl.DirectSGD(), save=times, **asked).excess_risk.values
    below = risk <= 0.8 * risk[:, :1]
    expected = np.where(below.any(axis=1), step * np.argmax(below, axis=1), np.nan)
    assert 4 < np.isfinite(expected).sum() < 16
    # A second stage, with new random numbers, begins where the mean time of the ODE is over.
    ode = measured_sample(tl.exit_time(problem, training, threshold=0.2, replicas=0, starts=16, seed=2), "ode")
    first = min(float(found.measured_until), ode.mean)
    early = np.nan_to_num(expected, nan=np.inf) < first - step
    assert early.sum() > 2
    np.testing.assert_allclose(found.measured.values[early], expected[early], rtol=1e-9)


def test_runs_that_do_not_exit_are_counted():
    result = one(threshold=0.9, until=0.3, seed=3)
    assert np.isnan(result.measured_mean) and result.censored.all() and predicted(result, "ode") > 1
    data = plain(result)["measured"]
    assert data["mean"] is None and data["exited"] == 0 and data["censored"] == 1024 and data["median"] is None
    assert data["until"] == pytest.approx(0.3) and data["restricted_mean"] == pytest.approx(data["until"])
    assert data["share_exited"] == 0.0 and data["share_exited_stderr"] > 0.0
    text = tl.summary(result)
    assert "0 exited" in text and "not reached" in text and "1024 of 1024 runs had not exited" in text


def test_a_rate_that_does_not_escape_has_no_mean():
    """One neuron at the learning rate 0.1 with noise 1 ends at m^2 = 0.875: the ODE never reaches 0.9, some runs do."""
    result = tl.exit_time(*setting(1, 100, 1.0, 0.1), threshold=0.9, replicas=64, until=3.5)
    measured = measured_sample(result)
    assert 0 < measured.exited.size < 64 and measured.is_censored and result.attrs["outcome"] == "undecided"
    data = json.loads(json.dumps(plain(result), allow_nan=False))
    assert data["ode"] is None and data["ode_at_finite_d"] is None and data["model_errors"] == {}
    assert data["measured"]["mean"] is None and data["measured"]["stderr"] is None
    assert data["measured"]["restricted_mean"] > np.mean(measured.exited)
    text = tl.summary(result)
    assert "The learning rate 0.1 does not escape from a random start" in text and "there is no mean" in text
    assert f"{measured.exited.size} exited" in text and f"{np.mean(measured.exited):.4f}" not in text


@pytest.mark.long
def test_eight_neurons_do_not_escape_at_the_optimal_rate():
    result = tl.exit_time(*setting(8, 1000, 0.0), threshold=0.1, replicas=64, starts=64)
    assert 4 < measured_sample(result).exited.size < 32 and np.isnan(result.measured_mean)
    assert np.isnan(result.measured_median) and "not reached" in tl.summary(result)
    assert plain(result)["ode"] is None and "does not escape from 64 of 64 starts" in tl.summary(result)


def test_samples_count_those_that_never_exit():
    sample = Sample(np.array([3.0, 1.0, np.nan, 2.0]), 5.0)
    assert sample.is_censored and np.isnan(sample.mean) and np.isnan(sample.standard_error)
    assert sample.median == sample.quantile(0.5) == 2.0 and np.isnan(sample.quantile(0.9))
    assert sample.median_error == pytest.approx((3.0 - 1.0) / 2)  # between the quantiles 1/4 and 3/4
    assert sample.restricted_mean == pytest.approx((3 + 1 + 5 + 2) / 4)
    assert sample.restricted_mean_error == pytest.approx(np.std([3, 1, 5, 2], ddof=1) / 2)
    assert sample.share == 0.75 and 0.15 < sample.share_error < 0.25
    data = sample.to_dict(10.0)
    assert data["mean"] is None and data["restricted_mean"] == pytest.approx(27.5) and data["until"] == 50.0
    assert data["exited"] == 3 and data["censored"] == 1 and data["quantiles"]["0.9"] is None
    whole = Sample(np.array([3.0, 1.0, 2.0]), 5.0)
    assert whole.mean == whole.restricted_mean == 2.0 and whole.standard_error == pytest.approx(1 / np.sqrt(3))
    assert whole.share == 1.0 and whole.share_error > 0.0  # three runs do not prove that all exit
    assert np.isnan(Sample(np.array([np.nan]), np.inf).restricted_mean)
    assert np.isnan(Sample(np.array([1.0]), 1.0).standard_error)


def test_the_restricted_mean_is_the_area_below_the_survival_function():
    rng = np.random.default_rng(3)
    times = rng.exponential(1.0, 500)
    sample = Sample(np.where(times < 1.5, times, np.nan), 1.5)
    edges = np.concatenate([[0.0], np.sort(sample.exited), [1.5]])
    survival = 1.0 - np.arange(sample.exited.size + 1) / 500
    assert sample.restricted_mean == pytest.approx(float(np.sum(survival * np.diff(edges))))
    assert abs(sample.restricted_mean - (1.0 - np.exp(-1.5))) < 5 * sample.restricted_mean_error
    assert abs(sample.median - np.log(2.0)) < 5 * sample.median_error
    assert sample.median_error == pytest.approx(1.0 / np.sqrt(500), rel=0.4)  # 1 / (2 f(median) sqrt(n)), f = 1/2
    assert abs(sample.share - (1.0 - np.exp(-1.5))) < 5 * sample.share_error


def random_setting(rng: np.random.Generator, widths: list[int], most: float) -> dict:
    p, noise = int(rng.choice(widths)), float(rng.uniform(0.01, 1.0))
    d, level = (
        int(np.exp(rng.uniform(np.log(100), np.log(2000)))),
        float(np.exp(rng.uniform(np.log(0.03), np.log(0.4)))),
    )
    largest = theory.maximal_learning_rate(p, noise)
    if p > 2:  # runs at larger rates leave the saddle, but many of them stay far from the target
        largest = min(largest, 1.5 * theory.recovery_learning_rate(p, noise))
    gamma = float(rng.uniform(0.2, most)) * largest
    return {"p": p, "d": max(d, int(10 / level)), "noise": noise, "rate": gamma, "threshold": level}


def check_model_error(asked: dict, replicas: int, starts: int) -> bool:
    """The measured mean is within the errors that are given, and four standard errors; False where there is no mean."""
    threshold = asked.pop("threshold")
    result = tl.exit_time(*setting(**asked), threshold=threshold, replicas=replicas, starts=starts, seed=5)
    if not np.isfinite(predicted(result, "ode_at_finite_d")) or result.censored.any():
        return False
    for name in ("ode_at_finite_d", "ode_with_noise"):
        bar = error_of(result, name) + model_error(result, name)
        distance = abs(float(result.measured_mean) - predicted(result, name))
        assert distance < bar + 4 * float(result.measured_mean_error), (name, asked, threshold, distance, bar)
    assert result.attrs["outcome"] in ("agrees", "consistent", "finite-d effect")
    return True


@pytest.mark.slow
def test_the_error_of_the_model_covers_the_measured_mean():
    """Two neurons at d = 200: the ODE with noise at this d is early by more than its numerical error."""
    result = tl.exit_time(*setting(2, 200, 0.0), threshold=0.2, replicas=4096, starts=64)
    here, left_out = predicted(result, "ode_at_finite_d"), model_error(result, "ode_at_finite_d")
    deviation = float(result.measured_mean) - here
    assert deviation > error_of(result, "ode_at_finite_d") + 4 * float(result.measured_mean_error)
    assert deviation < left_out < 0.25 * here and result.attrs["outcome"] == "finite-d effect"
    assert plain(result)["model_errors"]["ode_at_finite_d"] == left_out
    assert f"{left_out:.1e}" in tl.summary(result) and "Model:" in tl.summary(result)
    rng = np.random.default_rng(15)
    assert sum(check_model_error(random_setting(rng, [1], 0.8), 1024, 64) for _ in range(4)) >= 3


def test_the_error_of_the_model_falls_with_d():
    errors = [
        model_error(tl.exit_time(*setting(1, d, 0.1), replicas=0, starts=256), "ode_at_finite_d")
        for d in (10**4, 10**6)
    ]
    assert 50 < errors[0] / errors[1] < 100  # as log(d) / d


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_the_error_of_the_model_covers_the_measured_mean_at_random_settings(seed):
    """Three of four settings at least have a mean to compare with: every run exits, and so does the ODE."""
    rng = np.random.default_rng(100 + seed)
    compared = [check_model_error(random_setting(rng, [1 + seed % 4], 0.7), 4096, 128) for _ in range(4)]
    print(f"seed {seed}: {sum(compared)} of 4 settings compared")
    assert sum(compared) >= 3
