"""The verbs: what they give back, what they refuse, and that the verdict can say no."""

import json

import jax
import numpy as np
import pytest

import twolayer as tl
from tests.systems import erf_committee
from twolayer.ask import RunSpec
from twolayer.specification.codec import from_json
from twolayer.theory import saad_solla

ERF = erf_committee(noise=0.1)


@pytest.fixture(scope="module")
def tree():
    return tl.compare(ERF, tl.SGD(1.0), [tl.DirectSGD(), tl.SaadSolla()], until=3.0, save=10, replicas=12)


def test_every_description_has_the_same_start_and_clock(tree):
    simulated, theory = tree["DirectSGD"], tree["SaadSolla"]
    np.testing.assert_allclose(simulated.Q.values[:, 0], theory.Q.values[:, 0], atol=1e-12)
    np.testing.assert_allclose(simulated.M.values[:, 0], theory.M.values[:, 0], atol=1e-12)
    np.testing.assert_array_equal(simulated.time.values, theory.time.values)
    np.testing.assert_allclose(simulated.time.values, 1.0 * simulated.samples.values / (2 * 100), rtol=1e-15)
    np.testing.assert_array_equal(simulated.samples.values, simulated.step.values)


def test_deviation_is_the_paired_mean_over_its_standard_error(tree):
    """The scatter is that of the replicas at one time, or its root mean square over one time on each side."""
    difference = tree["DirectSGD"].risk.values - tree["SaadSolla"].risk.values
    own = difference.std(0, ddof=1)
    near = [np.sqrt(np.mean(own[max(0, n - 1) : n + 2] ** 2)) for n in range(len(own))]
    error = np.maximum(own, near) / np.sqrt(12)
    np.testing.assert_allclose(tree["SaadSolla"].standard_error_risk.values, error, rtol=1e-12)
    np.testing.assert_allclose(
        tree["SaadSolla"].deviation_risk.values[1:], (difference.mean(0) / error)[1:], rtol=1e-12
    )
    assert tree.attrs["judge"] == "DirectSGD"
    assert tree.attrs["outcome"] == "agrees"


def test_risk_contains_the_noise_floor_once(tree):
    simulated = tree["DirectSGD"]
    np.testing.assert_allclose(simulated.risk.values - simulated.excess_risk.values, 0.05, rtol=1e-12)


def test_risk_of_a_run_is_that_of_fresh_samples(tree):
    """The risk follows from the overlaps by a closed form; 4 x 10^5 fresh samples of the fields give it too, z < 5."""
    last = tree["DirectSGD"].isel(replica=3, time=-1)
    omega = np.block([[last.Q.values, last.M.values], [last.M.values.T, last.P.values]])
    rng = np.random.default_rng(0)
    from scipy.special import erf

    fields = erf(rng.standard_normal((400_000, 4)) @ np.linalg.cholesky(omega).T / np.sqrt(2))
    eps = fields[:, 2:].mean(1) - fields[:, :2].mean(1) + np.sqrt(0.1) * rng.standard_normal(400_000)
    sample = 0.5 * eps**2
    assert abs(sample.mean() - float(last.risk)) < 5 * sample.std() / np.sqrt(400_000)


@pytest.mark.long
def test_verdict_says_no_to_a_wrong_theory():
    """Gradient flow leaves out the variance term, which matters at this learning rate."""
    tree = tl.compare(
        ERF, tl.SGD(6.0), [tl.DirectSGD(), tl.SaadSolla(variance=False)], until=12.0, save=10, replicas=16
    )
    assert tree.attrs["outcome"] == "differs"
    assert "differs from DirectSGD" in tree.attrs["verdict"]


