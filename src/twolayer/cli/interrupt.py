"""Ctrl-C at the command line: at any moment one sentence and status 130, with what was finished kept.

The signal is noticed by a thread, since the main thread may be inside compiled code for a long time. Where nothing
would be lost, the process ends at once. A computation that can give back what it has finished is asked to stop
(`twolayer.core.interrupts`), and its command writes the result; if it does not come to its next check in time, what it
has offered until then is written without it. Files that are being written are finished first. A second Ctrl-C ends the
process at once. The interpreter's last steps are left out, since threads of XLA that are at work crash in them.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from twolayer.cli.outcome import INTERRUPTED, Answer, Failure, deliver
from twolayer.core import interrupts, whole_files

# Seconds: until a computation that has nothing to give back must have noticed; until one that has must be done with it;
# and until files must be written.
QUICK, PATIENCE, WRITING = 2.0, 10.0, 60.0
SHOW_CURSOR = b"\r\x1b[2K\x1b[?25h"

Finish = Callable[[], Answer | Failure]


def _nothing() -> Failure:
    return Failure("Interrupted: nothing was finished, and nothing was written.", INTERRUPTED)


class _Listener:
    """What the thread that waits for signals knows of the command."""

    def __init__(self) -> None:
        self.is_on = False
        self.ends: tuple[socket.socket, ...] = ()  # the system writes the numbers of signals to the second one
        self.as_json = self.quiet = False
        self.finish: Finish = _nothing  # makes what is said
        self.is_stoppable = False  # whether the computation at work looks for `interrupts.ask`
        self.has_signal = threading.Event()
        self.voice = threading.RLock()  # held for ever by the thread that ends the command


_listener = _Listener()


def listen(as_json: bool, quiet: bool) -> None:
    """Take over Ctrl-C for this process; where it is ignored, as it is for commands in the background, it stays so."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    _listener.is_on, _listener.as_json, _listener.quiet = True, as_json, quiet
    _listener.ends = reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    signal.signal(signal.SIGINT, lambda number, frame: None)


def claim(is_interrupted: bool = False) -> None:
    """Called before a command says how it ended: from now on no interruption does. If one has begun to, wait for it."""
    if not _listener.is_on:
        return
    is_too_late = _listener.has_signal.is_set() and not is_interrupted
    if is_too_late or not _listener.voice.acquire(blocking=False):
        threading.Event().wait()


def end(status: int) -> int:
    """The status of a command that is over; after an interruption the process ends here.

    After any other end a signal comes too late to change anything. It is ignored, since the interpreter removes our
    handler when it ends, and the signal would replace the status of a command whose answer is complete.
    """
    if not _listener.is_on:
        return status
    if status == INTERRUPTED:
        _exit(status)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


@contextlib.contextmanager
def keeping(finish: Finish) -> Iterator[None]:
    """While the block runs, Ctrl-C asks it to stop; ``finish`` keeps what was offered if it does not."""
    before = _listener.finish
    interrupts.offer(None)
    _listener.finish, _listener.is_stoppable = finish, True
    try:
        yield
    except KeyboardInterrupt:
        claim(is_interrupted=True)
        raise
    else:
        if _listener.has_signal.is_set():  # in the last moment: all is finished, and will be kept
            claim(is_interrupted=True)
    finally:
        _listener.is_stoppable = False
        _listener.finish = before


def say(finish: Finish) -> None:
    """Set the sentence that an interruption prints from now on."""
    _listener.finish = finish


def say_answer(answer: Answer) -> None:
    """From now on an interruption prints an answer that is there, but not yet in files."""
    say(lambda: answer._replace(status=INTERRUPTED, sentence="Interrupted: no files were written."))


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[list[str]]:
    """While the block writes results into a folder, Ctrl-C waits for it; it puts the names of its files in the list."""
    written: list[str] = []
    with whole_files.held():
        yield written
        sentence = f"Interrupted when the work was done: the results are in {str(folder)!r}."
        say(lambda: Failure(sentence, INTERRUPTED, tuple(written)))


def _watch(reading: socket.socket) -> None:
    """Wait for signals, in a thread of its own."""
    number_of_signals = 0
    while True:
        if reading.recv(1) != bytes([signal.SIGINT]):
            continue
        number_of_signals += 1
        if number_of_signals == 1:
            _listener.has_signal.set()
            threading.Thread(target=_obey, daemon=True).start()
        else:
            _show_cursor()
            with contextlib.suppress(OSError):
                os.write(2, b"twolayer: Interrupted again: ended at once.\n")
            whole_files.discard_drafts()
            os._exit(INTERRUPTED)


def _obey() -> None:
    """End the command, unless its main thread notices and does so itself."""
    _wait_for_the_computation()
    if not _listener.voice.acquire(blocking=False):
        return
    if not _listener.is_stoppable:
        whole_files.close(WRITING)
    try:
        outcome = _listener.finish()
    except Failure as other:
        outcome = other
    except Exception as error:  # of a result that was never meant to be complete
        outcome = Failure(f"Interrupted: what was finished could not be kept ({type(error).__name__}).", INTERRUPTED)
    _show_cursor()
    _exit(deliver(outcome, _listener.as_json, _listener.quiet))


def _wait_for_the_computation() -> None:
    """Ask it to stop, and wait until it has, or until nothing more can be expected of it."""
    began = time.monotonic()
    if _listener.is_stoppable:
        interrupts.ask()
    while _listener.is_stoppable:
        has_something = interrupts.offered() is not None or not interrupts.is_asked()
        if time.monotonic() - began > (PATIENCE if has_something else QUICK):
            return
        time.sleep(0.02)


def _show_cursor() -> None:
    """Undo what a progress bar has done to the terminal."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), SHOW_CURSOR)


def _exit(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    whole_files.discard_drafts()
    os._exit(status)
