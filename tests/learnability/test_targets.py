"""The library of named targets as a table of known answers, and answers that do not depend on the basis."""

import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.deprecation import TwolayerDeprecationWarning
from twolayer.learnability import Verdict, analyse, named_targets

TARGETS = named_targets()


def stages_of(staircase):
    return tuple((stage.leap, len(stage.directions)) for stage in staircase.stages)


def span(rows):
    return rows.T @ rows


@pytest.mark.parametrize("name", TARGETS)
def test_known_answers(name):
    known = TARGETS[name]
    result = analyse(name)
    assert result.information_exponent == known.information_exponent
    assert result.leap == known.leap
    assert result.generative_exponent == known.generative_exponent
    assert stages_of(result.staircase) == known.stages
    assert result.generative_leap is not None and result.generative_leap <= result.leap
    for stage in result.staircase.stages:
        assert not stage.undecided and stage.size.verdict is Verdict.NONZERO
        known_rows = np.concatenate([stage.known, stage.directions])
        assert np.allclose(known_rows @ known_rows.T, np.eye(len(known_rows)), atol=1e-9)


def test_the_library_is_large_enough_and_covers_four_fields():
    assert len(TARGETS) >= 25
    assert {tl.MultiIndex(each.formula).k for each in TARGETS.values()} == {1, 2, 3, 4}


def test_directions_in_words_and_in_order():
    words = {
        name: [analyse(name).direction_names(s) for s in analyse(name).staircase.stages]
        for name in ("two-tanh", "staircase-3")
    }
    assert words["staircase-3"] == [["z1"], ["z2"], ["z3"]]
    assert words["two-tanh"] == [["z1+z2"], ["z1-z2"]]
    assert analyse("z1*z2 + z1*z3").direction_names(analyse("z1*z2 + z1*z3").staircase.stages[0]) == ["z1", "z2+z3"]
    assert analyse("2*z1 + z2 + he2(z2)").direction_names(analyse("2*z1 + z2 + he2(z2)").staircase.stages[0]) == [
        "2*z1+z2"
    ]
    # E[grad tanh(z1 + He_3(z2))] by a plain rule of 400 nodes in each variable
    x, w = np.polynomial.hermite_e.hermegauss(180)
    w = w / w.sum()
    slope = 1.0 / np.cosh(np.clip(x[:, None] + (x**3 - 3 * x)[None, :], -300, 300)) ** 2
    gradient = np.array([w @ slope @ w, w @ slope @ (w * 3 * (x**2 - 1))])
    (first, _) = analyse("reused-tanh").staircase.stages
    assert np.allclose(np.abs(first.directions[0]), np.abs(gradient) / np.linalg.norm(gradient), atol=2e-3)


ROTATED = ["staircase-3", "hidden-he3", "even-staircase", "parity-3", "gated-he3", "gated-parity", "opposite-squares"]


@pytest.mark.parametrize("name", [*ROTATED[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in ROTATED[2:])])
def test_a_rotation_changes_the_directions_and_nothing_else(name):
    plain = analyse(name)
    turn = np.linalg.qr(np.random.default_rng(len(name)).standard_normal((plain.k, plain.k)))[0]
    target = plain.target
    turned = analyse(tl.MultiIndex(lambda z: target(jnp.asarray(turn) @ z), k=plain.k))
    assert stages_of(turned.staircase) == stages_of(plain.staircase)
    assert (turned.information_exponent, turned.leap) == (plain.information_exponent, plain.leap)
    for ours, theirs in zip(plain.staircase.stages, turned.staircase.stages, strict=True):
        assert np.allclose(span(ours.directions), span(theirs.directions @ turn.T), atol=1e-6)
        assert ours.size.value == pytest.approx(theirs.size.value, rel=1e-9)
        assert all(each.verdict is Verdict.ZERO and each.error < 1e-9 for each in theirs.excluded)


def test_smooth_targets_turn_too():
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((2, 2)))[0]
    turned = analyse(tl.MultiIndex(lambda z: jnp.sum(jnp.tanh(jnp.asarray(turn) @ z)), k=2))
    first, second = turned.staircase.stages
    assert (first.leap, second.leap) == (1, 2)
    assert np.allclose(span(first.directions @ turn.T), np.full((2, 2), 0.5), atol=1e-6)


def test_any_covariance_of_the_fields_is_whitened():
    # f = z1 + z1 z2 with correlated fields: z = R g, whose staircase in g is that of the rotated function.
    P = np.array([[1.0, 0.6], [0.6, 2.0]])
    result = analyse("z1 + z1*z2", P=P)
    assert (result.information_exponent, result.leap) == (1, 1)
    # the first direction is that of w*_1 itself: coefficients (1, 0) of the target's own directions
    assert result.direction_names(result.staircase.stages[0]) == ["z1"]
    committee = tl.Committee(2, "erf", P=np.array([[1.0, 0.5], [0.5, 1.0]]))
    found = analyse(committee)
    assert stages_of(found.staircase) == ((1, 1), (2, 1)) and found.direction_names(found.staircase.stages[0]) == [
        "z1+z2"
    ]
    assert found.table.how == "closed family"


@pytest.mark.parametrize(
    ("text", "words", "leap"), [("abs(z1 + z2)", "z1+z2", 2), ("he2(z2)", "z2", 2), ("erf(z1 - z3)", "z1-z3", 1)]
)
def test_directions_on_which_nothing_depends_are_proved_absent(text, words, leap):
    result = analyse(text)
    assert (result.leap, result.generative_leap) == (leap, leap)
    assert [result.direction_names(stage) for stage in result.staircase.stages] == [[words]]
    assert len(result.staircase.unseen) == result.k - 1
    assert all("no term depends" in each.proof or each.proof == "exactly" for each in result.staircase.unseen_why)


def test_sums_of_units_by_formula_are_closed():
    result = analyse("relu(z1 + 2*z2) + tanh(z1 - z2 + 0.5)")
    direct = analyse(
        tl.MultiIndex(lambda z: jnp.maximum(z[0] + 2 * z[1], 0) + jnp.tanh(z[0] - z[1] + 0.5), k=2, smooth=False)
    )
    assert result.table.how == "closed family" and direct.table.how == "quadrature"
    for n in range(1, 5):
        gap = np.abs(result.table.values[n] - direct.table.values[n])
        assert np.all(gap <= result.table.errors[n] + direct.table.errors[n])


def test_the_room_can_be_called_as_the_contract_says():
    assert tl.learnability("z1 + he3(z2)").leap == 3
    assert tl.learnability.named_targets() == TARGETS


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("3", "none of the fields"),
        ("z1 - z1", "constant"),
        ("exp(z1**2)", "no finite variance"),
        (7, "must be a formula"),
        (tl.Labels(), "labels of a data set"),
        ("+".join(f"z{i}" for i in range(1, 10)), "at most 8 fields"),
    ],
)
def test_what_is_refused(target, message):
    with pytest.raises(tl.InvalidInput, match=message):
        analyse(target)


def test_the_former_name_of_direction_names_warns():
    result = analyse("z1")
    with pytest.warns(TwolayerDeprecationWarning, match="use `direction_names` instead"):
        assert result.words(result.staircase.stages[0]) == ["z1"]
