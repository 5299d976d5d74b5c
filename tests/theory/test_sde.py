"""The SDE and the central limit theorem against the overlap process at growing d, closed solutions and invariants."""

import re
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from tests import systems
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.description import Watch
from twolayer.expectation import MOMENTS, Auto, increment_covariance
from twolayer.problem import Overlaps
from twolayer.specification.fields import as_data
from twolayer.theory.linear_noise import _barycentric, _chebyshev, _derivatives_at, _System
from twolayer.theory.motion import paths
from twolayer.theory.motion.drift import Change, pack
from twolayer.theory.motion.increments import corrections
from twolayer.theory.motion.integrate import solve

GAMMA, NOISE = 0.06, 0.2
SPHERE = tl.SGD(GAMMA, constraint=tl.Sphere())


def phase_retrieval(d: int, m: float = 0.5) -> tl.Problem:
    return systems.phase_retrieval(m, d=d, noise=NOISE)


def exact_overlap(m: float, t: float) -> float:
    return float(np.sqrt(systems.squared_overlap(m, GAMMA, NOISE, t)))


def at_end(problem, training, description, until: float, replicas: int) -> np.ndarray:
    """a, M and the pairs of Q at the end, one row for each replica."""
    run = tl.evolve(problem, training, description, until=until, save=[until], replicas=replicas)
    Q = run.Q.values[:, -1][:, *np.triu_indices(problem.p)]
    return np.concatenate([run.a.values[:, -1], run.M.values[:, -1].reshape(replicas, -1), Q], axis=1)


# ------------------------------------------------------------------------------------ against the overlap process


@pytest.mark.long
def test_mean_and_variance_agree_at_growing_d():
    """Phase retrieval on the sphere, 10^5 runs of each description at d = 40 and 160.

    Without corrections the mean is off at order 1/d, with them by a tenth of that at most; the variance is right up to
    a part of order 1/d. So it is with the mean and the variance of the central limit theorem.
    """
    replicas, sizes = 100_000, np.array([40, 160])
    theorem = tl.fluctuations(phase_retrieval(100), SPHERE, [0.0, 0.3])
    mean, shift = float(theorem.limit[-1, 1]), float(theorem["shift"][-1, 1])
    variance = float(theorem.covariance[-1, 1, 1])
    means, variances, error = [], [], []
    for d in sizes:
        plain, corrected = tl.SDE(dt=0.01), tl.SDE(dt=0.01, corrections=True)
        runs = [
            at_end(phase_retrieval(int(d)), SPHERE, description, 0.3, replicas)[:, 1]
            for description in (tl.OverlapSGD(), plain, corrected)
        ]
        exact = runs[0]
        means.append([abs(exact.mean() - x) for x in (runs[1].mean(), runs[2].mean(), mean, mean + shift / d)])
        variances.append([abs(exact.var() / x - 1.0) for x in (runs[2].var(), variance / d)])
        error.append(np.sqrt((exact.var() + runs[2].var()) / replicas))
    order = np.log(np.array(means[1]) / means[0]) / np.log(4)
    np.testing.assert_allclose(order[[0, 2]], -1.0, atol=0.15)
    assert np.all(np.array(means[0])[[1, 3]] < 0.25 * means[0][0])
    assert np.all(np.array(means[1])[[1, 3]] < 5 * error[1] + 0.1 * means[1][0]) and 5 * error[1] < 0.3 * means[1][0]
    np.testing.assert_allclose(np.log(np.array(variances[1]) / variances[0]) / np.log(4), -1.0, atol=0.35)


