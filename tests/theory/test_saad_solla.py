"""The ODE against problems with a known solution, an independent NumPy solution, and its own invariants."""

import numpy as np
import pytest
import xarray as xr
from scipy.integrate import solve_ivp

import twolayer as tl
from tests.systems import erf_committee, linear, linear_overlaps, phase_retrieval, squared_overlap, time_to_overlap
from twolayer.problem import AbstractLoss


@pytest.mark.parametrize(
    ("m0", "gamma", "noise"),
    [(0.03, 1 / 12, 0.0), (0.05, 0.05, 0.2), pytest.param(0.3, 0.12, 0.5, marks=pytest.mark.long)],
)
def test_phase_retrieval_follows_its_closed_solution(m0, gamma, noise):
    result = tl.evolve(
        phase_retrieval(m0, noise=noise), tl.SGD(gamma, constraint=tl.Sphere()), tl.SaadSolla(), until=4.0, save=40
    )
    exact = squared_overlap(m0, gamma, noise, result.time.values)
    assert np.max(np.abs(result.M.values[0, :, 0, 0] ** 2 - exact)) < 1e-9
    assert np.max(np.abs(result.excess_risk.values[0] - 2 * (1 - exact))) < 1e-8
    assert np.max(np.abs(result.Q.values[0, :, 0, 0] - 1.0)) < 1e-12


@pytest.mark.parametrize("rtol", [1e-3, 1e-5, 1e-7])
def test_reported_error_covers_the_true_one(rtol):
    result = tl.evolve(
        phase_retrieval(0.03, noise=0.1),
        tl.SGD(0.05, constraint=tl.Sphere()),
        tl.SaadSolla(rtol=rtol, atol=rtol / 100),
        until=3.0,
        save=4,
    )
    exact = np.sqrt(squared_overlap(0.03, 0.05, 0.1, result.time.values))
    assert np.all(np.abs(result.M.values[0, :, 0, 0] - exact) <= result.overlap_error.values[0])
    assert np.all(np.abs(result.excess_risk.values[0] - 2 * (1 - exact**2)) <= result.risk_error.values[0])


def test_crossing_time_is_the_root():
    m0, gamma, noise, threshold = 0.05, 0.05, 0.2, 0.5
    result = tl.evolve(
        phase_retrieval(m0, noise=noise),
        tl.SGD(gamma, constraint=tl.Sphere()),
        tl.SaadSolla(),
        until=3.0,
        save=5,
        risk_threshold=threshold,
    )
    exact = time_to_overlap(m0, np.sqrt(1 - threshold / 2), gamma, noise)
    assert result.crossing_time.values[0] == pytest.approx(exact, abs=1e-8)


@pytest.mark.long
def test_crossing_time_is_missing_when_the_risk_stays_above():
    result = tl.evolve(
        phase_retrieval(0.05, noise=0.2), tl.SGD(0.05), tl.SaadSolla(), until=0.1, save=3, risk_threshold=1e-6
    )
    assert np.isnan(result.crossing_time.values[0])


def test_linear_student_follows_the_matrix_exponential():
    """Student and target linear, p = k = 1: with weight decay the equations are linear, x' = A x + b."""
    gamma, noise, decay, q0, m0 = 0.7, 0.3, 0.2, 0.5, 0.1
    problem, training = linear(q0, m0, noise=noise), tl.SGD(gamma, weight_decay=decay)
    result = tl.evolve(problem, training, tl.SaadSolla(), until=3.0, save=10)
    exact = linear_overlaps(q0, m0, gamma, noise, decay, result.time.values)
    np.testing.assert_allclose(result.M.values[0, :, 0, 0], exact[:, 0], atol=1e-9)
    np.testing.assert_allclose(result.Q.values[0, :, 0, 0], exact[:, 1], atol=1e-9)


