"""Closed equations as formulas: against the numerical right-hand side, and against formulas known by heart."""

import itertools
import json
from functools import partial
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp

import twolayer as tl
from twolayer.expectation import choose
from twolayer.expectation.gaussian_moments import MOMENTS, Moments, fields_from_normals, from_cloud
from twolayer.theory.motion.drift import drift

SPHERE = tl.Sphere()
NOISE = 0.3


class Cubic(tl.AbstractActivation):
    """A user's own polynomial, neither even nor odd."""

    kinks: ClassVar[tuple[float, ...]] = ()
    parity: ClassVar[int] = 0
    growth: ClassVar[int] = 3
    coefficients: ClassVar[tuple[float, ...] | None] = (0.5, 0.0, -1.0, 2.0)

    def __call__(self, x):
        return 0.5 - x**2 + 2.0 * x**3


def problem(target, p, activation, **rest):
    return tl.Problem(target, tl.Student(p, activation, **rest), tl.Gaussian(1000), noise=NOISE)


CASES = {
    "phase retrieval, p = 1": (problem(tl.PhaseRetrieval(), 1, "square"), tl.SGD(0.2)),
    "phase retrieval, p = 2, sphere": (problem(tl.PhaseRetrieval(), 2, "square"), tl.SGD(0.2, constraint=SPHERE)),
    "phase retrieval, p = 3, both layers, sphere": (
        problem(tl.PhaseRetrieval(), 3, "square"),
        tl.SGD(0.2, constraint=SPHERE, layers=tl.Both(0.7)),
    ),
    "linear, decay": (problem(tl.SingleIndex("linear"), 3, "linear"), tl.SGD(0.2, weight_decay=0.3)),
    "he2 on z1 + z1 z2": (problem(tl.MultiIndex("z1 + z1*z2"), 2, "he2"), tl.SGD(0.2)),
    "he2 on a committee of squares": (
        problem(tl.Committee(2, "square", P=[[1.0, 0.3], [0.3, 2.0]], second_layer=[1.0, -0.5]), 2, "he2",
                second_layer=[0.3, -2.0]),
        tl.SGD(0.2, layers=tl.Both(0.7), weight_decay=0.1),
    ),
    "he3 on He3, random second layer": (
        problem(tl.Hermite({3: 1.0, 1: 0.3}), 2, "he3", second_layer="gaussian"),
        tl.SGD(0.2, weight_decay=0.2),
    ),
    "he3 on He3, sphere": (problem(tl.Hermite({3: 1.0}), 2, "he3"), tl.SGD(0.2, constraint=SPHERE, weight_decay=0.2)),
    "he3 on a formula, both layers, sphere": (
        problem(tl.MultiIndex("z1 + z1*z2/3 + pi*z2**3"), 2, "he3"),
        tl.SGD(0.2, constraint=SPHERE, layers=tl.Both(0.7)),
    ),
    "cubic on a staircase": (problem(tl.Staircase(2), 2, Cubic()), tl.SGD(0.2)),
    "he4 alone": (problem(tl.Hermite({4: 0.25, 2: 1.0}), 1, "he4"), tl.SGD(0.2, layers=tl.Both(1.5))),
}  # fmt: skip
FORMS = [{"symbolic_p": symbolic_p, "general": general} for symbolic_p in (False, True) for general in (False, True)]


def overlaps_for(equations, p, k, seed):
    """Random positive overlaps, with the numbers that the equations put in."""
    rng = np.random.default_rng(seed)
    given = equations.given
    W, W_star = rng.standard_normal((p, p + k + 1)), rng.standard_normal((k, p + k + 1))
    W_star = np.linalg.qr(W_star.T)[0].T if given.is_orthonormal else W_star / np.sqrt(p + k)
    W = W / (np.linalg.norm(W, axis=1, keepdims=True) if given.has_unit_rows else np.sqrt(p + k))
    a = np.ones(p) if given.has_unit_weights else rng.standard_normal(p)
    return tl.Overlaps(*map(jnp.asarray, (W @ W.T, W @ W_star.T, W_star @ W_star.T, a)))


