"""The command line in a process of its own: started, interrupted, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import twolayer as tl

SPEC = """
title = "small"
[problem]
[problem.target]
kind = "PhaseRetrieval"
[problem.student]
p = 1
activation = "square"
[problem.inputs]
kind = "Gaussian"
d = 40
[training]
learning_rate = 0.1
[training.constraint]
kind = "Sphere"
[run]
until = 1.0
save = 10
replicas = 10
"""

# Says when it listens, so that a busy machine cannot make the signal come before: what Python itself does at its start
# is not ours. A process started in the background may inherit an ignored SIGINT, and Python then leaves it ignored.
LAUNCHER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from twolayer import cli
listen = cli.listen
def listen_and_say(*args, **kwargs):
    listen(*args, **kwargs)
    os.write(int(os.environ["LISTENING"]), b"x")
cli.listen = listen_and_say
{before}
sys.exit(cli.main())
"""


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


def start(folder: Path, arguments: list[str], before: str = "", **settings: Any) -> subprocess.Popen[str]:
    """A command in a folder, when it has begun to listen for Ctrl-C; ``before`` is run before it."""
    reading, writing = os.pipe()
    # Settings of JAX change what it says on stderr: loading a program from its cache, for one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.replace("{before}", before), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment | {"LISTENING": str(writing)},
        pass_fds=(writing,),
        **settings,
    )
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    return process


def wait(process: subprocess.Popen[str], seconds: float = 300.0) -> Ended:
    """Until the process ends; one that does not, on however busy a machine, is killed, and has the status of that."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return Ended(process.returncode, out, err)


def interrupted(folder: Path, arguments: list[str], after: float) -> Ended | None:
    """A command that is sent SIGINT so many seconds after it began to listen; None when it was done before."""
    process = start(folder, arguments)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return wait(process)
    wait(process)
    return None


def check_whole(folder: Path) -> list[str]:
    """Every file below a folder can be read to its end, and nothing else is there; returns their names."""
    names = []
    for path in sorted(folder.rglob("*")):
        assert not path.name.startswith("."), f"{path} is half-written"
        if path.is_dir():
            continue
        names.append(path.name)
        content = path.read_bytes()
        if path.suffix == ".nc":
            tl.load(path)
        elif path.suffix == ".json":
            json.loads(content)
        elif path.suffix == ".png":
            assert content.startswith(b"\x89PNG") and content.endswith(b"IEND\xaeB`\x82")
        elif path.suffix == ".pdf":
            assert content.startswith(b"%PDF") and content.rstrip().endswith(b"%%EOF")
        else:
            assert content
    return names
