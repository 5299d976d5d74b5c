"""Decide whether a number is zero: by a proof, by an error bar, or not at all."""

import enum
from dataclasses import dataclass
from typing import Any

# A coefficient below this fraction of the target's standard deviation is never called nonzero, and one that is known
# less accurately than this is never called zero.
TOLERANCE = 1e-9


class Verdict(enum.Enum):
    """Whether a number is zero, nonzero, or undecided."""

    ZERO = "zero"
    NONZERO = "nonzero"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Certificate:
    """A size in units of the target's standard deviation, a bound on its error, and whether it is zero."""

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
        """The largest size that is not excluded."""
        return max(TOLERANCE, self.value + self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain data."""
        plain = {"verdict": self.verdict.value, "value": self.value, "error": self.error, "proof": self.proof or None}
        return plain | ({"undecided_at": self.resolution} if self.verdict is Verdict.UNDECIDED else {})


def decide(value: float, lower_error: float, upper_error: float, proof: str | None = None) -> Certificate:
    """Decide whether a size is zero.

    Parameters
    ----------
    value
        The computed size, at least zero.
    lower_error, upper_error
        By how much the true size may be smaller and larger.
    proof
        Why the true size is zero, if that is known.
    """
    if proof:
        return Certificate(Verdict.ZERO, 0.0, 0.0, proof)
    if value - lower_error > TOLERANCE:
        return Certificate(Verdict.NONZERO, value, lower_error)
    if value <= upper_error <= TOLERANCE:
        return Certificate(Verdict.ZERO, value, upper_error)
    return Certificate(Verdict.UNDECIDED, value, upper_error)
