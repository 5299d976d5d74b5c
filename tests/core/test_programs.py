"""Compiled programs on disk: entries are shared whole, between processes that run at once, are killed, or fail."""

import os
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.core import program_cache, programs
from twolayer.core.program_cache import INDEX, ProgramCache


def cache_of(process, folder, monkeypatch):
    """The cache of a process of the given number."""
    monkeypatch.setattr(os, "getpid", lambda: process)
    return ProgramCache(folder)


def shared(cache):
    return {path.name: path.read_text() for path in cache.shared.iterdir() if path.name != INDEX}


@pytest.fixture
def ended():
    """Number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_entries_are_shared_when_a_process_ends(tmp_path, monkeypatch):
    one, two = (cache_of(process, tmp_path, monkeypatch) for process in (os.getpid(), os.getppid()))
    one.open()
    two.open()
    (one.own / "a").write_text("whole")
    (one.own / "b").write_text("of both")
    (two.own / "b").write_text("of both")
    assert not shared(two) and {path.name for path in two.own.iterdir()} == {"b"}
    one.close()
    two.close()
    assert shared(one) == {"a": "whole", "b": "of both"}
    one.open()
    assert (one.own / "a").read_text() == "whole"
    one.close()


def test_the_newest_entry_of_a_killed_process_is_never_shared(tmp_path, monkeypatch, ended):
    own = os.getpid()
    killed = cache_of(ended, tmp_path, monkeypatch)
    killed.open()
    (killed.own / "whole").write_text("whole")
    (killed.own / "half").write_text("ha")
    os.utime(killed.own / "whole", (time.time() - 60, time.time() - 60))
    other = cache_of(own, tmp_path, monkeypatch)
    other.open()
    assert not killed.own.exists() and {path.name for path in other.own.iterdir()} == {"whole"}
    other.close()
    assert shared(other) == {"whole": "whole"}


def test_folders_of_other_machines_stay_for_a_week(tmp_path, monkeypatch, ended):
    monkeypatch.setattr(socket, "gethostname", lambda: "other")
    other = ProgramCache(tmp_path)
    other.own = other.own.with_name(f"worker-other-{ended}")
    other.open()
    monkeypatch.setattr(socket, "gethostname", lambda: "this")
    ProgramCache(tmp_path).open()
    assert other.own.exists()
    os.utime(other.own, (0, 0))
    ProgramCache(tmp_path).open()
    assert not other.own.exists()


def test_damaged_entries_are_removed(tmp_path):
    cache = ProgramCache(tmp_path)
    cache.open()
    for name in ("cut", "empty", "sound"):
        (cache.own / name).write_text("content")
    cache.close()
    (cache.shared / "cut").write_text("con")
    (cache.shared / "empty").write_text("")
    (cache.shared / "unknown").write_text("never shared")
    with (cache.shared / INDEX).open("a") as index:
        index.write("no number\n\n12")
    cache.open()
    assert {path.name for path in cache.own.iterdir()} == {"sound"} and set(shared(cache)) == {"sound"}
    cache.close()


def test_the_oldest_entries_go_when_a_cache_grows_too_large(tmp_path, monkeypatch):
    cache = ProgramCache(tmp_path)
    cache.open()
    for age, name in ((300, "old"), (200, "middle"), (100, "new")):
        (cache.own / name).write_text("four")
        os.utime(cache.own / name, (time.time() - age, time.time() - age))
    cache.close()
    monkeypatch.setattr(program_cache, "LIMIT", 8)
    cache.open()
    assert set(shared(cache)) == {"middle", "new"}
    cache.close()


def test_a_file_system_without_links_gets_copies(tmp_path, monkeypatch):
    def refuse(*places):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    cache = ProgramCache(tmp_path)
    cache.open()
    (cache.own / "a").write_text("whole")
    cache.close()
    cache.open()
    assert (cache.own / "a").read_text() == "whole" and set(shared(cache)) == {"a"}
    cache.close()


PROGRAM = """
import twolayer as tl
import jax
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), start=tl.WarmStart([[0.3]]))
result = tl.evolve(problem, tl.SGD(0.05), tl.SaadSolla(), until=0.5, progress=False)
print(seen.count("/jax/compilation_cache/cache_hits"), seen.count("/jax/compilation_cache/cache_misses"), end=" ")
print(repr(float(result.risk[0, -1])))
"""


def start(program, folder, **variables):
    """A new process with its cache in a folder."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "TF_"))}
    environment |= {"TWOLAYER_CACHE": str(folder), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], env=environment | variables, **streams)


