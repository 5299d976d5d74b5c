"""Layer-wise training: the second layer fitted in closed form by simulations and theories, after steps on the first."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.expectation import Auto
from twolayer.experiment import parse_spec
from twolayer.fitting import feature_averages, fitted_risks
from twolayer.specification.codec import from_json, to_json


def problem(p=3, activation="erf", k=2, d=200, noise=0.1, seed=0, second_layer="ones"):
    """A committee and a student whose rows overlap with it, the same for every replica."""
    rng = np.random.default_rng(seed)
    W, W_star = rng.standard_normal((p, 40)) / 6.0, np.linalg.qr(rng.standard_normal((40, k)))[0].T
    start = tl.GivenOverlaps(W @ W.T, W @ W_star.T)
    target = tl.Committee(k, activation)
    return tl.Problem(target, tl.Student(p, activation, second_layer), tl.Gaussian(d), start=start, noise=noise)


def fitted(system, fit, description, replicas=1):
    return tl.evolve(system, tl.Schedule([fit]), description, until=1.0, save=[1.0], replicas=replicas)


def test_the_solution_is_where_gradient_descent_ends():
    """Plain gradient descent on the penalised loss of given features, to convergence."""
    rng = np.random.default_rng(0)
    features, y, p, penalty = rng.standard_normal((50, 4)), rng.standard_normal(50), 4, 0.3
    a = np.zeros(p)
    for _ in range(4000):
        slope = -features.T @ (y - features @ a / p) / (p * len(y)) + penalty / p * a
        a -= 2.0 * slope
    with double():
        gram, projections = features.T @ features / len(y), features.T @ y / len(y)
        solved = tl.RidgeRegression(penalty).solve(jnp.asarray(gram), jnp.asarray(projections))
        # Without a penalty, features that are copies of one another share their coefficient.
        copies = jnp.concatenate([jnp.asarray(features), jnp.asarray(features)], axis=1)
        shared = tl.RidgeRegression(0.0).solve(copies.T @ copies / len(y), copies.T @ jnp.asarray(y) / len(y))
    np.testing.assert_allclose(np.asarray(solved), a, rtol=1e-9)
    plain = np.linalg.lstsq(features, y, rcond=None)[0]
    np.testing.assert_allclose(np.asarray(shared), 8 * np.tile(plain, 2) / 2, rtol=1e-8)


@pytest.mark.parametrize("activation", ["erf", pytest.param("relu", marks=pytest.mark.slow)])
def test_sgd_on_the_second_layer_ends_at_the_fit_without_penalty(activation):
    system = problem(activation=activation, p=2)
    flow = tl.evolve(system, tl.SGD(0.05, layers=tl.Second()), tl.SaadSolla(), until=400.0, save=[400.0])
    fit = fitted(system, tl.RidgeRegression(0.0), tl.SaadSolla())
    np.testing.assert_allclose(fit.a.values[0, -1], flow.a.values[0, -1], atol=1e-6)
    np.testing.assert_allclose(fit.excess_risk.values[0, -1], flow.excess_risk.values[0, -1], atol=1e-9)
    assert fit.excess_risk.values[0, -1] < 0.9 * fit.excess_risk.values[0, 0]


@pytest.mark.long
def test_averages_of_the_features_are_those_of_many_samples():
    system = problem(p=3, activation="relu")
    with double():
        overlaps = system.draw(replica_key(0, 0))
        gram, projections = feature_averages(Auto().choose(system, ("excess_risk", "chi")), system, overlaps)
        omega = np.asarray(overlaps.omega)
    fields = np.random.default_rng(1).multivariate_normal(np.zeros(5), omega, size=200_000)
    features, y = np.maximum(fields[:, :3], 0.0), np.maximum(fields[:, 3:], 0.0).mean(axis=1)
    np.testing.assert_allclose(np.asarray(gram), features.T @ features / len(y), atol=0.01)
    np.testing.assert_allclose(np.asarray(projections), features.T @ y / len(y), atol=0.01)


SETTINGS = [(2, "erf", 2, 0.5, 0.0), (4, "relu", 1, 0.0, 0.01), (3, "erf", 3, 0.2, 0.1)]


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_simulations_fit_what_the_theory_does(number):
    """Both simulations have one law; their mean is the fit on the population, up to order p/n and 5 standard errors."""
    p, activation, k, noise, penalty = SETTINGS[number]
    system, n = problem(p, activation, k, d=60, noise=noise, seed=number), 2000
    theory = fitted(system, tl.RidgeRegression(penalty), tl.BatchMap())
    a = theory.a.values[0, -1]
    for description in (tl.DirectSGD(), tl.OverlapSGD()):
        runs = fitted(system, tl.RidgeRegression(penalty, samples=n), description, replicas=64)
        drawn = runs.a.values[:, -1]
        error = drawn.std(axis=0, ddof=1) / 8.0
        assert np.all(error > 0.0) and np.all(np.abs(drawn.mean(axis=0) - a) < 5.0 * error + 5.0 * p / n * np.abs(a))
        exact = fitted(system, tl.RidgeRegression(penalty), description, replicas=2)
        np.testing.assert_allclose(exact.a.values[:, -1], [a, a], rtol=1e-8)
        assert runs.samples.values[-1] == n and exact.samples.values[-1] == 0


@pytest.mark.parametrize("description", [tl.DirectSGD(), tl.OverlapSGD()], ids=["direct", "overlap"])
def test_samples_add_the_risk_of_least_squares(description):
    """At the target's own rows the labels are linear in the features, and n samples add noise p / (2n) (1 + O(p/n))."""
    rows, noise, n, replicas = np.array([[1.0, 0.2], [0.2, 1.0]]), 0.8, 200, 400
    target = tl.Committee(2, "erf", P=rows)
    system = tl.Problem(
        target, tl.Student(2, "erf"), tl.Gaussian(30), start=tl.GivenOverlaps(rows, rows, rows), noise=noise
    )
    runs = fitted(system, tl.RidgeRegression(0.0, samples=n), description, replicas).excess_risk.values[:, -1]
    error = runs.std(ddof=1) / np.sqrt(replicas)
    assert abs(runs.mean() - noise * 2 / (2 * n)) < 5.0 * error + 0.02 * noise / n  # 5 errors are a quarter of it
    assert 5.0 * error < 0.5 * runs.mean()


