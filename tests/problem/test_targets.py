"""Every target against its formula, and what it declares about itself."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import eval_hermitenorm

import twolayer as tl
from twolayer.core.errors import InvalidInput, NotApplicable
from twolayer.specification.codec import to_json

RNG = np.random.default_rng(11)
CLOSE = {"rtol": 1e-12, "atol": 1e-12}  # closed formulas in float64
P2 = np.array([[1.3, 0.4], [0.4, 0.9]])

# target, its formula over the columns of the fields
TARGETS = {
    "committee": (tl.Committee(3, "tanh"), lambda x: np.tanh(x).mean(axis=-1)),
    "weighted committee": (
        tl.Committee(2, "square", P=P2, second_layer=[0.5, -2.0]),
        lambda x: (0.5 * x[..., 0] ** 2 - 2.0 * x[..., 1] ** 2) / 2,
    ),
    "single index": (tl.SingleIndex("tanh"), lambda x: np.tanh(x[..., 0])),
    "single index formula": (tl.SingleIndex("z**3 - 3*z1"), lambda x: x[..., 0] ** 3 - 3 * x[..., 0]),
    "single index z": (tl.SingleIndex("z"), lambda x: x[..., 0]),
    "single index function": (tl.SingleIndex(jnp.cos), lambda x: np.cos(x[..., 0])),
    "phase retrieval": (tl.PhaseRetrieval(), lambda x: x[..., 0] ** 2),
    "multi index": (tl.MultiIndex("tanh(z1) + z1*z2"), lambda x: np.tanh(x[..., 0]) + x[..., 0] * x[..., 1]),
    "multi index, k above use": (tl.MultiIndex("z2", k=3), lambda x: x[..., 1]),
    "multi index function": (
        tl.MultiIndex(lambda z: z[0] * jnp.sin(z[2]), k=3),
        lambda x: x[..., 0] * np.sin(x[..., 2]),
    ),
    "hermite": (tl.Hermite({3: 1.0, 0: 0.5}), lambda x: 0.5 + eval_hermitenorm(3, x[..., 0])),
    "hermite of two": (
        tl.Hermite({(1, 0): 1.0, (2, 3): -0.5}),
        lambda x: x[..., 0] - 0.5 * eval_hermitenorm(2, x[..., 0]) * eval_hermitenorm(3, x[..., 1]),
    ),
    "staircase": (
        tl.Staircase(3),
        lambda x: x[..., 0] + x[..., 0] * x[..., 1] + x[..., 0] * x[..., 1] * x[..., 2],
    ),
    "weighted staircase": (
        tl.Staircase(2, coefficients=[2.0, -1.0]),
        lambda x: 2.0 * x[..., 0] - x[..., 0] * x[..., 1],
    ),
}
rows = pytest.mark.parametrize("target, formula", TARGETS.values(), ids=TARGETS)


@rows
def test_values(target, formula):
    x = RNG.standard_normal((4, 5, target.k))
    np.testing.assert_allclose(target(jnp.asarray(x)), formula(x), **CLOSE)
    np.testing.assert_allclose(target(jnp.asarray(x[0, 0])), formula(x[0, 0]), **CLOSE)


@rows
def test_polynomial_and_units_are_the_function(target, formula):
    x = RNG.standard_normal((10, target.k))
    if target.polynomial is not None:
        assert target.polynomial.variables == target.k
        terms = [c * np.prod(x ** np.array(e), axis=1) for e, c in target.polynomial.terms.items()]
        np.testing.assert_allclose(np.sum(terms, axis=0), formula(x), rtol=1e-11, atol=1e-11)
    if target.units is not None:
        units = np.asarray(target.units.activation(jnp.asarray(x)))
        np.testing.assert_allclose(units @ np.asarray(target.units.weights), formula(x), **CLOSE)


def test_which_targets_are_polynomials_units_and_smooth():
    found = {
        name: (target.polynomial is not None, target.units is not None, target.is_smooth)
        for name, (target, _) in TARGETS.items()
    }
    assert {name for name, (polynomial, _, _) in found.items() if polynomial} == {
        "weighted committee",
        "single index formula",
        "single index z",
        "phase retrieval",
        "multi index, k above use",
        "hermite",
        "hermite of two",
        "staircase",
        "weighted staircase",
    }
    assert {name for name, (_, units, _) in found.items() if units} == {
        "committee",
        "weighted committee",
        "single index",
        "single index function",
        "phase retrieval",
    }
    assert all(smooth for _, _, smooth in found.values())
    assert not tl.Committee(2, "relu").is_smooth
    assert not tl.SingleIndex("relu").is_smooth and not tl.SingleIndex("abs(z)").is_smooth
    assert not tl.MultiIndex("max(z1, z2)").is_smooth
    assert not tl.MultiIndex(lambda z: jnp.abs(z[0]), k=1, smooth=False).is_smooth


@rows
def test_target_overlaps(target, formula):
    expected = P2 if target.k == 2 and getattr(target, "P", None) is not None else np.eye(target.k)
    np.testing.assert_array_equal(target.target_overlaps, expected)


def test_labels_have_no_formula():
    labels = tl.Labels()
    assert labels.k == 0 and labels.target_overlaps.shape == (0, 0)
    with pytest.raises(NotApplicable, match="Samples"):
        labels(jnp.zeros((3, 0)))


@pytest.mark.parametrize(
    "P, words",
    [
        (np.eye(3), r"shape \(k, k\) = \(2, 2\), but has shape \(3, 3\)"),
        ([[1.0, 0.2], [0.1, 1.0]], "symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "positive definite"),
        ([[1.0, 1.0], [1.0, 1.0]], "positive definite"),
        ([[0.0, 0.0], [0.0, 1.0]], "positive definite"),
        ([1.0, 2.0], "2 dimensions"),
        ([[np.nan, 0.0], [0.0, 1.0]], "finite"),
    ],
)
def test_bad_target_overlaps_are_refused(P, words):
    with pytest.raises(InvalidInput, match=words):
        tl.Committee(2, "erf", P=P)


def test_a_committee_accepts_any_positive_definite_overlap():
    A = RNG.standard_normal((3, 3))
    P = A @ A.T + 0.1 * np.eye(3)
    np.testing.assert_array_equal(tl.Committee(3, "erf", P=P).target_overlaps, P)
    assert tl.Committee(1, "erf", P=[[1e-3]]).k == 1


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: tl.Committee(0, "erf"), "`k`"),
        (lambda: tl.Committee(2, "erf", second_layer=[1.0]), "`second_layer` must have k = 2 entries"),
        (lambda: tl.Committee(2, "erff"), "did you mean 'erf'"),
        (lambda: tl.SingleIndex("z1 + z2"), "`link` must use only the field z"),
        (lambda: tl.SingleIndex("tanhh"), "did you mean 'tanh'"),
        (lambda: tl.SingleIndex("log(z)"), "finite at every input"),
        (lambda: tl.SingleIndex(3), "activation must be"),
        (lambda: tl.MultiIndex("z1*z3", k=2), "`k` must be at least 3 for a formula with z3, but is 2"),
        (lambda: tl.MultiIndex("3.0"), "`k`"),
        (lambda: tl.MultiIndex("sqrt(z1)"), "finite at every input"),
        (lambda: tl.MultiIndex("1/0", k=1), "must be a finite real number"),
        (lambda: tl.MultiIndex(lambda z: z[0]), "`k` must be given"),
        (
            lambda: tl.MultiIndex(lambda z: z, k=2),
            "`function` must map 2 fields to one number|must return one number for 2 fields",
        ),
        (lambda: tl.MultiIndex(lambda z: jnp.nan * z[0], k=1), "finite at every input"),
        (lambda: tl.MultiIndex(lambda z: z[0].real.missing, k=1), "`function`"),
        (lambda: tl.MultiIndex(lambda z, w: z[0], k=1), "`function`"),
        (lambda: tl.MultiIndex(lambda z: "text", k=1), "`function`"),
        (lambda: tl.MultiIndex(lambda z: None, k=1), "`function`"),
        (lambda: tl.MultiIndex(lambda z: float(z[0]), k=1), "`function`"),
        (lambda: tl.MultiIndex("z1", k=33), "`k`"),
        (lambda: tl.Hermite({}), "`coefficients`"),
        (lambda: tl.Hermite({-1: 1.0}), "degree"),
        (lambda: tl.Hermite({13: 1.0}), "degree"),
        (lambda: tl.Hermite({(7, 7): 1.0}), "degree"),
        (lambda: tl.Hermite({"a": 1.0}), "degree"),
        (lambda: tl.Hermite({2.7: 1.0}), "degree"),
        (lambda: tl.Hermite({(): 1.0}), "degree"),
        (lambda: tl.Hermite({1: 1.0, (1, 2): 1.0}), "same number of fields"),
        (lambda: tl.Hermite({3: 1.0, "3": 2.0}), "twice"),
        (lambda: tl.Hermite({1: float("nan")}), "finite"),
        (lambda: tl.Staircase(0), "`k`"),
        (lambda: tl.Staircase(13), "`k`"),
        (lambda: tl.Staircase(2, coefficients=[1.0]), "k = 2 entries"),
    ],
)
def test_bad_targets_are_refused(build, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_values_of_a_wrong_type_are_refused_without_the_type_checker_too(fresh_python):
    """The checker of the test session would answer first; users do not have it."""
    program = """
