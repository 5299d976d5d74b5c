"""``twolayer learn``: the promised keys, what is written, and what is refused."""

import json

import pytest

import twolayer as tl
from twolayer.cli import main

FILES = ["learn.nc", "learn.pdf", "learn.png", "spec.json", "summary.json"]


def test_json_has_the_promised_keys_and_the_figure_is_written(tmp_path, capsys):
    folder = tmp_path / "deep" / "folder"
    assert main(["learn", "z1 + he3(z2)", "--student", "relu", "--json", "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    answer = json.loads(out)
    assert answer["information_exponent"] == 1 and answer["leap"] == 3 and answer["generative_exponent"] == 1
    assert [(stage["leap"], stage["directions"]) for stage in answer["order"]] == [(1, ["z1"]), (3, ["z2"])]
    assert answer["order"][1]["excluded"][0]["proof"] == "exactly"
    assert answer["student"]["orders"] == [1, 2]
    assert "giant steps" in err
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert json.loads((folder / "summary.json").read_text())["order"] == answer["order"]
    assert tl.load(folder).attrs["target"] == "z1 + he3(z2)"
    assert main(["learn", str(folder / "spec.json"), "--json", "--quiet"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == {name: value for name, value in answer.items() if name not in ("files", "folder")}


def test_names_and_the_list(capsys):
    assert main(["learn", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["targets"]
    assert listed["he3"]["information_exponent"] == 3 and len(listed) >= 25
    assert main(["learn", "he3"]) == 0
    assert "information exponent  3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["foo(z1)"], "'foo'"),
        (["z1 +"], "cannot be read"),
        ([], "EXPRESSION"),
        (["z1", "--student", "rellu"], "rellu"),
        (["z1", "--d", "100"], "student"),
        (["__import__('os')"], "__import__"),
        (["spec.json", "--p", "1"], "`--p` belongs to the short form"),
        (["z1", "--set", "d=3"], "`--set`"),
        (["z1", "--loss", "hing"], "did you mean 'Hinge'"),
        (["z1", "--loss", "hinge"], "needs labels that are signs"),
        (["spec.json", "--loss", "huber"], "`--loss` belongs to the short form"),
    ],
)
def test_bad_input_is_one_sentence(arguments, word, capsys):
    assert main(["learn", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and word in err


def test_the_loss_decides_what_is_learned_also_from_a_report(tmp_path, monkeypatch, capsys):
    """Huber's loss cuts large labels of He3, which leaves them a linear part."""
    monkeypatch.chdir(tmp_path)
    for arguments, exponent in ((["he3(z1)"], 3), (["he3(z1)", "--loss", "huber", "--out", "cut"], 1)):
        assert main(["learn", *arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["information_exponent"] == exponent
    assert main(["learn", "cut/spec.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["information_exponent"] == 1
