"""Sweeps on Dask: the same numbers as in one process, whatever is killed on the way."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import xarray as xr

import twolayer as tl
from tests.systems import phase_retrieval
from twolayer.sweeps import cluster, workers
from twolayer.sweeps.compute import Done
from twolayer.sweeps.over_grid import expected_workers
from twolayer.sweeps.query import environment
from twolayer.sweeps.sweep_store import MANIFEST

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")

LIMIT = 240.0
HERE = ("--host", "127.0.0.1", "--no-dashboard")
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


def command(spec, *more, **options):
    program = [sys.executable, "-m", "twolayer", "sweep", str(spec), "--out", str(spec.parent / "out"), "--json", *more]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def started(*command):
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    return subprocess.Popen([sys.executable, "-m", *map(str, command)], **options)


def finished(process):
    out, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    return json.loads(out)


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SPEC)
    return path


def asked(seeds=6, **where):
    """The sweep of the file."""
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), noise=0.1)
    over = {"training.learning_rate": RATES, "run.seed": range(seeds)}
    training = tl.SGD(0.05, constraint=tl.Sphere())
    return tl.sweep(problem, training, "OverlapSGD", over=over, until=1.0, save=5, replicas=4, **where)


@pytest.fixture(scope="module")
def whole():
    return asked(workers=0)


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


class Outside:
    """A scheduler at a fixed port and two workers, which are started again when they are dead, as on a cluster."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        worker = ("distributed.cli.dask_worker", self.address, *HERE, "--nthreads", "1", "--death-timeout", "20")
        self.commands = [("distributed.cli.dask_scheduler", *HERE, "--port", port), worker, worker]
        self.running = [started(*command) for command in self.commands]

    def revive(self):
        for place, process in enumerate(self.running):
            if process.poll() is not None:
                self.running[place] = started(*self.commands[place])

    def close(self):
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def killed_until_done(spec, whole, kills, seed, outside=None):
    """Kill the client, the scheduler or workers at random moments, and go on until the sweep is done."""
    moments = random.Random(seed)
    left, where = kills, ["--workers", "2"] if outside is None else ["--scheduler", outside.address]
    kinds = ["worker", "client"] if outside is None else ["worker", "scheduler", "client"]
    moments.shuffle(kinds)
    while True:
        process = command(spec, *where)
        try:
            while left and process.poll() is None:
                time.sleep(moments.uniform(0.5, 6.0))
                scheduler, *others = [process] if outside is None else outside.running
                targets = {"client": [process], "scheduler": [scheduler]}
                targets["worker"] = [*others, *(worker for each in (process, *others) for worker in workers_of(each))]
                with contextlib.suppress(ProcessLookupError, IndexError):  # there are no workers yet
                    os.kill(moments.choice(targets[kinds[left % len(kinds)]]).pid, signal.SIGKILL)
                left -= 1
                time.sleep(0.1)  # until the dead are known to be dead
                if outside is not None:
                    outside.revive()
            process.communicate(timeout=LIMIT)
        finally:
            for worker in workers_of(process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            if process.poll() is None:
                process.kill()
        if process.returncode == 0:
            break
        if outside is not None:
            outside.revive()
    same_numbers(spec.parent / "out", whole)


@pytest.mark.slow
def test_three_kills_change_no_number(spec, whole):
    with contextlib.closing(Outside()) as outside:
        killed_until_done(spec, whole, 3, 1, outside)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_fifty_kills_change_no_number(spec, whole, seed):
    """Half of them where the workers are those of the client, half where a scheduler is there before."""
    with contextlib.closing(Outside()) if seed % 2 else contextlib.nullcontext() as outside:
        killed_until_done(spec, whole, 5, seed, outside)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_ctrl_c_keeps_finished_cells_and_says_so(spec, workers):
    process = command(spec, "--workers", workers, "--over", "run.seed=lin:0:9999:10000")
    cells = spec.parent / "out" / "cells"
    while process.poll() is None and not any(cells.glob("*.npz")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and "40000 cells are kept" in errors and "Traceback" not in errors, errors
    assert 0 < int((tl.load(spec.parent / "out").cell_status == 0).sum()) < 40_000


@pytest.mark.slow
def test_workers_that_are_killed_are_started_again(whole):
    """All of them with what watches over them, when the first results are there."""

    def killed(name, fraction):
        while processes:
            os.killpg(processes.pop().pid, signal.SIGKILL)

    with workers.local(2) as client:
        processes = [child for child in psutil.Process().children() if "dask_worker" in " ".join(child.cmdline())]
        assert len(processes) == 2
        result = asked(scheduler=client, progress=killed)
        assert not processes and len(client.scheduler_info()["workers"]) > 0
    xr.testing.assert_identical(result.drop_attrs(), whole.drop_attrs())


@pytest.mark.slow
def test_a_cell_that_kills_its_worker_is_marked_and_no_other():
    """It waits beside cells of another kind, some of which a worker has in its hands when it dies."""
    here = os.getpid()

    def deadly(y, s):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return (y - s) ** 4

    seeds = [0, 1, 2, 3, 4, 5]
    over = {"problem.loss": [tl.Square()] * 3 + [deadly] + [tl.Square()] * 2, "run.seed": seeds}
    arguments = phase_retrieval(0.2, d=50), tl.SGD(0.01), "DirectSGD"
    result = tl.sweep(*arguments, over=over, together=[list(over)], until=0.1, save=2, workers=2)
    assert result.cell_status.values.tolist() == [0, 0, 0, 3, 0, 0], result.cell_message.values
    assert "killed its worker 3 times while nothing else" in str(result.cell_message.values[3])


@pytest.mark.slow
def test_two_processes_share_a_folder(spec, whole):
    """Each finishes, with all cells; the grid of neither hides that of the other."""
    both = [
        command(spec, "--workers", "0"),
        command(spec, "--workers", "0", "--over", "run.seed=3,4,5,6,7", "--set", "run.descriptions=['OverlapSGD']"),
    ]
    reports = [finished(process) for process in both]
    assert [report["done"] for report in reports] == [24, 20]
    grids = [tl.load(spec.parent / "out"), *map(tl.load, (spec.parent / "out" / "grids").iterdir())]
    assert sorted(grid.sizes["seed"] for grid in grids) == [5, 6]
    own = next(grid for grid in grids if grid.sizes["seed"] == 6)
    xr.testing.assert_identical(own.drop_attrs(), whole.drop_attrs())
    assert not list((spec.parent / "out").rglob("*.part"))


@contextlib.contextmanager
def running_scheduler(folder, *options):
    """A scheduler and a worker in processes of their own, as on a cluster."""
    file = folder / "scheduler.json"
    scheduler = ("distributed.cli.dask_scheduler", *HERE, "--port", "0", "--scheduler-file", file)
    running = [started(*scheduler, *options)]
    try:
        deadline = time.monotonic() + 60.0
        while not file.exists() or not file.read_text().strip().endswith("}"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        running.append(started("distributed.cli.dask_worker", address, *HERE, "--nthreads", "1", *options))
        yield address, running
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.slow
def test_a_running_scheduler_is_used_and_its_death_is_told(spec, whole):
    with running_scheduler(spec.parent) as (address, (scheduler, _)):
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


@pytest.mark.slow
def test_workers_of_a_running_scheduler_are_checked_and_waited_for(tmp_path, monkeypatch):
    """One without the package is refused; and when there has been none for long, the sweep ends with a sentence."""
    preload = tmp_path / "without.py"
    preload.write_text("import sys\nsys.modules['twolayer'] = None\n")
    with running_scheduler(tmp_path) as (address, running):
        wrong = started("distributed.cli.dask_worker", address, *HERE, "--no-nanny", "--preload", preload)
        running.append(wrong)
        with cluster.connected(address) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            with pytest.raises(tl.InvalidInput, match="cannot use twolayer") as raised:
                asked(scheduler=client)
            assert str(raised.value).endswith(".") and "\n" not in str(raised.value)
            wrong.kill()
            while len(client.scheduler_info()["workers"]) > 1:
                time.sleep(0.1)
            monkeypatch.setattr(workers, "START", 3.0)
            with pytest.raises(tl.ComputationFailed, match="no worker for 3 seconds"):
                asked(scheduler=client, seeds=100, progress=lambda *_: os.killpg(running[1].pid, signal.SIGKILL))


class FakeClient:
    """Workers that answer what they are told to."""

    dashboard_link = ""

    def __init__(self, answers):
        self.answers = answers

    def run(self, question, on_error):
        return self.answers

    def scheduler_info(self, n_workers):
        return {"workers": self.answers}


def elsewhere(device=None, **packages):
    """What another worker would answer."""
    known, own = json.loads(environment())
    return json.dumps([{**known, **packages}, device or own], sort_keys=True)


@pytest.mark.parametrize(
    ("answers", "part"),
    [
        ([environment(), elsewhere(jax="0.1")], "tcp://b:1 has jax 0.1"),
        ([environment(), elsewhere(device="gpu")], "tcp://b:1 has device gpu"),
        ([elsewhere(twolayer="0.0.1")] * 2, "has twolayer 0.0.1, but this process has"),
        ([environment(), ModuleNotFoundError("No module named 'twolayer'")], "cannot use twolayer"),
    ],
)
def test_workers_that_differ_are_refused(answers, part):
    client: Any = FakeClient(dict(zip(["tcp://a:1", "tcp://b:1"], answers, strict=True)))
    with pytest.raises(tl.InvalidInput, match=part) as raised:
        cluster.OnCluster(client)
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)


def test_a_worker_that_comes_later_is_checked_by_its_results():
    client: Any = FakeClient({"tcp://a:1": environment()})
    executor: Any = cluster.OnCluster(client)
    for where in (environment(), elsewhere(numpy="1.0")):
        future: Any = SimpleNamespace(status="finished", result=lambda where=where: Done([], b"", [], 1.0, where))
        if where == environment():
            assert executor._answer(future, []).where == where
        else:
            with pytest.raises(tl.InvalidInput, match=r"came later has numpy 1\.0, and each of the others has numpy"):
                executor._answer(future, [])


def test_several_gpus_have_a_worker_each_unless_told_otherwise(monkeypatch):
    """With GPUs that are pretended: how many workers would be started, and when none."""
    asked_for = []

    def local(number):
        asked_for.append(number)
        raise KeyboardInterrupt

    monkeypatch.setattr("twolayer.sweeps.over_grid.local", local)
    monkeypatch.setattr("twolayer.sweeps.over_grid.gpus", lambda: ["0", "1", "2"])
    with pytest.raises(KeyboardInterrupt):
        asked()
    assert asked_for == [3] and asked(seeds=1, workers=0).sizes["seed"] == 1
    monkeypatch.setattr("twolayer.sweeps.over_grid.gpus", lambda: ["0"])
    assert asked(seeds=1).sizes["seed"] == 1 and asked_for == [3]


@pytest.mark.parametrize(
    ("devices", "asked_for", "expected"),
    [
        ([], {}, 8),
        ([], {"workers": 3}, 3),
        ([], {"workers": 0}, 0),
        ([], {"scheduler": "tcp://a:1"}, None),
        (["0"], {}, 0),  # the one GPU is that of this process
        (["0", "1"], {}, 2),
        (["0", "1"], {"workers": 5}, 2),
    ],
)
def test_a_forecast_counts_workers_as_the_sweep_has_them(monkeypatch, devices, asked_for, expected):
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    monkeypatch.setattr("twolayer.sweeps.over_grid.cores", lambda: 8)
    monkeypatch.setattr("twolayer.sweeps.over_grid.gpus", lambda: devices)
    stated = {"workers": None, "scheduler": None} | asked_for
    assert expected_workers(**stated) == expected
    monkeypatch.setenv(cluster.ADDRESS, "tcp://a:1")
    assert expected_workers(**stated) == (None if stated["workers"] is None else expected)


def test_a_worker_that_cannot_be_started_again_is_tried_once_more(monkeypatch):
    monkeypatch.setattr(workers, "WATCH", 0.01)
    monkeypatch.setattr(workers, "_ended", lambda process: None)
    tried = []

    def start() -> Any:
        tried.append(len(tried))
        if len(tried) == 2:
            raise OSError(12, "Cannot allocate memory")
        return Mock(poll=lambda: 1 if len(tried) < 3 else None)

    with workers._kept_running([start]):
        for _ in range(500):
            if len(tried) == 3:
                break
            time.sleep(0.01)
    assert tried == [0, 1, 2]


def test_portions_follow_the_number_of_workers(monkeypatch):
    monkeypatch.setattr(cluster, "COUNT", 0.0)
    client: Any = FakeClient({"tcp://a:1": environment()})
    executor = cluster.OnCluster(client)
    assert (executor.slots, executor.ahead) == (1, 2)
    client.answers = dict.fromkeys("abc", environment())
    done = Done(["key"], b"", [0], 0.0, executor.where)  # the next result is always there
    future: Any = Mock(status="finished", result=lambda: done)
    monkeypatch.setattr(client, "as_current", contextlib.nullcontext, raising=False)
    monkeypatch.setattr("distributed.wait", lambda *_, **__: SimpleNamespace(done=[future]))
    executor._jobs[future] = []
    assert executor.next() is done
    assert (executor.slots, executor.ahead) == (3, 6)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_an_encrypted_scheduler_is_used_with_certificates(spec, whole):
    """The client reads them from the configuration of Dask, here from variables."""
    cert, key = spec.parent / "cert.pem", spec.parent / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    certificates = ("--protocol", "tls", "--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key)
    variables = {"CA_FILE": cert, "CLIENT__CERT": cert, "CLIENT__KEY": key}
    with running_scheduler(spec.parent, *certificates) as (address, _):
        assert address.startswith("tls://")
        known = {f"{cluster.TLS}{name}": str(file) for name, file in variables.items()}
        report = finished(command(spec, "--scheduler", address, env=os.environ | known))
        assert report["computed"] == 24
    same_numbers(spec.parent / "out", whole)


@pytest.mark.parametrize(
    ("certificates", "part"),
    [({}, "without certificates: set DASK_"), ({"ca-file": "/none/ca.pem"}, "cannot be reached")],
)
def test_an_encrypted_scheduler_is_refused_without_certificates(certificates, part):
    import dask.config as settings

    with settings.set({f"distributed.comm.tls.{name}": file for name, file in certificates.items()}):
        with pytest.raises(tl.InvalidInput, match=part) as raised:
            with cluster.connected("tls://127.0.0.1:9"):
                pass
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)


def test_an_unreachable_scheduler_is_refused(monkeypatch):
    monkeypatch.setattr(cluster, "TIMEOUT", 1.0)
    arguments = phase_retrieval(0.2), tl.SGD(0.05), "SaadSolla"
    with pytest.raises(tl.InvalidInput, match="cannot be reached"):
        tl.sweep(*arguments, over={"run.seed": [1]}, scheduler="tcp://127.0.0.1:9")


def test_without_dask_workers_are_refused_and_the_rest_works(monkeypatch):
    monkeypatch.setattr(workers, "has_dask", lambda: False)
    monkeypatch.setattr("twolayer.sweeps.over_grid.has_dask", lambda: False)
    arguments = phase_retrieval(0.2), tl.SGD(0.05, constraint=tl.Sphere()), "SaadSolla"
    with pytest.raises(tl.InvalidInput, match=r"twolayer\[cluster\]"):
        tl.sweep(*arguments, over={"run.seed": [1]}, workers=2)
    assert tl.sweep(*arguments, over={"run.seed": [1]}, until=0.1, save=2).cell_status.values.tolist() == [0]