@pytest.mark.slow
@pytest.mark.parametrize("plant", [pytest.param("variance doubled", marks=pytest.mark.long), "time 10% off"])
def test_verdict_says_no_to_a_planted_error(monkeypatch, plant):
    """The same theory with a wrong factor in its equations of motion; 32 replicas are enough to see it."""
    true_drift = saad_solla.drift

    def wrong(problem, training, overlaps, moments, variance=1.0):
        if plant == "variance doubled":
            return true_drift(problem, training, overlaps, moments, 2.0 * variance)
        return tuple(1.1 * rate for rate in true_drift(problem, training, overlaps, moments, variance))

    monkeypatch.setattr(saad_solla, "drift", wrong)
    jax.clear_caches()
    if plant == "variance doubled":  # the theory then predicts that nothing is learned at all
        problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(300))
        training, until = tl.SGD(0.1, constraint=tl.Sphere()), 4.0
    else:
        problem = tl.Problem(ERF.target, ERF.student, tl.Gaussian(400), noise=0.1)
        training, until = tl.SGD(1.5), 6.0
    tree = tl.compare(problem, training, [tl.DirectSGD(), tl.SaadSolla()], until=until, save=12, replicas=32)
    jax.clear_caches()
    assert tree.attrs["outcome"] in ("differs", "finite-d effect"), tree.attrs["verdict"]
    if plant == "variance doubled":
        assert tree.attrs["outcome"] == "differs"


@pytest.mark.long
def test_identical_descriptions_agree_in_plain_words():
    start = tl.GivenOverlaps(np.eye(2), np.eye(2))
    problem = erf_committee(d=50, start=start)
    tree = tl.compare(problem, tl.SGD(1.0), [tl.DirectSGD(), tl.SaadSolla()], until=1.0, save=4, replicas=3)
    assert tree.attrs["outcome"] == "agrees"
    assert "same within their numerical error" in tree.attrs["verdict"]


@pytest.mark.long
def test_liberal_arguments():
    result = tl.compare(
        ERF, tl.SGD(1.0), (d for d in [tl.SaadSolla()]), until=1, save=np.int64(5), replicas=np.int64(2)
    )
    assert list(result.children) == ["SaadSolla"]
    with pytest.raises(tl.InvalidInput, match="`descriptions`"):
        tl.compare(ERF, tl.SGD(1.0), tl.SaadSolla())


def test_rows_of_no_length_are_refused_on_the_sphere():
    start = tl.GivenOverlaps(np.zeros((2, 2)), np.zeros((2, 2)))
    problem = tl.Problem(ERF.target, ERF.student, ERF.inputs, start=start)
    with pytest.raises(tl.InvalidInput, match="sphere"):
        tl.evolve(problem, tl.SGD(1.0, constraint=tl.Sphere()), tl.SaadSolla(), until=1.0)


@pytest.mark.long
def test_a_weak_comparison_says_that_it_is_weak():
    """Escape from a random start at small d.

    Single runs leave at very different times, and three of them say little.
    """
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50))
    training = tl.SGD(0.08, constraint=tl.Sphere())
    tree = tl.compare(problem, training, [tl.DirectSGD(), tl.SaadSolla()], until=2.0, save=10, replicas=3)
    assert tree.attrs["outcome"] == "consistent"
    assert "could have been missed" in tree.attrs["verdict"]


@pytest.mark.long
def test_one_replica_is_undecided():
    tree = tl.compare(ERF, tl.SGD(1.0), [tl.DirectSGD(), tl.SaadSolla()], until=1.0, save=4, replicas=1)
    assert tree.attrs["outcome"] == "undecided"


@pytest.mark.slow
def test_a_deterministic_theory_from_a_given_start_has_one_replica():
    start = tl.GivenOverlaps(np.eye(2), 0.1 * np.eye(2))
    problem = tl.Problem(ERF.target, ERF.student, ERF.inputs, start=start)
    tree = tl.compare(problem, tl.SGD(1.0), [tl.DirectSGD(), tl.SaadSolla()], until=2.0, save=5, replicas=8)
    assert tree["SaadSolla"].sizes["replica"] == 1 and tree["DirectSGD"].sizes["replica"] == 8
    assert tree.attrs["outcome"] == "agrees"


@pytest.mark.slow
def test_two_descriptions_of_one_kind_keep_apart():
    tree = tl.compare(ERF, tl.SGD(1.0), [tl.SaadSolla(), tl.SaadSolla(rtol=1e-6)], until=1.0, save=4, replicas=2)
    assert set(tree.children) == {"SaadSolla", "SaadSolla-2"}
    assert np.max(np.abs(tree["SaadSolla"].Q.values - tree["SaadSolla-2"].Q.values)) < 1e-5


