"""Ctrl-C while something is computed: noted at once, obeyed between two blocks of work.

An exception that a signal raises at an arbitrary moment can be lost, since JAX runs Python functions from which none
gets out (at every garbage collection, for one), and it can leave a library in the middle of something. So a signal sets
a flag, and the loops that advance a computation by short blocks ask for it.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_asked = threading.Event()
_partial: Callable[[], Any] | None = None


def ask() -> None:
    """Ask the computation at work to stop at its next check."""
    _asked.set()


def is_asked() -> bool:
    """Whether it was asked and has not come to a check since."""
    return _asked.is_set()


def check() -> None:
    """Raise `KeyboardInterrupt` if the computation was asked to stop; called between blocks of work."""
    if _asked.is_set():
        _asked.clear()
        raise KeyboardInterrupt


def offer(partial: Callable[[], Any] | None) -> None:
    """Say how to make a result of what is finished by now, should the rest take too long to stop; None: nothing is.

    It is forgotten at the end of the block of `deferred`.
    """
    global _partial
    _partial = partial


def offered() -> Callable[[], Any] | None:
    """What was offered last by the computation at work."""
    return _partial


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let a first Ctrl-C only set the flag while the block runs; a second one raises at once, as usual.

    Handlers belong to the main thread, and one that somebody else has installed stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    is_ours = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        _asked.clear()
        signal.signal(signal.SIGINT, _first)
    try:
        yield
        if is_ours:
            check()  # asked after the last check of the block
    finally:
        offer(None)
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _asked.clear()


def _first(number: int, frame: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ask()
