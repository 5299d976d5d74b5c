"""The harness of the fuzz suite: one case is refused in one sentence or answered, within bounds of time and memory."""

import contextlib
import io
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from twolayer.cli import main
from twolayer.core.errors import InvalidInput, TwolayerError

SECONDS, WAITING = 20, 200
BYTES = 4 * 2**30
# What a case may print, and the longest sentence that refuses it.
OUTPUT, SENTENCE = 200_000, 1_200
STATUS = (0, 2, 3, 130)
# What the machine is said to have, so that what is refused does not depend on it.
MEMORY = 2 * 2**30


class TooLong(BaseException):
    """A case exceeded its time; no handler of the package may catch it."""


@dataclass
class Fuzz:
    """Runs cases, and counts how each ended."""

    rng: np.random.Generator
    is_full: bool
    folder: Path
    outcomes: dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0

    def rounds(self, few: int, many: int) -> range:
        """The cases of a test: few of them, or with ``--all`` many."""
        return range(many if self.is_full else few)

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    @contextlib.contextmanager
    def limits(self, label: str) -> Iterator[None]:
        """Time and memory of one case; the memory is that of the process, which never shrinks."""

        def stop(number, frame):
            raise TooLong(f"{label}: more than {SECONDS} s")

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        # Time of the processor, since others may use the machine; and a limit on waiting for what never comes.
        signal.signal(signal.SIGPROF, stop)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WAITING)
        began = time.perf_counter()
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.alarm(0)
        self.slowest = max(self.slowest, time.perf_counter() - began)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        assert grown < BYTES, f"{label}: {grown / 2**30:.1f} GB"

    def call(self, function: Callable[[], object], label: str) -> object:
        """Call a function of the library: a result, or one of our errors with a sentence."""
        with self.limits(label):
            try:
                result = function()
            except TwolayerError as error:
                check_sentence(str(error), label)
                self.count("refused" if isinstance(error, InvalidInput) else "failed")
                return None
            except Exception as error:
                raise AssertionError(f"{label}: {type(error).__name__}: {str(error)[:300]}") from error
        self.count("answered")
        return result

    def command(self, arguments: list[str]) -> int:
        """Run the command line: a known exit status, bounded output, and a folder that holds whole files alone."""
        label = " ".join(argument[:60] for argument in arguments)
        out, err = io.StringIO(), io.StringIO()
        with self.limits(label), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(arguments)
            except SystemExit as stop:
                status = stop.code
            except Exception as error:
                raise AssertionError(f"{label}: {type(error).__name__}: {str(error)[:300]}") from error
        assert status in STATUS, f"{label}: status {status}"
        assert len(out.getvalue()) + len(err.getvalue()) < OUTPUT, label
        assert "Traceback" not in err.getvalue() + out.getvalue(), label
        if status == 2:
            check_sentence(err.getvalue().strip().removeprefix("twolayer: "), label)
        if "--json" in arguments and "--help" not in arguments and out.getvalue():
            json.loads(out.getvalue())
        parts = [path for path in self.folder.rglob("*") if path.name.endswith(".part")]
        assert not parts, f"{label}: half-written {parts}"
        self.count(f"status {status}")
        return status


def check_sentence(text: str, label: str) -> None:
    """One sentence of bounded length, on one line."""
    assert 0 < len(text) <= SENTENCE, f"{label}: {len(text)} characters"
    assert "\n" not in text.strip(), f"{label}: {text[:300]!r}"
    assert "Traceback" not in text, label


@pytest.fixture
def fuzz(request, tmp_path, monkeypatch) -> Iterator[Fuzz]:
    """A harness with random numbers of its own for each test."""
    monkeypatch.setattr("twolayer.core.memory_limit._of_the_machine", lambda: MEMORY)
    monkeypatch.setattr("twolayer.data.images.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("TWOLAYER_DATA", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    # Nothing of an input is ever run: neither by the interpreter nor by a shell.
    for name in ("system", "popen", "execv", "posix_spawn"):
        monkeypatch.setattr(os, name, _never)
    seed = [int(byte) for byte in request.node.originalname.encode()]
    made = Fuzz(np.random.default_rng(seed), bool(request.config.getoption("--all")), tmp_path)
    yield made
    words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(made.outcomes.items()))
    print(f"\n{request.node.originalname}: {words}; slowest {made.slowest:.1f} s", file=sys.stderr)


def _never(*args, **kwargs):
    raise AssertionError("an input was executed")
