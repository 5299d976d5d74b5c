"""How figures look: one context, a palette that colour-blind readers can tell apart, widths of a journal."""

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure, FigureBase
from matplotlib.mathtext import MathTextParser

# One and two columns of a physics journal, in inches.
COLUMN = 3.4
PAGE = 7.0
NOTEBOOK_DPI = 130  # at which letters have the size of those around a figure
LETTERS_PER_INCH = 15  # in a title
TITLE_LINE = 0.17  # heights of a line, in inches
LEGEND_LINE = 0.15
LEGEND_SIZE = 7.5  # of its letters, in points

# Okabe and Ito's colours without yellow, which is lost on white paper; wine (Paul Tol) stands in as the eighth.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#882255")
LINESTYLES = ("-", (0, (4, 1.5)), (0, (4, 1.2, 1, 1.2)), (0, (2, 1)))
MARKERS = ("o", "s", "^", "D")
GREY = "0.88"  # areas of reference
DARK_GREY = "0.35"  # lines of reference

# Labels that several figures share.
TIME_LABEL = r"time  $t$"
RISK_LABEL = r"excess risk  $\mathcal{R}-\Delta/2$"

COMPUTER_MODERN = "cmr10"
# The Computer Modern font that comes with matplotlib holds other glyphs in these places.
WRONG_IN_COMPUTER_MODERN = frozenset('<>|_{}\\"^~')
PLAIN_FAMILY = ["STIXGeneral", "DejaVu Serif"]

RC: Any = {  # the names of settings are a type of their own in matplotlib
    "font.family": [COMPUTER_MODERN, "DejaVu Serif"],  # the second for glyphs that the first lacks
    "mathtext.fontset": "cm",
    "axes.formatter.use_mathtext": True,  # cmr10 has no minus sign of its own
    "font.size": 8.0,
    "axes.labelsize": 8.5,
    "axes.titlesize": 8.5,
    "figure.titlesize": 9.0,
    "legend.fontsize": LEGEND_SIZE,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.minor.width": 0.35,
    "ytick.minor.width": 0.35,
    "lines.linewidth": 1.1,
    "lines.markersize": 2.6,
    "lines.markeredgewidth": 0.5,
    "patch.linewidth": 0.0,
    "legend.frameon": False,
    "legend.handlelength": 1.9,
    "legend.columnspacing": 1.4,
    "legend.borderaxespad": 0.2,
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # fonts are embedded whole, as journals ask
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.06,
}


@contextmanager
def style() -> Iterator[None]:
    """Inside this context figures are made and written in the style of the package, whatever the user's own is."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


class ShownFigure(Figure):
    """A figure that a notebook shows by itself, although pyplot does not know of it."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with style():
            self.savefig(content, format="png", dpi=NOTEBOOK_DPI, metadata={"Software": None})
        return content.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that belongs to no window and to no global state."""
    figure = ShownFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def put_title(figure: FigureBase, title: str | None) -> None:
    """Write a title that a user gave: with formulas between dollars where they can be read, else as it stands."""
    if not title:
        return
    width = figure.bbox.width / figure.dpi  # pyright: ignore[reportAttributeAccessIssue]
    lines = textwrap.wrap(title, int(LETTERS_PER_INCH * width))
    has_formulas = all(map(_is_readable, lines))
    plain = re.sub(r"\$[^$]*\$", "", title) if has_formulas else title
    is_wrong = mpl.rcParams["font.family"][0] == COMPUTER_MODERN and WRONG_IN_COMPUTER_MODERN & set(plain)
    options: dict[str, Any] = {"family": PLAIN_FAMILY} if is_wrong else {}
    figure.suptitle("\n".join(lines), parse_math=has_formulas, linespacing=1.0, **options)
    grow(figure, TITLE_LINE * len(lines))


def grow(figure: FigureBase, height: float) -> None:
    """Make room for words, so that they take nothing from the panels; a user's own figure keeps its size."""
    if isinstance(figure, ShownFigure):
        figure.set_figheight(figure.get_figheight() + height)


def letters(text: str) -> int:
    """About how many letters wide a text with formulas is."""
    return len(re.sub(r"\\[a-zA-Z]+", "x", text).translate(str.maketrans("", "", "${}^_")))


def colors(number: int) -> list[str]:
    """As many different colours: of the palette while these are enough, else from dark to light."""
    if number <= len(PALETTE):
        return list(PALETTE[:number])
    return [to_hex(color) for color in mpl.colormaps["viridis"](np.linspace(0.0, 0.92, number))]


def _is_readable(text: str) -> bool:
    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True
