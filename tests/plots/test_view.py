"""Views of trajectories: units, scales, parts of the axis, and theories of other settings beside."""

import numpy as np
import pytest

import twolayer as tl
from twolayer import plots


@pytest.fixture(scope="module")
def result():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), noise=0.01)
    training = tl.SGD(0.1, constraint=tl.Sphere())
    asked = tl.Ask(until=2.0, save=12, replicas=4)
    beside = tl.evolve(problem, tl.SGD(0.05, constraint=tl.Sphere()), "SaadSolla", asked)
    return tl.compare(problem, training, ["OverlapSGD", "SaadSolla"], asked), beside


def line(ax, label):
    return next(line for line in ax.lines if line.get_label() == label)


@pytest.mark.parametrize(("unit", "of"), [("samples", 1.0), ("samples / d", 50.0)])
def test_the_axis_has_the_unit_that_is_asked_for(result, unit, of):
    tree, beside = result
    view = plots.View(unit=unit, x="linear", y="linear", beside={"A": beside})
    figure = plots.risk(tree, view=view)
    ax, below = figure.axes[:2]
    theory = tree["SaadSolla"]
    x, y = line(ax, "SaadSolla: median (dotted: 10-90%)").get_data()
    np.testing.assert_allclose(x, theory.samples.values[1:] / of)
    np.testing.assert_allclose(y, np.median(theory.excess_risk.values, axis=0)[1:])
    x, y = line(ax, "A: SaadSolla").get_data()  # its time is another number of samples
    np.testing.assert_allclose(x, beside.samples.values[1:] / of)
    np.testing.assert_allclose(y, np.median(beside.excess_risk.values, axis=0)[1:])
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "linear")
    assert ax.get_xlim() == below.get_xlim()
    assert "samples" in below.get_xlabel()


def test_a_part_of_the_axis_fills_the_panel(result):
    figure = plots.risk(result[0], view=plots.View(limits=(0.5, 1.0)))
    ax = figure.axes[0]
    assert ax.get_xlim() == pytest.approx((0.5, 1.0))
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    theory = result[0]["SaadSolla"]
    inside = theory.excess_risk.values[:, (theory.time.values >= 0.5) & (theory.time.values <= 1.0)]
    low, high = ax.get_ylim()
    assert low < np.median(inside, axis=0).min() and high > inside.max()
    assert high < 1.5 * plots.risk(result[0]).axes[0].get_ylim()[1]
    panel = plots.overlaps(result[0], view=plots.View(limits=(0.5, 1.0))).axes[0]
    assert panel.get_xlim() == pytest.approx((0.5, 1.0))


def test_views_are_of_one_training(result):
    with pytest.raises(tl.InvalidInput, match="results of one training"):
        plots.risk(result[0]["OverlapSGD"].to_dataset(), hue="replica", view=plots.View())
    for fields in ({"unit": "hours"}, {"x": "cubic"}, {"limits": (2.0, 1.0)}, {"limits": "all"}):
        with pytest.raises(tl.InvalidInput, match="must be"):
            plots.View(**fields)


def test_limits_below_zero_are_refused_on_a_logarithmic_axis(result):
    with pytest.raises(tl.InvalidInput, match="above zero"):
        plots.risk(result[0], view=plots.View(limits=(0.0, 3.0), x="log"))
