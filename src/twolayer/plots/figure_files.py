"""Figures on disk."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from twolayer.core.whole_files import write_whole
from twolayer.plots.style import style

# Left out of the files: the program's version and the date, so that the same numbers give the same file.
METADATA = {"png": {"Software": None}, "pdf": {"Creator": None, "Producer": None, "CreationDate": None}}
OTHERS = {"svg": {"Creator": None, "Date": None}}  # formats that are made when asked for


def save_figure(figure: Figure, path_without_suffix: str | Path) -> list[Path]:
    """Write a figure as PNG (200 dots per inch) and PDF, each whole or not at all.

    Parameters
    ----------
    figure
        What `risk` or `overlaps` returned.
    path_without_suffix
        The name of both files up to ``.png`` and ``.pdf``, which are appended.

    Returns
    -------
    The two paths.
    """
    paths: list[Path] = []
    for suffix in METADATA:
        paths.append(write_whole(Path(f"{path_without_suffix}.{suffix}"), as_file(figure, suffix)))
    return paths


def as_file(figure: Figure, suffix: str) -> bytes:
    """The content of the file of a figure, as ``png`` (200 dots per inch), ``pdf`` or ``svg``."""
    content = io.BytesIO()
    with style(), _quiet_fonts():
        figure.savefig(content, format=suffix, dpi=200, metadata=(METADATA | OTHERS)[suffix])
    return content.getvalue()


@contextmanager
def _quiet_fonts() -> Iterator[None]:
    """Keep the font library from complaining on stderr about the dates inside matplotlib's own font files."""
    logger = logging.getLogger("fontTools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
