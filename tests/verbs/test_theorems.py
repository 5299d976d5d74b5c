"""The table of the theorems in the result of `ntk`: conditions that hold and do not, and the losses of theorem 5.1."""

import json
import math

import numpy as np
import pytest

import twolayer as tl
from tests.kernel.test_gram import unit
from twolayer.analyses.lazy.lazy_result import rank_correlation, to_dict
from twolayer.analyses.lazy.networks import LIPSCHITZ, METRICS, HeldOut
from twolayer.analyses.lazy.theorem_conditions import largest_factor
from twolayer.cli import main
from twolayer.kernel import theorems
from twolayer.plots import complexity_sweep


def waves(n, seed):
    """Real labels between minus one and one."""
    X = unit(n, 6, seed)
    return tl.Samples(X, 0.6 * X[:, 0] + 0.4 * np.cos(2.0 * X[:, 1]))


def lazy(samples, p, start=None):
    start = tl.AntisymmetricStart() if start is None else start
    return tl.Problem(tl.Labels(), tl.Student(p, "relu"), samples, start=start)


def rows_of(result):
    return {row["statement"]: row for row in to_dict(result)["theorems"]}


@pytest.fixture(scope="module")
def wide():
    """Few samples in many dimensions, a wide network and small steps: what can hold does."""
    X = unit(5, 200)
    samples = tl.Samples(X, np.array([1.0, -1.0, 0.5, -0.5, 0.25]))
    training = tl.SGD(learning_rate=200 * 0.015)
    return tl.ntk(lazy(samples, 4096), training, steps=1000, test=waves_in(200), delta=0.2, epsilon=0.3)


def waves_in(d):
    X = unit(50, d, 7)
    return tl.Samples(X, np.clip(3.0 * X[:, 0], -1.0, 1.0))


def test_numbers_of_the_table_are_those_of_the_theorems(wide):
    rows, n, smallest, eta = rows_of(wide), 5, float(wide.lambda_min), 0.015
    expected = {
        "all: largest |y|": (1.0, 1.0, True),
        "all: kappa": (1.0, 1.0, True),
        "all: step size, lambda_0 / n^2": (smallest / n**2, eta, True),
        "3.1: width": (n**6 / (smallest**4 * 0.2**3), 4096.0, False),
        "5.1: epochs": (math.log(n / 0.2) / (eta * smallest), 1000.0, True),
    }
    for name, (needed, here, holds) in expected.items():
        assert (rows[name]["needed"], rows[name]["here"]) == pytest.approx((needed, here)), name
        assert rows[name]["holds"] is holds, name
    norm = float(np.linalg.norm([1.0, -1.0, 0.5, -0.5, 0.25]))
    residuals = wide.trained_residual.values[0, 0]
    far = np.max(np.abs(residuals - wide.predicted_residual.values[0]))
    start = (0.5 * norm**2 / 0.2, 0.5 * norm**2)
    assert (rows["3.1: loss at the start"]["needed"], rows["3.1: loss at the start"]["here"]) == pytest.approx(start)
    assert rows["4.1: distance from the prediction"]["here"] == pytest.approx(far)
    assert rows["4.1: distance from the prediction"]["needed"] == pytest.approx(0.3 * norm)
    # An antisymmetric start needs no small scale.
    assert not {"4.1: kappa", "5.1: kappa"} & set(rows)


def test_what_is_promised_holds_for_a_wide_network(wide):
    claims = [row for row in rows_of(wide).values() if row["role"] == "claim"]
    assert len(claims) == 3 + 6 and all(row["holds"] for row in claims)
    factor = rows_of(wide)["3.1: factor of the loss in a step"]
    losses = wide.trained_residual.values[0, 0, :100] ** 2
    assert factor["here"] >= np.max(losses[1:] / losses[:-1]) and factor["needed"] == float(wide.contraction_bound)
    predicted = largest_factor(wide.predicted_residual.values[0], 0.015 * float(wide.lambda_min), "double")
    assert factor["here"] == pytest.approx(predicted, abs=0.2 * (1.0 - predicted))


def test_a_narrow_network_from_a_small_start_breaks_them():
    X = unit(60, 8)
    samples = tl.Samples(X, np.where(X[:, 0] >= 0.0, 1.0, -1.0))
    start = tl.RandomStart(law="gaussian", norm=0.05 * math.sqrt(8))
    result = tl.ntk(lazy(samples, 512, start), steps=200, random_labels=False)
    rows = rows_of(result)
    assert rows["3.1: factor of the loss in a step"]["holds"] is False and rows["5.1: kappa"]["holds"] is False
    assert rows["4.1: kappa"]["needed"] == pytest.approx(0.1 * np.linalg.norm(samples.y) * 0.1 / math.sqrt(60))
    words = str(tl.summary(result))
    assert "Theorems at failure probability 0.1" in words and "must be" in words and " no" in words
    sphere = tl.ntk(lazy(samples, 64, tl.RandomStart(norm=0.5)), steps=3, random_labels=False)
    assert rows_of(sphere)["4.1: kappa"]["here"] == pytest.approx(0.5 / math.sqrt(8))


def test_without_a_network_and_where_the_theorems_do_not_apply():
    rows = rows_of(tl.ntk(lazy(waves(30, 0), 2), replicas=0, steps=5))
    assert rows["3.1: width"]["here"] is None and rows["3.1: width"]["holds"] is None
    assert not any(row["role"] == "claim" for row in rows.values())
    others = tl.Problem(tl.Labels(), tl.Student(2, "tanh"), waves(30, 0), start=tl.AntisymmetricStart())
    for result in (tl.ntk(others, steps=5), tl.ntk(lazy(waves(30, 0), 8), steps=5, ridge=0.1)):
        assert "statement" not in result.coords and "Theorems" not in str(tl.summary(result))