def classical_erf_drift(
    t: float, x: np.ndarray, p: int, k: int, T: np.ndarray, gamma: float, noise: float, kappa: float
):
    """The equations of the soft committee machine with loops and the classical form of I4.

    Another route to the same.
    """
    n = p + k
    Q, M, a = x[: p * p].reshape(p, p), x[p * p : p * p + p * k].reshape(p, k), x[p * p + p * k :]
    C = np.block([[Q, M], [M.T, T]])
    c = np.concatenate([-a / p, np.ones(k) / k])

    def I2(u, w):
        return 2 / np.pi * np.arcsin(C[u, w] / np.sqrt((1 + C[u, u]) * (1 + C[w, w])))

    def I3(j, u, w):
        L3 = (1 + C[j, j]) * (1 + C[w, w]) - C[j, w] ** 2
        return 2 / np.pi / np.sqrt(L3) * (C[u, w] * (1 + C[j, j]) - C[j, u] * C[j, w]) / (1 + C[j, j])

    def I4(j, l, u, w):
        L4 = (1 + C[j, j]) * (1 + C[l, l]) - C[j, l] ** 2
        L0 = (
            L4 * C[u, w]
            - C[l, u] * C[l, w] * (1 + C[j, j])
            - C[j, u] * C[j, w] * (1 + C[l, l])
            + C[j, l] * C[j, u] * C[l, w]
            + C[j, l] * C[j, w] * C[l, u]
        )
        L1 = L4 * (1 + C[u, u]) - C[l, u] ** 2 * (1 + C[j, j]) - C[j, u] ** 2 * (1 + C[l, l])
        L1 += 2 * C[j, l] * C[j, u] * C[l, u]
        L2 = L4 * (1 + C[w, w]) - C[l, w] ** 2 * (1 + C[j, j]) - C[j, w] ** 2 * (1 + C[l, l])
        L2 += 2 * C[j, l] * C[j, w] * C[l, w]
        return 4 / np.pi**2 / np.sqrt(L4) * np.arcsin(L0 / np.sqrt(L1 * L2))

    dQ, dM, da = np.zeros((p, p)), np.zeros((p, k)), np.zeros(p)
    for j in range(p):
        da[j] = kappa * sum(c[w] * I2(j, w) for w in range(n))
        for r in range(k):
            dM[j, r] = a[j] * sum(c[w] * I3(j, p + r, w) for w in range(n))
        for l in range(p):
            dQ[j, l] = a[j] * sum(c[w] * I3(j, l, w) for w in range(n)) + a[l] * sum(
                c[w] * I3(l, j, w) for w in range(n)
            )
            hd = sum(c[u] * c[w] * I4(j, l, u, w) for u in range(n) for w in range(n))
            hd += noise * 2 / np.pi / np.sqrt((1 + C[j, j]) * (1 + C[l, l]) - C[j, l] ** 2)
            dQ[j, l] += gamma / p * a[j] * a[l] * hd
    return np.concatenate([dQ.ravel(), dM.ravel(), da])


@pytest.mark.parametrize("kappa", [pytest.param(0.0, marks=pytest.mark.long), 0.8])
def test_erf_committee_follows_an_independent_solution(kappa):
    p, k, gamma, noise = 3, 2, 1.5, 0.1
    T = np.array([[1.0, 0.3], [0.3, 1.5]])
    problem = tl.Problem(tl.Committee(k, "erf", P=T), tl.Student(p, "erf"), tl.Gaussian(50), noise=noise)
    training = tl.SGD(gamma, layers=tl.Both(kappa) if kappa else tl.First())
    result = tl.evolve(problem, training, tl.SaadSolla(), until=4.0, save=5, seed=3)
    first = result.isel(replica=0, time=0)
    x0 = np.concatenate([first.Q.values.ravel(), first.M.values.ravel(), first.a.values])
    solution = solve_ivp(
        classical_erf_drift,
        (0, result.time.values[-1]),
        x0,
        "DOP853",
        result.time.values,
        rtol=1e-10,
        atol=1e-12,
        args=(p, k, T, gamma, noise, kappa),
    )
    last = result.isel(replica=0)
    ours = np.concatenate([last.Q.values.reshape(5, -1), last.M.values.reshape(5, -1), last.a.values], axis=1)
    # Two solvers at 1e-10 per step, a few hundred steps.
    np.testing.assert_allclose(ours, solution.y.T, atol=1e-8)


@pytest.mark.long
def test_gradient_flow_lowers_the_risk():
    """Without the variance term the risk never rises, with the second layer trained as well."""
    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(3, "erf", "gaussian"), tl.Gaussian(60), noise=0.4)
    result = tl.evolve(
        problem, tl.SGD(5.0, layers=tl.Both()), tl.SaadSolla(variance=False), until=20.0, save=60, replicas=4
    )
    assert np.all(np.diff(result.risk.values, axis=1) <= 1e-12)
    with_variance = tl.evolve(problem, tl.SGD(5.0, layers=tl.Both()), tl.SaadSolla(), until=20.0, save=60, replicas=4)
    # The noise of SGD keeps the student away from the minimum: the variance term is there, and positive.
    assert np.all(with_variance.risk.values[:, -1] > result.risk.values[:, -1] + 1e-3)


