"""When runs diverge the verdict does not pretend."""

import numpy as np

import twolayer as tl


def test_a_comparison_in_which_everything_diverged_is_undecided():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(50))
    descriptions = [tl.DirectSGD(), tl.SaadSolla()]
    tree = tl.compare(problem, tl.SGD(20.0), descriptions, until=1.0, save=5, replicas=3, throw=False)
    assert tree.attrs["outcome"] == "undecided"
    assert "no replica reached the end" in tree.attrs["verdict"]
    assert np.all(tree["SaadSolla"].status.values == 1) and np.all(tree["DirectSGD"].status.values == 1)
