"""The figure of what can be learned: a staircase of directions, and, where it was measured, the escape against d."""

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twolayer.analyses.learnable.learn import of_analysis
from twolayer.data.schema import check_kind
from twolayer.learnability import Learnability
from twolayer.learnability.scaling import online_exponent, power
from twolayer.plots.panels import Panel, Place, Sheet, draw, is_whole
from twolayer.plots.series import Drawable, Note, Rule, Series
from twolayer.plots.style import COLUMN, GREY, PAGE, PALETTE

if TYPE_CHECKING:
    import xarray as xr

LABEL, ANY_LABEL = PALETTE[0], PALETTE[1]
LONGEST = 26  # letters of a list of directions on one line


class Stairs(NamedTuple):
    """The stages of one kind: their leaps, the directions that each adds, and what stays in doubt or unseen."""

    leaps: list[int]
    names: list[list[str]]
    is_decided: list[bool]
    unseen: int

    @classmethod
    def of(cls, result: "xr.Dataset", prefix: str) -> "Stairs | None":
        """Those whose variables have this prefix; None without them."""
        if f"{prefix}stage_leap" not in result:
            return None
        stage_of = result[f"{prefix}direction_stage"].values
        directions = result[f"{prefix}direction"].values
        names = [directions[stage_of == stage].tolist() for stage in result[f"{prefix}stage"].values]
        leaps = result[f"{prefix}stage_leap"].values.tolist()
        return cls(leaps, names, result[f"{prefix}stage_is_decided"].values.tolist(), int(result[f"{prefix}unseen"]))

    @property
    def shape(self) -> list[tuple[int, int]]:
        """Leap and number of directions of every stage."""
        return list(zip(self.leaps, map(len, self.names), strict=True))


def staircase(result: "xr.Dataset | Learnability", title: str | None = None, *, ax: Place | None = None) -> Place:
    r"""The order in which directions are found, and what each stage takes.

    Parameters
    ----------
    result
        What `twolayer.learn` or `twolayer.learnability.analyse` returned.
    title
        Written above the figure; the target's formula when None.
    ax
        Where to draw, if not in a figure of its own: axes for the staircase, two axes for the staircase and the
        measured escape, a mapping from the names of panels ("stages", "escape") to axes, or a
        `matplotlib.figure.SubFigure`. There is no ``hue`` or ``col``: stages of another target have other names and
        numbers, so that each target has axes of its own.

    Returns
    -------
    A figure of one journal column, or two where the escape was measured; or what was given as ``ax``. Each riser is a
    stage: its height the number of directions known after it, with the directions above it, and one dot for each order
    of the tensor that it takes, its leap. Below are the steps of online SGD. Solid: by correlations with the label.
    Dashed: by any function of the label, where that is different. Beside it, measured steps of escape against d with
    two standard errors, and the predicted power.
    """
    result = of_analysis(result) if isinstance(result, Learnability) else check_kind(result, "learnability", "learn")
    is_measured = "escape_steps" in result
    shown = [_stages(result)] + ([_escape(result)] if is_measured else [])
    if title is None and is_whole(ax):
        title = result.attrs["target"]
    height = 1.5 + 0.34 * max(result.sizes["field"], 2)
    return draw(Sheet(shown, len(shown), PAGE if is_measured else COLUMN, (height,)), title, ax)


def _stages(result: "xr.Dataset") -> Panel:
    k = result.sizes["field"]
    seen, known_by_label = Stairs.of(result, "student_"), Stairs.of(result, "")
    plain = seen or known_by_label
    assert plain is not None
    other = Stairs.of(result, "generative_")
    other = other if other is not None and other.shape != plain.shape else None
    most = max(len(plain.leaps), len(other.leaps) if other is not None else 0, 1)
    series: list[Drawable] = [Rule("", k, color=GREY, look={"lw": 0.8, "zorder": 0})]
    if other is not None:
        series += _steps(other, ANY_LABEL, "any function of the label", most, is_other=True)
    name = "correlation with the label" + ("" if seen is None else ", for the student")
    series += _steps(plain, LABEL, name if other is not None else "", most, is_other=False)
    known = 0
    for n, (leap, names, is_decided) in enumerate(zip(plain.leaps, plain.names, plain.is_decided, strict=True), 1):
        known += len(names)
        directions = {"color": LABEL, "fontsize": "medium", "va": "bottom"}
        series.append(Note(_wrapped(names), n + 0.09, known + 0.1, directions))
        doubt = "" if is_decided else " (undecided)"
        series.append(Note(f"leap {leap}{doubt}", n + 0.09, known - 0.1, {"va": "top"}))
    if plain.unseen:
        series.append(Note(f"{plain.unseen} not seen", 0.45, k + 0.1, {"va": "bottom"}))
    return Panel(
        "stages, each with its steps of online SGD",
        "directions found",
        series,
        xlim=(0.4, most + 0.95),
        ylim=(-0.25, k + 0.55),
        xticks={n: _cost(leap) for n, leap in enumerate(plain.leaps, start=1)},
        yticks=range(k + 1),
        legend="figure",
        is_boxed=False,
        name="stages",
    )


