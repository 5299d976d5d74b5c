"""What is asked, in one object: one specification, one hash, times that a limit theory keeps, thresholds that stop."""

import dataclasses
import json
from functools import partial
from typing import Any, get_type_hints

import numpy as np
import pytest

import twolayer as tl
from tests.systems import linear
from twolayer.analyses.lazy.lazy_ask import NTKFields
from twolayer.ask import AskFields, RunSpec
from twolayer.experiment import parse_spec, read_spec
from twolayer.specification.codec import from_json, to_json
from twolayer.sweeps.over_grid import make_spec

START = tl.GivenOverlaps(Q=[[1.0]], M=[[0.3]])
TIMES = [0.31, 0.7772, 1.0]


def problem(d):
    return tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d), start=START)


def test_a_limit_theory_is_saved_at_the_times_asked_whatever_d():
    results = [tl.evolve(problem(d), tl.SGD(0.05), tl.SaadSolla(), until=1.0, save=TIMES) for d in (7, 1000)]
    for result in results:
        assert result.time.values.tolist() == [0.0, *TIMES]
        assert result.attrs["time_axis"] == "the times asked for"
    np.testing.assert_array_equal(results[0].M.values, results[1].M.values)
    # Steps and samples are those of the clock, as real numbers.
    np.testing.assert_allclose(results[0].samples.values[1:], np.array(TIMES) * 7 / 0.05, rtol=1e-14)


def test_a_schedule_of_a_limit_theory_switches_at_the_time_asked():
    training = tl.Schedule([tl.SGD(0.06), tl.SGD(0.05)], switches=[0.5003])
    results = [tl.evolve(problem(d), training, tl.SaadSolla(), until=1.0, save=TIMES) for d in (7, 1000)]
    assert results[0].time.values.tolist() == [0.0, *TIMES]
    np.testing.assert_array_equal(results[0].M.values, results[1].M.values)
    samples = 7 * (0.5003 / 0.06 + (1.0 - 0.5003) / 0.05)
    assert float(results[0].samples[-1]) == pytest.approx(samples, rel=1e-12)


def test_a_comparison_has_one_axis_and_says_which():
    options = {"until": 1.0, "save": TIMES, "replicas": 2}
    tree = tl.compare(problem(50), tl.SGD(0.1), [tl.OverlapSGD(), tl.SaadSolla()], **options)
    times = tree["SaadSolla"].time.values
    np.testing.assert_array_equal(times, tree["OverlapSGD"].time.values)
    assert tree.attrs["time_axis"] == "the steps nearest to the times asked for"
    assert np.all(np.abs(times[1:] - TIMES) <= 0.5 * 0.1 / 50 + 1e-12) and np.any(times[1:] != TIMES)
    alone = tl.compare(problem(50), tl.SGD(0.1), [tl.SaadSolla()], **options)
    assert alone["SaadSolla"].time.values.tolist() == [0.0, *TIMES]


DESCRIPTIONS = [
    *(tl.SaadSolla(), tl.OverlapSGD(), tl.DirectSGD(), tl.BatchMap(), tl.HDMF(), tl.MeanField()),
    tl.DMFT(samples=2**10),
    pytest.param(tl.SDE(), marks=pytest.mark.slow),
]


def test_every_description_is_asked_to_stop():
    named = {type(getattr(member, "values", (member,))[0]) for member in DESCRIPTIONS}
    public = {member for member in vars(tl.api).values() if isinstance(member, type)}
    assert named == {x for x in public if issubclass(x, tl.AbstractDescription)} - {tl.AbstractDescription}


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda d: type(d).__name__)
def test_every_description_stops_at_its_threshold(description):
    options = {"until": 2.0, "save": "linear:41", "replicas": 2, "overlap_threshold": 0.7}
    case = problem(60), tl.SGD(0.1)
    if isinstance(description, tl.DMFT):  # a step over all samples is too long for phase retrieval
        case = linear(1.0, 0.3, d=60), tl.SGD(0.05, reuse=tl.Reused(2.0))
    whole = tl.evolve(*case, description, **options)
    cut = tl.evolve(*case, description, **options, stop_at_threshold=True)
    for n in range(cut.sizes["replica"]):
        stop = float(cut.overlap_time[n, 0])
        assert stop == float(whole.overlap_time[n, 0]) and 0.0 < stop < 2.0
        late = cut.time.values > stop
        assert late.any() and cut.status.values[n] == 3
        assert np.all(np.isnan(cut.risk.values[n, late])) and np.all(np.isnan(cut.M.values[n, late]))
        np.testing.assert_array_equal(cut.risk.values[n, ~late], whole.risk.values[n, ~late])


