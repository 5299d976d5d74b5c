"""`explain` and `derive` as results: shown, saved, loaded; schedules explained phase by phase."""

import json

import pytest

import twolayer as tl

PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100))
SCHEDULE = tl.Schedule([tl.SGD(0.05), tl.SGD(0.1, layers=tl.Second(2.0))], [3.0])
FIXED = tl.Schedule([tl.SGD(0.05, reuse=tl.Reused(2.0)), tl.SGD(0.1, reuse=tl.Reused(2.0))], [3.0])


@pytest.fixture(scope="module")
def explanation():
    return tl.explain(PROBLEM, SCHEDULE)


def rows(explanation):
    return {row.description: row for row in explanation.descriptions}


def test_a_description_applies_to_a_schedule_if_it_covers_every_phase(explanation):
    assert rows(explanation)["SaadSolla"].applies and rows(explanation)["OverlapSGD"].applies
    each = [rows(tl.explain(PROBLEM, phase)) for phase in SCHEDULE.phases]
    for name, row in rows(explanation).items():
        assert row.applies == all(single[name].applies for single in each), name
    assert rows(explanation)["DMFT"].statement.startswith("phase 1: ")


def test_the_clock_is_told_for_each_phase(explanation):
    first, second = explanation.clock.splitlines()
    assert first.startswith("Phase 1, until time 3: One unit of time is 2000 samples")
    assert second.startswith("Phase 2, from then on: One unit of time is 1000 samples")


def test_on_a_fixed_set_what_cannot_carry_it_from_phase_to_phase_does_not_apply():
    applying = [name for name, row in rows(tl.explain(PROBLEM, FIXED)).items() if row.applies]
    assert applying == ["DMFT", "DirectSGD"]


def test_the_moments_are_those_that_the_training_takes():
    """A sample that is used again has forces of its own, and a fixed set leaves the engines the risk alone."""
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(100), noise=0.1)
    once, twice, fixed = (
        {row.moment: row for row in tl.explain(problem, tl.SGD(1.0, reuse=reuse)).moments}
        for reuse in (tl.Fresh(), tl.Repeated(2), tl.Reused(2.0))
    )
    assert list(once) == list(twice) == ["excess_risk", "chi", "v", "phi_hd"] and list(fixed) == ["excess_risk"]
    assert twice["excess_risk"].engine == once["excess_risk"].engine == fixed["excess_risk"].engine
    for name in ("chi", "v", "phi_hd"):
        assert twice[name].engine.startswith("samples used again") and "again" not in once[name].engine
        assert twice[name].fields == 4 and twice[name].error > once[name].error


def test_an_explanation_is_saved_and_shown_like_any_result(explanation, tmp_path):
    again = tl.load(tl.save(explanation, tmp_path / "explain.nc"))
    assert again.attrs["kind"] == "explanation" and again.identical(explanation.to_dataset())
    assert tl.summary(again) == tl.summary(explanation) == str(explanation) == repr(explanation)
    assert bool(again.applies.sel(description="SaadSolla")) and again.sizes["moment"] == len(explanation.moments)
    assert json.loads(again.attrs["answer"]) == json.loads(json.dumps(explanation.to_dict()))
    shown = explanation._repr_html_()
    assert shown.count("<table>") == 2 and "limit d -&gt; infinity" in shown and "-> infinity" not in shown


def test_cautions_stand_in_the_notebook():
    assert "<b>Caution:</b>" in tl.explain(PROBLEM, tl.SGD(1000.0))._repr_html_()


def test_equations_are_saved_and_shown_like_any_result(tmp_path):
    equations = tl.derive(PROBLEM, tl.SGD(0.1, constraint=tl.Sphere()))
    again = tl.load(tl.save(equations, tmp_path / "equations.nc"))
    assert again.attrs["kind"] == "equations" and isinstance(equations, tl.Equations)
    assert str(again.text.sel(equation="dM_11/dt").values) == equations.equations()[0].text
    assert tl.summary(again) == tl.summary(equations) == repr(equations) == equations.text()
    assert "$$" in equations._repr_latex_()


def test_what_no_verb_returned_is_not_saved(tmp_path):
    with pytest.raises(tl.InvalidInput, match="must be what a verb returned, but is a str"):
        tl.save("text", tmp_path / "x.nc")


def test_results_show_their_verdict_and_their_cautions_first():
    with pytest.warns(tl.Caution, match="covers 5 steps"):
        tree = tl.compare(PROBLEM, tl.SGD(0.05), ["OverlapSGD", "SaadSolla"], until=0.0025, save=2, replicas=2)
    assert list(tree.attrs)[:5] == ["kind", "judge", "outcome", "verdict", "cautions"]
    dataset = tree["SaadSolla"].to_dataset()
    assert list(dataset.attrs)[:5] == ["kind", "description", "outcome", "verdict", "cautions"]
    assert "covers 5 steps" in dataset.attrs["cautions"] and "covers 5 steps" in tree.attrs["cautions"]
    for shown in (repr(tree), repr(dataset), dataset._repr_html_()):
        assert "verdict" in shown and "cautions" in shown  # xarray leaves out the middle of a long list
    assert "Caution: `SaadSolla` takes time to be continuous" in tl.summary(tree)
