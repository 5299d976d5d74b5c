"""Formulas: whatever is typed is read or refused in one sentence, and what is learned of it takes bounded time."""

import numpy as np

import twolayer as tl
from tests.fuzz.mutations import EDGES, mutate_text
from twolayer.problem.expression import Expression

FUNCTIONS = ("exp", "sin", "cos", "log", "sqrt", "abs", "sign", "step", "erf", "relu", "tanh", "sigmoid", "he2", "he12")
NUMBERS = ("0", "1", "2", "0.5", "3.75", "1e9", "1e-9", "pi", "2**0.5", "0**0", "1/3", "12345.678901234567")
GARBAGE = (
    "(",
    ")",
    "**",
    "//",
    "@",
    "lambda: 0",
    "z1 if z1 else z2",
    "z1.real",
    "[z1]",
    "z0",
    "z99",
    "'a'",
    "1j",
    "z1=2",
)


def grow(rng: np.random.Generator, depth: int, fields: int) -> str:
    """A random formula of the grammar, up to a depth."""
    kind = int(rng.integers(8)) if depth else int(rng.integers(2))
    if kind == 0:
        return str(rng.choice(NUMBERS))
    if kind == 1:
        return f"z{int(rng.integers(1, fields + 1))}"

    def part() -> str:
        return grow(rng, depth - 1, fields)

    if kind in (2, 3, 4):
        return f"({part()} {rng.choice(['+', '-', '*', '/'])} {part()})"
    if kind == 5:
        return f"({part()})**{int(rng.integers(0, 13))}"
    if kind == 6:
        return f"{rng.choice(FUNCTIONS)}({part()})"
    return f"{rng.choice(['max', 'min'])}({part()}, {part()})"


def test_texts_are_formulas_or_refused(fuzz):
    for case in fuzz.rounds(400, 6000):
        text = grow(fuzz.rng, int(fuzz.rng.integers(1, 6)), 3)
        for _ in range(case % 3):
            place = int(fuzz.rng.integers(len(text)))
            piece = str(fuzz.rng.choice(np.array([*GARBAGE, *EDGES], dtype=object)))
            text = text[:place] + piece + text[place:] if case % 2 else mutate_text(fuzz.rng, text)

        def read(text=text):
            formula = Expression(text)
            return formula.fields, formula.is_smooth, formula.polynomial(32), formula.symbolic(32)

        fuzz.call(read, text[:200])
    assert fuzz.outcomes["answered"] > 20 and fuzz.outcomes["refused"] > 20


def test_targets_are_learned_or_refused(fuzz):
    for _ in fuzz.rounds(12, 300):
        text = grow(fuzz.rng, int(fuzz.rng.integers(1, 4)), 2)
        fuzz.call(lambda text=text: str(tl.summary(tl.learn(text))), text)
    assert fuzz.outcomes["answered"] > 2


def test_formulas_that_once_broke_it(fuzz):
    texts = ["max(log(0),pi)+z1", "sin(1e9*z1)", "cos(12345*z1)*z2", "2**0.5*z1", "((z1+z2)**12)**2", "(-8)**0.5*z1"]
    for text in texts:
        fuzz.call(lambda text=text: str(tl.summary(tl.learn(text))), text)
    fuzz.call(lambda: tl.Hermite({3: 1e308}), "Hermite")
    assert fuzz.outcomes == {"answered": 4, "refused": 3}
