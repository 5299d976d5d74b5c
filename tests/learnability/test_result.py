"""The result of `learn`: labelled, saved, summarised and drawn."""

import html
import json

import numpy as np
import pytest

import twolayer as tl
from twolayer import plots


def test_a_result_says_what_the_analysis_says():
    result, analysis = tl.learn("z1 + z1*z2 + he3(z3)"), tl.learnability("z1 + z1*z2 + he3(z3)")
    assert (result.information_exponent, result.leap, result.generative_exponent) == (1, 3, 1)
    assert result.direction.values.tolist() == ["z1", "z2", "z3"] and result.stage_leap.values.tolist() == [1, 1, 3]
    assert result.direction_stage.values.tolist() == [1, 2, 3]
    np.testing.assert_allclose(np.abs(result.vector), np.eye(3), atol=1e-12)
    assert json.loads(result.attrs["answer"])["order"] == analysis.to_dict()["order"]
    assert tl.summary(result) == str(analysis)
    assert result.attrs["precision"] == "float64"
    assert result.stage_size.attrs["units"] == "standard deviations of the target"
    online = result.sel(protocol="online SGD, one sample a step")
    assert online.steps_exponent == 2.0 and not online.has_log


def test_an_analysis_shows_its_report_and_not_its_fields():
    analysis = tl.learnability("z1 + he3(z2)")
    assert repr(analysis) == str(analysis) and "leap" in repr(analysis)
    shown = analysis._repr_html_()
    assert shown.startswith("<pre>") and html.unescape(shown[5:-6]) == str(analysis)


@pytest.mark.parametrize(
    "question",
    [
        ("z1 + he3(z2)", "relu"),
        ("he2(z1) + z1*z2", "erf"),  # the student sees no stage at all
        ("z1*z2*z3*z4*z5 + he2(z6)",),  # beyond four fields there is no generative exponent
        (tl.Committee(2, "erf", P=[[1.0, 0.3], [0.3, 1.0]]),),
    ],
    ids=["a student", "nothing seen", "six fields", "a committee"],
)
def test_a_result_survives_the_disk_and_is_drawn_from_there(question, tmp_path):
    result = tl.learn(*question)
    again = tl.load(tl.save(result, tmp_path / "learn.nc"))
    assert again.identical(result) and tl.summary(again) == tl.summary(result)
    assert len(plots.staircase(again).axes) == 1
    assert ("student_leap" in again) == (len(question) == 2)


def test_two_questions_have_two_hashes():
    hashes = {tl.learn("z1", **size).attrs["spec_hash"] for size in ({}, {"noise": 0.1}, {"student": "relu"})}
    assert len(hashes) == 3
    assert tl.learn("z1").identical(tl.learn("z1"))


def test_what_is_no_result_is_not_drawn():
    with pytest.raises(tl.InvalidInput, match="what `learn` returned"):
        plots.staircase("z1")
    assert len(plots.staircase(tl.learnability("z1*z2")).axes) == 1
