"""Randomised quasi-Monte Carlo and Monte Carlo, for any function of any number of fields."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.engine import SAFETY, AbstractEngine, Suits, with_doubts
from twolayer.expectation.gaussian_moments import fields_from_normals, from_cloud
from twolayer.expectation.probe import WIDE, needs_probe, probed
from twolayer.expectation.tails import beyond, tail_share, unseen
from twolayer.problem import Overlaps, Problem

if TYPE_CHECKING:
    from scipy.stats import qmc

SCRAMBLINGS = 8
LOG2_POINTS = 13
# Beyond this many fields a net of this size is no better than independent points.
MAX_FIELDS = 32
# The outermost points are near four deviations; for a target whose average comes from beyond, the error would be wrong.
REACH = 4.0
TAIL = 0.1
# The points of a probe reach this many of its wider standard deviations.
FURTHEST = 3.3
# Two-sided quantile of Student's t with 7 degrees of freedom at one in 10^4: the mean of eight clouds is further
# from the truth than this many standard errors about once in ten thousand numbers.
T_QUANTILE = 7.885
# With a probability of one in 10^4 no point of all clouds meets a region of this one.
UNSEEN = float(np.log(1e4)) / (SCRAMBLINGS * 2**LOG2_POINTS)
# Independent points have heavier tails than nets: more clouds, so that their scatter is better known.
CLOUDS = 32


def sobol(coordinates: int, seed: int, bits: int | None = None) -> "qmc.Sobol":
    """Return the generator of one scrambled Sobol net, the only one of the package."""
    from scipy.stats import qmc

    return qmc.Sobol(coordinates, scramble=True, bits=bits, rng=np.random.default_rng(seed))


@lru_cache(maxsize=64)
def scrambled_normals(fields: int, log2_points: int, seed: int) -> np.ndarray:
    """Return one scrambled Sobol cloud of standard normals."""
    from scipy.special import ndtri

    uniforms = sobol(fields, seed).random_base2(log2_points)
    return ndtri(np.clip(uniforms, 2.0**-54, 1.0 - 2.0**-54))


@lru_cache(maxsize=64)
def turned_normals(fields: int, log2_points: int, seed: int) -> np.ndarray:
    """Return one scrambled Sobol cloud in a random frame, for functions with kinks and jumps.

    Along its axes a net has one point in each of N intervals: every scrambling has the same number of points beyond a
    jump, or one more, and the scatter of a few scramblings can be zero where their common error is not. In a random
    frame no surface is aligned with an axis.
    """
    normals = scrambled_normals(fields, log2_points, seed)
    if fields == 1:
        return normals
    frame, triangle = np.linalg.qr(np.random.default_rng((seed, 1)).standard_normal((fields, fields)))
    return normals @ (frame * np.sign(np.diagonal(triangle))[None, :])


def by_scatter(results: tuple[Any, ...]) -> Estimate:
    """Return the mean of the results of independent clouds, and its standard error times a quantile of Student's t.

    The error is at least the deviation of each cloud: where an average comes from few points, one cloud may have met
    them, and the others say nothing of how often that happens.
    """
    count = len(results)
    value = jax.tree.map(lambda *x: sum(x) / count, *results)

    def error_of(mean: Any, *x: Any) -> Any:
        error = T_QUANTILE * (sum((one - mean) ** 2 for one in x) / (count * (count - 1))) ** 0.5
        for one in x:
            error = 0.5 * (error + abs(one - mean) + abs(error - abs(one - mean)))  # the larger of both
        return error + 1e-15

    return Estimate(value, jax.tree.map(error_of, value, *results))


class AbstractCloud(AbstractEngine):
    """Base class: several fixed clouds of points, so that the moments are a fixed function of the overlaps.

    The clouds are the variants: the value is their mean, the error their standard error times a quantile of Student's
    t distribution. Where averages may be made in places that few points reach, a probe of these places is one more
    variant (`probe.probed`), and a bound on what is beyond its reach another. A target that jumps at unknown places may
    do so where no point is, and no cloud differs from the others then: a bound on that is counted as well.
    """

    normals: eqx.AbstractVar[Float[Array, "clouds points n"]]
    is_kinked: eqx.AbstractVar[bool]
    # Whether averages may be made where few points are, by growth or by narrow features.
    is_doubted: eqx.AbstractVar[bool]
    # Whether the target may jump, anywhere.
    has_jumps: eqx.AbstractVar[bool]
    # What a variant computes: "cloud", "probe" (the same averages from points where features are) or "bounds".
    role: eqx.AbstractVar[str]

    @property
    def rtol(self) -> float:
        """The relative tolerance of an integrator that matches the accuracy of the clouds; larger with kinks."""
        return 1e-4 if self.is_kinked else 1e-5

    def variants(self) -> tuple[AbstractEngine, ...]:
        make: Any = type(self)
        clouds = tuple(make(normals[None], self.is_kinked) for normals in self.normals)
        if not (self.is_doubted or self.has_jumps):
            return clouds
        bounds = make(self.normals[:1], self.is_kinked, self.is_doubted, self.has_jumps, role="bounds")
        if not self.is_doubted:
            return *clouds, bounds
        points = self.normals.reshape(-1, self.normals.shape[-1])[: 2**LOG2_POINTS]
        return *clouds, bounds, make(points[None], self.is_kinked, role="probe")

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        clouds, others = results[: len(self.normals)], results[len(self.normals) :]
        judged = with_doubts(by_scatter(clouds), results[0], others[:1])
        if not self.is_doubted:
            return judged

        def error(total: Any, own: Any, value: Any, seen: Any) -> Any:
            # Half of the scatter is that of the probe. What exceeds it was missed, and the probe may see it in part.
            excess = abs(seen - value) - 0.5 * own
            return total + SAFETY * 0.5 * (excess + abs(excess))

        scattered = by_scatter(clouds)
        return Estimate(judged.value, jax.tree.map(error, judged.error, scattered.error, judged.value, others[1]))

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        normals = self.normals.reshape(-1, self.normals.shape[-1])
        fields, weights = fields_from_normals(overlaps, normals), jnp.full(normals.shape[:1], 1.0 / normals.shape[0])
        if self.role == "probe":
            fields, weights = probed(problem, overlaps, fields)
        values = from_cloud(problem, overlaps.a, fields, weights, wanted)
        if self.role == "bounds" and self.is_doubted:
            missed = beyond(problem, overlaps, wanted, WIDE * FURTHEST)
            values = {name: values[name] + missed[name] for name in wanted}
        if self.role == "bounds" and self.has_jumps:
            missed = unseen(problem, overlaps, wanted, UNSEEN)
            values = {name: values[name] + missed[name] for name in wanted}
        return values


def _has_kinks(problem: Problem) -> bool:
    return not (problem.student.activation.is_smooth and problem.target.is_smooth)


def within_reach(problem: Problem) -> Suits:
    """Return whether a cloud of points reaches the fields from which the averages of the target come."""
    if tail_share(problem.target, REACH) > TAIL:
        return Suits(
            False, f"the target's average comes from fields beyond {REACH:g} deviations, where there are no points"
        )
    return Suits(True)


class Cloud(AbstractCloud):
    """Randomised quasi-Monte Carlo: independent scramblings of Sobol's points."""

    normals: Float[Array, "clouds points n"] = eqx.field(converter=jnp.asarray)
    is_kinked: bool = eqx.field(static=True)
    is_doubted: bool = eqx.field(static=True, default=False)
    has_jumps: bool = eqx.field(static=True, default=False)
    role: str = eqx.field(static=True, default="cloud")

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        fields = problem.p + problem.k
        if fields > MAX_FIELDS:
            return Suits(False, f"{fields} fields, limit {MAX_FIELDS}")
        return within_reach(problem)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "Cloud":
        fields = problem.p + problem.k
        has_kinks = _has_kinks(problem)
        make = turned_normals if has_kinks else scrambled_normals
        clouds = np.stack([make(fields, LOG2_POINTS, seed) for seed in range(SCRAMBLINGS)])
        return cls(jnp.asarray(clouds), has_kinks, needs_probe(problem), not problem.target.is_continuous)

    @property
    def name(self) -> str:
        clouds, points, fields = self.normals.shape
        return f"randomised QMC, {points} points x {clouds} scramblings, {fields} fields"


class MonteCarlo(AbstractCloud):
    """Plain Monte Carlo: independent clouds of independent points."""

    normals: Float[Array, "clouds points n"] = eqx.field(converter=jnp.asarray)
    is_kinked: bool = eqx.field(static=True)
    is_doubted: bool = eqx.field(static=True, default=False)
    has_jumps: bool = eqx.field(static=True, default=False)
    role: str = eqx.field(static=True, default="cloud")

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        return within_reach(problem)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "MonteCarlo":
        shape = (CLOUDS, SCRAMBLINGS * 2**LOG2_POINTS // CLOUDS, problem.p + problem.k)
        normals = np.random.default_rng(0).standard_normal(shape)
        return cls(jnp.asarray(normals), _has_kinks(problem), needs_probe(problem), not problem.target.is_continuous)

    @property
    def name(self) -> str:
        clouds, points, fields = self.normals.shape
        return f"Monte Carlo, {points} points x {clouds} clouds, {fields} fields"
