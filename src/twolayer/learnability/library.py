"""Targets from the literature by name, with their known exponents and stages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NamedTarget:
    """A target with its known exponents; ``stages`` are pairs of a leap and the number of directions that it adds."""

    formula: str
    information_exponent: int
    leap: int
    generative_exponent: int
    stages: tuple[tuple[int, int], ...]
    about: str = ""


def named_targets() -> dict[str, NamedTarget]:
    """Return the targets of the library by name, with their known exponents."""
    return dict(_TARGETS)


_TARGETS = {
    "linear": NamedTarget("z1", 1, 1, 1, ((1, 1),), "linear regression"),
    "phase-retrieval": NamedTarget("z1**2", 2, 2, 2, ((2, 1),), "Arnaboldi et al. 2023, escaping mediocrity"),
    "he2": NamedTarget("he2(z1)", 2, 2, 2, ((2, 1),)),
    "he3": NamedTarget("he3(z1)", 3, 3, 1, ((3, 1),), "odd: reuse makes it easy (Dandi et al. 2024)"),
    "he4": NamedTarget("he4(z1)", 4, 4, 2, ((4, 1),), "even: reuse leaves exponent 2"),
    "he5": NamedTarget("he5(z1)", 5, 5, 1, ((5, 1),)),
    "relu": NamedTarget("relu(z1)", 1, 1, 1, ((1, 1),)),
    "abs": NamedTarget("abs(z1)", 2, 2, 2, ((2, 1),), "phase retrieval of moduli"),
    "sign": NamedTarget("sign(z1)", 1, 1, 1, ((1, 1),), "the perceptron"),
    "damian": NamedTarget("z1**2*exp(-z1**2)", 4, 4, 4, ((4, 1),), "generative exponent 4 (Damian et al. 2024)"),
    "cubic": NamedTarget("z1**3", 1, 1, 1, ((1, 1),), "a cube has a linear part"),
    "staircase-2": NamedTarget("z1 + z1*z2", 1, 1, 1, ((1, 1), (1, 1)), "Abbe et al. 2022"),
    "staircase-3": NamedTarget("z1 + z1*z2 + z1*z2*z3", 1, 1, 1, ((1, 1), (1, 1), (1, 1)), "Abbe et al. 2022"),
    "staircase-4": NamedTarget(
        "z1 + z1*z2 + z1*z2*z3 + z1*z2*z3*z4", 1, 1, 1, ((1, 1), (1, 1), (1, 1), (1, 1)), "Abbe et al. 2022"
    ),
    "broken-staircase": NamedTarget("z1 + z1*z2*z3", 1, 2, 1, ((1, 1), (2, 2)), "a step is missing: leap 2"),
    "even-staircase": NamedTarget("he2(z1) + z1*z2*z3", 2, 2, 2, ((2, 1), (2, 2))),
    "parity-2": NamedTarget("z1*z2", 2, 2, 2, ((2, 2),)),
    "parity-3": NamedTarget("z1*z2*z3", 3, 3, 2, ((3, 3),)),
    "parity-4": NamedTarget("z1*z2*z3*z4", 4, 4, 2, ((4, 4),)),
    "sign-parity-2": NamedTarget("sign(z1*z2)", 2, 2, 2, ((2, 2),)),
    "sign-parity-3": NamedTarget("sign(z1*z2*z3)", 3, 3, 3, ((3, 3),), "hard for reuse as well"),
    "sign-parity-4": NamedTarget("sign(z1*z2*z3*z4)", 4, 4, 4, ((4, 4),)),
    "hidden-he3": NamedTarget("z1 + he3(z2)", 1, 3, 1, ((1, 1), (3, 1)), "leap 3 after a first step"),
    "gated-he3": NamedTarget("z1 + z1*he3(z2)", 1, 3, 1, ((1, 1), (3, 1))),
    "reused-tanh": NamedTarget("tanh(z1 + he3(z2))", 1, 1, 1, ((1, 1), (1, 1)), "Dandi et al. 2024, reusing batches"),
    "two-tanh": NamedTarget("tanh(z1) + tanh(z2)", 1, 2, 1, ((1, 1), (2, 1)), "leap 1 only in a lucky basis"),
    "rotated-staircase": NamedTarget("(z1 + z2)/sqrt(2) + (z1**2 - z2**2)/2", 1, 1, 1, ((1, 1), (1, 1))),
    "he2-and-he3": NamedTarget("he2(z1) + he3(z2)", 2, 3, 1, ((2, 1), (3, 1))),
    "three-stages": NamedTarget("z1 + z1*z2 + z2*he2(z3)", 1, 2, 1, ((1, 1), (1, 1), (2, 1))),
    "sum-of-squares": NamedTarget("z1**2 + z2**2 + z3**2 + z4**2", 2, 2, 2, ((2, 4),), "a quadratic network"),
    "opposite-squares": NamedTarget("z1**2 - z2**2", 2, 2, 2, ((2, 2),)),
    "maximum": NamedTarget("max(z1, z2)", 1, 2, 1, ((1, 1), (2, 1))),
    "gated-parity": NamedTarget("he2(z1) + z1*z2 + he3(z3)*z2", 2, 3, 2, ((2, 2), (3, 1))),
}