def end(process):
    """What a process has printed; nothing on standard error."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0 and not errors, errors[-2000:]
    return output.split()


def run(folder, **variables):
    """How many programs a new process reads and compiles, and the risk that it computes."""
    hits, misses, risk = end(start(PROGRAM, folder, **variables))
    return int(hits), int(misses), float(risk)


def test_a_second_process_compiles_nothing_again(tmp_path):
    unused, other = tmp_path / "unused", tmp_path / "other"
    for folder in (unused / "shared", other):
        folder.mkdir(parents=True)
    for folder in (unused, other):
        os.utime(folder, (0, 0))
    hits, misses, risk = run(tmp_path)
    assert hits == 0 and misses > 0
    assert not unused.exists() and other.exists()  # only what looks like a cache is removed
    other.rmdir()
    (folder,) = tmp_path.iterdir()
    # Besides the programs at most how long they took, which a slow machine writes.
    assert {"shared"} <= {path.name for path in folder.iterdir()} <= {"shared", "compile-times.json"}
    assert run(tmp_path) == (misses, 0, risk)


def test_programs_are_kept_and_nothing_is_reported_where_jax_is_imported_first(tmp_path):
    program = """
import jax
import jax.numpy as jnp
import twolayer as tl
from twolayer.core.program_cache import keep
keep()
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
value = float(jax.jit(lambda x: jnp.exp(x) + 1.0)(2.0))
print(seen.count("/jax/compilation_cache/cache_hits"), seen.count("/jax/compilation_cache/cache_misses"), value)
"""
    hits, misses, value = end(start(program, tmp_path))
    assert hits == "0" and int(misses) > 0
    assert end(start(program, tmp_path)) == [misses, "0", value]


TRACED = """
import twolayer as tl
import jax
def own(x):
    return jax.numpy.tanh(SLOPE * x)
