"""``twolayer ntk``: the promised keys, what is written, and what is refused."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import twolayer as tl
from twolayer.cli import main
from twolayer.data.deviation import OUTCOMES
from twolayer.experiment import read_lazy_spec


def test_json_has_the_promised_keys_and_figures_are_written(tmp_path, capsys):
    folder = tmp_path / "lazy"
    arguments = ["ntk", "sphere", "--n", "80", "--d", "6", "--width", "64", "--steps", "10", "--shares", "3"]
    assert main([*arguments, "--test", "50", "--json", "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    answer = json.loads(out)
    assert answer["n"] == 80 and answer["complexity"] > 0 and len(answer["eigenvalues"]) == 80
    assert answer["lambda_min"] == min(answer["eigenvalues"]) > 0
    assert len(answer["shares"]) == 3 and "random labels" in err
    names = ["complexity.pdf", "complexity.png", "result.nc", "spec.json", "summary.json"]
    names += ["training.pdf", "training.png"]
    assert sorted(path.name for path in folder.iterdir()) == names == sorted(answer["files"])
    assert answer["seed"] == 0 and answer["versions"]["twolayer"] and answer["outcome"] in OUTCOMES
    assert f"Verdict: {answer['outcome']}: {OUTCOMES[answer['outcome']]}" in err
    result = tl.load(folder / "result.nc")
    assert result.attrs["spec_hash"] == answer["spec_hash"] and float(result.complexity[0]) == answer["complexity"]
    assert main(["ntk", str(folder / "spec.json"), "--json", "--quiet"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**answer, **again} == answer | {"source": again["source"]} and len(again) == len(answer) - 2


SPEC = """
[data]
source = "sphere"
n = 40
d = 6
test = 30

[problem.student]
p = 64
activation = "relu"

[problem.start]
kind = "AntisymmetricStart"

[training]
learning_rate = 0.75

