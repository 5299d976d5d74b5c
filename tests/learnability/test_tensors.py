"""Hermite tensors against Monte Carlo and closed forms, turning with the basis, and certificates of zero."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

import twolayer as tl
from twolayer.learnability import Verdict, analyse
from twolayer.learnability.formula import formula_of
from twolayer.learnability.sources import REACH, from_values, hermite_values, table_of, values_of
from twolayer.learnability.tensors import monomials

FORMULAS = [
    "z1**3*z2 - 2*z1 + 0.3",
    "tanh(z1)*he2(z2) + abs(z1)",
    "relu(z1 + 0.5)*z3 + sign(z2)",
    "tanh(z1 + z2*z3)",
    "max(z1, z2)",
]


def table(text):
    target = tl.MultiIndex(text)
    formula = formula_of(target)
    root = np.eye(target.k)
    return table_of(target, formula, root, values_of(target, formula, root)), target


@pytest.mark.parametrize("text", FORMULAS)
def test_tensors_are_averages(text, check_mean):
    found, target = table(text)
    z = np.random.default_rng(0).standard_normal((400_000, target.k))
    f = np.asarray(target(jnp.asarray(z)))  # by JAX: another route than the formula's own values
    for n in range(min(found.order, 4) + 1):
        polynomials = [hermite_values(z[:, i], n) if n else np.ones((1, len(z))) for i in range(target.k)]
        for beta, value, error in zip(monomials(target.k, n), found.values[n], found.errors[n], strict=True):
            samples = f * np.prod([polynomials[i][b] for i, b in enumerate(beta)], axis=0)
            spread = samples.std() / math.sqrt(len(z))
            assert abs(samples.mean() - value) < 5 * spread + error, (text, beta)


@pytest.mark.parametrize("text", [text for text in FORMULAS if "z3" not in text])
def test_errors_are_honest_against_a_rule_of_another_kind(text):
    found, target = table(text)
    # One axis at a time by brute force: 2000 midpoints of equal width, jumps at zero between them.
    edges = np.linspace(-9.0, 9.0, 2001)
    x = 0.5 * (edges[1:] + edges[:-1])
    w = np.exp(-0.5 * x**2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    grid = np.stack(np.meshgrid(*[x] * target.k, indexing="ij"), axis=-1)
    values = np.asarray(target(jnp.asarray(grid)))
    for _ in range(target.k):
        values = np.tensordot(values, hermite_values(x, 3) * w, axes=(0, 1))
    for n in range(1, 3):
        for beta, value, error in zip(monomials(target.k, n), found.values[n], found.errors[n], strict=True):
            assert abs(values[tuple(beta)] - value) < error + 2e-4, (text, beta)


def test_the_tensors_of_erf_are_known():
    found, _ = table("erf(z1)")
    # sigma' is Gaussian: sigma_n = E[sigma^(n)], sigma_1 = 1/sqrt(pi), sigma_3 = -1/(2 sqrt(pi))
    assert found.values[1][0] == pytest.approx(1 / math.sqrt(math.pi), abs=1e-14)
    assert found.values[3][0] == pytest.approx(-0.5 / math.sqrt(math.pi), abs=1e-14)
    assert found.proved_zero[2][0] and found.values[2][0] == 0.0
    # E erf(x/sqrt(2))^2 = 1/3
    assert found.variance == pytest.approx(1 / 3, abs=1e-12)


def test_units_of_any_length_agree_with_quadrature():
    P = np.array([[1.0, 0.3], [0.3, 0.5]])
    committee = tl.Committee(2, "tanh", P=P, second_layer=[1.0, -2.0])
    closed = analyse(committee).table
    root = analyse(committee).root
    assert np.allclose(root @ root, P)
    plain = from_values(lambda z: np.tanh(z @ root.T) @ np.array([0.5, -1.0]), 2, 6)
    for n in range(7):
        assert np.all(np.abs(closed.values[n] - plain.values[n]) <= closed.errors[n] + plain.errors[n] + 1e-13)


def test_turned_tensors_are_those_of_the_turned_function():
    target = tl.MultiIndex("z1*z2*z3 + he3(z1) - z2**4/7 + z3")
    found, _ = table("z1*z2*z3 + he3(z1) - z2**4/7 + z3")
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    expected = from_values(lambda w: np.asarray(target(jnp.asarray(w @ turn))), 3, 4)
    for n, entries in enumerate(found.turned(turn)):
        assert np.allclose(entries, expected.values[n], atol=1e-11), n
    # the full tensor C_3 contracted with a vector is the gradient of its form
    C3, v = found.tensor(3), np.array([0.2, -0.5, 0.7])
    turned = np.einsum("abc,ia,jb,kc->ijk", C3, turn, turn, turn)
    assert np.allclose(
        np.einsum("abc,a,b,c", turned, turn @ v, turn @ v, turn @ v), np.einsum("abc,a,b,c", C3, v, v, v)
    )


# ------------------------------------------------------------------------------------------------ certificates


def test_a_symbolic_zero_is_proved():
    first = analyse("0.1*z1 + 0.2*z1 - 0.3*z1 + he2(z1)").staircase.stages[0]  # 5.6e-17 in floating point
    assert first.leap == 2 and first.excluded[0].proof == "exactly"
    roots = analyse("sqrt(2)*sqrt(3)*z1 - sqrt(6)*z1 + he2(z1)").staircase.stages[0]
    assert roots.leap == 2 and roots.excluded[0].proof == "exactly"
    symmetric = analyse("tanh(z1) + tanh(z2)").staircase.stages[1]
    assert "symmetry" in symmetric.excluded[0].proof and symmetric.excluded[0].value == 0.0
    form = analyse("tanh(z1) + he3(z2)").staircase.stages[1]
    assert [each.proof for each in form.excluded] == ["by the form of every term"] * 2


@pytest.mark.parametrize("text", ["1e-10*z1 + he2(z1)", "1e-10*z1 + cos(z1)"])
def test_a_coefficient_below_the_resolution_is_undecided(text):
    result = analyse(text)
    assert result.information_exponent is None and result.leap is None
    assert result.staircase.possible_exponents == (1, 2)
    (certificate,) = result.staircase.stages[0].excluded
    assert certificate.verdict is Verdict.UNDECIDED and certificate.resolution == 1e-9
    assert "undecided: 1 or 2" in str(result) and "undecided at 1e-09" in str(result)
    assert result.to_dict()["information_exponent"] is None
    above = analyse(text.replace("1e-10", "1e-8"))
    assert above.information_exponent == 1


def test_what_quadrature_cannot_resolve_is_undecided_and_not_zero():
    # A kink off every axis: the first order is zero by a symmetry that a JAX function does not show.
    kinked = analyse(tl.MultiIndex(lambda z: jnp.abs(z[0] + 0.7 * z[1]), k=2, smooth=False))
    first = kinked.staircase.stages[0]
    assert first.leap == 2
    for each in first.excluded:
        assert each.verdict is Verdict.UNDECIDED or each.error < 1e-9
    rounded = analyse("0.12345678901234567*z1 - 0.12345678901234566*z1 + he2(z1)")
    assert rounded.staircase.stages[0].leap == 2


def test_symmetries_are_proved_by_sympy_and_not_by_values():
    # Invisible to values at random points, but no symmetry: the certificate must not claim one.
    result = analyse("he2(z1) + 1e-13*z1")
    assert not result.staircase.stages[0].excluded[0].proof


# ------------------------------------------------------------------------------------------------- label labels


def label_information(evaluate, orders=4, bins=512):
    r"""The information :math:`E[\zeta_r(y)^2] / r!` for r = 1 .. orders and a function of one variable.

    Points of a fine grid are sorted by label and divided into bins of equal weight, with equal labels in one bin; the
    squared means of the bins are averaged. The result is a lower bound that grows with the number of bins.
    """
    edges = np.linspace(-REACH, REACH, 2**18 + 1)  # many more points than bins
    x = 0.5 * (edges[1:] + edges[:-1])
    w = np.exp(-0.5 * x**2)
    x, w = x[w > 1e-18], w[w > 1e-18]
    y = evaluate(x[:, None])
    order = np.argsort(y, kind="stable")
    x, w, y = x[order], w[order], y[order]
    place = np.minimum((np.cumsum(w) / np.sum(w) * bins).astype(int), bins - 1)
    scale = float(np.max(np.abs(y))) + 1e-300
    tied = np.concatenate([[False], np.abs(np.diff(y)) < 1e-12 * scale])
    first = np.maximum.accumulate(np.where(tied, 0, np.arange(len(y))))
    place = place[first]
    w = w / np.sum(w)
    weight = np.bincount(place, w, bins)
    filled = weight > 0
    norms = np.sqrt([float(math.factorial(n)) for n in range(orders + 1)])
    means = np.stack([np.bincount(place, w * h, bins)[filled] for h in hermite_values(x, orders) / norms[:, None]])
    return np.sum((means / weight[filled]) ** 2 * weight[filled], axis=1)[1:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("he3(z1)", (0.663, 0.612, 0.936)),
        ("he4(z1)", (0.0, 0.761, 0.0, 0.850)),
        ("z1**2*exp(-z1**2)", (0.0, 0.0, 0.0, 0.229)),
        ("z1", (1.0, 1.0)),
        ("sign(z1)", (2 / math.pi, 0.0, 1 / (3 * math.pi), 0.0)),
    ],
)
def test_information_in_the_label(text, expected):
    target = tl.MultiIndex(text)
    formula = formula_of(target)
    found = label_information(values_of(target, formula, np.eye(1)), 4)
    assert np.allclose(
        found[: len(expected)], expected, atol=0.025
    )  # higher orders live in the tails, where bins are wide


def test_erf_agrees_with_scipy():
    target = tl.MultiIndex("erf(z1)")
    x = np.linspace(-3, 3, 7)
    assert np.allclose(values_of(target, formula_of(target), np.eye(1))(x[:, None]), erf(x / math.sqrt(2)))
