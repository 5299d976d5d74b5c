"""A long computation's place in its work, kept on disk: what was killed goes on from there and ends the same."""

import contextlib
import io
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.files import make_folder, write_whole

# Seconds between two savings: little is lost, and little is spent.
EVERY = 20.0


class Checkpoint:
    """Arrays under names in one file that is there whole or not at all.

    Parameters
    ----------
    path
        The file; it need not exist.
    fingerprint
        What identifies the computation. A file of another computation is refused, never overwritten.
    every
        Seconds between two savings.
    """

    def __init__(self, path: str | Path, fingerprint: str, every: float = EVERY):
        self.path = Path(path)
        self.fingerprint = fingerprint
        self.every = every
        self._last = time.monotonic()
        self._has_warned = False

    def load(self) -> dict[str, np.ndarray] | None:
        """What was saved last; None when there is nothing."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files}
            owner = str(found.pop("fingerprint"))
        except (OSError, ValueError, KeyError):
            raise InvalidInput(f"The file {str(self.path)!r} is not a checkpoint; remove it or name another.") from None
        if owner != self.fingerprint:
            raise InvalidInput(
                f"The checkpoint {str(self.path)!r} belongs to another computation; remove it or name another."
            )
        return found

    @property
    def is_due(self) -> bool:
        """Whether the last saving was long ago."""
        return time.monotonic() - self._last >= self.every

    def save(self, arrays: dict[str, Any]) -> None:
        """Keep these arrays in the place of the last ones; a disk that refuses them is no reason to end the work."""
        content = io.BytesIO()
        np.savez(content, fingerprint=np.array(self.fingerprint), **arrays)
        try:
            make_folder(self.path.parent)
            write_whole(self.path, content.getvalue())
        except OSError as error:
            self._say_once(error)
        self._last = time.monotonic()

    def _say_once(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"The checkpoint {str(self.path)!r} cannot be written ({error.strerror or type(error).__name__}): the "
                "computation goes on, but what is killed from now on begins where it was last kept.",
                stacklevel=2,
            )

    def remove(self) -> None:
        """The work is done."""
        with contextlib.suppress(OSError):  # a disk that has become read-only is no reason to lose the result
            self.path.unlink(missing_ok=True)
