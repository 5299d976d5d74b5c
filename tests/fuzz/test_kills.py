"""The command line is killed at random moments and run again until it is done: its numbers are those of one whole run.

Each kill is a SIGKILL, which nothing can catch. The moments come from a seed; what the process was doing then depends
on the load of the machine, and must not matter.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import xarray as xr

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")

KILLS = 100  # of all cases together, in the slow tests
LIMIT = 300.0  # seconds for one process: a run that hangs after a kill is a failure

PROBLEM = """
[problem]
noise = 0.1
target = {kind = "PhaseRetrieval"}
student = {p = 1, activation = "square"}
inputs = {kind = "Gaussian", d = DIMENSION}
"""
RUN = """
[run]
until = UNTIL
save = "linear:9"
replicas = REPLICAS
seed = 3
descriptions = [DESCRIPTIONS]
"""


def spec(d, training, until, replicas, *descriptions):
    asked = RUN.replace("UNTIL", str(until)).replace("REPLICAS", str(replicas))
    listed = ", ".join("{" + description + "}" for description in descriptions)
    return PROBLEM.replace("DIMENSION", str(d)) + "[training]\n" + training + asked.replace("DESCRIPTIONS", listed)


OVERLAPS, NATIVE_OVERLAPS = (f'kind = "OverlapSGD", backend = "{backend}"' for backend in ("xla", "native"))
WEIGHTS, NATIVE_WEIGHTS = (f'kind = "DirectSGD", backend = "{backend}"' for backend in ("xla", "native"))
PHASES = """
switches = [2.0, 3.0]
phases = [{learning_rate = 0.05}, {learning_rate = 0.02},
          {learning_rate = 0.05, layers = {kind = "Second", ratio = 0.5}}]
"""
SAME_SET = """
switches = [60.0]
phases = [{learning_rate = 0.02, momentum = 0.5, reuse = {kind = "Reused", alpha = 2.0}},
          {learning_rate = 0.01, momentum = 0.5, reuse = {kind = "Reused", alpha = 2.0}}]
