"""Figures of the lazy regime: training with given and random labels against its prediction; the complexity measure."""

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twolayer.analyses import NTK
from twolayer.analyses.lazy.result import Curve
from twolayer.core.errors import InvalidInput
from twolayer.plots.style import (
    COLUMN,
    DARK_GREY,
    LEGEND_LINE,
    LINESTYLES,
    PAGE,
    PALETTE,
    grow,
    new_figure,
    put_title,
    style,
)

COLORS = {"given": PALETTE[0], "random": PALETTE[1]}


def lazy_training(result: NTK, title: str | None = None) -> Figure:
    r"""Training curves with their prediction, and where the labels lie in the spectrum.

    Parameters
    ----------
    result
        What `twolayer.ntk` returned.
    title
        Written above the figure; formulas stand between dollars.

    Returns
    -------
    A figure of two journal columns. Left: the loss :math:`\|y - u(k)\|^2 / n` of the network, where one was trained
    (lines), and as predicted from the spectrum alone (dashes), for given and random labels. Right: the squared
    projections of both on the eigenvectors, from the largest eigenvalue on, as running means, and the eigenvalues
    themselves; of a matrix-free result the part of the labels at eigenvalues below a given one, and the part of the
    eigenvalues.
    """
    _check(result)
    with style():
        figure = new_figure(PAGE, 2.5)
        left, right = figure.subplots(1, 2)
        entries = [_draw_loss(left, curve, result.n) for curve in result.curves]
        if any(curve.trained is not None for curve in result.curves):
            entries.append((Line2D([], [], color="black", ls=LINESTYLES[3], lw=0.9), "predicted from the spectrum"))
        left.set_xlabel(r"step  $k$")
        left.set_ylabel(r"$\|y - u(k)\|^2/n$")
        lowest = min(float(curve.predicted[-1] ** 2) for curve in result.curves) / result.n
        left.set_yscale("log" if lowest < 0.1 else "linear")
        left.set_xlim(0, max(result.steps, 1))
        entries += _draw_projections(right, result) if result.counts is None else _draw_measures(right, result)
        _legend(figure, entries, 4)
        put_title(figure, title or _words(result))
    return figure


def complexity_sweep(result: NTK, title: str | None = None) -> Figure:
    """The complexity measure and the test error against the share of random labels.

    Parameters
    ----------
    result
        What `twolayer.ntk` returned, with ``shares``.
    title
        Written above the figure; formulas stand between dollars.

    Returns
    -------
    A figure of one journal column with an axis for each.
    """
    _check(result)
    if not result.shares:
        raise InvalidInput("Argument `result` must hold a sweep over random labels: call `ntk` with `shares`.")
    share = [each.share for each in result.shares]
    with style():
        figure = new_figure(COLUMN, 2.5)
        ax = figure.subplots()
        other = ax.twinx()
        (measure,) = ax.plot(share, [each.complexity for each in result.shares], color=PALETTE[0], marker="o")
        (kernel,) = other.plot(share, [each.kernel_error for each in result.shares], color=PALETTE[1], ls=LINESTYLES[1])
        entries: list[tuple[Any, str]] = [(measure, r"$\sqrt{2 y^\top H^{-1} y/n}$"), (kernel, "test error: kernel")]
        errors = [np.nan if each.test_error is None else each.test_error for each in result.shares]
        if np.isfinite(errors).any():
            (network,) = other.plot(share, errors, color=PALETTE[1], marker="s")
            entries.append((network, "test error: network"))
        ax.set_xlabel("share of random labels")
        ax.set_ylabel("complexity", color=PALETTE[0])
        other.set_ylabel("test error", color=PALETTE[1])
        ax.set_ylim(bottom=0.0)
        other.set_ylim(bottom=0.0)
        ax.set_xlim(min(share), max(share))
        _legend(figure, entries, 2)
        put_title(figure, title or _words(result))
    return figure


def _check(result: Any) -> None:
    if not isinstance(result, NTK):
        raise InvalidInput(f"Argument `result` must be what `ntk` returned, but is a {type(result).__name__}.")


