"""Figures of the lazy regime: training with given and random labels against its prediction; the complexity measure."""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.lazy.lazy_result import KIND, LABELS, share_errors
from twolayer.core.errors import InvalidInput
from twolayer.plots.cells import cells_of
from twolayer.plots.panels import Panel, Place, Sheet, draw, is_whole, side_by_side
from twolayer.plots.series import Drawable, Series
from twolayer.plots.style import COLUMN, DARK_GREY, PAGE

if TYPE_CHECKING:
    import xarray as xr

COLORS = {"given": 0, "random": 1}
SHARES = "share of random labels"
PREDICTED = "predicted from the spectrum"
# The parts below an eigenvalue change at the eigenvalue on their left.
BEFORE = {"drawstyle": "steps-pre"}


def lazy_training(
    result: "xr.Dataset", title: str | None = None, *, col: str | None = None, ax: Place | None = None
) -> Place:
    r"""Training curves with their prediction, and where the labels lie in the spectrum.

    Parameters
    ----------
    result
        What `twolayer.ntk` returned, or a sweep of it.
    title
        Written above the figure; formulas stand between dollars.
    col
        An axis of the sweep: a column of panels for each of its values. There is no ``hue``, since colours tell the
        labels apart.
    ax
        Where to draw, if not in a figure of its own: axes for the training curves, two axes for these and the spectrum,
        a mapping from the names of panels ("loss", "spectrum") to axes, or a `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure of two journal columns, or what was given as ``ax``. Left: the loss :math:`\|y - u(k)\|^2 / n` of the
    network, where one was trained (lines; the range of several networks is shaded), and as predicted from the spectrum
    alone (dashes), for given and random labels. Right: the squared projections of both on the eigenvectors, from the
    largest eigenvalue on, as running means, and the eigenvalues themselves; of a matrix-free result the part of the
    labels at eigenvalues below a given one, and the part of the eigenvalues.
    """
    columns = _columns(result, col)
    losses = {value: _loss(part) for value, part in columns.items()}
    spectra = {
        value: _measures(part) if "eigenvalue_counts" in part else _projections(part) for value, part in columns.items()
    }
    if col is not None:
        return draw(side_by_side([_headed(losses), _headed(spectra, is_top=False)], (2.1, 2.1), ""), title, ax)
    return draw(Sheet([losses[""], spectra[""]], 2, PAGE, (2.5,)), _title(columns[""], title, ax), ax)


def complexity_sweep(
    result: "xr.Dataset", title: str | None = None, *, col: str | None = None, ax: Place | None = None
) -> Place:
    """The complexity measure and the test error against the share of random labels.

    Parameters
    ----------
    result
        What `twolayer.ntk` returned, with ``shares``, or a sweep of it.
    title
        Written above the figure; formulas stand between dollars.
    col
        An axis of the sweep: a column of panels for each of its values. There is no ``hue``, since colours and dashes
        tell the measure, the kernel and the network apart.
    ax
        Where to draw, if not in a figure of its own: axes for the measure, two axes for the measure and the error, a
        mapping from the names of panels ("complexity", "error") to axes, or a `matplotlib.figure.SubFigure`.

    Returns
    -------
    A figure of one journal column with a panel for each, or what was given as ``ax``.
    """
    columns = _columns(result, col)
    if not all("share_complexity" in part for part in columns.values()):
        raise InvalidInput("Argument `result` must hold a sweep over random labels: call `ntk` with `shares`.")
    measures = {value: _share_measure(part) for value, part in columns.items()}
    errors = {value: _share_errors(part) for value, part in columns.items()}
    if col is not None:
        return draw(side_by_side([_headed(measures), _headed(errors, is_top=False)], (1.5, 1.5), "x"), title, ax)
    return draw(Sheet([measures[""], errors[""]], 1, COLUMN, (1.5,), shared="x"), _title(columns[""], title, ax), ax)


def _columns(result: "xr.Dataset", col: str | None) -> dict[str, "xr.Dataset"]:
    """The results in the columns of a figure, by the values of an axis."""
    return {value: cells[""] for value, cells in cells_of(result, KIND, "ntk", col).items()}


def _headed(row: dict[str, Panel], is_top: bool = True) -> list[Panel]:
    """Panels with the values of an axis in their names, and above the first row."""
    return [replace(panel, title=value if is_top else "", name=f"{panel.name} {value}") for value, panel in row.items()]


def _share_measure(result: "xr.Dataset") -> Panel:
    share, highest = result.share.values, float(result.share_complexity.max())
    measure = Series("", share, result.share_complexity.values, color=0, look={"marker": "o"})
    limits = float(share.min()), float(share.max())
    measured = r"$\sqrt{2 y^\top H^{-1} y/n}$"
    return Panel(SHARES, measured, [measure], xlim=limits, ylim=(0.0, 1.08 * highest), name="complexity")


def _share_errors(result: "xr.Dataset") -> Panel:
    share = result.share.values
    kernel, networks, axis_of_errors = share_errors(result)
    errors: list[Drawable] = [Series("kernel", share, kernel.values, color=1, dashed=1)]
    if networks is not None:
        mean, look = networks.mean("replica").values, {"marker": "s"}
        errors.append(Series("network", share, mean, band=_range(networks), color=1, look=look))
    limits = float(share.min()), float(share.max())
    wrong = max(float(np.max(part.y)) for part in errors if isinstance(part, Series))
    return Panel(SHARES, axis_of_errors, errors, xlim=limits, ylim=(0.0, max(1.08 * wrong, 0.05)), name="error")


