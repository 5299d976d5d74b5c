"""How it is decided whether a number is zero: by proof, by an error bar, or not at all."""

import enum
from dataclasses import dataclass
from typing import Any

# A coefficient below this share of the target's deviation is not called nonzero, and one that is not known to this
# accuracy is not called zero.
TOLERANCE = 1e-9


class Verdict(enum.Enum):
    """Whether something vanishes."""

    ZERO = "zero"
    NONZERO = "nonzero"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Certificate:
    """A size, a bound on its error, and what follows; sizes are in units of the target's standard deviation."""

    verdict: Verdict
    value: float
    error: float
    proof: str = ""  # why it is exactly zero

    def __str__(self) -> str:
        if self.verdict is Verdict.ZERO:
            return f"zero, {self.proof}" if self.proof else f"zero within {max(self.error, 1e-16):.1g}"
        if self.verdict is Verdict.NONZERO:
            return f"{self.value:.4g} ± {self.error:.1g}"
        return f"undecided at {self.resolution:.1g}: {self.value:.2g} ± {self.error:.1g}"

    @property
    def resolution(self) -> float:
        """What size is not excluded."""
        return max(TOLERANCE, self.value + self.error)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plain = {"verdict": self.verdict.value, "value": self.value, "error": self.error, "proof": self.proof or None}
        return plain | ({"undecided_at": self.resolution} if self.verdict is Verdict.UNDECIDED else {})


def decide(value: float, lower_error: float, upper_error: float, proof: str | None = None) -> Certificate:
    """The verdict on a size.

    Parameters
    ----------
    value
        What was computed, at least zero.
    lower_error, upper_error
        How much smaller and how much larger the truth may be.
    proof
        Why the truth is zero, where that is known.
    """
    if proof:
        return Certificate(Verdict.ZERO, 0.0, 0.0, proof)
    if value - lower_error > TOLERANCE:
        return Certificate(Verdict.NONZERO, value, lower_error)
    if value <= upper_error <= TOLERANCE:
        return Certificate(Verdict.ZERO, value, upper_error)
    return Certificate(Verdict.UNDECIDED, value, upper_error)
