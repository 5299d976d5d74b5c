"""The check button: predicted directions by giant steps, slopes of escape times."""

import dataclasses

import numpy as np
import pytest

import twolayer as tl
from twolayer import plots
from twolayer.analyses.learnable.checks import Checks, GiantSteps, Slope, run_checks
from twolayer.analyses.learnable.learn import Asked, analysed
from twolayer.analyses.learnable.learn_result import Learned, label_learned


@pytest.mark.long
def test_giant_steps_find_the_predicted_directions_in_the_predicted_order():
    found = analysed(Asked("z1 + z1*z2", verify=True, largest=30))
    giant = found.checks.giant_steps
    assert giant.agrees and giant.predicted == (("z1",), ("z2",)) and found.checks.reused_batch.agrees
    assert giant.cosines[0, 0] > 0.1 and giant.cosines[0, 1] < 1e-9 and giant.cosines[1, 1] > 1e-3
    assert found.checks.slope is None and "No slope" in str(found) and "as predicted" in str(found)
    assert found.to_dict()["verify"]["giant_steps"]["agrees"] and found.to_dict()["outcome"] == "agrees"


@pytest.mark.slow
def test_a_wrong_prediction_is_noticed():
    right = tl.learnability("z1 + z1*z2")
    wrong = tl.learnability("z2 + z1*z2")
    # The staircase of one target, run on another: the check must not agree.
    mixed = dataclasses.replace(right, staircase=wrong.staircase)
    checks = run_checks(mixed, largest=30)
    assert not checks.giant_steps.agrees and checks.outcome == "differs"
    assert "The order of directions differs from BatchMap" in checks.verdict and "Verdict: differs: " in str(checks)


@pytest.mark.long
def test_one_batch_again_finds_what_fresh_batches_do_not():
    checks = run_checks(tl.learnability("he2(z1) + he3(z2)"), largest=10)
    fresh, again = checks.giant_steps, checks.reused_batch
    assert fresh.agrees and np.all(fresh.cosines < 1e-9)
    # E[z2 | y] is not zero, and z1 is protected by its symmetry
    assert again.agrees and again.directions == ("z2", "z1") and again.predicted == (("z2",),)
    assert again.cosines[1, 0] > 1e-2 > 10 * again.cosines[1, 1]


@pytest.mark.long
def test_a_run_may_stop_at_its_first_threshold():
    problem = tl.Problem(tl.MultiIndex("z1 + 0.01*z2"), tl.Student(1, "linear"), tl.Gaussian(50))
    training = tl.SGD(0.1, constraint=tl.Sphere())
    settings = {"until": 3.0, "save": 2, "replicas": 16, "overlap_threshold": 0.7}
    run = tl.evolve(problem, training, tl.OverlapSGD(), stop_at_threshold="any", **settings)
    whole = tl.evolve(problem, training, tl.OverlapSGD(), stop_at_threshold=True, **settings)
    first = run.overlap_time.values[:, 0]
    assert np.all(np.isfinite(first)) and np.all(run.status.values == 3)
    assert np.array_equal(first, whole.overlap_time.values[:, 0]) and np.all(whole.status.values == 0)


@pytest.mark.long
@pytest.mark.parametrize(("text", "expected"), [("z1 + z1*z2", 1.0), ("he2(z1)", None), ("he3(z1)", 2.0)])
def test_slopes_of_the_escape_time(text, expected):
    slope = analysed(Asked(text, verify=True)).checks.slope
    assert slope.agrees and abs(slope.slope / slope.predicted - 1.0) < 0.1
    assert np.log10(slope.dimensions[-1] / slope.dimensions[0]) >= 3.0
    assert expected is None or slope.predicted == expected


def slope_of(measured, error):
    return Slope(1, "steps", (30, 300), (30.0, 300.0), (1.0, 1.0), (256, 256), measured, error, 1.0)


@pytest.mark.parametrize(
    ("measured", "error", "outcome"),
    [
        (1.01, 0.02, "agrees"),
        (1.08, 0.005, "finite-d effect"),
        (1.3, 0.02, "differs"),
        (1.3, 0.4, "consistent"),
        (np.nan, np.nan, "undecided"),
    ],
)
def test_a_slope_ends_in_one_of_the_five_words(measured, error, outcome):
    checks = Checks(None, None, slope_of(measured, error), ())
    assert checks.outcome == outcome == checks.to_dict()["slope"]["outcome"]
    assert f"Verdict: {outcome}: " in str(checks) and checks.slope.finding.sentence == checks.verdict


def assert_survives(result, tmp_path):
    again = tl.load(tl.save(result, tmp_path / "learn.nc"))
    assert again.identical(result) and tl.summary(again) == tl.summary(result)
    assert "Verdict: " in tl.summary(again) and again.attrs["verdict"] in tl.summary(again).replace("\n", " ")
    assert result.check_measured.values[0] == 1.0 and result.d.values.tolist() == [30, 300]
    assert len(plots.staircase(again).axes) == 2


def test_a_result_with_checks_survives_the_disk_with_its_verdict(tmp_path):
    there = np.array([[True]])
    steps = GiantSteps("BatchMap", "4 units", (("z1",),), np.array([[0.3]]), ("z1",), there, there, ~there, 1e-3, 1e-6)
    checks = Checks(steps, None, slope_of(1.08, 0.005), ("A note.",))
    result = label_learned(Learned(tl.learnability("z1"), None, None, checks), Asked("z1", verify=True).question, 0)
    assert result.attrs["outcome"] == "finite-d effect" and list(result.attrs)[:3] == ["kind", "outcome", "verdict"]
    assert result.check_outcome.values.tolist() == ["agrees", "finite-d effect"]
    assert_survives(result, tmp_path)


@pytest.mark.long
def test_a_verified_result_ends_in_a_verdict(tmp_path):
    result = tl.learn("z1", verify=True, largest=300)
    assert result.attrs["outcome"] in ("agrees", "consistent", "finite-d effect")
    assert result.check.values.tolist() == ["giant steps", "one batch again", "escape against d"]
    assert_survives(result, tmp_path)
