"""Exit times: formulas, ODE and measurement against each other, for phase retrieval and for other problems."""

import dataclasses
import json
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import twolayer as tl
from twolayer.analyses import exit_time as module_function
from twolayer.analyses.escape import measurement
from twolayer.analyses.escape.exit_time import ExitTime
from twolayer.analyses.escape.result import estimates, judge, plain, sample_of
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.escape.starts import overlap_thresholds
from twolayer.analyses.quantity import Prediction
from twolayer.core.precision import double
from twolayer.description import Plan, Record, first_crossings
from twolayer.theory.formulas import phase_retrieval as theory

if TYPE_CHECKING:
    import xarray as xr


def predicted(result: "xr.Dataset", name: str) -> float:
    return float(result.predicted.sel(estimate=name))


def error_of(result: "xr.Dataset", name: str) -> float:
    return float(result.predicted_error.sel(estimate=name))


def model_error(result: "xr.Dataset", name: str) -> float:
    return float(result.model_error.sel(estimate=name))


def notes(result: "xr.Dataset") -> list[str]:
    return result.attrs["notes"].splitlines()


def measured_sample(result: "xr.Dataset", name: str = "measured") -> Sample:
    sample = sample_of(result, name)
    assert sample is not None
    return sample


def setting(p: int, d: int, noise: float, rate: float | None = None) -> tuple[tl.Problem, tl.SGD]:
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d), noise=noise)
    gamma = theory.optimal_learning_rate(p, noise) if rate is None else rate
    return problem, tl.SGD(gamma, constraint=tl.Sphere())


# One problem and number of replicas for several tests, so that it is compiled once.
REPLICAS = 1024


def one(**asked) -> "xr.Dataset":
    return tl.exit_time(*setting(1, 1000, 0.0), **{"threshold": 0.1, "replicas": REPLICAS} | asked)


@pytest.fixture(scope="module")
def one_neuron() -> "xr.Dataset":
    return one()


def test_one_neuron_is_measured_where_the_noisy_ode_says(one_neuron):
    """Known from elsewhere: 1.327(14). The ODE without noise is more than seven standard errors away."""
    result = one_neuron
    mean, error = float(result.measured_mean), float(result.measured_mean_error)
    assert not result.censored.any() and result.sizes["replica"] == REPLICAS and error < 0.019
    assert abs(mean - 1.327) < 5 * np.hypot(error, 0.014)
    assert abs(mean - predicted(result, "ode_with_noise")) < 5 * error
    assert abs(mean - predicted(result, "ode_at_finite_d")) < 5 * error
    assert abs(mean - predicted(result, "ode")) > 7 * error
    assert predicted(result, "ode") - predicted(result, "ode_with_noise") == pytest.approx(np.log(2) / 4)
    # The mean over the law of the start is that of many starts.
    sample = measured_sample(result, "ode")
    assert abs(sample.mean - predicted(result, "ode")) < 5 * sample.standard_error
    assert predicted(result, "annealed") < predicted(result, "quenched") < predicted(result, "ode")
    assert float(result.optimal_learning_rate) == result.attrs["learning_rate"] == pytest.approx(1 / 12)


def test_one_object_for_people_and_programs(one_neuron):
    data = json.loads(json.dumps(plain(one_neuron), allow_nan=False))
    assert {"annealed", "quenched", "ode", "measured", "learning_rate", "optimal_learning_rate"} <= set(data)
    assert data["measured"]["mean"] == float(one_neuron.measured_mean)
    assert data["measured"]["stderr"] == float(one_neuron.measured_mean_error)
    assert data["steps"]["ode"] == pytest.approx(data["ode"] * 1 * 1000 / (1 / 12))
    assert data["steps"]["measured"]["quantiles"]["0.5"] == pytest.approx(
        float(one_neuron.measured.median()) * 12000, 1
    )
    text = tl.summary(one_neuron)
    for words in ("annealed", "quenched", "ODE", "measured, 1024 runs", "1.4972", "Verdict: agrees: no difference"):
        assert words in text


