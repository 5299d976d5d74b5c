"""The verb `ntk`: its numbers agree with the rooms below, and labels at random look as the paper says."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.kernel import complexity, quadratic, residuals, train
from twolayer.plots import complexity_sweep, lazy_training

REAL = Path(os.environ.get("TWOLAYER_DATA", "/nowhere"))


def halves(n, d=12, seed=0):
    """Samples on two sides of a plane."""
    X = unit(n, d, seed)
    return tl.Samples(X, np.where(X[:, 0] >= 0.0, 1.0, -1.0))


@pytest.fixture(scope="module")
def result():
    shares = np.linspace(0.0, 1.0, 5)
    return tl.ntk(halves(120), test=halves(400, seed=1), width=1024, steps=60, shares=shares, seed=2)


def test_numbers_are_those_of_the_rooms_below(result):
    samples = halves(120)
    assert result.complexity.value == pytest.approx(complexity(samples.X, samples.y), rel=1e-12)
    np.testing.assert_allclose(result.curves[0].predicted, residuals(samples.X, samples.y, result.eta, 60), rtol=1e-10)
    run = train(samples.X, samples.y, width=1024, eta=result.eta, steps=60, seed=2)
    np.testing.assert_allclose(result.curves[0].trained.residuals, run.residuals, rtol=1e-10)
    assert result.eta == pytest.approx(1.0 / result.lambda_max)
    distance = np.linalg.norm(run.initial_gram - tl.kernel.gram(samples.X), 2)
    assert result.initial_distance == pytest.approx(distance, rel=1e-4)


def test_random_labels_train_more_slowly_and_are_more_complex(result):
    given, random = result.curves
    assert given.labels == "given" and random.labels == "random"
    assert np.all(given.predicted[1:] < random.predicted[1:])
    assert np.all(given.trained.residuals[1:] < random.trained.residuals[1:])
    assert random.complexity.value > 1.5 * given.complexity.value
    assert given.deviation < 0.05 and random.deviation < 0.1
    # Given labels lie along the leading eigenvectors.
    leading = [np.sum(curve.projections[:12] ** 2) / 120 for curve in (given, random)]
    assert leading[0] > 3.0 * leading[1]


def test_measure_follows_the_test_error(result):
    measures = [each.complexity for each in result.shares]
    errors = [each.test_error for each in result.shares]
    assert measures[0] < measures[2] < measures[4] and errors[0] < errors[2] < errors[4]
    assert abs(errors[4] - 0.5) < 0.2 and errors[0] < 0.25
    # A wide network is near the kernel's prediction.
    assert all(abs(each.test_error - each.kernel_error) < 0.05 for each in result.shares)
    assert result.rank_correlation >= 0.9


def waves(n, seed):
    """Samples with real labels of any size."""
    X = unit(n, 6, seed)
    return tl.Samples(X, 3.0 * X[:, 0] + np.cos(2.0 * X[:, 1]))


def test_real_labels_use_the_test_set():
    samples, test = waves(150, 0), waves(80, 1)
    result = tl.ntk(samples, test=test, width=2048, steps=200)
    # By an independent route: gradient descent on the outputs with the Gram matrix of both sets.
    H, K = tl.kernel.gram(samples.X), tl.kernel.gram(test.X, others=samples.X)
    u, v = np.zeros(150), np.zeros(80)
    for _ in range(200):
        u, v = u - result.eta * H @ (u - samples.y), v - result.eta * K @ (u - samples.y)
    kernel = result.test.kernel
    assert kernel.mean_square == pytest.approx(np.mean((v - test.y) ** 2), rel=1e-6)
    assert kernel.mean_absolute == pytest.approx(np.mean(np.abs(v - test.y)), rel=1e-6)
    assert kernel.wrong_share is None and result.test.n == 80
    run = train(samples.X, samples.y, width=2048, eta=result.eta, steps=200, others=test.X)
    network = result.test.network
    assert network.mean_square == pytest.approx(np.mean((run.other_outputs - test.y) ** 2), rel=1e-9)
    # Both have learned, and a wide network is near the kernel's prediction.
    assert abs(network.mean_square - kernel.mean_square) < kernel.mean_square < 0.01 * np.var(test.y)
    words = str(result)
    assert "test error, n = 80" in words and f"{kernel.mean_square:.4g}" in words
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))["test"]
    assert data["kernel"]["mean_square"] == kernel.mean_square and data["network"]["wrong_share"] is None


def test_signs_keep_their_error_beside(result):
    assert result.test.kernel.wrong_share == result.shares[0].kernel_error  # a share of zero is the labels given
    assert result.test.network.wrong_share == result.shares[0].test_error
    assert tl.ntk(halves(30), steps=5).test is None


def test_a_target_labels_the_test_samples_too():
    X, T = unit(40, 6, 0), unit(30, 6, 1)
    target = quadratic(np.diag([1.0, -0.5, 0.0, 0.0, 0.0, 0.0]))
    nothing = [tl.Samples(x, np.zeros(len(x))) for x in (X, T)]
    for method in ("exact", "free"):
        result = tl.ntk(nothing[0], test=nothing[1], target=target, steps=50, method=method)
        expected = tl.ntk(tl.Samples(X, target(X)), test=tl.Samples(T, target(T)), steps=50).test.kernel
        assert result.test.kernel.mean_square == pytest.approx(expected.mean_square, rel=1e-6)
    with pytest.raises(tl.InvalidInput, match="`test` must have inputs of 6 dimensions"):
        tl.ntk(nothing[0], test=halves(10, d=5))


def test_words_and_plain_data(result):
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {"n", "lambda_min", "complexity", "eigenvalues"} <= set(data)
    assert data["n"] == 120 and len(data["eigenvalues"]) == 120 and data["lambda_min"] == data["eigenvalues"][-1]
    words = str(result)
    assert "rank correlation" in words and "flipped signs" in words and "||H(0) - H||" in words


def test_figures_show_what_there_is(result):
    left, right = lazy_training(result).axes
    assert len(left.lines) == 4 and right.get_xscale() == "log"
    np.testing.assert_allclose(left.lines[0].get_ydata(), result.curves[0].trained.residuals ** 2 / 120)
    ax, other = complexity_sweep(result).axes
    assert len(ax.lines) == 1 and len(other.lines) == 2
    bare = tl.ntk(halves(30), steps=5)
    figure = lazy_training(bare)
    # Nothing was trained: one line for each set of labels, and each is called a prediction.
    assert len(figure.axes[0].lines) == 2
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum("predicted" in word for word in words) == 2 and not any("units" in word for word in words)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), bare.curves[0].predicted ** 2 / 30)
    with pytest.raises(tl.InvalidInput, match="shares"):
        complexity_sweep(bare)


def test_matrix_free_route_gives_the_same(result):
    shares = np.linspace(0.0, 1.0, 5)
    options = {"test": halves(400, seed=1), "steps": 60, "shares": shares, "seed": 2, "eta": result.eta}
    for precision, digits in (("double", 1e-9), ("single", 1e-4)):
        free = tl.ntk(halves(120), method="free", precision=precision, **options)
        assert free.method == "free" and result.method == "exact" and "as asked" in str(free)
        assert free.complexity.value == pytest.approx(result.complexity.value, rel=1e-9)
        for one, other in zip(free.curves, result.curves, strict=True):
            np.testing.assert_allclose(one.predicted, other.predicted, rtol=digits)
            assert np.all(np.abs(one.predicted - other.predicted) <= one.prediction.error + 1e-9)
        for one, other in zip(free.shares, result.shares, strict=True):
            assert one.complexity == pytest.approx(other.complexity, rel=1e-9)
            assert abs(one.kernel_error - other.kernel_error) <= 1.0 / 400
    data = json.loads(json.dumps(free.to_dict(), allow_nan=False))
    assert len(data["eigenvalues"]) == len(data["eigenvalue_counts"]) and "density" in data["eigenvalues_are"]
    assert abs(data["lambda_min"] - result.lambda_min) <= data["lambda_min_error"]
    # No eigenvectors: the figure shows the parts of the labels below each eigenvalue.
    right = lazy_training(free).axes[1]
    assert len(right.lines) == 3 and right.get_ylabel().startswith("part below")
    given, random, counted = (line.get_ydata() for line in right.lines)
    assert all(np.all(np.diff(line) <= 0.0) and line[0] == pytest.approx(1.0) for line in (given, random, counted))
    assert len(complexity_sweep(free).axes) == 2


def test_route_is_chosen_by_memory_and_size(monkeypatch):
    monkeypatch.setattr("twolayer.kernel.eigen.available_memory", lambda: 100_000)
    found = tl.ntk(halves(100), steps=3)
    assert found.method == "free" and "need 0.16 MB" in found.reason
    monkeypatch.setattr("twolayer.kernel.eigen.MOST_ROWS", 20)
    assert "beyond 20" in tl.ntk(halves(30), steps=3).reason
    with pytest.raises(tl.InvalidInput, match="20 rows"):
        tl.ntk(halves(30), steps=3, method="exact")


def test_target_with_its_bounds():
    found = tl.ntk(halves(80), target=quadratic(np.diag(np.arange(12.0))), formula="xAx")
    assert found.target.measured <= found.target.sharp_bound <= found.target.bound == pytest.approx(6 * 66.0)
    assert len(found.curves) == 1  # labels are not plus and minus one: none is drawn at random
    assert "xAx" in str(found)


@pytest.mark.parametrize("method", ["exact", "free"])
def test_singular_matrices_are_told_and_a_ridge_helps(method):
    samples = halves(90)
    X, y = samples.X.copy(), samples.y.copy()
    X[4], y[4] = X[2], -y[2]
    found = tl.ntk(tl.Samples(X, y), steps=3, method=method)
    assert found.complexity is None and "2 and 4" in str(found) and found.to_dict()["complexity"] is None
    assert tl.ntk(tl.Samples(X, y), steps=3, ridge=0.1, method=method).complexity.value > 0.0


def test_inputs_are_given_unit_norm_and_it_is_said():
    samples = halves(30)
    found = tl.ntk(tl.Samples(3.0 * np.asarray(samples.X), samples.y), steps=3)
    assert found.complexity.value == pytest.approx(complexity(samples.X, samples.y), rel=1e-10)
    assert "divided by their norms" in found.notes[0]


def test_small_start_says_that_it_is_not_lazy():
    found = tl.ntk(halves(60), width=256, steps=60, start="small", random_labels=False)
    assert "not lazy" in str(found)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"eta": 100.0}, "2 / lambda_max"),
        ({"width": 7}, "even"),
        ({"width": 8, "activation": "tanh"}, "width"),
        ({"shares": [0.5]}, "test"),
        ({"shares": [1.5]}, "shares"),
        ({"layers": "none"}, "layers"),
    ],
)
def test_bad_input(changes, words):
    with pytest.raises(tl.InvalidInput, match=words):
        tl.ntk(halves(10), **changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_real_images(name):
    if not list(REAL.glob(f"{name}*.npz")):
        pytest.skip("set TWOLAYER_DATA to the folder of the image sets")
    training, test = (
        tl.load_samples(name, n=size, split=split, data_dir=REAL) for size, split in ((1000, "train"), (2000, "test"))
    )
    found = tl.ntk(training, test=test, steps=10_000, shares=np.linspace(0.0, 1.0, 11))
    measures = [each.complexity for each in found.shares]
    assert found.rank_correlation >= 0.95 and np.all(np.diff(measures[:10]) > 0.0) and measures[10] > measures[7]
