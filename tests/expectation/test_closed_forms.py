"""Every closed form against quadrature in high precision or of high order, at random and at singular covariances."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation import (
    ENGINES,
    MOMENTS,
    Auto,
    PolynomialTables,
    Quadrature,
    SquareUnits,
    ThresholdUnits,
    choose,
    estimate,
)
from twolayer.expectation.closed import thresholds as noisy
from twolayer.expectation.closed import units as closed
from twolayer.expectation.closed.relu_averages import interpolation_rule
from twolayer.expectation.rules import tensor_rule
from twolayer.problem import Overlaps
from twolayer.problem.activations import Erf, Sigmoid, Tanh


def random_overlaps(p: int, P: np.ndarray, seed: int, rank: int | None = None) -> Overlaps:
    """Random overlaps that are consistent with P; ``rank`` limits the dimension of the perpendicular part."""
    rng = np.random.default_rng(seed)
    k = P.shape[0]
    M = 0.5 * rng.standard_normal((p, k)) @ np.linalg.cholesky(P).T
    L = 0.6 * rng.standard_normal((p, p if rank is None else rank))
    Q = M @ np.linalg.solve(P, M.T) + L @ L.T
    return Overlaps(jnp.asarray(Q), jnp.asarray(M), jnp.asarray(P), jnp.asarray(rng.standard_normal(p)))


def largest_difference(x, y) -> float:
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True))


@eqx.filter_jit
def moments(engine, problem, overlaps, wanted=MOMENTS):
    return engine.parts(problem, overlaps, wanted)


def rule(order, fields):
    """A product rule over all fields, alone."""
    return Quadrature.of_order(order, fields).variants()[0]


def chosen_engine(problem, moment="phi_hd"):
    return choose(problem).engine_of(moment)


# Closed forms and a rule of 64 nodes per field agree to rounding: 1e-10 is what the closed forms promise.
@pytest.mark.parametrize("rank", [None, 1, 0])
@pytest.mark.parametrize("seed", [0, 1])
def test_erf_committee_agrees_with_quadrature(seed, rank):
    problem = tl.Problem(
        tl.Committee(1, "erf", P=[[1.5]], second_layer=[1.3]), tl.Student(2, "erf"), tl.Gaussian(100), noise=0.3
    )
    overlaps = random_overlaps(2, np.array([[1.5]]), seed, rank)
    assert isinstance(chosen_engine(problem), ThresholdUnits)
    closed = moments(chosen_engine(problem), problem, overlaps)
    assert largest_difference(closed, moments(rule(64, 3), problem, overlaps)) < 1e-10


def test_erf_committee_of_several_units_agrees_pair_by_pair():
    """For k = 2 and P not the identity: the same moments from teacher units one by one, by linearity of v and chi."""
    P = np.array([[1.0, 0.4], [0.4, 2.0]])
    overlaps = random_overlaps(2, P, 3)
    problem = tl.Problem(tl.Committee(2, "erf", P=P), tl.Student(2, "erf"), tl.Gaussian(100), noise=0.1)
    whole = moments(chosen_engine(problem), problem, overlaps)
    parts = []
    for r in range(2):
        one = tl.Problem(
            tl.Committee(1, "erf", P=P[r : r + 1, r : r + 1], second_layer=[0.5]),
            tl.Student(2, "erf", second_layer=[0.0, 0.0]),
            tl.Gaussian(100),
        )
        alone = Overlaps(overlaps.Q, overlaps.M[:, r : r + 1], overlaps.P[r : r + 1, r : r + 1], 0 * overlaps.a)
        parts.append(moments(rule(96, 3), one, alone))
    silent = tl.Problem(tl.Committee(1, "erf", second_layer=[0.0]), tl.Student(2, "erf"), tl.Gaussian(100))
    student = moments(rule(96, 3), silent, Overlaps(overlaps.Q, jnp.zeros((2, 1)), jnp.eye(1), overlaps.a))
    phi = sum(part["v"][:, :2] for part in parts) + student["v"][:, :2]
    np.testing.assert_allclose(whole["v"][:, :2], phi, atol=1e-10)
    np.testing.assert_allclose(whole["chi"], sum(part["chi"] for part in parts) + student["chi"], atol=1e-10)


@pytest.mark.slow
def test_erf_integrals_against_high_precision():
    """I2, J2, I3 and I4 at one covariance, by mpmath in 30 digits on the conditional one-dimensional forms."""
    mpmath.mp.dps = 30
    rng = np.random.default_rng(5)
    A = rng.standard_normal((4, 6)) / 4
    C = A @ A.T
    slopes = noisy.unit_list([noisy.thresholds(Erf())] * 2)
    units = noisy.unit_list([noisy.thresholds(Erf())] * 4)

    def forms_for(c):
        return closed.integrals(jnp.asarray(C), slopes, units, jnp.asarray(c), interpolation_rule(1))

    forms = forms_for(np.zeros(4))
    # The product of two units from squares of sums of units.
    both, third, fourth = (forms_for(c).quartic for c in ([0.0, 0, 1, 1], [0.0, 0, 1, 0], [0.0, 0, 0, 1]))
    I4 = 0.5 * (both - third - fourth)
    half = mpmath.mpf(1) / 2

    def gauss(f):
        return mpmath.quad(lambda x: f(x) * mpmath.npdf(x), [-12, -4, 0, 4, 12])

    # E[erf(x3/sqrt2) erf(x4/sqrt2)]: condition on x3, smooth erf over the rest in closed form.
    c33, c34, c44 = (mpmath.mpf(float(x)) for x in (C[2, 2], C[2, 3], C[3, 3]))
    rest = c44 - c34**2 / c33

    def inner(x):
        x3 = mpmath.sqrt(c33) * x
        return mpmath.erf(x3 * mpmath.sqrt(half)) * mpmath.erf(c34 / c33 * x3 / mpmath.sqrt(2 * (1 + rest)))

    assert abs(float(gauss(inner)) - float(forms.I2[2, 3])) < 1e-14

    # E[s'(x1) x2 s(x4)]: condition on x1; x2 and x4 are then linear plus noise, and Stein's lemma does the noise.
    c = [[mpmath.mpf(float(x)) for x in row] for row in C]
    k22, k24 = c[1][1] - c[0][1] ** 2 / c[0][0], c[1][3] - c[0][1] * c[0][3] / c[0][0]
    k44 = c[3][3] - c[0][3] ** 2 / c[0][0]
    slope = mpmath.sqrt(2 / mpmath.pi)

    def inner3(x):
        x1 = mpmath.sqrt(c[0][0]) * x
        m2, m4 = c[0][1] / c[0][0] * x1, c[0][3] / c[0][0] * x1
        smooth = mpmath.erf(m4 / mpmath.sqrt(2 * (1 + k44)))
        density = slope * mpmath.exp(-(m4**2) / (2 * (1 + k44))) / mpmath.sqrt(1 + k44)
        return slope * mpmath.exp(-(x1**2) / 2) * (m2 * smooth + k24 * density)

    assert abs(float(gauss(inner3)) - float(forms.I3[0, 1, 3])) < 1e-14
    assert k22 > 0
    # J2 and I4 by a product rule over four fields.
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    grid = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij"), -1).reshape(-1, 4) @ np.linalg.cholesky(C).T
    product = np.prod(np.stack(np.meshgrid(*[weights / weights.sum()] * 4, indexing="ij")), axis=0).ravel()
    from scipy.special import erf

    s, ds = erf(grid / np.sqrt(2)), np.sqrt(2 / np.pi) * np.exp(-(grid**2) / 2)
    # 24 nodes per field leave about 1e-11 on these smooth functions of small variance.
    assert abs(product @ (ds[:, 0] * ds[:, 1]) - forms.J2[0, 1]) < 1e-10
    assert abs(product @ (ds[:, 0] * ds[:, 1] * s[:, 2] * s[:, 3]) - I4[0, 1]) < 1e-10
    assert abs(product @ (ds[:, 0] ** 2 * s[:, 2] * s[:, 3]) - I4[0, 0]) < 1e-10


@pytest.mark.parametrize("rank", [None, 1, 0])
def test_square_units_agree_with_exact_quadrature(rank):
    """Gauss-Hermite with 24 nodes is exact for these polynomials, so the tolerance is rounding."""
    problem = tl.Problem(tl.Committee(1, "square", P=[[1.5]]), tl.Student(2, "square"), tl.Gaussian(100), noise=0.3)
    overlaps = random_overlaps(2, np.array([[1.5]]), 4, rank)
    assert isinstance(chosen_engine(problem), SquareUnits)
    assert (
        largest_difference(moments(SquareUnits(), problem, overlaps), moments(rule(24, 3), problem, overlaps)) < 1e-11
    )


@pytest.mark.parametrize(
    ("target", "student"),
    [
        (tl.Hermite({3: 1.0, 1: 0.4}), tl.Student(2, "he3")),
        (tl.Staircase(2), tl.Student(1, "he2")),
        pytest.param(tl.MultiIndex("z1*z2 + he2(z1)/2 - 0.3", k=2), tl.Student(1, "square"), marks=pytest.mark.slow),
        pytest.param(tl.SingleIndex("linear"), tl.Student(2, "linear"), marks=pytest.mark.slow),
    ],
)
def test_polynomial_tables_agree_with_exact_quadrature(target, student):
    problem = tl.Problem(target, student, tl.Gaussian(100), noise=0.3)
    engine = chosen_engine(problem)
    assert isinstance(engine, PolynomialTables)
    for seed, rank in [(0, None), (1, 0)]:
        overlaps = random_overlaps(student.p, np.asarray(problem.P), seed, rank)
        exact = moments(rule(24, 3), problem, overlaps)
        scale = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(exact))
        assert largest_difference(moments(engine, problem, overlaps), exact) < 1e-12 * max(1.0, scale)


@pytest.mark.slow
def test_square_units_and_polynomial_tables_are_the_same_at_any_width():
    """Two independent exact routes, at a width that no quadrature reaches."""
    problem = tl.Problem(tl.Committee(3, "square"), tl.Student(5, "square"), tl.Gaussian(100), noise=0.2)
    overlaps = random_overlaps(5, np.eye(3), 7)
    by_matrices = moments(SquareUnits(), problem, overlaps)
    by_tables = moments(PolynomialTables.build(problem, 1e-6), problem, overlaps)
    assert largest_difference(by_matrices, by_tables) < 1e-10


def test_rule_integrates_polynomials_of_its_degree_exactly():
    nodes, weights = tensor_rule(6, 1)
    for power, value in [(0, 1), (2, 1), (4, 3), (6, 15), (8, 105), (10, 945)]:
        assert weights @ nodes[:, 0] ** power == pytest.approx(value, rel=1e-12)
    assert weights @ nodes[:, 0] ** 12 != pytest.approx(10395, rel=1e-3)


@pytest.mark.parametrize("terms", noisy.TANH)
def test_mixtures_are_as_close_to_tanh_as_they_say(terms):
    """The stated sup-norm error is measured, not exceeded and not idle; that of the slope is a few times larger."""
    x = np.linspace(-40.0, 40.0, 80_001)
    for activation, factor in ((Tanh(), 1.0), (Sigmoid(), 0.5)):
        mixture = noisy.thresholds(activation, terms)
        from scipy.special import erf

        value = mixture.offset + erf(x[:, None] / np.sqrt(2 * mixture.noise)) @ mixture.weights
        error = np.max(np.abs(value - np.asarray(activation(jnp.asarray(x)))))
        assert 0.9 * factor * noisy.SUP_ERROR[terms] < error <= factor * noisy.SUP_ERROR[terms]
        slope = (np.sqrt(2 / np.pi / mixture.noise) * np.exp(-(x[:, None] ** 2) / 2 / mixture.noise)) @ mixture.weights
        assert np.max(np.abs(slope - np.asarray(activation.derivative(jnp.asarray(x))))) < 4 * noisy.SUP_ERROR[terms]


PAIRS = [(s, t) for s in ("erf", "sigmoid", "relu") for t in ("erf", "tanh", "relu")] + [("relu", "sigmoid")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("student", "target"),
    [pair if i % 3 == 0 else pytest.param(*pair, marks=pytest.mark.long) for i, pair in enumerate(PAIRS)],
)
def test_every_pair_of_threshold_activations_against_sampling(student, target):
    """All moments of mixed committees against 10^6 samples in NumPy, z < 5 (about 150 numbers in all)."""
    P = np.array([[1.5, 0.5], [0.5, 0.8]])
    problem = tl.Problem(tl.Committee(2, target, P=P, second_layer=[1.3, -0.7]), tl.Student(2, student), tl.Gaussian(9))
    overlaps = random_overlaps(2, P, 11)
    engine = chosen_engine(problem)
    assert isinstance(engine, ThresholdUnits)
    exact = moments(engine, problem, overlaps)
    rng = np.random.default_rng(0)
    functions = {
        "erf": (lambda x: _erf(x / np.sqrt(2)), lambda x: np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)),
        "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
        "sigmoid": (lambda x: 0.5 + 0.5 * np.tanh(x / 2), lambda x: 0.25 / np.cosh(x / 2) ** 2),
        "relu": (lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0)),
    }
    x = rng.standard_normal((1_000_000, 4)) @ np.linalg.cholesky(np.asarray(overlaps.omega)).T
    s, ds = (function(x[:, :2]) for function in functions[student])
    eps = functions[target][0](x[:, 2:]) @ [0.65, -0.35] - s @ np.asarray(overlaps.a) / 2
    samples = {
        "excess_risk": 0.5 * eps**2,
        "chi": s * eps[:, None],
        "v": (ds * eps[:, None])[:, :, None] * x[:, None, :],
        "phi_hd": (ds * eps[:, None])[:, :, None] * (ds * eps[:, None])[:, None, :],
    }
    for name, sample in samples.items():
        scatter = sample.std(axis=0) / np.sqrt(len(x))
        assert np.all(np.abs(sample.mean(axis=0) - exact[name]) < 5 * scatter + 1e-9), name


def _erf(x):
    from scipy.special import erf

    return erf(x)


def mp_erf_moments(Q, M, P, a, weights):
    """Risk, one entry of v and one of phi_hd of an erf problem in 40 digits, by the closed forms of the papers."""
    mp = mpmath.mp
    p, k = M.shape
    n = p + k
    omega = np.block([[Q, M], [M.T, P]])
    C = [[mp.mpf(float(omega[i, j])) for j in range(n)] for i in range(n)]
    c = [-mp.mpf(float(x)) / p for x in a] + [mp.mpf(float(x)) for x in weights]

    def I2(u, w):
        return 2 / mp.pi * mp.asin(C[u][w] / mp.sqrt((1 + C[u][u]) * (1 + C[w][w])))

    def I3(i, j, l):
        lam = (1 + C[i][i]) * (1 + C[l][l]) - C[i][l] ** 2
        return 2 / mp.pi * (C[j][l] * (1 + C[i][i]) - C[i][j] * C[i][l]) / (1 + C[i][i]) / mp.sqrt(lam)

    def I4(i, j, l, m):
        lam4 = (1 + C[i][i]) * (1 + C[j][j]) - C[i][j] ** 2
        lam0 = (
            lam4 * C[l][m]
            - C[j][l] * C[j][m] * (1 + C[i][i])
            - C[i][l] * C[i][m] * (1 + C[j][j])
            + C[i][j] * C[i][l] * C[j][m]
            + C[i][j] * C[i][m] * C[j][l]
        )

        def lam1(x):
            return (
                lam4 * (1 + C[x][x])
                - C[j][x] ** 2 * (1 + C[i][i])
                - C[i][x] ** 2 * (1 + C[j][j])
                + 2 * C[i][j] * C[i][x] * C[j][x]
            )

        return 4 / mp.pi**2 / mp.sqrt(lam4) * mp.asin(lam0 / mp.sqrt(lam1(l) * lam1(m)))

    every = range(n)
    return [
        sum(c[u] * c[w] * I2(u, w) for u in every for w in every) / 2,
        sum(c[w] * I3(0, 1, w) for w in every),
        sum(c[u] * c[w] * I4(0, 1, u, w) for u in every for w in every),
    ]


def test_erf_closed_forms_on_ten_thousand_covariances():
    """Condition numbers up to 1e10: 1e-12 against 40 digits on a sample, and against extended precision on all.

    The scale of the error is the size of the terms that are added: it is relative where they do not cancel.
    """
    rng = np.random.default_rng(0)
    count, n, p = 10_000, 5, 2
    problem = tl.Problem(tl.Committee(3, "erf"), tl.Student(2, "erf"), tl.Gaussian(9))
    frames = np.linalg.qr(rng.standard_normal((count, n, n)))[0]
    spectra = 10.0 ** -(rng.uniform(0, 10, (count, 1)) * rng.uniform(0, 1, (count, n)))
    spectra[:, 0] = 1.0
    omega = np.einsum("cij,cj,ckj->cik", frames, spectra, frames) * 10.0 ** rng.uniform(-1, 1, (count, 1, 1))
    omega = 0.5 * (omega + np.swapaxes(omega, 1, 2))
    a = rng.standard_normal((count, p))

    def at(row, second):
        # P is part of the covariance here: the engine reads it from the overlaps.
        overlaps = Overlaps(row[:p, :p], row[:p, p:], row[p:, p:], second)
        return chosen_engine(problem).parts(problem, overlaps, MOMENTS)

    values = jax.jit(jax.vmap(at))(jnp.asarray(omega), jnp.asarray(a))
    mpmath.mp.dps = 40
    for i in range(0, count, 250):
        truth = mp_erf_moments(omega[i][:p, :p], omega[i][:p, p:], omega[i][p:, p:], a[i], [1 / 3] * 3)
        found = [values["excess_risk"][i], values["v"][i, 0, 1], values["phi_hd"][i, 0, 1]]
        scale = [1.0, max(1.0, np.abs(omega[i]).max()), 1.0]
        for x, y, size in zip(found, truth, scale, strict=True):
            assert abs(float(x) - float(y)) < 1e-12 * size
    # All of them in NumPy's extended precision, by the same classical formula for the risk and v.
    C = omega.astype(np.longdouble)
    c = np.concatenate([-a / p, np.full((count, 3), 1 / 3)], axis=1).astype(np.longdouble)
    one = 1 + np.diagonal(C, axis1=1, axis2=2)
    angle = np.arcsin(C / np.sqrt(one[:, :, None] * one[:, None, :]))
    risk = np.einsum("cu,cw,cuw->c", c, c, angle) / np.pi
    assert np.max(np.abs(risk - np.asarray(values["excess_risk"]))) < 1e-12
    lam = one[:, 0, None] * one - C[:, 0] ** 2
    numerator = C[:, 1] * one[:, 0, None] - C[:, 0, 1, None] * C[:, 0]
    v = np.sum(2 / np.pi * c * numerator / one[:, 0, None] / np.sqrt(lam), axis=1)
    assert np.max(np.abs(v - np.asarray(values["v"][:, 0, 1])) / np.maximum(1, np.abs(C).max(axis=(1, 2)))) < 1e-12


SINGULAR = {
    "perfect recovery": (np.full((2, 2), 1.5), np.full((2, 1), 1.5)),
    "duplicate neurons": (np.full((2, 2), 0.7), np.full((2, 1), 0.3)),
    "zero rows": (np.zeros((2, 2)), np.zeros((2, 1))),
    "opposite neurons": (np.array([[1.5, -1.5], [-1.5, 1.5]]), np.array([[1.5], [-1.5]])),
}


@pytest.mark.long
@pytest.mark.parametrize("activation", ["erf", "relu"])
def test_singular_overlaps_give_finite_values_and_gradients(activation):
    """Every engine that serves agrees with the default one there, and its gradients are finite."""
    problem = tl.Problem(tl.Committee(1, activation, P=[[1.5]]), tl.Student(2, activation), tl.Gaussian(9))
    Q, M = (jnp.stack([jnp.asarray(case[i]) for case in SINGULAR.values()]) for i in range(2))
    a, P = jnp.asarray([0.3, 0.7]), jnp.asarray([[1.5]])

    def at_all(chosen, wanted):
        def total(Q, M):
            return sum(jnp.sum(x) for x in chosen.parts(problem, Overlaps(Q, M, P, a), wanted).values())

        def one(Q, M):
            result = estimate(chosen, problem, Overlaps(Q, M, P, a), wanted)
            return result.value, result.error, jax.grad(total, argnums=(0, 1))(Q, M)

        return jax.jit(jax.vmap(one))(Q, M)

    value, error, _ = at_all(choose(problem), MOMENTS)
    for name, engine in ENGINES.items():
        wanted = tuple(moment for moment in MOMENTS if engine.suits(problem, moment).ok)
        if not wanted or name == "MonteCarlo":
            continue
        found, own_error, gradients = at_all(Auto(engines=(name,)).choose(problem, wanted), wanted)
        assert all(np.all(np.isfinite(gradient)) for gradient in gradients), name
        for moment in wanted:
            allowed = own_error[moment] + error[moment]
            assert np.all(np.abs(found[moment] - value[moment]) <= allowed), (name, moment)
