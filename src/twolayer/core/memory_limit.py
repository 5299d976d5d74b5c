"""Check the memory that a computation needs before it starts, so that it is refused instead of killed."""

import os
from collections.abc import Callable
from pathlib import Path

from twolayer.core.errors import InvalidInput

# Bytes assumed when the system does not say how much memory it has.
UNKNOWN = 8 * 2**30

_most: int | None = None


def restrict(size: int | None) -> None:
    """Let this process count on so many bytes at most, whatever the machine has; None for no such limit."""
    global _most
    _most = size


def available_memory() -> int:
    """Return the bytes that this process can still allocate without paging, within the limits set for it."""
    return max(min(_of_the_machine(), _of_the_group(), 2**62 if _most is None else _most), 0)


def bytes_in_words(size: float | int) -> str:
    """Return a number of bytes as text, in GB or MB."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def check_room(need: float | int, what: str, remedy: str = "") -> None:
    """Raise `InvalidInput` if more memory is needed than available; ``what`` begins the message, ``remedy`` ends it."""
    available = available_memory()
    if need > available:
        ending = f": {remedy}" if remedy else ""
        raise InvalidInput(
            f"{what} needs {bytes_in_words(need)} of memory, but {bytes_in_words(available)} is available{ending}."
        )


def check_size(name: str, size: int, need: Callable[[int], float | int], what: str) -> None:
    """Raise `InvalidInput` if a size needs more memory than available; the message gives the largest that fits."""
    available = available_memory()
    if need(size) > available:
        most = largest_size(need, size, available)
        raise InvalidInput(
            f"Argument `{name}` must be at most {most} here: at {name} = {size}, {what} would take "
            f"{bytes_in_words(need(size))} of memory, but {bytes_in_words(available)} is available."
        )


def largest_size(need: Callable[[int], float | int], above: int, available: float | int) -> int:
    """Return the largest size below ``above`` whose need, which grows with the size, is available; 0 if none is."""
    low, high = 0, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= available else (low, middle)
    return low


def _of_the_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:  # other systems report the total memory, not what is free
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):
        return UNKNOWN


def _of_the_group() -> int:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        return 2**62 if limit == "max" else int(limit) - used
    except (OSError, ValueError):
        return 2**62
