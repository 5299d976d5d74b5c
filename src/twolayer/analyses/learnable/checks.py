"""What the check button of `learn` brings: giant steps and slopes beside their predictions, each with a verdict."""

from dataclasses import dataclass
from typing import Any

from twolayer.analyses.learnable.direction_order import GiantSteps, on_fresh_batches, on_one_batch
from twolayer.analyses.learnable.escape_slope import Slope, escape_slope
from twolayer.core.checkpoint import Checkpoint
from twolayer.core.precision import double
from twolayer.data.deviation import worst_outcome
from twolayer.data.summary import verdict_lines
from twolayer.learnability import Learnability
from twolayer.verbs.progress import Progress, nobody


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
        """The verdicts of all checks, in sentences."""
        return " ".join(item.finding.sentence for item in self.checks.values())

    def to_dict(self) -> dict[str, Any]:
        """Convert all checks and their verdict to plain data, for JSON."""
        every = {name: getattr(self, name) for name in ("giant_steps", "reused_batch", "slope")}
        plain = {name: None if item is None else item.to_dict() for name, item in every.items()}
        verdict = {"agrees": self.agrees, "outcome": self.outcome, "verdict": self.verdict}
        return plain | verdict | {"notes": list(self.notes)}

    def __str__(self) -> str:
        verdict = "\n".join(verdict_lines({"outcome": self.outcome, "verdict": self.verdict}))
        return "\n\n".join([*map(str, self.checks.values()), *self.notes, verdict])


def run_checks(
    analysis: Learnability,
    seed: int = 0,
    tell: Progress = nobody,
    largest: int | None = None,
    checkpoint: Checkpoint | None = None,
) -> Checks:
    """Run what the analysis predicts, by descriptions that know nothing of it.

    Parameters
    ----------
    analysis
        The analysis.
    seed
        The seed of every random number.
    tell
        Called with the name of what is done, and the fraction of it.
    largest
        The largest dimension for the slope; all of them when None.
    checkpoint
        The folder in which every run keeps its place, and its result until all are done.
    """
    with double():
        giant = on_fresh_batches(analysis, tell, checkpoint)
        reused = on_one_batch(analysis, tell, checkpoint)
        slope = escape_slope(analysis, seed, tell, largest, checkpoint)
    notes = (slope,) if isinstance(slope, str) else ()
    return Checks(giant, reused, slope if isinstance(slope, Slope) else None, notes)
