r"""The part of a target that a student can learn: the orders that its activation has.

With unit rows, :math:`E[f\,\sigma(w \cdot z)] = \sum_n \frac{\sigma_n}{n!} \langle C_n, w^{\otimes n} \rangle` where
:math:`\sigma_n = E[\sigma(x) \mathrm{He}_n(x)]`. An order n with :math:`\sigma_n = 0` is invisible to this student, and
its staircase is that of the target without these orders.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.learnability.certificate import Certificate, Verdict, decide
from twolayer.learnability.sources import line_coefficients, numpy_values
from twolayer.learnability.stages import LearningStages, Stage, climb, prover
from twolayer.learnability.symmetry import Symmetries
from twolayer.learnability.tensors import HermiteTable
from twolayer.problem import Student


@dataclass(frozen=True)
class Seen:
    """The staircase of a target for one student."""

    student: Student
    coefficients: np.ndarray  # sigma_n
    certificates: tuple[Certificate, ...]  # of sigma_n / sqrt(n!), from n = 0 on
    staircase: LearningStages
    right_sign: float | None  # fraction of output weights whose sign lets the first directions be learned; or unknown

    @property
    def orders(self) -> tuple[int, ...]:
        """The orders of the activation, up to the highest tensor of the target."""
        return tuple(
            n for n, certificate in enumerate(self.certificates) if n and certificate.verdict is Verdict.NONZERO
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the staircase of the student as plain data."""
        return {
            "activation": type(self.student.activation).__name__,
            "p": self.student.p,
            "orders": list(self.orders),
            "information_exponent": self.staircase.exponent,
            "leap": self.staircase.leap,
            "right_sign": self.right_sign,
        }


def activation_coefficients(student: Student, orders: int) -> tuple[np.ndarray, tuple[Certificate, ...]]:
    """Return the Hermite coefficients of the activation, and certificates of which of them are zero."""
    activation = student.activation
    value, error, square = line_coefficients(lambda x: numpy_values(activation, x), orders, (0.0, *activation.kinks))
    norms = np.sqrt(np.cumprod(np.maximum(np.arange(orders + 1.0), 1.0)))
    scale = np.sqrt(square)
    certificates = []
    for n in range(orders + 1):
        proof = "by symmetry of the activation" if activation.parity and (-1) ** n != activation.parity else None
        size, bound = abs(value[n]) / norms[n] / scale, error[n] / norms[n] / scale
        certificates.append(decide(float(size), float(bound), float(bound), proof))
    return value, tuple(certificates)


def seen_by(student: Student, table: HermiteTable, symmetries: Symmetries) -> Seen:
    """Return the staircase of a target for a student."""
    value, certificates = activation_coefficients(student, table.order)
    visible = table.seen_by([certificate.verdict is Verdict.NONZERO for certificate in certificates])
    staircase = climb([visible], prover(visible, symmetries))
    first = staircase.stages[0] if staircase.stages else None
    return Seen(student, value, certificates, staircase, _right_sign(student, table, value, first))


def _right_sign(student: Student, table: HermiteTable, sigma: np.ndarray, stage: Stage | None) -> float | None:
    r"""Return the fraction of neurons with :math:`a_j \sigma_r \langle C_r, v^{\otimes r} \rangle > 0` for some v.

    This is for even r; at odd r every neuron has such a v or -v.
    """
    if stage is None:
        return None
    if stage.leap % 2 == 1:
        return 1.0
    if stage.leap == 2:
        eigenvalues = np.linalg.eigvalsh(table.tensor(2)) * sigma[2]
        largest = float(np.max(np.abs(eigenvalues)))
        up, down = np.max(eigenvalues) > 1e-9 * largest, np.min(eigenvalues) < -1e-9 * largest
    elif table.k == 1:
        sign = sigma[stage.leap] * table.values[stage.leap][0]
        up, down = sign > 0, sign < 0
    else:
        return None
    a = student.second_layer
    positive = float(np.mean(np.asarray(a) > 0)) if not isinstance(a, str) else 1.0 if a == "ones" else 0.5
    negative = float(np.mean(np.asarray(a) < 0)) if not isinstance(a, str) else 0.0 if a == "ones" else 0.5
    return positive * float(up) + negative * float(down)
