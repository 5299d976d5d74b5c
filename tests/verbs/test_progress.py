"""Progress: one signature, a bar where somebody looks, silence on request."""

import inspect
import io
import sys
import time
import types

import jax
import jax.numpy as jnp
import pytest

import twolayer as tl
from twolayer import api
from twolayer.cli.folder import progress_bar
from twolayer.core import compiling, remembered
from twolayer.verbs import progress as module
from twolayer.verbs.progress import reporting

PROBLEM = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), start=tl.WarmStart(0.3))
TRAINING = tl.SGD(0.1, constraint=tl.Sphere())

# Verbs and analyses without `progress`, and why.
WITHOUT = {
    "best_training": "reads a result",
    "forgetting": "reads a result",
    "scaling": "reads a result",
}
ROOMS = ("twolayer.verbs.", "twolayer.analyses.", "twolayer.sweeps.")
FUNCTIONS = {name: member for name, member in vars(api).items() if inspect.isfunction(member)}
VERBS = sorted(name for name, x in FUNCTIONS.items() if x.__module__.startswith(ROOMS) and name not in WITHOUT)


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


def test_the_list_of_functions_without_progress_is_true():
    assert all("progress" not in inspect.signature(getattr(tl, name)).parameters for name in WITHOUT)
    assert {"evolve", "compare", "exit_time", "fluctuations", "learn", "ntk", "optimise", "sweep"} <= set(VERBS)
    assert {"explain", "derive", "moments"} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_progress_in_the_same_way(verb):
    """By its name, a bar unless something else is said, and refused in the same words."""
    function = getattr(tl, verb)
    signature = inspect.signature(function)
    own, first = signature.parameters["progress"], inspect.signature(tl.evolve).parameters["progress"]
    assert own.kind is own.KEYWORD_ONLY and own.default is None and own.annotation == first.annotation
    needed = [x for x in signature.parameters.values() if x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD]
    given = (PROBLEM, TRAINING, "SaadSolla")
    values = given[: max(len(needed), 3 if verb == "sweep" else 0)]
    options = {"over": {"training.learning_rate": [0.1]}} if verb == "sweep" else {}
    with pytest.raises(tl.InvalidInput, match="Argument `progress` must be a function"):
        function(*values, progress="yes", **options)


def test_evolve_tells_its_name_and_the_fraction():
    told = []
    tl.evolve(PROBLEM, TRAINING, "SaadSolla", until=0.1, save=2, progress=lambda *both: told.append(both))
    assert told[-1] == ("SaadSolla", 1.0) and all(name == "SaadSolla" for name, _ in told)


