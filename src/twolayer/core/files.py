"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft to write, which takes the place of ``path`` when the block ends well: a reader never meets half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> Path:
    """Write bytes to a file, whole or not at all."""
    with whole(path) as draft:
        draft.write_bytes(content)
    return path