@pytest.mark.long
def test_every_covariance_agrees_and_cross_terms_matter(monkeypatch):
    """Both layers, free, weight decay, d = 1000: all means and covariances of a, M and Q against the exact process.

    With the covariances between entries left out, the law is another one by many standard errors.
    """
    problem, training = phase_retrieval(1000), tl.SGD(0.1, layers=tl.Both(0.5), weight_decay=0.2)
    exact = at_end(problem, training, tl.OverlapSGD(), 0.15, 5000)

    def scores(found):
        centre = exact.mean(axis=0)
        z = []
        for f in (lambda x: x, lambda x: ((x - centre)[:, :, None] * (x - centre)[:, None, :]).reshape(len(x), -1)):
            size = np.sqrt((f(exact).var(axis=0) + f(found).var(axis=0)) / len(exact))
            z.append((f(exact).mean(axis=0) - f(found).mean(axis=0)) / size)
        return np.abs(np.concatenate(z))

    # At d = 1000 the errors of order 1/d of means and covariances are within the statistical errors of 5000 runs.
    description = tl.SDE(dt=0.005)
    assert np.max(scores(at_end(problem, training, description, 0.15, 5000))) < 5
    whole = paths.sample_covariance
    monkeypatch.setattr(paths, "sample_covariance", lambda *given: jnp.diag(jnp.diagonal(whole(*given))))
    assert np.max(scores(at_end(problem, training, description, 0.15, 5000))) > 10


@pytest.mark.long
@pytest.mark.long
def test_noise_from_samples_has_the_law_of_sgd(check_same_law):
    """An erf student, whose covariance is no formula: 32 fresh samples a step, at d = 300; 512 paths, 64 at a time."""
    start = tl.GivenOverlaps([[0.8]], [[0.3]])
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(1, "erf"), tl.Gaussian(300), start=start, noise=0.1)
    training = tl.SGD(2.0)
    exact = at_end(problem, training, tl.OverlapSGD(), 2.0, 4000)[:, 1:]
    runs = [
        tl.evolve(problem, training, tl.SDE(dt=0.05), until=2.0, save=[2.0], replicas=64, seed=seed)
        for seed in range(8)
    ]
    assert "xla" in runs[0].attrs["engine"]
    found = np.concatenate([np.stack([r.M.values[:, -1, 0, 0], r.Q.values[:, -1, 0, 0]], axis=1) for r in runs])
    check_same_law(exact, found)
    np.testing.assert_allclose(found.std(axis=0), exact.std(axis=0), rtol=0.15)  # a deviation from 512 is known to 3%


@pytest.mark.parametrize("constraint", [tl.Free(), tl.Sphere()])
def test_noise_from_samples_has_the_covariance_of_the_formula(constraint):
    """Two neurons, two directions, both layers: 40,000 draws of two samples against the closed form; z < 5."""
    A = np.random.default_rng(0).standard_normal((4, 5)) / 2
    omega = A @ A.T
    Q, M, P, a = omega[:2, :2], omega[:2, 2:], omega[2:, 2:], np.array([1.0, -0.6])
    target = tl.Committee(2, "square", P=P)
    problem = as_data(tl.Problem(target, tl.Student(2, "square", a), tl.Gaussian(50), noise=0.3))
    training = as_data(tl.SGD(0.3, constraint=constraint, layers=tl.Both(0.7)))
    engine = Auto().choose(problem, (*MOMENTS, "covariance")).variants()[0]
    overlaps = Overlaps(*(jnp.asarray(x) for x in (Q, M, P, a)))
    setting = (problem, training, engine, Watch(False, False))
    sampled, gaussian = (paths.PathSetting.of(setting, overlaps, "heun", False, samples) for samples in (2, 0))

    @eqx.filter_jit
    def both(overlaps, normals):
        moments = engine.moments(problem, overlaps)
        factor = paths.positive(sampled, overlaps.Q, overlaps.M, jnp.sqrt(jnp.diagonal(overlaps.Q)))[2]
        unit = jax.vmap(lambda g: pack(paths.noise(sampled, overlaps, moments, factor, g)[0]))(normals)
        basis = jnp.eye(gaussian.numbers)[:, None, :]
        columns = jax.vmap(lambda e: pack(paths.noise(gaussian, overlaps, moments, factor, e)[0]))(basis)
        return unit, columns.T @ columns

    normals = np.random.default_rng(1).standard_normal((40_000, 2, sampled.numbers))
    unit, covariance = (np.asarray(x) for x in both(overlaps, jnp.asarray(normals)))
    assert np.max(np.abs(unit.mean(axis=0)) / (unit.std(axis=0) / 200 + 1e-12)) < 5
    products = unit[:, :, None] * unit[:, None, :]
    z = (products.mean(axis=0) - covariance) / (products.std(axis=0) / 200 + 1e-12)
    assert np.max(np.abs(z)) < 5
    assert np.max(np.abs(covariance - np.diag(np.diagonal(covariance)))) > 1.0  # with cross terms
    if training.is_spherical:
        assert np.max(np.abs(unit[:, [6, 8]])) == 0.0  # lengths


