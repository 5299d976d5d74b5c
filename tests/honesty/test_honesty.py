"""No engine reports an error smaller than its true one: every engine against integrals that are known exactly."""

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest

from twolayer.core.errors import NotApplicable
from twolayer.expectation import ENGINES, Auto, estimate

from .integrals import TAGS, Case, cases, problem

CASES = cases()
PROBLEMS = list(dict.fromkeys(case.setting.problem for case in CASES))


def cases_of(name: str) -> list[Case]:
    return [case for case in CASES if case.setting.problem == name]


def reports(name: str, engine: str, moments: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Value and error of every case of these moments of a problem: one compiled program for all of them."""
    chosen = Auto(engines=(engine,)).choose(problem(name), moments)
    results = {}
    ours = [case for case in cases_of(name) if case.moment in moments]
    for setting in {id(case.setting): case.setting for case in ours}.values():
        result = estimate(chosen, problem(name), setting.state.overlaps, moments)
        for case in ours:
            if case.setting is setting:
                value, error = (np.asarray(part[case.moment])[case.index] for part in (result.value, result.error))
                results[case.name] = float(value), float(error)
    return results


@cache
def serves(name: str, engine: str, moment: str) -> bool:
    try:
        Auto(engines=(engine,)).assign(problem(name), (moment,))
    except NotApplicable:
        return False
    return True


@cache
def served_by(name: str, moment: str) -> str:
    """The engine that is chosen when nothing is said; empty when all refuse, which takes a sentence."""
    try:
        assigned, _ = Auto().assign(problem(name), (moment,))
    except NotApplicable as refusal:
        assert str(refusal).endswith(".") and len(str(refusal).split()) > 4, f"refused without a sentence: {refusal}"
        return ""
    return assigned[moment]


# One compiled program for each engine and problem, which is most of the cost: by default the engines that are chosen
# when nothing is said, on all problems, since this is the first promise; then every engine on all that it serves.
# Of these problems, whose programs take longest to compile, some moments are asked for by default.
SOME = {
    "tanh 2 on wave 1": ("chi",),
    "relu 2 on polynomial 2": ("excess_risk",),
    "relu 2 on sigmoid 2": ("excess_risk", "chi", "v"),
    "hard 2 on relu 1": ("excess_risk", "chi", "v"),
}


# Of these problems, too, every engine on all that it serves takes minutes in all; these are left to `--long`.
EXPENSIVE = {
    *SOME,
    "sine 2 on wave 1",
    "leaky 2 on tanh 1",
    "square 3 on phase 1",
    "growing 2 on exponential 1",
    "sigmoid 2 on sigmoid 1",
}


def tiers():
    """The default engines, and all of them; the second holds the first: the tier that runs it leaves the first out."""
    for name in PROBLEMS:
        is_expensive = name in EXPENSIVE
        yield pytest.param(name, True, id=f"{name}-default", marks=[] if is_expensive else pytest.mark.contained)
        yield pytest.param(name, False, id=f"{name}-all", marks=pytest.mark.long if is_expensive else pytest.mark.slow)


@pytest.mark.parametrize("name, is_default", list(tiers()))
def test_no_engine_reports_less_than_its_true_error(name, is_default):
    """The exact value is rounded to a float, and so is the engine's: two units in the last place are allowed."""
    asked = tuple(dict.fromkeys(case.moment for case in cases_of(name)))
    wrong = []
    for engine in ENGINES:
        moments = tuple(moment for moment in asked if serves(name, engine, moment))
        if is_default:
            wanted = SOME.get(name, moments)
            moments = tuple(moment for moment in moments if moment in wanted and served_by(name, moment) == engine)
        results = reports(name, engine, moments) if moments else {}
        for case in cases_of(name):
            if case.name not in results:
                continue
            exact, (value, error) = float(case.exact), results[case.name]
            true = abs(value - exact)
            if not true <= error + 2.0 * np.spacing(abs(exact)):
                wrong.append(f"{engine} at {case.name}: reports {error:.2g}, true {true:.2g}, exact {exact:.6g}")
            if served_by(name, case.moment) == engine and not math.isfinite(error):
                wrong.append(f"{engine} at {case.name}: the error is {error}")
    assert not wrong, "\n".join(wrong)


def test_the_expensive_problems_are_problems():
    assert set(PROBLEMS) >= EXPENSIVE


def test_the_integrals_cover_what_they_promise():
    """At least 75 of them, four of each kind, widths 1 to 4 on 1 to 3 target fields, and 2 to k + 3 fields touched."""
    assert len(CASES) >= 75 and len({case.name for case in CASES}) == len(CASES)
    count = Counter(tag for case in CASES for tag in case.tags)
    assert set(count) == set(TAGS) and min(count.values()) >= 4
    shapes = {(problem(case.setting.problem).p, problem(case.setting.problem).k) for case in CASES}
    assert {p for p, _ in shapes} == {1, 2, 3, 4} and {k for _, k in shapes} == {1, 2, 3}
    for k in (1, 2, 3):
        touched = {case.fields for case in CASES if problem(case.setting.problem).k == k}
        assert touched >= set(range(k + 1, k + 4))
    for case in CASES:
        digits = case.exact.lstrip("-").replace(".", "").split("e")[0].lstrip("0")
        assert case.exact == "0" or len(digits) >= 30
        assert ("smooth" in case.tags) != ("kinked" in case.tags)