[run]
steps = 10
seed = 3
"""


def test_a_specification_and_the_short_form_give_the_same(tmp_path, capsys):
    path = tmp_path / "lazy.toml"
    path.write_text(SPEC)
    answers = []
    short = "ntk sphere --n 40 --d 6 --test 30 --width 64 --steps 10 --eta 0.125 --seed 3".split()
    for arguments in (["ntk", str(path)], short):
        assert main([*arguments, "--json", "--quiet"]) == 0
        answers.append(json.loads(capsys.readouterr().out) | {"source": ""})
    # By hash as well, but for the number of networks, which the file leaves to the default.
    hashes = [answer.pop("spec_hash") for answer in answers]
    assert answers[0] == answers[1] and hashes[0] != hashes[1]
    assert main(["ntk", str(path), "--set", "run.replicas=1", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["spec_hash"] == hashes[1]


def test_fields_of_the_short_form_are_changed(capsys):
    """An option and the field that it sets are one question, by hash."""
    short, answers = "ntk sphere --n 30 --d 5 --width 64 --steps 3".split(), []
    changes = ("problem.start.deviation=0.5", "data.test=20", "run.delta=0.2", "run.ridge=0.25")
    options = [part for change in changes for part in ("--set", change)]
    former = "--kappa 0.5 --test 20 --delta 0.2 --ridge 0.25".split()
    for arguments in (options, former, []):
        with warnings.catch_warnings():
            warnings.simplefilter("always" if arguments is former else "error", tl.TwolayerDeprecationWarning)
            assert main([*short, *arguments, "--json", "--quiet"]) == 0
        out, err = capsys.readouterr()
        answers.append(json.loads(out))
        assert ("use `--set run.delta=VALUE` instead" in err) == (arguments is former)
    assert answers[0] == answers[1]
    assert answers[0]["spec_hash"] != answers[2]["spec_hash"]


@pytest.mark.parametrize(
    ("changes", "option"),
    [(["training.learning_rate=0.625"], "--eta 0.125"), (["training.layers=Both"], "--layers both")],
)
def test_the_training_of_the_short_form_is_changed(changes, option, capsys):
    """Also where the short form states the layers alone; a learning rate is the step size times d."""
    hashes = []
    for arguments in (["--set", *changes], option.split()):
        assert main([*"ntk sphere --n 30 --d 5 --steps 3".split(), *arguments, "--json", "--quiet"]) == 0
        hashes.append(json.loads(capsys.readouterr().out)["spec_hash"])
    assert hashes[0] == hashes[1]


def test_fields_of_a_specification_are_changed(tmp_path, capsys):
    path = tmp_path / "lazy.toml"
    path.write_text(SPEC.replace("learning_rate = 0.75", 'layers = "Second"'))
    changes = ["problem.student.activation=erf", "problem.start.deviation=2", "run.shares=[0.0, 1.0]", "run.steps=4"]
    options = [part for change in changes for part in ("--set", change)]
    assert main(["ntk", str(path), *options, "--json", "--quiet"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["layers"], answer["activation"], answer["steps"]) == ("second", "erf", 4)
    assert len(answer["shares"]) == 2 and answer["outcome"] is None


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["first", "second"])
def test_the_specification_of_a_report_is_run_again(layers, tmp_path, capsys):
    """Samples come back by the table that names them, or as numbers where the file itself holds them."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 40)), np.where(rng.random(300) < 0.5, 1.0, -1.0)  # more numbers than a hash keeps
    (tmp_path / "inline.toml").write_text(
        f'[problem.inputs]\nkind = "Samples"\nX = {X.tolist()}\ny = {y.tolist()}\n'
        f'[problem.student]\np = 4\nactivation = "relu"\n[problem.start]\nkind = "AntisymmetricStart"\n'
        f'[training]\nlayers = "{layers.title()}"\n[run]\nsteps = 3\n'
        "replicas = 0\n"
    )
    np.savez(tmp_path / "a.npz", X=X, y=y)
    named = ["ntk", str(tmp_path / "a.npz"), "--n", "300", "--layers", layers, "--steps", "3"]
    hashes = []
    for number, arguments in enumerate((["ntk", str(tmp_path / "inline.toml")], named)):
        folder = tmp_path / str(number)
        assert main([*arguments, "--out", str(folder), "--quiet"]) == 0
        assert main(["ntk", str(folder / "spec.json"), "--json", "--quiet"]) == 0
        hashes.append((json.loads(capsys.readouterr().out)["spec_hash"], tl.load(folder).attrs["spec_hash"]))
    assert all(again == first for again, first in hashes)
    assert main(["ntk", str(folder / "spec.json"), "--set", "run.steps=2", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2


def test_the_example_is_read():
    spec = read_lazy_spec(Path(__file__).parents[2] / "examples" / "ntk" / "sphere.toml", ["problem.student.p=8"])
    assert isinstance(spec.problem.inputs, tl.Samples) and spec.ask.test is not None
    assert (spec.problem.p, spec.problem.inputs.n, spec.problem.d, spec.ask.test.n) == (8, 200, 10, 500)
    assert spec.training == tl.First() and len(spec.ask.shares) == 5


@pytest.mark.parametrize(
    "changes, words",
    [
        (["--set", "data.colour=1"], "no field 'colour'"),
        (["--set", "run.until=3"], "no field 'until'"),
        (["--set", "problem.inputs.kind=Gaussian"], "use one of them"),
        (["--set", "training.batch_size=3"], "all samples at each step"),
        (["--set", "problem.student.p=7"], "must be even"),
        (["--set", "training.learning_rate=1e9"], "2 / lambda_max"),
        (["--set", "data.n=0"], "`n`"),
        (["--set", "data=3"], "`data`: must be a table"),
        (["--width", "8"], "`--width` belongs to the short form"),
    ],
)
def test_a_bad_specification_is_refused_in_one_sentence(changes, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lazy.toml").write_text(SPEC)
    assert main(["ntk", "lazy.toml", *changes, "--out", "there"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1
    assert not Path("there").exists()


def test_test_errors_of_real_labels(capsys):
    arguments = ["ntk", "sphere", "--n", "60", "--d", "6", "--steps", "10", "--target", "z1 + z1*z2", "--test", "40"]
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)["test"]
    assert answer["n"] == 40 and answer["kernel"]["mean_square"] > 0 and answer["kernel"]["wrong_share"] is None
    assert answer["network"] is None and "test error, n = 40" in err


def test_matrix_free(capsys):
    arguments = ["ntk", "sphere", "--n", "80", "--d", "6", "--steps", "10", "--json", "--quiet"]
    answers = []
    for method in ("exact", "free"):
        assert main([*arguments, "--set", f"run.method={method}"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert [each["method"] for each in answers] == ["exact", "free"]
    assert answers[1]["complexity"] == pytest.approx(answers[0]["complexity"], rel=1e-9)
    assert {"n", "lambda_min", "complexity", "eigenvalues"} <= set(answers[1])


def test_a_file_and_a_target(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", X=rng.standard_normal((40, 5)), y=np.arange(40) % 3)
    assert main(["ntk", str(tmp_path / "a.npz"), "--classes", "2", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 40
    assert main(["ntk", str(tmp_path / "a.npz"), "--target", "z1*z2 + cos(z3) - 1"]) == 0
    out = capsys.readouterr().out
    assert "target z1*z2 + cos(z3) - 1" in out and "(sharp)" in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["mnist", "--data-dir", "nowhere"], "put 'mnist.npz'"),
        (["sphere", "--n", "20", "--eta", "50"], "2 / lambda_max"),
        (["sphere", "--n", "20", "--target", "z1**3"], "odd powers"),
        (["sphere", "--n", "20", "--target", "z21"], "21 fields"),
        (["sphere", "--n", "20", "--classes", "a"], "--classes"),
        (["sphere", "--n", "20", "--shares", "1"], "--shares"),
        (["sphere", "--n", "20", "--set", "run.method=fast"], "method"),
        (["sphere", "--n", "20", "--set", "run.devices=99"], "devices"),
        (["absent.npz"], "There is no file"),
        (["absent.toml"], "There is no specification file"),
        (["sphere", "--n", "20", "--set", "run.until=3"], "no field 'until'"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ntk", *arguments, "--out", "there"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
