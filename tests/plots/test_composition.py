"""Figures that compose: on given axes, with colours and columns for the values of a dimension."""

from typing import cast

import numpy as np
import pytest
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import twolayer as tl
from twolayer import plots
from twolayer.plots.style import PALETTE

RATES = (0.5, 1.0, 2.0)


@pytest.fixture(scope="module")
def one() -> xr.Dataset:
    """Three replicas from random starts, two neurons and two directions."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(50), noise=0.1)
    return tl.evolve(problem, tl.SGD(1.0), tl.SaadSolla(), until=2.0, save=12, replicas=3)


@pytest.fixture(scope="module")
def rates(one) -> xr.Dataset:
    """Results of three learning rates, saved at different times, so that each is filled up with missing values."""
    results = []
    for rate in RATES:
        moved = one.assign_coords(time=one.time / rate)
        results.append(moved.assign(excess_risk=rate * moved.excess_risk, M=rate * moved.M))
    dim = xr.DataArray(list(RATES), dims="learning_rate", name="learning_rate")
    return cast(xr.Dataset, xr.concat(results, dim=dim, join="outer"))


@pytest.fixture(scope="module")
def cases(rates) -> xr.Dataset:
    """The same for two values of a second dimension, whose values are words."""
    second = rates.assign(excess_risk=10.0 * rates.excess_risk)
    dim = xr.DataArray(["low", "high"], dims="noise level", name="noise level")
    return cast(xr.Dataset, xr.concat([rates, second], dim=dim))


def blank(rows: int = 1, columns: int = 1):
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def median(dataset: xr.Dataset) -> np.ndarray:
    return np.median(dataset.excess_risk.values, axis=0)[1:]


def curves(ax, color: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The solid lines of one colour."""
    chosen = [line for line in ax.lines if line.get_color() == color and line.get_linestyle() == "-"]
    return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in chosen]


def words(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


# -------------------------------------------------------------------------------------------------------- axes


def test_risk_is_drawn_on_the_axes_given(one):
    figure, axes = blank(1, 2)
    ax, other = axes[0]
    assert plots.risk(one, "my title", ax=ax) is ax
    ((time, values), *_) = curves(ax, PALETTE[0])
    np.testing.assert_array_equal(time, one.time.values[1:])
    np.testing.assert_allclose(values, median(one), rtol=1e-14)
    assert ax.get_title() == "my title" and words(ax.get_legend())[0].startswith("SaadSolla")
    assert not other.has_data() and figure.axes == [ax, other] and not figure.legends
    figure.canvas.draw()


def test_several_axes_take_the_panels_in_their_order(one):
    _, axes = blank(1, 3)
    assert plots.overlaps(one, ax=axes) is axes
    first, second, third = axes.flat
    for r, ax in enumerate((first, second)):
        np.testing.assert_array_equal(ax.lines[1].get_ydata(), one.M.values[0, 1:, 1, r])
    np.testing.assert_array_equal(third.lines[0].get_ydata(), one.Q.values[0, 1:, 0, 0])
    # The legend stands where its entries occur first.
    assert words(first.get_legend()) == ["SaadSolla, replica 0", "$i=0$", "$i=1$"] and third.get_legend() is None


def test_panels_are_chosen_by_their_names(one):
    _, axes = blank()
    named = {"M1": axes[0, 0]}
    assert plots.overlaps(one, ax=named) is named
    np.testing.assert_array_equal(axes[0, 0].lines[0].get_ydata(), one.M.values[0, 1:, 0, 1])
    with pytest.raises(tl.InvalidInput, match=r"must name panels \(M0, M1, Q\), but names M7"):
        plots.overlaps(one, ax={"M7": axes[0, 0]})


@pytest.mark.parametrize("layout", ["constrained", None])
def test_a_part_of_a_figure_takes_all_panels(one, layout):
    figure = Figure(figsize=(9.0, 4.0), layout=layout)
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2, squeeze=False)[0]
    assert plots.overlaps(one, "overlaps", ax=right) is right
    assert [ax.get_ylabel() for ax in right.axes] == ["$M_{i,0}$", "$M_{i,1}$", "$Q_{ii}$"] and not left.axes
    assert right.get_suptitle() == "overlaps" and tuple(figure.get_size_inches()) == (9.0, 4.0)
    # Without a layout that makes room below the panels the legend stands in one of them.
    assert words(right.legends[0] if layout else right.axes[0].get_legend())[0] == "SaadSolla, replica 0"
    figure.canvas.draw()


