"""Heat maps of two times, and figures of a run of few steps."""

import numpy as np
import pytest

import twolayer as tl
from twolayer import plots


@pytest.fixture(scope="module")
def tree():
    start = tl.GivenOverlaps(np.eye(2), 0.2 * np.eye(2))
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(60), start=start)
    training = tl.SGD(1.0, reuse=tl.Reused(1.0))
    until = float(training.clock(problem).time(4))
    both = [tl.DirectSGD(), tl.DMFT(samples=2**11)]
    return tl.compare(problem, training, both, until=until, save="linear:5", replicas=3)


def test_maps_show_the_kernels(tree, tmp_path):
    figure = plots.kernels(tree, "two times", i=0, j=1)
    plots.save_figure(figure, tmp_path / "kernels")
    overlap, response = (ax.collections[0].get_array() for ax in figure.axes[:2])
    dataset = tree["DMFT"].to_dataset()
    np.testing.assert_allclose(overlap, dataset.C.values[0, :, :, 0, 1])
    past = np.tril_indices(5, -1)
    np.testing.assert_allclose(response[past], dataset.R.values[0, :, :, 0, 1][past])
    assert np.ma.getmaskarray(response)[np.triu_indices(5)].all()
    assert plots.kernels(dataset).axes[0].get_xlabel() == figure.axes[0].get_xlabel()


def test_both_risks_are_judged(tree):
    assert tree.attrs["judge"] == "DirectSGD"
    assert tree["DMFT"].deviation_training_risk.shape == tree["DMFT"].deviation_risk.shape == (5,)


def test_few_steps_have_an_even_time_axis(tree):
    assert plots.risk(tree).axes[0].get_xscale() == "linear"


def test_what_has_no_kernels_is_refused(tree):
    with pytest.raises(tl.InvalidInput, match="two times"):
        plots.kernels(tree["DirectSGD"].to_dataset())
    with pytest.raises(tl.InvalidInput, match="from 0 to 1"):
        plots.kernels(tree, i=2)
    with pytest.raises(tl.InvalidInput, match="replica"):
        plots.kernels(tree, replica=1)
