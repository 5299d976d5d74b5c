"""Exit times: formulas, ODE and measurement against each other, for phase retrieval and for other problems."""

import dataclasses
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import twolayer as tl
from tests.verbs.exit_times import REPLICAS, error_of, measured_sample, notes, one, predicted, setting
from twolayer.analyses import exit_time as module_function
from twolayer.analyses.escape.exit_result import estimates, judge_exit, plain
from twolayer.analyses.escape.exit_time import PREDICTORS, ExitTime, predictor_of
from twolayer.analyses.escape.from_ode import FromODE
from twolayer.analyses.escape.from_plateau import FromPlateau
from twolayer.analyses.escape.from_saddle import FromSaddle
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import Prediction
from twolayer.core.precision import double
from twolayer.theory.formulas import phase_retrieval as theory

if TYPE_CHECKING:
    import xarray as xr


@pytest.fixture(scope="module")
def one_neuron() -> "xr.Dataset":
    return one()


@pytest.mark.slow
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


def judged(prediction: Prediction, times: np.ndarray, name: str = "ode_at_finite_d") -> tuple[str, str]:
    finding = judge_exit({name: prediction}, Sample(times, 10.0))
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


@pytest.mark.long
def test_two_neurons_are_measured_where_the_noisy_ode_says():
    result = tl.exit_time(*setting(2, 1000, 0.1), threshold=0.05, replicas=512, starts=64, seed=1)
    measured, ode, error = measured_sample(result), measured_sample(result, "ode"), error_of(result, "ode")
    assert abs(measured.mean - predicted(result, "ode_at_finite_d")) < 5 * measured.standard_error + error
    assert abs(measured.mean - predicted(result, "ode_with_noise")) < 5 * measured.standard_error + error
    assert measured.mean + 10 * measured.standard_error < predicted(result, "ode")
    assert abs(ode.mean - predicted(result, "ode")) < 5 * ode.standard_error
    assert error_of(result, "quenched") < 0.01 and predicted(result, "annealed") < predicted(result, "quenched")
    assert any("do not end near the target" in note for note in notes(result))


def test_the_same_seed_gives_the_same_numbers(one_neuron):
    again = one()
    assert again.identical(one_neuron)


def test_an_ode_that_never_exits_is_said_so(one_neuron):
    result = one_neuron.copy(deep=True)
    result.predicted.loc["ode"] = np.inf
    data = json.loads(json.dumps(plain(result), allow_nan=False))
    assert data["ode"] is None and data["steps"]["ode"] is None and "never" in tl.summary(result)


@pytest.mark.long
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


@pytest.mark.slow
def test_the_ode_exits_below_the_largest_threshold_and_not_above():
    """Eight neurons at the optimal rate come back; the level is that of a parabola through three of 512 points."""
    problem, training = setting(8, 1000, 0.0)
    asked = {"replicas": 0, "starts": 1, "until": 8.0}
    result = tl.exit_time(problem, training, threshold=0.05, **asked)
    largest, error = (float(result[f"largest_threshold{suffix}"][0]) for suffix in ("", "_error"))
    assert 0.05 < largest < 0.1 and 0.0 < error < 1e-3 * largest
    below, above = (tl.exit_time(problem, training, threshold=x * largest, **asked).ode for x in (0.999, 1.001))
    assert np.isfinite(below.values[0]) and np.isnan(above.values[0])


def test_a_given_start_has_one_solution():
    start = tl.GivenOverlaps([[1.0]], [[0.1]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000), start=start)
    result = tl.exit_time(problem, tl.SGD(0.05, constraint=tl.Sphere()), threshold=0.2, replicas=0)
    assert result.sizes["start"] == 1 and "measured" not in result and "quenched" not in result.estimate
    assert predicted(result, "ode") == pytest.approx(float(theory.exact_times(0.01, 0.05, 0.0, 0.2)), abs=1e-8)
    assert plain(result)["measured"] is None and "measured" not in tl.summary(result)


def test_without_an_ode_there_is_a_reason():
    problem, _ = setting(1, 1000, 0.0)
    training = tl.SGD(0.02, constraint=tl.Sphere(), method=tl.Adam())
    result = tl.exit_time(problem, training, replicas=0, starts=REPLICAS)
    assert "predicted" not in result and "ode" not in result and result.attrs["outcome"] == "undecided"
    assert any(note.startswith("No ODE") and "rotations" in note for note in notes(result))
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


def test_it_is_public():
    assert tl.exit_time is module_function


def test_the_first_theory_that_applies_is_asked():
    """And there is always one, which may have nothing to say."""
    retrieval = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(300))
    committee = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(300))
    sphere = tl.SGD(0.05, constraint=tl.Sphere())
    schedule = tl.Schedule([sphere, tl.SGD(0.01, constraint=tl.Sphere())], switches=[1.0])
    asked = {
        FromSaddle: [(retrieval, sphere)],
        FromPlateau: [(retrieval, tl.SGD(0.05)), (retrieval, tl.SGD(0.05, layers=tl.Both(), constraint=tl.Sphere()))],
        FromODE: [(committee, sphere), (retrieval, schedule), (retrieval, tl.SGD(0.05, momentum=0.5))],
    }
    for kind, settings in asked.items():
        assert [type(predictor_of(*setting)) for setting in settings] == [kind] * len(settings)
    assert all(PREDICTORS[-1].applies(*setting) for settings in asked.values() for setting in settings)
