"""The check button: predicted directions by giant steps, slopes of escape times."""

import dataclasses

import numpy as np
import pytest

import twolayer as tl
from twolayer.analyses.learnable.verification import check


@pytest.mark.slow
def test_giant_steps_find_the_predicted_directions_in_the_predicted_order():
    found = tl.learn("z1 + z1*z2", verify=True, largest=30)
    giant = found.checks.giant_steps
    assert giant.agrees and giant.predicted == (("z1",), ("z2",)) and found.checks.reused_batch.agrees
    assert giant.cosines[0, 0] > 0.1 and giant.cosines[0, 1] < 1e-9 and giant.cosines[1, 1] > 1e-3
    assert found.checks.slope is None and "No slope" in str(found) and "as predicted" in str(found)
    assert found.to_dict()["verify"]["giant_steps"]["agrees"]


def test_a_wrong_prediction_is_noticed():
    right = tl.learn("z1 + z1*z2").analysis
    wrong = tl.learn("z2 + z1*z2").analysis
    # The staircase of one target, run on another: the check must not agree.
    mixed = dataclasses.replace(right, staircase=wrong.staircase)
    assert not check(mixed, largest=30).giant_steps.agrees


@pytest.mark.slow
def test_one_batch_again_finds_what_fresh_batches_do_not():
    checks = check(tl.learn("he2(z1) + he3(z2)").analysis, largest=10)
    fresh, again = checks.giant_steps, checks.reused_batch
    assert fresh.agrees and np.all(fresh.cosines < 1e-9)
    # E[z2 | y] is not zero, and z1 is protected by its symmetry
    assert again.agrees and again.directions == ("z2", "z1") and again.predicted == (("z2",),)
    assert again.cosines[1, 0] > 1e-2 > 10 * again.cosines[1, 1]


@pytest.mark.slow
def test_a_run_may_stop_at_its_first_threshold():
    problem = tl.Problem(tl.MultiIndex("z1 + 0.01*z2"), tl.Student(1, "linear"), tl.Gaussian(50))
    training = tl.SGD(0.1, constraint=tl.Sphere())
    settings = {"until": 3.0, "save": 2, "replicas": 16, "overlap_threshold": 0.7}
    run = tl.evolve(problem, training, tl.OverlapSGD(), stop_at_threshold="any", **settings)
    whole = tl.evolve(problem, training, tl.OverlapSGD(), stop_at_threshold=True, **settings)
    first = run.overlap_time.values[:, 0]
    assert np.all(np.isfinite(first)) and np.all(run.status.values == 3)
    assert np.array_equal(first, whole.overlap_time.values[:, 0]) and np.all(whole.status.values == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "expected"), [("z1 + z1*z2", 1.0), ("he2(z1)", None), ("he3(z1)", 2.0)])
def test_slopes_of_the_escape_time(text, expected):
    slope = tl.learn(text, verify=True).checks.slope
    assert slope.agrees and abs(slope.slope / slope.predicted - 1.0) < 0.1
    assert np.log10(slope.dimensions[-1] / slope.dimensions[0]) >= 3.0
    assert expected is None or slope.predicted == expected
