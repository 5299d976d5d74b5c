"""Figures show the numbers of their datasets, in every shape a result can have."""

import json

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure

import twolayer as tl
from twolayer import plots
from twolayer.plots.descriptions import facets

BOTH = (tl.DirectSGD(), tl.SaadSolla())


@pytest.fixture(scope="module")
def tree() -> xr.DataTree:
    """Random starts, two target directions, two neurons."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(50), noise=0.1)
    return tl.compare(problem, tl.SGD(1.0), BOTH, until=2.0, save=20, replicas=4)


@pytest.fixture(scope="module")
def data_set() -> xr.Dataset:
    """A data set has no target directions: M is empty."""
    X = np.random.default_rng(0).standard_normal((40, 10))
    problem = tl.Problem(tl.Labels(), tl.Student(2, "tanh"), tl.Samples(X, X[:, 0]))
    return tl.evolve(problem, tl.SGD(0.5), tl.DirectSGD(), until=2.0, save=10, replicas=3)


def changed(tree: xr.DataTree, change) -> xr.DataTree:
    """The same tree with every dataset changed."""
    new = xr.DataTree.from_dict({name: change(child.to_dataset()) for name, child in tree.children.items()})
    new.attrs = tree.attrs
    return new


def widened(dataset: xr.Dataset, p: int, k: int) -> xr.Dataset:
    """A dataset with the neurons and target directions of another one repeated."""
    i, r = np.arange(p) % dataset.sizes["i"], np.arange(k) % dataset.sizes["r"]
    wide = dataset.isel(i=i, j=i, r=r, s=r)
    return wide.assign_coords(i=np.arange(p), j=np.arange(p), r=np.arange(k), s=np.arange(k))


def diverged(dataset: xr.Dataset, replicas: list[int]) -> xr.Dataset:
    """A dataset some replicas of which break off one after the other."""
    dataset = dataset.copy(deep=True)
    for order, replica in enumerate(replicas):
        dataset.status.values[replica] = 1
        for name in ("Q", "M", "a", "risk", "excess_risk", "risk_error", "overlap_error"):
            dataset[name].values[replica, 6 + order :] = np.nan
    return dataset


def one_start(dataset: xr.Dataset) -> xr.Dataset:
    """A dataset whose replicas begin alike."""
    dataset = dataset.copy(deep=True)
    for name in ("Q", "M", "a"):
        dataset[name].values[:, 0] = dataset[name].values[0, 0]
    return dataset


def line(ax, label: str):
    return next(each for each in ax.lines if each.get_label().split(":")[0].split(" (")[0] == label)


def bands(ax) -> list[FillBetweenPolyCollection]:
    return [each for each in ax.collections if isinstance(each, FillBetweenPolyCollection)]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def drawn(result) -> tuple[Figure, Figure]:
    """Both figures, drawn as a notebook would, so that what fails only then fails here."""
    figures = plots.risk(result), plots.overlaps(result)
    for figure in figures:
        figure.canvas.draw()
    return figures


# ------------------------------------------------------------------------------------------------------- risk


@pytest.mark.parametrize("name", ["DirectSGD", "SaadSolla"])
def test_risk_shows_the_median_excess_risk_without_time_zero(tree, name):
    ax = plots.risk(tree).axes[0]
    dataset = tree[name].to_dataset()
    curve = line(ax, name)
    np.testing.assert_array_equal(curve.get_xdata(), dataset.time.values[1:])
    # The same quantile computed twice: rounding only.
    np.testing.assert_allclose(curve.get_ydata(), np.median(dataset.excess_risk.values, axis=0)[1:], rtol=1e-14)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert r"\mathcal{R}-\Delta/2" in ax.get_ylabel()


@pytest.mark.parametrize(
    ("problem", "phases"),
    [
        ({"loss": {"kind": "Logistic"}}, []),
        ({"loss": {"kind": "Square"}, "noise": {"kind": "Flips", "probability": 0.1}}, []),
        ({"loss": {"kind": "Square"}}, [{"kind": "SGD"}, {"kind": "Task", "loss": {"kind": "Huber"}, "noise": None}]),
    ],
)
def test_risk_names_no_variance_where_the_floor_is_another(tree, problem, phases):
    dataset = tree["SaadSolla"].to_dataset()
    asked = json.loads(dataset.attrs["spec"])
    asked["problem"] |= problem
    asked["training"]["phases"] = phases
    dataset.attrs["spec"] = json.dumps(asked)
    assert plots.risk(dataset).axes[0].get_ylabel() == "excess risk"


def test_risk_band_spans_the_quantiles_of_the_simulation(tree):
    (band,) = bands(plots.risk(tree).axes[0])
    low, high = np.quantile(tree["DirectSGD"].excess_risk.values[:, 1:], (0.1, 0.9), axis=0)
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert heights.min() == pytest.approx(low.min()) and heights.max() == pytest.approx(high.max())


def test_risk_shows_the_deviation_and_the_samples(tree):
    figure = plots.risk(tree)
    upper, lower = figure.axes
    assert lower.get_ylabel() == "deviation\n(standard errors)" and lower.get_xlabel() == r"time  $t$"
    shown = [each.get_ydata() for each in lower.lines if len(each.get_ydata()) > 2]
    np.testing.assert_array_equal(shown, [tree["SaadSolla"].deviation_risk.values[1:]])
    (top,) = upper.child_axes
    # samples / d = p t / gamma, with p = 2 and gamma = 1; a save point lies on a whole step.
    figure.draw_without_rendering()
    assert top.get_xlim()[1] / upper.get_xlim()[1] == pytest.approx(2.0)
    assert len(legend(figure)) == 2 and legend(figure)[0].startswith("DirectSGD: median, 10-90% of 4")


def test_risk_says_the_threshold_where_it_is_recorded_and_near(tree):
    worst = float(np.nanmax(np.abs(tree["SaadSolla"].deviation_risk.values)))
    near = changed(tree, lambda dataset: dataset.assign_attrs(threshold=1.5 * worst))
    far = changed(tree, lambda dataset: dataset.assign_attrs(threshold=100.0 * worst))
    assert "what chance alone can reach" in legend(plots.risk(near))
    assert "what chance alone can reach" not in legend(plots.risk(far))


def test_theory_band_appears_only_where_starts_differ(tree):
    dotted = [each for each in plots.risk(tree).axes[0].lines if each.get_linestyle() == ":"]
    assert len(dotted) == 2
    same = changed(tree, one_start)
    assert not [each for each in plots.risk(same).axes[0].lines if each.get_linestyle() == ":"]


def test_values_below_their_numerical_error_do_not_stretch_the_axis(tree):
    def sink(dataset: xr.Dataset) -> xr.Dataset:
        dataset = dataset.copy(deep=True)
        dataset.excess_risk.values[:, -1] = 1e-17
        dataset.excess_risk.values[0, -1] = -1e-17
        dataset.risk_error.values[:, -1] = 1e-15
        return dataset

    ax = plots.risk(changed(tree, sink)).axes[0]
    assert ax.get_ylim()[0] > 1e-6


# ------------------------------------------------------------------------------------------------- divergence


def test_a_diverged_replica_counts_as_large(tree):
    result = changed(tree, lambda dataset: diverged(dataset, [1]))
    figure = plots.risk(result)
    shown = line(figure.axes[0], "SaadSolla").get_ydata()
    values = result["SaadSolla"].excess_risk.values[:, 1:]
    np.testing.assert_allclose(shown, np.median(np.nan_to_num(values, nan=1e9), axis=0), rtol=1e-12)
    assert any("(1 of 4 diverged)" in text for text in legend(figure))
    assert "last saved point of a diverged replica" in legend(figure)


@pytest.mark.parametrize("replicas", [[0], [0, 1, 2], [0, 1, 2, 3]])
def test_figures_of_diverged_results_can_be_drawn(tree, replicas):
    figure, _ = drawn(changed(tree, lambda dataset: diverged(dataset, replicas)))
    crosses = [each for each in figure.axes[0].lines if each.get_marker() == "x"]
    assert [len(each.get_xdata()) for each in crosses] == [len(replicas)] * 2
    low, high = figure.axes[0].get_ylim()
    assert 0 < low < high < 1e3


def test_a_result_without_any_number_can_be_drawn(tree):
    def empty(dataset: xr.Dataset) -> xr.Dataset:
        return dataset.drop_vars(list(dataset.data_vars)).assign(
            {name: item if name in ("P", "status") else item * np.nan for name, item in dataset.data_vars.items()}
        )

    drawn(changed(tree, empty))


# --------------------------------------------------------------------------------------------------- overlaps


def test_overlaps_show_one_replica_where_starts_differ(tree):
    figure = plots.overlaps(tree)
    panels = figure.axes
    assert [ax.get_ylabel() for ax in panels[:3]] == ["$M_{i,0}$", "$M_{i,1}$", "$Q_{ii}$"]
    assert all(ax.get_xscale() == "log" and ax.get_yscale() == "linear" for ax in panels)
    for r, ax in enumerate(panels[:2]):
        expected = [tree[name].M.values[0, 1:, i, r] for name in ("DirectSGD", "SaadSolla") for i in range(2)]
        np.testing.assert_array_equal([each.get_ydata() for each in ax.lines], expected)
        assert not bands(ax)
    assert legend(figure) == ["DirectSGD, replica 0", "SaadSolla, replica 0", "$i=0$", "$i=1$"]


def test_overlaps_show_the_replica_asked_for(tree):
    ax = plots.overlaps(tree, replica=2).axes[0]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), tree["DirectSGD"].M.values[2, 1:, 0, 0])
    with pytest.raises(tl.InvalidInput, match="`replica` must be one of 0 to 3, but is 4"):
        plots.overlaps(tree, replica=4)


def test_overlaps_show_the_band_over_replicas_where_starts_are_equal(tree):
    result = changed(tree, one_start)
    figure = plots.overlaps(result)
    ax = figure.axes[0]
    assert len(bands(ax)) == 2
    expected = np.median(result["DirectSGD"].M.values[:, 1:, 0, 0], axis=0)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), expected, rtol=1e-14)
    assert "DirectSGD: median, 10-90% of 4 runs" in legend(figure)


def test_largest_deviation_is_over_all_entries(tree):
    ax = plots.overlaps(tree).axes[-1]
    expected = np.abs(tree["SaadSolla"].deviation_M.values[1:]).max(axis=(1, 2))
    np.testing.assert_array_equal(line(ax, "$M$").get_ydata(), expected)


def test_two_theories_have_one_deviation_each_and_lines_of_their_own(tree):
    named = {name: child.to_dataset() for name, child in tree.children.items()}
    figure = plots.overlaps(xr.DataTree.from_dict(named | {"SaadSolla-2": named["SaadSolla"]}))
    first, second = [line for line in figure.axes[-1].lines if str(line.get_label()).startswith("SaadSolla")]
    assert [first.get_label(), second.get_label()] == ["SaadSolla", "SaadSolla-2"]
    assert first.get_linestyle() != second.get_linestyle()
    entries = [np.abs(named["SaadSolla"][f"deviation_{name}"].values[1:]).max(axis=(1, 2)) for name in ("M", "Q")]
    np.testing.assert_array_equal(first.get_ydata(), np.maximum(*entries))


def test_second_layer_has_a_panel_only_when_it_moves(tree):
    assert "$a_i$" not in [ax.get_ylabel() for ax in plots.overlaps(tree).axes]
    moving = changed(tree, lambda dataset: dataset.assign(a=dataset.a + 0.1 * dataset.time))
    assert "$a_i$" in [ax.get_ylabel() for ax in plots.overlaps(moving).axes]


def test_constant_lengths_have_no_panel(tree):
    def on_sphere(dataset: xr.Dataset) -> xr.Dataset:
        return dataset.assign(Q=dataset.Q * 0 + np.eye(2) + 1e-15 * dataset.Q)

    assert "$Q_{ii}$" not in [ax.get_ylabel() for ax in plots.overlaps(changed(tree, on_sphere)).axes]


@pytest.mark.parametrize(
    ("p", "k"),
    [(1, 1), (8, 3), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((2, 1), (4, 1), (9, 2), (3, 8)))],
)
def test_figures_of_every_size_can_be_drawn(tree, p, k):
    _, figure = drawn(changed(tree, lambda dataset: widened(dataset, p, k)))
    curves = figure.axes[0].lines
    # Up to eight neurons one curve each; beyond, the two means and the two edges of the theory.
    assert len(curves) == (2 * p if p <= 8 else 4)
    assert sum(ax.get_ylabel().startswith("$M") for ax in figure.axes) == min(k, 6)


# ------------------------------------------------------------------------------------- other shapes of results


@pytest.mark.parametrize("name", ["DirectSGD", "SaadSolla"])
def test_a_single_dataset_and_a_tree_of_one_give_the_same_panels(tree, name):
    dataset = tree[name].to_dataset()
    dataset = dataset.drop_vars(
        [variable for variable in dataset.data_vars if "_" in variable and "deviation" in variable]
    )
    alone = drawn(dataset)
    in_tree = drawn(xr.DataTree.from_dict({f"/{name}": dataset}))
    for one, other in zip(alone, in_tree, strict=True):
        assert len(one.axes) == len(other.axes)
        assert legend(one) == legend(other) and legend(one)[0].startswith(name)


def test_one_replica_has_no_band_and_no_deviation(tree):
    result = changed(tree, lambda dataset: dataset[["Q", "M", "a", "P", "risk", "excess_risk", "risk_error", "status"]])
    figure, overlaps = drawn(changed(result, lambda dataset: dataset.isel(replica=[0])))
    assert len(figure.axes) == 1 and not bands(figure.axes[0])
    assert legend(figure) == ["DirectSGD", "SaadSolla"]
    assert len(overlaps.axes) == 3


def test_replicas_keep_their_numbers_in_an_interrupted_run(tree):
    part = tree["DirectSGD"].to_dataset().isel(replica=[2, 3])
    figure = plots.overlaps(part)
    assert legend(figure)[0] == "DirectSGD, replica 2"
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), part.M.values[0, 1:, 0, 0])


@pytest.mark.slow
def test_a_data_set_has_no_panel_of_target_overlaps(data_set):
    _, figure = drawn(data_set)
    assert [ax.get_ylabel() for ax in figure.axes] == ["$Q_{ii}$"]


@pytest.mark.parametrize("times", [[0], [0, -1]])
def test_few_times_can_be_drawn(tree, times):
    drawn(changed(tree, lambda dataset: dataset.isel(time=times)))


@pytest.mark.parametrize("result", [None, xr.DataTree()])
def test_what_is_no_result_is_refused(result):
    with pytest.raises(tl.InvalidInput, match="Argument `result`"):
        facets(result)


# ------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("title", ["a < b_1", r"$\gamma=1$", r"$\nonsense$ costs 5$", "long " * 40, "Δ – ü"])
def test_any_title_can_be_written(tree, tmp_path, title):
    figure = plots.risk(tree, title)
    plots.save_figure(figure, tmp_path / "risk")
    assert figure.get_suptitle().split() == title.split()


def test_the_same_tree_gives_the_same_files(tree, tmp_path):
    for name in ("first", "second"):
        plots.save_figure(plots.overlaps(tree, "title"), tmp_path / name)
    for suffix in ("png", "pdf"):
        assert (tmp_path / f"first.{suffix}").read_bytes() == (tmp_path / f"second.{suffix}").read_bytes()


def test_save_figure_writes_png_and_pdf_and_nothing_else(tree, tmp_path):
    paths = plots.save_figure(plots.risk(tree), tmp_path / "alpha=0.5")
    assert [path.name for path in paths] == ["alpha=0.5.png", "alpha=0.5.pdf"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alpha=0.5.pdf", "alpha=0.5.png"]
    assert paths[0].read_bytes().startswith(b"\x89PNG") and paths[1].read_bytes().startswith(b"%PDF")
    assert b"/FontFile2" in paths[1].read_bytes()  # fonts are embedded as TrueType


def test_the_style_of_the_user_is_left_alone_and_does_not_matter(tree, tmp_path):
    import matplotlib as mpl

    plots.save_figure(plots.risk(tree), tmp_path / "plain")
    with mpl.rc_context({"font.size": 30, "axes.grid": True}):
        before = dict(mpl.rcParams)
        plots.save_figure(plots.risk(tree), tmp_path / "styled")
        assert dict(mpl.rcParams) == before
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "styled.png").read_bytes()


def test_importing_twolayer_leaves_matplotlib_alone(fresh_python):
    program = "import sys, twolayer; print('matplotlib' in sys.modules)"
    assert fresh_python(program).strip() == "False"


def test_plots_touch_no_window_and_no_global_figure(fresh_python):
    program = "import sys, twolayer.plots; print('matplotlib.pyplot' in sys.modules)"
    assert fresh_python(program).strip() == "False"


def test_a_notebook_shows_a_figure_without_pyplot(tree):
    figure = plots.risk(tree)
    assert figure._repr_png_().startswith(b"\x89PNG")  # pyright: ignore[reportAttributeAccessIssue]