# -------------------------------------------------------------------------------------------- the order in dt


@pytest.mark.parametrize(("method", "order"), [("heun", 2), pytest.param("euler", 1, marks=pytest.mark.long)])
def test_the_order_of_the_step(method, order):
    """At d = 10^10 hardly anything but the drift is left, whose solution is closed: halve the step, watch the error."""
    errors = []
    for dt in (0.05, 0.025, 0.0125):
        m = at_end(phase_retrieval(10**10), SPHERE, tl.SDE(dt=dt, method=method), 0.3, 64)[:, 1]
        errors.append(abs(m.mean() - exact_overlap(0.5, 0.3)))
    found = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(found, order, atol=0.2)


@pytest.mark.long
def test_the_variance_is_of_second_order_too():
    """d Var at a step of 0.0375 is that of the central limit theorem to a percent; Euler's is ten times further off."""
    expected = float(tl.fluctuations(phase_retrieval(100), SPHERE, [0.0, 0.3]).covariance[-1, 1, 1])
    found = {
        method: 10**6
        * at_end(phase_retrieval(10**6), SPHERE, tl.SDE(dt=0.0375, method=method), 0.3, 200_000)[:, 1].var()
        for method in ("heun", "euler")
    }
    # The statistical error of a variance from 10^5 paths is 0.4%.
    assert abs(found["heun"] / expected - 1) < 0.02
    assert abs(found["euler"] / expected - 1) > 0.1


def test_the_step_is_chosen_and_the_error_reported():
    """The automatic step brings the drift to within a thousandth of the scatter; the reported error covers it."""
    d = 10**4
    run = tl.evolve(phase_retrieval(d), SPHERE, tl.SDE(), until=1.0, save=[0.3, 1.0], replicas=64)
    dt = float(run.attrs["engine"].split("dt = ")[1].split(";")[0])
    bare = tl.evolve(phase_retrieval(10**10), SPHERE, tl.SDE(dt=dt), until=1.0, save=[0.3, 1.0], replicas=64)
    gap = abs(float(bare.M[:, 1, 0, 0].mean()) - exact_overlap(0.5, 0.3))
    assert gap < 2e-3 * np.sqrt(GAMMA / d)
    assert gap < float(run.overlap_error[0, 1]) < np.sqrt(GAMMA / d)
    fine = tl.evolve(phase_retrieval(d), SPHERE, tl.SDE(dt=dt / 64), until=1.0, save=[0.3, 1.0], replicas=64)
    assert "dt = " in fine.attrs["engine"] and np.all(
        fine.overlap_error.values[0, 1:] < run.overlap_error.values[0, 1:]
    )


# ------------------------------------------------------------------------------------ the central limit theorem


