"""``twolayer ntk``: the promised keys, what is written, and what is refused."""

import json

import numpy as np
import pytest

from twolayer.cli import main


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
    names = ["complexity.pdf", "complexity.png", "summary.json", "training.pdf", "training.png"]
    assert sorted(path.name for path in folder.iterdir()) == names == sorted(answer["files"])


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
        assert main([*arguments, "--method", method]) == 0
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
        (["sphere", "--n", "20", "--method", "fast"], "method"),
        (["sphere", "--n", "20", "--devices", "99"], "devices"),
        (["absent.npz"], "does not exist"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ntk", *arguments, "--out", "there"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
