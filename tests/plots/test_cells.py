"""Figures of analyses show the cells of a sweep as they show single results."""

import json
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr
from tests.plots.test_escape import made
from tests.verbs.test_ntk import halves, kernel_alone

import twolayer as tl
from twolayer import plots
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import Prediction
from twolayer.plots.cells import cells_of
from twolayer.plots.style import PALETTE
from twolayer.sweeps.content import CellBlock, CellStatus, Content, node_of
from twolayer.sweeps.sweep_result import assembled

SIZES, RATES = (100, 1000), (0.03, 0.06, 1 / 12)


def swept(verb: str, over: dict[str, Any], cells: dict[tuple[int, ...], xr.Dataset]) -> xr.Dataset:
    """A sweep with these results in its cells, put together as `sweep` does."""
    contents = {str(place): Content(CellStatus.DONE, "", {"": node_of(cell)}) for place, cell in cells.items()}
    places = {str(place): place for place in cells}

    def found():
        return [([places[key] for key in block.keys], block) for block in CellBlock.of(contents)]

    coordinates = [{name: np.asarray(values)} for name, values in over.items()]
    attributes = {"verb": verb, "spec": "{}", "spec_hash": ""}
    return cast(xr.Dataset, assembled(coordinates, found, {}, attributes))


@pytest.fixture(scope="module")
def exits() -> dict[tuple[int, ...], xr.Dataset]:
    return {(i, j): made(d=d, gamma=rate) for i, d in enumerate(SIZES) for j, rate in enumerate(RATES)}


@pytest.fixture(scope="module")
def sweep(exits) -> xr.Dataset:
    return swept("exit_time", {"d": SIZES, "learning_rate": RATES}, exits)


def data(ax) -> list[np.ndarray]:
    return [np.asarray(line.get_xydata()) for line in ax.lines]


def assert_same(ax, other) -> None:
    assert len(data(ax)) == len(data(other)) > 2
    for drawn, wanted in zip(data(ax), data(other), strict=True):
        np.testing.assert_allclose(drawn, wanted, rtol=1e-14)


def test_a_cell_is_the_result_of_its_verb(exits, sweep):
    cells = cells_of(sweep, "exit_time", "exit_time", "learning_rate", "d")
    assert list(cells) == [rf"$\gamma={rate:g}$" for rate in RATES]
    for j, members in enumerate(cells.values()):
        for i, (label, cell) in enumerate(members.items()):
            assert label == f"$d={SIZES[i]}$"
            xr.testing.assert_identical(cell.drop_attrs(), exits[i, j].drop_attrs())
            for name in ("kind", "p", "d", "noise", "learning_rate", "threshold", "steps_per_time", "verdict"):
                assert cell.attrs[name] == exits[i, j].attrs[name]


def test_cells_of_different_sizes_are_as_long_as_they_were():
    """Fewer runs, fewer starts, no measurement: what a sweep fills up is not drawn as runs that have not exited."""
    rng = np.random.default_rng(0)
    few = made(d=300, measured=Sample(1.0 + rng.random(50), 10.0), ode=Sample(1.0 + rng.random(40), np.inf))
    results = [made(d=100), few, made(d=1000, measured=None)]
    results.append(made(d=2000, missing=20, estimates={"ode": Prediction(np.nan, 0.0)}))
    sizes = [result.attrs["d"] for result in results]
    figure = plots.exit_law(swept("exit_time", {"d": sizes}, {(i,): each for i, each in enumerate(results)}), col="d")
    for ax, result in zip(figure.axes, results, strict=True):
        assert_same(ax, plots.exit_law(result).axes[0])


def test_laws_by_column_and_by_colour(exits, sweep):
    figure = plots.exit_law(sweep.sel(learning_rate=RATES[2]), col="d")
    assert [ax.get_title() for ax in figure.axes] == ["$d=100$", "$d=1000$"]
    for i, ax in enumerate(figure.axes):
        single = plots.exit_law(exits[i, 2]).axes[0]
        for drawn, wanted in zip(data(ax), data(single), strict=True):
            np.testing.assert_allclose(drawn, wanted)
    figure = plots.exit_law(sweep, hue="learning_rate", col="d")
    for i, ax in enumerate(figure.axes):
        for j, color in enumerate(PALETTE[: len(RATES)]):
            measured, ode = (line for line in ax.lines if line.get_color() == color)
            for line, name in ((measured, "measured"), (ode, "ode")):
                np.testing.assert_allclose(np.asarray(line.get_xdata())[1:-1], np.sort(exits[i, j][name].values))


