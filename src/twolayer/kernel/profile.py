r"""The kernel of a pair of inputs as a function of the angle between them.

For inputs of one norm r, with :math:`\rho = \cos\theta` and weights :math:`w \sim N(0, \kappa^2 I)`,

.. math:: H^\infty = r^2 \rho\,J_2 \quad (\text{first layer}), \qquad I_2 \quad (\text{second layer}), \qquad
          J_2 = E[\sigma'(\lambda)\sigma'(\lambda')], \quad I_2 = E[\sigma(\lambda)\sigma(\lambda')]

with fields of variance :math:`\kappa^2 r^2` and correlation :math:`\rho`. For the rectifier

.. math:: J_2 = \frac{\pi - \theta}{2\pi}, \qquad I_2 = \kappa^2 r^2\,\frac{\sin\theta + (\pi - \theta)\cos\theta}{2\pi}

For other activations both are computed by the room `expectation` at a few angles. A kink makes the kernel singular in
:math:`\rho` at full correlation, as for the rectifier, but not in the angle, so that a Chebyshev series in
:math:`\theta` on :math:`[0, \pi]` converges geometrically for all of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.core.errors import ComputationFailed, shown
from twolayer.core.precision import double
from twolayer.core.programs import KeptProgram
from twolayer.expectation.rules import QuadratureRule, legendre_rule
from twolayer.expectation.slices import pair
from twolayer.problem import AbstractActivation
from twolayer.problem.activations import Relu

LAYERS = ("first", "second", "both")
# Degrees of the series that are tried, and the fraction of the largest value below which coefficients are rounding.
DEGREES = (24, 48, 96)
SMALL = 1e-14
# Nodes on each panel between kinks, and those of the coarser rule that gives the error.
PANEL, COARSER = 64, 48
# With a larger relative error the kernel is not accurate enough to be inverted.
USELESS = 1e-9


class Profile(NamedTuple):
    """The kernel as a function of cosine and angle, for NumPy or JAX arrays; other processes can be sent it.

    A homogeneous kernel is for inputs of unit norm, and is multiplied by the norms of both inputs; any other one is for
    inputs of one given norm. ``error`` bounds the error of its values.
    """

    function: Callable[[Any, Any], Any]
    is_homogeneous: bool
    error: float


def make_profile(activation: AbstractActivation, layers: str, kappa: float, norm: float = 1.0) -> Profile:
    """The kernel of the trained layers; ``norm`` is the norm of all inputs, where the kernel is not homogeneous."""
    if isinstance(activation, Relu):
        return Profile(partial(_RELU[layers], kappa), True, 4.0 * np.finfo(float).eps)
    return _series(activation, layers, kappa, norm)


def _relu_first(kappa: float, rho: Any, theta: Any) -> Any:
    result = np.pi - theta
    result *= rho
    result *= 0.5 / np.pi
    return result


def _relu_second(kappa: float, rho: Any, theta: Any) -> Any:
    sine = np.sin(theta) if isinstance(theta, np.ndarray) else jnp.sin(theta)
    return kappa**2 * (0.5 / np.pi) * (sine + (np.pi - theta) * rho)


def _relu_both(kappa: float, rho: Any, theta: Any) -> Any:
    return _relu_first(kappa, rho, theta) + _relu_second(kappa, rho, theta)


_RELU = {"first": _relu_first, "second": _relu_second, "both": _relu_both}


def _series(activation: AbstractActivation, layers: str, kappa: float, norm: float) -> Profile:
    from numpy.polynomial import chebyshev

    def at(theta: np.ndarray, panel: QuadratureRule) -> np.ndarray:
        rho = np.cos(theta)
        I2, J2 = _averages(activation, kappa * norm, rho, panel)
        return norm**2 * rho * J2 * (layers != "second") + I2 * (layers != "first")

    panel = legendre_rule(PANEL)
    for degree in DEGREES:
        nodes = chebyshev.chebpts1(degree + 1)
        angles = np.asarray(0.5 * np.pi * (nodes + 1.0))
        values = at(angles, panel)
        coefficients = chebyshev.chebfit(nodes, values, degree)
        scale = np.max(np.abs(values))
        # Functions that are even or odd about the middle of the range have every other coefficient zero.
        tail = float(np.max(np.abs(coefficients[-4:])))
        if tail < SMALL * scale:
            break
    coarse = at(angles, legendre_rule(COARSER))
    error = float(np.max(np.abs(values - coarse))) + 4.0 * tail + 64.0 * np.finfo(float).eps * float(scale)
    if not error < USELESS * scale:
        raise ComputationFailed(
            f"The kernel of {shown(activation)} at kappa = {kappa:g} has a relative error of {error / scale:.1e}: "
            "declare where its derivative jumps (`kinks`), or use a smaller kappa."
        )
    # Coefficients that are rounding are dropped.
    kept = coefficients[: 1 + int(np.max(np.nonzero(np.abs(coefficients) > 1e-17 * scale)))]
    return Profile(partial(_of_angle, kept), False, error)


def _of_angle(coefficients: np.ndarray, rho: Any, theta: Any) -> Any:
    """A Chebyshev series in the angle."""
    from numpy.polynomial import chebyshev

    return chebyshev.chebval(theta * (2.0 / np.pi) - 1.0, coefficients)


def _averages(
    activation: AbstractActivation, deviation: float, rho: np.ndarray, panel: QuadratureRule
) -> tuple[np.ndarray, np.ndarray]:
    """The averages I_2 and J_2 at several correlations."""
    covariances = deviation**2 * np.stack([np.stack([np.ones_like(rho), rho]), np.stack([rho, np.ones_like(rho)])])
    with double():
        values = np.asarray(_pairs(activation, covariances.T, panel))
    return values[:, 0], values[:, 2]


@KeptProgram
def _pairs(activation: AbstractActivation, covariances: Any, panel: QuadratureRule) -> Any:
    return jax.vmap(lambda C: pair(activation, activation, C, panel))(covariances)