def arrays(overlaps):
    return [np.asarray(x) for x in (overlaps.Q, overlaps.M, overlaps.P, overlaps.a)]


@eqx.filter_jit
def by_quadrature(problem, training, overlaps):
    """dQ, dM, da and risk from the definition of the moments, by a product rule exact up to degree 15 in each normal.

    No diagram, no Stein's lemma: nothing of the formulas is used.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(8)
    n = problem.p + problem.k
    normals = np.array(list(itertools.product(points, repeat=n)))
    weight = np.prod(list(itertools.product(weights / weights.sum(), repeat=n)), axis=1)
    fields = fields_from_normals(overlaps, jnp.asarray(normals))
    moments = Moments(**from_cloud(problem, overlaps.a, fields, jnp.asarray(weight), MOMENTS))
    return *drift(problem, training, overlaps, moments), moments.excess_risk + problem.noise / 2


@eqx.filter_jit
def by_engine(problem, training, overlaps):
    """The same by the engine that the numerical theory chooses."""
    moments = choose(problem).moments(problem, overlaps)
    return *drift(problem, training, overlaps, moments), moments.excess_risk + problem.noise / 2


def check_close(found, expected):
    """Equal up to rounding relative to the largest entry; measured: 1e-14 at most."""
    for x, y in zip(found, map(np.asarray, expected), strict=True):
        assert x.shape == y.shape
        assert np.max(np.abs(x - y)) <= 1e-12 * max(1.0, float(np.max(np.abs(y))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case if i % 2 == 0 else pytest.param(case, marks=pytest.mark.long) for i, case in enumerate(CASES)]
)
def test_right_hand_side_is_that_of_the_numerical_theory(case):
    stated, training = CASES[case]
    for seed, form in enumerate(FORMS):
        equations = tl.derive(stated, training, **form)
        overlaps = overlaps_for(equations, stated.p, stated.k, seed)
        found = *equations.lambdify()(*arrays(overlaps)), equations.lambdify_risk()(*arrays(overlaps))
        check_close(found, by_quadrature(stated, training, overlaps))


@pytest.mark.parametrize(
    "case",
    [
        "phase retrieval, p = 3, both layers, sphere",
        pytest.param("he3 on a formula, both layers, sphere", marks=pytest.mark.slow),
    ],
)
def test_right_hand_side_is_that_of_the_closed_engines(case):
    stated, training = CASES[case]
    equations = tl.derive(stated, training)
    overlaps = overlaps_for(equations, stated.p, stated.k, seed=7)
    found = *equations.lambdify()(*arrays(overlaps)), equations.lambdify_risk()(*arrays(overlaps))
    check_close(found, by_engine(stated, training, overlaps))


def test_other_rates_than_those_of_the_problem():
    stated, training = CASES["he2 on a committee of squares"]
    equations = tl.derive(stated, training)
    overlaps = overlaps_for(equations, 2, 2, seed=0)
    other = tl.Problem(stated.target, stated.student, stated.inputs, noise=0.05)
    *expected, _ = by_quadrature(other, tl.SGD(0.9, layers=tl.Both(2.0), weight_decay=0.4), overlaps)
    found = equations.lambdify()(*arrays(overlaps), gamma=0.9, Delta=0.05, kappa=2.0, weight_decay=0.4)
    check_close(found, expected)


# --------------------------------------------------------------------------------------- known by heart


def test_phase_retrieval_on_the_sphere_is_the_bernoulli_equation():
    equations = tl.derive(problem(tl.PhaseRetrieval(), 1, "square"), tl.SGD(0.1, constraint=SPHERE))
    m, gamma, Delta = equations.M[0, 0], equations.gamma, equations.Delta
    known = m * (4 * (1 - 6 * gamma) * (1 - m**2) - 2 * gamma * Delta)
    assert sp.expand(equations.dM[0, 0] - known) == 0
    assert sp.expand(equations.risk - (2 * (1 - m**2) + Delta / 2)) == 0
    assert equations.dQ == sp.zeros(1, 1) and equations.da == sp.zeros(1, 1)
    # Laid out as one would by hand, not multiplied out.
    assert equations.equations()[0].text == "dM_11/dt = 2*M_11*(2*(1 - M_11**2)*(1 - 6*gamma) - Delta*gamma)"


def test_phase_retrieval_at_p_1_with_any_length_of_the_target():
    equations = tl.derive(problem(tl.PhaseRetrieval(), 1, "square"), tl.SGD(0.1), general=True)
    q, m, rho, gamma, Delta = (equations.Q[0], equations.M[0], equations.P[0], equations.gamma, equations.Delta)
    tau1, tau2 = rho - q, rho**2 - 2 * m**2 + q**2
    dm = 6 * m * (rho - q)
    dq = 4 * ((rho - q) * q + 2 * (m**2 - q**2)) + 4 * gamma * (
        (tau1**2 + 2 * tau2 + Delta) * q + 4 * tau1 * (m**2 - q**2) + 8 * (q**3 - 2 * q * m**2 + rho * m**2)
    )
    ones = {equations.a[0]: 1}
    assert sp.expand(equations.dM[0].subs(ones) - dm) == 0
    assert sp.expand(equations.dQ[0].subs(ones) - dq) == 0


def matrix_form(equations, weights):
    """Squares at any p and k, from the generating function: products of small matrices instead of averages."""
    p, k = equations.p, equations.k
    Omega = sp.Matrix(sp.BlockMatrix([[equations.Q, equations.M], [equations.M.T, equations.P]]))
    D = sp.diag(*(-equations.a / p), *weights)
    tau1, tau2 = (D * Omega).trace(), (D * Omega * D * Omega).trace()
    X1 = tau1 * Omega + 2 * Omega * D * Omega
    X2 = (tau1**2 + 2 * tau2 + equations.Delta) * Omega + 4 * tau1 * Omega * D * Omega
    X2 += 8 * Omega * D * Omega * D * Omega
    a, gamma, kappa = equations.a, equations.gamma, equations.kappa
    dM = sp.Matrix(p, k, lambda j, r: 2 * a[j] * X1[j, p + r])
    dQ = sp.Matrix(p, p, lambda j, l: 2 * (a[j] + a[l]) * X1[j, l] + 4 * gamma / p * a[j] * a[l] * X2[j, l])
    return dQ, dM, sp.Matrix(p, 1, lambda j, _: kappa * X1[j, j]), (tau1**2 + 2 * tau2 + equations.Delta) / 2


@pytest.mark.parametrize(("p", "k"), [(2, 1), (2, 2)])
def test_squares_are_the_matrix_form(p, k):
    weights = [sp.Rational(3, 2), -1][:k]
    target = tl.Committee(k, "square", second_layer=[k * float(w) for w in weights])
    equations = tl.derive(problem(target, p, "square"), tl.SGD(0.1, layers=tl.Both(1.0)), general=True)
    dQ, dM, da, risk = matrix_form(equations, weights)
    for found, known in ((equations.dQ, dQ), (equations.dM, dM), (equations.da, da)):
        assert (sp.Matrix(found) - known).expand() == sp.zeros(*known.shape)
    assert sp.expand(equations.risk - risk) == 0


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_phase_retrieval_escapes_at_the_known_rate(p):
    """Linearised at M = 0, Q = 1: M grows at r_p / 2, and Q off the diagonal relaxes."""
    equations = tl.derive(problem(tl.PhaseRetrieval(), p, "square"), tl.SGD(0.1, constraint=SPHERE))
    unknowns = {*equations.M, *equations.Q} - {1}
    at_start = {x: 0 for x in unknowns}
    gamma, Delta = equations.gamma, equations.Delta
    c_p = 1 + sp.Rational(1, p) + sp.Rational(4, p**2) + Delta / 2
    rate = sp.diff(equations.dM[0, 0], equations.M[0, 0]).subs(at_start)
    assert sp.expand(2 * rate - 8 * (1 - gamma / p * c_p)) == 0
    if p > 1:
        relaxation = sp.diff(equations.dQ[0, 1], equations.Q[0, 1]).subs(at_start)
        assert sp.expand(relaxation + sp.Rational(8, p) * (1 - 8 * gamma / p**2)) == 0


@pytest.mark.parametrize("training", [tl.SGD(0.1, layers=tl.Both(1.0)), tl.SGD(0.1, constraint=SPHERE)])
def test_sums_written_out_are_the_equations_at_that_width(training):
    stated = problem(tl.Hermite({(1, 0): 1.0, (1, 1): 0.5}), 2, "he2")
    written, indexed = tl.derive(stated, training), tl.derive(stated, training, symbolic_p=True)
    names = [(x, sp.Matrix(y)) for x, y in (("Q", written.Q), ("M", written.M), ("a", written.a))]

    def at(expression, j, l):
        full = expression.subs({sp.Symbol("p"): 2, sp.Symbol("j"): j, sp.Symbol("l"): l}).doit()
        entries = {x: dict(names)[str(x.base)][tuple(int(n) - 1 for n in x.indices)] if len(x.indices) == 2
                   else written.a[int(x.indices[0]) - 1] for x in full.atoms(sp.Indexed)}  # fmt: skip
        return full.subs(entries)

    for j, l in itertools.product((1, 2), repeat=2):
        assert sp.expand(at(indexed.dQ[0], j, l) - written.dQ[j - 1, l - 1]) == 0
    for j, r in itertools.product((1, 2), repeat=2):
        assert sp.expand(at(indexed.dM[r - 1], j, 1) - written.dM[j - 1, r - 1]) == 0
    assert sp.expand(at(indexed.risk, 1, 1) - written.risk) == 0


def test_a_student_that_has_learned_rests():
    """Without noise, p = k and matching weights: every derivative vanishes identically in P."""
    stated = problem(tl.Committee(2, "he3"), 2, "he3")
    equations = tl.derive(stated, tl.SGD(0.1, layers=tl.Both(1.0)), general=True)
    learned = {equations.Delta: 0, **dict.fromkeys(equations.a, 1)}
    learned |= dict(zip(equations.Q, equations.P, strict=True)) | dict(zip(equations.M, equations.P, strict=True))
    for matrix in (equations.dQ, equations.dM, equations.da):
        assert sp.Matrix(matrix.subs(learned)).expand() == sp.zeros(*matrix.shape)
    assert sp.expand(equations.risk.subs(learned)) == 0


# ----------------------------------------------------------------------------------- as functions and as text


@pytest.mark.slow
def test_functions_work_in_jax_and_on_batches():
    stated, training = CASES["he3 on He3, random second layer"]
    for form in ({}, {"symbolic_p": True}):
        equations = tl.derive(stated, training, **form)
        states = [overlaps_for(equations, 2, 1, seed) for seed in range(3)]
        Q, M, a = (np.stack([np.asarray(getattr(x, name)) for x in states]) for name in ("Q", "M", "a"))
        expected = [equations.lambdify()(*state, a=weights) for *state, weights in zip(Q, M, a, strict=True)]
        batch = equations.lambdify()(Q, M, a=a)
        check_close(batch, [np.stack(x) for x in zip(*expected, strict=True)])
        mapped = jax.jit(jax.vmap(partial(equations.lambdify(jnp), P=jnp.eye(1))))(Q, M, a=a)
        check_close([np.asarray(x) for x in mapped], batch)


def test_the_width_is_free_when_it_is_a_symbol():
    """One formula, derived at p = 2, at p = 6."""
    equations = tl.derive(problem(tl.PhaseRetrieval(), 2, "square"), tl.SGD(0.2), symbolic_p=True)
    wide = problem(tl.PhaseRetrieval(), 6, "square")
    overlaps = overlaps_for(equations, 6, 1, seed=3)
    *expected, risk = by_engine(wide, tl.SGD(0.2), overlaps)
    check_close(equations.lambdify()(overlaps.Q, overlaps.M), expected)
    check_close([equations.lambdify_risk()(overlaps.Q, overlaps.M)], [risk])


def test_arguments_that_contradict_the_formulas_are_refused():
    Q, M = np.eye(2), np.array([[0.1], [0.2]])
    fixed = tl.derive(problem(tl.PhaseRetrieval(), 2, "square"), tl.SGD(0.2, constraint=SPHERE)).lambdify()
    for arguments, words in [
        ({"Q": 2 * Q}, "`Q` must have ones"),
        ({"P": [[2.0]]}, "`P` must be the identity"),
        ({"a": [1.0, 2.0]}, "`a` must be all ones"),
        ({"P": np.eye(2)}, r"`P` must have shape \(1, 1\)"),
        ({"a": np.ones(3)}, r"`a` must have shape \(2,\)"),
        ({"M": M.T}, r"shapes \(p, p\) and \(p, k\)"),
        ({"Q": np.eye(3), "M": np.zeros((3, 1))}, "p = 2 rows"),
    ]:
        with pytest.raises(tl.InvalidInput, match=words):
            fixed(**({"Q": Q, "M": M} | arguments))
    drawn = tl.derive(problem(tl.PhaseRetrieval(), 2, "square", second_layer="gaussian"), tl.SGD(0.2))
    with pytest.raises(tl.InvalidInput, match="`a` must be given"):
        drawn.lambdify()(Q, M)
    whole = drawn.lambdify()(np.eye(2, dtype=int), np.zeros((2, 1), dtype=int), a=[1, 2])
    check_close(whole, drawn.lambdify()(np.eye(2), np.zeros((2, 1)), a=[1.0, 2.0]))


def test_text_latex_and_data():
    equations = tl.derive(problem(tl.PhaseRetrieval(), 2, "square"), tl.SGD(0.2, layers=tl.Both(1.0), weight_decay=0.1))
    lefts = ["dM_11/dt", "dM_21/dt", "dQ_11/dt", "dQ_12/dt", "dQ_22/dt", "da_1/dt", "da_2/dt", "risk"]
    assert [equation.left for equation in equations.equations()] == lefts
    text = equations.text()
    assert all(f"\n{left} = " in text for left in lefts) and "P the identity" in text and "lambda_w" in text
    assert str(equations) == text and max(map(len, text.splitlines())) <= 120
    latex = equations.latex()
    assert latex.startswith(r"\begin{aligned}") and latex.count(r"\\" + "\n") == len(lefts) - 1
    assert latex.count("{") == latex.count("}") and latex.count(r"\left") == latex.count(r"\right")
    assert r"\frac{d Q_{12}}{dt} &= " in latex and r"\lambda_{w}" in latex
    assert latex in equations._repr_latex_() and equations._repr_latex_().startswith("$$")
    data = json.loads(json.dumps(equations.to_dict()))
    assert list(data["equations"]) == lefts and data["p"] == 2
    # The text is the formula: sympy reads it back.
    for left, entry in zip(("dM_11/dt", "risk"), (equations.dM[0], equations.risk), strict=True):
        assert sp.expand(sp.sympify(data["equations"][left]["text"].split(" = ")[1]) - entry) == 0


def test_names_stay_clear_beyond_nine():
    equations = tl.derive(problem(tl.MultiIndex("z1 + z10", k=10), 2, "linear"), tl.SGD(0.2))
    assert str(equations.M[1, 9]) == "M_2_10" and str(equations.Q[1, 0]) == "Q_1_2"
    assert len(equations.equations()) == 20 + 3 + 1


def test_zero_is_structure_and_numbers_are_symbols():
    stated = problem(tl.PhaseRetrieval(), 1, "square")
    plain = tl.derive(stated, tl.SGD(0.2))
    used = set().union(*(x.free_symbols for x in (*plain.dQ, *plain.dM, plain.risk)))
    assert {x.name for x in used} == {"M_11", "Q_11", "gamma", "Delta"}
    decaying = tl.derive(stated, tl.SGD(0.2, weight_decay=0.5))
    assert decaying.weight_decay in decaying.dM[0].free_symbols
    short = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(99), start=tl.RandomStart(norm=0.5))
    sphere = tl.derive(short, tl.SGD(0.2, constraint=SPHERE))
    assert str(sphere.Q[0]) == "Q_11" and sphere.dQ[0] == 0 and "does not move" in sphere.text()


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("target", "activation", "words"),
    [
        (tl.PhaseRetrieval(), "erf", r"student's activation is Erf\(\)"),
        (tl.PhaseRetrieval(), lambda x: x**3, "student's activation is Custom"),
        (tl.Committee(2, "erf"), "square", r"target is Erf\(\)"),
        (tl.SingleIndex("relu"), "square", r"target is Relu\(\)"),
        (tl.MultiIndex("z1*z2 + tanh(z1 + z2)"), "square", r"contains 'tanh\(z1 \+ z2\)'"),
        (tl.SingleIndex("z**2/(1 + z**2)"), "square", r"contains 'z \*\* 2 / \(1 \+ z \*\* 2\)'"),
        (tl.MultiIndex(lambda z: z[0] * z[1], k=2), "square", "target is <function"),
    ],
)
def test_what_is_not_a_polynomial_is_named(target, activation, words):
    with pytest.raises(tl.NotApplicable, match=words):
        tl.derive(problem(target, 2, activation), tl.SGD(0.1))


def test_what_the_theory_does_not_cover_is_refused():
    stated = problem(tl.PhaseRetrieval(), 2, "square")
    with pytest.raises(tl.NotApplicable, match="momentum"):
        tl.derive(stated, tl.SGD(0.1, momentum=0.5))
    with pytest.raises(tl.NotApplicable, match="fresh batches"):
        tl.derive(stated, tl.SGD(0.1, reuse=tl.Reused(2.0)))


def test_a_schedule_of_learning_rates_has_the_equations_of_each_phase():
    """The rate is a symbol in them; phases that differ in more have equations of their own."""
    stated = problem(tl.PhaseRetrieval(), 1, "square")
    rates = tl.Schedule([tl.SGD(0.1, constraint=tl.Sphere()), tl.SGD(0.05, constraint=tl.Sphere())], [1.0])
    assert tl.derive(stated, rates).text() == tl.derive(stated, rates.phases[1]).text()
    mixed = tl.Schedule([tl.SGD(0.1, constraint=tl.Sphere()), tl.SGD(0.1)], [1.0])
    with pytest.raises(tl.NotApplicable, match="differ in the learning rate alone"):
        tl.derive(stated, mixed)


def test_formulas_too_long_to_read_are_refused(monkeypatch):
    with pytest.raises(tl.NotApplicable, match="keep the width as a symbol"):
        tl.derive(problem(tl.PhaseRetrieval(), 40, "square"), tl.SGD(0.1))
    with pytest.raises(tl.NotApplicable, match=r"terms for Q\[j, l\]"):
        tl.derive(problem(tl.Hermite({6: 1.0}), 2, "he6"), tl.SGD(0.1), symbolic_p=True)
    monkeypatch.setattr("twolayer.theory.symbolic.motion.MAX_WRITTEN", 3000)  # the limit itself takes seconds to reach
    with pytest.raises(tl.NotApplicable, match="one of its averages"):
        tl.derive(problem(tl.Hermite({12: 1.0}), 2, "he12"), tl.SGD(0.1))
    # On the unit sphere Hermite polynomials keep one order alone, and the same problem is short.
    assert len(tl.derive(problem(tl.Hermite({12: 1.0}), 1, "he12"), tl.SGD(0.1, constraint=SPHERE)).text()) < 1000


def test_other_losses_are_refused():
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100), loss="huber")
    with pytest.raises(tl.NotApplicable, match="square or the correlation loss"):
        tl.derive(problem, tl.SGD(0.1))
