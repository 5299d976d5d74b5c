"""Rates, exit times and fixed points of phase retrieval, against the drift, quadrature, minimisation and the ODE."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

import twolayer as tl
from twolayer.expectation import choose
from twolayer.theory.formulas import one_neuron
from twolayer.theory.formulas import phase_retrieval as theory
from twolayer.theory.formulas.limit_exits import fixed_point, ode_exit_times
from twolayer.theory.formulas.random_start import sum_of_alignments, sum_of_squares
from twolayer.theory.motion.drift import drift


def setting(p: int, gamma: float, noise: float, d: int = 1000) -> tuple[tl.Problem, tl.SGD]:
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d), noise=noise)
    return problem, tl.SGD(gamma, constraint=tl.Sphere())


def starts_of(p: int, d: int, number: int) -> tl.Overlaps:
    """Overlaps of weights that are drawn one by one."""
    W = np.random.default_rng(0).standard_normal((number, p, d))
    W /= np.linalg.norm(W, axis=2, keepdims=True)
    Q, M = jnp.asarray(W @ np.swapaxes(W, 1, 2)), jnp.asarray(W[:, :, :1])
    return tl.Overlaps(Q, M, jnp.eye(1), jnp.ones((number, p)))


def initial_risks(starts: tl.Overlaps) -> np.ndarray:
    p = starts.M.shape[1]
    return 1 + 1 / p - 2 / p * sum_of_squares(starts.M) + sum_of_alignments(starts.Q) / p**2


# ------------------------------------------------------------------------------------------------------ rates


@pytest.mark.parametrize(("p", "gamma", "noise"), [(1, 0.07, 0.0), (2, 0.2, 0.3), (3, 0.7, 0.1), (5, 2.0, 0.3)])
def test_rates_are_those_of_the_drift_at_the_saddle(p, gamma, noise):
    problem, training = setting(p, gamma, noise)
    engine = choose(problem)
    rows, columns = np.triu_indices(p, 1)

    def field(x):
        upper = jnp.zeros((p, p)).at[rows, columns].set(x[p:])
        overlaps = tl.Overlaps(jnp.eye(p) + upper + upper.T, x[:p, None], jnp.eye(1), jnp.ones(p))
        dQ, dM, _ = drift(problem, training, overlaps, engine.moments(problem, overlaps))
        return jnp.concatenate([dM[:, 0], dQ[rows, columns]])

    jacobian = np.asarray(jax.jit(jax.jacfwd(field))(jnp.zeros(p + len(rows))))
    growth = np.full(p, theory.growth_rate(p, gamma, noise) / 2)  # of m; its square grows twice as fast
    relaxation = np.full(len(rows), -theory.relaxation_rate(p, gamma))
    np.testing.assert_allclose(jacobian, np.diag(np.concatenate([growth, relaxation])), atol=1e-9)


@pytest.mark.parametrize(("p", "gamma", "noise"), [(1, 0.1, 0.2), (2, 0.4, 0.0), (3, 0.8, 0.5)])
def test_noise_strengths_are_gaussian_averages(p, gamma, noise):
    """Polynomials of degree ten in each field: seven nodes are exact."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    weights = weights / weights.sum()
    found = np.zeros(2)
    for places in itertools.product(range(7), repeat=p + 2):
        star, xi, *lam = nodes[list(places)]
        weight = np.prod(weights[list(places)])
        eps = star**2 - np.mean(np.square(lam)) + np.sqrt(noise) * xi
        found[0] += weight * (2 * eps * lam[0] * star) ** 2
        if p > 1:
            found[1] += weight * ((4 * eps + 4 * gamma / p * eps**2) * lam[0] * lam[1]) ** 2
    assert found[0] == pytest.approx(theory.noise_strength(p, noise), rel=1e-12)
    if p > 1:
        assert found[1] == pytest.approx(theory.alignment_strength(p, gamma, noise), rel=1e-12)


