"""Analyse one target: its Hermite tensors, exponents and stages, with certificates."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from twolayer.core.deprecation import renamed_function
from twolayer.core.errors import InvalidInput, shown
from twolayer.core.text import Text
from twolayer.core.types import NumbersLike
from twolayer.learnability.certificate import Verdict
from twolayer.learnability.formula import Formula, formula_of, in_fewest_fields
from twolayer.learnability.generative import generative_staircase
from twolayer.learnability.linear_forms import form_text
from twolayer.learnability.scaling import Scaling, scalings
from twolayer.learnability.seen import Seen, seen_by
from twolayer.learnability.sources import table_of, values_of
from twolayer.learnability.stages import LearningStages, Stage, climb, complement, prover
from twolayer.learnability.symmetry import find_symmetries
from twolayer.learnability.tensors import HermiteTable
from twolayer.problem import AbstractTarget, Committee, Labels, MultiIndex, SingleIndex, Student
from twolayer.problem.expression import Expression
from twolayer.problem.targets import check_covariance

MAX_FIELDS = 8


@dataclass(frozen=True, repr=False)
class Learnability:
    """Which directions of a target first-order methods learn, in which order, and at which cost.

    ``staircase`` and ``generative`` hold the stages with directions in whitened coordinates; ``coefficients`` converts
    them to coefficients of the target's directions. Exponents that could not be decided are None, and
    ``possible_exponents`` lists the values that they may have.
    """

    target: AbstractTarget
    text: str
    table: HermiteTable
    staircase: LearningStages
    generative: LearningStages | None
    root: np.ndarray  # fields = root @ independent normals
    symmetries: int
    seen: Seen | None = None

    @property
    def k(self) -> int:
        """The number of fields."""
        return self.table.k

    @property
    def information_exponent(self) -> int | None:
        """The order of the first Hermite tensor that is not zero; None if undecided."""
        return self.staircase.exponent

    @property
    def leap(self) -> int | None:
        """The largest leap of a stage; None if undecided."""
        return self.staircase.leap

    @property
    def generative_exponent(self) -> int | None:
        """The smallest information exponent over all functions of the label; None if undecided."""
        return None if self.generative is None else self.generative.exponent

    @property
    def generative_leap(self) -> int | None:
        """The largest leap of a stage when any function of the label may be used; None if undecided."""
        return None if self.generative is None else self.generative.leap

    def coefficients(self, stage: Stage) -> np.ndarray:
        """Return the directions of a stage as rows of unit length in the target's directions."""
        rows = np.linalg.solve(self.root.T, stage.directions.T).T
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def direction_names(self, stage: Stage) -> list[str]:
        """Return the directions of a stage as text, such as ``z1`` or ``z2+z3``."""
        return [form_text(row) for row in self.coefficients(stage)]

    words = renamed_function("words", direction_names, since="0.2")

    @property
    def order(self) -> list[dict[str, Any]]:
        """The stages as plain data: leap, directions as text and as vectors, certificates."""
        return [self._stage(stage) for stage in self.staircase.stages]

    def _stage(self, stage: Stage) -> dict[str, Any]:
        return {
            "leap": stage.leap,
            "directions": self.direction_names(stage),
            "vectors": np.round(self.coefficients(stage), 12).tolist(),
            "strengths": list(stage.strengths),
            "size": stage.size.to_dict(),
            "excluded": [certificate.to_dict() for certificate in stage.excluded],
            "possible_leaps": list(stage.possible),
            "doubtful_directions": [certificate.to_dict() for certificate in stage.doubtful],
        }

    def giant_steps(self, staircase: LearningStages | None = None) -> list[list[str]]:
        """Return the directions that the first giant steps add: those of the stages until one has a leap above one."""
        steps = []
        for stage in (staircase or self.staircase).stages:
            if stage.leap != 1:
                break
            steps.append(self.direction_names(stage))
        return steps

    @property
    def scalings(self) -> list[Scaling]:
        """The steps and samples of every protocol, for the student if there is one."""
        staircase = self.seen.staircase if self.seen is not None else self.staircase
        if not staircase.stages:
            return []
        leap = staircase.leap or max(stage.leap for stage in staircase.stages)
        giant = [word for step in self.giant_steps(staircase) for word in step]
        reused = [] if self.generative is None else [w for step in self.giant_steps(self.generative) for w in step]
        return scalings(leap, self.generative_leap, giant, reused)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; an undecided number is None, and its possible values are listed."""
        unseen = np.linalg.solve(self.root.T, self.staircase.unseen.T).T
        return {
            "target": self.text,
            "k": self.k,
            "information_exponent": self.information_exponent,
            "leap": self.leap,
            "generative_exponent": self.generative_exponent,
            "generative_leap": self.generative_leap,
            "order": self.order,
            "possible_information_exponents": list(self.staircase.possible_exponents),
            "generative_order": None if self.generative is None else [self._stage(s) for s in self.generative.stages],
            "is_staircase": all(stage.leap == 1 for stage in self.staircase.stages) if self.leap else None,
            "unseen_directions": [form_text(row) for row in unseen],
            "giant_steps": self.giant_steps(),
            "reused_batch": None if self.generative is None else self.giant_steps(self.generative),
            "tensors": {
                "source": self.table.how,
                "orders": self.table.order,
                "sizes": (self.table.sizes() / self.table.scale).tolist(),
                "errors": (self.table.size_errors() / self.table.scale).tolist(),
                "beyond": self.table.beyond / self.table.scale,
            },
            "symmetries": self.symmetries,
            "scalings": [row.to_dict() for row in self.scalings],
            "student": None
            if self.seen is None
            else self.seen.to_dict() | {"order": [self._stage(stage) for stage in self.seen.staircase.stages]},
        }

    def __str__(self) -> str:
        from twolayer.learnability.as_text import report

        return report(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return Text(self)._repr_html_()


if TYPE_CHECKING:
    # A target, a formula, or the name of a target in the library.
    TargetLike: TypeAlias = AbstractTarget | str
else:
    TargetLike = Annotated[object, AbstractTarget | str]  # `as_target` refuses what it is not with one sentence


def as_target(target: TargetLike) -> tuple[AbstractTarget, str]:
    """Return a target and its formula, given a target, a formula or the name of a target in the library."""
    from twolayer.learnability.library import named_targets

    if isinstance(target, AbstractTarget):
        return target, _text(target)
    if isinstance(target, str):
        named = named_targets()
        if target in named:
            return MultiIndex(named[target].formula), named[target].formula
        formula = Expression(target)
        if formula.fields == 0:
            raise InvalidInput(
                f"The formula {shown(target)} contains none of the fields z1, z2, ...: nothing can be learned."
            )
        return MultiIndex(formula), target
    raise InvalidInput(
        f"Argument `target` must be a formula such as 'he2(z1) + z1*z2' or a target, but is {shown(target)}."
    )


def _text(target: AbstractTarget) -> str:
    inner = (
        target.function if isinstance(target, MultiIndex) else target.link if isinstance(target, SingleIndex) else None
    )
    return inner.text if isinstance(inner, Expression) else f"{target}".replace("\n", " ")


def analyse(target: TargetLike, P: NumbersLike | None = None, student: Student | None = None) -> Learnability:
    """Analyse which directions of a target can be learned, in which order and at which cost.

    Parameters
    ----------
    target
        A target, a formula, or a name from `named_targets`.
    P
        The covariance of the fields; by default that of the target.
    student
        A student, to analyse as well which orders of the target its activation can see.
    """
    target, text = as_target(target)
    if isinstance(target, Labels) or target.k < 1:
        raise InvalidInput("Argument `target` must be a function of fields, but is the labels of a data set.")
    if target.k > MAX_FIELDS:
        raise InvalidInput(f"Argument `target` must have at most {MAX_FIELDS} fields here, but has {target.k}.")
    if P is not None:
        check_covariance("P", np.asarray(P), target.k)
        if isinstance(target, Committee):
            target = Committee(target.k, target.activation, P, target.second_layer)
    sizes, vectors = np.linalg.eigh(np.asarray(target.target_overlaps if P is None else P, dtype=float))
    root = (vectors * np.sqrt(sizes)) @ vectors.T  # symmetric, so that no direction is preferred
    is_white = np.allclose(root, np.eye(target.k), rtol=0, atol=1e-14)
    formula = formula_of(target)
    evaluate = values_of(target, formula, root)
    if target.polynomial is None and _grows_too_fast(evaluate, target.k):
        raise InvalidInput(f"The target {shown(text)} has no finite variance under Gaussian fields.")
    table = table_of(target, formula, root, evaluate)
    if formula is not None and is_white and table.ridges is None:
        used = [symbol in formula.form.free_symbols for symbol in formula.symbols]
        table = table if all(used) else dataclasses.replace(table, ridges=np.eye(target.k)[used])
    if not np.isfinite(table.variance) or not all(np.all(np.isfinite(c)) for c in table.values):
        raise InvalidInput(f"The target {shown(text)} has no finite variance under Gaussian fields.")
    if table.variance <= 1e-28 * (1.0 + float(table.values[0][0]) ** 2):
        raise InvalidInput(f"The target {shown(text)} is constant: there is nothing to learn.")
    symmetries = find_symmetries(formula if is_white else None, evaluate, target.k)
    staircase = climb([table], prover(table, symmetries))
    fewer = _in_fewest_fields(formula) if is_white and formula is not None else None
    if fewer is not None and staircase.leap is None:
        staircase = fewer[0]
    if fewer is not None and fewer[1] is not None:
        generative = fewer[1]
    else:
        generative = generative_staircase(evaluate, formula if is_white else None, table, staircase, symmetries)
    student_view = None if student is None else seen_by(student, table, symmetries)
    return Learnability(target, text, table, staircase, generative, root, len(symmetries.signs), student_view)


def _in_fewest_fields(formula: Formula) -> tuple[LearningStages, LearningStages | None] | None:
    """The stages, and those with any function of the label, if the formula varies along fewer directions than fields.

    Symmetries are those of the fields, so that more of them are seen in fewer fields.
    """
    fewer = in_fewest_fields(formula)
    if fewer is None:
        return None
    text, rows = fewer
    try:
        inner = analyse(MultiIndex(text, k=len(rows)))
    except InvalidInput:  # sympy may write a formula in functions that formulas of users do not have
        return None

    def lifted(staircase: LearningStages) -> LearningStages:
        stages = tuple(
            dataclasses.replace(stage, directions=stage.directions @ rows, known=stage.known @ rows)
            for stage in staircase.stages
        )
        return LearningStages(stages, np.concatenate([staircase.unseen @ rows, complement(rows)]), staircase.unseen_why)

    return lifted(inner.staircase), None if inner.generative is None else lifted(inner.generative)


def _grows_too_fast(evaluate: Callable[[np.ndarray], np.ndarray], k: int) -> bool:
    r"""Whether :math:`f^2 e^{-r^2/2}` does not decay at large distances along the axes and the diagonals."""
    rays = np.concatenate([np.eye(k), -np.eye(k), np.ones((1, k)) / np.sqrt(k), -np.ones((1, k)) / np.sqrt(k)])
    near, far = 9.0, 12.0
    with np.errstate(all="ignore"):
        values = [np.log(np.abs(evaluate(r * rays)) + 1e-300) - 0.25 * r**2 for r in (near, far)]
    return bool(np.any(~(values[1] < values[0])))


def is_decided(result: Learnability) -> bool:
    """Whether no certificate of the stages is undecided."""
    certificates = [
        certificate for stage in result.staircase.stages for certificate in (*stage.excluded, *stage.doubtful)
    ]
    return all(certificate.verdict is not Verdict.UNDECIDED for certificate in certificates)