def test_a_scan_of_a_sweep_is_that_of_its_results(exits, sweep):
    single = plots.exit_scan([exits[0, j] for j in (2, 0, 1)], "learning_rate").axes[0]
    assert_same(plots.exit_scan(sweep.sel(d=100), "learning_rate").axes[0], single)
    figure = plots.exit_scan(sweep, "d", col="learning_rate")
    assert len(figure.axes) == 3
    for j, ax in enumerate(figure.axes):
        assert_same(ax, plots.exit_scan([exits[i, j] for i in (0, 1)], "d").axes[0])


def test_axes_that_do_not_fit_are_refused(exits, sweep):
    with pytest.raises(tl.InvalidInput, match=r"further axis `learning_rate`.*`col` or `hue`"):
        plots.exit_law(sweep, col="d")
    with pytest.raises(tl.InvalidInput, match="`axis` must be an axis of its own among d, learning_rate, but is 'p'"):
        plots.exit_scan(sweep, "p")
    with pytest.raises(tl.InvalidInput, match="`hue` names an axis of a sweep"):
        plots.exit_law(exits[0, 0], hue="d")
    with pytest.raises(tl.InvalidInput, match="`col` names an axis of a sweep, but `results` is a list"):
        plots.exit_scan([exits[0, 0], exits[1, 0]], "d", col="p")
    with pytest.raises(tl.InvalidInput, match="must be a sweep of `ntk`, but is one of 'exit_time'"):
        plots.lazy_training(sweep, col="d")


def test_lazy_training_by_column():
    """Results of five and of eight steps."""
    test, shares = halves(40, seed=1), np.linspace(0.0, 1.0, 3)
    results = [kernel_alone(halves(30), steps=steps, test=test, shares=shares) for steps in (5, 8)]
    sweep = swept("ntk", {"steps": (5, 8)}, {(i,): result for i, result in enumerate(results)})
    for figure_of in (plots.lazy_training, plots.complexity_sweep):
        axes = figure_of(sweep, col="steps").axes
        assert [ax.get_title() for ax in axes[:2]] == ["steps 5", "steps 8"]
        for place, result in enumerate(results):
            wanted = figure_of(result).axes
            for ax, other in zip(axes[place::2], wanted, strict=True):
                assert [np.shape(x) for x in data(ax)] == [np.shape(x) for x in data(other)]
                for drawn, single in zip(data(ax), data(other), strict=True):
                    np.testing.assert_allclose(drawn, single, rtol=1e-14)


def test_tasks_by_column():
    times = np.linspace(0.0, 2.0, 5)
    risks = np.exp(-times[:, None] * [1.0, 0.5])[None] * np.array([1.0, 3.0])[:, None, None, None]
    phases = json.dumps([{"end": 1.0}, {"end": 2.0}])
    result = xr.Dataset(
        {
            "task_risk": (("noise", "replica", "time", "task"), risks),
            "excess_risk": (("noise", "replica", "time"), risks[..., 0]),
        },
        {"noise": [0.0, 0.5], "time": times, "task": [1, 2]},
        {"description": "SaadSolla", "exactness": "limit d -> infinity", "phases": phases},
    )
    figure = plots.tasks(result, col="noise")
    assert [ax.get_title() for ax in figure.axes] == [r"$\Delta=0$", r"$\Delta=0.5$"]
    for place, ax in enumerate(figure.axes):
        for task in (0, 1):
            np.testing.assert_allclose(ax.lines[task].get_ydata(), risks[place, 0, :, task])
        assert list(ax.lines[2].get_xdata()) == [1.0, 1.0]
    with pytest.raises(tl.InvalidInput, match="further dimension `noise`"):
        plots.tasks(result)