@pytest.mark.parametrize(
    "activation", ["erf", pytest.param("square", marks=pytest.mark.long), pytest.param("tanh", marks=pytest.mark.long)]
)
def test_a_student_that_is_the_teacher_stays(activation):
    """Perfect recovery: Q_perp is exactly singular, and nothing moves. For tanh to the accuracy of the rule."""
    k = 1 if activation == "tanh" else 2
    start = tl.GivenOverlaps(np.eye(k), np.eye(k))
    problem = tl.Problem(tl.Committee(k, activation), tl.Student(k, activation), tl.Gaussian(50), start=start)
    result = tl.evolve(problem, tl.SGD(0.5), tl.SaadSolla(), until=3.0, save=4)
    np.testing.assert_allclose(result.Q.values[0], np.broadcast_to(np.eye(k), (4, k, k)), atol=1e-12)
    assert np.max(result.excess_risk.values) < 1e-14


@pytest.mark.long
def test_sphere_keeps_the_initial_lengths():
    start = tl.RandomStart(law="gaussian", norm=1.3)
    problem = erf_committee(3, d=40, start=start, noise=0.1)
    result = tl.evolve(problem, tl.SGD(1.0, constraint=tl.Sphere()), tl.SaadSolla(), until=5.0, save=6)
    lengths = np.diagonal(result.Q.values[0], axis1=1, axis2=2)
    assert np.ptp(lengths[0]) > 0.05
    np.testing.assert_allclose(lengths, np.broadcast_to(lengths[0], lengths.shape), rtol=1e-11)
    omega = np.block([[result.Q.values[0, -1], result.M.values[0, -1]], [result.M.values[0, -1].T, np.eye(2)]])
    assert np.linalg.eigvalsh(omega).min() > -1e-12


def test_permuting_neurons_and_flipping_odd_ones_commutes_with_the_dynamics():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((5, 8)) / np.sqrt(8)
    omega = A @ A.T
    Q, M = omega[:3, :3], omega[:3, 3:]
    P = omega[3:, 3:]
    order, signs = [2, 0, 1], np.array([1.0, -1.0, 1.0])
    a = np.array([0.5, 1.0, 2.0])

    def final(Q, M, a):
        problem = tl.Problem(
            tl.Committee(2, "erf", P=P),
            tl.Student(3, "erf", a),
            tl.Gaussian(50),
            start=tl.GivenOverlaps(Q, M),
            noise=0.1,
        )
        result = tl.evolve(problem, tl.SGD(1.0), tl.SaadSolla(), until=2.0, save=2).isel(replica=0, time=-1)
        return result.Q.values, result.M.values

    Q1, M1 = final(Q, M, a)
    Q2, M2 = final((signs[:, None] * Q * signs)[np.ix_(order, order)], (signs[:, None] * M)[order], (signs * a)[order])
    np.testing.assert_allclose(Q2, (signs[:, None] * Q1 * signs)[np.ix_(order, order)], atol=1e-10)
    np.testing.assert_allclose(M2, (signs[:, None] * M1)[order], atol=1e-10)


def test_divergence_is_a_status_with_its_time():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(100))
    with pytest.raises(tl.ComputationFailed, match=r"SaadSolla.*time") as failure:
        tl.evolve(problem, tl.SGD(20.0), tl.SaadSolla(), until=1.0, save=20, replicas=2)
    kept = failure.value.result
    assert isinstance(kept, xr.Dataset)
    assert np.all(kept.status.values == 1)
    assert np.all(np.isfinite(kept.risk.values[:, 0])) and np.all(np.isnan(kept.risk.values[:, -1]))


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        (tl.SGD(1.0, reuse=tl.Reused(2.0)), "fresh batches"),
        (tl.SGD(1.0, method=tl.Adam()), "rotations"),
        (tl.SGD(1.0, method=tl.SignDescent(0.5)), "averaged over steps"),
        (tl.SGD(1.0, 4, method=tl.SignDescent()), "sum over 4 samples"),
        (tl.SGD(1.0, batch_size=80), "batches much smaller than d"),
    ],
)
def test_what_it_does_not_describe_is_refused_with_the_reason(training, reason):
    problem = erf_committee()
    with pytest.raises(tl.NotApplicable, match=reason):
        tl.evolve(problem, training, tl.SaadSolla(), until=1.0)


