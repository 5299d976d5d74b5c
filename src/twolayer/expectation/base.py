"""What an engine is: a way to compute the Gaussian moments, which says when it serves and how wrong it may be."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax

from twolayer.core.estimate import Estimate
from twolayer.expectation.moments import Moments
from twolayer.problem import Overlaps, Problem

ROUNDING = 1e-13


class Suits(NamedTuple):
    """Whether an engine serves a problem; the reason is given when it does not."""

    ok: bool
    reason: str = ""


class AbstractEngine(eqx.Module):
    """A way to compute the moments.

    An engine may consist of several ``variants``, which compute the same moments independently or more coarsely; whatever
    is computed with each of them, moments or a whole trajectory, is combined by ``combine`` into a value and an error.
    That is how the error of an integral is carried through everything built on it.
    """

    rtol: eqx.AbstractVar[float]

    @classmethod
    @abc.abstractmethod
    def suits(cls, problem: Problem) -> Suits:
        """Whether this engine serves the problem."""

    @classmethod
    @abc.abstractmethod
    def build(cls, problem: Problem) -> "AbstractEngine":
        """The engine with its tables made for the problem."""

    @abc.abstractmethod
    def variants(self) -> tuple["AbstractEngine", ...]:
        """The members whose results are combined; the first one is a sensible engine by itself."""

    @abc.abstractmethod
    def combine(self, results: tuple[Any, ...]) -> Estimate:
        """Value and error from the results of the variants (pytrees of the same structure)."""

    @abc.abstractmethod
    def moments(self, problem: Problem, overlaps: Overlaps) -> Moments:
        """The moments at the overlaps, by this variant."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How it appears in tables and datasets."""


def exact_combine(results: tuple[Any, ...]) -> Estimate:
    """The combination rule of engines without approximation: rounding is their only error."""
    (value,) = results
    return Estimate(value, jax.tree.map(lambda x: ROUNDING * (1.0 + abs(x)), value))


def estimate(engine: AbstractEngine, problem: Problem, overlaps: Overlaps) -> Estimate:
    """The moments at the overlaps, each with its error."""
    return engine.combine(tuple(variant.moments(problem, overlaps) for variant in engine.variants()))