@pytest.mark.parametrize(("p", "noise"), [(1, 0.0), (1, 0.5), (2, 0.1), (4, 0.2), (20, 1.0)])
def test_the_optimal_rate_takes_the_fewest_steps(p, noise):
    largest = theory.maximal_learning_rate(p, noise)
    # Steps are t p d / gamma with t proportional to 1 / r_p.
    steps = minimize_scalar(
        lambda gamma: 1 / (gamma * theory.growth_rate(p, gamma, noise)),
        bounds=(1e-3 * largest, 0.999 * largest),
        method="bounded",
        options={"xatol": 1e-12},
    )
    optimal = theory.optimal_learning_rate(p, noise)
    # A minimum is known to the square root of rounding.
    assert steps["x"] == pytest.approx(optimal, rel=1e-6)
    assert optimal == pytest.approx(p**3 / ((2 + noise) * p**2 + 2 * p + 8), rel=1e-14)
    assert largest == pytest.approx(2 * optimal, rel=1e-14)
    assert theory.growth_rate(p, optimal, noise) == pytest.approx(4.0, rel=1e-13)
    assert abs(theory.growth_rate(p, largest, noise)) < 1e-13


def test_rates_in_known_cases():
    assert theory.optimal_learning_rate(1, 0.3) == pytest.approx(1 / 12.3)
    assert theory.maximal_learning_rate(1, 0.0) == pytest.approx(1 / 6)
    assert theory.overparametrisation_gain(np.inf, 0.4) == pytest.approx(12.4 / 2.4)
    assert theory.noise_strength(1, 0.7) == pytest.approx(48 + 2.8)
    for noise in (0.0, 0.7):
        gamma = theory.optimal_learning_rate(1, noise)
        assert theory.noise_factor(1, gamma, noise) == pytest.approx(2.0, rel=1e-13)
        assert theory.noise_shift(1, gamma, noise) == pytest.approx(np.log(2) / 4)
    slope = jax.grad(lambda gamma: theory.growth_rate(2, gamma, 0.1))(0.3)
    assert float(slope) == pytest.approx(-4 * theory.rate_constant(2, 0.1))


# ------------------------------------------------------------------------------------------------- exit times


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gamma", "noise", "threshold"), [(0.05, 0.5, 0.6), pytest.param(0.12, 0.2, 0.02, marks=pytest.mark.long)]
)
def test_one_neuron_exits_when_the_ode_does(gamma, noise, threshold):
    problem, training = setting(1, gamma, noise)
    starts = starts_of(1, 1000, 8)
    ode = tl.SaadSolla(rtol=1e-12, atol=1e-14)
    solved = ode_exit_times(problem, training, starts, (1 - threshold) * initial_risks(starts), 20.0, ode)
    exact = theory.exact_times(sum_of_squares(starts.M), gamma, noise, threshold)
    np.testing.assert_allclose(solved.value, exact, rtol=0, atol=1e-9)
    assert np.all(np.abs(solved.value - exact) <= solved.error)
    m0 = sum_of_squares(starts.M)
    end = theory.closed_overlap(exact, m0, gamma, noise)
    np.testing.assert_allclose(1 - end, (1 - threshold) * (1 - m0), rtol=1e-11)


@pytest.mark.parametrize(("d", "gamma", "noise", "threshold"), [(1000, 1 / 12, 0.0, 0.1), (30, 0.06, 0.4, 0.3)])
def test_means_over_the_law_of_one_neuron(d, gamma, noise, threshold):
    """Against adaptive quadrature in the angle, where the density is sin^(d-2)."""

    def mean(time):
        def weight(angle):
            return np.sin(angle) ** (d - 2)

        def weighted(angle):
            return weight(angle) * float(time(np.cos(angle) ** 2))

        parts = np.pi / 2 - np.array([0, 0.01, 0.1, 0.3, 0.6]) / np.sqrt(d / 1000), [1e-9]
        edges = np.unique(np.clip(np.concatenate(parts), 1e-9, np.pi / 2))
        total = [sum(quad(f, a, b, limit=200)[0] for a, b in itertools.pairwise(edges)) for f in (weighted, weight)]
        return total[0] / total[1]

    quenched = theory.quenched_time(1, d, gamma, noise, threshold)
    assert quenched.value == pytest.approx(
        mean(lambda u: theory.quenched_times(u, 0.0, 1, d, gamma, noise, threshold)), abs=1e-7
    )
    exact, never = theory.exact_time(d, gamma, noise, threshold)

    def exits(u):
        found = theory.exact_times(u, gamma, noise, threshold)
        return found if np.isfinite(found) else 0.0

    escaping = mean(lambda u: np.isfinite(theory.exact_times(u, gamma, noise, threshold)))
    assert never == pytest.approx(1 - escaping, abs=1e-6)
    assert exact.value == pytest.approx(mean(exits) / escaping, abs=1e-6)


