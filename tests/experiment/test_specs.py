"""Specifications in files: what is read, what is refused, and with which words."""

from pathlib import Path

import numpy as np
import pytest

import twolayer as tl
from tests.systems import SMALL_FILE
from twolayer.experiment import RunSpec, demo_spec, read_spec, run_spec
from twolayer.experiment.specs import parse_spec
from twolayer.specification.codec import content_hash, from_json, to_json

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))

SMALL = SMALL_FILE.replace("[problem]\n", "[problem]\nnoise = 0.01\n")


def test_a_file_gives_the_objects_it_names(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    spec = read_spec(path)
    assert (spec.title, spec.ask.until, spec.ask.save, spec.ask.replicas, spec.ask.seed) == ("small", 1.0, 4, 2, 0)
    assert spec.problem.target == tl.Committee(2, "erf")
    assert spec.problem.noise == 0.01
    assert isinstance(spec.problem.start, tl.RandomStart)
    assert [type(each) for each in spec.descriptions] == [tl.DirectSGD, tl.SaadSolla]
    assert spec.ask.risk_threshold is None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_read_and_rebuilt_from_its_json(path):
    spec = read_spec(path)
    assert spec.title
    again = from_json(to_json(spec), RunSpec)
    assert content_hash(again) == content_hash(spec)


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= {
        "erf_committee",
        "phase_retrieval_p1",
        "phase_retrieval_p8",
        "relu_two_index",
    }


def test_the_demo_comes_with_the_package():
    spec = demo_spec()
    assert spec.title
    assert spec.problem.k == 2


@pytest.mark.long
def test_run_spec_compares_what_is_asked():
    told = []
    tree = run_spec(parse_spec(SMALL, ["run.save=[0.5, 1.0]"]), lambda name, fraction: told.append((name, fraction)))
    assert list(tree.children) == ["DirectSGD", "SaadSolla"]
    np.testing.assert_allclose(tree["SaadSolla"].time.values, [0.0, 0.5, 1.0], atol=0.5 / 40)  # to the nearest step
    assert {name for name, _ in told} == {"DirectSGD", "SaadSolla"}


@pytest.mark.parametrize(
    ("override", "value", "expected"),
    [
        ("training.learning_rate=0.25", lambda spec: spec.training.learning_rate, 0.25),
        (" training.learning_rate = 0.25 ", lambda spec: spec.training.learning_rate, 0.25),
        ("problem.student.activation=relu", lambda spec: type(spec.problem.student.activation).__name__, "Relu"),
        ('problem.student.activation="relu"', lambda spec: type(spec.problem.student.activation).__name__, "Relu"),
        ("problem.start.norm=0.5", None, None),
        ("problem.start={kind='RandomStart', norm=0.5}", lambda spec: spec.problem.start.norm, 0.5),
        (
            "training.reuse={kind='Reused', alpha=2.0, replacement=false}",
            lambda spec: spec.training.reuse,
            tl.Reused(2.0, replacement=False),
        ),
        ("training.constraint=Sphere", lambda spec: spec.training.is_spherical, True),
        (
            "training.constraint={kind='Sphere', riemannian=true}",
            lambda spec: spec.training.constraint,
            tl.Sphere(riemannian=True),
        ),
        ("problem.loss=Correlation", lambda spec: spec.problem.loss, tl.Correlation()),
        ("run.save=[0.1, 0.2]", lambda spec: spec.ask.save, (0.1, 0.2)),
        ("run.descriptions=SaadSolla", lambda spec: len(spec.descriptions), 1),
        ("run.risk_threshold=0.1", lambda spec: spec.ask.risk_threshold, 0.1),
        ("title=a = b", lambda spec: spec.title, "a = b"),
    ],
)
def test_overrides_change_and_make_fields(override, value, expected):
    if value is None:  # a table that is made must say its kind, like one in a file
        with pytest.raises(tl.InvalidInput, match=r"`problem.start`: needs a `kind`"):
            parse_spec(SMALL, [override])
    else:
        assert value(parse_spec(SMALL, [override])) == expected


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training", "form path.to.key=value"),
        ("=3", "form path.to.key=value"),
        ("training..x=3", "form path.to.key=value"),
        ("training.learning_rate.x=3", "`training.learning_rate` is 0.5"),
        ("training.learning_rat=3", "did you mean 'learning_rate'"),
        ("trainingg.learning_rate=3", "did you mean 'training'"),
        ("problem.student.p=0", "problem.student"),
        ("problem.target.kind=Kommittee", "did you mean 'Committee'"),
        ("run.descriptions=[]", "at least one"),
        ("run.descriptions=[3]", "descriptions"),
        ("run.descriptions=['SadSolla']", "`run.descriptions[0]`"),
        ("run.untyl=3", "did you mean 'until'"),
        ("run.problem=3", "no field 'problem'"),
        ("run.save=[]", "empty list"),
        ("run.save=[nan]", "save"),
        ("run.save=true", "save"),
        ("run.replicas=0", "replicas"),
        ("run.seed=-1", "seed"),
        ("run=3", "must be a table"),
        ("problem=3", "`problem`"),
        ("title=3", "title"),
    ],
)
def test_bad_overrides_are_refused_in_one_sentence(override, words):
    with pytest.raises(tl.InvalidInput) as raised:
        parse_spec(SMALL, [override])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "`[problem]`"),
        (SMALL.replace("[training]\nlearning_rate = 0.5", ""), "`[training]`"),
        ("[problem\n", "line 1"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("x = " + "9" * 5000, "not valid TOML"),
        ("[problemm]\n", "did you mean 'problem'"),
    ],
)
def test_bad_texts_are_refused_in_one_sentence(text, words):
    with pytest.raises(tl.InvalidInput) as raised:
        parse_spec(text)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(tl.InvalidInput, match="no specification file"):
        read_spec(tmp_path / "none.toml")
    with pytest.raises(tl.InvalidInput, match="is a folder"):
        read_spec(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"title = '\xe9'")
    with pytest.raises(tl.InvalidInput, match="UTF-8"):
        read_spec(latin)
    with pytest.raises(tl.InvalidInput, match="cannot be read"):
        read_spec(latin / "below_a_file.toml")
