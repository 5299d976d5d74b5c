"""How a command ends, and how that is told: words, one JSON object, one sentence on stderr, and the exit status.

Nothing heavy is imported here: it is needed before anything else is there.
"""

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing import TextIO
else:
    TextIO = object  # a stream in memory is one as well

DONE = 0
BAD_INPUT = 2
FAILED = 3
INTERRUPTED = 130


class Answer(NamedTuple):
    """The result of a command: for programs, for people, and its exit status."""

    data: dict[str, Any]
    text: str
    status: int = DONE
    sentence: str = ""  # why there is not more of it


class Failure(Exception):
    """A command that could not do its work: one sentence why, the exit status, and the files that were kept."""

    def __init__(self, sentence: str, status: int, files: tuple[str, ...] = ()):
        super().__init__(sentence)
        self.status = status
        self.files = files


def deliver(outcome: Answer | Failure, as_json: bool, quiet: bool = False) -> int:
    """Print how a command ended; returns the exit status."""
    if isinstance(outcome, Failure):
        return _tell(outcome, as_json)
    try:
        if not quiet:
            write(outcome.text, sys.stderr if as_json else sys.stdout)
        if as_json:
            write(json.dumps(outcome.data), sys.stdout)
    except Failure as failure:
        return _tell(failure, as_json=False)
    _say(outcome.sentence)
    return outcome.status


def _tell(failure: Failure, as_json: bool) -> int:
    """Say why on stderr in one line, and as JSON on stdout where that was asked."""
    sentence = " ".join(str(failure).split())
    _say(sentence)
    if as_json:
        with contextlib.suppress(Failure):  # it failed anyway
            write(json.dumps({"error": sentence, "status": failure.status, "files": list(failure.files)}), sys.stdout)
    return failure.status


def _say(sentence: str) -> None:
    if sentence:
        with contextlib.suppress(Failure):  # where nobody can be told, there is still the status
            write(f"twolayer: {sentence}", sys.stderr)


def write(text: str | None, stream: TextIO | None) -> None:
    """Print a text, or only what is left in the buffer; a stream that takes nothing more makes a `Failure`."""
    try:
        if text is not None:
            print(text, file=stream)
        if stream is not None:  # a closed standard stream is None
            stream.flush()
    except OSError as error:
        _silence(stream)
        reason = error.strerror or type(error).__name__
        raise Failure(f"The answer could not be written to standard output: {reason}.", FAILED) from None


def _silence(stream: Any) -> None:
    """Let what is still in the buffer go nowhere: the interpreter flushes it at its end, and would complain."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
