r"""Closed forms for units that are all :math:`x^2`: a few products of small matrices, no loop over units."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from twolayer.expectation.base import ROUNDING, AbstractEngine, AbstractRule, Suits
from twolayer.expectation.moments import unit_weights
from twolayer.problem import Overlaps, Problem
from twolayer.problem.activations import SquareActivation


class SquareUnits(AbstractRule):
    r"""Closed forms: the student and every unit of the target are squares :cite:p:`arnaboldi2023escaping`.

    With :math:`D = \mathrm{diag}(c)`, :math:`\tau_1 = \mathrm{tr} D\Omega`,
    :math:`\tau_2 = \mathrm{tr} D\Omega D\Omega`:

    .. math::
        E[\mathcal E \ell\ell^T] = \tau_1 \Omega + 2\,\Omega D \Omega, \qquad
        E[\mathcal E^2 \ell\ell^T] = (\tau_1^2 + 2\tau_2 + \Delta)\,\Omega + 4\tau_1\,\Omega D\Omega
        + 8\,\Omega D\Omega D\Omega
    """

    others: tuple[AbstractEngine, ...] = ()

    floor: ClassVar[float] = ROUNDING

    @classmethod
    def suits(cls, problem: Problem, moment: str) -> Suits:
        units = problem.target.units
        if not isinstance(problem.student.activation, SquareActivation):
            return Suits(False, f"the student is {problem.student.activation}, not square")
        if units is None or not isinstance(units.activation, SquareActivation):
            return Suits(False, "the target is not a sum of squares")
        if moment == "covariance":
            return Suits(False, "no closed form for four displacements")
        return Suits(True)

    @classmethod
    def build(cls, problem: Problem, rtol: float) -> "SquareUnits":
        return cls()

    def parts(self, problem: Problem, overlaps: Overlaps, wanted: tuple[str, ...]) -> dict[str, Array]:
        p, omega = problem.p, overlaps.omega
        c = unit_weights(problem, overlaps.a)
        once = omega * c[None, :] @ omega  # Omega D Omega
        twice = once * c[None, :] @ omega  # Omega D Omega D Omega
        tau1 = c @ jnp.diagonal(omega)
        tau2 = c @ jnp.diagonal(once)
        X1 = tau1 * omega + 2.0 * once
        X2 = (tau1**2 + 2.0 * tau2 + problem.noise) * omega + 4.0 * tau1 * once + 8.0 * twice
        values = {
            "excess_risk": 0.5 * (tau1**2 + 2.0 * tau2),
            "chi": jnp.diagonal(X1)[:p],
            "v": 2.0 * X1[:p],
            "phi_hd": 4.0 * X2[:p, :p],
        }
        return {name: values[name] for name in wanted}

    @property
    def name(self) -> str:
        return "closed form (square)"
