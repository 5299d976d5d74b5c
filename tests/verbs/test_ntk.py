"""The verb `ntk`: its numbers agree with the rooms below, and labels at random look as the paper says."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.analyses.lazy.lazy_result import rank_correlation, to_dict
from twolayer.analyses.lazy.networks import METRICS
from twolayer.analyses.lazy.setting import lazy_setting, learning_rate, read_setting
from twolayer.analyses.lazy.verdict import judge_networks, width_effect
from twolayer.kernel import complexity, quadratic, residuals, train
from twolayer.kernel.matrices import unit_rows
from twolayer.plots import complexity_sweep, lazy_training

REAL = Path(os.environ.get("TWOLAYER_DATA", "/nowhere"))


def halves(n, d=12, seed=0):
    """Samples on two sides of a plane."""
    X = unit(n, d, seed)
    return tl.Samples(X, np.where(X[:, 0] >= 0.0, 1.0, -1.0))


def lazy(samples, p=2, activation="relu", start=None):
    """The problem of a network of width p on samples."""
    start = tl.AntisymmetricStart() if start is None else start
    return tl.Problem(tl.Labels(), tl.Student(p, activation), samples, start=start)


def kernel_alone(samples, layers=None, activation="relu", **fields):
    return tl.ntk(lazy(samples, activation=activation), layers or tl.First(), replicas=0, **fields)


@pytest.fixture(scope="module")
def result():
    shares = np.linspace(0.0, 1.0, 5)
    problem = lazy(halves(120), 1024)
    return tl.ntk(problem, tl.First(), test=halves(400, seed=1), steps=60, shares=shares, seed=2)


def curves(result, name):
    return [result[name].sel(labels=labels).values for labels in ("given", "random")]


@pytest.mark.slow
def test_numbers_are_those_of_the_rooms_below(result):
    samples = halves(120)
    eta = float(result.step_size)
    assert float(result.complexity[0]) == pytest.approx(complexity(samples.X, samples.y), rel=1e-12)
    np.testing.assert_allclose(result.predicted_residual[0], residuals(samples.X, samples.y, eta, 60), rtol=1e-10)
    X, _ = unit_rows(samples.X)
    run = train(X, samples.y, width=1024, eta=eta, steps=60, seed=2)
    assert np.array_equal(result.trained_residual.sel(replica=0, labels="given"), run.residuals)  # to the last bit
    assert eta == pytest.approx(1.0 / float(result.lambda_max))
    distance = np.linalg.norm(run.initial_gram - tl.kernel.gram(samples.X), 2)
    assert float(result.initial_gram_distance[0]) == pytest.approx(distance, rel=1e-4)


# ------------------------------------------------------------------------------ one language: problem and training


@pytest.mark.parametrize("start, name, kappa", [
    (tl.AntisymmetricStart(1.5), "antisymmetric", 1.5),
    (tl.RandomStart(law="gaussian", norm=0.5 * math.sqrt(12)), "small", 0.5),
    (tl.RandomStart(norm=0.3), "sphere", 0.3),
])  # fmt: skip
def test_learning_rate_and_start_are_those_of_the_literature(start, name, kappa):
    samples, rate = halves(40), 1.25
    result = tl.ntk(lazy(samples, 64, start=start), tl.SGD(rate), steps=10, seed=3, random_labels=False)
    X, _ = unit_rows(samples.X)
    run = train(X, samples.y, width=64, eta=rate / 12, start=name, kappa=kappa, steps=10, seed=3)
    assert np.array_equal(result.trained_residual.values[0, 0], run.residuals)
    assert float(result.step_size) == rate / 12 and float(result.learning_rate) == pytest.approx(rate, rel=1e-15)
    assert (result.attrs["start"], result.attrs["width"]) == (name, 64)


def test_the_step_is_that_of_sgd_on_the_same_student():
    """With output weights of size sqrt(p), full batches of `DirectSGD` train as the kernel predicts."""
    samples, p, steps = halves(20), 600, 40
    student = tl.Student(p, "relu", second_layer=math.sqrt(p) * np.ones(p))
    problem = tl.Problem(tl.Labels(), student, samples, start=tl.AntisymmetricStart())
    training = tl.SGD(learning_rate=12.0 * 0.12, reuse=tl.Reused(alpha=1.0))
    time = float(training.clock(problem).time(steps))
    found = tl.evolve(problem, training, tl.DirectSGD(), until=time, save=[time], seed=1)
    predicted = residuals(samples.X, samples.y, 0.12, steps)
    assert float(found.risk[0, 0]) == pytest.approx(0.5, rel=1e-12)  # outputs begin at exactly zero
    norm = math.sqrt(2.0 * 20 * float(found.risk[0, -1]))
    assert abs(norm - predicted[-1]) < 0.05 * predicted[0] and predicted[-1] < 0.5 * predicted[0]


def test_letters_of_the_literature_and_objects_state_the_same():
    samples = halves(20)
    for eta in (0.1, 0.125, 1e-3):
        for d in (1, 7, 12, 784):
            assert learning_rate(eta, d) / d == pytest.approx(eta, rel=2.3e-16)
    assert learning_rate(0.125, 12) / 12 == 0.125
    for start in ("antisymmetric", "small", "sphere"):
        problem, training = lazy_setting(samples, width=8, eta=0.125, start=start, kappa=0.5)
        setting = read_setting(problem, training)
        assert (setting.width, setting.start, setting.layers, setting.eta) == (8, start, "first", 0.125)
        assert setting.kappa == pytest.approx(0.5, rel=1e-15)


@pytest.mark.slow
def test_the_former_signature_warns_and_gives_the_same_numbers(result):
    samples, shares = halves(120), np.linspace(0.0, 1.0, 5)
    with pytest.warns(tl.TwolayerDeprecationWarning, match=r"use `ntk\(Problem\(target=Labels\(\), inputs=samples"):
        former = tl.ntk(samples, test=halves(400, seed=1), width=1024, steps=60, shares=shares, seed=2)
    assert former.equals(result)
    with pytest.warns(tl.TwolayerDeprecationWarning):
        by_name = tl.ntk(samples=halves(30), steps=3, eta=0.01, layers="both", activation="erf", kappa=0.5)
    start = tl.AntisymmetricStart(0.5)
    training = tl.SGD(0.12, layers=tl.Both())
    assert by_name.equals(tl.ntk(lazy(halves(30), activation="erf", start=start), training, steps=3))


@pytest.mark.filterwarnings("ignore::twolayer.TwolayerDeprecationWarning")
@pytest.mark.parametrize(
    "changes, words",
    [
        ({"eta": 100.0}, "2 / lambda_max"),
        ({"width": 7}, "even"),
        ({"width": 8, "activation": "tanh"}, "relu"),
        ({"shares": [0.5]}, "test"),
        ({"shares": [1.5]}, "shares"),
        ({"layers": "none"}, "layers"),
        ({"colour": 1}, "no argument 'colour'"),
    ],
)
def test_bad_input_of_the_former_signature(changes, words):
    with pytest.raises(tl.InvalidInput, match=words):
        tl.ntk(halves(10), **changes)


@pytest.mark.parametrize(
    "student, start, training, fields, words",
    [
        ({}, None, tl.SGD(1e4), {}, "`learning_rate` must be below d \\* 2 / lambda_max"),
        ({}, None, tl.SGD(1.0, batch_size=3), {}, "all samples at each step"),
        ({}, None, tl.SGD(1.0, constraint=tl.Sphere()), {}, "plain gradient descent"),
        ({}, None, tl.SGD(1.0, momentum=0.9), {}, "plain gradient descent"),
        ({}, None, tl.Both(2.0), {"replicas": 0}, "`ratio` of the layers must be 1"),
        ({}, None, tl.Both(), {"replicas": 1}, "`replicas` must be 0 unless the first layer of relu"),
        ({"activation": "tanh"}, None, tl.First(), {"replicas": 2}, "`replicas` must be 0"),
        ({"activation": "tanh"}, tl.RandomStart(), tl.First(), {}, "Gaussian rows"),
        ({"second_layer": "gaussian"}, None, tl.First(), {}, "'ones' or 'rademacher'"),
        ({"p": 7}, None, tl.First(), {}, "`p` must be even"),
        ({}, tl.WarmStart(np.zeros((8, 0))), tl.First(), {}, "AntisymmetricStart\\(\\) or RandomStart"),
        ({}, None, "Sphere", {}, "not known here"),
        ({}, None, tl.First(), {"shares": [0.5]}, "`shares` needs `test`"),
        ({}, None, tl.First(), {"shares": [1.5]}, "shares"),
        ({}, None, tl.First(), {"colour": 1}, "no argument 'colour'"),
        ({}, None, tl.First(), {"target": "z21"}, "21 fields, but inputs have 12"),
        ({}, None, tl.First(), {"test": 3}, "`test`"),
    ],
)  # fmt: skip
def test_bad_input(student, start, training, fields, words):
    with pytest.raises(tl.InvalidInput, match=words):
        words = {"p": 8, "activation": "relu"} | student
        start = tl.AntisymmetricStart() if start is None else start
        problem = tl.Problem(tl.Labels(), tl.Student(**words), halves(10), start=start)
        tl.ntk(problem, training, **fields)


def test_only_data_sets_are_lazily_trained():
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(10))
    with pytest.raises(tl.NotApplicable, match="Labels"):
        tl.ntk(problem, tl.SGD(1.0))


def test_what_is_asked_is_one_object():
    ask = tl.NTKAsk(steps=3, random_labels=False)
    whole = tl.ntk(lazy(halves(20), 8), tl.First(), ask)
    assert whole.identical(tl.ntk(lazy(halves(20), 8), "first", steps=3, random_labels=False))
    assert tl.ntk(lazy(halves(20), 8), tl.First(), ask, steps=5).sizes["step"] == 6


# -------------------------------------------------------------------------------------------- one kind of result


def test_the_result_is_labelled_and_says_where_it_comes_from(result, tmp_path):
    assert result.attrs["kind"] == "lazy_training" and result.attrs["seed"] == 2
    assert result.attrs["precision"] == "float64" and len(result.attrs["spec_hash"]) == 64
    assert json.loads(result.attrs["versions"])["jax"] and json.loads(result.attrs["spec"])["problem"]["student"]
    assert all(variable.attrs["long_name"] and variable.attrs["units"] for variable in result.variables.values())
    loaded = tl.load(tl.save(result, tmp_path / "lazy.nc"))
    assert isinstance(loaded, xr.Dataset) and loaded.identical(result)
    assert str(tl.summary(loaded)) == str(tl.summary(result))
    other = tl.ntk(lazy(halves(20), 8), steps=3, seed=1)
    assert other.attrs["spec_hash"] != tl.ntk(lazy(halves(20), 10), steps=3, seed=1).attrs["spec_hash"]


def test_random_labels_train_more_slowly_and_are_more_complex(result):
    for name in ("predicted_residual", "trained_residual"):
        given, random = curves(result, name)
        assert np.all(given[..., 1:] < random[..., 1:])
    assert float(result.complexity[1]) > 1.5 * float(result.complexity[0])
    assert float(result.deviation[0, 0]) < 0.05 and float(result.deviation[0, 1]) < 0.1
    # Given labels lie along the leading eigenvectors.
    leading = [np.sum(projections[:12] ** 2) / 120 for projections in curves(result, "projections")]
    assert leading[0] > 3.0 * leading[1]


def test_measure_follows_the_test_error(result):
    measures, errors = result.share_complexity.values, result.share_network_error.values[0]
    assert measures[0] < measures[2] < measures[4] and errors[0] < errors[2] < errors[4]
    assert abs(errors[4] - 0.5) < 0.2 and errors[0] < 0.25
    # A wide network is near the kernel's prediction.
    assert np.all(np.abs(errors - result.share_kernel_error.values) < 0.05)
    assert rank_correlation(result) >= 0.9


def waves(n, seed):
    """Samples with real labels of any size."""
    X = unit(n, 6, seed)
    return tl.Samples(X, 3.0 * X[:, 0] + np.cos(2.0 * X[:, 1]))


def test_real_labels_use_the_test_set():
    samples, test = waves(150, 0), waves(80, 1)
    result = tl.ntk(lazy(samples, 2048), test=test, steps=200)
    eta = float(result.step_size)
    # By an independent route: gradient descent on the outputs with the Gram matrix of both sets.
    H, K = tl.kernel.gram(samples.X), tl.kernel.gram(test.X, others=samples.X)
    u, v = np.zeros(150), np.zeros(80)
    for _ in range(200):
        u, v = u - eta * H @ (u - samples.y), v - eta * K @ (u - samples.y)
    square, absolute, wrong = result.kernel_test_error.values[:3]
    assert tuple(result.metric.values) == METRICS and result.sizes["labels"] == 1
    assert square == pytest.approx(np.mean((v - test.y) ** 2), rel=1e-6)
    assert absolute == pytest.approx(np.mean(np.abs(v - test.y)), rel=1e-6)
    assert np.isnan(wrong) and result.attrs["test_samples"] == 80
    run = train(samples.X, samples.y, width=2048, eta=eta, steps=200, others=test.X)
    network = float(result.network_test_error.sel(metric="mean_square")[0])
    assert network == pytest.approx(np.mean((run.other_outputs - test.y) ** 2), rel=1e-9)
    # Both have learned, and a wide network is near the kernel's prediction.
    assert abs(network - square) < square < 0.01 * np.var(test.y)
    words = str(tl.summary(result))
    assert "test error, n = 80" in words and f"{square:.4g}" in words
    data = json.loads(json.dumps(to_dict(result), allow_nan=False))["test"]
    assert data["kernel"]["mean_square"] == square and data["network"]["wrong_share"] is None


def test_signs_keep_their_error_beside(result):
    # A share of zero is the labels given.
    assert float(result.kernel_test_error.sel(metric="wrong_share")) == float(result.share_kernel_error[0])
    assert float(result.network_test_error.sel(metric="wrong_share")[0]) == float(result.share_network_error[0, 0])
    assert "kernel_test_error" not in kernel_alone(halves(30), steps=5)


def test_a_target_labels_the_test_samples_too():
    X, T = unit(40, 6, 0), unit(30, 6, 1)
    target = quadratic(np.diag([1.0, -0.5, 0.0, 0.0, 0.0, 0.0]))
    nothing = [tl.Samples(x, np.zeros(len(x))) for x in (X, T)]
    labelled = [tl.Samples(x, target(x)) for x in (X, T)]
    expected = kernel_alone(labelled[0], test=labelled[1], steps=50).kernel_test_error[0]
    for method in ("exact", "free"):
        for given in (target, "z1**2 - 0.5*z2**2"):
            result = kernel_alone(nothing[0], test=nothing[1], target=given, steps=50, method=method)
            assert float(result.kernel_test_error[0]) == pytest.approx(float(expected), rel=1e-6)
    with pytest.raises(tl.InvalidInput, match="`test` must have inputs of 6 dimensions"):
        kernel_alone(nothing[0], test=halves(10, d=5))


def test_words_and_plain_data(result):
    data = json.loads(json.dumps(to_dict(result), allow_nan=False))
    assert {"n", "lambda_min", "complexity", "eigenvalues", "seed", "versions", "outcome"} <= set(data)
    assert data["n"] == 120 and len(data["eigenvalues"]) == 120 and data["lambda_min"] == data["eigenvalues"][-1]
    words = str(tl.summary(result))
    assert "rank correlation" in words and "flipped signs" in words and "||H(0) - H||" in words


# ------------------------------------------------------------------------------------------------------ the verdict


def test_a_lazy_network_is_off_by_finite_width_and_the_verdict_says_so(result):
    assert result.attrs["outcome"] == "finite-d effect"
    words = str(tl.summary(result))
    assert "Verdict: finite-d effect: the difference is real" in words and "finite width" in words
    assert "1 network of width 1024" in words and "no standard error" in words
    assert "outcome" not in kernel_alone(halves(30), steps=5).attrs


def test_networks_that_are_not_lazy_differ():
    start = tl.RandomStart(law="gaussian", norm=0.01 * math.sqrt(12))
    result = tl.ntk(lazy(halves(60), 1024, start=start), steps=200, random_labels=False)
    assert result.attrs["outcome"] == "differs" and "differs from 1 network" in str(tl.summary(result))


def test_several_networks_have_a_standard_error():
    problem = lazy(halves(40), 256)
    several = tl.ntk(problem, steps=20, replicas=4, seed=5)
    one = tl.ntk(problem, steps=20, seed=5)
    assert np.array_equal(several.trained_residual[0], one.trained_residual[0])
    final = several.trained_residual[:, 0, -1].values
    assert len(set(final)) == 4 and several.sizes["replica"] == 4
    assert "4 networks" in several.attrs["verdict"] and "standard errors" in several.attrs["verdict"]
    data = to_dict(several)["curves"]["given"]
    assert data["trained"][-1] == pytest.approx(final.mean()) and "mean of 4 networks" in str(tl.summary(several))


def test_the_words_of_the_verdict():
    predicted, error = np.geomspace(10.0, 1.0, 30)[None, :], np.zeros((1, 30))
    noise = np.random.default_rng(0).standard_normal((8, 1, 30))
    ways = np.array([10.0])
    assert float(width_effect(100, ways)[0]) == pytest.approx(0.1 * (0.5**0.5 + 5.0 / (2.0 * np.pi) ** 0.5))

    def outcome(trained, width=100):
        return judge_networks(predicted, error, trained, ["given"], width, ways).outcome

    assert outcome(predicted[None]) == "agrees"
    assert outcome(predicted + 0.01 * noise) == "agrees"
    assert outcome(predicted + 10.0 * noise) == "consistent"
    assert outcome(predicted + 1.0 + 0.01 * noise) == outcome(predicted[None] + 1.0) == "finite-d effect"
    assert outcome(predicted + 4.0 + 0.01 * noise) == outcome(predicted[None] + 4.0) == "differs"
    assert outcome(predicted[None] + 1.0, width=10_000) == "differs"


# ---------------------------------------------------------------------------------------------------------- figures


def test_figures_show_what_there_is(result):
    left, right = lazy_training(result).axes
    assert len(left.lines) == 4 and right.get_xscale() == "log"
    np.testing.assert_allclose(left.lines[0].get_ydata(), result.trained_residual.values[0, 0] ** 2 / 120)
    upper, lower = complexity_sweep(result).axes
    assert len(upper.lines) == 1 and len(lower.lines) == 2
    bare = kernel_alone(halves(30), steps=5)
    figure = lazy_training(bare)
    # Nothing was trained: one line for each set of labels, and each is called a prediction.
    assert len(figure.axes[0].lines) == 2
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sum("predicted" in word for word in words) == 2 and not any("units" in word for word in words)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), bare.predicted_residual.values[0] ** 2 / 30)
    with pytest.raises(tl.InvalidInput, match="shares"):
        complexity_sweep(bare)
    with pytest.raises(tl.InvalidInput, match="what `ntk` returned"):
        lazy_training(to_dict(bare))


def test_figures_are_drawn_on_given_axes(result):
    from matplotlib.figure import Figure

    axes = Figure().subplots(2, 2)
    assert lazy_training(result, ax=axes[0, 0]) is axes[0, 0] and len(axes[0, 0].lines) == 4
    lazy_training(result, ax={"spectrum": axes[0, 1]})
    assert axes[0, 1].get_xlabel().startswith("eigenvector")
    complexity_sweep(result, ax=axes[1])
    assert [len(ax.lines) for ax in axes[1]] == [1, 2]


def test_several_networks_are_shaded():
    result = tl.ntk(lazy(halves(30), 64), steps=5, replicas=3, random_labels=False)
    left = lazy_training(result).axes[0]
    assert len(left.collections) == 1 and len(left.lines) == 2


# ------------------------------------------------------------------------------------------------------- the routes


def test_matrix_free_route_gives_the_same(result):
    shares = np.linspace(0.0, 1.0, 5)
    options = {"test": halves(400, seed=1), "steps": 60, "shares": shares, "seed": 2, "replicas": 0}
    for precision, digits in (("double", 1e-9), ("single", 1e-4)):
        training = tl.SGD(float(result.learning_rate))
        free = tl.ntk(lazy(halves(120)), training, method="free", precision=precision, **options)
        assert free.attrs["method"] == "free" and result.attrs["method"] == "exact"
        assert "as asked" in str(tl.summary(free))
        np.testing.assert_allclose(free.complexity, result.complexity, rtol=1e-9)
        np.testing.assert_allclose(free.predicted_residual, result.predicted_residual, rtol=digits)
        gap = np.abs(free.predicted_residual - result.predicted_residual)
        assert np.all(gap <= free.predicted_error + 1e-9)
        np.testing.assert_allclose(free.share_complexity, result.share_complexity, rtol=1e-9)
        assert np.all(np.abs(free.share_kernel_error - result.share_kernel_error) <= 1.0 / 400)
    data = json.loads(json.dumps(to_dict(free), allow_nan=False))
    assert len(data["eigenvalues"]) == len(data["eigenvalue_counts"]) and "density" in data["eigenvalues_are"]
    assert abs(data["lambda_min"] - float(result.lambda_min)) <= data["lambda_min_error"]
    assert len(data["curves"]["given"]["measure"]["weights"]) > 10
    # No eigenvectors: the figure shows the parts of the labels below each eigenvalue.
    right = lazy_training(free).axes[1]
    assert len(right.lines) == 3 and right.get_ylabel().startswith("part below")
    assert right.get_xlim()[0] > right.get_xlim()[1]
    given, random, counted = (line.get_ydata() for line in right.lines)
    assert all(np.all(np.diff(line) <= 0.0) and line[0] == pytest.approx(1.0) for line in (given, random, counted))
    assert len(complexity_sweep(free).axes) == 2


def test_route_is_chosen_by_memory_and_size(monkeypatch):
    monkeypatch.setattr("twolayer.kernel.eigen.available_memory", lambda: 100_000)
    result = kernel_alone(halves(100), steps=3)
    assert result.attrs["method"] == "free" and "need 0.16 MB" in result.attrs["reason"]
    monkeypatch.setattr("twolayer.kernel.eigen.MOST_ROWS", 20)
    assert "beyond 20" in kernel_alone(halves(30), steps=3).attrs["reason"]
    with pytest.raises(tl.InvalidInput, match="20 rows"):
        kernel_alone(halves(30), steps=3, method="exact")


def test_target_with_its_bounds():
    result = kernel_alone(halves(80), target=quadratic(np.diag(np.arange(12.0))), formula="xAx")
    assert result.target_form <= result.target_sharp_bound <= result.target_bound
    assert float(result.target_bound) == pytest.approx(6 * 66.0)
    assert result.sizes["labels"] == 1  # labels are not plus and minus one: none is drawn at random
    assert "xAx" in str(tl.summary(result))


@pytest.mark.parametrize("method", ["exact", "free"])
def test_singular_matrices_are_told_and_a_ridge_helps(method):
    samples = halves(90)
    X, y = samples.X.copy(), samples.y.copy()
    X[4], y[4] = X[2], -y[2]
    result = kernel_alone(tl.Samples(X, y), steps=3, method=method)
    assert np.isnan(result.complexity[0]) and "2 and 4" in str(tl.summary(result))
    assert to_dict(result)["complexity"] is None
    assert float(kernel_alone(tl.Samples(X, y), steps=3, ridge=0.1, method=method).complexity[0]) > 0.0


def test_inputs_are_given_unit_norm_and_it_is_said():
    samples = halves(30)
    result = kernel_alone(tl.Samples(3.0 * np.asarray(samples.X), samples.y), steps=3)
    assert float(result.complexity[0]) == pytest.approx(complexity(samples.X, samples.y), rel=1e-10)
    assert "divided by their norms" in result.attrs["notes"]


def test_small_start_says_that_it_is_not_lazy():
    start = tl.RandomStart(law="gaussian", norm=0.01 * math.sqrt(12))
    result = tl.ntk(lazy(halves(60), 256, start=start), steps=60, random_labels=False)
    assert "not lazy" in str(tl.summary(result)) and "antisymmetric start" in result.attrs["notes"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_real_images(name):
    if not list(REAL.glob(f"{name}*.npz")):
        pytest.skip("set TWOLAYER_DATA to the folder of the image sets")
    training, test = (
        tl.load_samples(name, n=size, split=split, data_dir=REAL) for size, split in ((1000, "train"), (2000, "test"))
    )
    result = kernel_alone(training, test=test, steps=10_000, shares=np.linspace(0.0, 1.0, 11))
    measures = result.share_complexity.values
    assert rank_correlation(result) >= 0.95 and np.all(np.diff(measures[:10]) > 0.0) and measures[10] > measures[7]
