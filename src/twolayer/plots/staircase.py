"""The figure of what can be learned: a staircase of directions, and, where it was measured, the escape against d."""

import math
import re
from typing import Any

import numpy as np
from matplotlib.figure import FigureBase

from twolayer.analyses import Learned
from twolayer.analyses.learnable.verification import Slope
from twolayer.core.errors import InvalidInput
from twolayer.learnability import Learnability
from twolayer.learnability.scaling import online_exponent, power
from twolayer.learnability.stages import Staircase
from twolayer.plots.panels import Panel, Place, Sheet, draw
from twolayer.plots.series import Drawable, Note, Rule, Series
from twolayer.plots.style import COLUMN, GREY, PAGE, PALETTE

LABEL, ANY_LABEL = PALETTE[0], PALETTE[1]
LONGEST = 26  # letters of a list of directions on one line


def staircase(result: Learned | Learnability, title: str | None = None, *, ax: Place | None = None) -> Place:
    r"""The order in which directions are found, and what each stage takes.

    Parameters
    ----------
    result
        What `twolayer.learn` returned.
    title
        Written above the figure; the target's formula when None.
    ax
        Where to draw, if not in a figure of its own: axes for the staircase, two axes for the staircase and the
        measured escape, a mapping from the names of panels ("stages", "escape") to axes, or a
        `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure of one journal column, or two where the escape was measured; or what was given as ``ax``. Each riser is a
    stage: its height the number of directions known after it, with the directions above it, and one dot for each order
    of the tensor that it takes, its leap. Below are the steps of online SGD. Solid: by correlations with the label.
    Dashed: by any function of the label, where that is different. Beside it, measured steps of escape against d with
    two standard errors, and the predicted power.
    """
    if not isinstance(result, Learned | Learnability):
        raise InvalidInput(f"Argument `result` must be what `learn` returned, but is a {type(result).__name__}.")
    analysis = result.analysis if isinstance(result, Learned) else result
    slope = result.checks.slope if isinstance(result, Learned) and result.checks is not None else None
    shown = [_stages(analysis)] + ([] if slope is None else [_escape(slope)])
    width = COLUMN if slope is None else PAGE
    if title is None and (ax is None or isinstance(ax, FigureBase)):
        title = analysis.text
    return draw(Sheet(shown, len(shown), width, (1.5 + 0.34 * max(analysis.k, 2),)), title, ax)


def _stages(analysis: Learnability) -> Panel:
    plain = analysis.seen.staircase if analysis.seen is not None else analysis.staircase
    other = analysis.generative if analysis.generative is not None and _differs(plain, analysis.generative) else None
    most = max(len(plain.stages), len(other.stages) if other is not None else 0, 1)
    series: list[Drawable] = [Rule("", analysis.k, color=GREY, look={"lw": 0.8, "zorder": 0})]
    if other is not None:
        series += _steps(other, ANY_LABEL, "any function of the label", most, is_other=True)
    name = "correlation with the label" + ("" if analysis.seen is None else ", for the student")
    series += _steps(plain, LABEL, name if other is not None else "", most, is_other=False)
    known = 0
    for n, stage in enumerate(plain.stages, start=1):
        known += len(stage.directions)
        directions = {"color": LABEL, "fontsize": "medium", "va": "bottom"}
        series.append(Note(_wrapped(analysis.direction_names(stage)), n + 0.09, known + 0.1, directions))
        doubt = " (undecided)" if stage.undecided else ""
        series.append(Note(f"leap {stage.leap}{doubt}", n + 0.09, known - 0.1, {"va": "top"}))
    if len(plain.unseen):
        series.append(Note(f"{len(plain.unseen)} not seen", 0.45, analysis.k + 0.1, {"va": "bottom"}))
    return Panel(
        "stages, each with its steps of online SGD",
        "directions found",
        series,
        xlim=(0.4, most + 0.95),
        ylim=(-0.25, analysis.k + 0.55),
        xticks={n: _cost(stage.leap) for n, stage in enumerate(plain.stages, start=1)},
        yticks=range(analysis.k + 1),
        legend="figure",
        is_boxed=False,
        name="stages",
    )


def _differs(first: Staircase, second: Staircase) -> bool:
    return [(s.leap, len(s.directions)) for s in first.stages] != [(s.leap, len(s.directions)) for s in second.stages]


def _cost(leap: int) -> str:
    exponent, has_log = online_exponent(leap)
    text = power(exponent, has_log).replace(" log d", r"\,\log d")
    return f"${text}$"


def _steps(stairs: Staircase, color: str, name: str, most: int, is_other: bool) -> list[Drawable]:
    """The stairs as a line, and as many dots on a riser as the order that it takes."""
    shift = -0.05 if is_other else 0.0
    counts = np.cumsum([0] + [len(stage.directions) for stage in stairs.stages]).astype(float)
    risers = np.arange(1, len(counts)) + shift
    x = np.concatenate([[0.45], np.repeat(risers, 2), [most + 0.9]])
    y = np.repeat(counts, 2) + shift
    look: dict[str, Any] = {"lw": 1.0, "zorder": 2} if is_other else {"lw": 1.5}
    series: list[Drawable] = [Series(name, x, y, color=color, dashed=int(is_other), look=look)]
    for at, low, high, stage in zip(risers, counts[:-1], counts[1:], stairs.stages, strict=True):
        dots = low + shift + (high - low) * (np.arange(stage.leap) + 0.5) / stage.leap
        series.append(
            Series("", np.full(stage.leap, at), dots, kind="points", color=color, marker=0, look={"mew": 0.8})
        )
        if is_other:
            beside = {"color": color, "ha": "right", "va": "center"}
            series.append(Note(f"leap {stage.leap}", at - 0.07, 0.5 * (low + high), beside))
    return series


def _wrapped(words: list[str]) -> str:
    """Directions as a formula, as many as there is room for."""
    shown = words if len(", ".join(words)) <= LONGEST else [words[0], r"\dots", words[-1]]
    formulas = (re.sub(r"z(\d+)", r"z_{\1}", word).replace("*", r"\,") for word in shown)
    return f"${', '.join(formulas)}$"


def _escape(slope: Slope) -> Panel:
    """The measured steps of escape against the dimension, and the predicted power of it."""
    d, steps, errors = (np.array(x, dtype=float) for x in (slope.dimensions, slope.steps, slope.errors))
    is_logarithmic = slope.exponent == 2  # d log d steps: a straight line once they are divided by d
    over = d if is_logarithmic else np.ones_like(d)
    x = np.geomspace(d[0], d[-1], 100)
    centre = float(np.mean(np.log(d)))
    if is_logarithmic:
        line = float(np.mean(steps / d)) + slope.predicted * (np.log(x) - centre)
        name = rf"predicted slope ${slope.predicted:.3g}$"
    else:
        line = math.exp(float(np.mean(np.log(steps)))) * np.exp(slope.predicted * (np.log(x) - centre))
        name = rf"predicted $d^{{{slope.predicted:g}}}$" if slope.predicted != 1 else r"predicted $d$"
    return Panel(
        r"dimension  $d$",
        r"steps$\,/\,d$" if is_logarithmic else "steps to leave the start",
        [
            Series("measured", d, steps / over, errors / over, kind="points", color=LABEL, marker=0),
            Series(name, x, line, kind="reference", look={"lw": 0.9}),
        ],
        log="x" if is_logarithmic else "xy",
        legend="upper left",
        legend_title=rf"measured slope ${slope.slope:.3f} \pm {slope.slope_error:.3f}$",
        name="escape",
    )
