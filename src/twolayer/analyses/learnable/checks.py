"""What the check button of `learn` brings: giant steps and slopes beside their predictions, each with a verdict."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.data.deviation import Finding, judge_number, worst_outcome
from twolayer.data.summary import explained, finite

# The relative deviation of a slope from its prediction that corrections at finite d may cause.
AGREES = 0.1


@dataclass(frozen=True)
class GiantSteps:
    """What giant steps found, step by step; every array has the axes step and direction."""

    description: str
    student: str
    predicted: tuple[tuple[str, ...], ...]
    cosines: np.ndarray  # largest cosine of a neuron with each direction, in the predicted order
    directions: tuple[str, ...]
    expected: np.ndarray  # whether the direction may be there after the step
    present: np.ndarray  # whether it must be there
    absent: np.ndarray  # whether it must not
    floor: float  # a cosine above this is there
    ceiling: float  # a cosine below this is not

    @property
    def share(self) -> float:
        """The share of the cosines that are there, or are not, as predicted."""
        right = np.sum(self.cosines[self.present] > self.floor) + np.sum(self.cosines[self.absent] < self.ceiling)
        return float(right / max(1, np.sum(self.present) + np.sum(self.absent)))

    @property
    def compared(self) -> tuple[float, float, float]:
        """The predicted share, the measured one, and its error."""
        return 1.0, self.share, 0.0

    @property
    def agrees(self) -> bool:
        """Whether all of them are."""
        return self.share == 1.0

    @property
    def finding(self) -> Finding:
        """The verdict."""
        outcome = "agrees" if self.agrees else "differs" if np.all(np.isfinite(self.cosines)) else "undecided"
        heads = {
            "agrees": f"The order of directions agrees with {self.description}",
            "differs": f"The order of directions differs from {self.description}",
            "undecided": f"The order of directions against {self.description} is undecided, since the run did not end",
        }
        parts = [f"{self.share:.0%} of the cosines after {len(self.cosines)} steps are as predicted"]
        if self.present.any():
            parts.append(f"the smallest one that should be there is {np.min(self.cosines[self.present]):.2g}")
        if self.absent.any():
            parts.append(f"the largest one that should not is {np.max(self.cosines[self.absent]):.2g}")
        sentence = f"{heads[outcome]}: {'; '.join(parts)}."
        return Finding("order of directions", self.description, outcome, sentence, 0.0, "", np.inf)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        own = {name: getattr(self, name) for name in ("description", "student", "predicted", "directions", "cosines")}
        return _plain(own | {"agrees": self.agrees}) | self.finding.attributes

    def __str__(self) -> str:
        head = f"Giant steps ({self.description}; {self.student}): largest cosine of a neuron with each direction"
        rows = [f"{'':10}" + "".join(f"{name:>18}" for name in self.directions)]
        for step, (row, expected) in enumerate(zip(self.cosines, self.expected, strict=True), start=1):
            cells = (f"{x:.3g}{'' if e else ' (none)'}" for x, e in zip(row, expected, strict=True))
            rows.append(f"  step {step:<3}" + "".join(f"{cell:>18}" for cell in cells))
        judgement = "as predicted" if self.agrees else "NOT as predicted"
        return "\n".join([head, *rows, f"  {judgement}; (none) marks directions that are predicted to be absent"])


@dataclass(frozen=True)
class Slope:
    """How the steps of escape grow with the dimension, measured by `OverlapSGD`."""

    exponent: int
    definition: str
    dimensions: tuple[int, ...]
    steps: tuple[float, ...]
    errors: tuple[float, ...]  # standard errors
    runs: tuple[int, ...]
    slope: float
    slope_error: float
    predicted: float

    @property
    def compared(self) -> tuple[float, float, float]:
        """The predicted slope, the measured one, and its standard error."""
        return self.predicted, self.slope, self.slope_error

    @property
    def agrees(self) -> bool:
        """Whether the slope is within 10% of the predicted one."""
        return bool(abs(self.slope / self.predicted - 1.0) < AGREES)

    @property
    def finding(self) -> Finding:
        """The verdict: a deviation of at most 10% counts as an effect of finite d, where corrections are that large."""
        measured = (self.slope, self.slope_error, min(self.runs))
        return judge_number("The slope of the escape", self.predicted, 0.0, *measured, AGREES * abs(self.predicted))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        own = {{"dimensions": "d", "errors": "stderr"}.get(name, name): value for name, value in vars(self).items()}
        return _plain(own | {"agrees": self.agrees}) | self.finding.attributes

    def __str__(self) -> str:
        lines = [f"Escape (OverlapSGD, one neuron He_{self.exponent}): {self.definition}"]
        rows = zip(self.dimensions, self.steps, self.errors, self.runs, strict=True)
        lines += [f"  d = {d:<8} {steps:>12.4g} +- {error:<9.2g} steps, {runs} runs" for d, steps, error, runs in rows]
        judgement = "within 10%" if self.agrees else "NOT within 10%"
        lines.append(f"  slope {self.slope:.3f} +- {self.slope_error:.3f}, predicted {self.predicted:.3f}: {judgement}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Checks:
    """All checks of one analysis, and why some were not made."""

    giant_steps: GiantSteps | None
    reused_batch: GiantSteps | None
    slope: Slope | None
    notes: tuple[str, ...]

    @property
    def checks(self) -> dict[str, GiantSteps | Slope]:
        """The checks that were made, by name."""
        named = {"giant steps": self.giant_steps, "one batch again": self.reused_batch, "escape against d": self.slope}
        return {name: item for name, item in named.items() if item is not None}

    @property
    def agrees(self) -> bool:
        """Whether every check that was made agrees."""
        return all(item.agrees for item in self.checks.values())

    @property
    def outcome(self) -> str:
        """The worst of the verdicts, in one word."""
        return worst_outcome(item.finding.outcome for item in self.checks.values())

    @property
    def verdict(self) -> str:
        """The verdicts in sentences."""
        return " ".join(item.finding.sentence for item in self.checks.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        every = {name: getattr(self, name) for name in ("giant_steps", "reused_batch", "slope")}
        plain = {name: None if item is None else item.to_dict() for name, item in every.items()}
        verdict = {"agrees": self.agrees, "outcome": self.outcome, "verdict": self.verdict}
        return plain | verdict | {"notes": list(self.notes)}

    def __str__(self) -> str:
        sentences = [item.finding.sentence for item in self.checks.values()]
        verdict = "\n".join([*sentences, f"Verdict: {explained(self.outcome)}."])
        return "\n\n".join([*map(str, self.checks.values()), *self.notes, verdict])


def _plain(value: Any) -> Any:
    """The same for JSON: lists in place of arrays and tuples, None for numbers that do not exist."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(item) for item in value]
    return finite(value) if isinstance(value, float) else value
