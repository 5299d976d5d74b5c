"""The command ``twolayer``. Heavy modules are imported inside the commands, so that help answers at once."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from twolayer.cli.interrupt import claim, end, listen
from twolayer.cli.outcome import BAD_INPUT, FAILED, INTERRUPTED, Failure, deliver, write

# The variable by which the completion of a shell calls the command.
COMPLETION = "_TWOLAYER_COMPLETE"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a script passes it to ``sys.exit``.

    Without arguments they are those of the process, whose signals and streams are then ours.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        if arguments is None:
            _take_streams()
            listen(as_json, quiet="--quiet" in given)
        status = _run(given)
        write(None, sys.stdout)  # what is left in the buffer fails here rather than at the end of the interpreter
        return end(status)
    except Failure as raised:
        failure = raised
    except KeyboardInterrupt:
        failure = Failure("Interrupted: nothing was finished, and nothing was written.", INTERRUPTED)
    claim(failure.status == INTERRUPTED)
    return end(deliver(failure, as_json))


def _run(given: list[str]) -> int:
    """The exit status of a command; what goes wrong outside of it is a `Failure`."""
    try:
        from typer.main import get_command

        from twolayer.cli.app import app

        return get_command(app).main(args=given or ["--help"], prog_name="twolayer", standalone_mode=False) or 0
    except SystemExit as error:
        if not error.code or COMPLETION in os.environ:  # completion was installed, or a shell has its answer
            return int(error.code or 0)
        # typer ends the process itself where nobody reads its help.
        raise Failure("The answer could not be written to standard output: Broken pipe.", FAILED) from error
    except OSError as error:
        raise Failure(f"The answer could not be written to standard output: {error.strerror}.", FAILED) from None
    except Exception as error:
        # The classes of typer's errors have moved between its versions; what they are called and can do has not.
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from None
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "twolayer"
        sentence = " ".join(message().split()).rstrip(".")
        raise Failure(f"{sentence}: see `{command} --help`.", BAD_INPUT) from None


def _take_streams() -> None:
    """Print what the encoding of a stream lacks by its code, rather than fail; and a warning as one line."""
    import warnings

    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]

    def show(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
        print(f"twolayer: {' '.join(str(message).split())}", file=sys.stderr)

    warnings.showwarning = show
