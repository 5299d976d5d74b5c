"""How trajectories are seen: the unit and the scale of the axis of time, a part of it, and other results beside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from twolayer.core.errors import InvalidInput, shown
from twolayer.plots.descriptions import Result, ShownDescription, facets, quantiles
from twolayer.plots.panels import Panel
from twolayer.plots.series import Drawable, Series
from twolayer.plots.style import PALETTE, TIME_LABEL

UNITS = {"time": TIME_LABEL, "samples": "samples", "samples / d": r"samples$\,/\,d$"}
SCALES = ("linear", "log")
FIRST_COLOR = 4  # of the palette, for results beside: the first ones are those of the descriptions


def _limits(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    numbers = [float(x) for x in value if isinstance(x, int | float | np.number)] if is_pair else []
    if len(numbers) != 2 or not np.isfinite(numbers).all() or not numbers[0] < numbers[1]:
        raise InvalidInput(f"Argument `limits` must be two increasing finite numbers, but is {shown(value)}.")
    return numbers[0], numbers[1]


@dataclass(frozen=True)
class View:
    """How `risk` and `overlaps` show trajectories, where it is not as they would by themselves.

    Parameters
    ----------
    unit
        The unit of the horizontal axis: "time", "samples" or "samples / d".
    x, y
        The scale of the horizontal axis, and that of the risk: "linear" or "log".
    limits
        The part of the horizontal axis that is shown, in its unit.
    beside
        Results of other settings by their names: of each the first theory is drawn beside the risk.
    """

    unit: str = "time"
    x: str | None = None
    y: str | None = None
    limits: Any = None
    beside: Mapping[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.unit, str) or self.unit not in UNITS:
            raise InvalidInput(f"Argument `unit` must be one of {', '.join(UNITS)}, but is {shown(self.unit)}.")
        for name in ("x", "y"):
            if getattr(self, name) not in (None, *SCALES):
                scale = shown(getattr(self, name))
                raise InvalidInput(f"Argument `{name}` must be one of {', '.join(SCALES)}, but is {scale}.")
        if not isinstance(self.beside, Mapping):
            raise InvalidInput(f"Argument `beside` must map names to results, but is {shown(self.beside)}.")
        object.__setattr__(self, "limits", _limits(self.limits))

    def of(self, panels: Sequence[Panel], description: ShownDescription) -> list[Panel]:
        """Panels of trajectories of one training, which a description has followed."""
        changed = [self._in_unit(panel, description) for panel in panels]
        changed = [self._with_beside(panel) if panel.name.startswith("risk") else panel for panel in changed]
        log = panels[0].log if self.x is None else panels[0].log.replace("x", "") + "x" * (self.x == "log")
        if "x" in log and self.limits and self.limits[0] <= 0.0:
            raise InvalidInput(
                f"Argument `limits` must be above zero on a logarithmic axis, but is {shown(self.limits)}: take "
                "x='linear'."
            )
        limits = self.limits or _whole(changed, "x" in log)
        return [self._scaled(panel, "x" in log, limits) for panel in changed]

    def _in_unit(self, panel: Panel, description: ShownDescription) -> Panel:
        series = [_moved(part, self._times(description)) for part in panel.series]
        top = panel.top if self.unit == "time" else None
        return replace(panel, series=series, xlabel=UNITS[self.unit] if panel.xlabel else "", top=top)

    def _times(self, description: ShownDescription) -> tuple[np.ndarray, np.ndarray]:
        """Times, and what they are in the unit of the axis."""
        time = description.time
        if self.unit == "time":
            return time, time
        samples = description.dataset.samples.values
        return time, samples / description.d if self.unit == "samples / d" else samples

    def _with_beside(self, panel: Panel) -> Panel:
        drawn: list[Drawable] = []
        for number, (name, result) in enumerate(self.beside.items()):
            everyone = [description for facet in facets(result) for description in facet.descriptions]
            chosen = next((one for one in everyone if not one.is_simulation), everyone[0])
            median = quantiles(chosen.values("excess_risk"))[1]
            color, label = PALETTE[(FIRST_COLOR + number) % len(PALETTE)], f"{name}: {chosen.name}"
            x = self._times(chosen)[1]
            drawn.append(Series(label, x, np.where(median > 0, median, np.nan), color=color, dashed=number + 1))
        return replace(panel, series=[*panel.series, *drawn])

    def _scaled(self, panel: Panel, is_log: bool, limits: tuple[float, float] | None) -> Panel:
        is_risk = panel.name.startswith("risk")
        y_log = self.y == "log" if is_risk and self.y else "y" in panel.log
        log = "x" * is_log + "y" * y_log
        ylim = panel.ylim
        if is_risk and (self.limits or self.beside or not y_log):
            ylim = _seen(panel, limits, y_log) or ylim
        return replace(panel, log=log, xlim=limits, ylim=ylim)


def _moved(part: Drawable, times: tuple[np.ndarray, np.ndarray]) -> Drawable:
    if not isinstance(part, Series) or not np.size(part.x) or times[0] is times[1]:
        return part
    return replace(part, x=np.interp(np.asarray(part.x, dtype=float), *times))


def _whole(panels: Sequence[Panel], is_log: bool) -> tuple[float, float] | None:
    """All that curves show, with a margin."""
    drawn = [np.ravel(part.x) for panel in panels for part in panel.series if isinstance(part, Series)]
    x = np.concatenate([np.empty(0), *drawn]).astype(float)
    x = x[np.isfinite(x) & ((x > 0) | (not is_log))]
    if not x.size or x.min() == x.max():
        return None
    low, high = float(x.min()), float(x.max())
    if is_log:
        margin = (high / low) ** 0.015
        return low / margin, high * margin
    return low - 0.015 * (high - low), high + 0.015 * (high - low)


def _seen(panel: Panel, limits: tuple[float, float] | None, is_log: bool) -> tuple[float, float] | None:
    """The vertical limits in which curves are seen between the horizontal ones."""
    values: list[np.ndarray] = []
    for part in panel.series:
        if not isinstance(part, Series) or not np.size(part.x):
            continue
        x = np.asarray(part.x, dtype=float)
        inside = np.ones(x.shape, bool) if limits is None else (x >= limits[0]) & (x <= limits[1])
        values += [np.asarray(y, dtype=float)[inside] for y in (part.y, *(part.band or ()))]
    there = np.concatenate([np.empty(0), *values])
    there = there[np.isfinite(there) & (there > 0)]
    if not there.size:
        return None
    if not is_log:
        return 0.0, 1.06 * float(there.max())
    margin = max(1.2, float(there.max() / there.min()) ** 0.05)
    return float(there.min()) / margin, float(there.max()) * margin
