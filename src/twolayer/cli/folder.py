"""Where a command writes: the choice of the folder, and whether it can be written before time is spent."""

import tempfile
from pathlib import Path

from twolayer.core.errors import InvalidInput, shown

RESULTS = Path("results")


def default_folder(stem: str, content_hash: str) -> Path:
    """The folder for a specification that names none: the same specification always gives the same one."""
    return RESULTS / f"{stem}-{content_hash[:8]}"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, and leave nothing behind.

    It is tried rather than asked: permission bits say yes to root even where the file system says no.
    """
    made: list[Path] = []
    try:
        if folder.exists() and not folder.is_dir():
            raise InvalidInput(f"The folder {shown(folder)} cannot be written: it is a file.")
        for parent in reversed([folder, *folder.parents]):
            if not parent.exists():
                parent.mkdir()
                made.append(parent)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput(f"The folder {shown(folder)} cannot be written: {error.strerror}.") from None
    finally:
        for parent in reversed(made):
            parent.rmdir()
