"""The batch map against the overlap process, its own formula with moments and inverses, its limits and invariants."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from tests.systems import erf_committee, no_symmetry, phase_retrieval, squared_overlap, two_squares
from twolayer.expectation import Moments, choose
from twolayer.problem import AbstractLoss, Overlaps
from twolayer.theory.batch_map import NEEDED, frame_of, map_step, overlaps_of, regime


def numbers(result) -> np.ndarray:
    """M, the upper triangle of Q, and a at the last time: one row for each replica."""
    replicas, p = result.sizes["replica"], result.sizes["i"]
    Q = result.Q.values[:, -1][:, *np.triu_indices(p)]
    return np.concatenate([result.M.values[:, -1].reshape(replicas, -1), Q, result.a.values[:, -1]], axis=1)


def after(steps: int, problem, training, description, replicas: int = 1) -> np.ndarray:
    time = float(training.clock(problem).time(steps))
    return numbers(tl.evolve(problem, training, description, until=time, save=[time], replicas=replicas))


# ------------------------------------------------------------------------------------ against the overlap process


@pytest.mark.parametrize("is_free", [True, pytest.param(False, marks=pytest.mark.long)])
def test_large_batches_follow_it(is_free, check_mean):
    """d = 4000, batches of 8000, five steps, 48 runs: every entry within 5 standard errors.

    The noise term and the square of the drift are each worth more than ten of them.
    """
    if is_free:
        problem = erf_committee(d=4000, noise=0.1, start=no_symmetry())
        training = tl.SGD(0.5, batch_size=8000, layers=tl.Both(0.7), weight_decay=0.1)
    else:
        problem, training = two_squares(d=4000), tl.SGD(0.05, batch_size=8000, constraint=tl.Sphere(), momentum=0.5)
    runs = after(5, problem, training, tl.OverlapSGD(), replicas=48)
    check_mean(runs, after(5, problem, training, tl.BatchMap())[0])


@pytest.mark.slow
def test_projected_gradients_make_another_map(check_mean):
    """Four giant steps at d = 400, 64 runs: both variants of the sphere follow their own map, and not the other one."""
    problem = erf_committee(d=400, noise=0.1, start=no_symmetry())
    trainings = [tl.SGD(6.0, batch_size=800, constraint=tl.Sphere(riemannian=projects)) for projects in (False, True)]
    maps = [after(4, problem, training, tl.BatchMap())[0] for training in trainings]
    runs = [after(4, problem, training, tl.OverlapSGD(), replicas=64) for training in trainings]
    for own, sample in zip(maps, runs, strict=True):
        check_mean(sample, own)
    errors = np.std(runs, axis=1, ddof=1)[:, :4] / 8.0
    assert np.all(np.max(np.abs(maps[1] - maps[0])[:4] / errors, axis=1) > 20)


@pytest.mark.long
def test_single_runs_and_their_mean_approach_it_as_batches_grow():
    """At d = n_b / 2 a run deviates by order n_b^(-1/2), the mean of 20,000 runs by order 1/n_b."""
    scatter, shift, error = [], [], []
    batches = (160, 640)
    for n_b in batches:
        problem, training = (
            phase_retrieval(0.4, d=n_b // 2, noise=0.1),
            tl.SGD(0.05, batch_size=n_b, constraint=tl.Sphere()),
        )
        runs = after(3, problem, training, tl.OverlapSGD(), replicas=20_000)
        deviations = (runs - after(3, problem, training, tl.BatchMap()))[:, 0]
        scatter.append(np.sqrt(np.mean(deviations**2)))
        shift.append(np.abs(np.mean(deviations)))
        error.append(np.std(deviations) / np.sqrt(len(runs)))
    assert shift[1] > 10 * error[1]  # the shift is seen, so that its order can be told
    orders = [np.log(x[1] / x[0]) / np.log(batches[1] / batches[0]) for x in (scatter, shift)]
    assert orders[0] == pytest.approx(-0.5, abs=0.1)
    assert orders[1] == pytest.approx(-1.0, abs=0.15)


def test_one_step_is_the_exact_mean_at_finite_d(check_mean):
    """d = 10 and three samples: the mean of 2 10^5 single steps is that of ``finite``, and not that of the limit."""
    problem, training = two_squares(d=10), tl.SGD(0.3, batch_size=3, layers=tl.Both(0.5))
    runs = after(1, problem, training, tl.OverlapSGD(), replicas=200_000)
    check_mean(runs, after(1, problem, training, tl.BatchMap(finite=True))[0])
    with pytest.raises(AssertionError):
        check_mean(runs, after(1, problem, training, tl.BatchMap())[0])


# ------------------------------------------------------------------------------------------- against its formula


def boxed(problem, training, overlaps: Overlaps, moments: Moments):
    """The map as it is printed, with the pseudo-inverse of Omega."""
    p, n_b = problem.p, training.batch_size
    rate = float(training.learning_rate) * n_b / problem.d / p
    D = np.diag(overlaps.a)
    v = np.asarray(moments.v)
    drift = D @ moments.phi + (D @ moments.phi).T
    square = v @ np.linalg.pinv(np.asarray(overlaps.omega), rcond=1e-12, hermitian=True) @ v.T
    noise = problem.d / n_b * np.asarray(moments.phi_hd)
    Q = overlaps.Q + rate * drift + rate**2 * D @ (noise + square) @ D
    return Q, overlaps.M + rate * D @ moments.psi, overlaps.a + training.layer_ratio * rate * moments.chi


P = np.array([[1.0, 0.3], [0.3, 1.5]])
IN_SPAN = np.array([[0.5, 1.0], [-0.2, 0.3]])
STARTS = {
    "generic": (np.array(no_symmetry().Q), np.array(no_symmetry().M)),
    "inside the target's span": (IN_SPAN @ P @ IN_SPAN.T, IN_SPAN @ P),
    "two neurons alike": (np.full((2, 2), 0.9), np.tile([[0.3, 0.1]], (2, 1))),
    "perfect recovery": (P, P),
}


@pytest.mark.parametrize(
    "target", [tl.Committee(2, "erf", P=P), tl.MultiIndex("tanh(z1) + z1*z2", k=2)], ids=["committee", "multi-index"]
)
def test_a_step_is_the_printed_formula_at_any_overlaps(target):
    """The risk's gradient and the squares of factors against moments and a pseudo-inverse, singular Omega included."""
    a, training = np.array([1.0, -0.7]), tl.SGD(0.8, batch_size=30, layers=tl.Both(0.6))
    start = tl.GivenOverlaps(*STARTS["generic"], P)
    problem = tl.Problem(target, tl.Student(2, "erf", a), tl.Gaussian(20), start=start, noise=0.2)
    chosen = choose(problem)
    engine = choose(problem, NEEDED).variants()[0]
    moments = eqx.filter_jit(chosen.moments)
    # The rule for a multi-index target is good to 1e-9 in the forces; closed forms are exact.
    tolerance = 1e-12 if target.units is not None else 1e-7

    @eqx.filter_jit
    def step(overlaps):
        frame = frame_of(overlaps, training)
        found, risk = map_step(problem, training, engine, overlaps.P, jnp.ones(2), frame)
        return overlaps_of(found, overlaps.P), risk

    for name, (Q, M) in STARTS.items():
        overlaps = Overlaps(*(jnp.asarray(x) for x in (Q, M, P, a)))
        averages = moments(problem, overlaps)
        found, risk = step(overlaps)
        expected = boxed(problem, training, overlaps, averages)
        for value, other in zip((found.Q, found.M, found.a), expected, strict=True):
            np.testing.assert_allclose(value, other, atol=tolerance, err_msg=name)
        assert float(risk) == pytest.approx(float(averages.excess_risk), abs=1e-12)


