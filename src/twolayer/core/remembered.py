"""Numbers worth keeping between processes, such as how long programs of a kind took to compile.

They stand beside the compiled programs in the user's cache folder, and in this process alone where there is none. They
are estimates: a number that is lost because two processes write at once is measured again.
"""

import contextlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path

from twolayer.core.program_cache import keep
from twolayer.core.whole_files import write_whole

# Entries of a topic; the oldest go.
MOST = 1000

_lock = threading.Lock()
_here: dict[str, dict[str, list[float]]] = {}


def recall(topic: str, key: str) -> list[float] | None:
    """Return the numbers that were remembered under a key of a topic; None if there are none."""
    with _lock:
        return _all(topic).get(key)


def remember(topic: str, key: str, numbers: Sequence[float | int]) -> None:
    """Remember numbers under a key of a topic."""
    with _lock:
        known = _here[topic] = _all(topic) | _read(topic)  # what other processes have written is newer
        known.pop(key, None)
        known[key] = list(map(float, numbers))
        for oldest in list(known)[: max(0, len(known) - MOST)]:
            del known[oldest]
        file = _file(topic)
        if file is not None:
            with contextlib.suppress(OSError):  # no room, no permission: they are remembered here
                write_whole(file, json.dumps(known).encode())


def _all(topic: str) -> dict[str, list[float]]:
    if topic not in _here:
        _here[topic] = _read(topic)
    return _here[topic]


def _read(topic: str) -> dict[str, list[float]]:
    """Return what stands in the file of a topic; nothing where it is damaged."""
    file = _file(topic)
    if file is None:
        return {}
    try:
        content = json.loads(file.read_text())
        return {str(key): [float(number) for number in numbers] for key, numbers in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _file(topic: str) -> Path | None:
    cache = keep()
    return None if cache is None else cache.shared.parent / f"{topic}.json"