def test_fits_along_a_trajectory_are_those_of_schedules():
    """The test error after each number of giant steps from one run, against one schedule for each number."""
    system, fit = problem(3, "erf", noise=0.0, second_layer="rademacher"), tl.RidgeRegression(0.01)
    first = tl.SGD(4.0, batch_size=400)
    times = first.clock(system).time(np.arange(3))
    run = tl.evolve(system, first, tl.BatchMap(), until=float(times[-1]), save=times, replicas=2)
    risk, error = fitted_risks(system, fit, run.Q.values, run.M.values)
    for number, time in enumerate(times):
        phases = tl.Schedule([first, fit], [float(time)]) if number else tl.Schedule([fit])
        ask = {"until": float(time) + 1.0, "save": [float(time) + 1.0], "replicas": 2}
        expected = tl.evolve(system, phases, tl.BatchMap(), **ask).excess_risk.values[:, -1]
        np.testing.assert_allclose(risk[:, number], expected, rtol=1e-9)
    assert np.all(risk[:, 0] > risk[:, 2]) and np.all(error < 1e-8)


@pytest.mark.long
def test_a_fit_uses_the_program_of_the_phase_before(caplog):
    """The risk of both phases has the same programs, one for each kind of variants; they take seconds to compile."""
    system = tl.Problem(tl.MultiIndex("z1 + z1*z2", k=2), tl.Student(4, "gelu", "gaussian"), tl.Gaussian(50))
    first = tl.SGD(2.0, batch_size=50)
    switch = float(first.clock(system).time(2))
    training = tl.Schedule([first, tl.RidgeRegression(1e-3, samples=50)], [switch])
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        tl.evolve(system, training, tl.DirectSGD(), until=switch + 1.0, save=[switch + 1.0])
    variants = Auto().choose(system, ("excess_risk",)).variants()
    compiled = sum("Compiling jit(_risks_of)" in record.getMessage() for record in caplog.records)
    assert 0 < compiled <= len({jax.tree.structure(variant) for variant in variants})


def test_a_phase_that_begins_with_large_output_weights_has_not_diverged():
    """A fit of large labels gives a^2 = 1.6e5; the phase after it moves them by little."""
    start = tl.GivenOverlaps([[1.0]], [[1.0]])
    system = tl.Problem(tl.MultiIndex("400*erf(z1)", k=1), tl.Student(1, "erf"), tl.Gaussian(50), start=start)
    training = tl.Schedule([tl.RidgeRegression(0.0), tl.SGD(1e-7)], [1.0])
    result = tl.evolve(system, training, tl.OverlapSGD(), until=1.0 + 1e-7, save=2)
    assert result.a.values[0, -1, 0] == pytest.approx(400.0, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "description",
    [
        pytest.param(tl.DirectSGD(), id="direct"),
        pytest.param(tl.OverlapSGD(), id="overlap", marks=pytest.mark.long),
    ],
)
def test_layer_wise_training_follows_the_batch_map(description):
    """Two giant steps on the first layer from random signs, then the fit; the mean of 32 runs is shifted by O(p/d)."""
    system = problem(4, "erf", d=500, second_layer="rademacher")
    first = tl.SGD(4.0, batch_size=1000)
    switch = float(first.clock(system).time(2))
    training = tl.Schedule([first, tl.RidgeRegression(0.01)], [switch])
    ask = {"until": switch + 1.0, "save": [switch, switch + 1.0], "replicas": 32}
    theory = tl.evolve(system, training, tl.BatchMap(), **ask).excess_risk.values
    runs = tl.evolve(system, training, description, **ask).excess_risk.values
    gap, error = (runs - theory).mean(axis=0), (runs - theory).std(axis=0, ddof=1) / np.sqrt(32)
    assert np.all(np.abs(gap) < 5.0 * error + 4.0 / 500 * theory.mean(axis=0))
    assert theory[:, 2].mean() < 0.95 * theory[:, 1].mean()


