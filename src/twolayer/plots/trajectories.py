"""Figures of trajectories: the risk and the overlaps against time, theory against simulation."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from twolayer.core.errors import InvalidInput
from twolayer.description import Status
from twolayer.plots.accounts import Account, accounts, has_one_start, quantiles, samples_per_time
from twolayer.plots.style import (
    COLUMN,
    DARK_GREY,
    GREY,
    LEGEND_LINE,
    LINESTYLES,
    PAGE,
    PALETTE,
    grow,
    new_figure,
    put_title,
    style,
)

TIME_LABEL = r"time  $t$"
MAX_DIRECTIONS = 6  # panels of M; more would not fit a page
MARKERS_PER_CURVE = 30
LONG = 30.0  # the last time over the first from which on a logarithmic axis is worth its while
CROSS: dict[str, Any] = {"marker": "x", "ms": 4.0, "mew": 0.9}
SMALLEST_BAND = 0.02  # in decades: a narrower band cannot be told from its line
BEYOND = 1e200  # stands for the risk of a diverged replica; finite, so that quantiles can be interpolated
FINITE = 1e100  # a quantile above this touches a diverged replica


def risk(result: Any, title: str | None = None) -> Figure:
    r"""The excess risk :math:`\mathcal{R} - \Delta/2` against time, and how far theory is from simulation.

    Parameters
    ----------
    result
        The tree that `twolayer.compare` returned, or the dataset that `twolayer.evolve` returned.
    title
        Written above the figure; formulas stand between dollars.

    Returns
    -------
    A figure of one journal column. Above: theories as a line, the median over replicas (dotted: 10% and 90% quantiles,
    where random starts make them visible); simulations as markers at the median, with the 10-90% band shaded. Crosses
    mark where replicas diverged. Below, where standard errors exist: the deviation of the mean risk in standard errors.
    """
    found = accounts(result)
    judged = [account for account in found if _has_deviation(account, "risk")]
    with style():
        figure = new_figure(COLUMN, 3.5 if judged else 2.5)
        if judged:
            upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0))
            _deviation_of_risk(lower, judged)
            lower.set_xlabel(TIME_LABEL)
        else:
            upper = figure.subplots()
            upper.set_xlabel(TIME_LABEL)
        _time_axis(upper, found)
        upper.set_yscale("log")
        upper.set_ylabel(r"excess risk  $\mathcal{R}-\Delta/2$")
        _risk_limits(upper, found)
        entries = [_draw_risk(upper, account) for account in found]
        if any(_divergences(account) for account in found):
            entries.append((Line2D([], [], ls="", color=DARK_GREY, **CROSS), "last saved point of a diverged replica"))
        if judged:
            entries += zip(*lower.get_legend_handles_labels(), strict=True)
        _samples_axis(upper, found)
        figure.align_ylabels()
        _legend(figure, entries, 1)
        put_title(figure, title)
    return figure


def overlaps(result: Any, title: str | None = None, replica: int | None = None) -> Figure:
    r"""The overlaps :math:`M` and :math:`Q_{ii}` (and the second layer where it moves) against time.

    Where replicas begin differently their neurons specialise differently, and a median over them would show no run that
    ever happened: then one replica is shown, theory and simulation from the same start. Where all begin alike, the
    median and the 10-90% band over replicas are shown. Students of more than eight neurons are shown by the mean and
    the 10-90% band over neurons, in one replica.

    Parameters
    ----------
    result
        The tree that `twolayer.compare` returned, or the dataset that `twolayer.evolve` returned.
    title
        Written above the figure; formulas stand between dollars.
    replica
        The replica to show where starts are random; by default the first, number 0.

    Returns
    -------
    A figure with one panel per target direction (the first six), one of the diagonal of Q, and, where standard errors
    exist, one of the largest deviation.
    """
    found = accounts(result)
    most = max(found, key=lambda account: account.replicas)
    there = most.dataset.replica.values
    replica = int(there[0]) if replica is None else replica
    if replica not in there:
        raise InvalidInput(f"Argument `replica` must be one of {there[0]} to {there[-1]}, but is {replica}.")
    over_replicas = most.replicas > 1 and all(has_one_start(account) for account in found)
    panels = _overlap_panels(found)
    judged = [account for account in found if any(_has_deviation(account, name) for name in ("M", "Q", "a"))]
    number = len(panels) + bool(judged)
    columns = 1 if number <= 3 and found[0].dataset.sizes["r"] <= 1 else 2 if number in (2, 4) else 3
    rows = -(-number // columns)
    with style():
        figure = new_figure(COLUMN if columns == 1 else PAGE, 0.4 + (1.35 if columns == 1 else 1.75) * rows)
        grid = figure.add_gridspec(rows, columns)
        axes = [figure.add_subplot(grid[position // columns, position % columns]) for position in range(number - 1)]
        # The last panel takes what is left of its row, so that every panel above has one below it.
        axes.append(figure.add_subplot(grid[rows - 1, (number - 1) % columns :]))
        for position, ax in enumerate(axes):
            _time_axis(ax, found)
            if position < columns * (rows - 1):
                ax.tick_params(which="both", labelbottom=False)
            else:
                ax.set_xlabel(TIME_LABEL)
        for ax, (name, label, entries) in zip(axes, panels, strict=False):
            ax.set_ylabel(label)
            for account in found:
                _draw_neurons(ax, account, account.values(name)[entries], replica, over_replicas)
            _calm_limits(ax)
        _same_limits([ax for ax, (name, _, _) in zip(axes, panels, strict=False) if name == "M"])
        if judged:
            _largest_deviations(axes[-1], judged)
        _legend(figure, *_overlap_legend(found, replica, over_replicas, rows=4 if columns == 1 else 2))
        put_title(figure, title)
    return figure


# ------------------------------------------------------------------------------------------------------- axes


def _time_axis(ax: Axes, found: list[Account]) -> None:
    # Nothing is to be seen of the time after all replicas of all accounts have diverged.
    seen = [account.time[np.isfinite(account.values("excess_risk")).any(axis=0)] for account in found]
    times = np.concatenate(seen)
    if times.size and times.min() < times.max():
        if times.max() < LONG * times.min():  # a few steps, whose logarithms have no round numbers between them
            margin = 0.015 * (times.max() - times.min())
            ax.set_xlim(times.min() - margin, times.max() + margin)
            return
        margin = (times.max() / times.min()) ** 0.015
        ax.set_xlim(times.min() / margin, times.max() * margin)
    ax.set_xscale("log")


def _samples_axis(ax: Axes, found: list[Account]) -> None:
    rate = samples_per_time(found[0].dataset) if found[0].time.size else None
    if rate is None:
        return
    scale: Any = (lambda time: time * rate, lambda samples: samples / rate)
    top = ax.secondary_xaxis("top", functions=scale)
    top.set_xlabel(r"samples$\,/\,d$")
    ax.tick_params(which="both", top=False)


def _calm_limits(ax: Axes) -> None:
    """Keep rounding errors around a constant from filling a panel."""
    low, high = ax.get_ylim()
    if high - low < 1e-6 * max(abs(low), abs(high)):
        ax.set_ylim(low - 0.5, high + 0.5)


def _same_limits(axes: list[Axes]) -> None:
    if axes:
        limits = np.array([ax.get_ylim() for ax in axes])
        for ax in axes:
            ax.set_ylim(limits[:, 0].min(), limits[:, 1].max())


def _legend(figure: Figure, entries: list[tuple[Any, str]], columns: int) -> None:
    """Below the panels, where it covers nothing."""
    handles, labels = zip(*entries, strict=True)
    columns = min(columns, len(labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    grow(figure, LEGEND_LINE * -(-len(labels) // columns))


def _every(values: np.ndarray) -> int:
    return max(1, -(-int(np.isfinite(values).sum()) // MARKERS_PER_CURVE))


# ------------------------------------------------------------------------------------------------------- risk


def _draw_risk(ax: Axes, account: Account) -> tuple[Any, str]:
    """Draw one account; returns its entry in the legend."""
    values, time, color = account.values("excess_risk"), account.time, account.color
    # A diverged replica counts as above all others: left out, it would lower the median of the rest.
    low, median, high = quantiles(np.where(_has_diverged(account)[:, None] & np.isnan(values), BEYOND, values))
    low, median = (np.where((edge > 0) & (edge < FINITE), edge, np.nan) for edge in (low, median))
    label, handle = account.label, None
    if account.is_simulation:
        look = {"marker": account.marker, "ls": "", "mfc": "white", "mew": 0.6, "markevery": _every(median)}
        ax.plot(time, median, lw=0.5, color=color, zorder=2.5)
        (handle,) = ax.plot(time, median, color=color, zorder=3.5, label=account.name, **look)
        if account.replicas > 1:
            handle = (ax.fill_between(time, low, high, color=color, alpha=0.25), handle)
            label = f"{label}: median, 10-90% of {account.replicas} runs"
    else:
        (handle,) = ax.plot(time, median, ls=account.linestyle, color=color, zorder=3, label=account.name)
        if not has_one_start(account) and _is_visible(ax, low, high):
            for edge in (low, high):
                ax.plot(time, np.where(edge < FINITE, edge, np.nan), ls=":", lw=0.8, color=color, zorder=2.8)
            label = f"{label}: median (dotted: 10-90%)"
    ends = _divergences(account)
    if ends:
        ax.plot(*zip(*ends, strict=True), ls="", color=color, zorder=4, **CROSS)
    return handle, label


def _has_diverged(account: Account) -> np.ndarray:
    return account.dataset.status.values == Status.DIVERGED


def _divergences(account: Account) -> list[tuple[float, float]]:
    """The last time and excess risk of every replica that diverged, if it was saved at all."""
    values = account.values("excess_risk")[_has_diverged(account)]
    ends = np.isfinite(values).sum(axis=1) - 1
    last = [(float(account.time[end]), float(row[end])) for row, end in zip(values, ends, strict=True) if end >= 0]
    return [(time, value) for time, value in last if value > 0]


def _is_visible(ax: Axes, low: np.ndarray, high: np.ndarray) -> bool:
    inside = (low > ax.get_ylim()[0]) & np.isfinite(high)
    return bool(np.max(np.log10(high[inside] / low[inside]), initial=0.0) > SMALLEST_BAND)


def _risk_limits(ax: Axes, found: list[Account]) -> None:
    """Show what is known: every value seen, except those below the smallest one that exceeds its numerical error."""
    values = np.concatenate([account.values("excess_risk").ravel() for account in found])
    errors = np.concatenate([account.dataset["risk_error"].values.ravel() for account in found])
    positive = values > 0
    known = values[positive & (values > np.nan_to_num(errors))]
    shown = known if known.size else values[positive]
    if shown.size:
        margin = max(1.2, (shown.max() / shown.min()) ** 0.05)
        ax.set_ylim(shown.min() / margin, shown.max() * margin)


def _has_deviation(account: Account, name: str) -> bool:
    name = f"deviation_{name}"
    return name in account.dataset and bool(np.isfinite(account.dataset[name].values).any())


def _threshold(judged: list[Account]) -> float | None:
    """The largest deviation that chance explains, where the comparison recorded it."""
    found = [float(account.dataset.attrs["threshold"]) for account in judged if "threshold" in account.dataset.attrs]
    return max((value for value in found if np.isfinite(value)), default=None)


def _deviation_of_risk(ax: Axes, judged: list[Account]) -> None:
    ax.axhspan(-1.0, 1.0, color=GREY, zorder=0)
    ax.axhline(0.0, color=DARK_GREY, lw=0.4, zorder=1)
    largest = 1.0
    for account in judged:
        z = account.values("deviation_risk")
        ax.plot(account.time, z, ls=account.linestyle, lw=0.9, color=account.color)
        largest = max(largest, float(np.nanmax(np.abs(z))))
    extent = 1.15 * max(largest, 2.6)
    limit = _threshold(judged)
    # A threshold far above everything seen would flatten the curves and say nothing more.
    if limit is not None and limit <= 3.0 * largest:
        extent = max(extent, 1.15 * limit)
        ax.axhline(-limit, color=DARK_GREY, lw=0.7, ls="--")
        ax.axhline(limit, color=DARK_GREY, lw=0.7, ls="--", label="what chance alone can reach")
    ax.set_ylim(-extent, extent)
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_ylabel("deviation\n(standard errors)", fontsize=7.5)


# --------------------------------------------------------------------------------------------------- overlaps


def _overlap_panels(found: list[Account]) -> list[tuple[str, str, Any]]:
    """Variable, label and entries (as replica, time, neuron) of each panel."""
    k, p = found[0].dataset.sizes["r"], found[0].dataset.sizes["i"]
    panels: list[tuple[str, str, Any]] = [
        ("M", rf"$M_{{i,{r}}}$", np.s_[:, :, :, r]) for r in range(min(k, MAX_DIRECTIONS))
    ]
    diagonal = (slice(None), slice(None), np.arange(p), np.arange(p))
    if not panels or any(_moves(account, "Q", diagonal) for account in found):
        panels.append(("Q", r"$Q_{ii}$", diagonal))
    if any(_moves(account, "a", np.s_[:]) for account in found):
        panels.append(("a", r"$a_i$", np.s_[:]))
    return panels


def _moves(account: Account, name: str, entries: Any) -> bool:
    values = account.values(name)[entries]
    start = account.starts[name].values[:, None][entries]
    change = np.abs(values - start)
    return bool(np.max(change, where=np.isfinite(change), initial=0.0) > 1e-9)


def _draw_neurons(ax: Axes, account: Account, values: np.ndarray, replica: int, over_replicas: bool) -> None:
    """Draw one variable (replica, time, neuron) of one account."""
    one = account.one_replica(values, replica)
    if values.shape[-1] > len(PALETTE):
        low, _, high = quantiles(one.T)
        _draw_curve(ax, account, one.mean(axis=1), account.color, (low, high))
        return
    for neuron, color in zip(range(values.shape[-1]), PALETTE, strict=False):
        if over_replicas:
            low, median, high = quantiles(values[:, :, neuron])
            band = (low, high) if account.is_simulation and account.replicas > 1 else None
            _draw_curve(ax, account, median, color, band)
        else:
            _draw_curve(ax, account, one[:, neuron], color, None)


def _draw_curve(ax: Axes, account: Account, values: np.ndarray, color: str, band: Any) -> None:
    time = account.time
    if account.is_simulation:
        ax.plot(time, values, account.marker, color=color, markevery=_every(values), mfc="white", mew=0.6, zorder=2.5)
        if band:
            ax.fill_between(time, *band, color=color, alpha=0.2, zorder=1.5)
    else:
        ax.plot(time, values, ls=account.linestyle, color=color, zorder=3)
        for edge in band or ():
            ax.plot(time, edge, ls=":", lw=0.8, color=color, zorder=2.8)


def _overlap_legend(
    found: list[Account], replica: int, over_replicas: bool, rows: int
) -> tuple[list[tuple[Any, str]], int]:
    """Entries and number of columns: accounts in the first column, neurons in the others."""
    p = found[0].dataset.sizes["i"]
    wide = p > len(PALETTE)
    entries: list[tuple[Any, str]] = []
    for account in found:
        color = account.color if wide else DARK_GREY
        look: dict[str, Any] = (
            {"marker": account.marker, "ls": "", "mfc": "white", "mew": 0.6}
            if account.is_simulation
            else {"ls": account.linestyle}
        )
        handle: Any = Line2D([], [], color=color, **look)
        label = account.label
        if wide:
            label = f"{label}: mean, 10-90% over neurons"
            if account.is_simulation:
                handle = (Patch(color=color, alpha=0.2), handle)
        elif over_replicas and account.is_simulation:
            label = f"{label}: median, 10-90% of {account.replicas} runs"
            handle = (Patch(color=color, alpha=0.2), handle)
        if not over_replicas and account.replicas > 1:
            label = f"{label}, replica {replica}"
        entries.append((handle, label))
    if wide or p == 1:
        return entries, 2 if rows == 2 else 1
    rows = max(len(entries), min(rows, p))
    entries += [(Line2D([], [], ls=""), "")] * (rows - len(entries))
    entries += [(Line2D([], [], color=PALETTE[i], lw=2.0), rf"$i={i}$") for i in range(p)]
    return entries, -(-len(entries) // rows)


def _largest_deviations(ax: Axes, judged: list[Account]) -> None:
    largest = 1.0
    for account in judged:
        names = [name for name in ("M", "Q", "a") if _has_deviation(account, name)]
        names = [name for name in names if np.nanmax(np.abs(account.values(f"deviation_{name}"))) > 0] or names
        # One account: a curve for each variable. Several: one curve each over all variables, in its own line style.
        curves = [(rf"${name}$", [name], look) for name, look in zip(names, LINESTYLES, strict=False)]
        for label, members, look in curves if len(judged) == 1 else [(account.name, names, account.linestyle)]:
            entries = [np.abs(account.values(f"deviation_{name}")).reshape(account.time.size, -1) for name in members]
            z = np.concatenate(entries, axis=1)
            z = np.max(z, axis=1, where=np.isfinite(z), initial=-np.inf)
            z = np.where(z >= 0, z, np.nan)
            ax.plot(account.time, z, ls=look, lw=0.9, color=DARK_GREY, label=label)
            largest = max(largest, float(np.nanmax(z)))
    extent = largest
    limit = _threshold(judged)
    if limit is not None and limit <= 3.0 * largest:
        extent = max(extent, limit)
        ax.axhline(limit, color=DARK_GREY, lw=0.5, label="chance")
    ax.set_ylim(0.0, 1.45 * extent)  # room for the names above the curves
    ax.set_ylabel("largest deviation\n(standard errors)")
    ax.legend(loc="upper center", ncols=3)