import twolayer as tl
for build in (
    lambda: tl.Hermite({1: "a"}), lambda: tl.Hermite({1: [1.0, 2.0]}),
    lambda: tl.Hermite([1.0]), lambda: tl.Hermite(None),
    lambda: tl.MultiIndex("z1", k="1"), lambda: tl.MultiIndex("z1", k=1.5), lambda: tl.MultiIndex("z1", smooth=1),
):
    try:
        print("accepted", build())
    except tl.InvalidInput:
        pass
"""
    assert fresh_python(program) == ""


def test_hermite_tables_are_the_same_however_they_are_written():
    tables = [{(1, 0): 1.0, (0, 3): 0.5}, {"0,3": 0.5, "1,0": 1}, {(0, 3): 0.5, (1, 0): 1}]
    same = [tl.Hermite(table) for table in tables]
    assert len({to_json(target) for target in same}) == 1
    assert len({hash(target) for target in same}) == 1
    assert tl.Hermite({3: 2.0}).k == 1 and same[0].k == 2


def test_hermite_polynomials_are_orthogonal_with_norm_n_factorial():
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    for n in range(1, 5):
        values = np.asarray(tl.Hermite({n: 1.0})(jnp.asarray(nodes[:, None])))
        assert weights @ values**2 == pytest.approx(math.factorial(n), rel=1e-12)
        assert weights @ values == pytest.approx(0.0, abs=1e-12)


def test_numbers_of_a_target_can_be_differentiated():
    x = jnp.asarray([0.5, -2.0])
    slope = jax.grad(lambda c: tl.Staircase(2, coefficients=c)(x))(jnp.asarray([1.0, 1.0]))
    np.testing.assert_allclose(slope, [0.5, -1.0])
    slope = jax.grad(lambda c: tl.Committee(2, "square", second_layer=c)(x))(jnp.asarray([1.0, 1.0]))
    np.testing.assert_allclose(slope, [0.125, 2.0])
