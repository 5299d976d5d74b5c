"""Linear forms in the fields as text, such as ``z1`` and ``z2+z3``."""

from collections.abc import Sequence

import numpy as np

# Ratios of components that are written as whole numbers, and how close they must be.
MAX_WHOLE, CLOSE = 6, 1e-6


def form_text(direction: Sequence[float] | np.ndarray) -> str:
    """Return a linear form as text: with whole coefficients if its components have such ratios, else of unit length."""
    c = np.asarray(direction, dtype=float)
    c = np.where(np.abs(c) < 1e-7 * np.max(np.abs(c)), 0.0, c)
    smallest = float(np.min(np.abs(c[c != 0.0])))
    whole = c / smallest
    if np.all(np.abs(whole - np.round(whole)) < CLOSE) and np.max(np.abs(whole)) < MAX_WHOLE + 0.5:
        numbers = [f"{abs(round(x))}*" if abs(round(x)) != 1 else "" for x in whole]
    else:
        numbers = [f"{abs(x):.3g}*" for x in c / np.linalg.norm(c)]
    parts = [
        ("-" if x < 0 else "+", f"{number}z{i + 1}")
        for i, (x, number) in enumerate(zip(c, numbers, strict=True))
        if x != 0.0
    ]
    text = "".join(sign + part for sign, part in parts)
    return text.removeprefix("+")
