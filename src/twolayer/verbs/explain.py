"""The verb that says which descriptions and engines apply, how exactly, and why not."""

import html
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twolayer.ask import Training
from twolayer.core.errors import takes_these
from twolayer.core.precision import double
from twolayer.core.random import replica_key
from twolayer.core.text import Text, html_grid, table
from twolayer.data.provenance import QuestionSpec, provenance
from twolayer.data.schema import Schema, Variable, add_kind, label
from twolayer.description import AbstractDescription, Applies, Exactness
from twolayer.expectation import choose, estimate
from twolayer.problem import Gaussian, Problem
from twolayer.specification.fields import instance
from twolayer.specification.registry import registered
from twolayer.training import SGD, Schedule
from twolayer.training.clock import Clock
from twolayer.verbs.cautions import of_limit, of_moments

if TYPE_CHECKING:
    import xarray as xr


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
    """What applies to a problem and training, how exactly, and why not.

    It shows itself as tables, on a terminal and in a notebook; take its rows, or `to_dataset`, for anything else.
    """

    clock: str
    descriptions: tuple[DescriptionRow, ...]
    moments: tuple[MomentRow, ...]
    problem: Problem
    training: Training

    def __str__(self) -> str:
        lines = [self.clock, "", *table(*self._descriptions)]
        lines += ["", *table(*self._moments)] if self.moments else []
        lines += ["", *(f"Caution: {sentence}" for sentence in self.cautions)] if self.cautions else []
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(self.clock)}</p>".replace("\n", "<br>"), html_grid(*self._descriptions)]
        parts += [html_grid(*self._moments)] if self.moments else []
        parts += [f"<p><b>Caution:</b> {html.escape(sentence)}</p>" for sentence in self.cautions]
        return "".join(parts)

    @property
    def _descriptions(self) -> tuple[list[str], list[list[str]]]:
        rows = [[row.description, _answer(row), row.exactness, row.statement] for row in self.descriptions]
        return ["description", "applies", "exactness", "statement or reason"], rows

    @property
    def _moments(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [row.moment, str(row.fields), row.engine, f"{row.error:.1e}", refused]
            for row, refused in zip(self.moments, _refusals(self.moments), strict=True)
        ]
        return ["moment", "fields", "engine", "error at the start", "refused"], rows

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

    def to_dataset(self) -> "xr.Dataset":
        """The same as a labelled dataset, which is what `twolayer.save` writes and `twolayer.load` gives back."""
        rows, moments = self.descriptions, self.moments
        values = {
            "applies": np.array([row.applies for row in rows], dtype=bool),
            "exactness": np.array([row.exactness for row in rows], dtype=str),
            "statement": np.array([row.statement for row in rows], dtype=str),
            "fields": np.array([row.fields for row in moments], dtype=int),
            "engine": np.array([row.engine for row in moments], dtype=str),
            "error": np.array([row.error for row in moments], dtype=float),
        }
        coordinates = {
            "description": np.array([row.description for row in rows], dtype=str),
            "moment": np.array([row.moment for row in moments], dtype=str),
        }
        attributes = {
            "clock": self.clock,
            "cautions": "\n".join(self.cautions),
            "report": str(self),
            "answer": json.dumps(self.to_dict()),
        }
        specification = QuestionSpec({"kind": "explain", "problem": self.problem, "training": self.training})
        with double():
            return label(EXPLANATION, values, coordinates, attributes | provenance(specification, seed=0))


EXPLANATION = add_kind(
    Schema(
        kind="explanation",
        variables={
            "applies": Variable(("description",), "whether a description covers problem and training"),
            "exactness": Variable(("description",), "limit that a description takes"),
            "statement": Variable(("description",), "how exactly a description holds, or why it does not apply"),
            "fields": Variable(("moment",), "number of Gaussian fields that a moment contains"),
            "engine": Variable(("moment",), "engine that computes a moment"),
            "error": Variable(("moment",), "bound on the numerical error of a moment at the start"),
        },
        coordinates={
            "description": Variable(("description",), "name of a description"),
            "moment": Variable(("moment",), "name of a Gaussian moment"),
        },
        attributes=("clock", "cautions", "report", "answer"),
        summary=lambda dataset: Text(dataset.attrs["report"]),
    )
)


def _answer(row: DescriptionRow) -> str:
    return ("yes, with caution" if row.cautions else "yes") if row.applies else "no"


@takes_these
def explain(problem: Problem, training: Training) -> Explanation:
    """Say which descriptions apply to the problem and training, and which engine computes the Gaussian moments.

    Parameters
    ----------
    problem
        What is learned.
    training
        How the weights move: an `SGD`, or a `Schedule`, to which a description applies if it covers every phase.

    Returns
    -------
    An explanation that shows itself as tables; ``descriptions`` and ``moments`` hold their rows, ``cautions`` what
    speaks against trusting an answer. `twolayer.save` and `twolayer.summary` take it like any result.
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    rows = []
    for name, cls in sorted(registered(AbstractDescription).items()):
        answer = _applies(cls(), problem, training)
        warned = of_limit(name, answer.exactness, problem, training) if answer.ok else ()
        rows.append(DescriptionRow(name, answer.ok, answer.exactness.value, answer.statement, warned))
    clock = _clock(problem, training)
    if not isinstance(problem.inputs, Gaussian):
        return Explanation(clock, tuple(rows), (), problem, training)
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
    told = tuple(_with_errors(row, training, warned_of) for row in rows)
    return Explanation(clock, told, tuple(moments), problem, training)


def _applies(description: AbstractDescription, problem: Problem, training: Training) -> Applies:
    """The answer for the training, or for a schedule: yes if it covers every phase, and the first reason if not."""
    if isinstance(training, SGD):
        return description.applies(problem, training)
    answers = [description.applies(problem, phase) for phase in training.phases]
    refused = next((n for n, answer in enumerate(answers) if not answer.ok), None)
    if refused is not None:
        answer = answers[refused]
        return answer._replace(statement=f"phase {refused + 1}: {answer.statement}")
    if training.has_fixed_set and type(description).run_phases is AbstractDescription.run_phases:
        return answers[0]._replace(ok=False, statement="it does not follow a schedule on a fixed set of samples.")
    return answers[0]


def _clock(problem: Problem, training: Training) -> str:
    """What a unit of time is, in each phase."""
    if isinstance(training, SGD):
        return _unit_of_time(problem, training, training.clock(problem))
    ends = [f"until time {switch:g}" for switch in training.switches] + ["from then on"]
    clocks = training.clock(problem).clocks
    return "\n".join(
        f"Phase {number}, {end}: {_unit_of_time(problem, phase, clock)}"
        for number, (phase, clock, end) in enumerate(zip(training.phases, clocks, ends, strict=True), start=1)
    )


def _unit_of_time(problem: Problem, training: SGD, clock: Clock) -> str:
    return (
        f"One unit of time is {1 / clock.time_per_sample:.6g} samples, {1 / clock.time_per_step:.6g} steps of "
        f"{clock.samples_per_step} (gamma = {float(training.learning_rate):g}, p = {problem.p}, d = {problem.d})."
    )


def _with_errors(row: DescriptionRow, training: Training, warned_of: dict[str, str]) -> DescriptionRow:
    """The row with the errors of the averages that its description takes from the engines.

    A limit in d on fresh samples takes all of them, a simulation and a map of large batches that of the risk alone.
    Descriptions of wide students and of samples that come back have averages of their own.
    """
    phases = (training,) if isinstance(training, SGD) else training.phases
    moving = tuple(warned_of) if all(phase.is_fresh for phase in phases) else ()
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
