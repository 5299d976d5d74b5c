"""The exceptions a user can meet. Each message is one sentence that names the field, the value and what is allowed."""

import difflib
from collections.abc import Iterable


class TwolayerError(Exception):
    """Base of every exception raised on purpose by this package."""


class InvalidInput(TwolayerError, ValueError):
    """What the user gave cannot be used; nothing has been computed or written."""


class NotApplicable(InvalidInput):
    """The description asked for does not describe this problem and training."""


class ComputationFailed(TwolayerError, RuntimeError):
    """A computation started but did not reach its end (it diverged, or missed its tolerance).

    ``result`` is what was obtained until then, or None.
    """

    def __init__(self, message: str, result: object = None):
        super().__init__(message)
        self.result = result


class Caution(UserWarning):
    """What was asked can be done, but its answer may say little, or take long."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The end of an error sentence for an unknown name: the nearest allowed one, or all of them."""
    allowed = sorted(allowed)
    lowered = {option.lower(): option for option in allowed}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=1)
    hint = f"did you mean {lowered[close[0]]!r}? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed)}."


def first_line(error: BaseException) -> str:
    """What somebody else's exception says, as one line; JAX writes pages."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 200 else lines[0][:197] + "..."
