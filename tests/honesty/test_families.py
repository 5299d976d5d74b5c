"""No engine reports less than its true error on jumps, growth, bumps and waves drawn from a seed."""

import warnings

import numpy as np
import pytest

from twolayer.core.errors import NotApplicable
from twolayer.expectation import ENGINES, Auto, estimate

from .families import FAMILIES, MOMENTS, Group, Pair, draw, is_extreme, reference

SEED = 15
# One function of each family by default; with the slow tests 2,000 cases.
QUICK, ALL = draw(SEED, 1, 6), draw(SEED + 1, 10, 50)
# Compiling is most of the cost: by default the engines that are chosen, and one more that the family would deceive.
ALSO = {"jumps": "Cloud", "growth": "Cloud", "bumps": "Quadrature", "narrow targets": "Quadrature"}
# What the references may be off by, in units of the largest entry: rounding in sums of some 10^5 numbers.
ROUNDING = 1e-13


def served(pair: Pair, engine: str | None) -> tuple[str, ...]:
    """The moments that an engine serves, or any of them when None."""
    auto, problem = Auto(engines=engine and (engine,)), pair.problem()
    moments = []
    for moment in MOMENTS:
        try:
            auto.assign(problem, (moment,))
        except NotApplicable:
            continue
        moments.append(moment)
    return tuple(moments)


def check(group: Group, engines: tuple[str, ...]) -> tuple[list[str], int]:
    """The default engines and these at every state: what is wrong, and how many states the default engines refuse."""
    pair, problem = group.pair, group.pair.problem()
    truths = [reference(pair, state) for state in group.states]
    for state, truth in zip(group.states[:2], truths, strict=False):
        coarser = reference(pair, state, 12)
        for moment in MOMENTS:
            assert np.max(np.abs(truth[moment] - coarser[moment])) <= 1e-9 * np.max(np.abs(truth[moment])) + 1e-12
    wrong, refused = [], 0
    for engine in (None, *engines):
        wanted = served(pair, engine)
        if engine is None and wanted != MOMENTS:
            refused = sum(not is_extreme(pair, state) for state in group.states)
        if not wanted:
            continue
        if engine is not None and engine in default_engines(pair):
            continue  # the default has shown it
        chosen = Auto(engines=engine and (engine,)).choose(problem, wanted)
        for state, truth in zip(group.states, truths, strict=True):
            result = estimate(chosen, problem, state.overlaps(pair.shape), wanted)
            is_finite = True
            for moment in wanted:
                value, error = (np.asarray(part[moment]) for part in (result.value, result.error))
                is_finite = is_finite and bool(np.all(np.isfinite(error)))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)
                    true = np.where(np.isinf(error), 0.0, np.abs(value - truth[moment]))
                if not np.all(true <= error + ROUNDING * np.max(np.abs(truth[moment]))):
                    wrong.append(f"{engine or 'default'}, {moment} at {state}: reports {error}, true {true}")
            refused += engine is None and not is_finite and not is_extreme(pair, state)
    return wrong, refused


def default_engines(pair: Pair) -> tuple[str, ...]:
    """The engines that serve every moment when nothing is said, if it is one alone."""
    try:
        assigned = set(Auto().assign(pair.problem(), MOMENTS)[0].values())
    except NotApplicable:
        return ()
    return tuple(assigned) if len(assigned) == 1 else ()


def name(group: Group) -> str:
    pair = group.pair
    return f"{pair.family}: {pair.student.given} on {pair.target.given}, {pair.shape}".replace("\n", " ")


@pytest.mark.parametrize("group", QUICK, ids=FAMILIES)
def test_no_engine_reports_less_than_its_true_error(group):
    wrong, refused = check(group, (ALSO[group.pair.family],))
    assert not wrong, "\n".join([name(group), *wrong])
    assert refused == 0


@pytest.mark.long
@pytest.mark.parametrize("group", ALL, ids=[f"{group.pair.family} {i % 10}" for i, group in enumerate(ALL)])
def test_no_engine_reports_less_than_its_true_error_in_2000_cases(group):
    wrong, refused = check(group, tuple(ENGINES))
    assert not wrong, "\n".join([name(group), *wrong])
    assert refused <= 0.05 * len(group.states), f"{refused} of {len(group.states)} refused: {name(group)}"


def test_the_families_cover_what_they_promise():
    assert sum(len(group.states) for group in ALL) == 2000
    assert {group.pair.family for group in ALL} == set(FAMILIES)
    assert {group.pair.shape for group in ALL} == {"plain", "twin", "oblique"}
    lengths = np.array([state.Q**0.5 for group in ALL for state in group.states])
    assert lengths.min() < 0.15 and lengths.max() > 15.0
    assert 200 < sum(state.rest == 0.0 for group in ALL for state in group.states) < 800
    assert sum(is_extreme(group.pair, state) for group in ALL for state in group.states) < 200
