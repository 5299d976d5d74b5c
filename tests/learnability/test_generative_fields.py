"""A formula that varies along fewer directions than it has fields is analysed in these directions."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.learnability.formula import formula_of, in_fewest_fields

CASES = {
    "z1*z2 + z1*z3": (2, 2, ["z1", "z2+z3"]),
    "z1*z2*z3 + z1*z2*z4": (3, 2, ["z1", "z2", "z3+z4"]),
    "(z1 + 2*z2)*z3 + z4*(z1 + 2*z2)": (2, 2, ["z1+2*z2", "z3+z4"]),
    "tanh(z1 + z2)*(z1 - z3)": (2, 2, ["z1-z3", "z1+2*z2+z3"]),
    "he3(0.6*z1 + 0.8*z2) + z3": (3, 1, ["0.6*z1+0.8*z2", "z3"]),
}


@pytest.mark.parametrize("formula", CASES)
def test_leaps_are_those_of_the_formula_in_fewest_fields(formula):
    leap, generative_leap, names = CASES[formula]
    result = tl.learnability.analyse(formula)
    assert (result.leap, result.generative_leap) == (leap, generative_leap)
    assert [name for stage in result.generative.stages for name in result.direction_names(stage)] == names
    rows = np.concatenate([*(stage.directions for stage in result.generative.stages), result.generative.unseen])
    np.testing.assert_allclose(rows @ rows.T, np.eye(result.k), atol=1e-12)


@pytest.mark.parametrize("formula", CASES)
def test_the_formula_in_fewest_fields_has_the_same_values(formula):
    fewer = in_fewest_fields(formula_of(tl.MultiIndex(formula)))
    assert fewer is not None
    text, rows = fewer
    z = np.random.default_rng(5).normal(size=(20, rows.shape[1]))
    rotated, target = tl.MultiIndex(text, k=len(rows)), tl.MultiIndex(formula)
    np.testing.assert_allclose(rotated(jnp.asarray(z @ rows.T)), target(jnp.asarray(z)), rtol=1e-9)


@pytest.mark.parametrize("formula", ["z1*z2", "z1*z2 + z2*z3 + z3*z1", "abs(z1) + z2", "exp(-z1**2) + z1*z2*z3"])
def test_formulas_that_vary_along_all_their_fields_stay(formula):
    assert in_fewest_fields(formula_of(tl.MultiIndex(formula))) is None