def test_the_table_is_kept_and_written(wide, tmp_path, capsys):
    loaded = tl.load(tl.save(wide, tmp_path / "lazy.nc"))
    assert loaded.identical(wide) and str(tl.summary(loaded)) == str(tl.summary(wide))
    options = "ntk sphere --n 30 --d 5 --width 64 --steps 5 --set run.delta=0.2 --set run.epsilon=0.5 --target z1"
    assert main([*options.split(), "--json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["statement"]: row for row in json.loads(out)["theorems"]}
    form = rows["6.1: sqrt(y H^-1 y) of the target"]
    assert form["needed"] == pytest.approx(3.0) and form["here"] < 2.0 and "failure probability 0.2" in err
    assert main(["ntk", "sphere", "--n", "20", "--set", "run.delta=1.5"]) == 2


def test_factor_of_a_step():
    residuals = np.array([1.0, 0.9, 0.85, 1e-15, 2e-15])
    assert largest_factor(residuals, 0.1, "double") == pytest.approx((0.85 / 0.9) ** 2)
    assert np.isnan(largest_factor(residuals, 1e-14, "double"))


# ------------------------------------------------------------------------------------------------------------ losses


def test_losses_are_those_of_the_theorem():
    """Lipschitz with constant one in u, between zero and one, zero at the label; known ones for signs."""
    rng = np.random.default_rng(0)
    y, u, v = rng.uniform(-1.0, 1.0, 3000), *rng.normal(0.0, 2.0, (2, 3000))
    test = HeldOut(np.zeros((3000, 1)), y, False)
    first, second, at_labels = (test._of_samples(x, y)[3:] for x in (u, v, y))
    assert np.all((first >= 0.0) & (first <= 1.0)) and np.all(at_labels == 0.0)
    assert np.all(np.abs(first - second) <= np.abs(u - v) * (1.0 + 1e-12))
    assert np.max(np.abs(first - second) / np.abs(u - v), axis=1)[:2].min() > 0.99  # the constant is not less
    signs = np.sign(y)
    absolute, ramp, logistic = HeldOut(np.zeros((3000, 1)), signs, True)._of_samples(u, signs)[3:]
    np.testing.assert_allclose(absolute, np.minimum(np.abs(u - signs), 1.0))
    np.testing.assert_allclose(ramp, np.clip(1.0 - u * signs, 0.0, 1.0), atol=1e-15)
    excess = np.log1p(np.exp(-u * signs)) - np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(logistic, np.clip(excess, 0.0, 1.0), atol=1e-14)
    assert np.all(ramp >= (np.sign(u) != signs))


@pytest.mark.parametrize("has_signs", [True, False])
def test_errors_on_labels_of_the_same_law(has_signs):
    """The mean over random test labels, by drawing them."""
    rng = np.random.default_rng(1)
    n, share = 400, 0.3
    y = rng.choice([-1.0, 1.0], n) if has_signs else rng.uniform(-1.0, 1.0, n)
    drawn = np.array([-1.0, 1.0]) if has_signs else rng.uniform(-1.0, 1.0, 50)
    u, test = rng.normal(0.0, 1.0, n), HeldOut(np.zeros((n, 1)), y, has_signs)
    totals = []
    for _ in range(400):
        labels = np.where(rng.random(n) < share, rng.choice(drawn, n), y)
        totals.append(test._replace(labels=labels).errors(u)[0])
    totals = np.array(totals)
    error = totals.std(axis=0, ddof=1) / 20.0
    gap = np.abs(totals.mean(axis=0) - test.errors(u, drawn, share)[0])
    kept = [place for place, name in enumerate(METRICS) if has_signs or name != "wrong_share"]
    assert np.all(gap[kept] < 4.5 * error[kept]) and np.isnan(gap[2]) != has_signs
    _, deviations = test.errors(u)
    assert deviations[1] == pytest.approx(np.std(np.abs(u - y)) / 20.0)


def test_shares_of_random_real_labels():
    """Labels that are not signs are drawn from all labels, and tested by their losses."""
    samples, test = waves(80, 0), waves(300, 1)
    result = tl.ntk(lazy(samples, 512), test=test, shares=[0.0, 0.5, 1.0], steps=300)
    losses = result.share_network_loss.sel(metric="absolute_loss").values[0]
    assert losses[0] < losses[1] < losses[2] and np.isnan(result.share_kernel_error).all()
    clean = result.network_test_error.sel(metric=list(LIPSCHITZ)).values[0]
    np.testing.assert_allclose(result.share_network_loss.sel(metric=list(LIPSCHITZ)).values[0, 0], clean, rtol=1e-6)
    assert rank_correlation(result) == pytest.approx(1.0) and "network l1" in str(tl.summary(result))
    bound = result.share_complexity.values + theorems.remainder(80, float(result.lambda_min), 0.1)
    np.testing.assert_allclose(result.share_loss_bound, bound)
    figure = complexity_sweep(result)
    assert figure.axes[1].get_ylabel() == "test loss"
    with pytest.raises(tl.InvalidInput, match="between -1 and 1"):
        tl.ntk(lazy(tl.Samples(samples.X, 3.0 * samples.y), 8), test=test, shares=[0.5], steps=3)
