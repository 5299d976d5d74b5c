"""Stochastic gradient descent and its independent options."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array

from twolayer.core.errors import InvalidInput
from twolayer.core.plain_methods import plain, plain_attributes
from twolayer.core.types import Converted, Number, Numbers, Unchecked
from twolayer.problem import Problem, Samples
from twolayer.specification.fields import count, flag, instance, is_traced, leaf, number, static
from twolayer.specification.registry import register
from twolayer.training.clock import Clock
from twolayer.training.methods import AbstractMethod, HeavyBall, SignDescent, as_momentum, gain


class AbstractReuse(eqx.Module):
    """Base class: whether and how samples are used more than once."""


@register
class Fresh(AbstractReuse):
    """Every batch consists of new samples: one pass over the data."""


@register
class Reused(AbstractReuse):
    r"""The same :math:`n = \alpha d` samples are used at every step.

    A step uses all of them, or a random mini-batch if ``batch_size`` is given. On `Samples` with labels the set is
    the data set itself, and ``alpha`` is ignored.

    Parameters
    ----------
    alpha
        Samples over dimension, :math:`\alpha = n / d`.
    replacement
        Whether mini-batches are drawn with replacement, each on its own. Without it training goes in epochs: the set is
        shuffled at the start of each epoch and then cut into batches, so that no sample is used twice in an epoch. If
        ``batch_size`` does not divide n, the samples that are left over are not used in this epoch.
    """

    alpha: float = static(number("alpha", above=0.0, high=1e9))
    replacement: bool = static(flag("replacement"), default=True)


@register
class Repeated(AbstractReuse):
    """Every batch is new, and is used for several consecutive updates before the next one is drawn.

    One step consists of all updates on one batch; ``samples`` counts a sample once, although it is used several times.
    """

    times: int = static(count("times", high=64), default=2)


@register
class LookAhead(AbstractReuse):
    r"""Every batch is new, and its gradient is taken at the weights after a trial step on the same batch.

    .. math:: \tilde W = W - \frac{\rho}{d} \nabla \sum_\nu \ell^\nu(W), \qquad
              W^+ = W - \frac{\gamma}{d} \nabla \sum_\nu \ell^\nu(\tilde W)

    on the same batch; a positive ``rate`` :math:`\rho` descends (extragradient, two passes over a sample), a negative
    one ascends (sharpness-aware minimisation). The trial step moves the first layer only.
    """

    rate: Number = leaf(number("rate"))


class AbstractLayers(eqx.Module):
    """Base class: which layers are trained."""


@register
class First(AbstractLayers):
    """The first layer is trained, and the second is frozen."""


@register
class Both(AbstractLayers):
    r"""Both layers are trained.

    ``ratio`` is :math:`\kappa = \gamma_a / \gamma_d`, the learning rate of the second layer over that of the first.
    """

    ratio: Number = leaf(number("ratio", low=0.0), default=1.0)


@register
class Second(AbstractLayers):
    r"""The second layer is trained, and the first is frozen, which makes the problem convex.

    ``ratio`` is the learning rate of the second layer over ``learning_rate``, as for `Both`.
    """

    ratio: Number = leaf(number("ratio", above=0.0), default=1.0)


class AbstractConstraint(eqx.Module):
    """Base class: a constraint on the rows of the first layer W."""


@register
class Free(AbstractConstraint):
    """The rows of the first layer are not constrained."""


@register
class Sphere(AbstractConstraint):
    r"""Every row is scaled back to its initial length after each step.

    In a `Schedule` on fresh samples this is the length at the beginning of the phase. On a fixed set it is the length
    at the start of the schedule.

    Parameters
    ----------
    riemannian
        Whether the gradient of a step loses its part along the row before the step is taken,
        :math:`g_j - \frac{g_j \cdot w_j}{w_j \cdot w_j} w_j`. Steps differ at second order in the learning rate: in the
        limits of small steps (`SaadSolla`, `SDE`, `MeanField`, `HDMF`) both variants are the same, with giant steps
        (`BatchMap`, `DMFT`) and at finite d they are not.
    """

    riemannian: bool = static(flag("riemannian"), default=False)


@plain_attributes
@register
class SGD(eqx.Module):
    r"""Stochastic gradient descent on batches of :math:`n_b` samples.

    .. math:: w_j \leftarrow w_j + \frac{\gamma}{p d}\, a_j \sum_{\nu \in batch} \sigma'(\lambda_j^\nu)\,
              \mathcal{E}^\nu z^\nu, \qquad \mathcal{E} = y - s(z)

    Parameters
    ----------
    learning_rate
        Learning rate :math:`\gamma`, with the same meaning for every batch size.
    batch_size
        Batch size :math:`n_b`; by default 1 for fresh samples and the whole set for reused ones.
    reuse, layers, constraint
        `Fresh`, `Repeated`, `LookAhead` or `Reused`; `First`, `Both` or `Second`; `Free` or `Sphere`.
    weight_decay, momentum
        Weight decay :math:`\lambda_w` in :math:`W^+ = (1 - \gamma_d \lambda_w) W + \dots`, and :math:`\beta` of heavy
        ball, :math:`V^+ = \beta V + \dots`, :math:`W^+ = W + V^+`.
    method
        Another method in place of ``momentum``: `Nesterov`, `SignDescent`, `RMSProp`, `Adam`, or an `AbstractMethod` of
        your own. It moves the first layer; the second is trained by plain SGD.
    """

    learning_rate: Number = leaf(number("learning_rate", above=0.0))
    batch_size: int | None = static(count("batch_size", optional=True))
    reuse: Converted[AbstractReuse | str, AbstractReuse] = leaf(
        instance("reuse", AbstractReuse, "Fresh(), Repeated(), LookAhead(rate) or Reused(alpha)")
    )
    layers: Converted[AbstractLayers | str, AbstractLayers] = leaf(
        instance("layers", AbstractLayers, "First(), Both(ratio) or Second(ratio)")
    )
    constraint: Converted[AbstractConstraint | str, AbstractConstraint] = leaf(
        instance("constraint", AbstractConstraint, "Free() or Sphere()")
    )
    weight_decay: Number = leaf(number("weight_decay", low=0.0))
    momentum: Converted[Number | AbstractMethod, Any] = leaf(as_momentum)

    def __init__(
        self,
        learning_rate: Unchecked[Number],
        batch_size: Unchecked[int | None] = None,
        reuse: Unchecked[AbstractReuse | str | None] = None,
        layers: Unchecked[AbstractLayers | str | None] = None,
        constraint: Unchecked[AbstractConstraint | str | None] = None,
        weight_decay: Unchecked[Number] = 0.0,
        momentum: Unchecked[Number | AbstractMethod] = 0.0,
        method: Unchecked[AbstractMethod | str | None] = None,
    ):
        """Set the defaults: without ``batch_size``, one fresh sample, or the whole set if samples are reused."""
        if method is not None:
            if momentum != 0.0:
                raise InvalidInput("Arguments `momentum` and `method` are two names of one choice: give one of them.")
            momentum = instance("method", AbstractMethod, "a method such as Nesterov(0.9) or Adam()")(method)
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
    def is_riemannian(self) -> bool:
        """Whether the gradient is projected on the tangent space of the sphere before each step of the first layer."""
        return isinstance(self.constraint, Sphere) and self.constraint.riemannian and self.trains_first

    @property
    def is_fresh(self) -> bool:
        """Whether every sample is used only once."""
        return isinstance(self.reuse, Fresh)

    @property
    def has_fixed_set(self) -> bool:
        """Whether the same samples are used again in later steps."""
        return isinstance(self.reuse, Reused)

    @property
    def uses_batches_again(self) -> bool:
        """Whether every batch is new and is used for several gradients in a row."""
        return isinstance(self.reuse, Repeated | LookAhead)

    @property
    def updates_per_step(self) -> int:
        """The number of updates on each batch."""
        return self.reuse.times if isinstance(self.reuse, Repeated) else 1

    @property
    def layer_ratio(self) -> Numbers:
        r"""The ratio :math:`\kappa` of the learning rates of both layers; 0 when the second layer is frozen."""
        return self.layers.ratio if isinstance(self.layers, Both | Second) else 0.0

    @property
    def trains_first(self) -> bool:
        """Whether the first layer is trained."""
        return not isinstance(self.layers, Second)

    @property
    def has_momentum(self) -> bool:
        """Whether the method has a state besides the weights, such as a velocity."""
        return not self.is_classical or is_traced(self.momentum) or float(self.momentum) != 0.0

    @property
    def is_classical(self) -> bool:
        """Whether the momentum is given by one number, which means heavy ball or none."""
        return not isinstance(self.momentum, AbstractMethod)

    @property
    def method(self) -> AbstractMethod:
        """The method by which past steps enter the next one."""
        return HeavyBall(self.momentum) if self.is_classical else self.momentum

    @property
    def moves_by_signs(self) -> bool:
        """Whether the first layer moves by the signs of its gradient, which `SignDescent` may average over steps."""
        return self.trains_first and isinstance(self.momentum, SignDescent)

    @property
    def gain(self) -> float | Array:
        """How far the weights move in the long run for one gradient, by a linear method; 1 for plain SGD."""
        return gain(self.method) if self.has_momentum else 1.0

    @plain
    def set_size(self, problem: Problem) -> int | None:
        """Return the number of samples in the fixed set; None when samples are drawn afresh."""
        if isinstance(problem.inputs, Samples) and problem.is_labelled_set:
            return problem.inputs.n
        if isinstance(self.reuse, Reused):
            return max(1, round(float(self.reuse.alpha) * problem.d))
        return None

    @plain
    def samples_per_step(self, problem: Problem) -> int:
        """Return the number of samples in one step."""
        size = self.set_size(problem)
        if self.batch_size is None:
            return size or 1
        if isinstance(self.reuse, Reused) and size is not None and self.batch_size > size:
            raise InvalidInput(f"Argument `batch_size` is {self.batch_size}, but the reused set has {size} samples.")
        return self.batch_size

    @plain
    def steps_per_epoch(self, problem: Problem) -> int | None:
        """Return the number of steps in one epoch; None unless mini-batches are drawn without replacement."""
        size = self.set_size(problem)
        if size is None or not isinstance(self.reuse, Reused) or self.reuse.replacement or self.batch_size is None:
            return None
        return size // self.samples_per_step(problem)

    @plain
    def clock(self, problem: Problem) -> Clock:
        """Return the conversion between steps, time and samples."""
        batch = self.samples_per_step(problem)
        rate = np.asarray(self.learning_rate, dtype=np.float64)
        return Clock(time_per_sample=rate / (problem.p * problem.d), samples_per_step=batch)
