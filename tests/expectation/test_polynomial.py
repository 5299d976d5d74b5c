"""The exact polynomial engine against Isserlis' theorem in rational arithmetic and in extended precision."""

import operator
from fractions import Fraction
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.expectation.closed import diagram_tables, polynomial_tables
from twolayer.expectation.closed.diagram_tables import MAX_TERMS
from twolayer.expectation.closed.polynomial_tables import PolynomialTables
from twolayer.expectation.gaussian_moments import MOMENTS
from twolayer.problem import Overlaps

EPS = float(np.finfo(np.float64).eps)


@eqx.filter_jit
def estimated(engine, problem, overlaps):
    return engine.combine(tuple(variant.parts(problem, overlaps, MOMENTS) for variant in engine.variants()))


def made(target, p, activation, noise=0.25):
    problem = tl.Problem(target, tl.Student(p, activation), tl.Gaussian(100), noise=noise)
    return problem, PolynomialTables.build(problem, 1e-6)


def as_overlaps(omega, p, a):
    omega = np.asarray(omega, dtype=np.float64)
    Q, M, P = omega[:p, :p], omega[:p, p:], omega[p:, p:]
    return Overlaps(*(jnp.asarray(x) for x in (Q, M, P, np.asarray(a, dtype=np.float64))))


# ---------------------------------------------------------------------------------------------- the reference
#
# Polynomials in all the fields together, multiplied out into monomials; averages of monomials one pairing at a time.
# Numbers may be fractions, or arrays in extended precision (one covariance for each entry).


def times(f, g):
    product = {}
    for e1, c1 in f.items():
        for e2, c2 in g.items():
            exponents = tuple(map(operator.add, e1, e2))
            product[exponents] = product.get(exponents, 0) + c1 * c2
    return product


def average_of(omega):
    fields = len(omega)

    def less(exponents, field):
        return (*exponents[:field], exponents[field] - 1, *exponents[field + 1 :])

    @cache
    def monomial(exponents):
        """E[x_i g] = sum over u of Omega_iu E[dg/dx_u], for the first field i that is there."""
        first = next((field for field in range(fields) if exponents[field]), None)
        if first is None:
            return 1
        rest = less(exponents, first)
        return sum(omega[first][u] * (rest[u] * monomial(less(rest, u))) for u in range(fields) if rest[u])

    return lambda f: sum(c * monomial(exponents) for exponents, c in f.items() if sum(exponents) % 2 == 0)


def reference(problem, omega, a, number=Fraction):
    """All moments from their definitions, as nested lists."""
    p, n = problem.p, problem.p + problem.k
    average = average_of(omega)

    def unit(coefficients, j):
        return {tuple(power * (u == j) for u in range(n)): c for power, c in enumerate(coefficients) if c != 0}

    coefficients = [number(c) for c in problem.student.activation.coefficients]
    slope = [power * c for power, c in enumerate(coefficients)][1:]
    s, ds = ([unit(g, j) for j in range(p)] for g in (coefficients, slope))
    eps = {(0,) * p + exponents: number(c) for exponents, c in problem.target.polynomial.terms.items()}
    for j in range(p):
        for exponents, c in s[j].items():
            eps[exponents] = eps.get(exponents, 0) - c * a[j] / p
    force = [times(ds[j], eps) for j in range(p)]
    noise = number(float(problem.noise))
    phi_hd = {}
    for j in range(p):
        for l in range(j, p):
            value = average(times(force[j], force[l])) + noise * average(times(ds[j], ds[l]))
            phi_hd[j, l] = phi_hd[l, j] = value
    return {
        "excess_risk": average(times(eps, eps)) / 2,
        "chi": [average(times(s[j], eps)) for j in range(p)],
        "v": [[average(times(force[j], unit([0, number(1)], u))) for u in range(n)] for j in range(p)],
        "phi_hd": [[phi_hd[j, l] for l in range(p)] for j in range(p)],
    }


