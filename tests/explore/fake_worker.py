"""A worker of the explorer that computes nothing: its options say what it does. It is there at once."""

import ctypes
import json
import os
import queue
import sys
import threading
import time

jobs: queue.SimpleQueue = queue.SimpleQueue()
cancelled: set[int] = set()


def read() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "cancel" in message:
            cancelled.add(message["cancel"])
        else:
            jobs.put(message)
    os._exit(0)


def say(serial: int, event: str, **data: object) -> None:
    sys.stdout.write(f"{serial} {event} {json.dumps(data)}\n")
    sys.stdout.flush()


def work(serial: int, options: dict) -> None:
    if options.get("crash"):
        os._exit(1)
    if options.get("begins"):
        say(serial, "begun")
    held = bytearray(options.get("eat", 0))  # the pages are touched, since they are filled with zeros below
    held[:] = b"x" * len(held)
    if options.get("is_native"):  # a call that holds the lock of the interpreter, as a long loop of a library does
        ctypes.PyDLL(None).sleep(3600)
    ends = time.monotonic() + options.get("seconds", 0.0)
    while time.monotonic() < ends:
        if serial in cancelled and not options.get("is_deaf"):
            say(serial, "cancelled")
            return
        time.sleep(0.01)
    for number in range(options.get("partials", 0)):
        say(serial, "partial", curves=[number])
    say(
        serial,
        "result",
        pid=os.getpid(),
        padding="x" * options.get("size", 0),
        **{key: options[key] for key in ("name",) if key in options},
    )


threading.Thread(target=read, daemon=True).start()
say(0, "ready")
while True:
    job = jobs.get()
    work(job["job"], job["options"])