def test_a_comparison_refuses_to_stop():
    with pytest.raises(tl.InvalidInput, match=r"`stop_at_threshold` is for `evolve`"):
        tl.compare(problem(60), tl.SGD(0.1), [tl.SaadSolla()], risk_threshold=0.1, stop_at_threshold=True)


def test_one_specification_and_one_hash_for_object_dataset_and_tree():
    ask = tl.Ask(until=0.5, save=3, replicas=2, seed=4)
    tree = tl.compare(problem(30), tl.SGD(0.1), [tl.OverlapSGD(), tl.SaadSolla()], ask)
    spec = from_json(tree.attrs["spec"], RunSpec)
    assert spec.key == tree.attrs["spec_hash"] == tree["SaadSolla"].attrs["spec_hash"]
    assert spec.ask.seed == 4 and spec.json == tree.attrs["spec"] == tree["OverlapSGD"].attrs["spec"]
    again = tl.compare(spec.problem, spec.training, spec.descriptions, spec.ask)
    for name in tree.children:
        np.testing.assert_array_equal(again[name].risk.values, tree[name].risk.values)


def test_a_title_changes_no_hash_and_an_answer_changes_it():
    text = '[problem]\ntarget = "PhaseRetrieval"\nstudent = {p = 1, activation = "square"}\n'
    text += 'inputs = {kind = "Gaussian", d = 9}\n[training]\nlearning_rate = 0.1\n'
    plain, titled = parse_spec(text), parse_spec('title = "x"\n' + text)
    assert plain.key == titled.key and plain.key != parse_spec(text, ["run.seed=1"]).key


def test_the_json_of_a_specification_is_read_again_with_overrides(tmp_path):
    ask = tl.Ask(until=0.5, save=[0.1, 0.5], replicas=3, overlap_threshold=0.5)
    training = tl.Schedule([tl.SGD(0.3), tl.SGD(0.05, constraint="sphere")], switches=[0.2])
    spec = RunSpec(problem(30), training, [tl.OverlapSGD(), tl.SaadSolla(rtol=1e-6)], ask, "a title")
    path = tmp_path / "spec.json"
    path.write_text(to_json(spec))
    again = read_spec(path)
    assert to_json(again) == to_json(spec)
    assert read_spec(path, ["run.replicas=5"]).ask.replicas == 5
    # Version 0.1.0 wrote what is asked beside the problem.
    old = json.loads(to_json(spec))
    old |= {name: value for name, value in old.pop("ask").items() if name not in ("kind", "stop_at_threshold")}
    path.write_text(json.dumps(old))
    assert to_json(read_spec(path)) == to_json(spec)


@pytest.mark.parametrize(
    "text", ["[1, 2]", '{"kind": "Problem"}', '{"kind": "RunSpec", "ask": 3}', "{", '{"problem": 1}']
)
def test_json_that_states_no_run_is_refused(tmp_path, text):
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(tl.InvalidInput):
        read_spec(path)


def test_keywords_and_object_say_the_same_and_unknown_ones_are_refused():
    ask = tl.Ask(until=0.5, save=3)
    one = tl.evolve(problem(30), tl.SGD(0.1), tl.SaadSolla(), ask, seed=3)
    other = tl.evolve(problem(30), tl.SGD(0.1), tl.SaadSolla(), until=0.5, save=3, seed=3)
    assert one.attrs == other.attrs
    with pytest.raises(tl.InvalidInput, match="did you mean"):
        tl.evolve(problem(30), tl.SGD(0.1), tl.SaadSolla(), threshold=0.1)


