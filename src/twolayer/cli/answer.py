"""How what a command returns or raises becomes its outcome."""

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import typer

from twolayer.cli.interrupt import claim
from twolayer.cli.outcome import BAD_INPUT as BAD_INPUT
from twolayer.cli.outcome import DONE as DONE
from twolayer.cli.outcome import FAILED as FAILED
from twolayer.cli.outcome import INTERRUPTED as INTERRUPTED
from twolayer.cli.outcome import Answer as Answer
from twolayer.cli.outcome import Failure as Failure
from twolayer.cli.outcome import deliver
from twolayer.core.errors import Caution


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command of a function that returns an `Answer` or raises; only the unexpected gives a traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            with telling_warnings(kwargs["quiet"]):
                outcome = _call(command, *args, **kwargs)
        except Failure as failure:
            outcome = failure
        claim(outcome.status == INTERRUPTED)
        status = deliver(outcome, kwargs["as_json"], kwargs["quiet"])
        if status != DONE:
            raise typer.Exit(status)

    return wrapped


@contextlib.contextmanager
def telling_warnings(quiet: bool) -> Iterator[None]:
    """Tell warnings on stderr as they come, one line each and each of them once; no cautions when quiet."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        is_caution = issubclass(category, Caution)
        sentence = "Caution: " * is_caution + " ".join(str(message).split())
        if sentence not in shown and not (quiet and is_caution):
            shown.add(sentence)
            print(f"twolayer: {sentence}", file=sys.stderr)

    shown: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", Caution)
        warnings.showwarning = show
        yield


def _call(command: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
    """Call a command; the exceptions that are raised on purpose, or by the system's limits, become a `Failure`."""
    from twolayer.core.errors import InvalidInput, first_line

    try:
        _import_jax()
        return command(*args, **kwargs)
    except (InvalidInput, RuntimeError) as error:
        failure = _understood(error)
        if failure is None:
            raise
        raise failure from None
    except OSError as error:
        raise Failure(f"A file or another resource of the system could not be used: {error}.", FAILED) from None
    except MemoryError as error:
        raise Failure(f"There is not enough memory: {first_line(error)}.", FAILED) from None
    except KeyboardInterrupt:
        raise Failure("Interrupted: nothing was finished, and nothing was written.", INTERRUPTED) from None


def _understood(error: Exception) -> Failure | None:
    """The sentence of an error that was raised on purpose, or by JAX for a reason outside of our code."""
    from twolayer.core.errors import ComputationFailed, InvalidInput, first_line

    if "Unable to initialize backend" in str(error):
        platforms = os.environ.get("JAX_PLATFORMS")
        place = f" for JAX_PLATFORMS={platforms!r}" if platforms else ""
        return Failure(f"JAX finds no device{place}: see `twolayer doctor`.", BAD_INPUT)
    if isinstance(error, InvalidInput | ComputationFailed):
        return Failure(str(error), BAD_INPUT if isinstance(error, InvalidInput) else FAILED)
    if "RESOURCE_EXHAUSTED" in str(error):
        return Failure(f"There is not enough memory: {first_line(error)}", FAILED)
    return None


def _import_jax() -> None:
    """Import JAX, which reads its settings from the environment and refuses some in an exception of its own."""
    from twolayer.core.errors import first_line

    try:
        import jax  # noqa: F401
    except (ValueError, ImportError) as error:
        raise Failure(f"JAX cannot be imported: {first_line(error)}.", BAD_INPUT) from None