@pytest.mark.slow
def test_provenance_rebuilds_the_problem(tree):
    spec = from_json(tree["SaadSolla"].attrs["spec"], RunSpec)
    again = tl.compare(spec.problem, spec.training, spec.descriptions, spec.ask)
    for name in tree.children:
        np.testing.assert_array_equal(again[name].risk.values, tree[name].risk.values)
    assert again["SaadSolla"].attrs["spec_hash"] == tree["SaadSolla"].attrs["spec_hash"]


@pytest.mark.slow
def test_results_are_double_precision_without_any_global_switch():
    import subprocess
    import sys

    code = (
        "import twolayer as tl, jax\n"
        "p = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, 'square'), tl.Gaussian(50), start=tl.WarmStart(0.2))\n"
        "r = tl.evolve(p, tl.SGD(0.05), tl.SaadSolla(), until=0.5, save=3)\n"
        "print(r.Q.dtype, r.attrs['precision'], jax.config.jax_enable_x64)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["float64", "float64", "False"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": -1.0}, "`until`.*above 0"),
        ({"until": float("nan")}, "`until`"),
        ({"replicas": 0}, "`replicas`.*at least 1"),
        ({"seed": -3}, "`seed`"),
        ({"save": 1}, "`save`"),
        ({"save": [2.0, 1.0]}, "`save`.*increasing"),
        ({"save": [5.0]}, "`save`.*between 0 and `until`"),
        ({"risk_threshold": 0.0}, "`risk_threshold`"),
        ({"risk_threshold": [0.1, 0.2, 0.3]}, "`risk_threshold`"),
        ({"risk_threshold": [-0.1]}, "`risk_threshold`"),
    ],
)
def test_bad_requests_are_refused_with_the_field(options, message):
    arguments = {"until": 1.0, "save": 5} | options
    with pytest.raises(tl.InvalidInput, match=message):
        tl.evolve(ERF, tl.SGD(1.0), tl.SaadSolla(), **arguments)


def test_the_save_grid_ends_where_the_run_ends():
    assert tl.Ask(until=3.0, save=2).times().tolist() == [0.0, 3.0]
    grid = tl.Ask(until=3.0, save=50).times(0.1)
    assert len(grid) == 50 and grid[1] == pytest.approx(0.1) and grid[-1] == 3.0
    assert tl.Ask(until=3.0, save=[1.0, 2.0]).times().tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(tl.InvalidInput, match="`save`"):
        tl.Ask(until=3.0, save="many")


def test_what_is_not_a_problem_is_refused():
    with pytest.raises(tl.InvalidInput, match="`descriptions`"):
        tl.compare(ERF, tl.SGD(1.0), [])


def test_a_simulation_of_less_than_a_step_is_refused():
    with pytest.raises(tl.InvalidInput, match="at least one step"):
        tl.evolve(ERF, tl.SGD(1.0), tl.OverlapSGD(), until=1e-9)


def test_explain_lists_what_applies_and_why_not():
    text = str(tl.explain(ERF, tl.SGD(1.0, momentum=0.5)))
    assert "DirectSGD    yes" in text and "SaadSolla    yes" in text
    assert "SDE          no" in text and "momentum" in text
    assert "closed form (thresholds)" in text
    relu = tl.Problem(tl.SingleIndex("sin(z)"), tl.Student(5, "relu"), tl.Gaussian(100))
    explanation = tl.explain(relu, tl.SGD(1.0))
    low, high = explanation.moments[0], explanation.moments[-1]
    assert (low.moment, low.fields, high.moment, high.fields) == ("excess_risk", 2, "phi_hd", 4)
    assert "slices" in low.engine and low.error < 1e-6
    assert "QMC" in high.engine and high.error > 1e-6
    assert ("Quadrature", "a rule for smooth functions is inaccurate for a function with kinks") in high.refused
    assert "as above; " in str(explanation)
    json.dumps(explanation.to_dict(), allow_nan=False)