@pytest.mark.long
def test_the_solution_can_be_differentiated():
    """d m(t) / d gamma at p = 1 against the derivative of the closed solution, by finite differences of it."""
    import jax
    import jax.numpy as jnp

    from twolayer.expectation import choose
    from twolayer.problem import Overlaps

    problem = phase_retrieval(0.2, noise=0.1)
    start = Overlaps(jnp.eye(1), jnp.full((1, 1), 0.2), jnp.eye(1), jnp.ones(1))
    times = jnp.asarray([0.0, 0.7])

    def m(gamma):
        training = tl.SGD(gamma, constraint=tl.Sphere())
        solution = tl.SaadSolla(max_steps=256).trajectory(choose(problem), problem, training, start, times)
        return solution.states[1][-1, 0, 0]

    h = 1e-6
    exact = [np.sqrt(squared_overlap(0.2, 0.05 + s * h, 0.1, 0.7)) for s in (-1, 1)]
    assert float(jax.grad(m)(0.05)) == pytest.approx((exact[1] - exact[0]) / (2 * h), rel=1e-6)


@pytest.mark.long
def test_the_sphere_holds_where_rows_would_shrink():
    """A weak target pulls the lengths in (Phi_jj < 0): a deviation from the sphere must not grow with time."""
    problem = tl.Problem(tl.MultiIndex("0.1*z1**2", k=1), tl.Student(2, "square"), tl.Gaussian(100))
    result = tl.evolve(problem, tl.SGD(0.05, constraint=tl.Sphere()), tl.SaadSolla(), until=20.0, save=5)
    assert np.max(np.abs(np.diagonal(result.Q.values[0], axis1=1, axis2=2) - 1.0)) < 1e-12


def test_a_broken_symmetry_is_not_reported_as_exact():
    """From a symmetric start the true solution stays symmetric for ever; rounding breaks it, and the error says so."""
    start = tl.GivenOverlaps([[0.31, 0.07], [0.07, 0.31]], [[0.1, 0.1], [0.1, 0.1]])
    problem = erf_committee(start=start)
    result = tl.evolve(problem, tl.SGD(1.0), tl.SaadSolla(), until=3000.0, save=40)
    M, error = result.M.values[0], result.overlap_error.values[0]
    broken = np.abs(M[:, 0, 0] - M[:, 0, 1])
    assert np.all(broken / 2 <= error)
    assert np.all(np.diff(error) >= 0)


def test_another_loss_is_refused_by_what_needs_averages_over_few_fields():
    class Quartic(AbstractLoss):
        def __call__(self, y, s):
            return (y - s) ** 4

    problem = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(100), loss=Quartic())
    assert tl.SaadSolla().applies(problem, tl.SGD(1.0)).ok
    for training, description in (
        (tl.SGD(1.0), tl.SDE()),
        (tl.SGD(1.0), tl.MeanField()),
        (tl.SGD(1.0), tl.HDMF()),
        (tl.SGD(1.0, reuse=tl.Repeated(2)), tl.SaadSolla()),
    ):
        with pytest.raises(tl.NotApplicable, match="square loss"):
            tl.evolve(problem, training, description, until=1.0)


@pytest.mark.slow
def test_gradient_flow_does_without_the_averages_over_four_fields():
    """The dearest moment is not computed, and nothing else changes: at a tiny learning rate both equations are one."""
    assert "phi_hd" not in tl.SaadSolla(variance=False).needed and "phi_hd" in tl.SaadSolla().needed
    start = tl.GivenOverlaps([[1.2, 0.1], [0.1, 0.8]], [[0.4], [-0.3]])
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(100), start=start, noise=0.3)
    training = tl.SGD(1e-9, layers=tl.Both(0.5), weight_decay=0.1)
    flow, whole = (
        tl.evolve(problem, training, tl.SaadSolla(variance=each), until=5.0, save=4) for each in (False, True)
    )
    for name in ("Q", "M", "a", "excess_risk"):
        np.testing.assert_allclose(flow[name].values, whole[name].values, atol=1e-7)
    assert np.max(np.abs(flow.M.values[0, -1] - flow.M.values[0, 0])) > 0.1  # it did move


def test_one_program_serves_every_dimension(caplog):
    """The limit does not know d: the second problem has the same numbers, and nothing of its ODE is compiled."""
    import jax

    start = tl.GivenOverlaps([[0.9]], [[0.2]])
    results = []
    with jax.log_compiles():
        for d in (100, 10**6):
            problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d), start=start)
            caplog.clear()
            results.append(tl.evolve(problem, tl.SGD(0.05), tl.SaadSolla(), until=0.5, save=3))
            compiled = "Finished XLA compilation of jit(trajectories)" in caplog.text
            assert compiled == (d == 100)
    assert np.array_equal(results[0].M.values, results[1].M.values)
