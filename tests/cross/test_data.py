"""Data of one's own as inputs: SGD on the rows against its exact mean and against the Gaussian equivalent."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from twolayer.core.errors import InvalidInput, NotApplicable
from twolayer.core.precision import double
from twolayer.data.deviation import judge_description
from twolayer.problem import Overlaps
from twolayer.simulation.direct_rows import embedded, excess_risk_on_rows, on_axes
from twolayer.specification.codec import from_json, to_json
from twolayer.verbs.compare import _labelled
from twolayer.verbs.equivalence import equivalence


def orthonormal(d, k, seed=0):
    return np.linalg.qr(np.random.default_rng([seed, 1]).standard_normal((d, k)))[0].T


def skewed(n, d, seed=0):
    """Rows with a mean, a spectrum and entries that are far from Gaussian."""
    rng = np.random.default_rng(seed)
    return (rng.exponential(size=(n, d)) + 1.5) * np.arange(1.0, d + 1.0) ** -0.5


def committee(X, k=2, p=2, **options):
    inputs = tl.Samples(X, directions=orthonormal(X.shape[1], k), **options)
    return tl.Problem(tl.Committee(k, "erf"), tl.Student(p, "erf"), inputs, noise=0.05)


def test_a_linear_student_has_the_mean_of_its_covariance():
    r"""E[W] obeys a linear recursion with the covariance C of the rows, whatever their law and at any d.

    .. math:: E[W^+] = E[W] (1 - \gamma_d C) + \gamma_d W^\star C

    Two blocks only label the results, so that binning changes nothing. One unit; z < 4.5 for six numbers.
    """
    X = skewed(50, 12)
    W_star = orthonormal(12, 2)
    inputs = tl.Samples(X, directions=W_star, bins=2)
    target = tl.MultiIndex("z1 - 0.5*z2", k=2)
    problem = tl.Problem(target, tl.Student(1, "linear"), inputs, start=tl.WarmStart(0.6), noise=0.1)
    training, replicas = tl.SGD(0.9), 200
    ends = [1.0, 3.0]
    result = tl.evolve(problem, training, tl.DirectSGD(), until=3.0, save=ends, replicas=replicas)
    C = np.cov(X.T, bias=True)
    values = np.linalg.eigvalsh(C)
    M = result.M.values[:, :, 0]
    # In the eigenbasis the distance of W from the solution W0 decays by itself; starts are averaged over, given M and
    # Q, so that only their mean in each block counts. Differences of the replicas from their own starts are followed.
    blocks = result.M_block.values[:, 0, :, 0]
    axes = inputs.axes
    edges = np.cumsum([0, *axes.equivalent.blocks[1]])
    stars = W_star @ axes.vectors
    rows = axes.vectors.T @ C @ axes.vectors
    np.testing.assert_allclose(np.diag(rows), np.sort(values)[::-1], atol=1e-12)
    # The part of W along the target in a block, which is all of its mean: M_l P_l^+ W*_l.
    mean = np.zeros((replicas, 12))
    for block, (first, last) in enumerate(itertools.pairwise(edges)):
        part = stars[:, first:last]
        mean[:, first:last] = blocks[:, block] @ np.linalg.pinv(part @ part.T) @ part
    solution = stars[0] - 0.5 * stars[1]
    for place, steps in enumerate(result.step.values[1:], start=1):
        decay = (1.0 - 0.9 / 12 * np.diag(rows)) ** steps
        expected = (solution + (mean - solution) * decay) @ stars.T
        gap = M[:, place] - expected
        assert np.all(abs(gap.mean(axis=0)) < 4.5 * gap.std(axis=0, ddof=1) / replicas**0.5), gap.mean(axis=0)
    assert abs(M[:, -1] - M[:, 0]).mean() > 0.1


def on_rows(problem, inputs):
    """The problem on rows that have lost their mean already."""
    return tl.Problem(problem.target, problem.student, inputs, noise=problem.noise, loss=problem.loss)


def test_the_risk_on_the_rows_is_that_of_their_labels():
    """Noise added or labels flipped: against samples of the labels, z < 5."""
    rng = np.random.default_rng(3)
    X = skewed(40, 6)
    rows = X - X.mean(axis=0)
    W, W_star, a = rng.standard_normal((2, 6)), orthonormal(6, 2), np.array([1.0, -0.5])
    inputs = tl.Samples(X, directions=W_star)
    signs = tl.SingleIndex("sign(z - 0.5)")
    one = tl.Samples(X, directions=W_star[:1])
    cases = [
        (tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), inputs, noise=0.3), W_star),
        (tl.Problem(signs, tl.Student(2, "erf"), one, noise=tl.Flips(0.2), loss="logistic"), W_star[:1]),
        (tl.Problem(signs, tl.Student(2, "erf"), one, noise=tl.Flips(0.2)), W_star[:1]),
    ]
    with double():
        for problem, stars in cases:
            bare = tl.Samples(rows, directions=stars)
            found = float(
                excess_risk_on_rows(on_rows(problem, bare), jnp.asarray(W), jnp.asarray(stars), jnp.asarray(a))
            )
            drawn = rng.integers(0, len(rows), 400_000)
            xi = rng.standard_normal(len(drawn))
            y = problem.label(jnp.asarray(rows[drawn] @ stars.T), jnp.asarray(xi))
            loss = np.asarray(problem.loss.error(y, problem.student(jnp.asarray(rows[drawn] @ W.T), jnp.asarray(a))))
            error = loss.std() / len(loss) ** 0.5
            assert abs(loss.mean() - problem.risk_floor - found) < 5.0 * error, problem


def test_rows_along_their_axes_keep_fields_and_labels():
    X = skewed(300, 20)
    problem = committee(X)
    inputs = problem.inputs
    assert isinstance(inputs, tl.Samples)
    along = inputs.along_axes
    centred = X - X.mean(axis=0)
    np.testing.assert_allclose(along.X @ along.directions.T, centred @ inputs.directions.T, atol=1e-12)
    covariance = along.X.T @ along.X / len(X)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-12)
    start = problem.draw(jax.random.key(0))
    assert start.blocks is not None
    np.testing.assert_allclose(start.P, np.eye(2), atol=1e-9)
    equivalent = problem.equivalent
    assert equivalent.inputs.d == 20 and equivalent.equivalent is equivalent


@pytest.mark.slow
def test_gaussian_rows_follow_the_theory():
    """40,000 rows: means within 4 standard errors and 2/d, plus the error of an average over these rows."""
    d, n = 60, 40_000
    drawn = np.random.default_rng(0).standard_normal((n, d))
    rows = np.linalg.qr(drawn - drawn.mean(axis=0))[0] * n**0.5 * np.repeat([2.0, 0.6], [20, 40])  # two eigenvalues
    problem, replicas = committee(rows, bins=2), 48
    control = tl.DirectSGD(equivalent=True)
    ask = {"until": 4.0, "save": [1.0, 4.0], "replicas": replicas}
    tree = tl.compare(problem, tl.SGD(1.0), ["SaadSolla", "DirectSGD", control], **ask)
    assert tree.attrs["judge"] == "DirectSGD" and tree.attrs["equivalence"] == "agrees"
    assert tree.attrs["outcome"] == "agrees", tree.attrs["verdict"]
    assert np.isnan(tree.attrs["equivalence_begins"]) and "which chance explains" in tree.attrs["verdict"]
    theory = tree["SaadSolla"]
    for name in ("risk", "M", "Q"):
        size = float(np.ptp(theory[name].values)) if name == "risk" else 1.0
        allowed = 4.0 * theory[f"standard_error_{name}"].values + 2.0 / d * size + 2.0 * size / n**0.5
        assert np.all(abs(theory[f"difference_{name}"].values) < allowed), name


def test_rows_that_are_not_gaussian_are_noticed():
    """Rows of random lengths: fields are mixtures of Gaussians, and the risk at the start differs already."""
    rng = np.random.default_rng(1)
    d, n = 40, 4000
    rows = rng.standard_normal((n, d)) * rng.choice([0.2, 1.4], (n, 1))
    problem = committee(rows, bins=1)
    control = tl.DirectSGD(equivalent=True)
    tree = tl.compare(problem, tl.SGD(1.0), [control, "DirectSGD"], until=1.0, save=[1.0], replicas=8)
    assert tree.attrs["judge"] == "DirectSGD-2"
    assert tree.attrs["equivalence"] == tree.attrs["outcome"] == "differs", tree.attrs["verdict"]
    assert tree.attrs["equivalence_distance"] > 10.0 * tree.attrs["equivalence_error"] > 0.0
    assert "beyond chance from time 0 on" in tree.attrs["verdict"]
    assert "on the Gaussian equivalent" in tree["DirectSGD"].attrs["statement"]


@pytest.mark.slow
def test_what_theories_follow_is_the_gaussian_equivalent():
    problem = committee(skewed(500, 20))
    ask = {"until": 0.5, "save": [0.5], "replicas": 2}
    for description in ("SaadSolla", tl.DirectSGD(equivalent=True)):
        on_data = tl.evolve(problem, tl.SGD(0.5), description, **ask)
        on_equivalent = tl.evolve(problem.equivalent, tl.SGD(0.5), description, **ask)
        for name in ("Q", "M", "risk"):
            assert np.array_equal(on_data[name], on_equivalent[name]), name
    alone = tl.compare(problem, tl.SGD(0.5), ["DirectSGD", "SaadSolla"], **ask)
    assert "add a control" in alone.attrs["verdict"] and "equivalence" not in alone.attrs


def found_of(risks, others):
    """What is said of runs on the data and on the equivalent, with these risks (replicas, times)."""

    def runs(values):
        values = np.asarray(values)
        risk, time = ("replica", "time"), np.arange(float(values.shape[1]))
        return xr.Dataset({"risk": (risk, values), "risk_error": (risk, 0.0 * values)}, {"time": time})

    data, control = runs(risks), runs(others)
    finding, deviations = judge_description("data", "control", data, control, "0.1", 100, is_limit=False)
    return equivalence("control", control.assign(_labelled(control, deviations)), finding)


def test_what_is_said_of_the_equivalent():
    """One replica decides nothing, rounding is nothing, and equal risks are a sentence of their own."""
    one = found_of([[1.0, 0.6]], [[1.0, 0.5]])
    assert one.outcome == "undecided" and np.isnan(one.error) and np.isnan(one.begins)
    assert one.sentence.endswith("(at time 1), which is undecided, since one replica gives no standard error.")
    falls = np.array([[1.0, 0.5], [1.0, 0.4], [1.0, 0.6]])
    rounded = found_of(falls + np.array([2.3e-16, 0.1]), falls + np.outer([1e-6, -1e-6, 0.0], [0.0, 1.0]))
    assert rounded.outcome == "differs" and rounded.begins == 1.0, rounded
    same = found_of(falls, falls)
    assert same.outcome == "agrees" and same.distance == 0.0
    assert same.sentence.endswith("the mean risk is the same within its numerical error.")


def test_a_start_does_not_move_the_directions_of_the_inputs():
    """Labels follow the directions of the data, so that blocks of P elsewhere would be those of another target."""
    X = np.random.default_rng(0).standard_normal((500, 6)) * [3.0, 3.0, 3.0, 1.0, 1.0, 1.0]
    inputs = tl.Samples(X, directions=np.eye(6)[:1], bins=2)
    options = (tl.Committee(1, "erf"), tl.Student(1, "erf"))

    def start(P):
        return tl.GivenOverlaps([[[0.5]], [[0.5]]], np.zeros((2, 1, 1)), P)

    place = np.asarray(tl.Problem(*options, inputs).frame.P)
    assert tl.Problem(*options, inputs, start=start(place)).frame.P.shape == (2, 1, 1)
    drawn = tl.Gaussian(6, spectrum=[(9.0, 0.5), (1.0, 0.5)], teacher=[1.0, 0.0])
    for other in (inputs, drawn):
        with pytest.raises(InvalidInput, match=r"take `frame\.P` of the problem with another start"):
            tl.Problem(*options, other, start=start([[[0.0]], [[1.0]]]))


def test_labels_on_rows_have_the_smallest_parts_of_the_directions():
    """A part of 1e-6 along an axis is below what a frame of the target keeps, but not below the rows there."""
    X = np.random.default_rng(0).standard_normal((50, 4)) * [1e6, 1.0, 1.0, 1.0]
    W_star = np.array([[1e-6, 1.0, 0.0, 0.0]])
    problem = tl.Problem(
        tl.Committee(1, "erf", P=W_star @ W_star.T), tl.Student(1, "erf"), tl.Samples(X, directions=W_star, bins=4)
    )
    along, frame = on_axes(problem), problem.frame
    start = along.draw(jax.random.key(0), frame=frame)
    assert start.blocks is not None and isinstance(along.inputs, tl.Samples)
    blocks = start.blocks
    weighed = Overlaps(blocks.Q, blocks.M, start.P, start.a)
    with double():
        _, stars = embedded(along, weighed, frame, jax.random.key(1))
    np.testing.assert_array_equal(stars, along.inputs.directions)


def test_features_have_the_scale_that_is_stated():
    X = skewed(400, 30)
    found = tl.features(X, 50, "linear", seed=3)
    assert found.shape == (400, 50)
    # The mean of the squares is one up to the scatter of 50 chi-squares, whose weights are the spectrum: 5 deviations.
    C = X.T @ X / len(X)
    scatter = np.sqrt(2.0 * np.sum(C**2) / np.trace(C) ** 2 / 50)
    assert abs(np.mean(found**2) - 1.0) < 5.0 * scatter
    np.testing.assert_array_equal(found[:7], tl.features(X, 50, "linear", seed=3)[:7])
    assert np.abs(tl.features(X, 5, "erf")).max() <= 1.0


def test_data_in_specifications():
    X = skewed(30, 5)
    inputs = tl.Samples(X, directions=orthonormal(5, 2))
    again = from_json(to_json(inputs), tl.Samples)
    assert to_json(again) == to_json(inputs) and "bins" not in to_json(inputs) and '"y"' not in to_json(inputs)
    assert to_json(tl.Samples(X[:1], [1.0])).endswith('"y":[1.0]}') and "directions" not in to_json(
        tl.Samples(X[:1], [1.0])
    )
    assert "equivalent" not in to_json(tl.DirectSGD())


def test_what_does_not_fit_is_refused():
    X = skewed(30, 5)
    stars = orthonormal(5, 2)
    two = tl.Committee(2, "erf")
    with pytest.raises(InvalidInput, match="needs labels `y` or the target's `directions`, but neither"):
        tl.Samples(X)
    with pytest.raises(InvalidInput, match="both are given"):
        tl.Samples(X, np.ones(30), directions=stars)
    with pytest.raises(InvalidInput, match="variance in some direction, but all of its rows are the same"):
        tl.Gaussian.like(np.full((30, 5), 0.1))
    with pytest.raises(InvalidInput, match="variance in some direction, but all of its eigenvalues are 0"):
        tl.Gaussian.with_covariance(np.zeros((3, 3)))
    with pytest.raises(InvalidInput, match="must be used together"):
        tl.Problem(tl.Labels(), tl.Student(1, "erf"), tl.Samples(X, directions=stars))
    with pytest.raises(InvalidInput, match="k = 2 fields of the target, but has 1"):
        tl.Problem(two, tl.Student(1, "erf"), tl.Samples(X, directions=stars[:1]))
    with pytest.raises(InvalidInput, match="take orthonormal rows, or state `P`"):
        tl.Problem(two, tl.Student(1, "erf"), tl.Samples(X, directions=2.0 * stars))
    with pytest.raises(InvalidInput, match="must have rows of 5 numbers"):
        tl.Problem(two, tl.Student(1, "erf"), tl.Samples(X, directions=orthonormal(6, 2)))
    problem = committee(X)
    with pytest.raises(NotApplicable, match="schedule on a data set"):
        tl.evolve(problem, tl.Schedule([tl.SGD(0.1), tl.SGD(0.2)], [0.5]), "DirectSGD", until=1.0)
    huber = tl.Problem(two, tl.Student(1, "erf"), problem.inputs, noise=0.1, loss=tl.Huber(1.0))
    with pytest.raises(NotApplicable, match="covers the square and the correlation loss"):
        tl.evolve(huber, tl.SGD(0.1), "DirectSGD", until=1.0)
    mixed = tl.Mixture([two, tl.Committee(2, "tanh")], [0.5, 0.5])
    with pytest.raises(NotApplicable, match="follows one target"):
        tl.evolve(tl.Problem(mixed, tl.Student(1, "erf"), problem.inputs), tl.SGD(0.1), "DirectSGD", until=1.0)
    for ask in (lambda: tl.exit_time(problem, tl.SGD(0.1)), lambda: tl.fluctuations(problem, tl.SGD(0.1))):
        with pytest.raises((NotApplicable, InvalidInput)):
            ask()
    assert "on the Gaussian equivalent of the data" in str(tl.explain(problem, tl.SGD(0.1)))