def _draw_loss(ax: Axes, curve: Curve, n: int) -> tuple[Any, str]:
    color, labels = COLORS[curve.labels], f"{curve.labels} labels"
    if curve.trained is None:
        (line,) = ax.plot(curve.predicted**2 / n, color=color, ls=LINESTYLES[3])
        return line, f"{labels}, predicted from the spectrum"
    (line,) = ax.plot(curve.trained.residuals**2 / n, color=color)
    ax.plot(curve.predicted**2 / n, color="black", ls=LINESTYLES[3], lw=0.9)
    return line, f"{labels}, {curve.trained.width} units"


def _draw_projections(ax: Axes, result: NTK) -> list[tuple[Any, str]]:
    rank = np.arange(1, result.n + 1)
    entries: list[tuple[Any, str]] = []
    for curve in result.curves:
        share = _shares(curve)
        middle, mean = _running_mean(share)
        ax.plot(rank, share, ls="", marker=".", ms=1.0, alpha=0.25, color=COLORS[curve.labels], rasterized=True)
        ax.plot(middle, mean, color=COLORS[curve.labels])
    (line,) = ax.plot(rank, result.eigenvalues / result.n, color=DARK_GREY, ls=LINESTYLES[2], lw=0.9)
    entries.append((line, r"eigenvalue  $\lambda_i/n$"))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(1, max(result.n, 2))
    lowest = min(float(np.median(_shares(curve))) for curve in result.curves)
    ax.set_ylim(bottom=max(min(lowest / 30.0, result.lambda_min / result.n / 2.0), 1e-14))
    ax.set_ylabel(r"$(v_i \cdot y)^2/\|y\|^2$,  $\lambda_i/n$")
    ax.set_xlabel(r"eigenvector  $i$")
    return entries


def _shares(curve: Curve) -> np.ndarray:
    return curve.prediction.weights / np.sum(curve.prediction.weights)


def _draw_measures(ax: Axes, result: NTK) -> list[tuple[Any, str]]:
    """Parts of the labels and of all eigenvalues that are below a given eigenvalue: there are no eigenvectors."""
    for curve in result.curves:
        ax.step(curve.prediction.eigenvalues, _below(_shares(curve)), where="pre", color=COLORS[curve.labels])
    counts = np.asarray(result.counts)
    below = _below(counts / counts.sum())
    (line,) = ax.step(result.eigenvalues, below, where="pre", color=DARK_GREY, ls=LINESTYLES[2], lw=0.9)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(result.lambda_max * 1.3, max(result.lambda_min, 1e-14) / 1.3)
    ax.set_ylim(bottom=0.3 / result.n, top=1.5)
    ax.set_xlabel(r"eigenvalue  $\lambda$")
    ax.set_ylabel(r"part below  $\lambda$")
    return [(line, "part of the eigenvalues")]


def _below(parts: np.ndarray) -> np.ndarray:
    """For each place the sum from it on, largest eigenvalue first."""
    return np.maximum(np.cumsum(parts[::-1])[::-1], 1e-300)


def _running_mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over ranges of ranks that grow as the ranks do."""
    ends = np.unique(np.round(np.geomspace(1, len(values) + 1, 24)).astype(int)) - 1
    pairs = list(pairwise(ends))
    middle = np.array([np.sqrt((first + 1.0) * last) for first, last in pairs])
    return middle, np.array([np.mean(values[first:last]) for first, last in pairs])


def _words(result: NTK) -> str:
    words = f"$n={result.n}$, $d={result.d}$, $\\eta={result.eta:.3g}$"
    trained = result.curves[0].trained
    return words + (f", $m={trained.width}$" if trained is not None else "")


def _legend(figure: Figure, entries: list[tuple[Any, str]], columns: int) -> None:
    """Below the panels, where it covers nothing."""
    handles, labels = zip(*entries, strict=True)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)))
    grow(figure, LEGEND_LINE * -(-len(labels) // columns))
