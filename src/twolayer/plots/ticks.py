"""Ticks of logarithmic axes that can be read over any range: decades over many of them, plain numbers over one."""

import math

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter

from twolayer.core.types import NumbersLike

FEWEST = 3  # labels with which an axis can be read
# Digits at which ticks stand in each decade, from few to many: the first of them that gives enough ticks is taken.
DIGITS = ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7), tuple(range(1, 10)))
PLAIN = (1e-3, 1e4)  # numbers between these are written without a power of ten


class LogTicks(LogLocator):
    """Ticks at the powers of ten, at more digits where few of these are in view, evenly spaced where none is enough."""

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        """Return the places of the ticks between two numbers."""
        low, high = sorted((vmin, vmax))
        if not 0.0 < low < high < math.inf:
            return np.array([])
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        if last - first > 2 * FEWEST:
            return np.asarray(super().tick_values(low, high))  # leaves out some where they would crowd
        powers = 10.0 ** np.arange(first, last + 1)
        for digits in DIGITS:
            ticks = np.outer(powers, digits).ravel()
            ticks = ticks[(ticks >= low * (1.0 - 1e-9)) & (ticks <= high * (1.0 + 1e-9))]
            if ticks.size >= FEWEST:
                return ticks
        ticks = np.asarray(MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high))
        return ticks[(ticks >= low) & (ticks <= high)]


class LogLabels(Formatter):
    """Labels of the ticks of one axis in one form: powers of ten where all of them are, else plain numbers."""

    ticks = np.empty(0)

    def set_locs(self, locs: NumbersLike) -> None:
        """Remember all ticks of the axis: the form of a label depends on the others."""
        self.ticks = np.asarray(locs, dtype=float)

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of one tick, with as many digits as tell it from its neighbours."""
        ticks = np.unique(np.append(self.ticks, x))
        exponents = np.log10(ticks)
        if np.allclose(exponents, np.round(exponents), atol=1e-9):
            return rf"$\mathdefault{{10^{{{round(math.log10(x))}}}}}$"
        step = float(np.min(np.diff(ticks), initial=1e-5 * x if ticks.size == 1 else x))
        finest = math.floor(math.log10(step) + 1e-9)
        if PLAIN[0] <= ticks[0] and ticks[-1] <= PLAIN[1]:
            return f"{x:.{max(0, -finest)}f}".rstrip("0").rstrip(".") if finest < 0 else f"{x:.0f}"
        power = math.floor(math.log10(x) + 1e-9)
        mantissa = f"{x / 10.0**power:.{max(0, power - finest)}f}"
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        factor = "" if mantissa == "1" else rf"{mantissa}\times"
        return rf"$\mathdefault{{{factor}10^{{{power}}}}}$"


def readable_log_ticks(axis: Axis) -> None:
    """Give a logarithmic axis ticks and labels that can be read over any range."""
    axis.set_major_locator(LogTicks())
    axis.set_major_formatter(LogLabels())
    axis.set_minor_locator(LogLocator(10.0, subs=tuple(range(2, 10))))
    axis.set_minor_formatter(NullFormatter())
