"""What an engine is: a way to compute Gaussian moments, which says which ones it serves and how wrong it may be."""

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array

from twolayer.core.estimate import Estimate
from twolayer.problem import Overlaps, Problem

if TYPE_CHECKING:  # an AbstractVar is no argument of the constructor, but a type checker would take it for one
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

ROUNDING = 1e-12
# A rule of 0.7 times the order is far worse on an analytic function; where convergence is slow the two errors are
# comparable, and their difference may be smaller than the error of the finer rule by about this factor.
SAFETY = 4.0
# Two rules may agree by accident. The coarsest one, whose error is far larger, is there to notice: this part of its
# difference counts.
DOUBT = 0.02


class Suits(NamedTuple):
    """Whether an engine serves a moment of a problem; the reason is given when it does not."""

    ok: bool
    reason: str = ""


class AbstractEngine(eqx.Module):
    """A way to compute some of the moments.

    An engine may consist of several ``variants``, which compute the same moments independently or more coarsely;
    whatever is computed with each of them, moments or a whole trajectory, is combined by ``combine`` into a value and
    an error. That is how the error of an integral is carried through everything built on it.
    """

    @property
    @abc.abstractmethod
    def rtol(self) -> float:
        """The relative accuracy below which integrating further is wasted; zero for a smooth rule."""

    @classmethod
    @abc.abstractmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        """Whether this engine serves the moment, one of the names in `moments.ALL`."""

    @classmethod
    @abc.abstractmethod
    def build(cls, problem: Problem, rtol: float) -> "AbstractEngine":
        """The engine with its tables made for the problem, sized for the relative accuracy asked for."""

    @classmethod
    def room(cls, problem: Problem, moment: str, rtol: float, p: int) -> float:
        """About how many bytes a moment takes on the way with a student of width p, where that may be much."""
        return 0.0

    @abc.abstractmethod
    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        """The wanted moments at the overlaps, by this variant."""

    @abc.abstractmethod
    def variants(self) -> tuple["AbstractEngine", ...]:
        """The members whose results are combined; the first one is a sensible engine by itself."""

    @abc.abstractmethod
    def combine(self, results: tuple[Any, ...]) -> Estimate:
        """Value and error from the results of the variants (pytrees of the same structure)."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How it appears in tables and datasets."""


class AbstractRule(AbstractEngine):
    """An engine without chance: its error is how much it differs from coarser versions of itself.

    A closed form has no coarser version, and rounding is its only error. Others have two, the second much coarser, in
    ``others``. Rules and mixtures are padded to one size, so that all versions compile to one program.
    """

    others: AbstractVar[tuple["AbstractEngine", ...]]
    # The least error that is claimed, relative to a number of order one: rounding, and what else is known.
    floor: AbstractVar[float]

    @property
    def rtol(self) -> float:
        return 0.0

    @property
    def doubters(self) -> tuple["AbstractEngine", ...]:
        """Versions that add what all orders may miss alike to the moments; their differences are errors as well."""
        return ()

    def variants(self) -> tuple[AbstractEngine, ...]:
        return (dataclasses.replace(self, others=()), *self.others, *self.doubters)

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        known = 1 + len(self.others)
        return with_doubts(by_coarser(results[:known], self.floor), results[0], results[known:])


def by_coarser(results: tuple[Any, ...], floor: float) -> Estimate:
    """The first of the results, and as its error how far it is from the others, which are coarser and coarser."""
    fine, *others = results
    weights = (SAFETY, DOUBT)

    def error(x: Any, *coarse: Any) -> Any:
        spread = sum(weight * abs(x - y) for weight, y in zip(weights, coarse, strict=False))
        return spread + floor * (1.0 + abs(x))

    return Estimate(fine, jax.tree.map(error, fine, *others))


def with_doubts(judged: Estimate, first: Any, doubted: tuple[Any, ...]) -> Estimate:
    """The estimate with the difference of each of the ``doubted`` results from the first added to its error."""
    error = judged.error
    for result in doubted:
        error = jax.tree.map(lambda total, x, y: total + abs(y - x), error, first, result)
    return Estimate(judged.value, error)


E = TypeVar("E", bound=AbstractRule)


def with_others(members: list[E]) -> E:
    """The first engine, judged by the others."""
    return dataclasses.replace(members[0], others=tuple(members[1:]))