def test_one_neuron_cannot_fall_below_its_fixed_point():
    gamma, noise = 0.1, 1.0
    reached = theory.fixed_overlap(gamma, noise)
    assert np.isinf(theory.exact_times(1e-3, gamma, noise, reached + 1e-6))
    assert np.isfinite(theory.exact_times(1e-4, gamma, noise, reached - 1e-3))
    mean, never = theory.exact_time(1000, gamma, noise, reached + 1e-6)
    assert np.isinf(mean.value) and never == 1.0


@pytest.mark.parametrize(("p", "d", "threshold"), [(1, 100, 0.1), (2, 1000, 0.05), (6, 2000, 0.1)])
def test_quenched_exceeds_annealed(p, d, threshold):
    gamma = 0.7 * theory.optimal_learning_rate(p, 0.1)
    starts = starts_of(p, d, 1000)
    law = sum_of_squares(starts.M), sum_of_alignments(starts.Q)
    quenched = theory.quenched_time(p, d, gamma, 0.1, threshold, *law)
    annealed = theory.annealed_time(p, d, gamma, 0.1, threshold)
    assert quenched.value - quenched.error > annealed
    # They meet as p grows: E log(chi^2_p / p) is about -1/p.
    rate = theory.growth_rate(p, gamma, 0.1)
    assert (quenched.value - annealed) * rate < 1.5 / p
    # The mean with a known part agrees with the plain mean over the sample.
    plain = np.asarray(theory.quenched_times(*law, p, d, gamma, 0.1, threshold))
    error = plain.std(ddof=1) / np.sqrt(plain.size)
    assert abs(plain.mean() - quenched.value) < 5 * error + quenched.error


@pytest.mark.parametrize("constraint", [tl.Sphere(), tl.Free()])
def test_rows_without_overlaps_are_a_fixed_point(constraint):
    """They are on the sphere; free rows change their lengths, but find nothing either."""
    problem, _ = setting(3, 0.1, 0.3)
    nothing = tl.Overlaps(jnp.eye(3), jnp.zeros((3, 1)), jnp.eye(1), jnp.ones(3))
    moments = choose(problem).moments(problem, nothing)
    change = drift(problem, tl.SGD(0.1, constraint=constraint), nothing, moments)
    lengths = jnp.diagonal(change.Q)
    assert np.max(np.abs(change.M)) < 1e-12 and np.max(np.abs(change.Q - jnp.diag(lengths))) < 1e-12
    assert (np.max(np.abs(lengths)) > 0.1) == isinstance(constraint, tl.Free)


@pytest.mark.long
def test_the_nonlinear_ode_is_later_by_the_known_amount():
    """p = 4, d = 1000, noise 0.2 at the optimal rate: later than the linearised formula by 0.032 and 0.225."""
    p, d, noise = 4, 1000, 0.2
    gamma = theory.optimal_learning_rate(p, noise)
    problem, training = setting(p, gamma, noise, d)
    starts = starts_of(p, d, 256)
    overlap, alignment = sum_of_squares(starts.M), sum_of_alignments(starts.Q)
    for threshold, later, within in ((0.02, 0.032, 0.003), (0.1, 0.225, 0.01)):
        linear = theory.quenched_times(overlap, alignment, p, d, gamma, noise, threshold)
        solved = ode_exit_times(problem, training, starts, (1 - threshold) * initial_risks(starts), 20.0)
        assert np.all(solved.error < 1e-6)
        assert np.mean(solved.value - linear) == pytest.approx(later, abs=within)
        mean = theory.mean_with_control(solved.value, overlap, p, d, gamma, noise)
        plain = np.std(solved.value, ddof=1) / 16
        assert abs(mean.value - np.mean(solved.value)) < 5 * plain
        assert mean.error / 5 < plain / 4  # what the known part is for


