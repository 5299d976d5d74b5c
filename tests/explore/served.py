"""A server of the explorer in a process of its own, and questions to it, for the tests."""

import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

# A problem whose programs are compiled in a moment, and that takes no time.
SMALL: dict[str, Any] = {
    "title": "Phase retrieval, small",
    "problem": {
        "target": {"kind": "PhaseRetrieval"},
        "student": {"p": 1, "activation": "square"},
        "inputs": {"kind": "Gaussian", "d": 100},
        "noise": 0.01,
    },
    "training": {"learning_rate": 0.1, "constraint": "Sphere"},
    "run": {"descriptions": ["OverlapSGD", "SaadSolla"], "until": 4.0, "save": 12, "replicas": 6, "seed": 3},
}
# Programs are kept between runs of the tests, beside those of the tests themselves.
PROGRAMS = Path(__file__).parents[2] / "build" / "explorer-programs"


@dataclass
class Answer:
    """The answer to a question: its status, its events, and the data of the last one (or of the refusal)."""

    status: int
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    body: bytes = b""

    @property
    def end(self) -> str:
        return self.events[-1][0] if self.events else "rejected"

    @property
    def data(self) -> dict[str, Any]:
        return self.events[-1][1] if self.events else json.loads(self.body)


class Served:
    """A server that runs: its link, its process, and requests to it."""

    def __init__(self, process: "subprocess.Popen[str]", first_line: str):
        self.process, self.link = process, first_line
        self.connections: list[http.client.HTTPConnection] = []
        parts = urllib.parse.urlsplit(first_line)
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.token = urllib.parse.parse_qs(parts.query)["token"][0]

    @property
    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def request(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, **more: Any):
        """The response to a request; ``body`` is sent as JSON unless it is bytes."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=more.get("timeout", 120))
        self.connections.append(connection)
        sent = {"X-Twolayer-Token": self.token, "Connection": "close"}
        if body is not None:
            sent["Content-Type"] = "application/json"
            body = body if isinstance(body, bytes) else json.dumps(body)
        sent |= headers or {}
        connection.request(method, path, body, {name: value for name, value in sent.items() if value is not None})
        return connection.getresponse()

    def ask(self, kind: str, spec: Any = None, client: str = "test", **options: Any) -> Answer:
        """The answer to a question."""
        return self.post({"kind": kind, "client": client, "spec": SMALL if spec is None else spec, "options": options})

    def post(self, body: Any, path: str = "/api/work", is_read: bool = True, **more: Any) -> Answer:
        response = self.request("POST", path, body, **more)
        is_stream = (response.headers["content-type"] or "").startswith("text/event-stream")
        if not is_stream:
            return Answer(response.status, [], response.read())
        if not is_read:
            response.close()
            self.close()
            return Answer(response.status)
        return Answer(response.status, list(events_of(response)))

    def close(self) -> None:
        """Close all connections."""
        while self.connections:
            self.connections.pop().close()

    def download(self, form: str, spec: Any = None, **options: Any):
        """The response with a file."""
        return self.request("POST", "/api/download", {"format": form, "spec": spec or SMALL, "options": options})


def events_of(response: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in response:
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


# A process started in the background may inherit an ignored SIGINT, and Python then leaves it ignored.
LISTENING = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('twolayer', run_name='__main__', alter_sys=True)"
)


@contextmanager
def served(folder: Path, *arguments: str, spec: dict[str, Any] | None = SMALL, **environment: str) -> Iterator[Served]:
    """A server in a folder of its own; at the end it and its workers are gone."""
    import tomli_w

    given = list(arguments)
    if spec is not None:
        (folder / "spec.toml").write_text(tomli_w.dumps(spec))
        given.insert(0, "spec.toml")
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, "explore", *given, "--no-browser"],
        cwd=folder,
        env=os.environ | {"TWOLAYER_CACHE": str(PROGRAMS), "HOME": str(folder)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline().strip()
        assert line, process.stderr.read()
        running = Served(process, json.loads(line)["address"] if line.startswith("{") else line)
        yield running
        running.close()
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