def _title(result: "xr.Dataset", title: str | None, ax: Any) -> str | None:
    if title is not None or not is_whole(ax):
        return title
    sizes = f"$n={result.attrs['n']}$, $d={result.attrs['d']}$, $\\eta={float(result.step_size):.3g}$"
    return sizes + (f", $p={result.attrs['width']}$" if "trained_residual" in result else "")


def _range(values: "xr.DataArray") -> Any:
    """The range of several networks; nothing to shade for one."""
    return (values.min("replica").values, values.max("replica").values) if values.sizes["replica"] > 1 else None


def _loss(result: "xr.Dataset") -> Panel:
    n, step = int(result.attrs["n"]), result.step.values
    predicted = result.predicted_residual**2 / n
    series: list[Drawable] = []
    for name in result[LABELS].values:
        curve, color = predicted.sel({LABELS: name}).values, COLORS[str(name)]
        if "trained_residual" in result:
            losses = result.trained_residual.sel({LABELS: name}) ** 2 / n
            label = f"{name} labels, {result.attrs['width']} units"
            series.append(Series(label, step, losses.mean("replica").values, band=_range(losses), color=color))
            series.append(Series(PREDICTED, step, curve, color="black", dashed=3, look={"lw": 0.9}))
        else:
            series.append(Series(f"{name} labels, {PREDICTED}", step, curve, color=color, dashed=3))
    return Panel(
        r"step  $k$",
        r"$\|y - u(k)\|^2/n$",
        series,
        log="y" if float(predicted[:, -1].min()) < 0.1 else "",
        xlim=(0, max(int(step[-1]), 1)),
        legend="figure",
        name="loss",
    )


def _projections(result: "xr.Dataset") -> Panel:
    """Squared projections of the labels on the eigenvectors, and the eigenvalues."""
    n = int(result.attrs["n"])
    rank = np.arange(1, n + 1)
    series: list[Drawable] = []
    typical = []
    for name in result[LABELS].values:
        share, color = _shares(result.projections.sel({LABELS: name}).values ** 2), COLORS[str(name)]
        typical.append(float(np.median(share)))
        middle, mean = _running_mean(share)
        dots = {"ls": "", "marker": ".", "ms": 1.0, "alpha": 0.25, "rasterized": True}
        series += [Series("", rank, share, color=color, look=dots), Series("", middle, mean, color=color)]
    values = result.eigenvalues.values / n
    grey = {"lw": 0.9}
    series.append(Series(r"eigenvalue  $\lambda_i/n$", rank, values, color=DARK_GREY, dashed=2, look=grey))
    lowest = max(min(min(typical) / 30.0, float(result.lambda_min) / n / 2.0), 1e-14)
    highest = max(float(np.max(part.y)) for part in series if isinstance(part, Series))
    return Panel(
        r"eigenvector  $i$",
        r"$(v_i \cdot y)^2/\|y\|^2$,  $\lambda_i/n$",
        series,
        log="xy",
        xlim=(1, max(n, 2)),
        ylim=(lowest, 1.6 * highest),
        legend="figure",
        name="spectrum",
    )


def _measures(result: "xr.Dataset") -> Panel:
    """Parts of the labels and of all eigenvalues that are below a given eigenvalue: there are no eigenvectors."""
    series: list[Drawable] = []
    for name in result[LABELS].values:
        curve = result.sel({LABELS: name})
        nodes, weights = curve.rule_eigenvalues.values, curve.rule_weights.values
        known = np.isfinite(nodes)
        below = _below(_shares(weights[known]))
        series.append(Series("", nodes[known], below, color=COLORS[str(name)], look=BEFORE))
    below = _below(_shares(result.eigenvalue_counts.values))
    look = {"lw": 0.9, **BEFORE}
    series.append(
        Series("part of the eigenvalues", result.eigenvalues.values, below, color=DARK_GREY, dashed=2, look=look)
    )
    return Panel(
        r"eigenvalue  $\lambda$",
        r"part below  $\lambda$",
        series,
        log="xy",
        xlim=(float(result.lambda_max) * 1.3, max(float(result.lambda_min), 1e-14) / 1.3),
        ylim=(0.3 / int(result.attrs["n"]), 1.5),
        legend="figure",
        name="spectrum",
    )


def _shares(weights: np.ndarray) -> np.ndarray:
    return weights / np.sum(weights)


def _below(parts: np.ndarray) -> np.ndarray:
    """For each place the sum from it on, largest eigenvalue first."""
    return np.maximum(np.cumsum(parts[::-1])[::-1], 1e-300)


def _running_mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over ranges of ranks that grow as the ranks do."""
    ends = np.unique(np.round(np.geomspace(1, len(values) + 1, 24)).astype(int)) - 1
    pairs = list(pairwise(ends))
    middle = np.array([np.sqrt((first + 1.0) * last) for first, last in pairs])
    return middle, np.array([np.mean(values[first:last]) for first, last in pairs])
