"""Figures of sweeps: what is drawn, what is hatched, and which centres replicas have."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.contour import ContourSet

import twolayer as tl
from twolayer import plots
from twolayer.plots.sweeps import is_logarithmic, of_replicas
from twolayer.sweeps.content import CellStatus


def swept(sizes, values=None, name="crossing_time", replicas=8):
    """A sweep over the learning rate and other axes with given numbers, or random ones."""
    axes = {axis: np.geomspace(1.0, 10.0 ** (1 + n), size) for n, (axis, size) in enumerate(sizes.items())}
    shape = tuple(sizes.values())
    if values is None:
        values = 1.0 + np.random.default_rng(0).random((*shape, replicas))
    data = {name: ((*sizes, "replica"), values), "cell_status": (tuple(sizes), np.zeros(shape, np.int8))}
    return xr.Dataset(data, axes, {"kind": "sweep", "exactness": "exact at finite d"})


def test_one_axis_is_a_curve_with_bars_and_a_band():
    figure = plots.sweep(swept({"learning_rate": 5}))
    (ax,) = figure.axes
    assert ax.get_xscale() == "log" and ax.get_xlabel() == r"learning rate $\gamma$"
    assert ax.get_ylabel() == "median time to the threshold"
    assert len(ax.collections) >= 1 and len(ax.lines) >= 1
    plt.close("all")


def test_colours_and_columns_tell_axes_apart():
    result = swept({"learning_rate": 4, "p": 3, "d": 2})
    figure = plots.sweep(result, x="learning_rate", hue="p", col="d")
    assert len(figure.axes) == 2
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"$p=1$", "$p=10$", "$p=100$"}
    with pytest.raises(tl.InvalidInput, match="further axis"):
        plots.sweep(swept({"learning_rate": 2, "p": 2, "d": 2, "noise": 2}), hue="p", col="d")


def test_two_axes_are_a_map_and_cells_without_a_number_are_hatched():
    values = np.ones((5, 6, 4))
    values[1, 2] = np.nan
    values[3, 3, :3] = np.nan  # three of four replicas have not crossed: there is no median
    figure = plots.sweep(swept({"learning_rate": 5, "d": 6}, values))
    ax = figure.axes[0]
    hatched = [collection for collection in ax.collections if collection.get_hatch()]
    assert len(hatched) == 1 and len(hatched[0].get_paths()) == 2
    plt.close("all")


def test_cells_without_a_verdict_are_dotted():
    """Where they have a number; those that have none are hatched."""
    values = np.ones((5, 6, 4))
    values[1, 2] = np.nan
    outcome = np.full((5, 6), "agrees", "<U12")
    outcome[1, 2] = outcome[1, 3] = outcome[4, 5] = outcome[0, 0] = "undecided"
    result = swept({"learning_rate": 5, "d": 6}, values).assign(outcome=(("learning_rate", "d"), outcome))
    figure = plots.sweep(result)
    hatched = {c.get_hatch(): len(c.get_paths()) for c in figure.axes[0].collections if c.get_hatch()}
    assert hatched == {"////": 1, "....": 3}
    labels = {
        text.get_text()
        for legend in (*figure.legends, figure.axes[0].get_legend())
        if legend
        for text in legend.get_texts()
    }
    assert labels == {"no number", "undecided"}
    plt.close("all")


def test_replicas_that_have_not_crossed_are_later_than_all_others():
    array = xr.DataArray(
        np.array([1.0, 2.0, 3.0, np.nan, np.nan])[:, None], dims=("replica", "x"), name="crossing_time"
    )
    assert of_replicas(array)[0] == 3.0
    assert np.isnan(of_replicas(array.rename("excess_risk"))[0])


def test_errors_of_centres_are_those_of_many_samples():
    samples = np.random.default_rng(1).standard_normal((200, 4000)) + 10.0
    for name, factor in (("excess_risk", 1.0), ("crossing_time", np.sqrt(np.pi / 2.0))):
        array = xr.DataArray(samples, dims=("replica", "x"), name=name)
        centre, error, *_ = of_replicas(array)
        assert np.std(centre) == pytest.approx(factor / np.sqrt(200), rel=0.1)
        assert np.mean(error) == pytest.approx(factor / np.sqrt(200), rel=0.2)


def test_scales_follow_the_spacing():
    assert is_logarithmic(np.geomspace(1, 100, 7)) and not is_logarithmic(np.linspace(1, 100, 7))
    assert not is_logarithmic(np.array([0.0, 1.0, 10.0]))


def test_what_cannot_be_drawn_is_refused():
    result = swept({"learning_rate": 3})
    for arguments in ({"variable": "risk"}, {"x": "p"}, {"x": "learning_rate", "hue": "learning_rate"}):
        with pytest.raises(tl.InvalidInput):
            plots.sweep(result, **arguments)
    with pytest.raises(tl.InvalidInput, match="`sweep` returned"):
        plots.sweep(xr.Dataset())


def test_cells_that_are_not_computed_yet_are_told_from_those_without_a_number():
    values = np.ones((5, 6, 4))
    values[1, 2] = values[4] = np.nan
    result = swept({"learning_rate": 5, "d": 6}, values)
    status = result.cell_status.values.copy()
    status[4] = CellStatus.MISSING
    figure = plots.sweep(result.assign(cell_status=(result.cell_status.dims, status)))
    hatched = {c.get_hatch(): len(c.get_paths()) for c in figure.axes[0].collections if c.get_hatch()}
    assert hatched == {"////": 1, "....": 6}
    plt.close("all")


def test_contours_are_at_round_numbers():
    ramp = np.broadcast_to(np.linspace(0.0, 1.03, 7)[:, None, None], (7, 6, 4))
    for values, expected in (
        (0.1 + ramp, {0.2, 0.4, 0.6, 0.8, 1.0}),
        (10.0 ** (4.0 * ramp - 5.0), {1e-4, 1e-3, 1e-2, 0.1}),
    ):
        figure = plots.sweep(swept({"learning_rate": 7, "d": 6}, values))
        levels = [c.levels for c in figure.axes[0].collections if isinstance(c, ContourSet)]
        assert set(np.round(levels[0], 12)) == expected
    plt.close("all")


def test_the_bar_of_a_median_ends_at_times_of_replicas():
    """It is not even, so that it never ends below the first replica."""
    times = np.sort(np.random.default_rng(0).lognormal(0.0, 2.0, 16))[:, None]
    array = xr.DataArray(times, dims=("replica", "x"), name="crossing_time")
    centre, error, *_ = of_replicas(array)
    ends = centre - 2.0 * error[0], centre + 2.0 * error[1]
    assert all(np.isclose(times, end).any() for end in ends) and ends[0] < centre < ends[1]
