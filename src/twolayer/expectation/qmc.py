"""Many points: randomised quasi-Monte Carlo and Monte Carlo, for any function of any number of fields."""

from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.base import AbstractEngine, Suits
from twolayer.expectation.moments import fields_from_normals, from_cloud
from twolayer.expectation.tails import tail_share
from twolayer.problem import Overlaps, Problem

SCRAMBLINGS = 8
LOG2_POINTS = 13
# Beyond this many fields a net of that size is no better than chance.
MAX_FIELDS = 32
# The outermost points lie near four deviations: a target whose average is made beyond is not seen, nor is the error.
REACH = 4.0
TAIL = 0.1
# Two-sided quantile of Student's t with 7 degrees of freedom at one in 10^4: the mean of eight clouds is further
# from the truth than this many standard errors about once in ten thousand numbers.
T_QUANTILE = 7.885
# Independent points have heavier tails than nets: more clouds, so that their scatter is better known.
CLOUDS = 32


@lru_cache(maxsize=64)
def scrambled_normals(fields: int, log2_points: int, seed: int) -> np.ndarray:
    """One scrambled Sobol cloud of standard normals."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniforms = qmc.Sobol(fields, scramble=True, rng=np.random.default_rng(seed)).random_base2(log2_points)
    return ndtri(np.clip(uniforms, 2.0**-54, 1.0 - 2.0**-54))


def by_scatter(results: tuple[Any, ...]) -> Estimate:
    """The mean of the results of independent clouds, and a quantile of its standard error."""
    count = len(results)
    value = jax.tree.map(lambda *x: sum(x) / count, *results)

    def standard_error(mean: Any, *x: Any) -> Any:
        return (sum((one - mean) ** 2 for one in x) / (count * (count - 1))) ** 0.5

    error = jax.tree.map(lambda mean, *x: T_QUANTILE * standard_error(mean, *x) + 1e-15, value, *results)
    return Estimate(value, error)


class AbstractCloud(AbstractEngine):
    """Several clouds of points, the same at every call, so that the moments are a fixed function of the overlaps.

    The clouds are the variants: the value is their mean, the error their standard error times a quantile of Student's
    t distribution.
    """

    normals: eqx.AbstractVar[Float[Array, "clouds points n"]]
    is_kinked: eqx.AbstractVar[bool]

    @property
    def rtol(self) -> float:
        """Integrating more finely than the clouds know the averages is wasted, all the more where points meet kinks."""
        return 1e-4 if self.is_kinked else 1e-5

    def variants(self) -> tuple[AbstractEngine, ...]:
        return tuple(type(self)(normals[None], self.is_kinked) for normals in self.normals)  # pyright: ignore[reportCallIssue]

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        return by_scatter(results)

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        normals = self.normals.reshape(-1, self.normals.shape[-1])
        weights = jnp.full(normals.shape[:1], 1.0 / normals.shape[0])
        return from_cloud(problem, overlaps.a, fields_from_normals(overlaps, normals), weights, wanted)


def _has_kinks(problem: Problem) -> bool:
    return bool(problem.student.activation.kinks) or not problem.target.is_smooth


def within_reach(problem: Problem) -> Suits:
    """Whether a cloud of points reaches where the averages of the target are made."""
    if tail_share(problem.target, REACH) > TAIL:
        return Suits(False, f"the target's average is made by fields beyond {REACH:g} deviations, where no points are")
    return Suits(True)


class Cloud(AbstractCloud):
    """Randomised quasi-Monte Carlo: independent scramblings of Sobol's points."""

    normals: Float[Array, "clouds points n"] = eqx.field(converter=jnp.asarray)
    is_kinked: bool = eqx.field(static=True)

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        fields = problem.p + problem.k
        if fields > MAX_FIELDS:
            return Suits(False, f"{fields} fields, limit {MAX_FIELDS}")
        return within_reach(problem)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Cloud":
        fields = problem.p + problem.k
        clouds = np.stack([scrambled_normals(fields, LOG2_POINTS, seed) for seed in range(SCRAMBLINGS)])
        return cls(jnp.asarray(clouds), _has_kinks(problem))

    @property
    def name(self) -> str:
        clouds, points, fields = self.normals.shape
        return f"randomised QMC, {points} points x {clouds} scramblings, {fields} fields"


class MonteCarlo(AbstractCloud):
    """Plain Monte Carlo: independent clouds of independent points."""

    normals: Float[Array, "clouds points n"] = eqx.field(converter=jnp.asarray)
    is_kinked: bool = eqx.field(static=True)

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        return within_reach(problem)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "MonteCarlo":
        shape = (CLOUDS, SCRAMBLINGS * 2**LOG2_POINTS // CLOUDS, problem.p + problem.k)
        return cls(jnp.asarray(np.random.default_rng(0).standard_normal(shape)), _has_kinks(problem))

    @property
    def name(self) -> str:
        clouds, points, fields = self.normals.shape
        return f"Monte Carlo, {points} points x {clouds} clouds, {fields} fields"
