"""The interface of engines, which compute Gaussian moments with their errors."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from twolayer.core.estimate import Estimate
from twolayer.problem import Overlaps, Problem

if TYPE_CHECKING:  # a type checker would take an AbstractVar for an argument of the constructor
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

ROUNDING = 1e-12
# A rule of 0.7 times the order is far less accurate on an analytic function. Where convergence is slow, the two errors
# are comparable, and their difference may be smaller than the error of the finer rule by about this factor.
SAFETY = 4.0
# Two rules may agree by accident. The coarsest one, whose error is far larger, detects this: this fraction of its
# difference counts as an error.
DOUBT = 0.02


# The reason of engines whose rules run between kinks.
TOO_MANY_KINKS = "a function has so many kinks that rules between them would be too long"


class Suits(NamedTuple):
    """Whether an engine can compute a moment of a problem, and the reason if it cannot."""

    ok: bool
    reason: str = ""


class AbstractEngine(eqx.Module):
    """Base class: a method to compute some of the moments.

    An engine may consist of several ``variants``, which compute the same moments independently or less accurately.
    Results computed with all of them, moments or a whole trajectory, are combined by ``combine`` into a value and an
    error. In this way the error of an integral propagates to everything that is computed from it.
    """

    @property
    @abc.abstractmethod
    def rtol(self) -> float:
        """The relative tolerance below which an integrator gains nothing; zero for a smooth rule."""

    @classmethod
    @abc.abstractmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        """Return whether this engine can compute a moment, one of the names in `moments.ALL`."""

    @classmethod
    @abc.abstractmethod
    def build(cls, problem: Problem, rtol: float) -> "AbstractEngine":
        """Build the engine for a problem, with tables and rules sized for a relative accuracy."""

    @classmethod
    def room(cls, problem: Problem, moment: str, rtol: float, p: int) -> float:
        """Return about how many bytes the computation of a moment needs for a student of width p; 0 if few."""
        return 0.0

    @abc.abstractmethod
    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        """Return the wanted moments at the overlaps, computed by this variant."""

    @abc.abstractmethod
    def variants(self) -> tuple["AbstractEngine", ...]:
        """Return the variants whose results are combined; the first one is a useful engine by itself."""

    @abc.abstractmethod
    def combine(self, results: tuple[Any, ...]) -> Estimate:
        """Return value and error from the results of the variants (pytrees of the same structure)."""

    @property
    def judges_first(self) -> bool:
        """Whether each other variant is too expensive for a whole trajectory and only judges the first one.

        The combined value is that of the first variant then, and what another one differs by counts at least whole,
        save for one that is far less accurate.
        """
        return False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the engine in tables and datasets."""


class AbstractRule(AbstractEngine):
    """Base class: a deterministic engine, whose error is its difference from coarser versions of itself.

    A closed form has no coarser version, and rounding is its only error. Other rules have two in ``others``, the second
    of which is much coarser. Rules and mixtures are padded to one size, so that all versions compile to one program.
    """

    others: AbstractVar[tuple["AbstractEngine", ...]]
    # The smallest error that is reported, relative to a number of order one: rounding, and other known errors.
    floor: AbstractVar[float]

    @property
    def rtol(self) -> float:
        return 0.0

    @property
    def doubters(self) -> tuple["AbstractEngine", ...]:
        """Versions that add a bound on what all orders may miss to the moments, so that it counts as an error."""
        return ()

    def variants(self) -> tuple[AbstractEngine, ...]:
        return (dataclasses.replace(self, others=()), *self.others, *self.doubters)

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        known = 1 + len(self.others)
        return with_doubts(by_coarser(results[:known], self.floor), results[0], results[known:])


def by_coarser(results: tuple[Any, ...], floor: float) -> Estimate:
    """Return the first result, with an error from its differences from the others, which are increasingly coarse."""
    fine, *coarser = results
    weights = (SAFETY, DOUBT)

    def error(x: Any, *coarse: Any) -> Any:
        spread = sum(weight * abs(x - y) for weight, y in zip(weights, coarse, strict=False))
        return spread + floor * (1.0 + abs(x))

    return Estimate(fine, jax.tree.map(error, fine, *coarser))


def with_doubts(judged: Estimate, first: PyTree, doubted: tuple[Any, ...]) -> Estimate:
    """Add the differences of the ``doubted`` results from the first to the error of an estimate."""
    error = judged.error
    for result in doubted:
        error = jax.tree.map(lambda total, x, y: total + abs(y - x), error, first, result)
    return Estimate(judged.value, error)


@runtime_checkable
class Varied(Protocol):
    """What has variants, and combines their results: an engine, or several of them together."""

    def variants(self) -> tuple[Any, ...]:
        """Return the variants; the first one is useful by itself."""
        ...

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        """Return value and error from the results of the variants."""
        ...


def one_varied(members: Sequence[Varied]) -> list[tuple[Any, ...]]:
    """Return the first variants of all members, and copies with one of them replaced by another of its variants."""
    first = tuple(member.variants()[0] for member in members)
    return [
        first,
        *(
            (*first[:position], variant, *first[position + 1 :])
            for position, member in enumerate(members)
            for variant in member.variants()[1:]
        ),
    ]


def combined_of(members: Sequence[Varied], results: tuple[Any, ...]) -> Estimate:
    """Return value and error from the results with `one_varied`; corrections and errors of the members add up."""
    first, remaining = results[0], results[1:]
    value, error = first, jax.tree.map(lambda x: 0.0 * abs(x), first)
    for member in members:
        number_of_others = len(member.variants()) - 1
        of_member, remaining = remaining[:number_of_others], remaining[number_of_others:]
        part = member.combine((first, *of_member))
        value = jax.tree.map(lambda total, x, y: total + (x - y), value, part.value, first)
        error = jax.tree.map(lambda total, x: total + x, error, part.error)
    return Estimate(value, error)


E = TypeVar("E", bound=AbstractRule)


def with_others(members: list[E]) -> E:
    """Return the first engine, with the others as its coarser versions."""
    return dataclasses.replace(members[0], others=tuple(members[1:]))
