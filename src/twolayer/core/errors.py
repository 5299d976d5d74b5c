"""The exceptions a user can meet. Each message is one sentence that names the field, the value and what is allowed."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, ParamSpec, TypeVar

# How much of a value is echoed, of the name of a file, and the longest message of all.
MAX_VALUE, MAX_PATH, MAX_MESSAGE = 80, 240, 1000
# A whole number of more bits is told by its size: Python refuses to write out one of more than 4,300 digits.
MAX_BITS = 200

P = ParamSpec("P")
R = TypeVar("R")


class TwolayerError(Exception):
    """Base of every exception raised on purpose by this package."""

    def __init__(self, message: str = ""):
        # A message is for a person to read, whatever was put into it.
        super().__init__(shortened(message, MAX_MESSAGE))


class InvalidInput(TwolayerError, ValueError):
    """What the user gave cannot be used; nothing has been computed or written."""


class NotApplicable(InvalidInput):
    """The description asked for does not describe this problem and training."""


class WrongArguments(InvalidInput, TypeError):
    """A function or a constructor was given an argument that it does not have, or not all that it needs."""


class ComputationFailed(TwolayerError, RuntimeError):
    """A computation started but did not reach its end (it diverged, or missed its tolerance).

    ``result`` is what was obtained until then, or None.
    """

    def __init__(self, message: str, result: object = None):
        super().__init__(message)
        self.result = result


class CheckpointWarning(UserWarning):
    """A checkpoint is not continued, or cannot be saved; the computation goes on without it."""


class Caution(UserWarning):
    """What was asked can be done, but its answer may say little, or take long."""


def shortened(text: str, most: int = MAX_VALUE) -> str:
    """A text with its middle left out where it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    tail = (most - 3) // 3
    return f"{text[: most - 3 - tail]}...{text[len(text) - tail :]}"


def shown(value: Any) -> str:
    """A value as an error message shows it, however large it is."""
    if isinstance(value, PurePath):
        return shortened(repr(str(value)), MAX_PATH)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return f"a whole number of about {round(value.bit_length() * 0.30103)} digits"
    if isinstance(value, str | bytes) and len(value) > 2 * MAX_PATH:
        value = value[:MAX_PATH] + value[-MAX_PATH:]  # type: ignore[operator]  # the middle is left out anyway
    try:
        text = repr(value)
        return shortened(" ".join(text.split()) if "\n" in text else text)  # a message is one line
    except Exception:  # a container of such numbers, nesting without end, or an object that cannot be printed
        return f"a value of type {type(value).__name__} that cannot be written out"


def nearest(name: Any, allowed: Iterable[str]) -> str:
    """The end of an error sentence for an unknown name: what it may have meant, and all that is allowed.

    Besides similar spelling a name may be the initials of another (``lr`` for ``learning_rate``) or a part of it.
    """
    allowed = sorted(allowed)
    lowered = {option.lower(): option for option in allowed}
    wanted = (name if isinstance(name, str) else shown(name)).lower()[:MAX_PATH]
    close = difflib.get_close_matches(wanted, lowered, n=1)
    close = close or [option for option in lowered if "".join(word[:1] for word in option.split("_")) == wanted]
    close = close or [option for option in lowered if len(wanted) > 3 and wanted in option]
    hint = f"did you mean {' or '.join(repr(lowered[option]) for option in close[:3])}? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed)}."


def first_line(error: BaseException) -> str:
    """What somebody else's exception says, as one line; JAX writes pages."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shortened(lines[0].rstrip("."), 200)


def takes_these(function: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """The function, with one sentence for arguments that it does not take: an unknown name, or one that is missing."""
    signature = inspect.signature(function)
    called = name or function.__name__

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            names = [each for each in signature.parameters if each != "self"]
            unknown = next((each for each in kwargs if each not in names), None)
            if unknown is None:
                raise WrongArguments(f"`{called}` cannot be called in this way: {error}.") from None
            hint = nearest(unknown, names) if names else "it takes none."
            raise WrongArguments(f"`{called}` has no argument {shown(unknown)}: {hint}") from None
        return function(*args, **kwargs)

    return checked
