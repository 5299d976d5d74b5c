"""Tables and texts for a terminal and for a notebook."""

import html
from collections.abc import Sequence
from typing import Any


class Text(str):
    """A string that prints as it is, and that a notebook shows with a fixed-width font so that columns line up."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table whose columns are as wide as their longest cell.

    Parameters
    ----------
    header
        Names of the columns.
    rows
        Cells, which are converted to text.
    right
        Indices of the columns to align on the right, as for numbers.
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
    """Return an HTML table of names and values for a notebook; a name is text, a value is HTML."""
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