def test_what_was_drawn_before_stays_in_view_and_in_the_legend(one):
    _, axes = blank()
    ax = axes[0, 0]
    ax.plot([1e-3, 1e3], [1e-6, 5.0], label="mine")
    plots.risk(one, ax=ax)
    assert ax.get_xlim()[0] <= 1e-3 and ax.get_xlim()[1] >= 1e3 and ax.get_ylim()[0] <= 1e-6
    assert words(ax.get_legend())[0] == "mine" and len(words(ax.get_legend())) == 2


def test_the_letters_are_those_of_the_user(one):
    import matplotlib as mpl

    with mpl.rc_context({"font.family": ["DejaVu Sans"], "legend.fontsize": 13.0}):
        _, axes = blank()
        plots.risk(one, ax=axes[0, 0])
        text = axes[0, 0].get_legend().get_texts()[0]
        assert text.get_fontsize() == 13.0 and text.get_fontfamily() == ["DejaVu Sans"]


def test_other_figures_are_drawn_on_the_axes_given(one):
    _, axes = blank(1, 3)
    sizes = np.array([10.0, 20.0, 40.0])
    distances = plots.Distances("rms", sizes, sizes**-0.5, 0.01 * sizes**-0.5, -0.5)
    assert plots.convergence({("SaadSolla", "$d$"): [distances]}, ax=axes[0, 0]) is axes[0, 0]
    np.testing.assert_allclose(axes[0, 0].containers[0][0].get_ydata(), sizes**-0.5)
    assert plots.staircase(tl.learn("z1 + z1*z2"), ax=axes[0, 1]) is axes[0, 1]
    assert max(axes[0, 1].lines[1].get_ydata()) == 2
    assert plots.flow(one, [2.0], ax=axes[0, 2]) is axes[0, 2]
    np.testing.assert_allclose(np.sort(axes[0, 2].lines[0].get_xdata()), np.sort(one.M.values[:, -1, :, 0].ravel()))
    panel = plots.Panel("x", "y", [plots.Series("a", sizes, sizes), plots.Rule("b", 2.0, "x", band=(1.0, 3.0))])
    _, axes = blank()
    assert plots.panels([panel], ax=axes[0, 0]) is axes[0, 0]
    assert words(axes[0, 0].get_legend()) == ["a", "b"]


def test_axes_that_do_not_fit_are_refused(one):
    _, axes = blank(2, 2)
    with pytest.raises(tl.InvalidInput, match="holds 4 axes, but there are 3 panels"):
        plots.overlaps(one, ax=axes)
    with pytest.raises(tl.InvalidInput, match="several axes: set their own titles"):
        plots.overlaps(one, "title", ax=axes[0])
    with pytest.raises(tl.InvalidInput, match="`ax` must be axes"):
        plots.overlaps(one, ax=np.zeros(2))


# ------------------------------------------------------------------------------------------------ hue and col


def test_each_value_has_a_colour_and_its_own_data(one, rates):
    figure = plots.risk(rates, hue="learning_rate")
    (ax,) = figure.axes
    for rate, color in zip(RATES, PALETTE, strict=False):
        ((time, values),) = curves(ax, color)
        np.testing.assert_allclose(time, one.time.values[1:] / rate)  # without the times of the other rates
        np.testing.assert_allclose(values, rate * median(one), rtol=1e-14)
    entries = words(figure.legends[0])
    assert entries[0].startswith("SaadSolla") and entries[1:] == [rf"$\gamma={rate:g}$" for rate in RATES]
    # One unit of time is another number of samples for each rate, so that no second axis is true for all.
    assert not ax.child_axes


