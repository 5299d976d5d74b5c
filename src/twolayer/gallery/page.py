"""What a page of the gallery is: a folder with a specification, a script and a text; and what its script gives back.

The folders lie beside this file, one per source text and in it one per page:

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
    """A number of a page, and the range in which it must lie for the page's sentence to be true."""

    sentence: str
    value: float
    low: float = -np.inf
    high: float = np.inf

    @property
    def holds(self) -> bool:
        """Whether it does; a number that is not one never does."""
        return bool(self.low <= self.value <= self.high)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; ends that are not there, and numbers that are none, are None."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        finite = {name: float(x) if np.isfinite(x) else None for name, x in numbers.items()}
        return {"sentence": self.sentence, **finite, "holds": self.holds}

    def __str__(self) -> str:
        ends = (
            f"{self.low:.4g}" if np.isfinite(self.low) else "",
            f"{self.high:.4g}" if np.isfinite(self.high) else "",
        )
        if all(ends):
            allowed = f"must be from {ends[0]} to {ends[1]}"
        else:
            allowed = f"must be at least {ends[0]}" if ends[0] else f"must be at most {ends[1]}"
        return f"{self.sentence}: {self.value:.4g} ({allowed})"


def agrees(sentence: str, measured: Any, error: Any, predicted: Any, known_to: Any = 0.0) -> Claim:
    """The claim that a measurement is a prediction within five standard errors; of several, the largest deviation.

    ``known_to`` is a bound on what the prediction leaves out, such as a finite-size effect of known order; it is taken
    off the distance.
    """
    distance = np.maximum(np.abs(np.asarray(measured) - np.asarray(predicted)) - np.asarray(known_to), 0.0)
    scores = distance / np.asarray(error)
    return Claim(f"{sentence}, in standard errors", float(np.max(scores)), high=ERRORS)


def slope(x: Any, y: Any) -> float:
    """Of y against x on logarithmic axes, by least squares."""
    return float(np.polyfit(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)), 1)[0])


@dataclass(frozen=True)
class Ask:
    """What a user asks of a page: the papers' sizes or small ones, and where data sets lie."""

    full: bool = False
    data_dir: Path | None = None


@dataclass(frozen=True)
class Made:
    """What a script made: figures by file name, claims, and further files as functions that write them."""

    figures: dict[str, "Figure"]
    claims: Sequence[Claim]
    extras: dict[str, Any] = field(default_factory=dict)  # file name -> function of a path that writes it


@dataclass(frozen=True)
class Page:
    """A page of the gallery, by the folder in which it lies."""

    folder: Path

    @property
    def name(self) -> str:
        """As the command line writes it."""
        return self.folder.name.replace("_", "-")

    @property
    def source(self) -> str:
        """The source text it belongs to."""
        return self.folder.parent.name

    @property
    def text(self) -> str:
        """The whole text, title first."""
        return (self.folder / "text.md").read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """The first line of the text."""
        return self.text.splitlines()[0].removeprefix("# ")


def pages() -> list[Page]:
    """All pages, in the order of the source texts, and in each of them in the order of its list ``order.txt``."""
    found = []
    for source in SOURCES:
        order = (HERE / source / "order.txt").read_text(encoding="utf-8").split()
        found += [Page(HERE / source / name) for name in order]
    return found


def find_page(name: str) -> Page:
    """The page of that name; underscores are as good as hyphens."""
    wanted = str(name).replace("_", "-")
    known = {page.name: page for page in pages()}
    if wanted not in known:
        raise InvalidInput(f"There is no gallery page {shown(name)}: {nearest(wanted, list(known))}")
    return known[wanted]
