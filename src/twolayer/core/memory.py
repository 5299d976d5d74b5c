"""How much memory a computation may take: asked before it starts, so that it refuses in place of being killed."""

import os
from collections.abc import Callable
from pathlib import Path

from twolayer.core.errors import InvalidInput

# Where nothing is known about the machine.
UNKNOWN = 8 * 2**30


def available_memory() -> int:
    """Bytes that this process may still take without paging; never more than its control group allows."""
    return max(min(_of_the_machine(), _of_the_group()), 0)


def in_words(size: float | int) -> str:
    """A number of bytes for a sentence."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def check_room(need: float | int, what: str, remedy: str = "") -> None:
    """Refuse what needs more memory than there is; ``what`` begins the sentence, ``remedy`` ends it."""
    there = available_memory()
    if need > there:
        ending = f": {remedy}" if remedy else ""
        raise InvalidInput(f"{what} needs {in_words(need)} of memory, but {in_words(there)} are there{ending}.")


def check_size(name: str, size: int, need: Callable[[int], float | int], what: str) -> None:
    """Refuse a size whose memory is not there, and say the largest one that fits."""
    there = available_memory()
    if need(size) > there:
        most = largest(need, size, there)
        raise InvalidInput(
            f"Argument `{name}` must be at most {most} here: at {name} = {size}, {what} would take "
            f"{in_words(need(size))} of memory, but {in_words(there)} are there."
        )


def largest(need: Callable[[int], float | int], above: int, there: float | int) -> int:
    """The largest size below ``above`` whose need, which grows with it, is there; 0 if there is none."""
    low, high = 0, above
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= there else (low, middle)
    return low


def _of_the_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        pass
    try:  # other systems say what there is, not what is free
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
