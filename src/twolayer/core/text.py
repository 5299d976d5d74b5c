"""Tables and texts that read well on a terminal and in a notebook."""

import html
from collections.abc import Sequence
from typing import Any


class Text(str):
    """A text that prints as it is and that a notebook shows with its columns in line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> list[str]:
    """The lines of a table whose columns are as wide as their longest cell.

    Parameters
    ----------
    header
        The names of the columns.
    rows
        The cells; each is written as text.
    right
        The numbers of the columns that end in line, as numbers should.
    """
    lines = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def written(line: list[str]) -> str:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [written(line) for line in lines]


def html_table(rows: Sequence[tuple[str, str]], caption: str = "") -> str:
    """A table of names and values for a notebook; a value is HTML, a name is text."""
    head = f"<caption style='text-align:left'><b>{html.escape(caption)}</b></caption>" if caption else ""
    style = "style='text-align:left;vertical-align:top;padding:1px 10px 1px 0'"
    body = "".join(f"<tr><th {style}>{html.escape(name)}</th><td {style}>{value}</td></tr>" for name, value in rows)
    return f"<table>{head}{body}</table>"


def html_grid(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with named columns for a notebook; every cell is text."""
    style = "style='text-align:left;vertical-align:top;padding:1px 10px 1px 0'"
    head = "".join(f"<th {style}>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td {style}>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
