"""The progress bar of the command line: on stderr, with the time left, and only where somebody can see it."""

import contextlib
from collections.abc import Iterator

from twolayer.verbs.progress import Progress, reporting


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress]:
    """A function to be told (name, fraction done), with one bar per name; nobody listens where none can look."""
    with reporting(False if quiet else None, after=0.0) as tell:
        yield tell