def test_fluctuations_of_phase_retrieval(tmp_path):
    """d Var and d (mean - ODE) of m, against values computed apart."""
    told = []
    result = tl.fluctuations(phase_retrieval(1000, 0.3), SPHERE, [0.0, 1.0], progress=lambda *both: told.append(both))
    fractions = [fraction for name, fraction in told if name == "fluctuations"]
    assert fractions[0] == 0.0 and fractions[-1] == 1.0 and fractions == sorted(fractions) and len(told) > 2
    m = result.sel(entry="M[0,0]", other_entry="M[0,0]").isel(time=-1)
    assert float(m.limit) == pytest.approx(exact_overlap(0.3, 1.0), abs=1e-7)
    assert abs(float(m.limit) - exact_overlap(0.3, 1.0)) < float(m.limit_error) < 1e-5
    assert float(m.covariance) == pytest.approx(0.0311, abs=5e-5)
    assert float(m["shift"]) == pytest.approx(-0.798, abs=1e-3)
    fine = tl.fluctuations(phase_retrieval(1000, 0.3), SPHERE, [0.0, 1.0], rtol=1e-11)
    for name in ("limit", "covariance", "shift"):
        assert np.all(np.abs(result[name] - fine[name]) <= result[f"{name}_error"]), name
    assert float(m.covariance_error) < 1e-5 and float(m.shift_error) < 1e-4
    again = tl.load(tl.save(result, tmp_path / "fluctuations.nc"))
    assert again.identical(result) and again.attrs["kind"] == "fluctuations" and again.time.attrs["units"]
    row = next(line for line in tl.summary(again).splitlines() if line.startswith("M[0,0]"))
    limit, scatter, shift = (float(cell.split("+-")[0]) for cell in re.split(r"  +", row)[1:])
    assert limit == pytest.approx(float(m.limit)) and shift == pytest.approx(float(m["shift"]) / 1000)
    assert scatter == pytest.approx(np.sqrt(0.0311 / 1000), rel=1e-3)


def without_tables(problem, training, times, rtol=1e-9):
    """Limit, covariance and shift with all coefficients computed at every stage of the integrator."""
    with double():
        begun = problem.draw(replica_key(0, 0))
        engine = Auto().choose(problem, (*MOMENTS, "covariance")).variants()[0]
        system = _System(*as_data((problem.without_dimension, training)), begun.P, None)

        def noise(x):
            overlaps, size = system.at(x), training.learning_rate / problem.p
            raw = engine.parts(system.problem, overlaps, ("covariance",))["covariance"]
            sigma = increment_covariance(system.problem, system.training, raw)
            small = corrections(system.problem, system.training, engine, overlaps, sigma, size)
            return size * sigma, pack(small)

        def field(t, state, args):
            x, C, shift = state
            sigma, h = noise(x)
            J = jax.jacfwd(lambda y: system.drift(engine, y))(x)
            second = jax.jacfwd(jax.jacfwd(lambda y: system.drift(engine, y)))(x)
            dC = J @ C + C @ J.T + sigma
            return system.drift(engine, x), dC, J @ shift + 0.5 * jnp.einsum("kuv,uv->k", second, C) + h

        start = pack(Change(begun.Q, begun.M, begun.a))
        state = (start, jnp.zeros((len(start), len(start))), jnp.zeros(len(start)))
        never = lambda state, args: jnp.asarray(False)  # noqa: E731
        return solve(field, state, jnp.asarray(times), None, rtol, 1e-2 * rtol, 10_000, never).states


