"""What a command gives back, and how it is told: words, one JSON object, and the exit status."""

import contextlib
import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import typer

DONE = 0
BAD_INPUT = 2
FAILED = 3
INTERRUPTED = 130

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there; words go to stderr.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress bar and no words: errors only, and what --json prints.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a field, as in training.learning_rate=0.3; may be repeated."
    ),
]
Every = Annotated[
    float | None,
    typer.Option(
        "--checkpoint-every",
        metavar="SECONDS",
        help="How often simulations keep their place, from which the same command goes on when it was killed; 20 when "
        "left out.",
        show_default=False,
    ),
]


class Answer(NamedTuple):
    """The result of a command: for programs, for people, and its exit status."""

    data: dict[str, Any]
    words: str
    status: int = DONE


class Failure(Exception):
    """A command that could not do its work: one sentence why, the exit status, and the files that were kept."""

    def __init__(self, sentence: str, status: int, files: tuple[str, ...] = ()):
        super().__init__(sentence)
        self.status = status
        self.files = files


def tell(failure: Failure, as_json: bool) -> int:
    """Say why on stderr in one line, and as JSON on stdout where that was asked; returns the exit status."""
    sentence = " ".join(str(failure).split())
    print(f"twolayer: {sentence}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": sentence, "status": failure.status, "files": list(failure.files)}))
    return failure.status


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command of a function that returns an `Answer` or raises; only the unexpected gives a traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        as_json, quiet = kwargs["as_json"], kwargs["quiet"]
        try:
            with telling_cautions(quiet):
                answer = _call(command, *args, **kwargs)
        except Failure as failure:
            raise typer.Exit(tell(failure, as_json)) from None
        if not quiet:
            print(answer.words, file=sys.stderr if as_json else sys.stdout)
        if as_json:
            print(json.dumps(answer.data))
        if answer.status != DONE:
            raise typer.Exit(answer.status)

    return wrapped


@contextlib.contextmanager
def telling_cautions(quiet: bool) -> Iterator[None]:
    """Tell cautions on stderr as they come, one line each and each of them once; nothing when quiet."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        sentence = str(message)
        if not sentence.startswith("Caution: "):  # by its words, so that help need not import the package's class
            others(message, category, *where, **more)
        elif not quiet and sentence not in told:
            told.add(sentence)
            print(f"twolayer: {sentence}", file=sys.stderr)

    told: set[str] = set()
    with warnings.catch_warnings():
        others = warnings.showwarning
        warnings.filterwarnings("always", message="Caution")
        warnings.showwarning = show
        yield


def _call(command: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
    """Call a command; the exceptions that are raised on purpose become a `Failure`."""
    try:
        from twolayer.core.errors import ComputationFailed, InvalidInput

        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show
                return command(*args, **kwargs)
        except InvalidInput as error:
            raise Failure(str(error), BAD_INPUT) from None
        except ComputationFailed as error:
            raise Failure(str(error), FAILED) from None
    except KeyboardInterrupt:
        raise Failure("Interrupted: nothing was finished, and nothing was written.", INTERRUPTED) from None


def _show(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line on stderr, without the place in the code that it comes from."""
    print(f"twolayer: {' '.join(str(message).split())}", file=sys.stderr)
