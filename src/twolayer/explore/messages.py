"""Bodies of requests as plain data: bounded in size, depth and number of values, before anybody reads their content."""

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from twolayer.core.errors import InvalidInput

if TYPE_CHECKING:
    Tables: TypeAlias = dict[str, Any]
else:
    Tables = dict

MAX_BYTES = 2**18
MAX_DEPTH = 40
MAX_VALUES = 20_000
KINDS = ("check", "explain", "theory", "simulate", "compare", "learn", "escape", "equations", "program")
ALIASES = {"verdict": "compare"}
FORMATS = ("toml", "script", "png", "svg", "pdf", "netcdf")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_body(body: bytes) -> Tables:
    """The JSON object of a body, or `InvalidInput` with one sentence."""
    try:
        data = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidInput(f"The body of a request may be nested {MAX_DEPTH} deep at most.") from None
    except UnicodeDecodeError:
        raise InvalidInput("The body of a request must be text in UTF-8.") from None
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("The body of a request must be valid JSON.") from None
    if not isinstance(data, dict):
        raise InvalidInput("The body of a request must be a JSON object.")
    _check_shape(data)
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidInput(f"A number in a request must be finite, but one is {name}.")


def _check_shape(data: Tables) -> None:
    """Refuse data that is nested too deeply, has too many values, numbers beyond a double, or text without a code."""
    level: list[Any] = [data]
    number = 0
    for _ in range(MAX_DEPTH):
        number += len(level)
        if number > MAX_VALUES:
            raise InvalidInput(f"The body of a request may hold {MAX_VALUES} values at most.")
        if any(isinstance(value, float) and abs(value) == float("inf") for value in level):
            raise InvalidInput("A number in a request must be finite, but one is too large.")
        if not all(_is_text(text) for value in level for text in _texts(value)):
            raise InvalidInput("A text in a request must be valid Unicode, but one holds half of a surrogate pair.")
        level = [item for value in level for item in _items(value)]
        if not level:
            return
    raise InvalidInput(f"The body of a request may be nested {MAX_DEPTH} deep at most.")


def _texts(value: Any) -> list[str]:
    """The text of a value, and the names that it has."""
    return [value] if isinstance(value, str) else list(value) if isinstance(value, dict) else []


def _is_text(text: str) -> bool:
    """Whether a text can be written in UTF-8; JSON may name one half of a surrogate pair alone."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """The value, or one sentence that says what is allowed."""
    if not isinstance(value, str) or value not in allowed:
        from twolayer.core.errors import shown

        raise InvalidInput(f"`{name}` must be one of {', '.join(allowed)}, but is {shown(value)}.")
    return value


def a_name(name: str, value: object) -> str:
    """A short name, such as the one of a window; empty when left out."""
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidInput(f"`{name}` must be a text of at most 64 letters, digits, hyphens and underscores.")
    return value


def a_table(name: str, value: object) -> Tables:
    """A table; empty when left out."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"`{name}` must be a table.")
    return value
