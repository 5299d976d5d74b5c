"""The risks of several tasks along a training, with the phases in which each of them is trained."""

import json

import numpy as np
import xarray as xr

from twolayer.core.errors import InvalidInput
from twolayer.plots.descriptions import Result, check_dimensions, named_datasets, parts
from twolayer.plots.panels import PANEL_HEIGHT, Panel, Place, Sheet, draw, side_by_side
from twolayer.plots.series import Drawable, Rule, Series


def tasks(result: Result, title: str | None = None, *, col: str | None = None, ax: Place | None = None) -> Place:
    """The risk of every task against time; thin lines mark where a phase ends.

    Parameters
    ----------
    result
        What `twolayer.evolve` or `twolayer.compare` returned for a `Schedule` with several tasks; or several of these,
        put together along a new dimension (`xarray.concat`).
    title
        Written above the figure; formulas stand between dollars.
    col
        A dimension of the result: a panel for each of its values. There is no ``hue``, since colours tell the tasks
        apart.
    ax
        Where to draw, if not in a figure of its own: axes, or several axes for as many panels.

    Returns
    -------
    A figure of one panel, or of one for each value of ``col``; or what was given as ``ax``. Limits are lines;
    simulations are points with bars of two standard errors.
    """
    datasets = {name: dataset for name, dataset in named_datasets(result).items() if "task_risk" in dataset}
    if not datasets:
        raise InvalidInput("Argument `result` must follow several tasks, as results of a Schedule with a `Task` do.")
    check_dimensions(datasets, col=col)
    columns: dict[str, dict[str, xr.Dataset]] = {}
    for name, dataset in datasets.items():
        for value, part in parts(dataset, col).items():
            columns.setdefault(value, {})[name] = part
    row = [_panel(value, members) for value, members in columns.items()]
    return draw(side_by_side([row], (PANEL_HEIGHT,)) if col else Sheet(row, columns=1), title, ax)


def _panel(value: str, datasets: dict[str, xr.Dataset]) -> Panel:
    """The risks of all tasks by all descriptions."""
    series: list[Drawable] = []
    for dashed, (name, dataset) in enumerate(datasets.items()):
        is_theory = dataset.attrs["exactness"].startswith("limit")
        for place, task in enumerate(dataset.task.values):
            rows = dataset.task_risk.values[:, :, place]
            error = np.std(rows, axis=0, ddof=1) / len(rows) ** 0.5 if len(rows) > 1 and not is_theory else None
            look = {"dashed": dashed} if is_theory else {"kind": "points", "error": error}
            label = f"task {task}, {name}"
            series.append(Series(label, dataset.time.values, np.mean(rows, axis=0), color=place, **look))  # pyright: ignore[reportArgumentType]
    phases = json.loads(next(iter(datasets.values())).attrs["phases"])
    series += [Rule("", phase["end"], axis="x") for phase in phases[:-1]]
    return Panel("time", "risk of each task", series, log="y", legend="below", title=value, name=value)
