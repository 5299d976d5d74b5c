r"""Averages over a step whose forces are no products of few fields: samples used several times, and signs.

As :math:`d \to \infty` the length of the input is known, so that an update on a sample moves its own fields by an
amount of order one, :math:`\lambda_j \to \lambda_j + \frac{\gamma}{p} a_j \sigma'(\lambda_j)\,\mathcal E`, and the next
gradient on the same sample is taken there. Everything that a step does follows from the law of the fields before it.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.estimate import Estimate
from twolayer.expectation.auto import Auto, Chosen
from twolayer.expectation.closed.thresholds import thresholds
from twolayer.expectation.gaussian_moments import FORCES, MOMENTS, Moments, fields_from_normals
from twolayer.expectation.qmc import LOG2_POINTS, MAX_FIELDS, REACH, SCRAMBLINGS, by_scatter, turned_normals
from twolayer.expectation.recognition import recognised
from twolayer.expectation.tails import tail_share
from twolayer.problem import Overlaps, Problem
from twolayer.problem.activations import AbstractPiecewiseLinear
from twolayer.specification.fields import as_data
from twolayer.training import SGD, LookAhead, Repeated

# Factor by which points are spread out along the target, whose tails dominate averages of squared labels.
WIDER = 1.25
# The largest fraction of the target's average square that may come from beyond the points.
TAIL = 5e-3


def again_refusal(problem: Problem) -> str:
    """Why the averages over a sample that is used again cannot be computed; empty if they can."""
    activation = recognised(problem.student.activation)
    coefficients = activation.coefficients
    is_bounded = thresholds(activation) is not None or isinstance(activation, AbstractPiecewiseLinear)
    if not is_bounded and (coefficients is None or len(coefficients) > 2):
        return (
            f"averages over samples that are used again need an activation whose slope is bounded (erf, tanh, sigmoid, "
            f"relu and other piecewise linear ones), but the student is {activation}; `OverlapSGD` covers it."
        )
    return cloud_refusal(problem, "averages over samples that are used again")


def cloud_refusal(problem: Problem, averages: str) -> str:
    """Why clouds of samples do not reach all fields of the ``averages``; empty if they do."""
    fields = problem.p + problem.k + 1
    if fields > MAX_FIELDS:
        return f"{averages} take {fields} fields at once, but {MAX_FIELDS} are the most."
    if tail_share(problem.target, REACH * WIDER) > TAIL:
        return f"the target grows so fast that {averages} come from beyond all points."
    return ""


def forces_again(
    problem: Problem, training: SGD, a: Float[Array, " p"], lam: Float[Array, "N p"], y: Float[Array, " N"]
) -> tuple[Float[Array, "N p"], Float[Array, "N p"]]:
    r"""Return :math:`\sigma'(\lambda_j) \mathcal E` and :math:`\sigma(\lambda_j) \mathcal E`, summed over the updates.

    The sample moves its own fields in between; the output weights move by order 1/d, which is nothing here.
    """
    activation, share = problem.student.activation, a * problem.student.scale

    def pulls(lam: Array) -> tuple[Array, Array]:
        eps = problem.loss.displacement(y, problem.student(lam, a))[:, None]
        return activation.derivative(lam) * eps, activation(lam) * eps

    if isinstance(training.reuse, LookAhead):
        return pulls(lam + training.reuse.rate * share[None, :] * pulls(lam)[0])
    assert isinstance(training.reuse, Repeated)
    rate = training.learning_rate if training.trains_first else 0.0
    first, second = pulls(lam)
    total = first, second
    for _ in range(training.reuse.times - 1):
        lam = lam + rate * share[None, :] * first
        first, second = pulls(lam)
        total = total[0] + first, total[1] + second
    return total


class CloudForces(Chosen):
    """Base class: the engines of the risk, with clouds of samples for the forces of a step that has its own.

    The clouds are scrambled Sobol nets in random frames over all fields and the label noise. Each is a variant: their
    mean is the value, and their scatter the error.
    """

    training: SGD
    normals: Float[Array, "clouds points n"]  # target, student, label noise

    @abc.abstractmethod
    def forces(
        self, problem: Problem, a: Float[Array, " p"], lam: Float[Array, "N p"], y: Float[Array, " N"]
    ) -> tuple[Float[Array, "N p"], Float[Array, "N p"]]:
        """Return the forces on the first and on the second layer of each sample."""

    @property
    @abc.abstractmethod
    def purpose(self) -> str:
        """What the clouds are for, in words."""

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        values = super().parts(problem, overlaps, tuple(name for name in wanted if name not in FORCES))
        if len(values) == len(wanted):
            return values
        k, normals = problem.k, self.normals.reshape(-1, self.normals.shape[-1])
        weights = jnp.exp(-0.5 * (WIDER**2 - 1.0) * jnp.sum(normals[:, :k] ** 2, axis=1))
        weights = weights / jnp.sum(weights)
        scale = jnp.where(jnp.arange(normals.shape[1] - 1) < k, WIDER, 1.0)
        fields = fields_from_normals(overlaps, scale[None, :] * normals[:, :-1])
        lam, lam_star = fields[:, : problem.p], fields[:, problem.p :]
        y = problem.label(lam_star, normals[:, -1])
        force, second = self.forces(problem, overlaps.a, lam, y)
        weighted = weights[:, None] * force
        values |= {"chi": weights @ second, "v": weighted.T @ fields, "phi_hd": weighted.T @ force}
        return {name: values[name] for name in wanted}

    def moments(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...] = MOMENTS) -> Moments:
        return Moments(**{"excess_risk": jnp.zeros(())} | self.parts(problem, overlaps, wanted))

    def variants(self) -> tuple[Chosen, ...]:
        risks = [self._of(variant.engines, self.normals[:1]) for variant in super().variants()]
        return (*risks, *(self._of(risks[0].engines, normals[None]) for normals in self.normals[1:]))

    def _of(self, engines: tuple[Any, ...], normals: Array) -> "CloudForces":
        return dataclasses.replace(self, engines=engines, normals=normals)

    def combine(self, results: tuple[Any, ...]) -> Estimate:
        number = len(results) - len(self.normals) + 1
        of_risk, of_clouds = super().combine(results[:number]), by_scatter((results[0], *results[number:]))
        value = jax.tree.map(lambda x, y, first: x + (y - first), of_risk.value, of_clouds.value, results[0])
        return Estimate(value, jax.tree.map(lambda x, y: x + y, of_risk.error, of_clouds.error))

    @property
    def judges_first(self) -> bool:
        """No: the value is the mean over all clouds, whatever the variants of the engine of the risk are for."""
        return False

    @property
    def rtol(self) -> float:
        return max(super().rtol, 1e-4)

    @property
    def name(self) -> str:
        return f"{super().name}; {self.name_of('v')}"

    def name_of(self, moment: str) -> str:
        clouds, points, fields = self.normals.shape
        of_forces = f"{self.purpose}: randomised QMC, {points} points x {clouds}, {fields} fields"
        return of_forces if moment in FORCES else super().name_of(moment)


class Again(CloudForces):
    """The averages over a step that uses its one sample several times."""

    def forces(self, problem: Problem, a: Array, lam: Array, y: Array) -> tuple[Array, Array]:
        return forces_again(problem, self.training, a, lam, y)

    @property
    def purpose(self) -> str:
        return "samples used again"


class SignForces(CloudForces):
    r"""The averages over a step of `SignDescent`.

    .. math:: \mathrm{sign}(a_j \sigma'(\lambda_j)\,\mathcal E)

    takes the place of the force on the first layer. The output weight is in the sign, so that `drift` does not multiply
    by it. The force on the second layer is that of plain SGD.
    """

    def forces(self, problem: Problem, a: Array, lam: Array, y: Array) -> tuple[Array, Array]:
        eps = problem.loss.displacement(y, problem.student(lam, a))[:, None]
        activation = problem.student.activation
        return jnp.sign(a[None, :] * activation.derivative(lam) * eps), activation(lam) * eps

    @property
    def purpose(self) -> str:
        return "signs of the gradient"


def choose_forces(auto: Auto, problem: Problem, training: SGD) -> CloudForces:
    """Build the averages over a step that uses its sample again, or whose moves are signs."""
    risk = auto.choose(problem, ("excess_risk",))
    fields = problem.p + problem.k + 1
    normals = np.stack([turned_normals(fields, LOG2_POINTS, seed) for seed in range(SCRAMBLINGS)])
    kind = Again if training.uses_batches_again else SignForces
    return kind(risk.engines, risk.serves, risk.refusals, as_data(training), jnp.asarray(normals))
