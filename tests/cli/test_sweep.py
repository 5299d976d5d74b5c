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


def test_a_forecast_knows_what_is_there_and_who_works(spec, capsys):
    assert main(["sweep", str(spec), "--out", "out", "--json", "--workers", "0"]) == 0
    capsys.readouterr()
    more = ["--over", "training.learning_rate=0.02,0.05,0.06", "--dry-run", "--json"]
    assert main(["sweep", str(spec), "--out", "out", "--workers", "3", *more]) == 0
    forecast = json.loads(capsys.readouterr().out)
    assert (forecast["cells"], forecast["there"], forecast["workers"]) == (3, 2, 3)
    assert main(["sweep", str(spec), "--out", "out", "--dry-run", "--scheduler", "tcp://127.0.0.1:9"]) == 0
    text = capsys.readouterr().out
    assert "2 are in 'out'" in text and "those of the scheduler" in text and "under a minute" in text
    assert main(["sweep", str(spec), "--out", "out", "--json", "--dry-run", "--fresh"]) == 0
    assert json.loads(capsys.readouterr().out)["there"] == 0  # all are computed again


def test_a_forecast_looks_into_the_usual_folder(spec, capsys):
    assert main(["sweep", str(spec), "--json", "--workers", "0"]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    assert main(["sweep", str(spec), "--dry-run"]) == 0
    assert f"2 are in {folder!r}" in capsys.readouterr().out


def test_the_time_of_exit_times_is_estimated(spec, capsys):
    """It follows the predicted time of the exit, so that larger dimensions take longer."""
    options = ["--set", "sweep.verb='exit_time'", "--dry-run", "--json"]
    spec.write_text(SPEC.split("[run]")[0].replace("start =", "# start =") + "[run]\nreplicas = 400\n")
    seconds = []
    for d in (10**4, 10**6):
        assert main(["sweep", str(spec), *options, "--over", f"problem.inputs.d={d}"]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["seconds"])
    assert 100.0 < seconds[1] / seconds[0] < 300.0  # the steps of a unit of time, and the logarithm of d


def test_the_memory_of_a_cell_is_estimated(spec, capsys):
    """The weights of all replicas in d dimensions, which the whole result does not hold."""
    spec.write_text(SPEC.replace("start =", "# start ="))
    options = ["--set", "run.descriptions=['DirectSGD']", "--set", "run.replicas=50", "--dry-run"]
    needed = []
    for d in (10**5, 10**6):
        assert main(["sweep", str(spec), *options, "--json", "--over", f"problem.inputs.d={d}"]) == 0
        needed.append(json.loads(capsys.readouterr().out)["cell_bytes"])
    assert needed[0] > 8 * 50 * 10**5 and 5.0 < needed[1] / needed[0] < 11.0
    assert main(["sweep", str(spec), *options]) == 0
    assert "while a cell is computed" in capsys.readouterr().out


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


@pytest.mark.parametrize("folder", ["small.toml/out", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_one_sentence(spec, capsys, folder):
    assert main(["sweep", str(spec), "--out", folder, "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert "cannot be written" in error and error.count("\n") == 1
    assert [path.name for path in spec.parent.iterdir()] == ["small.toml"]


def test_a_folder_of_another_version_and_a_silent_scheduler_are_one_sentence(spec, capsys, monkeypatch):
    monkeypatch.setattr("twolayer.sweeps.cluster.TIMEOUT", 1.0)
    assert main(["sweep", str(spec), "--out", "out", "--scheduler", "tcp://127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert "cannot be reached" in error and error.count("\n") == 1 and not (spec.parent / "out").exists()
    (spec.parent / "out").mkdir()
    (spec.parent / "out" / "sweep.json").write_text('{"format": 99}')
    assert main(["sweep", str(spec), "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert "layout 99" in error and error.count("\n") == 1
    assert [path.name for path in (spec.parent / "out").iterdir()] == ["sweep.json"]


def test_replicas_are_reduced_to_statistics(spec, capsys):
    """Without an axis, by an option or by the file; the specification of the folder says so too."""
    start = ["--set", 'problem.start={kind="RandomStart"}', "--set", "run.replicas=5"]
    spec.write_text(SPEC.split("[sweep.over]")[0])
    assert main(["sweep", str(spec), "--out", "out", "--statistics", "--json", "--workers", "0", *start]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["cells"], report["done"], report["computed"]) == (1, 1, 1)
    assert int(tl.load("out").replicas.sum()) == 5
    assert main(["sweep", "out/spec.json", "--out", "out", "--json", "--workers", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["computed"] == 0
    assert main(["sweep", str(spec), "--set", "sweep.statistics=3"]) == 2
    assert "statistics" in capsys.readouterr().err


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