@pytest.mark.parametrize(("asked", "keywords"), [(tl.Ask, AskFields), (tl.NTKAsk, NTKFields)])
def test_the_fields_of_an_object_are_typed_as_the_keywords_of_the_verb(asked, keywords):
    fields = {field.name: str(field.type) for field in dataclasses.fields(asked)}
    assert fields == {name: str(of) for name, of in get_type_hints(keywords).items()}
    assert str(Any) not in fields.values()


PHASE = (
    tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100)),
    tl.SGD(0.08, constraint=tl.Sphere()),
)
ANALYSES = {
    "exit_time": (
        partial(tl.exit_time, *PHASE, starts=4),
        tl.Ask(until=30.0, replicas=3, seed=5),
        {"until": 30.0, "replicas": 3, "seed": 5},
    ),
    "optimise": (
        partial(tl.optimise, PHASE[0], tl.SGD(0.08, constraint=tl.Sphere())),
        tl.Ask(risk_threshold=1.0, replicas=2, seed=5),
        {"risk_threshold": 1.0, "starts": 2, "seed": 5},
    ),
    "learn": (partial(tl.learn, "z1"), tl.Ask(seed=5), {"seed": 5}),
    "fluctuations": (
        partial(tl.fluctuations, *PHASE),
        tl.Ask(until=0.5, save="linear:3", seed=5),
        {"times": [0.0, 0.25, 0.5], "seed": 5},
    ),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_takes_an_ask_as_evolve_does(name):
    """The same hash says that it is the same question, and a keyword beside it replaces its field."""
    analysis, ask, stated = ANALYSES[name]
    asked, by_name = analysis(ask=ask), analysis(**stated)
    assert asked.identical(by_name) and asked.attrs["spec_hash"] == by_name.attrs["spec_hash"]
    assert analysis(ask=ask, seed=6).attrs["spec_hash"] != asked.attrs["spec_hash"]
    with pytest.raises(tl.InvalidInput, match=f"`{name}` reads .*seed of an `Ask`, but `ask.overlap_threshold` is 0.7"):
        analysis(ask=tl.Ask(overlap_threshold=0.7))
    with pytest.raises(tl.InvalidInput, match="must be an Ask such as"):
        analysis(ask=3)


def test_fluctuations_begin_where_the_first_run_of_the_seed_does():
    """And are saved at the times of the same question to `evolve`, whose limit they are about."""
    ask = tl.Ask(until=0.5, save=4, seed=5)
    around, limit = tl.fluctuations(*PHASE, ask=ask), tl.evolve(*PHASE, tl.SaadSolla(), ask)
    np.testing.assert_array_equal(around.time, limit.time)
    assert around.attrs["seed"] == limit.attrs["seed"] == 5
    np.testing.assert_allclose(around.limit.sel(entry="M[0,0]"), limit.M[0, :, 0, 0], atol=1e-7)  # rtol of a step 1e-8
    with pytest.raises(tl.InvalidInput, match="`times` and `until` both say when to save"):
        tl.fluctuations(*PHASE, [0.0, 0.1], until=1.0)


def test_a_sweep_of_an_analysis_takes_an_ask_as_the_analysis_does():
    """It is the same sweep, kept in the same folder, as one whose arguments are stated by name."""
    over = {"training.learning_rate": [0.05, 0.08]}
    ask = tl.Ask(until=30.0, replicas=3, seed=5)
    of_exits = partial(make_spec, *PHASE, None, over=over, together=(), verb="exit_time")
    by_name = of_exits(ask=None, fields={"until": 30.0, "replicas": 3, "seed": 5, "threshold": 0.2})
    assert of_exits(ask=ask, fields={"threshold": 0.2}).json == by_name.json
    assert of_exits(ask=ask, fields={"seed": 6}).json != of_exits(ask=ask, fields={}).json
    with pytest.raises(tl.InvalidInput, match=r"`exit_time` reads .* but `ask\.save` is 7"):
        of_exits(ask=tl.Ask(save=7), fields={})
    with pytest.raises(tl.InvalidInput, match="must be an Ask such as"):
        of_exits(ask=tl.NTKAsk(), fields={})
