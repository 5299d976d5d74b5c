"""Pages of the gallery: folders with a specification, a script and a text; and the results of their scripts.

The folders are next to this file, one per source text and in it one per page:

    escaping_mediocrity/escape_times/
        spec.toml    the learning problem, as `twolayer run` reads it; for data sets, as `twolayer ntk` reads it
        script.py    make(spec, ask) -> Made: the figures, and claims in numbers
        text.md      the title, the equation and what to look at
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.core.errors import InvalidInput, nearest, shown
from twolayer.core.types import NumbersLike
from twolayer.data.summary import finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
# The source texts in the order of the gallery: folder, title, key in docs/references.bib.
SOURCES = {
    "dimensionless_odes": ("From high-dimensional and mean-field dynamics to dimensionless ODEs", "arnaboldi2023"),
    "escaping_mediocrity": ("Escaping mediocrity", "arnaboldi2023escaping"),
    "first_order_methods": ("First-order methods in two-layer networks", "dandi2024reusing"),
    "fine_grained_analysis": ("Fine-grained analysis of lazy training", "arora2019"),
    "beyond_the_papers": ("Beyond the papers", ""),
}
# Standard errors within which a measurement agrees with a prediction: false alarms once in two million.
ERRORS = 5.0


@dataclass(frozen=True)
class Claim:
    """A claim of a page: a sentence, a number, and the range in which it must be for the sentence to be true."""

    sentence: str
    value: float
    low: float = -np.inf
    high: float = np.inf

    @property
    def holds(self) -> bool:
        """Whether the claim is true; it is not if the number is NaN."""
        return bool(self.low <= self.value <= self.high)

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain data for JSON; missing limits and numbers that are not finite are None."""
        numbers = {name: finite(getattr(self, name)) for name in ("value", "low", "high")}
        return {"sentence": self.sentence, **numbers, "holds": self.holds}

    @property
    def allowed(self) -> str:
        """The range in words."""
        low, high = (f"{end:.4g}" if np.isfinite(end) else "" for end in (self.low, self.high))
        return f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}"

    def __str__(self) -> str:
        both = "from " if np.isfinite([self.low, self.high]).all() else ""
        return f"{self.sentence}: {self.value:.4g} (must be {both}{self.allowed})"


def agrees(
    sentence: str, measured: NumbersLike, error: NumbersLike, predicted: NumbersLike, known_to: NumbersLike = 0.0
) -> Claim:
    """The claim that measurements agree with predictions within five standard errors.

    ``known_to`` is a bound on the error of the prediction, such as a finite-size effect of known order; it is
    subtracted from the distance.
    """
    distance = np.maximum(np.abs(np.asarray(measured) - np.asarray(predicted)) - np.asarray(known_to), 0.0)
    scores = distance / np.asarray(error)
    return Claim(f"{sentence}, in standard errors", float(np.max(scores)), high=ERRORS)


def slope(x: NumbersLike, y: NumbersLike) -> float:
    """The slope of y against x on logarithmic axes, by least squares."""
    return float(np.polyfit(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)), 1)[0])


def slope_error(x: NumbersLike, y: NumbersLike, errors: NumbersLike) -> float:
    """The standard error of `slope` from the standard errors of y."""
    x = np.log(np.asarray(x, dtype=float))
    weights = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    return float(np.linalg.norm(weights * np.asarray(errors) / np.asarray(y)))


def has_order(
    sentence: str,
    x: NumbersLike,
    y: NumbersLike,
    error: NumbersLike,
    predicted: float,
    left_out: float = 0.0,
) -> Claim:
    """The claim that y grows as a power of x, within five standard errors of the fitted exponent.

    ``error`` holds the standard errors of y. ``left_out`` is the relative size of terms by which the prefactor may
    change from one end of x to the other; it widens the range by what it could add to the exponent.
    """
    allowed = ERRORS * slope_error(x, y, error) + left_out / float(np.ptp(np.log(np.asarray(x, dtype=float))))
    return Claim(sentence, slope(x, y), predicted - allowed, predicted + allowed)


@dataclass(frozen=True)
class PageOptions:
    """The options of a page: the sizes of the papers or small ones, and the folder of data sets."""

    full: bool = False
    data_dir: Path | None = None


@dataclass(frozen=True)
class Made:
    """The result of a script: figures by file name, claims, and further files as functions that write them."""

    figures: dict[str, "Figure"]
    claims: Sequence[Claim]
    extras: dict[str, Any] = field(default_factory=dict)  # file name -> function of a path that writes it


@dataclass(frozen=True)
class Page:
    """A page of the gallery, given by its folder."""

    folder: Path

    @property
    def name(self) -> str:
        """The name of the page on the command line."""
        return self.folder.name.replace("_", "-")

    @property
    def source(self) -> str:
        """The name of the source text of the page."""
        return self.folder.parent.name

    @property
    def text(self) -> str:
        """The text of the page, which begins with its title."""
        return (self.folder / "text.md").read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """The title of the page, the first line of its text."""
        return self.text.splitlines()[0].removeprefix("# ")


def pages() -> list[Page]:
    """All pages, in the order of the source texts and of the list ``order.txt`` of each of them."""
    listed = []
    for source in SOURCES:
        order = (HERE / source / "order.txt").read_text(encoding="utf-8").split()
        listed += [Page(HERE / source / name) for name in order]
    return listed


def find_page(name: str) -> Page:
    """The page with the given name, written with hyphens or underscores."""
    wanted = str(name).replace("_", "-")
    known = {page.name: page for page in pages()}
    if wanted not in known:
        raise InvalidInput(f"There is no gallery page {shown(name)}: {nearest(wanted, list(known))}")
    return known[wanted]