def test_each_value_has_a_column_and_its_own_data(one, rates):
    figure = plots.risk(rates, col="learning_rate")
    assert [ax.get_title() for ax in figure.axes] == [rf"$\gamma={rate:g}$" for rate in RATES]
    for rate, ax in zip(RATES, figure.axes, strict=True):
        ((time, values), *_) = curves(ax, PALETTE[0])
        np.testing.assert_allclose(time, one.time.values[1:] / rate)
        np.testing.assert_allclose(values, rate * median(one), rtol=1e-14)
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    figure.canvas.draw()


def test_both_dimensions_at_once(one, cases):
    figure = plots.risk(cases, hue="learning_rate", col="noise level")
    assert [ax.get_title() for ax in figure.axes] == ["noise level low", "noise level high"]
    for factor, ax in zip((1.0, 10.0), figure.axes, strict=True):
        for rate, color in zip(RATES, PALETTE, strict=False):
            ((_, values),) = curves(ax, color)
            np.testing.assert_allclose(values, factor * rate * median(one), rtol=1e-14)


def test_overlaps_by_colour_and_by_column(one, rates):
    ax = plots.overlaps(rates, replica=1, hue="learning_rate").axes[0]
    for rate, color in zip(RATES, PALETTE, strict=False):
        drawn = [values for _, values in curves(ax, color)]
        np.testing.assert_allclose(drawn, rate * one.M.values[1, 1:, :, 0].T)
    figure = plots.overlaps(rates, col="learning_rate")
    second = [ax for ax in figure.axes if ax.get_title() == r"$\gamma=2$"]
    np.testing.assert_allclose(second[0].lines[1].get_ydata(), 2.0 * one.M.values[0, 1:, 1, 0])
    assert len(figure.axes) == 9


def test_every_replica_can_be_shown_by_itself(one):
    (ax,) = plots.risk(one, hue="replica").axes
    for replica in range(3):
        ((_, values),) = curves(ax, PALETTE[replica])
        np.testing.assert_array_equal(values, one.excess_risk.values[replica, 1:])


def test_a_description_without_the_dimension_stands_in_every_column(one, rates):
    tree = xr.DataTree.from_dict({"SaadSolla": rates, "Other": one})
    for ax in plots.risk(tree, col="learning_rate").axes:
        line = next(line for line in ax.lines if line.get_color() == PALETTE[1])
        np.testing.assert_allclose(line.get_ydata(), median(one), rtol=1e-14)


def test_students_of_different_widths_keep_their_neurons(one):
    wide = one.isel(i=[0, 1, 0], j=[0, 1, 0]).assign_coords(i=range(3), j=range(3))
    both = xr.concat([one, wide], dim=xr.DataArray([2, 3], dims="p", name="p"), join="outer")
    first, last = (plots.overlaps(both, col="p").axes[place] for place in (0, 1))
    assert (len(first.lines), len(last.lines)) == (2, 3)


def test_clouds_by_colour_and_by_column(one, rates):
    ax = plots.flow(rates, [0.0], hue="learning_rate").axes[0]
    for rate, line in zip(RATES, ax.lines, strict=False):
        np.testing.assert_allclose(np.sort(line.get_xdata()), np.sort(rate * one.M.values[:, 0, :, 0].ravel()))
    figure = plots.flow(rates, [0.0, 1.0], col="learning_rate")
    assert [ax.get_title() for ax in figure.axes[:2]] == [r"$\gamma=0.5$, $t=0$", r"$\gamma=1$, $t=0$"]


def test_dimensions_must_be_there_and_be_named(rates):
    with pytest.raises(tl.InvalidInput, match=r"`hue` must be a dimension of its own among .*, but is 'd'"):
        plots.risk(rates, hue="d")
    with pytest.raises(tl.InvalidInput, match="`learning_rate`, but none of `hue` or `col` names it"):
        plots.risk(rates)
    with pytest.raises(tl.InvalidInput, match="of its own"):
        plots.risk(rates, hue="learning_rate", col="learning_rate")
