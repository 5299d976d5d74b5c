"""``twolayer sweep``: axes on the command line and in files, folders, forecasts, and bad input in one sentence."""

import json

import numpy as np
import pytest

import twolayer as tl
from twolayer.cli import main

SPEC = """
title = "phase retrieval"
[problem]
target = {kind = "PhaseRetrieval"}
student = {p = 1, activation = "square"}
inputs = {kind = "Gaussian", d = 100}
start = {kind = "GivenOverlaps", Q = [[1.0]], M = [[0.2]]}
[training]
learning_rate = 0.05
constraint = "Sphere"
[run]
descriptions = ["SaadSolla"]
until = 0.5
save = 3
[sweep.over]
"training.learning_rate" = [0.02, 0.05]
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


def test_a_file_and_options_span_the_grid(spec, capsys):
    """Run, run again, grow, and run the specification of the folder: only what is missing is computed."""
    assert main(["sweep", str(spec), "--out", "out", "--json", "--workers", "0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["cells"], report["done"], report["failed"], report["computed"]) == (2, 2, 0, 2)
    assert report["folder"] == "out" and set(report["files"]) == {"sweep.png", "sweep.pdf", "spec.json", "summary.json"}
    more = ["--over", "problem.noise=0,0.1", "--over", "training.learning_rate=lin:0.02:0.05:2"]
    assert main(["sweep", "out/spec.json", "--out", "out", "--json", "--workers", "0", *more]) == 0
    assert json.loads(capsys.readouterr().out)["computed"] == 2
    result = tl.load("out")
    assert result.sizes["noise"] == result.sizes["learning_rate"] == 2
    assert np.isfinite(result.excess_risk.values).all()


def test_axes_that_change_together(spec, capsys):
    options = ["--over", "problem.noise=0.1,0.2", "--together", "training.learning_rate, problem.noise"]
    assert main(["sweep", str(spec), "--out", "out", "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == 2
    assert tl.load("out").noise.dims == ("learning_rate",)


def test_a_forecast_computes_nothing(spec, capsys):
    options = ["--over", "problem.noise=0,0.1,-1", "--over", "problem.student.p=1,2", "--dry-run"]
    overrides = ["--set", 'problem.start={kind="RandomStart"}']
    assert main(["sweep", str(spec), "--json", *options, *overrides]) == 0
    forecast = json.loads(capsys.readouterr().out)
    assert forecast["cells"] == 12 and forecast["refused"] == 4 and forecast["compilations"] >= 2
    assert forecast["seconds"] >= 0.0 and forecast["bytes"] > 0 and "-1" in forecast["reasons"][0]
    assert [path.name for path in spec.parent.iterdir()] == ["small.toml"]


def test_failures_are_listed(spec, capsys):
    assert main(["sweep", str(spec), "--out", "out", "--over", "problem.noise=0,-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failed"] == 2
    lines = (spec.parent / "out" / "failures.csv").read_text().splitlines()
    assert lines[0] == "learning_rate,noise,status,reason" and len(lines) == 3 and "refused" in lines[1]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--over", "training.rate=1,2"], "rate"),
        (["--over", "learning_rate=1,2"], "begins with"),
        (["--over", "training.learning_rate="], "--over"),
        (["--over", "training.learning_rate=log:0:1:3"], "positive"),
        (["--over", "run.seed=lin:0:999999:100000", "--over", "problem.noise=lin:0:1:10000"], "cells"),
        (["--over", "training.learning_rate=-1,-2"], "learning_rate"),
        (["--together", "problem.noise,run.seed"], "not in `over`"),
        (["--workers", "-3"], "workers"),
        (["--workers", "2", "--scheduler", "tcp://127.0.0.1:1"], "exclude"),
        (["--set", "sweep.verb=dance"], "dance"),
        (["--set", "sweep.axes=1"], "axes"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(spec, capsys, options, part):
    assert main(["sweep", str(spec), "--out", "out", *options]) == 2
    error = capsys.readouterr().err
    assert part in error and error.count("\n") == 1 and "Traceback" not in error
    assert [path.name for path in spec.parent.iterdir()] == ["small.toml"]


def test_a_file_without_axes_needs_some(spec, capsys):
    spec.write_text(SPEC.split("[sweep.over]")[0])
    assert main(["sweep", str(spec)]) == 2
    assert "at least one axis" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_finished(spec, capsys, monkeypatch):
    from twolayer.sweeps import query, runner

    answer, calls = query.VERBS["evolve"], []

    def interrupted(asked):
        calls.append(asked)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answer(asked)

    monkeypatch.setitem(query.VERBS, "evolve", interrupted)
    monkeypatch.setattr(tl.SaadSolla, "batch_key", lambda *_: None)
    monkeypatch.setattr(runner, "SECONDS", 0.0)
    assert main(["sweep", str(spec), "--out", "out"]) == 130
    assert "1 of 2 cells are kept in 'out'" in capsys.readouterr().err
    assert tl.load("out").cell_status.values.tolist() == [0, 4]
