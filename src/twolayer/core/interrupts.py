"""Handle Ctrl-C during a computation: the signal sets a flag, and the computation stops between two blocks of work.

An exception raised by a signal at an arbitrary moment can be lost, since JAX runs Python functions that swallow
exceptions (at every garbage collection, for example), and it can leave a library in an inconsistent state. So a signal
only sets a flag, and the loops that advance a computation by short blocks check it.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_asked = threading.Event()
_partial: Callable[[], Any] | None = None


def ask() -> None:
    """Ask the running computation to stop at its next check."""
    _asked.set()


def is_asked() -> bool:
    """Whether the computation was asked to stop and has not checked since."""
    return _asked.is_set()


def check() -> None:
    """Raise `KeyboardInterrupt` if the computation was asked to stop; to be called between blocks of work."""
    if _asked.is_set():
        _asked.clear()
        raise KeyboardInterrupt


def offer(partial: Callable[[], Any] | None) -> None:
    """Offer a function that makes a result of the finished work, in case stopping takes too long; None for no result.

    The offer ends with the block of `deferred`.
    """
    global _partial
    _partial = partial


def offered() -> Callable[[], Any] | None:
    """Return the last function that the running computation offered, or None."""
    return _partial


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let the first Ctrl-C in the block only set the flag; a second one raises at once, as usual.

    Signal handlers belong to the main thread, and a handler that other code has installed stays.
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
