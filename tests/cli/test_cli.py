"""The command line: exit statuses, one sentence per error, one JSON object, and what is written."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import twolayer as tl
from tests.systems import SMALL_FILE
from twolayer.cli import main

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))

GIVEN = "problem.start={kind='GivenOverlaps', Q=%s, M=[[0.1, 0], [0, 0.1]]}"
FORMULA = "problem.target={kind='MultiIndex', function=%s, k=2}"
SPECTRUM = "problem.inputs={kind='Gaussian', d=20, spectrum=%s}"
PHASES = "{kind='SGD', learning_rate=0.5}, {kind='Task', training={kind='SGD', learning_rate=0.5}, %s}"
TASK = f"training={{kind='Schedule', phases=[{PHASES}], switches=[0.5]}}"

# What is wrong, and a part of the sentence that must say so.
BAD = {
    "p is zero": ("problem.student.p=0", "at least 1"),
    "p is negative": ("problem.student.p=-3", "at least 1"),
    "p is a fraction": ("problem.student.p=1.5", "whole number"),
    "p is a word": ("problem.student.p=many", "whole number"),
    "p is astronomical": (f"problem.student.p=1{'0' * 400}", "at most"),
    "negative noise": ("problem.noise=-1", "at least 0"),
    "noise is not a number": ("problem.noise=nan", "finite"),
    "infinite rate": ("training.learning_rate=inf", "finite"),
    "zero rate": ("training.learning_rate=0", "above 0"),
    "unknown key": ("training.learnin_rate=1", "did you mean 'learning_rate'"),
    "unknown table": ("problemm.noise=1", "did you mean 'problem'"),
    "unknown target": ("problem.target.kind=Kommittee", "did you mean 'Committee'"),
    "unknown activation": ("problem.student.activation=reul", "did you mean 'relu'"),
    "unknown description": ("run.descriptions=['SadSolla']", "did you mean 'SaadSolla'"),
    "wrong shape": (GIVEN % "[[1, 0, 0], [0, 1, 0], [0, 0, 1]]", "shape"),
    "ragged": (GIVEN % "[[1, 0], [0]]", "`Q`"),
    "not positive": (GIVEN % "[[1, 2], [2, 1]]", "positive"),
    "not symmetric": (GIVEN % "[[1, 0.5], [0, 1]]", "symmetric"),
    "second layer of wrong length": ("problem.student.second_layer=[1, 1, 1]", "entries"),
    "import": (FORMULA % "\"__import__('os')\"", "formula"),
    "attribute": (FORMULA % "'z1.__class__'", "not allowed"),
    "huge power": (FORMULA % "'z1**9999999'", "power"),
    "power tower": (FORMULA % "'9**9**9**9'", "finite real number"),
    "deep nesting": (FORMULA % f"'{'(' * 150}z1{')' * 150}+sin({'sin(' * 60}z1{')' * 60})'", "formula"),
    "d too small": ("problem.inputs.d=2", "exceed"),
    "negative time": ("run.until=-1", "until"),
    "less than a step": ("run.until=1e-6", "one step"),
    "too many steps": ("run.until=1e15", "steps"),
    "save beyond the end": ("run.save=[2.0]", "between 0 and"),
    "save not increasing": ("run.save=[0.5, 0.2]", "increasing"),
    "not applicable": ("training.batch_size=15", "`SaadSolla` does not apply"),
    "override without value": ("training.learning_rate", "path.to.key=value"),
    "negative eigenvalue": (SPECTRUM % "[[-1, 0.5], [1, 0.5]]", "must lie in [0,"),
    "shares of a spectrum": (SPECTRUM % "[[1, 0.5], [2, 0.2]]", "must sum to 1, but sum to 0.7"),
    "covariance that is not positive": (
        "problem.inputs={kind='Gaussian', d=4, spectrum=[[1,2,0,0],[2,1,0,0],[0,0,1,0],[0,0,0,1]]}",
        "positive semi-definite as a covariance, but has the eigenvalue -1",
    ),
    "labels that do not fit the loss": ("problem.loss=hinge", "needs labels that are signs"),
    "unknown loss": ("problem.loss=huberr", "did you mean 'Huber'"),
    "a task in another dimension": (TASK % "inputs={kind='Gaussian', d=30}", "must have d = 20"),
    "a task with other fields": (TASK % "target={kind='Committee', k=3, activation='erf'}", "k = 2 fields"),
}


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """A small specification in a folder of its own, which is also the working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SMALL_FILE)
    return path


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refuse(capsys, arguments, words):
    """Assert that the command refuses its input: status 2, one line on stderr, nothing on stdout."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("override", "words"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_in_one_sentence(spec, capsys, override, words):
    refuse(capsys, ["run", str(spec), "--set", override], words)
    assert files_under(spec.parent) == ["small.toml"]


def test_a_time_beyond_all_steps_is_refused(spec, capsys):
    refuse(capsys, ["run", str(spec), "--set", "run.until=1e300"], "are the most")


def test_files_that_cannot_be_read_are_refused(spec, capsys):
    refuse(capsys, ["run", "none.toml"], "no specification file")
    refuse(capsys, ["explain", str(spec.parent)], "is a folder")
    spec.write_text("[problem]\nnoise = = 3\n")
    refuse(capsys, ["run", str(spec)], "line 2")
    assert files_under(spec.parent) == ["small.toml"]


@pytest.mark.parametrize("out", ["small.toml", "small.toml/below", "small.toml/deep/below"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(spec, capsys, monkeypatch, out):
    monkeypatch.setattr("twolayer.experiment.run_spec", lambda *_: pytest.fail("the work was begun"))
    refuse(capsys, ["run", str(spec), "--out", out], "cannot be written")
    assert files_under(spec.parent) == ["small.toml"]


@pytest.mark.parametrize("arguments", [["run"], ["rum"], ["run", "small.toml", "--ot", "x"], ["--nothing"]])
def test_usage_errors_are_one_sentence(spec, capsys, arguments):
    refuse(capsys, arguments, "--help")


def test_an_error_is_also_json_where_json_was_asked(spec, capsys):
    for arguments in (["run", "none.toml", "--json"], ["run", "--json"]):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        answer = json.loads(out)
        assert answer["status"] == 2 and answer["files"] == [] and answer["error"] in err


def test_run_writes_a_report_that_can_be_run_again(spec, capsys):
    assert main(["run", str(spec), "--set", "run.seed=5"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    (folder,) = (spec.parent / "results").iterdir()
    assert re.fullmatch(r"small-[0-9a-f]{8}", folder.name)
    assert str(Path("results") / folder.name / "report.md") in out
    assert "small" in out and "SaadSolla" in out and "elapsed" in out
    assert {"comparison.nc", "report.md", "summary.json", "spec.json"} <= {path.name for path in folder.iterdir()}
    # The specification of the report gives the same numbers, with a seed that is not the usual one.
    assert main(["run", str(folder / "spec.json"), "--out", "again", "--quiet"]) == 0
    first, again = tl.load(folder), tl.load(spec.parent / "again")
    assert first.attrs["seed"] == 5 and first.identical(again)
    assert (spec.parent / "again" / "spec.json").read_text() == (folder / "spec.json").read_text()


def test_json_is_one_object_with_the_promised_keys(spec, capsys):
    assert main(["run", str(spec), "--json", "--out", "deep/folder", "--set", "run.seed=3"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    answer = json.loads(out)
    assert {"verdict", "descriptions", "files", "outcome", "judge", "folder"} <= set(answer)
    assert answer["verdict"] in " ".join(err.split())
    for name in answer["files"]:
        assert (spec.parent / "deep" / "folder" / name).is_file()
    tree = tl.load(spec.parent / "deep" / "folder" / "comparison.nc")
    # Another seed, not another number of replicas: the programs are then those that the test above has compiled.
    assert tree["DirectSGD"].attrs["seed"] == 3


@pytest.mark.slow
def test_quiet_says_nothing(spec, capsys):
    assert main(["explain", str(spec), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["explain", str(spec), "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["descriptions"] and err == ""


@pytest.mark.long
def test_a_diverging_run_says_when_and_keeps_what_there_is(spec, capsys):
    """A square student with a large rate runs away in any dimension."""
    arguments = ["run", str(spec), "--out", "kept", "--json", "--set", "problem.student.activation=square"]
    arguments += ["--set", "problem.target.activation=square", "--set", "training.learning_rate=300"]
    arguments += ["--set", "run.until=400", "--set", "run.save=30"]
    assert main(arguments) == 3
    out, err = capsys.readouterr()
    *cautions, sentence = err.splitlines()  # the rate is too large for a limit of small steps, too
    assert all(line.startswith("twolayer: Caution: `SaadSolla` is a limit of small steps") for line in cautions)
    assert re.search(r"at time [0-9.]+", sentence) and "kept" in sentence
    answer = json.loads(out)
    assert answer["status"] == 3 and "comparison.nc" in answer["files"]
    tree = tl.load(spec.parent / "kept" / "comparison.nc")
    assert tree["DirectSGD"].status.values.any()


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_explained(path, capsys):
    assert main(["explain", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {row["description"] for row in answer["descriptions"] if row["applies"]} >= {"DirectSGD", "SaadSolla"}
    assert answer["moments"]


PHASE = next(example for example in EXAMPLES if example.stem == "phase_retrieval_p1")


def test_derive_prints_formulas(capsys):
    assert main(["derive", str(PHASE)]) == 0
    out, err = capsys.readouterr()
    assert "dM_11/dt = 2*M_11*(2*(1 - M_11**2)*(1 - 6*gamma) - Delta*gamma)\n" in out and err == ""
    assert main(["derive", str(PHASE), "--latex", "--symbolic-p"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\\begin{aligned}") and "\\sum_{m=1}^{p}" in out


def test_derive_as_json_has_each_equation_as_text_and_latex(capsys):
    changes = ["--set", "problem.student.p=2", "--set", "training.layers=Both", "--set", "training.constraint=Free"]
    assert main(["derive", str(PHASE), "--json", "--general", *changes]) == 0
    out, err = capsys.readouterr()
    answer = json.loads(out)
    lefts = {"dM_11/dt", "dM_21/dt", "dQ_11/dt", "dQ_12/dt", "dQ_22/dt", "da_1/dt", "da_2/dt", "risk"}
    assert set(answer["equations"]) == lefts and answer["p"] == 2 and answer["k"] == 1
    for left, equation in answer["equations"].items():
        assert equation["text"].startswith(f"{left} = ") and " = " in equation["latex"]
    assert "P_11" in answer["equations"]["risk"]["text"] and "da_2/dt" in err


def test_derive_names_what_is_not_a_polynomial(spec, capsys):
    refuse(capsys, ["derive", str(spec)], "student's activation is Erf()")
    changes = ["--set", "problem.student.activation=he2", "--set", FORMULA % "'z1*z2 + exp(z1)'"]
    refuse(capsys, ["derive", str(spec), *changes], "contains 'exp(z1)'")
    refuse(capsys, ["derive", str(PHASE), "--set", "training.momentum=0.5"], "momentum")


@pytest.mark.parametrize("command", ["run", "explain", "derive", "exit-time", "demo", "doctor"])
def test_help_has_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Example: twolayer {command}" in out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert "--json" in plain and "--quiet" in plain


def test_version_and_bare_call(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"twolayer {tl.__version__}\n"
    assert main([]) == 0
    assert "Example: twolayer demo" in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------- real processes


def environment():
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return inherited | {"PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "100"}


@pytest.mark.slow
def test_exit_statuses_of_the_real_command(spec):
    command = [sys.executable, "-m", "twolayer"]
    bad = subprocess.run(
        [*command, "run", str(spec), "--set", "problem.student.p=0"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
    )
    assert bad.returncode == 2 and bad.stdout == "" and bad.stderr.count("\n") == 1
    good = subprocess.run(
        [*command, "explain", str(spec), "--json"], capture_output=True, text=True, env=environment(), timeout=120
    )
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["descriptions"]


# A process started in the background may inherit an ignored SIGINT, and Python then leaves it ignored.
LISTENING = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('twolayer', run_name='__main__')"
)


def start_on_a_terminal(spec, *arguments):
    """Start the command with a terminal as its stderr; returns the process and our end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, "run", str(spec), *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment(),
    )
    os.close(theirs)
    return process, ours