# ---------------------------------------------------------------------------------------------------- its limits


@pytest.mark.parametrize("projects", [False, True])
def test_small_batches_are_the_ode_in_steps(projects):
    """At d / n_b to infinity and given gamma the map approaches the ODE, whose solution is known, at order n_b / d.

    The ODE is the same whether gradients are projected or not.
    """
    gaps = []
    for d in (100, 400):
        problem = phase_retrieval(0.3, d=d, noise=0.1)
        training = tl.SGD(0.1, constraint=tl.Sphere(riemannian=projects))
        run = tl.evolve(problem, training, tl.BatchMap(), until=0.6, save=[0.6])
        gaps.append(abs(run.M.values.item(-1) ** 2 - squared_overlap(0.3, 0.1, 0.1, 0.6)))
    assert gaps[0] > 1e-4
    assert np.log(gaps[1] / gaps[0]) / np.log(4) == pytest.approx(-1.0, abs=0.05)


def test_huge_batches_are_gradient_descent_on_the_risk():
    """d / n_b to zero: explicit weights in three dimensions, in NumPy, with the force of squares by hand."""
    d, rate, steps = 10, 0.05, 12
    W, W_star = np.array([[0.4, 0.916, 0.0], [-0.2, 0.19, 0.96]]), np.array([[1.0, 0.0, 0.0]])
    start = tl.GivenOverlaps(W @ W.T, W @ W_star.T)
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(d), start=start, noise=0.3)
    n_b = 10**14
    found = after(steps, problem, tl.SGD(rate * d / n_b, batch_size=n_b), tl.BatchMap())[0]
    for _ in range(steps):
        rows, weights = np.concatenate([W, W_star]), np.array([-0.5, -0.5, 1.0])
        # E[eps lam_j z] = tau_1 w_j + 2 sum_u D_u (w_j . w_u) w_u for eps = sum_u D_u l_u^2
        tau = np.sum(weights * np.sum(rows**2, axis=1))
        W = W + rate / 2 * 2 * (tau * W + 2 * (W @ rows.T * weights) @ rows)
    expected = np.concatenate([(W @ W_star.T).ravel(), (W @ W.T)[np.triu_indices(2)], np.ones(2)])
    np.testing.assert_allclose(found, expected, atol=1e-11)