def exact(problem, overlaps):
    omega = [[Fraction(float(x)) for x in row] for row in np.asarray(overlaps.omega)]
    moments = reference(problem, omega, [Fraction(float(x)) for x in overlaps.a])
    return {name: np.array(value, dtype=object) for name, value in moments.items()}


def check_within_error(result, truth):
    for name in MOMENTS:
        value, error = (np.asarray(x[name], dtype=np.float64) for x in (result.value, result.error))
        missed = [abs(Fraction(float(x)) - y) for x, y in zip(value.ravel(), truth[name].ravel(), strict=True)]
        assert all(x <= Fraction(float(y)) for x, y in zip(missed, error.ravel(), strict=True)), name


def check_close(result, truth, rtol, atol=0.0):
    for name in MOMENTS:
        np.testing.assert_allclose(result.value[name], truth[name].astype(np.float64), rtol=rtol, atol=atol)


# -------------------------------------------------------------------------------------------------- exactness


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(1.0, 1.0, 1.0), (1.25, 0.5, 1.0), (0.75, 1.5, 1.25)])
def test_degree_46_in_rational_arithmetic(lengths):
    problem, engine = made(tl.Hermite({12: 0.125, 3: 0.5}), 2, "he12")
    omega = np.array([[1.0, 0.25, 0.5], [0.25, 1.0, -0.125], [0.5, -0.125, 1.0]]) * np.outer(lengths, lengths)
    overlaps = as_overlaps(omega, 2, [1.0, -0.5])
    result, truth = estimated(engine, problem, overlaps), exact(problem, overlaps)
    check_within_error(result, truth)
    if lengths == (1.0, 1.0, 1.0):
        # On the sphere nothing cancels: the rounding of some hundred operations, no more.
        check_close(result, truth, rtol=1e-14)
        assert all(np.all(result.error[name] < 1e-12 * np.abs(result.value[name])) for name in MOMENTS)


@pytest.mark.slow
def test_four_different_units_and_a_long_target():
    problem, engine = made(tl.MultiIndex("(z1 - 0.5)**12", k=1), 4, "he3")
    rng = np.random.default_rng(0)
    root = np.round(rng.standard_normal((5, 5)) * 8) / 16
    overlaps = as_overlaps(root @ root.T, 4, [1.0, -0.5, 0.25, 2.0])
    check_within_error(estimated(engine, problem, overlaps), exact(problem, overlaps))


@pytest.mark.slow
def test_singular_covariances():
    """Zero rows, duplicate and opposite units, and perfect recovery, where nothing is left."""
    problem, engine = made(tl.Committee(2, "he3"), 2, "he3")
    for rows in ([(0, 0), (0, 0)], [(0, 0), (1, 0.5)], [(1, 0.5), (1, 0.5)], [(1, 0), (-1, 0)], [(1, 0), (0, 1)]):
        root = np.array([*rows, (1.0, 0.0), (0.0, 1.0)])
        overlaps = as_overlaps(root @ root.T, 2, [1.0, 1.0])
        result, truth = estimated(engine, problem, overlaps), exact(problem, overlaps)
        check_within_error(result, truth)
        check_close(result, truth, rtol=1e-14, atol=1e-14)
    assert truth["excess_risk"] == 0 and float(result.error["excess_risk"]) < 1e-12


def random_covariances(number, n, seed):
    """Spectra spread evenly in the logarithm over up to ten decades, in random frames, with random lengths."""
    rng = np.random.default_rng(seed)
    frames = np.linalg.qr(rng.standard_normal((number, n, n)))[0]
    spectra = 10.0 ** (-rng.uniform(0.0, 10.0, (number, 1)) * rng.uniform(0.0, 1.0, (number, n)))
    omega = (frames * spectra[:, None, :]) @ np.swapaxes(frames, 1, 2)
    lengths = rng.uniform(0.3, 1.5, (number, n)) / np.sqrt(np.diagonal(omega, axis1=1, axis2=2))
    omega = omega * lengths[:, :, None] * lengths[:, None, :]
    return 0.5 * (omega + np.swapaxes(omega, 1, 2)), rng.standard_normal((number, n))