def _cost(leap: int) -> str:
    exponent, has_log = online_exponent(leap)
    text = power(exponent, has_log).replace(" log d", r"\,\log d")
    return f"${text}$"


def _steps(stairs: Stairs, color: str, name: str, most: int, is_other: bool) -> list[Drawable]:
    """The stairs as a line, and as many dots on a riser as the order that it takes."""
    shift = -0.05 if is_other else 0.0
    counts = np.cumsum([0] + [len(names) for names in stairs.names]).astype(float)
    risers = np.arange(1, len(counts)) + shift
    x = np.concatenate([[0.45], np.repeat(risers, 2), [most + 0.9]])
    y = np.repeat(counts, 2) + shift
    look: dict[str, Any] = {"lw": 1.0, "zorder": 2} if is_other else {"lw": 1.5}
    series: list[Drawable] = [Series(name, x, y, color=color, dashed=int(is_other), look=look)]
    for at, low, high, leap in zip(risers, counts[:-1], counts[1:], stairs.leaps, strict=True):
        dots = low + shift + (high - low) * (np.arange(leap) + 0.5) / leap
        series.append(Series("", np.full(leap, at), dots, kind="points", color=color, marker=0, look={"mew": 0.8}))
        if is_other:
            beside = {"color": color, "ha": "right", "va": "center"}
            series.append(Note(f"leap {leap}", at - 0.07, 0.5 * (low + high), beside))
    return series


def _wrapped(names: list[str]) -> str:
    """Directions as a formula, as many as there is room for."""
    shown = names if len(", ".join(names)) <= LONGEST else [names[0], r"\dots", names[-1]]
    formulas = (re.sub(r"z(\d+)", r"z_{\1}", word).replace("*", r"\,") for word in shown)
    return f"${', '.join(formulas)}$"


def _escape(result: "xr.Dataset") -> Panel:
    """The measured steps of escape against the dimension, and the predicted power of it."""
    d, steps, errors = (result[name].values.astype(float) for name in ("d", "escape_steps", "escape_steps_error"))
    check = result.sel(check="escape against d")
    predicted, slope, error = (float(check[f"check_{name}"]) for name in ("predicted", "measured", "error"))
    # The first stage has leap 2: d log d steps, a straight line once they are divided by d.
    is_logarithmic = int(result.stage_leap[0]) == 2
    over = d if is_logarithmic else np.ones_like(d)
    x = np.geomspace(d[0], d[-1], 100)
    centre = float(np.mean(np.log(d)))
    if is_logarithmic:
        line = float(np.mean(steps / d)) + predicted * (np.log(x) - centre)
        name = rf"predicted slope ${predicted:.3g}$"
    else:
        line = math.exp(float(np.mean(np.log(steps)))) * np.exp(predicted * (np.log(x) - centre))
        name = rf"predicted $d^{{{predicted:g}}}$" if predicted != 1 else r"predicted $d$"
    return Panel(
        r"dimension  $d$",
        r"steps$\,/\,d$" if is_logarithmic else "steps to leave the start",
        [
            Series("measured", d, steps / over, errors / over, kind="points", color=LABEL, marker=0),
            Series(name, x, line, kind="reference", look={"lw": 0.9}),
        ],
        log="x" if is_logarithmic else "xy",
        legend="upper left",
        legend_title=rf"measured slope ${slope:.3f} \pm {error:.3f}$",
        name="escape",
    )
