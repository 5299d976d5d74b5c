"""Every closed form against quadrature in high precision or of high order, at random and at singular covariances."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.polynomial import Polynomial
from twolayer.expectation import ErfUnits, PolynomialTables, Quadrature, SquareUnits, choose
from twolayer.expectation.closed import erf as erf_forms
from twolayer.expectation.closed.polynomial import isserlis
from twolayer.expectation.quadrature import tensor_rule
from twolayer.problem import Overlaps


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
def moments(engine, problem, overlaps):
    return engine.moments(problem, overlaps)


# Closed forms and a rule of 64 nodes per field agree to rounding: 1e-10 is what the closed forms promise.
@pytest.mark.parametrize("rank", [None, 1, 0])
@pytest.mark.parametrize("seed", [0, 1])
def test_erf_committee_agrees_with_quadrature(seed, rank):
    problem = tl.Problem(
        tl.Committee(1, "erf", P=[[1.5]], second_layer=[1.3]), tl.Student(2, "erf"), tl.Gaussian(100), noise=0.3
    )
    overlaps = random_overlaps(2, np.array([[1.5]]), seed, rank)
    assert isinstance(choose(problem).engine, ErfUnits)
    closed = moments(ErfUnits(), problem, overlaps)
    assert largest_difference(closed, moments(Quadrature(64, 3), problem, overlaps)) < 1e-10


def test_erf_committee_of_several_units_agrees_pair_by_pair():
    """For k = 2 and P not the identity: the same moments from teacher units one by one, by linearity of v and chi."""
    P = np.array([[1.0, 0.4], [0.4, 2.0]])
    overlaps = random_overlaps(2, P, 3)
    problem = tl.Problem(tl.Committee(2, "erf", P=P), tl.Student(2, "erf"), tl.Gaussian(100), noise=0.1)
    whole = moments(ErfUnits(), problem, overlaps)
    parts = []
    for r in range(2):
        one = tl.Problem(
            tl.Committee(1, "erf", P=P[r : r + 1, r : r + 1], second_layer=[0.5]),
            tl.Student(2, "erf", second_layer=[0.0, 0.0]),
            tl.Gaussian(100),
        )
        alone = Overlaps(overlaps.Q, overlaps.M[:, r : r + 1], overlaps.P[r : r + 1, r : r + 1], 0 * overlaps.a)
        parts.append(moments(Quadrature(96, 3), one, alone))
    silent = tl.Problem(tl.Committee(1, "erf", second_layer=[0.0]), tl.Student(2, "erf"), tl.Gaussian(100))
    student = moments(Quadrature(96, 3), silent, Overlaps(overlaps.Q, jnp.zeros((2, 1)), jnp.eye(1), overlaps.a))
    np.testing.assert_allclose(whole.phi, sum(part.phi for part in parts) + student.phi, atol=1e-10)
    np.testing.assert_allclose(whole.chi, sum(part.chi for part in parts) + student.chi, atol=1e-10)


def test_erf_integrals_against_high_precision():
    """I2, J2, I3 and I4 at one covariance, by mpmath in 30 digits on the conditional one-dimensional forms."""
    mpmath.mp.dps = 30
    rng = np.random.default_rng(5)
    A = rng.standard_normal((4, 6)) / 4
    C = A @ A.T
    forms = erf_forms.integrals(jnp.asarray(C), 2)
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
    assert abs(product @ (ds[:, 0] * ds[:, 1] * s[:, 2] * s[:, 3]) - forms.I4[0, 1, 2, 3]) < 1e-10
    assert abs(product @ (ds[:, 0] ** 2 * s[:, 2] * s[:, 3]) - forms.I4[0, 0, 2, 3]) < 1e-10


@pytest.mark.parametrize("rank", [None, 1, 0])
def test_square_units_agree_with_exact_quadrature(rank):
    """Gauss-Hermite with 24 nodes is exact for these polynomials, so the tolerance is rounding."""
    problem = tl.Problem(tl.Committee(1, "square", P=[[1.5]]), tl.Student(2, "square"), tl.Gaussian(100), noise=0.3)
    overlaps = random_overlaps(2, np.array([[1.5]]), 4, rank)
    assert isinstance(choose(problem).engine, SquareUnits)
    assert (
        largest_difference(moments(SquareUnits(), problem, overlaps), moments(Quadrature(24, 3), problem, overlaps))
        < 1e-11
    )


@pytest.mark.parametrize(
    ("target", "student"),
    [
        (tl.Hermite({3: 1.0, 1: 0.4}), tl.Student(2, "he3")),
        (tl.Staircase(2), tl.Student(1, "he2")),
        (tl.MultiIndex("z1*z2 + he2(z1)/2 - 0.3", k=2), tl.Student(1, "square")),
        (tl.SingleIndex("linear"), tl.Student(2, "linear")),
    ],
)
def test_polynomial_tables_agree_with_exact_quadrature(target, student):
    problem = tl.Problem(target, student, tl.Gaussian(100), noise=0.3)
    engine = choose(problem).engine
    assert isinstance(engine, PolynomialTables)
    for seed, rank in [(0, None), (1, 0)]:
        overlaps = random_overlaps(student.p, np.asarray(problem.P), seed, rank)
        exact = moments(Quadrature(24, 3), problem, overlaps)
        scale = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(exact))
        assert largest_difference(moments(engine, problem, overlaps), exact) < 1e-12 * max(1.0, scale)


def test_square_units_and_polynomial_tables_are_the_same_at_any_width():
    """Two independent exact routes, at a width that no quadrature reaches."""
    problem = tl.Problem(tl.Committee(3, "square"), tl.Student(5, "square"), tl.Gaussian(100), noise=0.2)
    overlaps = random_overlaps(5, np.eye(3), 7)
    by_matrices = moments(SquareUnits(), problem, overlaps)
    by_tables = moments(PolynomialTables.build(problem), problem, overlaps)
    assert largest_difference(by_matrices, by_tables) < 1e-10


def test_isserlis_of_known_monomials():
    C = jnp.asarray([[2.0, 0.5], [0.5, 3.0]])
    table = isserlis(Polynomial(2, {(2, 2): 1.0}))
    assert float(table(C)) == pytest.approx(2 * 3 + 2 * 0.25, rel=1e-15)
    table = isserlis(Polynomial(2, {(4, 0): 1.0, (3, 1): 2.0, (1, 0): 5.0}))
    assert float(table(C)) == pytest.approx(3 * 4 + 2 * 3 * 2 * 0.5, rel=1e-15)


def test_rule_integrates_polynomials_of_its_degree_exactly():
    nodes, weights = tensor_rule(6, 1)
    for power, value in [(0, 1), (2, 1), (4, 3), (6, 15), (8, 105), (10, 945)]:
        assert weights @ nodes[:, 0] ** power == pytest.approx(value, rel=1e-12)
    assert weights @ nodes[:, 0] ** 12 != pytest.approx(10395, rel=1e-3)


def test_moments_have_finite_gradients_at_perfect_recovery():
    """Q_perp = 0 exactly: the closed forms must be differentiable there."""
    for activation in ("erf", "square"):
        problem = tl.Problem(tl.Committee(2, activation), tl.Student(2, activation), tl.Gaussian(100))

        def excess(Q, problem=problem):
            engine = choose(problem).engine
            return engine.moments(problem, Overlaps(Q, jnp.eye(2), jnp.eye(2), jnp.ones(2))).excess_risk

        value, gradient = jax.value_and_grad(excess)(jnp.eye(2))
        assert abs(value) < 1e-15
        assert np.all(np.isfinite(gradient))