@pytest.mark.slow
@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs extended precision")
def test_many_ill_conditioned_covariances():
    p, number = 2, 10_000
    problem, engine = made(tl.MultiIndex("z1**2*z2 - 0.3*z2**3 + z1", k=2), p, "he4")
    omega, a = random_covariances(number, p + problem.k, seed=1)
    a = a[:, :p]

    def one(omega, a):
        return estimated(engine, problem, Overlaps(omega[:p, :p], omega[:p, p:], omega[p:, p:], a))

    result = jax.jit(lambda *rows: jax.lax.map(lambda row: one(*row), rows, batch_size=500))(omega, a)
    wide = np.moveaxis(omega, 0, -1).astype(np.longdouble)
    truth = reference(problem, wide, np.moveaxis(a, 0, -1).astype(np.longdouble), np.longdouble)
    operations = 2 * engine.polynomials.total_degree + 16
    for name in MOMENTS:
        true = np.moveaxis(np.array(truth[name], dtype=np.longdouble), -1, 0)
        missed, error = np.abs(np.asarray(result.value[name]) - true), np.asarray(result.error[name])
        assert np.all(missed <= error)
        # The error is ``operations * EPS`` times the sum of the absolute values of the terms.
        scale = np.maximum(np.abs(true), error / (operations * EPS))
        assert np.all(missed <= 1e-12 * scale)
        assert np.median(error / np.abs(true)) < 1e-12  # useful, too
    for index in range(0, number, number // 20):
        row = jax.tree.map(lambda x, index=index: x[index], result)
        check_within_error(row, exact(problem, as_overlaps(omega[index], p, a[index])))


def test_each_polynomial_is_held_in_the_basis_where_it_is_short():
    bases = {"linear": 0.0, "square": 0.0, "he2": 1.0, "he3": 1.0, "he12": 1.0}
    for name, base in bases.items():
        polynomials = made(tl.SingleIndex(name), 1, name)[1].polynomials
        assert diagram_tables.student_block(polynomials).base == base
        assert [diagram_tables.target_block(polynomials, power).base for power in (1, 2)] == [base, base]
    # A small student of squares: no digit is lost to the variance one of the Hermite polynomials.
    problem, engine = made(tl.MultiIndex("0", k=1), 1, "square", noise=0.0)
    risk = engine.parts(problem, as_overlaps(np.diag([1e-6, 1.0]), 1, [1.0]), ("excess_risk",))["excess_risk"]
    assert float(risk) == pytest.approx(1.5e-12, rel=1e-14)


# ------------------------------------------------------------------------------------------------ derivatives


@pytest.mark.slow
def test_derivatives_at_singular_covariances():
    """In reverse, against a central difference in rational arithmetic along a direction that leaves the cone."""
    problem, engine = made(tl.Hermite({(3, 0): 1.0, (1, 1): 0.5}), 2, "he3")
    a = np.array([1.0, 2.0])
    direction = np.round(np.random.default_rng(0).standard_normal((4, 4)) * 4) / 4
    direction = direction + direction.T
    step = 2.0**-16

    def total(omega):
        overlaps = Overlaps(omega[:2, :2], omega[:2, 2:], omega[2:, 2:], jnp.asarray(a))
        return sum(jnp.sum(x) for x in engine.parts(problem, overlaps, MOMENTS).values())

    slope = jax.jit(jax.grad(total))
    for rows in ([(0, 0), (0, 0)], [(1, 0.5), (1, 0.5)], [(1, 0), (0, 1)]):
        root = np.array([*rows, (1.0, 0.0), (0.0, 1.0)])
        gradient = np.asarray(slope(jnp.asarray(root @ root.T)))
        assert np.all(np.isfinite(gradient))
        moved = [exact(problem, as_overlaps(root @ root.T + x * step * direction, 2, a)) for x in (1.0, -1.0)]
        up, down = (sum(np.sum(moments[name]) for name in MOMENTS) for moments in moved)
        # The difference quotient is off by the third derivative, of order 1e4, times the square of the step.
        assert np.sum(gradient * direction) == pytest.approx(float((up - down) / Fraction(2 * step)), rel=1e-6)


# ------------------------------------------------------------------------------------------ size of the work


def equations(jaxpr):
    inner = [x for equation in jaxpr.eqns for x in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr)]
    return len(jaxpr.eqns) + sum(equations(getattr(x, "jaxpr", x)) for x in inner if is_jaxpr(x))


