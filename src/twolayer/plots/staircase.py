"""The figure of what can be learned: a staircase of directions, and, where it was measured, the escape against d."""

import math
import re
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twolayer.core.errors import InvalidInput
from twolayer.learnability import Learnability
from twolayer.learnability.scaling import online_exponent, power
from twolayer.learnability.stages import Staircase
from twolayer.plots.style import COLUMN, DARK_GREY, GREY, PAGE, PALETTE, new_figure, put_title, style
from twolayer.verbs import Learned
from twolayer.verbs.learn_check import Slope

LABEL, ANY_LABEL = PALETTE[0], PALETTE[1]
LONGEST = 26  # letters of a list of directions on one line


def staircase(result: Learned | Learnability, title: str | None = None) -> Figure:
    r"""The order in which directions are found, and what each stage takes.

    Parameters
    ----------
    result
        What `twolayer.learn` returned.
    title
        Written above the figure; the target's formula when None.

    Returns
    -------
    A figure of one journal column, or two where the escape was measured. Each riser is a stage: its height the number
    of directions known after it, with the directions above it, and one dot for each order of the tensor that it takes,
    its leap. Below are the steps of online SGD. Solid: by correlations with the
    label. Dashed: by any function of the label, where that is different. Beside it, measured steps of escape against d
    with two standard errors, and the predicted power.
    """
    if not isinstance(result, Learned | Learnability):
        raise InvalidInput(f"Argument `result` must be what `learn` returned, but is a {type(result).__name__}.")
    analysis = result.analysis if isinstance(result, Learned) else result
    slope = result.checks.slope if isinstance(result, Learned) and result.checks is not None else None
    with style():
        height = 1.5 + 0.34 * max(analysis.k, 2)
        figure = new_figure(COLUMN if slope is None else PAGE, height)
        panels: Any = figure.subplots(1, 1 if slope is None else 2, squeeze=False)[0]
        _draw_stairs(panels[0], analysis)
        if slope is not None:
            _draw_slope(panels[1], slope)
        put_title(figure, analysis.text if title is None else title)
    return figure


def _draw_stairs(ax: Axes, analysis: Learnability) -> None:
    plain = analysis.seen.staircase if analysis.seen is not None else analysis.staircase
    other = analysis.generative
    has_other = other is not None and _differs(plain, other)
    most = max(len(plain.stages), len(other.stages) if other is not None and has_other else 0, 1)
    ax.axhline(analysis.k, color=GREY, lw=0.8, zorder=0)
    if other is not None and has_other:
        _draw_steps(ax, other, ANY_LABEL, "any function of the label", most, True)
    name = "correlation with the label" + ("" if analysis.seen is None else ", for the student")
    _draw_steps(ax, plain, LABEL, name, most, False)
    known = 0
    for n, stage in enumerate(plain.stages, start=1):
        known += len(stage.directions)
        ax.text(n + 0.09, known + 0.1, _wrapped(analysis.words(stage)), color=LABEL, fontsize=8.0, va="bottom")
        doubt = " (undecided)" if stage.undecided else ""
        ax.text(n + 0.09, known - 0.1, f"leap {stage.leap}{doubt}", fontsize=7.0, va="top", color=DARK_GREY)
    if len(plain.unseen):
        ax.text(0.45, analysis.k + 0.1, f"{len(plain.unseen)} not seen", fontsize=7.0, color=DARK_GREY, va="bottom")
    ax.set_xlim(0.4, most + 0.95)
    ax.set_ylim(-0.25, analysis.k + 0.55)
    ax.set_yticks(range(analysis.k + 1))
    ax.set_ylabel("directions found")
    ax.set_xticks(range(1, len(plain.stages) + 1), [_cost(stage.leap) for stage in plain.stages])
    ax.set_xlabel("stages, each with its steps of online SGD")
    ax.tick_params(axis="x", length=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if has_other:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), fontsize=7.0, handlelength=2.2)  # covers nothing


def _differs(first: Staircase, second: Staircase) -> bool:
    return [(s.leap, len(s.directions)) for s in first.stages] != [(s.leap, len(s.directions)) for s in second.stages]


def _cost(leap: int) -> str:
    exponent, has_log = online_exponent(leap)
    text = power(exponent, has_log).replace(" log d", r"\,\log d")
    return f"${text}$"


def _draw_steps(ax: Axes, stairs: Staircase, colour: str, name: str, most: int, is_other: bool) -> None:
    """The stairs as a line, and as many dots on a riser as the order that it takes."""
    shift = -0.05 if is_other else 0.0
    counts = np.cumsum([0] + [len(stage.directions) for stage in stairs.stages]).astype(float)
    risers = np.arange(1, len(counts)) + shift
    x = np.concatenate([[0.45], np.repeat(risers, 2), [most + 0.9]])
    y = np.repeat(counts, 2) + shift
    options: dict[str, Any] = {"ls": (0, (3, 1.5)), "lw": 1.0, "zorder": 2} if is_other else {"lw": 1.5, "zorder": 3}
    ax.plot(x, y, color=colour, label=name, **options)
    for at, low, high, stage in zip(risers, counts[:-1], counts[1:], stairs.stages, strict=True):
        dots = low + shift + (high - low) * (np.arange(stage.leap) + 0.5) / stage.leap
        ax.plot(np.full(stage.leap, at), dots, "o", ms=3.2, color=colour, mfc="white", mew=0.8, zorder=4)
        if is_other:
            words = f"leap {stage.leap}"
            ax.text(at - 0.07, 0.5 * (low + high), words, color=colour, fontsize=6.5, ha="right", va="center")


def _wrapped(words: list[str]) -> str:
    """Directions as a formula, as many as there is room for."""
    shown = words if len(", ".join(words)) <= LONGEST else [words[0], r"\dots", words[-1]]
    formulas = (re.sub(r"z(\d+)", r"z_{\1}", word).replace("*", r"\,") for word in shown)
    return f"${', '.join(formulas)}$"


def _draw_slope(ax: Axes, slope: Slope) -> None:
    d, steps, errors = (np.array(x, dtype=float) for x in (slope.dimensions, slope.steps, slope.errors))
    over = d if slope.exponent == 2 else np.ones_like(d)
    options: dict[str, Any] = {"ls": "", "marker": "o", "color": LABEL, "mfc": "white", "capsize": 1.5, "zorder": 3}
    ax.errorbar(d, steps / over, 2.0 * errors / over, label="measured", **options)
    x = np.geomspace(d[0], d[-1], 100)
    centre = float(np.mean(np.log(d)))
    if slope.exponent == 2:
        line = float(np.mean(steps / d)) + slope.predicted * (np.log(x) - centre)
        name = rf"predicted slope ${slope.predicted:.3g}$"
        ax.set_ylabel(r"steps$\,/\,d$")
    else:
        line = math.exp(float(np.mean(np.log(steps)))) * np.exp(slope.predicted * (np.log(x) - centre))
        name = rf"predicted $d^{{{slope.predicted:g}}}$" if slope.predicted != 1 else r"predicted $d$"
        ax.set_yscale("log")
        ax.set_ylabel("steps to leave the start")
    ax.plot(x, line, color=DARK_GREY, lw=0.9, label=name)
    ax.set_xscale("log")
    ax.set_xlabel(r"dimension  $d$")
    ax.legend(
        loc="upper left", title=rf"measured slope ${slope.slope:.3f} \pm {slope.slope_error:.3f}$", title_fontsize=7
    )
