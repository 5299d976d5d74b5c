"""What an engine is: a way to compute the Gaussian moments, which says when it serves and how wrong it may be."""

import abc
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.moments import Moments
from twolayer.problem import Overlaps, Problem

if TYPE_CHECKING:  # an AbstractVar is no argument of the constructor, but a type checker would take it for one
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar

ROUNDING = 1e-12


class Suits(NamedTuple):
    """Whether an engine serves a problem; the reason is given when it does not."""

    ok: bool
    reason: str = ""


class AbstractEngine(eqx.Module):
    """A way to compute the moments.

    An engine may consist of several ``variants``, which compute the same moments independently or more coarsely;
    whatever is computed with each of them, moments or a whole trajectory, is combined by ``combine`` into a value and
    an error. That is how the error of an integral is carried through everything built on it.
    """

    rtol: AbstractVar[float]

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


def exact_combine(results: tuple[Any, ...], rounding: float = ROUNDING) -> Estimate:
    """The combination rule of engines without approximation: rounding is their only error."""
    (value,) = results
    return Estimate(value, jax.tree.map(lambda x: rounding * (1.0 + abs(x)), value))


def estimate(engine: AbstractEngine, problem: Problem, overlaps: Overlaps) -> Estimate:
    """The moments at the overlaps, each with its error."""
    return engine.combine(tuple(variant.moments(problem, overlaps) for variant in engine.variants()))


def risk_along(
    engine: AbstractEngine,
    problem: Problem,
    Q: Float[np.ndarray, "replicas times p p"],
    M: Float[np.ndarray, "replicas times p k"],
    P: Float[Array, "k k"],
    a: Float[np.ndarray, "replicas times p"],
) -> tuple[Float[np.ndarray, "replicas times"], Float[np.ndarray, "replicas times"]]:
    """Excess risk and its numerical error along saved trajectories; NaN where the overlaps are."""
    rows = [jnp.asarray(x).reshape(-1, *x.shape[2:]) for x in (Q, M, a)]
    value, error = _risk_of_rows(engine, problem, P, rows)
    return np.asarray(value).reshape(a.shape[:2]), np.asarray(error).reshape(a.shape[:2])


@eqx.filter_jit
def _risk_of_rows(engine: AbstractEngine, problem: Problem, P: Array, rows: list[Array]) -> tuple[Array, Array]:
    def one(row: list[Array]) -> tuple[Array, Array]:
        result = estimate(engine, problem, Overlaps(row[0], row[1], P, row[2]))
        return result.value.excess_risk, result.error.excess_risk

    return jax.lax.map(one, rows, batch_size=64)
