"""Ctrl-C at any moment: one sentence, status 130, what was finished kept; a second one ends at once."""

import gc
import json
import signal
import time

import numpy as np
import pytest

import twolayer as tl
from twolayer.core import interrupts
from twolayer.theory import SDE

from .commands import SPEC, check_whole, interrupted, start, wait

COMMANDS = {
    "run": ["run", "small.toml", "--out", "out"],
    "run as json": ["run", "small.toml", "--out", "out", "--json"],
    "exit-time": ["exit-time", "--d", "100000", "--p", "2", "--replicas", "2000", "--out", "out"],
    "learn": ["learn", "he2(z1) + z1*z2", "--student", "relu", "--d", "100", "--verify", "--out", "out"],
    "gallery": ["gallery", "escape-times", "--out", "out", "--json"],
    "ntk": ["ntk", "sphere", "--n", "300", "--width", "256", "--out", "out"],
    "doctor": ["doctor", "--json"],
}

PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), start=tl.WarmStart(0.3))
TRAINING = tl.SGD(0.1, constraint=tl.Sphere())


def check_interrupted(ended, folder, as_json):
    """One sentence, the status, and nothing half-written."""
    assert ended.status == 130, ended
    assert "Traceback" not in ended.err, ended
    # A busy machine may have told before that the run takes long.
    lines = [line for line in ended.err.splitlines() if not line.startswith("twolayer: Caution: ")]
    assert len(lines) == 1 and lines[0].startswith("twolayer: Interrupted"), ended
    if as_json:
        (line,) = ended.out.splitlines()
        answer = json.loads(line)
        assert answer.get("status", 130) == 130
    names = check_whole(folder / "out") if (folder / "out").exists() else []
    if as_json and "comparison.nc" in names:
        assert "comparison.nc" in answer["files"]


def new_folder(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "small.toml").write_text(SPEC)
    return folder