def test_a_result_is_labelled_saved_and_read(one_neuron, tmp_path):
    result = one_neuron
    assert result.attrs["kind"] == "exit_time" and result.attrs["seed"] == 0 and len(result.attrs["spec_hash"]) == 64
    assert json.loads(result.attrs["spec"])["problem"]["inputs"]["d"] == 1000
    assert json.loads(result.attrs["spec"])["threshold"] == 0.1 and "jax" in result.attrs["versions"]
    for name, variable in result.data_vars.items():
        assert variable.attrs["long_name"] and variable.attrs["units"], name
    assert result.measured.dims == ("replica",) and result.predicted.dims == ("estimate",)
    again = tl.load(tl.save(result, tmp_path / "result.nc"))
    assert again.identical(result) and tl.summary(again) == tl.summary(result) and plain(again) == plain(result)


def test_an_exit_time_is_a_quantity_that_is_predicted_and_measured(one_neuron):
    quantity = ExitTime(replicas=REPLICAS)
    with double():
        predictions = quantity.predict(*setting(1, 1000, 0.0))
        sample = quantity.measure(*setting(1, 1000, 0.0), ode=predictions.ode)
    assert list(predictions.estimates) == list(estimates(one_neuron))
    np.testing.assert_array_equal(list(predictions.estimates.values()), list(estimates(one_neuron).values()))
    np.testing.assert_array_equal(sample.times, one_neuron.measured.values)


# ------------------------------------------------------------------------------------------------- the verdict


def judged(prediction: Prediction, times: np.ndarray, name: str = "ode_at_finite_d") -> tuple[str, str]:
    finding = judge({name: prediction}, Sample(times, 10.0))
    return finding.outcome, finding.sentence


def test_the_verdict_is_one_of_the_five_words():
    """Around 64 runs with mean 2 and standard error 0.025 chance reaches 3.5 standard errors."""
    times = 2.0 + 0.2 * np.tile([-1.0, 1.0], 32)
    assert judged(Prediction(2.05, 0.0), times)[0] == "agrees"
    assert judged(Prediction(2.3, 0.0, 0.25), times)[0] == "finite-d effect"
    assert judged(Prediction(2.3, 0.0, 0.1), times)[0] == "differs"
    assert judged(Prediction(2.3, 0.25, 0.1), times)[0] == "agrees"
    assert judged(Prediction(2.0, 2.0), times)[0] == "consistent"
    assert judged(Prediction(np.inf, 0.0), times)[0] == "undecided"
    # An ODE without a model error is a limit: single runs may scatter around it.
    assert judged(Prediction(2.2, 0.0), times, "ode")[0] == "finite-d effect"
    assert judged(Prediction(2.4, 0.0), times, "ode")[0] == "differs"
    outcome, sentence = judged(Prediction(2.0, 0.0), np.append(times, np.nan))
    assert outcome == "undecided" and "1 of 65 runs have not exited" in sentence


def test_what_was_not_measured_is_undecided():
    result = tl.exit_time(*setting(1, 1000, 0.0), replicas=0)
    assert result.attrs["outcome"] == "undecided" and "no runs were made" in result.attrs["verdict"]
    assert tl.summary(result).endswith(result.attrs["verdict"]) and "Verdict: undecided: there is not" in tl.summary(
        result
    )
    assert "measured" not in result and "replica" not in result.dims and "measured_by" not in result.attrs


@pytest.mark.slow
def test_two_neurons_are_measured_where_the_noisy_ode_says():
    result = tl.exit_time(*setting(2, 1000, 0.1), threshold=0.05, replicas=512, starts=64, seed=1)
    measured, ode, error = measured_sample(result), measured_sample(result, "ode"), error_of(result, "ode")
    assert abs(measured.mean - predicted(result, "ode_at_finite_d")) < 5 * measured.standard_error + error
    assert abs(measured.mean - predicted(result, "ode_with_noise")) < 5 * measured.standard_error + error
    assert measured.mean + 10 * measured.standard_error < predicted(result, "ode")
    assert abs(ode.mean - predicted(result, "ode")) < 5 * ode.standard_error
    assert error_of(result, "quenched") < 0.01 and predicted(result, "annealed") < predicted(result, "quenched")
    assert any("do not end near the target" in note for note in notes(result))


@pytest.mark.slow
def test_going_on_in_stages_changes_no_law(one_neuron, check_same_law, monkeypatch):
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
    check_same_law(np.nan_to_num(cut, nan=6.0), np.minimum(one_neuron.measured.values, 6.0), "stages")


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


def test_the_same_seed_gives_the_same_numbers(one_neuron):
    again = one()
    assert again.identical(one_neuron)


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


