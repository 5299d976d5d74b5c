"""No engine reports less than its true error on jumps and kinks along oblique surfaces, drawn from a seed."""

import numpy as np
import pytest

import twolayer as tl
from twolayer.core.errors import NotApplicable
from twolayer.expectation import Auto, estimate

from .families import ERF, Side
from .oblique import Oblique, ObliqueState, draw_oblique, draw_state, reference

MOMENTS = ("excess_risk", "chi", "v", "phi_hd")
# What the references may be off by, in units of the largest entry.
ROUNDING = 1e-13
SEED, FUNCTIONS, STATES = 2, 20, 10


def check(case: Oblique, states: list[ObliqueState]) -> tuple[list[str], int]:
    """What is wrong at these states, and how many of them are answered."""
    coarser, truth = (reference(case, states[0], nodes) for nodes in (12, 16))
    for moment in MOMENTS:
        assert np.max(np.abs(truth[moment] - coarser[moment])) <= 1e-10 * (1.0 + np.max(np.abs(truth[moment])))
    try:
        chosen = Auto().choose(case.problem(), MOMENTS)
    except NotApplicable:
        return [], 0
    wrong = []
    for state in states:
        truth, result = reference(case, state), estimate(chosen, case.problem(), state.overlaps(case), MOMENTS)
        for moment in MOMENTS:
            value, error = (np.asarray(part[moment]) for part in (result.value, result.error))
            true = np.abs(value - truth[moment])
            if not np.all(true <= error + ROUNDING * np.max(np.abs(truth[moment]))):
                wrong.append(f"{case.formula}, {moment} at {state}: reports {error}, true {true}")
    return wrong, len(states)


def test_a_jump_that_hardly_any_point_passes():
    """Beyond 4.6 deviations there is no point in any of the nets, and without a bound on that their scatter is zero."""
    size, place = float(np.hypot(1.0, 0.5)), -4.6
    height = Side("", lambda t: (t > place) * 1.0, places=(place,))
    case = Oblique(ERF, f"step(z1 + 0.5*z2 + {-place * size})", height, 0.0, (1.0 / size, 0.5 / size))
    rng = np.random.default_rng(3)
    states = [ObliqueState((0.0, 0.0), 1.0, 0.0), *(draw_state(rng) for _ in range(3))]
    wrong, answered = check(case, states)
    assert not wrong, "\n".join(wrong)
    assert answered == 4


def test_which_formulas_jump():
    for formula, is_continuous in (
        ("step(z1 + z2)", False),
        ("max(z1, z2)", True),
        ("z1*sign(z2)", False),
        ("z1*z2", True),
    ):
        assert tl.MultiIndex(formula, k=2).is_continuous == is_continuous
    assert tl.Committee(2, "relu").is_continuous and not tl.SingleIndex("step(z)").is_continuous
    # Of a function nothing is known but what is said.
    assert not tl.MultiIndex(lambda z: z[0], k=2, smooth=False).is_continuous


@pytest.mark.long
def test_200_random_cases():
    wrong, answered = [], 0
    for function in range(FUNCTIONS):
        rng = np.random.default_rng((SEED, function))
        case = draw_oblique(rng)
        new_wrong, new_answered = check(case, [draw_state(rng) for _ in range(STATES)])
        wrong += new_wrong
        answered += new_answered
    print(f"{answered} of {FUNCTIONS * STATES} cases answered")
    assert not wrong, "\n".join(wrong)
    assert answered >= 0.95 * FUNCTIONS * STATES
