"""Sweeps on Dask: the same numbers as in one process, whatever is killed on the way."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
import xarray as xr

import twolayer as tl
from tests.systems import phase_retrieval
from twolayer.sweeps import cluster
from twolayer.sweeps.store import MANIFEST

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")

LIMIT = 240.0
RATES = "log:0.01:0.06:4"
SPEC = """
[problem]
noise = 0.1
target = {kind = "PhaseRetrieval"}
student = {p = 1, activation = "square"}
inputs = {kind = "Gaussian", d = 50}
[training]
learning_rate = 0.05
constraint = "Sphere"
[run]
descriptions = ["OverlapSGD"]
until = 1.0
save = 5
replicas = 4
[sweep.over]
"training.learning_rate" = "log:0.01:0.06:4"
"run.seed" = [0, 1, 2, 3, 4, 5]
"""


def command(spec, *more):
    program = [sys.executable, "-m", "twolayer", "sweep", str(spec), "--out", str(spec.parent / "out"), "--json", *more]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process):
    out, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    return json.loads(out)


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def whole():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), noise=0.1)
    over = {"training.learning_rate": RATES, "run.seed": range(6)}
    training = tl.SGD(0.05, constraint=tl.Sphere())
    return tl.sweep(problem, training, "OverlapSGD", over=over, until=1.0, save=5, replicas=4, workers=0)


def same_numbers(folder, whole):
    xr.testing.assert_identical(tl.load(folder).drop_attrs(), whole.drop_attrs())


def workers_of(process):
    """The processes that compute for a client, at any depth."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def test_workers_give_the_same_numbers_and_end(whole, spec):
    report = finished(command(spec, "--workers", "2"))
    assert report["cells"] == report["done"] == report["computed"] == 24
    same_numbers(spec.parent / "out", whole)
    assert finished(command(spec, "--workers", "0"))["computed"] == 0


def killed_until_done(spec, whole, kills, seed):
    """Kill the client or some of its workers at random moments, and go on until the sweep is done."""
    moments = random.Random(seed)
    left = kills
    while True:
        process = command(spec, "--workers", "2")
        try:
            while left and process.poll() is None:
                time.sleep(moments.uniform(0.5, 6.0))
                inside = workers_of(process)
                target = moments.choice([process.pid, *(worker.pid for worker in inside)])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signal.SIGKILL)
                left -= 1
            process.communicate(timeout=LIMIT)
        finally:
            for worker in workers_of(process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            if process.poll() is None:
                process.kill()
        if process.returncode == 0:
            break
    same_numbers(spec.parent / "out", whole)


@pytest.mark.slow
def test_three_kills_change_no_number(spec, whole):
    killed_until_done(spec, whole, 3, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_fifty_kills_change_no_number(spec, whole, seed):
    killed_until_done(spec, whole, 5, seed)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_keeps_finished_cells_and_says_so(spec, workers):
    process = command(spec, "--workers", workers, "--over", "run.seed=lin:0:999:1000")
    cells = spec.parent / "out" / "cells"
    while process.poll() is None and not any(cells.glob("*.npz")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and "4000 cells are kept" in errors and "Traceback" not in errors, errors
    assert 0 < int((tl.load(spec.parent / "out").cell_status == 0).sum()) < 4_000


@contextlib.contextmanager
def running_scheduler(folder):
    """A scheduler and a worker in processes of their own, as on a cluster."""
    file = folder / "scheduler.json"
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    module, here = [sys.executable, "-m"], ["--host", "127.0.0.1", "--no-dashboard"]
    scheduler = [*module, "distributed.cli.dask_scheduler", *here, "--port", "0", "--scheduler-file", str(file)]
    started = [subprocess.Popen(scheduler, **options)]
    try:
        deadline = time.monotonic() + 60.0
        while not file.exists() or not file.read_text().strip().endswith("}"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        worker = [*module, "distributed.cli.dask_worker", address, *here, "--nthreads", "1"]
        started.append(subprocess.Popen(worker, **options))
        yield address, started[0]
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.slow
def test_a_running_scheduler_is_used_and_its_death_is_told(spec, whole):
    with running_scheduler(spec.parent) as (address, scheduler):
        process = command(spec, "--scheduler", address)
        report = finished(process)
        assert report["computed"] == 24
        same_numbers(spec.parent / "out", whole)
        manifest = spec.parent / "out" / MANIFEST
        before = manifest.read_bytes()
        process = command(spec, "--scheduler", address, "--set", "run.until=200000", "--over", "run.seed=7,8")
        while manifest.read_bytes() == before and process.poll() is None:  # it is written when work begins
            time.sleep(0.1)
        scheduler.kill()
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 3 and "The scheduler is gone" in errors and "Traceback" not in errors, errors


def test_an_unreachable_scheduler_is_refused(monkeypatch):
    monkeypatch.setattr(cluster, "TIMEOUT", 1.0)
    arguments = phase_retrieval(0.2), tl.SGD(0.05), "SaadSolla"
    with pytest.raises(tl.InvalidInput, match="cannot be reached"):
        tl.sweep(*arguments, over={"run.seed": [1]}, scheduler="tcp://127.0.0.1:9")


def test_without_dask_workers_are_refused_and_the_rest_works(monkeypatch):
    monkeypatch.setattr(cluster, "has_dask", lambda: False)
    arguments = phase_retrieval(0.2), tl.SGD(0.05, constraint=tl.Sphere()), "SaadSolla"
    with pytest.raises(tl.InvalidInput, match=r"twolayer\[cluster\]"):
        tl.sweep(*arguments, over={"run.seed": [1]}, workers=2)
    assert tl.sweep(*arguments, over={"run.seed": [1]}, until=0.1, save=2).cell_status.values.tolist() == [0]
