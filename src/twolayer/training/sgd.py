"""How the weights move: stochastic gradient descent and its independent choices."""

from typing import Any

import equinox as eqx
import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.problem import Problem, Samples
from twolayer.specification.fields import count, instance, is_traced, leaf, number, static
from twolayer.specification.registry import register
from twolayer.training.clock import Clock
from twolayer.training.momentum import AbstractMethod, HeavyBall, as_momentum


class AbstractReuse(eqx.Module):
    """Whether samples are seen once or again."""


@register
class Fresh(AbstractReuse):
    """Every batch is new: one pass over the data."""


@register
class Reused(AbstractReuse):
    r"""The same :math:`n = \alpha d` samples at every step.

    Full batch, or random mini-batches when ``batch_size`` says less.
    On `Samples` the set is the data set itself, whatever alpha says. Mini-batches are drawn with replacement.
    """

    alpha: float = static(number("alpha", above=0.0, high=1e9))


@register
class Repeated(AbstractReuse):
    """Every batch is new, and is used for several updates in a row before the next one is drawn.

    One step is all updates on one batch; ``samples`` counts a sample once, however often it is used.
    """

    times: int = static(count("times", high=64), default=2)


@register
class LookAhead(AbstractReuse):
    r"""Every batch is new, and the gradient is taken where a step along it would lead.

    .. math:: \tilde W = W - \frac{\rho}{d} \nabla \sum_\nu \ell^\nu(W), \qquad
              W^+ = W - \frac{\gamma}{d} \nabla \sum_\nu \ell^\nu(\tilde W)

    on the same batch; a positive ``rate`` :math:`\rho` descends (extragradient, two passes over a sample), a negative
    one ascends (sharpness-aware minimisation). The second layer stays where it is while the first looks ahead.
    """

    rate: Any = leaf(number("rate"))


class AbstractLayers(eqx.Module):
    """Which layers are trained."""


@register
class First(AbstractLayers):
    """The first layer is trained, the second is frozen."""


@register
class Both(AbstractLayers):
    r"""Both layers are trained.

    ``ratio`` is :math:`\kappa = \gamma_a / \gamma_d`, second-layer over first-layer rate.
    """

    ratio: Any = leaf(number("ratio", low=0.0), default=1.0)


@register
class Second(AbstractLayers):
    r"""The second layer is trained, the first is frozen: a convex problem.

    ``ratio`` is the second-layer rate over ``learning_rate``, as for `Both`.
    """

    ratio: Any = leaf(number("ratio", above=0.0), default=1.0)


class AbstractConstraint(eqx.Module):
    """Where the rows of W may go."""


@register
class Free(AbstractConstraint):
    """Anywhere."""


@register
class Sphere(AbstractConstraint):
    """Every row is brought back to its initial length after each step.

    In a `Schedule` on fresh samples that is the length at which the phase begins: rows that moved freely before keep
    the length that they then have. On a fixed set it is the length at the start of the schedule.
    """


@register
class SGD(eqx.Module):
    r"""Stochastic gradient descent on batches of :math:`n_b` samples.

    .. math:: w_j \leftarrow w_j + \frac{\gamma}{p d}\, a_j \sum_{\nu \in batch} \sigma'(\lambda_j^\nu)\,
              \mathcal{E}^\nu z^\nu, \qquad \mathcal{E} = y - s(z)

    Parameters
    ----------
    learning_rate
        :math:`\gamma`, the same in every regime of batch size.
    batch_size
        :math:`n_b`; 1 by default for fresh samples, the whole set for reused ones.
    reuse, layers, constraint
        `Fresh`, `Repeated`, `LookAhead` or `Reused`; `First`, `Both` or `Second`; `Free` or `Sphere`.
    weight_decay, momentum
        :math:`W^+ = (1 - \gamma_d \lambda_w) W + \dots` and heavy ball, :math:`V^+ = \beta V + \dots`,
        :math:`W^+ = W + V^+`; or another method, ``momentum=Nesterov(0.9)``.
    """

    learning_rate: Any = leaf(number("learning_rate", above=0.0))
    batch_size: int | None = static(count("batch_size", optional=True))
    reuse: AbstractReuse = leaf(
        instance("reuse", AbstractReuse, "Fresh(), Repeated(), LookAhead(rate) or Reused(alpha)")
    )
    layers: AbstractLayers = leaf(instance("layers", AbstractLayers, "First(), Both(ratio) or Second(ratio)"))
    constraint: AbstractConstraint = leaf(instance("constraint", AbstractConstraint, "Free() or Sphere()"))
    weight_decay: Any = leaf(number("weight_decay", low=0.0))
    momentum: Any = leaf(as_momentum)

    def __init__(
        self,
        learning_rate: Any,
        batch_size: Any = None,
        reuse: Any = None,
        layers: Any = None,
        constraint: Any = None,
        weight_decay: Any = 0.0,
        momentum: Any = 0.0,
    ):
        """``batch_size`` left out means one fresh sample, or the whole set when samples are reused."""
        self.learning_rate = learning_rate
        self.reuse = Fresh() if reuse is None else reuse
        self.batch_size = 1 if batch_size is None and not self.has_fixed_set else batch_size
        self.layers = First() if layers is None else layers
        self.constraint = Free() if constraint is None else constraint
        self.weight_decay = weight_decay
        self.momentum = momentum

    @property
    def is_spherical(self) -> bool:
        """Whether the rows keep their length."""
        return isinstance(self.constraint, Sphere)

    @property
    def is_fresh(self) -> bool:
        """Whether every sample is used once."""
        return isinstance(self.reuse, Fresh)

    @property
    def has_fixed_set(self) -> bool:
        """Whether the same samples come back in later steps."""
        return isinstance(self.reuse, Reused)

    @property
    def layer_ratio(self) -> Any:
        r""":math:`\kappa`: 0 when the second layer is frozen."""
        return self.layers.ratio if isinstance(self.layers, Both | Second) else 0.0

    @property
    def trains_first(self) -> bool:
        """Whether the first layer is trained."""
        return not isinstance(self.layers, Second)

    @property
    def has_momentum(self) -> bool:
        """Whether there is a velocity to carry along."""
        return not self.is_classical or is_traced(self.momentum) or float(self.momentum) != 0.0

    @property
    def is_classical(self) -> bool:
        """Whether the momentum is heavy ball or none, given by one number."""
        return not isinstance(self.momentum, AbstractMethod)

    @property
    def method(self) -> AbstractMethod:
        """How past steps enter the next."""
        return HeavyBall(self.momentum) if self.is_classical else self.momentum

    def set_size(self, problem: Problem) -> int | None:
        """The number of samples in the fixed set; None when samples are fresh draws from a Gaussian."""
        if isinstance(problem.inputs, Samples):
            return problem.inputs.n
        if isinstance(self.reuse, Reused):
            return max(1, round(float(self.reuse.alpha) * problem.d))
        return None

    def samples_per_step(self, problem: Problem) -> int:
        """The batch size in force."""
        size = self.set_size(problem)
        if self.batch_size is None:
            return size or 1
        if isinstance(self.reuse, Reused) and size is not None and self.batch_size > size:
            raise InvalidInput(f"Argument `batch_size` is {self.batch_size}, but the reused set has {size} samples.")
        return self.batch_size

    def clock(self, problem: Problem) -> Clock:
        """How steps, time and samples convert into one another."""
        batch = self.samples_per_step(problem)
        rate = np.asarray(self.learning_rate, dtype=np.float64)
        return Clock(time_per_sample=rate / (problem.p * problem.d), samples_per_step=batch)
