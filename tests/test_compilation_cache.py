"""The compilation cache of the tests: entries are shared whole, between workers and between runs."""

import os
import subprocess
import sys

import pytest

from tests import compilation_cache
from tests.compilation_cache import WorkerCache


def cache_of(process, folder, monkeypatch):
    """The cache of a process of the given number."""
    monkeypatch.setattr(os, "getpid", lambda: process)
    return WorkerCache(folder)


@pytest.fixture
def ended():
    """Number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_entries_are_shared_when_a_worker_ends(tmp_path, monkeypatch):
    one, two = (cache_of(process, tmp_path, monkeypatch) for process in (os.getpid(), os.getppid()))
    one.open()
    two.open()
    (one.own / "a").write_text("whole")
    (one.own / "b").write_text("of both")
    (two.own / "b").write_text("of both")
    assert not list(two.shared.iterdir()) and {path.name for path in two.own.iterdir()} == {"b"}
    one.close()
    two.close()
    assert {path.name: path.read_text() for path in one.shared.iterdir()} == {"a": "whole", "b": "of both"}
    one.open()
    assert (one.own / "a").read_text() == "whole"
    one.close()


def test_half_an_entry_of_a_killed_worker_is_never_shared(tmp_path, monkeypatch, ended):
    own = os.getpid()
    killed = cache_of(ended, tmp_path, monkeypatch)
    killed.open()
    (killed.own / "half").write_text("ha")
    other = cache_of(own, tmp_path, monkeypatch)
    other.open()
    assert not killed.own.exists() and not list(other.own.iterdir())
    other.close()
    assert not list(other.shared.iterdir())


def test_a_cache_that_has_grown_too_large_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "LIMIT", 3)
    cache = WorkerCache(tmp_path)
    cache.open()
    (cache.own / "a").write_text("long")
    cache.close()
    cache.open()
    assert not list(cache.shared.iterdir()) and not list(cache.own.iterdir())


PROGRAM = """
import sys
from pathlib import Path
import jax
from tests import compilation_cache
compilation_cache.WORTH_KEEPING = 0.0
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
cache = compilation_cache.WorkerCache(Path({folder!r}))
cache.open()
cache.use()
assert float(jax.jit(lambda x: x * 3.0 + 1.0)(2.0)) == 7.0
cache.close()
print(seen.count("/jax/compilation_cache/cache_hits"), len(list(cache.shared.glob("*-cache"))))
"""


def test_a_second_process_compiles_nothing_again(tmp_path, fresh_python):
    program = PROGRAM.format(folder=str(tmp_path))
    hits, entries = map(int, fresh_python(program).split())
    assert hits == 0 and entries > 0
    hits_again, entries_again = map(int, fresh_python(program).split())
    assert hits_again == entries_again == entries
