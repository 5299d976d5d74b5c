"""Visitors of the explorer who move sliders for a minute: how long a theory takes to be drawn again, and the memory.

    python benchmarks/explore.py [--visitors 100] [--seconds 60] [--pause 3]

Every visitor has a window of its own and moves the slider of the learning rate, of the noise or of the dimension, again
and again after a pause of random length; a request that is still open when the next one begins is closed, as the page
does. All cores; wall clock. The server is a process of its own on loopback.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil

BUSY = 503


class Visitor:
    """A window with one problem, whose sliders move."""

    def __init__(self, number: int, link: str, spec: dict[str, Any]):
        parts = urlsplit(link)
        self.host, self.port, self.token = parts.hostname or "", parts.port or 0, parse_qs(parts.query)["token"][0]
        self.random = random.Random(number)
        self.name = f"visitor{number}"
        self.spec = json.loads(json.dumps(spec))
        self.seconds: list[float] = []
        self.replaced = self.busy = 0
        self.errors: list[str] = []

    def move(self) -> None:
        slider = self.random.choice(["learning_rate", "noise", "d"])
        if slider == "learning_rate":
            self.spec["training"]["learning_rate"] = round(self.random.uniform(1.0, 6.0), 3)
        elif slider == "noise":
            self.spec["problem"]["noise"] = round(10.0 ** self.random.uniform(-5.0, -2.0), 7)
        else:
            self.spec["problem"]["inputs"]["d"] = int(10.0 ** self.random.uniform(2.0, 6.0))

    async def live(self, until: float, pause: float) -> None:
        await asyncio.sleep(self.random.uniform(0.0, pause))
        asking: asyncio.Task[None] | None = None
        while time.monotonic() < until:
            if asking is not None and not asking.done():
                asking.cancel()
                self.replaced += 1
            self.move()
            asking = asyncio.create_task(self.ask())
            await asyncio.sleep(self.random.uniform(0.3, 1.7) * pause)
        if asking is not None:
            await asyncio.wait({asking})

    async def ask(self) -> None:
        began = time.monotonic()
        body = json.dumps({"kind": "theory", "client": self.name, "spec": self.spec, "options": {}}).encode()
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=2**24)
        head = (
            f"POST /api/work HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nX-Twolayer-Token: {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            status = int((await reader.readline()).split()[1])
            answer = (await reader.read()).decode()
        finally:
            writer.close()
        if "event: result" in answer:
            self.seconds.append(time.monotonic() - began)
        elif status == BUSY:
            self.busy += 1
        elif "event: cancelled" not in answer:
            self.errors.append(answer[-300:])


def used(server: psutil.Process) -> float:
    """CPU seconds of the server and its workers."""
    return sum(sum(process.cpu_times()[:2]) for process in (server, *server.children(recursive=True)))


async def visit(link: str, spec: dict[str, Any], asked: argparse.Namespace, server: psutil.Process) -> dict[str, Any]:
    visitors = [Visitor(number, link, spec) for number in range(asked.visitors)]
    await visitors[0].ask()  # the first answer waits for the workers to start
    first = visitors[0].seconds.pop()
    await asyncio.sleep(asked.warm)
    until = time.monotonic() + asked.seconds
    living = asyncio.gather(*(visitor.live(until, asked.pause) for visitor in visitors))
    memory, began = [], used(server)
    while not living.done():
        processes = [server, *server.children(recursive=True)]
        memory.append([process.memory_info().rss for process in processes])
        await asyncio.sleep(0.5)
    await living
    seconds = sorted(second for visitor in visitors for second in visitor.seconds)
    return {
        "visitors": asked.visitors,
        "answers": len(seconds),
        "first answer s": first,
        "CPU s an answer": (used(server) - began) / len(seconds),
        "median s": seconds[len(seconds) // 2],
        "95% s": seconds[int(0.95 * len(seconds))],
        "longest s": seconds[-1],
        "replaced": sum(visitor.replaced for visitor in visitors),
        "busy": sum(visitor.busy for visitor in visitors),
        "errors": sum(len(visitor.errors) for visitor in visitors),
        "server MB": max(row[0] for row in memory) / 1e6,
        "largest worker MB": max(max(row[1:], default=0) for row in memory) / 1e6,
        "all MB": max(map(sum, memory)) / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--visitors", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=3.0, help="mean seconds between two moves of a visitor")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds for all workers to start")
    asked = parser.parse_args()
    from common import report

    from twolayer.explore.form import initial_spec

    command = [sys.executable, "-m", "twolayer", "explore", "--no-browser", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            row = asyncio.run(visit(link, initial_spec(), asked, psutil.Process(process.pid)))
        finally:
            process.terminate()
    report("explore", [row])


if __name__ == "__main__":
    main()