@pytest.mark.slow
def test_eight_neurons_do_not_escape_at_the_optimal_rate():
    result = tl.exit_time(*setting(8, 1000, 0.0), threshold=0.1, replicas=64, starts=64)
    assert 4 < measured_sample(result).exited.size < 32 and np.isnan(result.measured_mean)
    assert np.isnan(result.measured_median) and "not reached" in tl.summary(result)
    assert plain(result)["ode"] is None and "does not escape from 64 of 64 starts" in tl.summary(result)


def test_an_ode_that_never_exits_is_said_so(one_neuron):
    result = one_neuron.copy(deep=True)
    result.predicted.loc["ode"] = np.inf
    data = json.loads(json.dumps(plain(result), allow_nan=False))
    assert data["ode"] is None and data["steps"]["ode"] is None and "never" in tl.summary(result)


@pytest.mark.slow
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


@pytest.mark.slow
def test_other_problems_have_the_ode_and_the_measurement():
    """Rows of any length from a warm start: no formula, but the ODE and runs at large d agree."""
    start = tl.WarmStart(0.3)
    problem = tl.Problem(tl.SingleIndex("square"), tl.Student(1, "square"), tl.Gaussian(2000), start=start, noise=0.01)
    result = tl.exit_time(problem, tl.SGD(0.05), threshold=0.5, replicas=64, starts=64)
    assert (
        list(result.estimate.values) == ["ode"]
        and "optimal_learning_rate" not in result
        and "noise_shift" not in result
    )
    measured, ode = measured_sample(result), predicted(result, "ode")
    assert measured.exited.size == 64 and result.sizes["start"] == 64
    assert abs(measured.mean - ode) < 5 * measured.standard_error + error_of(result, "ode")
    assert np.all(np.abs(result.ode.values - ode) < 3 * np.std(measured.times))
    data = plain(result)
    assert data["annealed"] is None and data["steps"]["quenched"] is None and data["ode"] == ode


def test_a_given_start_has_one_solution():
    start = tl.GivenOverlaps([[1.0]], [[0.1]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000), start=start)
    result = tl.exit_time(problem, tl.SGD(0.05, constraint=tl.Sphere()), threshold=0.2, replicas=0)
    assert result.sizes["start"] == 1 and "measured" not in result and "quenched" not in result.estimate
    assert predicted(result, "ode") == pytest.approx(float(theory.exact_times(0.01, 0.05, 0.0, 0.2)), abs=1e-8)
    assert plain(result)["measured"] is None and "measured" not in tl.summary(result)


def test_without_an_ode_there_is_a_reason():
    problem, _ = setting(1, 1000, 0.0)
    training = tl.SGD(0.02, constraint=tl.Sphere(), momentum=0.5)
    result = tl.exit_time(problem, training, replicas=0, starts=REPLICAS)
    assert "predicted" not in result and "ode" not in result and result.attrs["outcome"] == "undecided"
    assert any(note.startswith("No ODE") and "momentum" in note for note in notes(result))
    assert "no theory of it is known" in tl.summary(result)


def test_an_interruption_keeps_the_formulas(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tl.OverlapSGD, "run", interrupted)
    with pytest.raises(tl.Interrupted) as stopped:
        one()
    result = stopped.value.result
    assert "measured" not in result and predicted(result, "quenched") > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": 0.0}, "`threshold`"),
        ({"threshold": 1.0}, "`threshold`"),
        ({"replicas": -1}, "`replicas`"),
        ({"starts": 0}, "`starts`"),
        ({"seed": -1}, "`seed`"),
        ({"until": 0.0}, "`until`"),
        ({"training": tl.SGD(1 / 6, constraint=tl.Sphere())}, "must be below 0.166667"),
        ({"training": tl.SGD(0.1, reuse=tl.Reused(2.0))}, "fresh batches"),
    ],
)
def test_bad_input_is_refused(changes, words):
    problem, training = setting(1, 100, 0.0)
    asked = {"problem": problem, "training": training} | changes
    with pytest.raises(tl.InvalidInput, match=words):
        tl.exit_time(asked.pop("problem"), asked.pop("training"), **asked)


def test_a_start_without_risk_is_refused():
    start = tl.GivenOverlaps([[1.0]], [[1.0]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), start=start)
    with pytest.raises(tl.InvalidInput, match="nothing to leave"):
        tl.exit_time(problem, tl.SGD(0.1, constraint=tl.Sphere()))


