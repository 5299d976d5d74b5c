"""Progress: one signature, a bar where somebody looks, silence on request."""

import io
import sys
import time
import types

import pytest

import twolayer as tl
from twolayer.cli.folder import progress_bar
from twolayer.verbs import progress as module
from twolayer.verbs.progress import reporting

PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), start=tl.WarmStart(0.3))
TRAINING = tl.SGD(0.1, constraint=tl.Sphere())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(monkeypatch):
    """Not a fixture: pytest puts its own stderr in place between the setup and the call of a test."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    return shown


def wait_for(shown, text, seconds=10.0):
    until = time.monotonic() + seconds
    while text not in shown.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    return text in shown.getvalue()


def test_evolve_tells_its_name_and_the_fraction():
    told = []
    tl.evolve(PROBLEM, TRAINING, "SaadSolla", until=0.1, save=2, progress=lambda *both: told.append(both))
    assert told[-1] == ("SaadSolla", 1.0) and all(name == "SaadSolla" for name, _ in told)


def test_a_function_of_the_fraction_alone_still_works_with_a_warning():
    fractions = []
    with pytest.warns(tl.TwolayerDeprecationWarning, match=r"progress\(name, fraction\)"):
        tl.evolve(PROBLEM, TRAINING, "SaadSolla", until=0.1, save=2, progress=fractions.append)
    assert fractions[-1] == 1.0


def test_what_is_no_function_is_refused():
    with pytest.raises(tl.InvalidInput, match="Argument `progress` must be a function"):
        tl.evolve(PROBLEM, TRAINING, "SaadSolla", until=0.1, progress="yes")


def test_a_bar_appears_on_a_terminal_and_shows_the_time_left(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    with reporting(None, "evolve") as tell:
        assert wait_for(terminal, "evolve"), "the verb's name stands there until something is told"
        tell("SaadSolla", 0.5)
        assert wait_for(terminal, "50%")
    assert "SaadSolla" in terminal.getvalue() and "left" in terminal.getvalue()


def test_silence(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    with reporting(False) as tell, reporting(None) as inner:
        tell("outer", 0.1)
        inner("inner", 0.1)
    with reporting(lambda name, fraction: None), reporting(None) as inner:
        inner("inner", 0.1)
    with progress_bar(quiet=True) as tell:
        tell("run", 0.5)
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    with reporting(None) as tell:
        tell("short work", 0.5)
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with reporting(None) as tell:
        tell("no terminal", 0.5)
    assert terminal.getvalue() == "" and file.getvalue() == ""


def test_work_within_work_shows_the_outer_bar_alone(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    with reporting(None, "gallery") as tell:
        tell("gallery", 0.25)
        assert wait_for(terminal, "25%")
        tl.evolve(PROBLEM, TRAINING, "SaadSolla", until=0.1, save=2)
    assert "SaadSolla" not in terminal.getvalue()


def test_a_notebook_shows_the_bar_below_the_cell(monkeypatch):
    shown = []
    handle = types.SimpleNamespace(update=lambda content: shown.append(content.data))

    def display(content, display_id):
        shown.append(content.data)
        return handle

    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    html = types.SimpleNamespace(HTML=lambda data: types.SimpleNamespace(data=data), display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", html)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "PAUSE", 0.0)
    with reporting(None) as tell:
        tell("a < b", 0.25)
        tell("a < b", 0.5)
    assert "25%" in shown[0] and "a &lt; b 50%" in shown[1] and shown[-1] == ""
