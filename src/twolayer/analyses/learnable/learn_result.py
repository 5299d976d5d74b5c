"""The result of `learn`: the analysis, the time scale and the checks as objects, and as a labelled dataset."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.learnable.checks import Checks
from twolayer.core.text import Text
from twolayer.data.provenance import Specification, provenance
from twolayer.data.schema import Schema, Variable, add_kind, label
from twolayer.learnability import Learnability
from twolayer.learnability.stages import LearningStages
from twolayer.theory.formulas.plateau import Plateau

if TYPE_CHECKING:
    import xarray as xr

REFERENCES = ("benarous2021", "abbe2023", "dandi2023giant", "damian2024")
DEVIATION = "standard deviations of the target"
PREFIXES = ("", "generative_", "student_")


@dataclass(frozen=True)
class Learned:
    """The analysis of a target, the time scale for a student in d dimensions, and the checks that were run."""

    analysis: Learnability
    d: int | None
    plateau: Plateau | None
    checks: Checks | None

    def to_dict(self) -> dict[str, Any]:
        """Convert analysis, time scale and checks to plain data, for JSON."""
        verdict = {} if self.checks is None else {"outcome": self.checks.outcome, "verdict": self.checks.verdict}
        return (
            self.analysis.to_dict()
            | {
                "d": self.d,
                "plateau": None if self.plateau is None else self.plateau.to_dict(),
                "verify": None if self.checks is None else self.checks.to_dict(),
            }
            | verdict
        )

    def __str__(self) -> str:
        parts = [str(self.analysis)]
        if self.plateau is not None:
            parts.append(_in_numbers(self.plateau, self.d))
        if self.checks is not None:
            parts.append(str(self.checks))
        return "\n\n".join(parts)


def _in_numbers(scale: Plateau, d: int | None) -> str:
    if scale.exponent is None:
        return f"In d = {d}: the linearised ODE does not leave the plateau; only the powers of d above are known."
    if scale.time is None:
        return (
            f"In d = {d}, learning rate {scale.learning_rate:.4g}: the plateau is not left, "
            f"since the rate must be below {scale.maximal_learning_rate:.4g}."
        )
    motion = (
        f"the overlaps grow from zero at the speed {scale.speed:.4g}"
        if scale.exponent == 1
        else f"the squared overlaps grow at the rate {scale.growth_rate:.4g}"
    )
    most = "" if scale.maximal_learning_rate is None else f" (at most {scale.maximal_learning_rate:.4g})"
    return (
        f"In d = {d}, one sample a step, learning rate {scale.learning_rate:.4g}{most}: {motion}; "
        f"overlap 1/2 after time {scale.time:.4g}, {scale.steps:.4g} steps (linearised ODE, mean over random starts)."
    )


# ------------------------------------------------------------------------------------------------------ the dataset


def _stair_variables(prefix: str, whose: str) -> dict[str, Variable]:
    stage, direction = (f"{prefix}stage",), (f"{prefix}direction",)
    return {
        f"{prefix}leap": Variable((), f"largest order that a stage needs{whose}; missing where undecided"),
        f"{prefix}stage_leap": Variable(stage, f"order of the tensor that a stage needs{whose}"),
        f"{prefix}stage_size": Variable(stage, f"size of the tensor that decides a stage{whose}", DEVIATION),
        f"{prefix}stage_size_error": Variable(stage, f"bound on the error of the size{whose}", DEVIATION),
        f"{prefix}stage_is_decided": Variable(stage, f"whether all lower orders are known to vanish{whose}"),
        f"{prefix}direction_stage": Variable(direction, f"stage at which a direction is found{whose}"),
        f"{prefix}vector": Variable((*direction, "field"), f"direction as a unit vector of coefficients{whose}"),
        f"{prefix}strength": Variable(direction, f"strength of a direction in the tensor of its stage{whose}"),
        f"{prefix}unseen": Variable((), f"number of directions that no stage contains{whose}"),
    }


def _step_variables(prefix: str, whose: str) -> dict[str, Variable]:
    axes = (f"{prefix}_step", f"{prefix}_direction")
    return {
        f"{prefix}_cosine": Variable(axes, f"largest cosine of a neuron with a direction, {whose}"),
        f"{prefix}_expected": Variable(axes, f"whether a direction may be there after a step, {whose}"),
    }


LEARNABILITY = add_kind(
    Schema(
        kind="learnability",
        variables={
            "information_exponent": Variable((), "order of the first tensor that is not zero; missing where undecided"),
            **_stair_variables("", ""),
            "tensor_size": Variable(("order",), "size of a Hermite tensor", DEVIATION),
            "tensor_size_error": Variable(("order",), "bound on the error of the size", DEVIATION),
            "steps_exponent": Variable(("protocol",), "power of d of the steps of a protocol"),
            "samples_exponent": Variable(("protocol",), "power of d of the samples of a protocol"),
            "has_log": Variable(("protocol",), "whether a factor log d comes with the powers"),
        },
        optional={
            "generative_exponent": Variable((), "smallest information exponent over all functions of the label"),
            **_stair_variables("generative_", ", for any function of the label"),
            "student_exponent": Variable((), "information exponent of the target as the student sees it"),
            **_stair_variables("student_", ", for the student"),
            "plateau_learning_rate": Variable((), "learning rate for the time on the plateau"),
            "plateau_time": Variable((), "time to an overlap of 1/2, mean over random starts"),
            "plateau_steps": Variable((), "steps to an overlap of 1/2, mean over random starts", "steps"),
            "check_predicted": Variable(("check",), "predicted slope, or share of cosines, which is 1"),
            "check_measured": Variable(("check",), "measured slope, or share of cosines that are as predicted"),
            "check_error": Variable(("check",), "standard error of what was measured"),
            "check_outcome": Variable(("check",), "verdict in one word"),
            **_step_variables("giant", "on fresh batches"),
            **_step_variables("reused", "on one batch that is used again"),
            "escape_steps": Variable(("d",), "steps to leave the start", "steps"),
            "escape_steps_error": Variable(("d",), "standard error of the steps", "steps"),
            "escape_runs": Variable(("d",), "number of runs"),
        },
        coordinates={
            "stage": Variable(("stage",), "number of a stage"),
            "direction": Variable(("direction",), "direction in words"),
            "field": Variable(("field",), "field of the target"),
            "order": Variable(("order",), "order of a Hermite tensor"),
            "protocol": Variable(("protocol",), "way of training"),
        },
        attributes=("target", "report", "answer"),
        summary=lambda result: Text(result.attrs["report"]),
    )
)


def label_learned(learned: Learned, specification: Specification, seed: int) -> "xr.Dataset":
    """Put names, units and coordinates on the answer."""
    analysis = learned.analysis
    seen = None if analysis.seen is None else analysis.seen.staircase
    table, rows = analysis.table, analysis.scalings
    values: dict[str, Any] = {
        "information_exponent": _number(analysis.information_exponent),
        "tensor_size": table.sizes() / table.scale,
        "tensor_size_error": table.size_errors() / table.scale,
        "steps_exponent": np.array([_number(row.steps_exponent) for row in rows]),
        "samples_exponent": np.array([_number(row.samples_exponent) for row in rows]),
        "has_log": np.array([row.has_log for row in rows], dtype=bool),
    }
    coordinates: dict[str, Any] = {
        "field": [f"z{n + 1}" for n in range(analysis.k)],
        "order": np.arange(len(values["tensor_size"])),
        "protocol": _texts([row.protocol for row in rows]),
    }
    for prefix, staircase in zip(PREFIXES, (analysis.staircase, analysis.generative, seen), strict=True):
        if staircase is not None:
            _add_stairs(values, coordinates, prefix, analysis, staircase)
    if analysis.generative is not None:
        values["generative_exponent"] = _number(analysis.generative_exponent)
    if seen is not None:
        values["student_exponent"] = _number(seen.exponent)
    if learned.plateau is not None:
        for name in ("learning_rate", "time", "steps"):
            values[f"plateau_{name}"] = _number(getattr(learned.plateau, name))
    attributes: dict[str, Any] = {"target": analysis.text}
    if learned.checks is not None:
        _add_checks(values, coordinates, learned.checks)
        attributes |= {"outcome": learned.checks.outcome, "verdict": learned.checks.verdict}
    attributes |= {"report": str(learned), "answer": json.dumps(learned.to_dict(), allow_nan=False)}
    return label(LEARNABILITY, values, coordinates, attributes | provenance(specification, seed, REFERENCES))


def _add_stairs(
    values: dict[str, Any], coordinates: dict[str, Any], prefix: str, analysis: Learnability, staircase: LearningStages
) -> None:
    stages = staircase.stages
    of_directions = [(n, stage, i) for n, stage in enumerate(stages, start=1) for i in range(len(stage.directions))]
    vectors = [analysis.coefficients(stage) for stage in stages]
    own = {
        "leap": _number(staircase.leap),
        "stage_leap": np.array([stage.leap for stage in stages], dtype=int),
        "stage_size": np.array([stage.size.value for stage in stages]),
        "stage_size_error": np.array([stage.size.error for stage in stages]),
        "stage_is_decided": np.array([not stage.undecided for stage in stages], dtype=bool),
        "direction_stage": np.array([n for n, _, _ in of_directions], dtype=int),
        "vector": np.concatenate([np.zeros((0, analysis.k)), *vectors]),
        "strength": np.array([stage.strengths[i] for _, stage, i in of_directions], dtype=float),
        "unseen": len(staircase.unseen),
    }
    values |= {f"{prefix}{name}": content for name, content in own.items()}
    coordinates[f"{prefix}stage"] = np.arange(1, len(stages) + 1)
    coordinates[f"{prefix}direction"] = _texts([word for stage in stages for word in analysis.direction_names(stage)])


def _add_checks(values: dict[str, Any], coordinates: dict[str, Any], checks: Checks) -> None:
    coordinates["check"] = _texts(list(checks.checks))
    values["check_outcome"] = _texts([item.finding.outcome for item in checks.checks.values()])
    numbers = np.transpose([item.compared for item in checks.checks.values()])
    values |= dict(zip(("check_predicted", "check_measured", "check_error"), numbers, strict=True))
    for prefix, steps in (("giant", checks.giant_steps), ("reused", checks.reused_batch)):
        if steps is not None:
            values |= {f"{prefix}_cosine": steps.cosines, f"{prefix}_expected": np.array(steps.expected)}
            coordinates[f"{prefix}_step"] = np.arange(1, len(steps.cosines) + 1)
            coordinates[f"{prefix}_direction"] = _texts(list(steps.directions))
    if checks.slope is not None:
        slope = checks.slope
        values |= {"escape_steps": np.array(slope.steps), "escape_steps_error": np.array(slope.errors)}
        values["escape_runs"] = np.array(slope.runs)
        coordinates["d"] = np.array(slope.dimensions)


def _number(value: float | int | None) -> float:
    """A number, NaN where there is none."""
    return np.nan if value is None else float(value)


def _texts(texts: list[str]) -> np.ndarray:
    """An array of texts, also of none."""
    return np.array(texts, dtype=str)
