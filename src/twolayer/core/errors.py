"""The exceptions of this package. Every message is a sentence that names the field, the value and what is allowed."""

import difflib
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import ParamSpec, TypeVar

# How much of a value is echoed, of the name of a file, and the longest message of all.
MAX_VALUE, MAX_PATH, MAX_MESSAGE = 80, 240, 1000
# For an integer of more bits only its number of digits is shown: Python refuses to print more than 4,300 digits.
MAX_BITS = 200

P = ParamSpec("P")
R = TypeVar("R")


class TwolayerError(Exception):
    """Base class of every exception that this package raises on purpose."""

    def __init__(self, message: str = ""):
        # A message has to stay readable, however long the values in it are.
        super().__init__(shortened(message, MAX_MESSAGE))


class InvalidInput(TwolayerError, ValueError):
    """An input cannot be used; nothing has been computed or written.

    ``position`` is the place of the mistake in a text that the user wrote, counted from 0, where it is known.
    """

    position: int | None = None


class NotApplicable(InvalidInput):
    """The requested description does not apply to this problem and training."""


class WrongArguments(InvalidInput, TypeError):
    """A function or constructor was called with an unknown argument, or without one that it needs."""


class ComputationFailed(TwolayerError, RuntimeError):
    """A computation started but did not finish, because it diverged or missed its tolerance.

    ``result`` holds what had been computed until then, or None.
    """

    def __init__(self, message: str, result: object = None):
        super().__init__(message)
        self.result = result


class CheckpointWarning(UserWarning):
    """A checkpoint cannot be continued or saved; the computation runs without it."""


class Caution(UserWarning):
    """A request can be computed, but the result may be uninformative or take long."""


def shortened(text: str, most: int = MAX_VALUE) -> str:
    """Shorten a text to ``most`` characters by omitting its middle."""
    if len(text) <= most:
        return text
    tail = (most - 3) // 3
    return f"{text[: most - 3 - tail]}...{text[len(text) - tail :]}"


def shown(value: object) -> str:
    """Return the text of a value for an error message, shortened if it is long."""
    if isinstance(value, PurePath):
        return shortened(repr(str(value)), MAX_PATH)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        return f"a whole number of about {round(value.bit_length() * 0.30103)} digits"
    if isinstance(value, str | bytes) and len(value) > 2 * MAX_PATH:
        value = value[:MAX_PATH] + value[-MAX_PATH:]  # type: ignore[operator]  # the middle is omitted anyway
    try:
        text = repr(value)
        return shortened(" ".join(text.split()) if "\n" in text else text)  # a message is one line
    except Exception:  # a container of such numbers, nesting without end, or an object that cannot be printed
        return f"a value of type {type(value).__name__} that cannot be written out"


def nearest(name: object, allowed: Iterable[str]) -> str:
    """Return the end of an error message for an unknown name: the most similar allowed names, and all of them.

    A name is similar to another if its spelling is, or if it is the initials (``lr`` for ``learning_rate``) or a part
    of it.
    """
    allowed = sorted(allowed)
    lowered = {option.lower(): option for option in allowed}
    lowered_name = (name if isinstance(name, str) else shown(name)).lower()[:MAX_PATH]
    close = difflib.get_close_matches(lowered_name, lowered, n=1)
    close = close or [option for option in lowered if "".join(word[:1] for word in option.split("_")) == lowered_name]
    close = close or [option for option in lowered if len(lowered_name) > 3 and lowered_name in option]
    known = ", ".join(allowed)
    if close:
        return f"did you mean {' or '.join(repr(lowered[option]) for option in close[:3])}? Allowed: {known}."
    return f"allowed {'is' if len(allowed) == 1 else 'are'} {known}."


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message; JAX's messages are pages long."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return shortened(lines[0].rstrip("."), 200)


def _names_of(signature: inspect.Signature) -> list[str]:
    """Names of the arguments, those of a dictionary of keywords included."""
    names = [name for name in signature.parameters if name != "self"]
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:  # annotated as Unpack[SomeTypedDict]
            (keywords,) = typing.get_args(parameter.annotation) or (None,)
            names.remove(parameter.name)
            names += list(getattr(keywords, "__annotations__", ()))
    return names


def takes_these(function: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Wrap a function so that an unknown or missing argument raises `WrongArguments` with one sentence."""
    signature = inspect.signature(function)
    called = name or function.__name__
    names = _names_of(signature)
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = next((keyword for keyword in kwargs if keyword not in names), None)
        try:
            signature.bind(*args, **kwargs)
            if is_open and unknown is not None:
                raise TypeError
        except TypeError as error:
            if unknown is None:
                raise WrongArguments(f"`{called}` cannot be called in this way: {error}.") from None
            hint = nearest(unknown, names) if names else "it takes none."
            raise WrongArguments(f"`{called}` has no argument {shown(unknown)}: {hint}") from None
        return function(*args, **kwargs)

    parameters = [
        parameter.replace(annotation=accepted_types(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    checked.__dict__["__signature__"] = signature.replace(parameters=parameters)
    return checked


def accepted_types(annotation: object) -> object:
    """Return what a signature shows: of an argument that takes any object, the types that its converter accepts."""
    beside = getattr(annotation, "__metadata__", ())  # of `Annotated`
    if beside:
        return beside[0]
    members = typing.get_args(annotation)
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    if not is_union or all(accepted_types(member) is member for member in members):
        return annotation
    return functools.reduce(operator.or_, map(accepted_types, members))