def try_moments(tmp_path, seed, cases, lengths):
    """Seeded moments over commands of known length, a third of them during imports; returns how many were in time.

    A few may come when the answer is said and only the interpreter is left to end: they change nothing.
    """
    rng = np.random.default_rng(seed)
    names = list(lengths)
    in_time = too_late = 0
    for case in range(cases):
        name = names[case % len(names)]
        folder = new_folder(tmp_path, str(case))
        latest = lengths[name] if rng.uniform() < 0.7 else min(1.5, lengths[name])
        moment = float(rng.uniform(0.0, latest))
        ended = interrupted(folder, COMMANDS[name], moment)
        print(f"{case}: {name} after {moment:.1f} of {lengths[name]:.1f} s, {ended.status if ended else 'done'}")
        if ended is not None and ended.status == 0:
            too_late += 1
            assert "Traceback" not in ended.err and ended.out, ended
        elif ended is not None:
            in_time += 1
            check_interrupted(ended, folder, "--json" in COMMANDS[name])
    assert too_late <= max(1, cases // 10)
    return in_time


def test_a_few_random_moments(tmp_path):
    assert try_moments(tmp_path, seed=0, cases=3, lengths={"run": 6.0, "gallery": 6.0, "exit-time": 6.0}) >= 1


@pytest.mark.long
def test_fifty_random_moments(tmp_path):
    """From the imports to the report: the length of each command is taken first."""
    lengths = {}
    for name, arguments in COMMANDS.items():
        began = time.monotonic()
        ended = wait(start(new_folder(tmp_path, name), arguments), 900.0)
        assert ended.status == 0, ended
        lengths[name] = time.monotonic() - began
    assert try_moments(tmp_path, seed=1, cases=50, lengths=lengths) >= 35


@pytest.mark.parametrize("arguments, status", [(["--help"], 0), (["explain", "none.toml"], 2)])
def test_a_signal_after_the_answer_changes_nothing(arguments, status, tmp_path):
    """It comes while the interpreter ends, which has removed all handlers of signals then."""
    before = """
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)
last = Last()
"""
    ended = wait(start(tmp_path, arguments, before))
    assert ended.status == status and len(ended.err.splitlines()) == (status != 0), ended


def test_a_second_signal_ends_at_once(tmp_path):
    """The first one waits for files that belong together, which here are never done."""
    before = """
from twolayer.core.whole_files import held
import time
def run(given):
    with held():
        open("begun", "w").close()
        time.sleep(600.0)
cli._run = run
"""
    process = start(tmp_path, [], before)
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    ended = wait(process)
    assert ended.status == 130 and ended.err == "twolayer: Interrupted again: ended at once.\n", ended


def test_what_is_finished_is_kept_though_the_rest_does_not_stop(tmp_path):
    """A simulation is done, and the theory after it stays inside compiled code, as it were, for ten minutes."""
    before = """
import time
from twolayer.cli import interrupt
interrupt.PATIENCE = 1.0
import twolayer as tl
def run(self, problem, training, plan):
    open("begun", "w").close()
    time.sleep(600.0)
tl.SaadSolla.run = run
"""
    (tmp_path / "small.toml").write_text(SPEC)
    process = start(tmp_path, COMMANDS["run as json"], before)
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    ended = wait(process)
    check_interrupted(ended, tmp_path, as_json=True)
    assert "10 of 10 replicas of DirectSGD were finished" in ended.err
    assert tl.load(tmp_path / "out" / "comparison.nc")["DirectSGD"].sizes["replica"] == 10


def test_a_signal_while_the_report_is_written_waits_for_it(tmp_path):
    before = """
import signal
from twolayer import report
save = report.save
def save_and_interrupt(*args):
    signal.raise_signal(signal.SIGINT)
    return save(*args)
report.save = save_and_interrupt
"""
    (tmp_path / "small.toml").write_text(SPEC)
    ended = wait(start(tmp_path, COMMANDS["run as json"], before))
    check_interrupted(ended, tmp_path, as_json=True)
    assert "the results are in 'out'" in ended.err
    assert {"comparison.nc", "report.md", "risk.png"} <= set(json.loads(ended.out)["files"])
    assert {"comparison.nc", "report.md", "risk.png"} <= set(check_whole(tmp_path / "out"))


# ------------------------------------------------------------------------------------- in Python and notebooks


@pytest.fixture
def usual_handler():
    """What Python has when it starts in a terminal; these tests may run in the background, where there is none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler was not given back"
    signal.signal(signal.SIGINT, before)


def interrupt_at(share):
    """A progress function that sends one signal when so much is done."""
    sent = []

    def progress(*told):
        if told[-1] >= share and not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGINT)

    return progress


def test_a_signal_in_python_keeps_finished_replicas(usual_handler):
    """Nineteen replicas in groups of eight or more: one group is finished at half of the work."""
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(1, "erf"), tl.Gaussian(1024))
    ask = {"until": 0.02, "save": 3, "replicas": 19}
    with pytest.raises(tl.Interrupted) as stopped:
        tl.evolve(problem, tl.SGD(0.5), tl.DirectSGD(), progress=interrupt_at(0.5), **ask)
    kept = stopped.value.result
    whole = tl.evolve(problem, tl.SGD(0.5), tl.DirectSGD(), **ask)
    assert 0 < kept.sizes["replica"] < 19
    np.testing.assert_array_equal(kept.M, whole.M[: kept.sizes["replica"]])


def test_a_signal_in_python_keeps_finished_descriptions(usual_handler):
    def progress(name, fraction):
        if name == "SaadSolla" and fraction < 1.0:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(tl.Interrupted) as stopped:
        tl.compare(PROBLEM, TRAINING, [tl.OverlapSGD(backend="xla"), tl.SaadSolla()], until=0.2, progress=progress)
    assert list(stopped.value.result.children) == ["OverlapSGD"]


def test_a_signal_that_comes_inside_a_callback_is_not_lost(usual_handler):
    """Python drops an exception in a function that the garbage collector calls, and JAX has one of those."""
    sent = []

    def at_collection(phase, _):
        if not sent:
            sent.append(phase)
            signal.raise_signal(signal.SIGINT)

    def progress(name, fraction):
        if not sent:
            gc.callbacks.append(at_collection)
            gc.collect()
            gc.callbacks.remove(at_collection)

    with pytest.raises(tl.Interrupted):
        tl.evolve(PROBLEM, TRAINING, tl.OverlapSGD(backend="xla"), until=0.5, save=5, progress=progress)
    assert sent


def test_a_second_signal_in_python_raises_at_once(usual_handler):
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]


def test_a_signal_after_the_last_check_is_not_lost(usual_handler):
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
    interrupts.check()  # and none is left for the next computation


def test_the_probes_of_the_sde_are_not_taken_for_whole_ones(usual_handler, monkeypatch):
    """An interruption while errors are measured ends the run: half of a probe has no error."""
    from twolayer.theory import sde

    follow, calls = sde._follow, []

    def follow_and_interrupt(*args):
        calls.append(args)
        if len(calls) == 2:
            interrupts.ask()
        return follow(*args)

    monkeypatch.setattr(sde, "_follow", follow_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        tl.evolve(PROBLEM, TRAINING, SDE(dt=0.05, backend="xla"), until=0.5, save=3, replicas=2)
    assert len(calls) == 2