"""
BOTH = 'learning_rate = 0.03\nmomentum = 0.3\nlayers = {kind = "Both", ratio = 0.5}\n'
AGAIN = 'learning_rate = 0.02\nbatch_size = 4\nreuse = {kind = "Repeated", times = 2}\n'

# A specification for `twolayer run`, or the arguments of `twolayer exit-time`. Each takes a few seconds.
CASES = {
    "overlaps": spec(1000, BOTH, 2.0, 8, OVERLAPS),
    "overlaps, native": spec(10_000, BOTH, 20.0, 64, NATIVE_OVERLAPS),
    "weights": spec(200, BOTH, 5.0, 8, WEIGHTS),
    "weights, native": spec(400, BOTH, 20.0, 16, NATIVE_WEIGHTS),
    "paths": spec(400, "learning_rate = 0.05\n", 10.0, 64, 'kind = "SDE", dt = 2e-5'),
    "schedule": spec(300, PHASES, 5.0, 8, OVERLAPS, WEIGHTS),
    "schedule on a fixed set": spec(60, SAME_SET, 120.0, 8, WEIGHTS),
    "repeated batches": spec(100, AGAIN, 10.0, 8, OVERLAPS, WEIGHTS),
    "exit time": ["--p", "1", "--d", "100000", "--replicas", "64"],
    "exit time of weights": ["--d", "200", "--noise", "0.5", "--replicas", "32", "--by", "DirectSGD"],
    "exit times of paths": ["--scan", "d=1000,10000", "--replicas", "64", "--by", "SDE"],
}
DEFAULT = {"schedule": 2, "exit time": 1}  # kills


class Ended(NamedTuple):
    """How a process ended: by itself, or by our kill, and what it had kept on disk then."""

    status: int
    seconds: float
    stdout: str
    stderr: str
    places: list[str]


class CommandLine:
    """One command with a folder of its own, run in processes that share the cache of compiled programs."""

    def __init__(self, case, folder, cache):
        self.folder = folder
        self.out = folder / "out"
        folder.mkdir()
        asked = CASES[case]
        if isinstance(asked, str):
            (folder / "spec.toml").write_text(asked)
            asked = ["run", str(folder / "spec.toml")]
        else:
            asked = ["exit-time", *asked]
        self.command = [sys.executable, "-m", "twolayer", *asked, "--out", str(self.out), "--json", "--quiet"]
        self.command += ["--checkpoint-every", "0"]
        settings = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        python = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "MPLBACKEND": "agg"}
        self.environment = os.environ | settings | python

    def run(self, moment=None, after_place=False):
        """Run the command; kill it after so many seconds, counted from its first new checkpoint if that is asked."""
        before = self._kept()
        began = time.monotonic()
        with (self.folder / "stdout").open("w+") as out, (self.folder / "stderr").open("w+") as err:
            process = subprocess.Popen(self.command, stdout=out, stderr=err, env=self.environment)
            try:
                deadline = began + (LIMIT if moment is None or after_place else moment)
                while process.poll() is None and time.monotonic() < deadline:
                    if after_place and self._kept() != before:
                        after_place, deadline = False, time.monotonic() + moment
                    time.sleep(0.01)
                assert moment is not None or process.poll() is not None, "the command does not end"
            finally:
                process.kill()
            status = process.wait()
        stdout, stderr = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        return Ended(status, time.monotonic() - began, stdout, stderr, sorted(name for name, _ in self._kept()))

    def _kept(self):
        """The checkpoints on disk and when they were written."""
        kept = set()
        for path in (self.out / "checkpoint").glob("*.npz"):
            try:
                kept.add((path.name, path.stat().st_mtime_ns))
            except FileNotFoundError:  # it was removed just now
                continue
        return kept

    def result(self, ended):
        """All numbers: what was printed, without the time it took, and every variable and attribute of the files."""
        assert ended.status == 0, ended.stderr
        printed = json.loads(ended.stdout)
        printed.pop("elapsed_seconds", None)
        printed.pop("folder")
        trees = {name: xr.open_datatree(self.out / name).load() for name in printed["files"] if name.endswith(".nc")}
        names = sorted(path.name for path in self.out.iterdir())
        assert names == sorted(printed["files"]), f"left behind: {names}"
        return printed, trees


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """The result of one run that is not killed, and how long it takes with compiled programs in the cache."""
    known = {}
    cache = tmp_path_factory.mktemp("cache")

    def reference(case):
        if case not in known:
            line = CommandLine(case, tmp_path_factory.mktemp("whole") / "case", cache)
            ended = line.run()
            known[case] = (line.result(ended), ended.seconds, cache)
        return known[case]

    return reference


def killed_until_done(case, kills, generator, references, tmp_path):
    """Run a command with so many kills and then to its end; how many of them met it with a place on disk."""
    (printed, trees), seconds, cache = references(case)
    line = CommandLine(case, tmp_path / case.replace(" ", "_"), cache)
    done = with_place = 0
    while done < kills:
        at_place = generator.random() < 0.6
        ended = line.run(generator.uniform(0.0, 0.8 if at_place else seconds), at_place)
        if ended.status == -signal.SIGKILL:
            done += 1
            with_place += bool(ended.places)
        else:  # it was done before its moment: begin anew
            compare(line.result(ended), (printed, trees), case)
            shutil.rmtree(line.out)
    ended = line.run()
    assert "Traceback" not in ended.stderr and "renamed" not in ended.stderr, ended.stderr
    compare(line.result(ended), (printed, trees), case)
    return with_place


def compare(result, expected, case):
    """Bit for bit."""
    assert result[0] == expected[0], case
    assert result[1].keys() == expected[1].keys(), case
    for file, tree in expected[1].items():
        for node in tree.subtree:
            xr.testing.assert_identical(result[1][file][node.path].to_dataset(), node.to_dataset())


@pytest.mark.slow
@pytest.mark.parametrize("case", DEFAULT)
def test_a_killed_command_goes_on_and_ends_with_the_same_numbers(case, references, tmp_path):
    assert killed_until_done(case, DEFAULT[case], random.Random(f"15 {case}"), references, tmp_path) > 0


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_kills_change_no_bit(case, references, tmp_path):
    """All cases together are killed a hundred times; most of the kills must meet a place on disk."""
    share, rest = divmod(KILLS, len(CASES))
    kills = share + (list(CASES).index(case) < rest)
    with_place = killed_until_done(case, kills, random.Random(f"100 {case}"), references, tmp_path)
    print(f"{case}: {kills} kills, {with_place} with a place on disk")
    assert with_place > kills // 3


DAMAGES = {"empty": lambda content: b"", "truncated": lambda content: content[: len(content) // 2]}


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", pytest.param("empty", marks=pytest.mark.long)])
def test_a_damaged_checkpoint_does_not_stop_the_command(damage, references, tmp_path):
    """It is set aside with one line on stderr, and the numbers are those of a run from the beginning."""
    (printed, trees), _, cache = references("schedule")
    line = CommandLine("schedule", tmp_path / "case", cache)
    ended = line.run(0.1, after_place=True)
    assert ended.status == -signal.SIGKILL and ended.places
    path = Path(line.out, "checkpoint", ended.places[0])
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    ended = line.run()
    # XLA writes lines of its own there when it reads its cache.
    lines = [line for line in ended.stderr.splitlines() if "cpu_aot_loader" not in line]
    assert len(lines) == 1 and lines[0].startswith("twolayer: ") and f"{path.name}.damaged" in lines[0], lines
    assert (line.out / "checkpoint" / f"{path.name}.damaged").exists()
    shutil.rmtree(line.out / "checkpoint")
    compare(line.result(ended), (printed, trees), damage)
