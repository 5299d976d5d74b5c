"""The verb that says which descriptions and engines apply, how exactly, and why not."""

import html
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from twolayer.ask import Ask, AskFields, Training, first_start
from twolayer.core import memory_limit as machine
from twolayer.core.errors import takes_these
from twolayer.core.precision import double
from twolayer.core.text import Text, html_grid, table
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import Schema, Variable, add_kind, label
from twolayer.description import AbstractDescription, Exactness
from twolayer.expectation import MOMENTS, choose, estimate
from twolayer.expectation.all_fields import noise_fields
from twolayer.expectation.gaussian_moments import FORCES
from twolayer.expectation.recognition import notes_on
from twolayer.problem import Gaussian, Problem
from twolayer.specification.fields import instance
from twolayer.specification.registry import registered
from twolayer.theory import SaadSolla
from twolayer.training import SGD, Clock, RidgeRegression, Schedule
from twolayer.verbs.cautions import in_words, of_limit, of_moments
from twolayer.verbs.duration import Averages, measured, remember_averages, seconds
from twolayer.verbs.phases import applies_throughout
from twolayer.verbs.progress import Progress, nobody, shows_progress
from twolayer.verbs.run_memory import memory_needed

if TYPE_CHECKING:
    import xarray as xr


# Bytes below which memory is not told apart.
SMALL = 1e7


class DescriptionRow(NamedTuple):
    """One description: whether it applies, how exactly, its statement or reason, what speaks for caution, its cost."""

    description: str
    applies: bool
    exactness: str
    statement: str
    cautions: tuple[str, ...] = ()
    seconds: float | None = None  # a rough estimate; None where it does not apply or the time is not known
    memory: float | None = None  # bytes besides those that every process takes, as rough; None as above


class MomentRow(NamedTuple):
    """One Gaussian moment: how many fields it touches, which engine serves it, its error at the start, who refused."""

    moment: str
    fields: int
    engine: str
    error: float
    refused: tuple[tuple[str, str], ...]
    caution: str = ""


class Explanation(NamedTuple):
    """What applies to a problem and training, how exactly, and why not; ``notes`` say what a user's functions are.

    It shows itself as tables, on a terminal and in a notebook; take its rows, or `to_dataset`, for anything else.
    """

    clock: str
    descriptions: tuple[DescriptionRow, ...]
    moments: tuple[MomentRow, ...]
    problem: Problem
    training: Training
    ask: Ask = Ask()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.clock, *self.notes, "", *table(*self._descriptions), "", self._times]
        lines += ["", *table(*self._moments)] if self.moments else []
        lines += ["", *(f"Caution: {sentence}" for sentence in self.cautions)] if self.cautions else []
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head = "\n".join([self.clock, *self.notes])
        parts = [f"<p>{html.escape(head)}</p>".replace("\n", "<br>"), html_grid(*self._descriptions)]
        parts += [f"<p>{html.escape(self._times)}</p>"]
        parts += [html_grid(*self._moments)] if self.moments else []
        parts += [f"<p><b>Caution:</b> {html.escape(sentence)}</p>" for sentence in self.cautions]
        return "".join(parts)

    @property
    def _descriptions(self) -> tuple[list[str], list[list[str]]]:
        rows = [
            [row.description, _answer(row), row.exactness, _time(row), _room(row), row.statement]
            for row in self.descriptions
        ]
        return ["description", "applies", "exactness", "time", "memory", "statement or reason"], rows

    @property
    def _times(self) -> str:
        number = self.ask.replicas
        return (
            f"Times and memory are orders of magnitude for this machine, until = {self.ask.until:g} with {number} "
            f"replica{'s' * (number != 1)}, without compiling."
        )

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
        """Convert the explanation to plain data, for JSON."""
        return {
            "clock": self.clock,
            "notes": list(self.notes),
            "descriptions": [row._asdict() for row in self.descriptions],
            "cautions": list(self.cautions),
            "moments": [row._asdict() | {"refused": dict(row.refused)} for row in self.moments],
        }

    def to_dataset(self) -> "xr.Dataset":
        """Convert the explanation to a labelled dataset, which `twolayer.save` writes and `twolayer.load` returns."""
        types = {"applies": bool, "fields": int, "error": float, "seconds": float, "memory": float}

        def column(name: str, dimension: str) -> np.ndarray:
            rows = self.descriptions if dimension == "description" else self.moments
            return np.array([getattr(row, name) for row in rows], dtype=types.get(name, str))

        values = {name: column(name, variable.dimensions[0]) for name, variable in EXPLANATION.variables.items()}
        coordinates = {name: column(name, name) for name in EXPLANATION.coordinates}
        attributes = {
            "clock": self.clock,
            "cautions": "\n".join(self.cautions),
            "report": str(self),
            "answer": json.dumps(self.to_dict()),
        }
        question = Question("explain", {"problem": self.problem, "training": self.training, "ask": self.ask})
        with double():
            return label(EXPLANATION, values, coordinates, attributes | provenance(question, seed=0))