def read_until(terminal, enough, seconds=120):
    """What appears on the terminal until ``enough(text)`` is true, the process ends, or the time is over."""
    text, end = "", time.monotonic() + seconds
    while time.monotonic() < end and not enough(text):
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # the other end was closed
                break
            if not chunk:
                break
            text += chunk.decode(errors="replace")
    return text


def most_done(text):
    return max((int(percent) for percent in re.findall(r"(\d+)%", text)), default=0)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_finished(spec):
    """Replicas run in groups of eight, one group per core at a time. With three groups per core, more than a third of
    the work done means that at least one group is finished."""
    replicas = 8 * 3 * (os.cpu_count() or 1)
    changes = [
        "problem.inputs.d=1024",
        "problem.student.p=2",
        "run.until=4.0",
        f"run.replicas={replicas}",
        "run.save=5",
    ]
    arguments = [part for change in changes for part in ("--set", change)]
    process, terminal = start_on_a_terminal(spec, "--json", "--out", "kept", *arguments)
    shown = read_until(terminal, lambda text: most_done(text) >= 36)
    assert "left" in shown, "the progress bar shows the time left"
    process.send_signal(signal.SIGINT)
    shown = read_until(terminal, lambda text: False)
    out = process.communicate(timeout=60)[0]
    os.close(terminal)
    assert process.returncode == 130, shown
    answer = json.loads(out)
    assert answer["status"] == 130 and "comparison.nc" in answer["files"]
    assert "Traceback" not in shown and "Interrupted" in shown
    kept = tl.load(spec.parent / "kept" / "comparison.nc")["DirectSGD"]
    assert 0 < kept.sizes["replica"] < replicas
    assert not kept.status.values.any()


def test_ctrl_c_before_anything_was_finished(spec, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("twolayer.experiment.run_spec", interrupted)
    assert main(["run", str(spec)]) == 130
    assert "nothing was finished" in capsys.readouterr().err
    assert files_under(spec.parent) == ["small.toml"]


def test_shells_complete_words(tmp_path):
    """Bash asks how the last word may go on, and the script by which it does so is shown."""
    environment = {**os.environ, "HOME": str(tmp_path)}

    def in_bash(arguments, **variables):
        # The shell is found among the parents of the process, and bash would replace itself by a last command.
        script = f"{shlex.quote(sys.executable)} -m twolayer {arguments}; exit $?"
        program = ["bash", "-c", script]
        done = subprocess.run(program, capture_output=True, text=True, env=environment | variables, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.split()

    for line, words in {"twolayer ex": ["explain", "exit-time", "explore"], "twolayer run --s": ["--set"]}.items():
        last = str(len(line.split()) - 1)
        assert in_bash("", _TWOLAYER_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=last) == words
    assert "_TWOLAYER_COMPLETE=complete_bash" in in_bash("--show-completion")