# ------------------------------------------------------------------------------------------------ its invariants


@pytest.mark.parametrize("activation", ["erf", "square"])
def test_a_student_that_is_the_teacher_stays(activation):
    """Q_perp is exactly singular, for batches of any size, on the sphere as well."""
    start = tl.GivenOverlaps(np.eye(2), np.eye(2))
    problem = tl.Problem(tl.Committee(2, activation), tl.Student(2, activation), tl.Gaussian(50), start=start)
    # Giant steps on squares would not be stable, and the error would say so.
    rate = 0.5 if activation == "erf" else 0.05
    run = tl.evolve(problem, tl.SGD(rate, batch_size=100), tl.BatchMap(), until=20.0, save=3)
    np.testing.assert_allclose(run.Q.values[0], np.broadcast_to(np.eye(2), (3, 2, 2)), atol=1e-12)
    np.testing.assert_allclose(run.M.values[0], np.broadcast_to(np.eye(2), (3, 2, 2)), atol=1e-12)
    assert np.max(run.excess_risk.values) < 1e-12 and np.max(run.overlap_error.values) < 1e-10


def test_permuting_neurons_commutes_with_it_and_overlaps_stay_positive():
    order = [1, 0]
    Q, M = np.array(no_symmetry().Q), np.array(no_symmetry().M)
    training = tl.SGD(1.0, batch_size=40, constraint=tl.Sphere())
    one = tl.evolve(erf_committee(d=20, noise=0.1, start=no_symmetry()), training, tl.BatchMap(), until=30.0, save=4)
    swapped = erf_committee(d=20, noise=0.1, start=tl.GivenOverlaps(Q[np.ix_(order, order)], M[order]))
    other = tl.evolve(swapped, training, tl.BatchMap(), until=30.0, save=4)
    np.testing.assert_allclose(other.Q.values, one.Q.values[:, :, order][:, :, :, order], atol=1e-10)
    np.testing.assert_allclose(other.M.values, one.M.values[:, :, order], atol=1e-10)
    np.testing.assert_allclose(np.diagonal(one.Q.values[0], axis1=1, axis2=2), np.tile([1.0, 0.8], (4, 1)), rtol=1e-13)
    assert np.linalg.eigvalsh(one.Q.values - one.M.values @ np.swapaxes(one.M.values, -1, -2)).min() > -1e-13