@pytest.mark.parametrize(("p", "noise"), [(1, 0.0), (4, 0.2)])
def test_the_correction_for_noise_tends_to_the_shift(p, noise):
    gamma, threshold = theory.optimal_learning_rate(p, noise), 0.1
    rng = np.random.default_rng(0)
    overlap = rng.chisquare(p, 2000)
    gaps = [
        theory.noise_correction(p, d, gamma, noise, threshold, overlap / d).value + theory.noise_shift(p, gamma, noise)
        for d in (10**4, 10**5, 10**6)
    ]
    assert gaps[0] > 0  # at finite d the noise has had less time, and it aligns neurons
    np.testing.assert_allclose(np.diff(np.log(gaps)) / np.log(10), -1.0, atol=0.04)


# ----------------------------------------------------------------------------------------------- fixed points


def test_the_fixed_point_of_one_neuron_is_closed():
    found = fixed_point(1, 0.06, 0.4)
    assert found.m**2 == pytest.approx(1 - 0.06 * 0.4 / (2 * (1 - 0.36)))
    assert found.excess_risk == pytest.approx(0.06 * 0.4 / (1 - 0.36))
    with pytest.raises(tl.ComputationFailed, match="does not leave the saddle"):
        fixed_point(1, 0.17, 0.4)


@pytest.mark.long
def test_fixed_points_of_two_neurons():
    """Known excess risks; stable ones are where long solutions of the full ODE end."""
    assert fixed_point(2, 0.05, 0.5).excess_risk == pytest.approx(0.01467, abs=5e-6)
    found = fixed_point(2, 0.3, 0.2)
    assert found.excess_risk == pytest.approx(0.22309, abs=5e-6) and found.is_stable
    assert abs(found.q - found.m**2) > 0.05 and found.q < 1
    problem, training = setting(2, 0.3, 0.2)
    path = tl.evolve(problem, training, tl.SaadSolla(), until=60.0, save=[60.0], replicas=2)
    np.testing.assert_allclose(path.excess_risk.values[:, -1], found.excess_risk, rtol=1e-8)
    np.testing.assert_allclose(np.abs(path.M.values[:, -1, :, 0]), found.m, rtol=1e-8)
    assert fixed_point(2, 0.01, 0.02).excess_risk == pytest.approx(0.01 * 0.02 / 2, rel=0.04)  # small rates
    # Above p/6 the neurons end apart: the symmetric end is there, but not stable.
    unstable = fixed_point(2, 0.4, 0.01)
    assert unstable.excess_risk > 1.0 and not unstable.is_stable


@pytest.mark.parametrize("learning_rate, noise, threshold", [(1 / 12, 0.0, 0.1), (0.06, 1.0, 0.03)])
def test_the_mean_first_passage_time_tends_to_the_ode_with_noise(learning_rate, noise, threshold):
    """Where both are right, at large d; each leaves out terms that fall with it, the linearised one as 1/(T d)."""
    asked = (learning_rate, noise, threshold)
    gaps = []
    for d in (10**4, 10**5, 10**6):
        passage = one_neuron.diffusion_time(d, *asked)
        ode = one_neuron.exact_time(d, *asked)[0].value + theory.noise_correction(1, d, *asked).value
        gaps.append(abs(passage.value - ode))
        assert passage.error < 1e-3
    assert gaps[0] > gaps[1] and gaps[0] < 0.01 and gaps[2] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("d, learning_rate, noise, threshold", [(200, 1 / 12, 0.0, 0.1), (200, 0.06, 1.0, 0.03)])
def test_the_mean_first_passage_time_is_that_of_sgd(d, learning_rate, noise, threshold):
    """Without any allowance: what it leaves out at this d is below the standard error of 4000 runs."""
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(d), noise=noise)
    training = tl.SGD(learning_rate, constraint=tl.Sphere())
    runs = tl.exit_time(problem, training, threshold=threshold, replicas=4000, starts=8)
    passage = one_neuron.diffusion_time(d, learning_rate, noise, threshold)
    assert abs(float(runs.measured_mean) - passage.value) < 5.0 * float(runs.measured_mean_error)
    # A noise of SGD that is twice as strong would be seen.
    shift = np.log(1.5) / theory.growth_rate(1, learning_rate, noise)
    assert 5.0 * float(runs.measured_mean_error) < shift
