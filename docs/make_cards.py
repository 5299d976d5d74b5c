"""Cards of the gallery: one legible panel of each page, cut out of its stored figure at the white gutters around it.

`python docs/make_gallery.py` calls it for the pages that it makes; `--cards` makes the cards alone, from the figures
that are stored.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

SIZE = (600, 450)
COLOURS = 64
# The panel on a page's card, counted from 0 by rows; the first one where the page is not listed.
PANELS = {"learning-rate-regimes": 2, "mean-field": 1, "optimised-schedule": 1, "provable-learning": 3}
LEAST_PANEL = 150  # pixels of the figure: smaller frames are legends
GUTTER = 6  # blank columns or rows between what belongs together and what does not
WORD = 40  # a title further above a panel, or with letters this close beside it, is that of several panels
INK = 250  # a pixel darker than this is drawn, one darker than BLACK belongs to a line or a letter in black
BLACK = 110


@dataclass(frozen=True)
class Box:
    """A rectangle of pixels, without its last row and column."""

    top: int
    left: int
    bottom: int
    right: int

    def holds(self, other: "Box") -> bool:
        """Whether the other box lies inside this one."""
        rows = self.top <= other.top and other.bottom <= self.bottom
        return rows and self.left <= other.left and other.right <= self.right


def frames(grey: np.ndarray) -> list[Box]:
    """The axes of a figure, by rows: the connected black lines of their frames."""
    labels, _ = ndimage.label(grey < BLACK, structure=np.ones((3, 3)))
    boxes = [Box(rows.start, columns.start, rows.stop, columns.stop) for rows, columns in ndimage.find_objects(labels)]
    large = [box for box in boxes if min(box.bottom - box.top, box.right - box.left) >= LEAST_PANEL]
    outer = [box for box in large if not any(other != box and other.holds(box) for other in large)]
    return sorted(outer, key=lambda box: (box.top // LEAST_PANEL, box.left))


def blank_from(drawn: np.ndarray, start: int, length: int) -> int:
    """Where the first run of `length` blank places at or after `start` begins; the end where there is none."""
    for place in range(start, len(drawn) - length + 1):
        if not drawn[place : place + length].any():
            return place
    return len(drawn)


def drawn_from(drawn: np.ndarray, start: int) -> int:
    """The first place at or after `start` that is not blank; the end where there is none."""
    return start + int(np.argmax(drawn[start:])) if drawn[start:].any() else len(drawn)


def panel(grey: np.ndarray, boxes: list[Box], number: int) -> Box:
    """A panel with its title, ticks and labels, without its neighbours and the legend of the figure."""
    box = boxes[number]
    inked = grey < INK
    columns = inked[box.top : box.bottom + 2 * GUTTER].any(axis=0)
    before = [other.right for other in boxes if other.top < box.bottom and other.bottom > box.top]
    before = [edge for edge in before if edge <= box.left]
    left = blank_from(columns, max(before), GUTTER) if before else 0
    right = blank_from(columns, box.right, GUTTER)
    below = inked[:, left:right].any(axis=1)
    bottom = blank_from(below, box.bottom, 2)
    for _ in range(2):  # the numbers at the ticks, and the label of the axis
        bottom = blank_from(below, drawn_from(below, bottom), 2)
    above = inked[: box.top, left:right].any(axis=1)[::-1]
    ticks = blank_from(above, 0, 2)
    title = drawn_from(above, ticks)
    top = box.top - blank_from(above, title, 2)
    line = inked[top : box.top - title].any(axis=0)
    own = title - ticks < WORD and not (line[max(left - WORD, 0) : left].any() or line[right : right + WORD].any())
    return Box(top if own else box.top - ticks, left, bottom, right)


def table(grey: np.ndarray) -> Box:
    """The left of the first lines of a figure without frames, under its title."""
    inked = grey < INK
    inked[inked.mean(axis=1) > 0.5] = False  # lines between the rows
    rows = inked.any(axis=1)
    top = blank_from(rows, drawn_from(rows, 0), GUTTER)
    width = grey.shape[1] * 3 // 5
    bottom = blank_from(rows, min(top + width * SIZE[1] // SIZE[0], len(grey)), 2)
    return Box(top, 0, bottom, blank_from(inked[top:bottom].any(axis=0), width, GUTTER))


def card(figure: Path, number: int = 0) -> Image.Image:
    """One panel of a figure, or the first lines of a table, on white paper of the size of a card."""
    picture = Image.open(figure).convert("RGB")
    grey = np.asarray(picture.convert("L"))
    boxes = frames(grey)
    cut = panel(grey, boxes, number) if boxes else table(grey)
    piece = picture.crop((cut.left, cut.top, cut.right, cut.bottom))
    inside = (SIZE[0] - 4 * GUTTER, SIZE[1] - 4 * GUTTER)
    scale = min(inside[0] / piece.width, inside[1] / piece.height)
    piece = piece.resize((round(piece.width * scale), round(piece.height * scale)), Image.Resampling.LANCZOS)
    paper = Image.new("RGB", SIZE, "white")
    paper.paste(piece, ((SIZE[0] - piece.width) // 2, (SIZE[1] - piece.height) // 2))
    return paper.quantize(COLOURS)


def write_card(figure: Path, name: str, path: Path) -> None:
    """Write the card of the page `name`, whose figure is given, to a file."""
    card(figure, PANELS.get(name, 0)).save(path, optimize=True)