def test_crossing_and_divergence_are_found_at_the_very_step():
    problem, training = phase_retrieval(0.3, d=100, noise=0.1), tl.SGD(0.1, batch_size=10, constraint=tl.Sphere())
    times = training.clock(problem).time(np.arange(1, 101))
    every = tl.evolve(problem, training, tl.BatchMap(), until=times[-1], save=times)
    threshold = 0.5 * float(every.excess_risk[0, 0])
    few = tl.evolve(
        problem, training, tl.BatchMap(), until=times[-1], save=2, risk_threshold=threshold, overlap_threshold=0.6
    )
    reached = np.argmax(np.max(np.abs(every.M.values[0, :, :, 0]), axis=1) >= 0.6)
    assert float(few.overlap_time[0, 0]) == pytest.approx(float(every.time[reached]), rel=1e-12) and reached > 5
    first = np.argmax(every.excess_risk.values[0] <= threshold)
    assert 10 < first < 90
    assert float(few.crossing_time[0]) == pytest.approx(float(every.time[first]), rel=1e-12)
    last = tl.evolve(problem, training, tl.BatchMap(), until=times[first - 1], save=2, risk_threshold=threshold)
    assert float(last.crossing_time[0]) == pytest.approx(float(every.time[first]), rel=1e-12)
    with pytest.raises(tl.ComputationFailed, match=r"BatchMap.*grew without bound"):
        tl.evolve(problem, tl.SGD(20.0, batch_size=10), tl.BatchMap(), until=40.0, save=20)


@pytest.mark.long
def test_the_error_of_the_moments_is_carried():
    """Mixtures of few terms for tanh, against those of many: the difference is within what they report."""

    def run(rtol):
        start = tl.GivenOverlaps([[0.8]], [[0.2]])
        problem = tl.Problem(tl.Committee(1, "tanh"), tl.Student(1, "tanh"), tl.Gaussian(50), start=start, noise=0.1)
        return tl.evolve(
            problem, tl.SGD(2.0, batch_size=50), tl.BatchMap(engine=tl.Auto(rtol=rtol)), until=40.0, save=6
        )

    coarse, fine = run(1e-4), run(1e-8)
    gap = np.max(np.abs(coarse.M.values - fine.M.values))
    assert 1e-9 < gap < 1e-2
    bound = coarse.overlap_error.values + fine.overlap_error.values
    for name in ("M", "Q"):
        assert np.all(np.abs(coarse[name].values - fine[name].values)[..., 0, 0] <= bound)
    assert np.all(np.abs(coarse.risk.values - fine.risk.values) <= coarse.risk_error.values + fine.risk_error.values)


# ------------------------------------------------------------------------------------------------- what it covers


@pytest.mark.long
def test_the_verbs_know_it():
    problem, training = two_squares(d=400), tl.SGD(0.1, batch_size=800, constraint=tl.Sphere())
    answer = tl.BatchMap().applies(problem, training)
    assert answer.ok and answer.exactness.value == "limit n_b -> infinity" and "giant batch" in answer.statement
    tree = tl.compare(problem, training, [tl.OverlapSGD(), tl.BatchMap()], until=0.5, save=3, replicas=16)
    assert tree.attrs["judge"] == "OverlapSGD" and tree["BatchMap"].sizes["replica"] == 1
    assert tree.attrs["outcome"] in ("agrees", "consistent"), tree.attrs["verdict"]


@pytest.mark.parametrize(
    ("gamma", "n_b", "words"),
    [
        (1.0, 1, "online"),
        (0.01, 1, "gradient flow"),
        (100.0, 1, "noise dominated"),
        (1.0, 1000, "giant batch"),
        (0.01, 10**6, "population"),
        (1e-6, 10**6, "gradient flow"),
    ],
)
def test_the_regime_is_named(gamma, n_b, words):
    assert words in regime(erf_committee(d=1000), tl.SGD(gamma, batch_size=n_b))


def test_what_it_does_not_describe_is_refused():
    class Quartic(AbstractLoss):
        def __call__(self, y, s):
            return (y - s) ** 4

    with pytest.raises(tl.NotApplicable, match="fresh batches"):
        tl.evolve(erf_committee(d=50), tl.SGD(0.5, reuse=tl.Reused(2.0)), tl.BatchMap(), until=2.0)
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(100), loss=Quartic())
    assert tl.BatchMap().applies(problem, tl.SGD(1.0)).ok
    assert "square loss" in tl.BatchMap(finite=True).applies(problem, tl.SGD(1.0)).statement
    problem, training = erf_committee(d=50), tl.SGD(1.0, constraint=tl.Sphere(riemannian=True))
    assert tl.BatchMap().applies(problem, training).ok
    assert "not projected" in tl.BatchMap(finite=True).applies(problem, training).statement
    assert tl.SDE().applies(problem, training).ok
    assert "not projected" in tl.SDE(corrections=True).applies(problem, training).statement
    with pytest.raises(tl.NotApplicable, match="not projected"):
        tl.fluctuations(problem, training, [0.0, 1.0])