WHY_NOT = {
    "target": {"target": tl.SingleIndex("tanh")},
    "student is": {"student": tl.Student(2, "tanh")},
    "of ones": {"student": tl.Student(2, "square", second_layer=[1.0, 2.0])},
    "second layer of the": {"student": tl.Student(2, "square", second_layer="rademacher")},
    "unit size": {"target": tl.Committee(1, "square", second_layer=[2.0])},
    "unit sphere": {"start": tl.RandomStart(law="gaussian")},
    "unit sphere.": {"start": tl.WarmStart(0.1)},
    "plain SGD": {"training": tl.SGD(0.1)},
    "fresh samples": {"training": tl.SGD(0.1, constraint=tl.Sphere(), momentum=0.3)},
    "weight decay": {"training": tl.SGD(0.1, constraint=tl.Sphere(), weight_decay=0.1)},
    "second layer is trained": {"training": tl.SGD(0.1, constraint=tl.Sphere(), layers=tl.Both())},
    "much smaller": {"training": tl.SGD(0.1, constraint=tl.Sphere(), batch_size=60)},
}


@pytest.mark.parametrize(("words", "changes"), WHY_NOT.items(), ids=WHY_NOT)
def test_the_formulas_know_what_they_are_about(words, changes):
    problem, training = setting(2, 100, 0.0)
    assert theory.applies(problem, training).ok
    twin = tl.Problem(tl.SingleIndex("square"), tl.Student(2, "square", second_layer=[1.0, 1.0]), tl.Gaussian(100))
    assert theory.applies(twin, training).ok
    training = changes.get("training", training)
    problem = dataclasses.replace(problem, **{name: value for name, value in changes.items() if name != "training"})
    answer = theory.applies(problem, training)
    assert not answer.ok and words.rstrip(".") in answer.statement


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


# ----------------------------------------------------------------------------------------------- what is an exit


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


@pytest.mark.slow
def test_with_both_layers_trained_the_escape_grows_with_log_d():
    small, large = (from_overlap(d, tl.SGD(0.1, layers=tl.Both()), 2) for d in (300, 300_000))
    assert small.attrs["criterion"] == "overlap"
    assert (predicted(large, "ode") - predicted(small, "ode")) / np.log(1000.0) > 0.1


def test_both_definitions_are_the_same_for_one_neuron_on_the_sphere(one_neuron):
    assert one_neuron.attrs["criterion"] == "risk" and "0.9 of its initial value" in tl.summary(one_neuron)
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


# ------------------------------------------------------------------------------------------- error of the model


def random_setting(rng: np.random.Generator, widths: list[int], most: float) -> dict:
    p, noise = int(rng.choice(widths)), float(rng.uniform(0.01, 1.0))
    d, level = (
        int(np.exp(rng.uniform(np.log(100), np.log(2000)))),
        float(np.exp(rng.uniform(np.log(0.03), np.log(0.4)))),
    )
    gamma = float(rng.uniform(0.2, most)) * theory.maximal_learning_rate(p, noise)
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_error_of_the_model_covers_the_measured_mean_at_random_settings(seed):
    """Three of four settings at least have a mean to compare with: every run exits, and so does the ODE."""
    rng = np.random.default_rng(100 + seed)
    compared = [check_model_error(random_setting(rng, [1 + seed % 4], 0.7), 4096, 128) for _ in range(4)]
    print(f"seed {seed}: {sum(compared)} of 4 settings compared")
    assert sum(compared) >= 3


def test_it_is_public():
    assert tl.exit_time is module_function


# -------------------------------------------------------------------------------------------------- schedules


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


@pytest.mark.slow
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


def test_what_a_fixed_set_remembers_is_not_cut_into_stages(monkeypatch):
    """Each stage would draw a new set of samples, although the training has one."""
    seen = []
    known = measurement.run_part
    monkeypatch.setattr(measurement, "run_part", lambda *args: seen.append(args[-1]) or known(*args))
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(20))
    training = tl.SGD(0.02, reuse=tl.Reused(2.0))
    tl.exit_time(problem, training, threshold=0.9, replicas=4, until=4.0, description=tl.DirectSGD())
    assert seen == ["stage 0"]
