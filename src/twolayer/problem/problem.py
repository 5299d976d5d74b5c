"""The learning problem: target, student, inputs, start and noise."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from twolayer.core.errors import InvalidInput
from twolayer.core.memory import check_size
from twolayer.core.random import Purpose, purpose_key
from twolayer.problem.inputs import AbstractInputs, Gaussian, Samples
from twolayer.problem.losses import AbstractLoss, Square
from twolayer.problem.overlaps import Overlaps
from twolayer.problem.starts import AbstractStart, GivenOverlaps, RandomStart
from twolayer.problem.student import Student
from twolayer.problem.targets import AbstractTarget, Labels, check_covariance
from twolayer.specification.fields import MAX_LENGTH, instance, is_traced, leaf, number
from twolayer.specification.registry import register

# Overlap matrices in memory at once while a start is drawn and checked.
MATRICES = 4


def _as_target(value: Any) -> Any:
    if callable(value) and not isinstance(value, AbstractTarget):
        raise InvalidInput(
            "Argument `target` must be a target, but is a function: write MultiIndex(function, k=...) with its number "
            "of fields."
        )
    return instance("target", AbstractTarget, "a target such as Committee(k=2, activation='erf')")(value)


@register
class Problem(eqx.Module):
    r"""A learning problem, the same object for every simulation and every theory.

    .. math:: y = f(\lambda^\star) + \sqrt{\Delta}\,\xi, \qquad s(z) = \frac1p \sum_j a_j\,\sigma(\lambda_j), \qquad
              \lambda = W z,\ \lambda^\star = W^\star z

    ``noise`` is the variance :math:`\Delta` of the label noise; ``loss`` is `Square`, the default, `Correlation`, or a
    loss of your own.
    """

    target: AbstractTarget = leaf(_as_target)
    student: Student = leaf(instance("student", Student, "a Student"))
    inputs: AbstractInputs = leaf(instance("inputs", AbstractInputs, "Gaussian(d) or Samples(X, y)"))
    start: AbstractStart = leaf(
        instance("start", AbstractStart, "a start such as RandomStart()"), default_factory=RandomStart
    )
    loss: AbstractLoss = leaf(
        instance("loss", AbstractLoss, "a loss such as Square() or Correlation()"), default_factory=Square
    )
    noise: Any = leaf(number("noise", low=0.0, high=MAX_LENGTH**2), default=0.0)

    def __check_init__(self):
        if isinstance(self.inputs, Samples) != isinstance(self.target, Labels):
            raise InvalidInput("The target `Labels()` and the inputs `Samples(X, y)` must be used together.")
        if isinstance(self.target, Labels) and not is_traced(self.noise) and float(self.noise) != 0.0:
            raise InvalidInput(
                f"Argument `noise` must be 0 with `Samples`, whose labels are given, but is {self.noise}."
            )
        if self.d < self.k + 1:
            raise InvalidInput(
                f"Argument `d` must exceed the number of target directions k = {self.k}, but is {self.d}."
            )
        if not isinstance(self.target, Labels):  # lazy training on labels draws no overlaps
            self._check_overlap_size()
        if isinstance(self.start, GivenOverlaps) and self.start.P is not None and not is_traced(self.start.P):
            check_covariance("P", self.start.P, self.k)
            target_P = getattr(self.target, "P", None)
            if target_P is not None and not np.allclose(
                np.asarray(target_P), np.asarray(self.start.P), rtol=0, atol=1e-12
            ):
                raise InvalidInput("Argument `P` of the start must equal `P` of the target, but the two differ.")
        if not is_traced(self.P):
            self.start.check(self.p, np.asarray(self.P), self.d)

    def _check_overlap_size(self) -> None:
        """Refuse a covariance of all fields that does not fit the memory."""
        name, size, other = ("p", self.p, self.k) if self.p >= self.k else ("k", self.k, self.p)
        check_size(name, size, lambda n: 8 * MATRICES * (n + other) ** 2, "the overlap matrix of all fields")

    @property
    def d(self) -> int:
        """The input dimension."""
        return self.inputs.d

    @property
    def p(self) -> int:
        """The width of the student."""
        return self.student.p

    @property
    def k(self) -> int:
        """The number of target directions."""
        return self.target.k

    @property
    def P(self) -> np.ndarray | Array:
        """The target-target overlaps: those of the start if it has some, else those of the target."""
        stated = self.start.P if isinstance(self.start, GivenOverlaps) else None
        return self.target.target_overlaps if stated is None else stated

    @property
    def has_random_start(self) -> bool:
        """Whether the starts of two replicas differ."""
        return self.start.is_random or self.student.is_random

    def draw(self, key: Key[Array, ""]) -> Overlaps:
        """Draw the start of one replica, which is the same for every description with the same key."""
        self._check_overlap_size()
        P = jnp.asarray(self.P, jnp.float64)
        Q, M = self.start.draw(purpose_key(key, Purpose.START), self.p, P, self.d)
        a = self.start.second_layer(self.student.draw_second_layer(purpose_key(key, Purpose.SECOND_LAYER)))
        return Overlaps(Q, M, P, a)

    def draw_many(self, keys: Key[Array, " replicas"]) -> Overlaps:
        """Draw the starts of several replicas, stacked along a leading axis; P, the same for all, has none."""
        starts = jax.vmap(self.draw)(keys)
        return Overlaps(starts.Q, starts.M, jnp.asarray(self.P, jnp.float64), starts.a)


def without_dimension(problem: Problem) -> Problem:
    """The same problem with Gaussian inputs in p + k dimensions, so that one compiled program serves every d."""
    return dataclasses.replace(problem, inputs=Gaussian(problem.p + problem.k))