def test_a_divergence_leaves_what_comes_before_it():
    """Free square units at a large rate: the law before they diverge is that without the times after it."""
    start = tl.GivenOverlaps([[1.0]], [[0.3]])
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(1000), start=start)
    times = [0.0, 0.001, 0.002, 1.0]
    whole, before = (tl.fluctuations(problem, tl.SGD(2.0), asked) for asked in (times, times[:-1]))
    for name in ("limit", "covariance", "shift"):
        assert np.all(np.isinf(whole[name][-1])) and np.all(np.isnan(whole[f"{name}_error"][-1]))
        np.testing.assert_array_equal(whole[name][:-1], before[name])
    assert float(whole.covariance[2, 1, 1]) > 0.1 and float(whole.covariance_error[2, 1, 1]) < 1e-9
    at_once = tl.fluctuations(problem, tl.SGD(2.0), [0.0, 1.0])
    assert np.all(at_once.covariance[0] == 0.0) and np.all(np.isinf(at_once.covariance[1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["square", pytest.param("he3", marks=pytest.mark.long)])
def test_interpolation_in_time_changes_nothing(name):
    """Within the reported errors, which are small; a free student, so that all entries move."""
    target, rate = {"square": (tl.PhaseRetrieval(), 0.05), "he3": (tl.SingleIndex("z**3 - 3*z"), 0.005)}[name]
    start = tl.GivenOverlaps([[1.0]], [[0.3]])
    problem = tl.Problem(target, tl.Student(1, name), tl.Gaussian(1000), noise=0.1, start=start)
    training, times = tl.SGD(rate), [0.0, 0.2, 0.4]
    result = tl.fluctuations(problem, training, times)
    for variable, expected in zip(
        ("limit", "covariance", "shift"), without_tables(problem, training, times), strict=True
    ):
        gap, error = np.abs(result[variable].values - expected), result[f"{variable}_error"].values
        size = 1.0 + np.max(np.abs(expected))
        assert np.all(gap <= error + 1e-8 * size) and np.max(error) < 1e-4 * size, variable
    assert "Chebyshev points in time" in result.attrs["method"]


def test_polynomials_are_interpolated_exactly_and_twice_as_many_points_contain_the_others():
    times = np.array([0.5, 1.0, 3.0])
    nodes = _chebyshev(times, 17)
    assert nodes[0] == 0.5 and nodes[-1] == 3.0
    np.testing.assert_allclose(_chebyshev(times, 33)[::2], nodes, rtol=1e-15)
    values = np.stack([nodes**9 - nodes, np.ones(17)], axis=1)
    t = np.array([0.5, 0.7, nodes[5], 3.0])
    np.testing.assert_allclose(_barycentric(nodes, t) @ values, np.stack([t**9 - t, np.ones(4)], axis=1), rtol=1e-11)


@pytest.mark.long
def test_fluctuations_of_erf_units_on_a_relu_are_those_of_the_weights():
    """Three erf units learn a relu, whose covariance of increments no formula gives: 2000 runs at d = 250.

    Deviations of the variances are of order 1/d = 0.4%, their standard error is sqrt(2 / 2000) = 3%: five of these, and
    the reported error of the theory.
    """
    start = tl.GivenOverlaps([[1.0, 0.2, 0.0], [0.2, 0.8, 0.1], [0.0, 0.1, 1.2]], [[0.3], [0.1], [-0.2]])
    problem = tl.Problem(tl.Committee(1, "relu"), tl.Student(3, "erf"), tl.Gaussian(250), noise=0.1, start=start)
    theory = tl.fluctuations(problem, tl.SGD(0.5), [0.0, 1.0]).isel(time=-1)
    runs = tl.evolve(problem, tl.SGD(0.5), tl.DirectSGD(), until=1.0, save=[1.0], replicas=2000).isel(time=-1)
    for j in range(3):
        samples = runs.M.values[:, j, 0]
        expected = float(theory.covariance.sel(entry=f"M[{j},0]", other_entry=f"M[{j},0]"))
        error = float(theory.covariance_error.sel(entry=f"M[{j},0]", other_entry=f"M[{j},0]"))
        assert abs(250.0 * samples.var(ddof=1) - expected) < 5.0 * np.sqrt(2.0 / 2000) * expected + error
        assert error < 0.1 * expected  # of randomised points, judged by their scatter
        shifted = float(theory.limit.sel(entry=f"M[{j},0]") + theory["shift"].sel(entry=f"M[{j},0]") / 250.0)
        assert abs(samples.mean() - shifted) < 5.0 * np.sqrt(expected / 250.0 / 2000)


def test_second_derivatives_are_summed_over_all_pairs():
    """One second derivative for each row of a covariance adds up to the sum over all pairs of entries."""
    problem = as_data(tl.Problem(tl.Committee(2, "square"), tl.Student(1, "square"), tl.Gaussian(50), noise=0.1))
    rng = np.random.default_rng(3)
    root, x = rng.standard_normal((4, 4)), jnp.asarray([1.0, 0.3, -0.2, 0.9])
    C = jnp.asarray(root @ root.T)
    with double():
        engine = Auto().choose(problem).variants()[0]
        system = _System(problem, as_data(tl.SGD(0.3, layers=tl.Both())), jnp.eye(2), None)
        found = _derivatives_at(engine, system, x[None], C[None])
        F = partial(system.drift, engine)
        value, slopes, second = jax.jit(lambda x: (F(x), jax.jacfwd(F)(x), jax.jacfwd(jax.jacfwd(F))(x)))(x)
    np.testing.assert_allclose(found.drift[0], value, rtol=1e-12)
    np.testing.assert_allclose(found.jacobian[0], slopes, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.curvature[0], jnp.einsum("kuv,uv->k", second, C), rtol=1e-12)


def test_time_in_steps_shifts_the_mean():
    """A linear network: the mean of m after n steps is 1 - (1 - m0)(1 - gamma/d)^n, ahead of the ODE at order 1/d."""
    gamma, m = 0.7, 0.1
    problem = tl.Problem(tl.SingleIndex("linear"), tl.Student(1, "linear"), tl.Gaussian(500), noise=0.3)
    engine = Auto(engines="Quadrature").choose(problem, (*MOMENTS, "covariance")).variants()[0]
    overlaps = Overlaps(*(jnp.asarray(x) for x in ([[0.5]], [[m]], [[1.0]], [1.0])))
    change = eqx.filter_jit(corrections)(problem, tl.SGD(gamma), engine, overlaps, jnp.zeros((3, 3)), gamma / 500)
    assert float(change.M[0, 0]) == pytest.approx(0.5 * gamma / 500 * (1 - m), rel=1e-9)


# --------------------------------------------------------------------------------------- invariants, and the rest


@pytest.mark.long
def test_same_seed_same_path_whatever_the_number_and_the_driver():
    runs = [
        tl.evolve(phase_retrieval(200), SPHERE, tl.SDE(dt=0.01, backend=backend), until=0.3, save=3, replicas=replicas)
        for backend, replicas in (("native", 8), ("native", 40), ("xla", 8))
    ]
    rows = [run.M.values[3] for run in runs]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-12)
    np.testing.assert_allclose(rows[0], rows[2], rtol=1e-9)
    assert np.ptp(runs[0].M.values[:, -1]) > 1e-3  # and paths differ
    np.testing.assert_allclose(runs[0].Q.values, 1.0, rtol=1e-13)


@pytest.mark.long
def test_overlaps_stay_positive_and_what_is_cut_off_is_counted():
    """From perfect recovery with noisy labels at small d the noise leads out of what is possible."""
    run = tl.evolve(phase_retrieval(20, 1.0), SPHERE, tl.SDE(dt=0.01), until=1.0, save=[0.1, 1.0], replicas=200)
    assert "paths cut off" in run.attrs["engine"]
    assert np.max(np.abs(run.M.values)) <= 1 + 1e-12
    far = tl.evolve(phase_retrieval(2000, 0.5), SPHERE, tl.SDE(dt=0.01), until=0.1, save=[0.1], replicas=200)
    assert "paths cut off" not in far.attrs["engine"]


def test_nothing_moves_a_student_that_is_the_teacher():
    """Where the displacement vanishes there is neither drift nor noise: Q_perp and the covariance are singular."""
    problem = as_data(tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(50)))
    training = as_data(tl.SGD(0.05, layers=tl.Both()))
    engine = Auto().choose(problem, (*MOMENTS, "covariance")).variants()[0]
    one = np.eye(1)
    made = paths.PathSetting(problem, training, engine, Watch(False, False), one, one, one, "heun", True, 0)
    path = paths.OverlapPath(*(jnp.asarray(x)[None] for x in (one, one, [1.0], 0.0, [-1.0])))
    kept = paths.Kept(*(jnp.asarray(x)[None] for x in ([1.0], [0.0, 0.0], 0.1, 0.0, 0.3)))
    words = jnp.zeros((1, 2), jnp.uint32)
    end = paths.advance_xla(made, path, kept, words, np.asarray(1), np.asarray(0), np.asarray(20))
    for found in (end.Q, end.M, end.a):
        np.testing.assert_allclose(found, np.ones_like(found), atol=1e-7)


