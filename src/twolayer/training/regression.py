"""Ridge regression of the second layer, in closed form: the last part of layer-wise training."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.linalg import symmetrise
from twolayer.core.types import Number
from twolayer.problem import Problem
from twolayer.specification.fields import count, leaf, number, static
from twolayer.specification.registry import register
from twolayer.training.clock import Clock


class FitClock(Clock):
    """The clock of a fit in closed form: one step takes one unit of time, whatever the number of samples."""

    __slots__ = ()

    @property
    def time_per_step(self) -> float:
        """The time of one step."""
        return 1.0


@register
class RidgeRegression(eqx.Module):
    r"""Ridge regression of the second layer on fresh samples: a phase of a `Schedule`, solved in closed form.

    .. math:: \hat a = \arg\min_a\ \frac{1}{2n} \sum_{\nu=1}^n \big(y^\nu - s(z^\nu)\big)^2 + \frac{\lambda}{2p}\,|a|^2

    The first layer stays as it is. Every step of the phase is one fit on n new samples, and takes one unit of time.
    Layer-wise training, a few steps on the first layer and then a fit of the second, is
    ``Schedule([SGD(2.0, batch_size=4000), RidgeRegression(0.01, samples=4000)], switches=[time])``.

    Parameters
    ----------
    penalty
        The ridge penalty :math:`\lambda`. Without one the solution of smallest norm is taken.
    samples
        The number n of fresh samples; by default the whole population, :math:`n \to \infty`, which counts as no sample.
    """

    penalty: Number = leaf(number("penalty", low=0.0))
    samples: int | None = static(count("samples", high=2**32 - 2, optional=True), default=None)

    # What a schedule asks of every phase, as of `SGD`.
    has_fixed_set = has_momentum = is_spherical = trains_first = False
    is_fresh = True

    @property
    def words(self) -> str:
        """What is fitted, and on what."""
        samples = "the population" if self.samples is None else f"{self.samples} fresh samples"
        return f"ridge regression of the second layer on {samples}"

    def clock(self, problem: Problem) -> Clock:
        """Return the conversion between steps, time and samples."""
        return FitClock(math.inf if self.samples is None else 1.0 / self.samples, self.samples or 0)

    def solve(self, gram: Float[Array, "p p"], projections: Float[Array, " p"]) -> Float[Array, " p"]:
        r"""Return the second layer, given averages of the features over the samples.

        .. math:: \hat a = p\,(G + \lambda p)^{-1} h, \qquad G = \langle \sigma \sigma^T \rangle, \quad
                  h = \langle \sigma\,y \rangle

        Directions in which the features do not vary, within rounding, keep the coefficient zero.
        """
        p = projections.shape[0]
        values, vectors = jnp.linalg.eigh(symmetrise(gram))
        values = values + self.penalty * p
        is_seen = values > p * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
        inverse = jnp.where(is_seen, 1.0 / jnp.where(is_seen, values, 1.0), 0.0)
        return p * (vectors @ (inverse * (vectors.T @ projections)))
