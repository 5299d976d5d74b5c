"""When runs diverge the verdict does not pretend."""

import importlib

import numpy as np
import pytest

import twolayer as tl

evolving = importlib.import_module("twolayer.verbs.evolve")  # the package's name is the function


@pytest.mark.slow
def test_a_comparison_in_which_everything_diverged_is_undecided():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(50))
    descriptions = [tl.DirectSGD(), tl.SaadSolla()]
    tree = tl.compare(problem, tl.SGD(20.0), descriptions, until=1.0, save=5, replicas=3, throw=False)
    assert tree.attrs["outcome"] == "undecided"
    assert "no replica reached the end" in tree.attrs["verdict"]
    assert np.all(tree["SaadSolla"].status.values == 1) and np.all(tree["DirectSGD"].status.values == 1)


@pytest.mark.parametrize(
    "build, field",
    [
        (lambda: tl.RandomStart(norm=1e200), "norm"),
        (lambda: tl.WarmStart(m=0.1, norm=1e7), "norm"),
        (lambda: tl.WarmStart(m=-1e300), "m"),
        (lambda: tl.WarmStart(m=[[1e300]]), "m"),
        (lambda: tl.ScatteredStart(deviation=1e160), "deviation"),
        (lambda: tl.GivenOverlaps([[1e308]], [[0.0]]), "Q"),
        (lambda: tl.Committee(1, "erf", P=[[1e308]]), "P"),
        (lambda: tl.Student(1, "erf", second_layer=[1e200]), "second_layer"),
        (lambda: tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50), noise=1e308), "noise"),
    ],
)
def test_lengths_beyond_all_reason_are_refused(build, field):
    with pytest.raises(tl.InvalidInput, match=f"`{field}` must"):
        build()


NOT_FINITE = [(name, value) for name in ("Q", "M", "a", "excess_risk") for value in (np.nan, np.inf)]


# An error may be infinite, where a neighbouring solution went away without bound, but not unknown.
@pytest.mark.parametrize(("name", "value"), [*NOT_FINITE, ("risk_error", np.nan), ("overlap_error", np.nan)])
def test_no_row_that_is_not_finite_counts_as_done(monkeypatch, name, value):
    """Whatever a description says: a saved NaN or infinity is a divergence, and what comes after it is missing."""
    followed = evolving.follow_phases

    def broken(*arguments):
        record = followed(*arguments)
        x = np.array(getattr(record, name))
        x[1, 2] = value
        return record._replace(**{name: x})

    monkeypatch.setattr(evolving, "follow_phases", broken)
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50))
    ask = {"until": 0.5, "save": "linear:5", "replicas": 2}
    data = tl.evolve(problem, tl.SGD(0.1), tl.OverlapSGD(backend="xla"), **ask, throw=False)
    assert data.status.values.tolist() == [0, 1]
    for variable in ("Q", "M", "a", "risk", "risk_error"):
        finite = np.isfinite(data[variable].values).reshape(2, 5, -1).all(axis=2)
        assert finite.tolist() == [[True] * 5, [True, True, False, False, False]]
    with pytest.raises(tl.ComputationFailed, match="1 of 2 replicas"):
        tl.evolve(problem, tl.SGD(0.1), tl.OverlapSGD(backend="xla"), **ask)


def test_a_spherical_phase_keeps_the_lengths_at_which_it_begins():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50))
    schedule = tl.Schedule([tl.SGD(0.1), tl.SGD(0.1, constraint=tl.Sphere())], [0.5])
    data = tl.evolve(problem, schedule, tl.OverlapSGD(backend="xla"), until=1.0, save=[0.5, 1.0])
    start, switch, end = data.Q.values[0, :, 0, 0]
    assert start == pytest.approx(1.0) and abs(switch - start) > 0.05
    assert end == pytest.approx(switch, rel=1e-12)