@pytest.mark.long
def test_thresholds_are_watched_at_every_step():
    times = np.arange(1, 31) * 0.01
    problem = phase_retrieval(500)
    times = SPHERE.clock(problem).time(SPHERE.clock(problem).steps(times))
    every = tl.evolve(problem, SPHERE, tl.SDE(dt=0.005), until=times[-1], save=times, replicas=16)
    few = tl.evolve(
        problem, SPHERE, tl.SDE(dt=0.005), until=times[-1], save=times, replicas=16, risk_threshold=1.2,
        overlap_threshold=0.6,
    )  # fmt: skip
    for found, reached in (
        (few.crossing_time.values, every.excess_risk.values <= 1.2),
        (few.overlap_time.values[:, 0], np.abs(every.M.values[:, :, 0, 0]) >= 0.6),
    ):
        first = every.time.values[np.argmax(reached, axis=1)]
        assert reached.any(axis=1).all() and np.all(found <= first + 1e-9) and np.all(found > first - 0.0101)


@pytest.mark.long
def test_the_verbs_know_it():
    problem = phase_retrieval(160)
    answer = tl.SDE().applies(problem, SPHERE)
    assert answer.ok and answer.exactness.value == "limit d -> infinity, with fluctuations"
    tree = tl.compare(problem, SPHERE, [tl.OverlapSGD(), tl.SDE()], until=0.3, save=[0.1, 0.3], replicas=32)
    assert tree["SDE"].sizes["replica"] == 32 and tree.attrs["judge"] == "OverlapSGD"
    assert tree.attrs["outcome"] in ("agrees", "consistent"), tree.attrs["verdict"]


