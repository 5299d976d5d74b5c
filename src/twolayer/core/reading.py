"""Read files of users: regular files only, up to a given size, with one sentence for every failure."""

import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twolayer.core.errors import InvalidInput, first_line, shown
from twolayer.core.memory_limit import bytes_in_words


def regular_file(path: Path, noun: str = "file") -> Path:
    """Return the path if it is a regular file; devices and pipes, which may have no end, are refused."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise InvalidInput(f"There is no {noun} {shown(path)}.") from None
    except (OSError, ValueError) as error:  # a name that is too long or below a file, or no name at all
        raise InvalidInput(f"The {noun} {shown(path)} cannot be read: {_reason(error)}.") from None
    if stat.S_ISDIR(mode):
        raise InvalidInput(f"The {noun} {shown(path)} must be a file, but is a folder.")
    if not stat.S_ISREG(mode):
        raise InvalidInput(f"The {noun} {shown(path)} must be a regular file, but is a device or a pipe.")
    return path


def read_text(path: Path, noun: str, most: int) -> str:
    """Read the text of a file that has at most ``most`` bytes."""
    regular_file(path, noun)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InvalidInput(f"The {noun} {shown(path)} cannot be read: {_reason(error)}.") from None
    if len(content) > most:
        raise InvalidInput(f"The {noun} {shown(path)} may have {bytes_in_words(most)} at most, but has more.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"The {noun} {shown(path)} must be UTF-8 text, but is not.") from None


@contextmanager
def parsing(path: Path, noun: str = "file", fault: str = "cannot be read") -> Iterator[None]:
    """Turn any failure inside the block into `InvalidInput` with one sentence about the file.

    A damaged file fails in many ways inside the libraries that parse it, and no list of exceptions is complete.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an empty table or an old header; the result is checked afterwards
            yield
    except InvalidInput:
        raise
    except MemoryError:
        raise InvalidInput(f"The {noun} {shown(path)} {fault}: it needs more memory than is available.") from None
    except Exception as error:
        raise InvalidInput(f"The {noun} {shown(path)} {fault}: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    """Return the reason of a failure as text: the system's message if it has one, without the file's name again."""
    reason = getattr(error, "strerror", None) or first_line(error)
    return reason if isinstance(error, OSError | ValueError | EOFError) else f"{type(error).__name__}, {reason}"