def is_jaxpr(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


def test_the_program_grows_neither_with_the_width_nor_with_the_degree():
    sizes, tables = [], []
    for p, activation in ((2, "he3"), (16, "he3"), (16, "he12")):
        problem, engine = made(tl.Hermite({3: 1.0}), p, activation)
        overlaps = as_overlaps(np.eye(p + 1), p, np.ones(p))
        sizes.append(equations(jax.make_jaxpr(lambda o, e=engine, q=problem: e.parts(q, o, MOMENTS))(overlaps).jaxpr))
        stages = diagram_tables.stages_of(engine.polynomials)
        tables.append([len(stage.keep) for chain in stages for stage in chain])
    assert sizes[0] == sizes[1] == sizes[2]
    assert tables[0] == tables[1] and max(tables[1]) == 12
    assert max(tables[2]) == 250


@pytest.mark.slow
def test_chunks_change_nothing(monkeypatch):
    problem, engine = made(tl.Hermite({3: 1.0}), 4, "he3")
    overlaps = as_overlaps(0.5 * np.eye(5) + 0.5, 4, [1.0, -1.0, 2.0, 0.5])
    whole = jax.jit(lambda o: engine.parts(problem, o, ("phi_hd",)))(overlaps)
    assert list(whole) == ["phi_hd"]  # what is not wanted is not computed
    monkeypatch.setattr(polynomial_tables, "CHUNK", 600)  # three pairs at a time, of ten
    chunks = jax.jit(lambda o: engine.parts(problem, o, ("phi_hd",)))(overlaps)
    np.testing.assert_allclose(chunks["phi_hd"], whole["phi_hd"], rtol=1e-14)


def refusals(target, activation="he3"):
    problem = tl.Problem(target, tl.Student(2, activation), tl.Gaussian(100))
    return {moment: PolynomialTables.suits(problem, moment).reason for moment in (*MOMENTS, "covariance")}


def test_what_is_refused_and_why():
    served = {"excess_risk": "", "chi": "", "v": "", "phi_hd": "", "covariance": "there are no tables for `covariance`"}
    assert refusals(tl.Hermite({12: 1.0}), "he12") == served
    assert refusals(tl.MultiIndex("(z1 + z2*z3 + z3**2 - z2)**4", k=3), "he12") == served
    assert "not a polynomial" in refusals(tl.Hermite({2: 1.0}), "erf")["chi"]
    assert "not a polynomial" in refusals(tl.SingleIndex("tanh"))["chi"]
    # The square of a product of twelve fields has 3^12 derivatives, the product itself 2^12.
    long = refusals(tl.Staircase(12))
    assert long["chi"] == long["v"] == ""
    assert str(MAX_TERMS) in long["excess_risk"] and str(MAX_TERMS) in long["phi_hd"]
    many = refusals(tl.MultiIndex("(z1 + z2 + z3 + z4 + 1)**12", k=4))
    assert many["chi"] == "" and "3312400 products" in many["excess_risk"]  # (16 choose 4)^2
    with pytest.raises(tl.InvalidInput, match="at most 1e"):
        tl.MultiIndex("(1e9*z1)**12 * (1e9*z1)**12", k=1)


def test_counting_agrees_with_the_tables():
    _, engine = made(tl.MultiIndex("z1**2*z2*z3 + z3**4 - z2", k=3), 2, "he4")
    starts = [diagram_tables.target_block(engine.polynomials, power).orders for power in (2, 1)]
    for start, units in zip(starts, [(3, 3), (3, 3, 4)], strict=True):
        stages = diagram_tables._chain(start, units, np.ones(5, dtype=bool))
        assert diagram_tables._longest(start.total, units) == max(len(stage.keep) for stage in stages[1:])