@pytest.mark.parametrize(
    ("verb", "values", "name"),
    [
        (tl.explain, (PROBLEM, TRAINING), "averages"),
        (tl.derive, (PROBLEM, TRAINING), "equations"),
        (tl.moments, (PROBLEM,), "averages"),
    ],
)
def test_verbs_of_one_piece_tell_when_it_begins_and_ends(verb, values, name):
    told = []
    verb(*values, progress=lambda *both: told.append(both))
    assert told == [(name, 0.0), (name, 1.0)]


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
        time.sleep(0.2)  # a bar would open in a thread of its own
    with reporting(lambda name, fraction: None), reporting(None) as inner:
        inner("inner", 0.1)
        time.sleep(0.2)
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


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook shows below its cell."""
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
    return shown


def test_a_notebook_shows_the_time_left(notebook, monkeypatch):
    """What is left at the pace so far, for each name from when it was first told."""
    now = [100.0]
    monkeypatch.setattr(compiling, "words", lambda: "")
    monkeypatch.setattr(module._NotebookBar, "watch", lambda bar: None)  # the thread, whose clock is another
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with reporting(None, "sweep") as tell:
        for seconds, name, fraction in ((10.0, "sweep", 0.25), (5000.0, "sweep", 0.5), (1.0, "other", 0.5)):
            now[0] += seconds
            tell(name, fraction)
        now[0] += 60.0
        tell("other", 0.75)
        tell("other", 1.0)
    found = [words for _, words in (text.split("</progress> ") for text in notebook[:-1])]
    first = ["sweep 25%, 0:00:30 left", "sweep 50%, 1:23:30 left"]
    assert found == [*first, "other 50%", "other 75%, 0:00:20 left", "other 100%"]


def test_a_notebook_shows_the_bar_below_the_cell(notebook):
    with reporting(None) as tell:
        tell("a < b", 0.25)
        tell("a < b", 0.5)
    drawn = [text for text in notebook if "%" in text]
    assert "25%" in drawn[-2] and "a &lt; b 50%" in drawn[-1] and notebook[-1] == ""


def test_a_notebook_shows_a_bar_while_a_program_is_compiled(notebook):
    with reporting(None, "evolve"), compiling.usual("nothing that is known"):
        compiling._state.hear(compiling.LOWERED, 0.0)
        until = time.monotonic() + 10.0
        while not any("compiling" in text for text in list(notebook)) and time.monotonic() < until:
            time.sleep(0.01)
        compiling._state.hear(compiling.COMPILED, 0.1)
    assert any("<progress max='1'></progress> evolve 0% compiling" in text for text in notebook) and notebook[-1] == ""


def compiled_for(seconds):
    """Tell what JAX would of a program that is lowered now and compiled after some seconds."""
    compiling._state.hear(compiling.LOWERED, 0.0)
    time.sleep(seconds)
    compiling._state.hear(compiling.COMPILED, seconds)


def test_a_bar_says_that_a_program_is_compiled(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    monkeypatch.setattr(compiling, "PAUSE", 0.0)
    with reporting(None, "evolve"), compiling.usual("nothing that is known"):
        compiling._state.hear(compiling.LOWERED, 0.0)
        assert wait_for(terminal, "compiling, 0 s so far")
        compiling._state.hear(compiling.COMPILED, 0.1)
        assert compiling.words() == ""


def test_how_long_programs_take_is_remembered(monkeypatch):
    monkeypatch.setattr(compiling, "WORTH", 0.1)
    monkeypatch.setattr(remembered, "_here", {})
    monkeypatch.setattr(remembered, "keep", lambda: None)
    for seconds in (0.3, 0.11):  # the second time they come from the cache, which tells nothing
        with compiling.usual("some work"):
            compiled_for(seconds)
    usual = remembered.recall(compiling.TOPIC, "some work")
    assert usual is not None and 0.29 < usual[0] < 10.0
    with compiling.usual("some work"):
        work = compiling._state.watched[-1]
        work.expected, work.before = 7.0, compiling._state.total
        compiling._state.hear(compiling.LOWERED, 0.0)
        assert compiling.words() == "compiling, about 7 s"
        compiling._state.hear(compiling.COMPILED, 0.0)


def test_real_programs_are_heard():
    with compiling.usual("a real program"):
        before = compiling._state.total
        jax.jit(lambda x: jnp.cos(x) * 1.2345)(1.0)
        assert compiling._state.total > before and not compiling._state.is_compiling


def test_remembered_numbers_survive_damage_and_the_end_of_a_process(tmp_path, monkeypatch):
    cache = types.SimpleNamespace(shared=tmp_path / "shared")
    monkeypatch.setattr(remembered, "keep", lambda: cache)
    monkeypatch.setattr(remembered, "MOST", 3)

    def new_process():
        monkeypatch.setattr(remembered, "_here", {})

    new_process()
    for number in range(5):
        remembered.remember("topic", f"key {number}", [number, 0.5])
    new_process()
    assert remembered.recall("topic", "key 4") == [4.0, 0.5] and remembered.recall("topic", "key 1") is None
    for damage in ("{", '["a"]', '{"key 4": "x"}', '{"key 4": 1}'):
        (tmp_path / "topic.json").write_text(damage)
        new_process()
        assert remembered.recall("topic", "key 4") is None
    remembered.remember("topic", "key 5", [1.0])
    new_process()
    assert remembered.recall("topic", "key 5") == [1.0]
