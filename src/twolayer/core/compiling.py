"""Whether a program is compiled at this moment, for how long, and how long that usually takes.

JAX tells the end of every tracing and lowering, and of every compilation; native code says so itself (`of_native`).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from twolayer.core.remembered import recall, remember

# What JAX tells: a function is traced, a program is lowered and is now compiled, a program is compiled.
TRACED = "/jax/core/compile/jaxpr_trace_duration"
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILED = "/jax/core/compile/backend_compile_duration"
# Seconds after the end of a tracing during which another one is taken to go on: a large program consists of many.
PAUSE = 1.0
# Seconds of compiling that are worth remembering; less was read from the cache.
WORTH = 1.0
TOPIC = "compile-times"


@dataclass(eq=False)
class _Work:
    """Work whose programs are compiled: usual seconds, and the total and the number of blocks when it began."""

    expected: float | None
    before: float
    entered: int


class _State:
    """What is known of the compilation in this process; times are those of `time.monotonic`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_compiling = False  # between the lowering of a program and the end of its compilation
        self.last = -PAUSE  # when something was told
        self.total = 0.0  # seconds of all programs
        self.watched: list[_Work] = []
        self.entered = 0  # blocks so far, of all threads

    def hear(self, event: str, duration: float) -> None:
        """Take in what JAX tells. Tracings within others are told as well, so that only the end of programs counts."""
        with self.lock:
            now = time.monotonic()
            if event == COMPILED:
                self.is_compiling = False
            elif event == LOWERED:
                self.is_compiling = True
            elif event != TRACED:
                return
            self.total += min(duration, max(now - self.last, 0.0))
            self.last = now


_state = _State()


@lru_cache(maxsize=1)
def listen_to_jax() -> None:
    """Hear from now on what JAX tells of the programs of this process."""
    import jax

    def told(event: str, duration_secs: float, **kwargs: str | int) -> None:
        _state.hear(event, duration_secs)

    jax.monitoring.register_event_duration_secs_listener(told)


@contextlib.contextmanager
def of_native() -> Iterator[None]:
    """Say that native code is compiled for the time of a block."""
    began = time.monotonic()
    with _state.lock:
        _state.is_compiling, _state.last = True, began
    try:
        yield
    finally:
        with _state.lock:
            _state.is_compiling, _state.last = False, time.monotonic()
            _state.total += _state.last - began


@contextlib.contextmanager
def usual(key: str) -> Iterator[Callable[[], float]]:
    """For the time of a block, recall how long such programs took to compile before, and record how long it takes.

    Yields a function that returns the seconds of compiling since the block began.
    """
    listen_to_jax()
    known = recall(TOPIC, key)
    with _state.lock:
        _state.is_compiling = False  # a program that was lowered only is not compiled
        is_alone = not _state.watched  # another thread, or work around this, would count as well
        _state.entered += 1
        work = _Work(known[0] if known else None, _state.total, _state.entered)
        _state.watched.append(work)
    try:
        yield lambda: _state.total - work.before
        taken = _state.total - work.before
        is_alone = is_alone and _state.entered == work.entered
        # Programs that come from the cache take a moment, and tell nothing of those that do not.
        if is_alone and taken > WORTH and not (known and taken < 0.5 * known[0]):
            remember(TOPIC, key, [taken])
    finally:
        with _state.lock:
            _state.watched.remove(work)


def words() -> str:
    """Return that a program is compiled, and how long this takes or has taken; empty if none is compiled now."""
    with _state.lock:
        now = time.monotonic()
        if not _state.is_compiling and now - _state.last > PAUSE:
            return ""
        work = _state.watched[-1] if _state.watched else _Work(None, 0.0, 0)
        expected = work.expected
        taken = _state.total - work.before + (now - _state.last if _state.is_compiling else 0.0)
    if expected is None or taken > expected:
        return f"compiling, {taken:.0f} s so far"
    return f"compiling, about {max(1, round(expected - taken))} s"