EXPLANATION = add_kind(
    Schema(
        kind="explanation",
        variables={
            "applies": Variable(("description",), "whether a description covers problem and training"),
            "exactness": Variable(("description",), "limit that a description takes"),
            "statement": Variable(("description",), "how exactly a description holds, or why it does not apply"),
            "seconds": Variable(("description",), "rough estimate of the time of a run on this machine", "s"),
            "memory": Variable(("description",), "rough estimate of the memory of a run on this machine", "B"),
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


def _time(row: DescriptionRow) -> str:
    if row.seconds is None:
        return "not known" if row.applies else ""
    return in_words(row.seconds) if row.seconds < 1.0 else f"about {in_words(row.seconds)}"


def _room(row: DescriptionRow) -> str:
    """The memory of a run in words, to one digit, and whether that is more than there is."""
    if row.memory is None:
        return "not known" if row.applies else ""
    if row.memory < SMALL:
        return f"less than {machine.bytes_in_words(SMALL)}"
    words, there = f"about {machine.bytes_in_words(float(f'{row.memory:.1g}'))}", machine.available_memory()
    return words if row.memory < there else f"{words} of {machine.bytes_in_words(there)}"


@takes_these
@shows_progress
def explain(
    problem: Problem,
    training: Training,
    ask: Ask | None = None,
    *,
    descriptions: Sequence[AbstractDescription | str] = (),
    progress: Progress | bool | None = None,
    **fields: Unpack[AskFields],
) -> Explanation:
    """Say which descriptions apply to a problem and a training, what each takes, and which engines compute averages.

    Parameters
    ----------
    problem
        What is learned.
    training
        How the weights move: an `SGD`, or a `Schedule`, to which a description applies if it covers every phase.
    ask
        What would be asked of a run, or its fields as keywords, as in `evolve`; times and memory are estimated for it.
    descriptions
        Descriptions with options of their own; all others are explained with their defaults.
    progress
        Called with the name of what is done, and the fraction of it; as in `evolve`.

    Returns
    -------
    An explanation that shows itself as tables; ``descriptions`` and ``moments`` hold their rows, ``cautions`` what
    speaks against trusting an answer. The time of a run and its memory (``seconds`` and ``memory`` of a row, without
    compiling) are orders of magnitude: nothing of it is compiled to know them. `twolayer.save` and `twolayer.summary`
    take an explanation like any result.
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    check = instance("descriptions", AbstractDescription, "a list of descriptions such as [SDE(dt=0.01)]")
    given = {type(member): member for member in map(check, descriptions)}
    asked, is_asked = Ask.of(ask, fields), ask is not None or bool(fields)
    with np.errstate(over="ignore"):
        steps = int(training.clock(problem).steps(asked.until)) if is_asked else None
    tell = progress if callable(progress) else nobody
    tell("averages", 0.0)
    seen = problem.equivalent  # averages are taken on Gaussian inputs
    moments, averages = _moments(seen, training) if isinstance(seen.inputs, Gaussian) else ((), Averages())
    tell("averages", 1.0)
    warned_of = {row.moment: row.caution for row in moments if row.caution}
    rows = []
    for name, cls in sorted(registered(AbstractDescription).items()):
        member = given.get(cls) or cls()
        applies = applies_throughout(member, problem, training)
        warned = of_limit(member, problem, training, steps) if applies.ok else ()
        cost = [of(member, problem, training, asked, averages) for of in (seconds, memory_needed) if applies.ok]
        row = DescriptionRow(name, applies.ok, applies.exactness.value, applies.statement, warned, *cost)
        rows.append(_with_errors(row, member, warned_of))
    notes = notes_on(seen) if isinstance(seen.inputs, Gaussian) else ()
    return Explanation(_clock(problem, training), tuple(rows), moments, problem, training, asked, notes)


def _moments(problem: Problem, training: Training) -> tuple[tuple[MomentRow, ...], Averages]:
    """The engine and the error of each moment that the training needs at the start, and the cost of all of them.

    Forces on a sample that is used again contain its earlier updates, and those of `SignDescent` are signs. A fixed
    set, or large batches that are used again, leave the engines the risk alone: `DMFT` takes its forces from its own
    samples.
    """
    phases = (training,) if isinstance(training, SGD) else training.trainings
    methods = [phase for phase in phases if isinstance(phase, SGD)]
    others = [method for method in methods if not method.is_fresh or method.moves_by_signs]
    others = [method for method in others if SaadSolla().applies(problem, method).ok]
    is_fresh = any(phase.is_fresh and not (isinstance(phase, SGD) and phase.moves_by_signs) for phase in phases)
    touched = _fields_touched(problem)
    with double():
        overlaps = first_start(problem).of_fields
        if is_fresh or not others:
            touched = touched if is_fresh else {"excess_risk": touched["excess_risk"]}
            chosen = choose(problem, tuple(touched))
        else:  # target, student and label noise at once
            touched = {name: problem.p + problem.k + 1 if name in FORCES else n for name, n in touched.items()}
            chosen = SaadSolla().choose(problem, others[0])
        estimated = estimate(chosen, problem, overlaps, tuple(touched))
        averages = measured(chosen, problem, overlaps, tuple(touched))
        remember_averages(problem, training, averages)
    errors, warned_of = estimated.error, of_moments(estimated.value, estimated.error)
    rows = tuple(
        MomentRow(
            name,
            number,
            chosen.name_of(name),
            float(np.max(np.asarray(errors[name]))),
            tuple((refusal.engine, refusal.reason) for refusal in chosen.refusals if refusal.moment == name),
            warned_of.get(name, ""),
        )
        for name, number in touched.items()
    )
    return rows, averages


def _clock(problem: Problem, training: Training) -> str:
    """What a unit of time is, in each phase."""
    if isinstance(training, SGD):
        return _unit_of_time(problem, training, training.clock(problem))
    ends = [f"until time {switch:g}" for switch in training.switches] + ["from then on"]
    clocks = training.clock(problem).clocks
    return "\n".join(
        f"Phase {number}, {end}: {_unit_of_time(problem, phase, clock)}"
        for number, (phase, clock, end) in enumerate(zip(training.trainings, clocks, ends, strict=True), start=1)
    )


def _unit_of_time(problem: Problem, training: SGD | RidgeRegression, clock: Clock) -> str:
    if isinstance(training, RidgeRegression):
        return f"One unit of time is one {training.words}."
    return (
        f"One unit of time is {1 / clock.time_per_sample:.6g} samples, {1 / clock.time_per_step:.6g} steps of "
        f"{clock.samples_per_step} (gamma = {float(training.learning_rate):g}, p = {problem.p}, d = {problem.d})."
    )


def _with_errors(row: DescriptionRow, description: AbstractDescription, warned_of: dict[str, str]) -> DescriptionRow:
    """The row with the errors of the averages that its description takes from the engines.

    An equation in time takes all of them; what goes in steps, on samples or in the limit, that of the risk alone.
    Descriptions of wide students have averages of their own.
    """
    is_wide = Exactness(row.exactness) in (Exactness.LIMIT_P, Exactness.LIMIT_P_D)
    names = () if is_wide or not row.applies else tuple(warned_of) if description.is_continuous else ("excess_risk",)
    return row._replace(cautions=(*row.cautions, *(warned_of[name] for name in names if name in warned_of)))


def _fields_touched(problem: Problem) -> dict[str, int]:
    """How many fields each moment contains at once, when everything that can be is taken apart."""
    p, k = problem.p, problem.k
    if not problem.is_quadratic:
        return dict.fromkeys(MOMENTS, p + k + noise_fields(problem))
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
