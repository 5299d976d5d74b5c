"""``twolayer exit-time``: the promised keys, what is written, and what is refused."""

import json

import pytest
import xarray as xr

import twolayer as tl
from twolayer.analyses.escape.exit_time import exit_time as find_exit_time
from twolayer.cli import main
from twolayer.theory.formulas.phase_retrieval import optimal_learning_rate
from twolayer.verbs import Interrupted

FAST = ["exit-time", "--d", "60", "--replicas", "16"]


def again(folder, capsys):
    """The answer of the same command on the specification of its report."""
    assert main(["exit-time", str(folder / "spec.json"), "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_json_has_the_promised_keys_and_the_figure_is_written(tmp_path, capsys):
    folder = tmp_path / "deep" / "folder"
    arguments = [*FAST, "--threshold", "0.2", "--noise", "0.1", "--learning-rate", "optimal", "--seed", "3"]
    assert main([*arguments, "--json", "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    answer = json.loads(out)
    assert answer["learning_rate"] == answer["optimal_learning_rate"] == pytest.approx(optimal_learning_rate(1, 0.1))
    assert 0 < answer["annealed"] < answer["quenched"] < answer["ode"]
    assert answer["measured"]["mean"] > 0 and answer["measured"]["stderr"] > 0
    assert "quenched" in err and "measured, 16 runs" in err
    names = ["exit_time.nc", "exit_time.pdf", "exit_time.png", "spec.json", "summary.json"]
    assert sorted(path.name for path in folder.iterdir()) == names == sorted(answer["files"])
    assert again(folder, capsys) == {name: answer[name] for name in answer if name not in ("files", "folder")}
    assert json.loads((folder / "summary.json").read_text())["ode"] == answer["ode"]
    result = tl.load(folder / "exit_time.nc")
    assert float(result.predicted.sel(estimate="ode")) == answer["ode"] and result.attrs["outcome"] == answer["outcome"]
    assert f"Verdict: {answer['outcome']}: " in err and answer["verdict"] in err


def test_without_runs_the_formulas_are_printed_and_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["exit-time", "--replicas", "0", "--learning-rate", "0.05"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "learning rate 0.05 (optimal 0.08333, at most 0.1667)" in out and "measured" not in out
    assert main(["exit-time", "--replicas", "0", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_scan_is_a_table_a_figure_and_a_list(tmp_path, capsys):
    scan = ["exit-time", "--replicas", "0", "--scan", "d=50,200", "--threshold", "0.2"]
    assert main([*scan, "--json", "--out", str(tmp_path / "rates")]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert answer["scan"] == "d" and [part["d"] for part in answer["results"]] == [50, 200]
    assert answer["results"][0]["quenched"] < answer["results"][1]["quenched"]
    assert err.startswith("mean exit times") and "quenched" in err and "undecided: there is not enough data" in err
    assert [tl.load(tmp_path / "rates" / f"exit_time_{n}.nc").attrs["d"] for n in range(2)] == [50, 200]
    assert json.loads((tmp_path / "rates" / "summary.json").read_text())["results"] == answer["results"]
    assert (tmp_path / "rates" / "exit_time.png").exists()
    assert again(tmp_path / "rates", capsys) == {"scan": "d", "results": answer["results"]}
    assert main(["exit-time", "--replicas", "0", "--scan", "learning-rate=0.04,optimal", "--json"]) == 0
    rates = [each["learning_rate"] for each in json.loads(capsys.readouterr().out)["results"]]
    assert rates == [0.04, pytest.approx(1 / 12)]


def test_a_scan_goes_on_where_it_stopped_and_is_what_the_verb_says(tmp_path, capsys, monkeypatch):
    asked = []

    def counted(problem, training, **given):
        if problem.d == 400 and len(asked) == 2:  # the user stops the third one
            raise KeyboardInterrupt
        asked.append(problem.d)
        return find_exit_time(problem, training, **given)

    monkeypatch.setattr("twolayer.sweeps.query.exit_time", counted)
    scan = ["exit-time", "--replicas", "0", "--json", "--out", str(tmp_path), "--scan"]
    assert main([*scan, "d=50,200,400"]) == 130
    out, err = capsys.readouterr()
    assert [part["d"] for part in json.loads(out)["results"]] == [50, 200] == asked and "2 values of d were" in err
    assert main([*scan, "d=50,200,400"]) == 130 and asked == [50, 200]
    asked.append(0)
    assert main([*scan, "d=50,200,400"]) == 0 and asked[3:] == [400]
    training = tl.SGD(optimal_learning_rate(1, 0.0), constraint=tl.Sphere())
    for number, d in enumerate((50, 200, 400)):
        alone = find_exit_time(
            tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d)), training, replicas=0
        )
        xr.testing.assert_identical(tl.load(tmp_path / f"exit_time_{number}.nc"), alone)


def test_a_scan_with_a_question_that_is_refused_computes_none_of_them(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["exit-time", "--replicas", "0", "--scan", "learning-rate=0.05,0.5", "--out", "rates"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "must be below 0.166667" in err and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_scan_says_where_runs_do_not_exit(capsys):
    """With noise 1 one neuron at the rate 0.1 ends at m^2 = 0.875, and at 0.02 at 0.989."""
    scan = ["exit-time", "--d", "2000", "--noise", "1", "--threshold", "0.95", "--replicas", "16"]
    assert main([*scan, "--scan", "learning-rate=0.02,0.1"]) == 0
    table = capsys.readouterr().out.splitlines()[:4]
    assert "none" in table[-1] and table[-1].endswith("undecided") and table[1].endswith("verdict")
    assert "median not reached" in table[-1] and "0 of 16 runs exit by 20" in table[-1]
    assert "model" in table[-2] and "+-" in table[-2]


@pytest.mark.long
def test_the_sde_can_be_measured(capsys):
    assert main(["exit-time", "--d", "2000", "--replicas", "64", "--by", "SDE", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    measured = answer["measured"]
    assert answer["measured_by"] == "SDE"
    assert abs(measured["mean"] - answer["ode_at_finite_d"]) < 5 * measured["stderr"]


BAD = {
    "p": (["--p", "0"], "`p` must be a whole number"),
    "p is a fraction": (["--p", "1.5"], "--p"),
    "d": (["--d", "1"], "must exceed"),
    "noise": (["--noise", "-1"], "`noise` must be"),
    "noise is not a number": (["--noise", "nan"], "`noise` must be"),
    "threshold": (["--threshold", "1"], "`threshold` must be"),
    "learning rate is a word": (["--learning-rate", "best"], "a number or 'optimal', but is 'best'"),
    "learning rate too large": (["--learning-rate", "0.2"], "must be below 0.166667"),
    "scan of what is not known": (["--scan", "k=1,2"], "must be one of d, p, learning-rate, threshold"),
    "scan of one value": (["--scan", "d=100"], "2 to 1000 different values"),
    "scan of words": (["--scan", "d=100,many"], "'many' is none"),
    "scan of a bad value": (["--scan", "noise=1,2"], "`--scan` must be one of"),
    "measured by": (["--by", "SaadSolla"], "`--by` must be one of OverlapSGD, SDE, DirectSGD"),
    "replicas": (["--replicas", "-1"], "`replicas` must be"),
    "seed": (["--seed", "-1"], "`seed` must be"),
    "set without specification": (["--set", "problem.noise=1"], "none is given"),
    "no such file": (["none.toml"], "no specification file"),
    "both": (["none.toml", "--p", "2"], "change a specification by `--set`"),
    "out is a file": (["--out", "/dev/null"], "cannot be written"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_one_sentence(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["exit-time", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_specification_gives_another_problem(capsys, tmp_path, monkeypatch):
    """Its problem and training, changed by --set, reach the verb."""
    seen = []

    monkeypatch.setattr("twolayer.analyses.exit_time", lambda **asked: seen.append(asked) or known())
    path = tmp_path / "spec.toml"
    path.write_text(
        '[problem.target]\nkind = "SingleIndex"\nlink = "tanh"\n[problem.student]\np = 2\nactivation = "erf"\n'
        '[problem.inputs]\nkind = "Gaussian"\nd = 50\n[training]\nlearning_rate = 0.5\n'
    )
    assert main(["exit-time", str(path), "--set", "training.learning_rate=0.25", "--threshold", "0.5", "--quiet"]) == 0
    asked = seen[0]
    problem, training = asked["problem"], asked["training"]
    assert problem.p == 2 and problem.d == 50 and training.learning_rate == 0.25 and asked["threshold"] == 0.5


def test_a_specification_with_a_schedule_is_followed(capsys, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("twolayer.analyses.exit_time", lambda **asked: seen.append(asked["training"]) or known())
    path = tmp_path / "spec.toml"
    path.write_text(
        '[problem.target]\nkind = "PhaseRetrieval"\n[problem.student]\np = 1\nactivation = "square"\n'
        '[problem.inputs]\nkind = "Gaussian"\nd = 50\n[training]\nkind = "Schedule"\nswitches = [1.0]\n'
        "[[training.phases]]\nlearning_rate = 0.1\n[[training.phases]]\nlearning_rate = 0.05\n"
    )
    assert main(["exit-time", str(path), "--quiet"]) == 0
    assert isinstance(seen[0], tl.Schedule) and seen[0].switches == (1.0,)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "the table `[problem]`"),
        ('{"analysis": "learn"}', "that of a report of `exit_time`"),
        ('{"analysis": "exit_time"}', "missing a required argument: 'problem'"),
        ('{"analysis": "exit_time", "problem": {"kind": "Problem"}}', "`problem`: `Problem` needs the field"),
        ('{"analysis": "exit_time", "colour": 1}', "no argument 'colour'"),
        ('{"analysis": "exit_time", "scan": "colour"}', "`scan`: must be one of"),
        ('{"analysis"', "not valid JSON"),
    ],
)
def test_a_damaged_specification_of_a_report_is_refused_in_one_sentence(content, words, capsys, tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(content)
    assert main(["exit-time", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err


def known():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000))
    return find_exit_time(problem, tl.SGD(0.05, constraint=tl.Sphere()), replicas=0)


def test_an_interruption_prints_what_is_known(capsys, monkeypatch):
    result = known()

    def interrupted(*_, **__):
        raise Interrupted(result)

    monkeypatch.setattr("twolayer.analyses.exit_time", interrupted)
    assert main([*FAST, "--json"]) == 130
    out, err = capsys.readouterr()
    assert json.loads(out)["quenched"] == float(result.predicted.sel(estimate="quenched")) and "Interrupted" in err