SLOPE = VALUE
problem = tl.Problem(tl.SingleIndex("z"), tl.Student(1, own), tl.Gaussian(30))
known = tl.DirectSGD().applies(problem, tl.SGD(0.1))  # looks at values of the function
seen = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: seen.append(event))
result = tl.evolve(problem, tl.SGD(0.1), tl.DirectSGD(), until=0.1, replicas=2, progress=False)
print(sum("jaxpr_to_mlir" in event for event in seen), repr(float(result.Q.sum())))
"""


@pytest.mark.slow
def test_a_second_process_lowers_nothing_again_unless_a_function_has_changed(tmp_path):
    """The programs are found before anything is traced; a number that a function of the user refers to counts."""
    text = TRACED.replace("VALUE", "1.0")
    (first, value), (second, again) = (end(start(text, tmp_path)) for _ in range(2))
    assert int(first) >= 5 and int(second) == 0 and again == value
    lowered, changed = end(start(TRACED.replace("VALUE", "2.0"), tmp_path))
    assert int(lowered) >= 3 and changed != value


@pytest.mark.slow
def test_no_cache_where_it_is_off_or_cannot_be(tmp_path):
    missing = tmp_path / "file"
    missing.write_text("no folder")
    for variables in (
        {"TWOLAYER_CACHE": "off"},
        {"TWOLAYER_CACHE": str(missing / "below")},
        {"TF_CPP_MIN_LOG_LEVEL": "2"},
    ):
        hits, misses, _ = run(tmp_path / "none", **variables)
        assert hits == misses == 0 and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_cache_of_the_user_stays(tmp_path):
    own = tmp_path / "of-the-user"
    variables = {"JAX_COMPILATION_CACHE_DIR": str(own), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    hits, misses, _ = run(tmp_path / "none", **variables)
    assert hits == 0 and misses > 0 and list(own.iterdir()) and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_damaged_programs_are_compiled_again(tmp_path):
    """A damage that keeps the size is noticed by JAX, which says so; the numbers are the same."""
    _, misses, risk = run(tmp_path)
    entries = [path for kind in ("program-*", "*-cache") for path in Path(tmp_path).glob(f"*/shared/{kind}")]
    for entry in entries[: len(entries) // 2]:
        entry.write_bytes(entry.read_bytes()[:10])
    hits, misses_again, risk_again = run(tmp_path)
    assert risk_again == risk and hits + misses_again == misses and misses_again >= len(entries) // 2


@pytest.mark.slow
def test_processes_at_once_share_one_cache(tmp_path):
    results = [end(process) for process in [start(PROGRAM, tmp_path) for _ in range(3)]]
    assert len({risk for _, _, risk in results}) == 1
    assert run(tmp_path)[1] == 0


NATIVE = """
import twolayer as tl
problem = tl.Problem(tl.Committee(2, "tanh"), tl.Student(2, "erf"), tl.Gaussian(100))
print(repr(float(tl.evolve(problem, tl.SGD(0.5), tl.OverlapSGD(), until=0.5, replicas=8, progress=False).risk.sum())))
"""


@pytest.mark.slow
def test_native_code_is_kept_and_made_again_where_it_is_damaged(tmp_path):
    def files():
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/native/**/*.nbc")}

    first, kept = end(start(NATIVE, tmp_path)), files()
    assert kept and end(start(NATIVE, tmp_path)) == first and files() == kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:100])
    assert end(start(NATIVE, tmp_path)) == first and not files()
    assert end(start(NATIVE, tmp_path)) == first and set(files()) == set(kept)


def test_an_option_that_this_compiler_does_not_know_is_left_out():
    """XLA refuses options of other versions; those that it knows stay."""
    level = ("xla_backend_optimization_level", 0)
    assert programs._known((level, ("xla_option_of_another_version", True))) == dict([level])
    assert programs._known((("xla_option_of_another_version", True),)) == {}


def test_quick_programs_compute_the_same_alone_and_within_others():
    """With options of its own at the top; inlined where a function with or without traced arguments calls it."""

    @programs.QuickProgram
    def power(x, n: int):
        """Its words."""
        return jnp.sum(jnp.sin(x) ** n)

    x = jnp.linspace(0.0, 1.0, 7)
    wanted = np.sum(np.sin(np.asarray(x)) ** 3)
    assert power.__doc__ == "Its words."
    for value in (
        power(x, 3),
        power(x, 3),
        jax.jit(lambda y: power(y, 3))(x),
        jax.jit(lambda y: power(x, 3) + 0 * y)(1.0),
    ):
        assert float(value) == pytest.approx(wanted, rel=1e-6)  # single precision is enough to tell them apart
    assert float(jax.grad(lambda y: power(y, 1))(x)[0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="of the function"):
        programs.QuickProgram(_refusing)(x)
    assert "sine" in power.lower(x, 3).as_text()


def _refusing(x):
    raise ValueError("of the function")


def test_constants_that_a_function_holds_belong_to_its_program(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "keep", lambda: SimpleNamespace(own=tmp_path))
    program = programs.KeptProgram(lambda function, x: function(x))
    for factor in (2.0, 3.0):  # the second would be read from the file of the first under one name
        assert float(program(partial(lambda a, x: a * x, np.array(factor)), jnp.asarray(5.0))) == 5.0 * factor
    assert len(list(tmp_path.glob("program-*"))) == 2