def test_what_it_does_not_describe_is_refused():
    problem = phase_retrieval(100)
    assert "momentum" in tl.SDE().applies(problem, tl.SGD(0.1, momentum=0.5)).statement
    assert "much smaller than d" in tl.SDE().applies(problem, tl.SGD(0.1, batch_size=80)).statement
    with pytest.raises(tl.InvalidInput, match="dt"):
        tl.SDE(dt=0.0)
    with pytest.raises(tl.InvalidInput, match="times"):
        tl.fluctuations(problem, SPHERE, [1.0])
    with pytest.raises(tl.InvalidInput, match="covariance"):
        tl.fluctuations(problem, SPHERE, [0.0, 1.0], covariance=np.eye(2))
    # With derivatives over points the variance of M was 0.159 in place of 0.197.
    rectified = tl.Problem(tl.Committee(1, "relu"), tl.Student(1, "relu"), tl.Gaussian(100))
    with pytest.raises(tl.NotApplicable, match="averages over points"):
        tl.fluctuations(rectified, tl.SGD(0.5), [0.0, 1.0], engine=tl.Auto(engines="Cloud"))
    with pytest.raises(tl.NotApplicable, match="fresh batches"):
        tl.fluctuations(problem, tl.SGD(0.1, reuse=tl.Reused(2.0)), [0.0, 1.0])
