"""Panels of deviations: how far theories are from the simulation, in standard errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from twolayer.plots.descriptions import Facet, ShownDescription
from twolayer.plots.panels import Panel
from twolayer.plots.series import Drawable, Rule, Series
from twolayer.plots.style import DARK_GREY

VARIABLES = ("M", "Q", "a")


def has_deviation(description: ShownDescription, *variables: str) -> bool:
    """Whether standard errors of one of the variables are known."""
    known = [f"deviation_{name}" for name in variables if f"deviation_{name}" in description.dataset]
    return any(np.isfinite(description.dataset[name].values).any() for name in known)


def _threshold(judged: Sequence[ShownDescription], largest: float) -> float | None:
    """The largest deviation that chance explains, unless it is so far above all seen that it would flatten them."""
    recorded = [description.dataset.attrs.get("threshold", np.inf) for description in judged]
    limit = max((float(value) for value in recorded if np.isfinite(value)), default=None)
    return limit if limit is not None and limit <= 3.0 * largest else None


def deviation_panel(facet: Facet, judged: Sequence[ShownDescription], shared: dict[str, Any]) -> Panel:
    """The deviation of the mean risk, with its sign."""
    series: list[Drawable] = [Rule("", 0.0, band=(-1.0, 1.0), look={"lw": 0.4})]
    for description in facet.descriptions:
        if has_deviation(description, "risk"):
            z = description.values("deviation_risk")
            look = {"lw": 0.9}
            series.append(Series("", description.time, z, color=description.color, dashed=description.place, look=look))
    largest = max(1.0, *(float(np.nanmax(np.abs(description.values("deviation_risk")))) for description in judged))
    extent = max(largest, 2.6)
    limit = _threshold(judged, largest)
    if limit is not None:
        extent = max(extent, limit)
        series.append(Rule("", -limit, look={"ls": "--"}))
        series.append(Rule("what chance alone can reach", limit, look={"ls": "--"}))
    axis = shared | {"ylim": (-1.15 * extent, 1.15 * extent), "yticks": 5}
    name = f"deviation {facet.value}".strip()
    return Panel(ylabel="deviation\n(standard errors)", series=series, legend="figure", name=name, **axis)


def largest_deviation_panel(facet: Facet, judged: Sequence[ShownDescription], shared: dict[str, Any]) -> Panel:
    """The largest deviation of all entries of the overlaps and the second layer."""
    series: list[Drawable] = []
    largest = 1.0
    members = [description for description in facet.descriptions if has_deviation(description, *VARIABLES)]
    for description in members:
        names = [name for name in VARIABLES if has_deviation(description, name)]
        names = [name for name in names if np.nanmax(np.abs(description.values(f"deviation_{name}"))) > 0] or names
        # One description: a curve for each variable. Several: one curve each over all variables, in its own line style.
        curves: list[tuple[str, list[str], int]] = [(rf"${name}$", [name], place) for place, name in enumerate(names)]
        if len(members) > 1:
            curves = [(" ".join(filter(None, (description.name, description.value))), names, description.place)]
        for label, variables, place in curves:
            entries = [
                np.abs(description.values(f"deviation_{name}")).reshape(description.time.size, -1) for name in variables
            ]
            z = np.concatenate(entries, axis=1)
            z = np.max(z, axis=1, where=np.isfinite(z), initial=-np.inf)
            z = np.where(z >= 0, z, np.nan)
            color = description.color if description.is_colored else DARK_GREY
            series.append(Series(label, description.time, z, color=color, dashed=place, look={"lw": 0.9}))
            largest = max(largest, float(np.nanmax(z)))
    limit = _threshold(judged, largest)
    if limit is not None:
        series.append(Rule("chance", limit, look={"lw": 0.5}))
    # Room for the names above the curves.
    axis = shared | {"ylim": (0.0, 1.45 * max(largest, limit or 0.0)), "legend": "upper center", "legend_columns": 3}
    name = f"deviation {facet.value}".strip()
    return Panel(ylabel="largest deviation\n(standard errors)", series=series, name=name, **axis)