@pytest.mark.slow
def test_a_fit_after_a_fixed_set_is_on_fresh_samples():
    system = problem(d=40)
    training = tl.Schedule([tl.SGD(0.5, reuse=tl.Reused(2.0)), tl.RidgeRegression(0.1, samples=500)], [0.5])
    assert {row.description for row in tl.explain(system, training).descriptions if row.applies} == {
        "DirectSGD",
        "DMFT",
    }
    runs = tl.evolve(system, training, tl.DirectSGD(), until=1.5, save=[0.5, 1.5], replicas=4)
    np.testing.assert_array_equal(runs.Q.values[:, 1], runs.Q.values[:, 2])
    population = tl.evolve(
        system,
        tl.Schedule([*training.phases[:1], tl.RidgeRegression(0.1)], [0.5]),
        tl.DirectSGD(),
        until=1.5,
        replicas=4,
    )
    np.testing.assert_allclose(runs.a.values[:, -1], population.a.values[:, -1], atol=0.5)
    assert np.all(runs.a.values[:, -1] != population.a.values[:, -1])


def test_a_fit_is_one_step_and_one_unit_of_time():
    system = problem()
    clock = tl.Schedule([tl.SGD(1.0), tl.RidgeRegression(0.1, samples=50)], [2.0]).clock(system)
    np.testing.assert_array_equal(clock.steps([0.0, 2.0, 3.0, 5.0]), [0, 1200, 1201, 1203])
    np.testing.assert_array_equal(clock.samples([1200, 1201, 1203]), [1200, 1250, 1350])
    runs = tl.evolve(system, tl.Schedule([tl.RidgeRegression(0.1, 50)]), tl.OverlapSGD(), until=3.0, save="linear:4")
    assert len({tuple(row) for row in runs.a.values[0]}) == 4  # every step is a fit on samples of its own
    again = tl.evolve(system, tl.Schedule([tl.RidgeRegression(0.1, 50)]), tl.OverlapSGD(), until=3.0, save=[3.0])
    np.testing.assert_array_equal(again.a.values[0, -1], runs.a.values[0, -1])


def test_what_cannot_fit_says_so():
    system, training = problem(), tl.Schedule([tl.SGD(0.01), tl.RidgeRegression(0.1)], [1.0])
    rows = {row.description: row for row in tl.explain(system, training).descriptions}
    for name in ("MeanField", "HDMF"):
        assert not rows[name].applies and "closed form" in rows[name].statement
    assert "ridge regression of the second layer on the population" in rows["SaadSolla"].statement
    with pytest.raises(tl.NotApplicable, match=r"`HDMF` does not apply: phase 2: .*closed form"):
        tl.evolve(system, training, tl.HDMF(), until=2.0)
    with pytest.raises(tl.NotApplicable, match="phases differ in more"):
        tl.derive(system, training)
    with pytest.raises(tl.InvalidInput, match="`penalty` must be a finite number at least 0"):
        tl.RidgeRegression(-1.0)
    with pytest.raises(tl.InvalidInput, match="at the end where samples are reused"):
        tl.Schedule([tl.RidgeRegression(0.1), tl.SGD(0.5, reuse=tl.Reused(2.0))], [1.0])


def test_files_hold_a_fit(tmp_path):
    training = tl.Schedule([tl.SGD(2.0, batch_size=400), tl.RidgeRegression(0.01, samples=400)], [4.0])
    assert from_json(to_json(training), tl.Schedule) == training
    spec = parse_spec(
        """
        [problem]
        target = { kind = "Committee", k = 2, activation = "erf" }
        student = { p = 3, activation = "erf" }
        inputs = { kind = "Gaussian", d = 200 }
        [training]
        switches = [4.0]
        [[training.phases]]
        learning_rate = 2.0
        batch_size = 400
        [[training.phases]]
        kind = "RidgeRegression"
        penalty = 0.01
        samples = 400
        [run]
        descriptions = ["OverlapSGD", "BatchMap"]
        until = 5.0
        """
    )
    assert spec.training == training
