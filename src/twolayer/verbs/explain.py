"""The verb that says which descriptions and engines apply, how exactly, and why not."""

from typing import Any, NamedTuple

import numpy as np

from twolayer.core.errors import takes_these
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.description import AbstractDescription, Exactness
from twolayer.expectation import choose, estimate
from twolayer.problem import Gaussian, Problem
from twolayer.specification.fields import instance
from twolayer.specification.registry import registered
from twolayer.training import SGD
from twolayer.verbs.cautions import of_limit, of_moments


class DescriptionRow(NamedTuple):
    """One description: whether it applies, how exactly, its statement or reason, and what speaks for caution."""

    description: str
    applies: bool
    exactness: str
    statement: str
    cautions: tuple[str, ...] = ()


class MomentRow(NamedTuple):
    """One Gaussian moment: how many fields it touches, which engine serves it, its error at the start, who refused."""

    moment: str
    fields: int
    engine: str
    error: float
    refused: tuple[tuple[str, str], ...]
    caution: str = ""


class Explanation(NamedTuple):
    """What applies to a problem and training, how exactly, and why not; print it, or take its rows."""

    clock: str
    descriptions: tuple[DescriptionRow, ...]
    moments: tuple[MomentRow, ...]

    def __str__(self) -> str:
        lines = [
            self.clock,
            "",
            *_table(
                ["description", "applies", "exactness", "statement or reason"],
                [[row.description, _answer(row), row.exactness, row.statement] for row in self.descriptions],
            ),
        ]
        if self.moments:
            lines += [
                "",
                *_table(
                    ["moment", "fields", "engine", "error at the start", "refused"],
                    [
                        [row.moment, str(row.fields), row.engine, f"{row.error:.1e}", refused]
                        for row, refused in zip(self.moments, _refusals(self.moments), strict=True)
                    ],
                ),
            ]
        if self.cautions:
            lines += ["", *(f"Caution: {sentence}" for sentence in self.cautions)]
        return "\n".join(lines)

    @property
    def cautions(self) -> tuple[str, ...]:
        """All sentences of caution, each once."""
        of_rows = [sentence for row in self.descriptions for sentence in row.cautions]
        return tuple(dict.fromkeys([*of_rows, *(row.caution for row in self.moments if row.caution)]))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "clock": self.clock,
            "descriptions": [row._asdict() for row in self.descriptions],
            "cautions": list(self.cautions),
            "moments": [row._asdict() | {"refused": dict(row.refused)} for row in self.moments],
        }


def _answer(row: DescriptionRow) -> str:
    return ("yes, with caution" if row.cautions else "yes") if row.applies else "no"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    ]


@takes_these
def explain(problem: Problem, training: SGD) -> Explanation:
    """Say which descriptions apply to the problem and training, and which engine computes the Gaussian moments."""
    instance("problem", Problem, "a Problem")(problem)
    instance("training", SGD, "a training method such as SGD(learning_rate=0.5)")(training)
    clock = training.clock(problem)
    sentence = (
        f"One unit of time is {1 / clock.time_per_sample:.6g} samples, {1 / clock.time_per_step:.6g} steps of "
        f"{clock.samples_per_step} (gamma = {float(training.learning_rate):g}, p = {problem.p}, d = {problem.d})."
    )
    rows = []
    for name, cls in sorted(registered(AbstractDescription).items()):
        answer = cls().applies(problem, training)
        warned = of_limit(name, answer.exactness, problem, training) if answer.ok else ()
        rows.append(DescriptionRow(name, answer.ok, answer.exactness.value, answer.statement, warned))
    if not isinstance(problem.inputs, Gaussian):
        return Explanation(sentence, tuple(rows), ())
    with double():
        chosen = choose(problem)
        estimated = estimate(chosen, problem, problem.draw(replica_key(0, 0)))
    errors, warned_of = estimated.error, of_moments(estimated.value, estimated.error)
    moments = [
        MomentRow(
            name,
            fields,
            chosen.engine_of(name).name,
            float(np.max(np.asarray(errors[name]))),
            tuple((refusal.engine, refusal.reason) for refusal in chosen.refusals if refusal.moment == name),
            warned_of.get(name, ""),
        )
        for name, fields in _fields_touched(problem).items()
    ]
    return Explanation(sentence, tuple(_with_errors(row, training, warned_of) for row in rows), tuple(moments))


def _with_errors(row: DescriptionRow, training: SGD, warned_of: dict[str, str]) -> DescriptionRow:
    """The row with the errors of the averages that its description takes from the engines.

    A limit in d on fresh samples takes all of them, a simulation and a map of large batches that of the risk alone.
    Descriptions of wide students and of samples that come back have averages of their own.
    """
    moving = tuple(warned_of) if training.is_fresh else ()
    needed = {Exactness.LIMIT_D: moving, Exactness.FLUCTUATIONS: moving}
    needed |= {Exactness.EXACT: ("excess_risk",), Exactness.LIMIT_BATCH: ("excess_risk",)}
    names = needed.get(Exactness(row.exactness), ()) if row.applies else ()
    return row._replace(cautions=(*row.cautions, *(warned_of[name] for name in names if name in warned_of)))


def _fields_touched(problem: Problem) -> dict[str, int]:
    """How many fields each moment contains at once, when everything that can be is taken apart."""
    p, k = problem.p, problem.k
    units = problem.target.units is not None
    return {
        "excess_risk": min(p + k, 2 if units else k + 1),
        "chi": min(p + k, 2 if units else k + 1),
        "v": min(p + k, 3 if units else k + 2),
        "phi_hd": min(p + k, 4 if units else k + 3),
    }


def _refusals(rows: tuple[MomentRow, ...]) -> list[str]:
    """Who refused each moment and why, in words; a reason that was given for the moment before is not repeated."""
    texts, before = [], set()
    for row in rows:
        new = [f"{engine}: {reason}" for engine, reason in row.refused if (engine, reason) not in before]
        repeated = ["as above"] if len(new) < len(row.refused) else []
        texts.append("; ".join(repeated + new))
        before |= set(row.refused)
    return texts
