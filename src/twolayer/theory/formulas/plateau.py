r"""The escape from the plateau of a random start, by the ODE linearised at overlaps of zero with the target.

At :math:`M = 0, Q = I` the equations of motion give

.. math:: \dot M = v + (A - \gamma B) M + O(M^2)

If v is not zero (information exponent 1) the overlaps grow at once; if it is, and the leading eigenvalue
:math:`\lambda(\gamma)` of :math:`A - \gamma B` is positive (exponent 2), they grow as :math:`e^{\lambda t}` from their
random values of order :math:`1/\sqrt d`. Otherwise there is no time scale of order one, but one that is a power of d.
Velocity and matrix are derivatives of `drift`.

Free rows, and output weights that are trained, do not stay where they began: at M = 0 they relax, at a given learning
rate, to another Q and a. For exponent 2 the matrix is taken there.
"""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from twolayer.core.programs import KeptProgram
from twolayer.core.random import seed_key
from twolayer.expectation import Chosen, choose
from twolayer.problem import Overlaps, Problem
from twolayer.specification.fields import as_data
from twolayer.theory.formulas.random_start import mean_log_overlap
from twolayer.theory.motion.drift import drift
from twolayer.theory.motion.integrate import solve
from twolayer.training import SGD, Both, First, Free, Sphere

# The plateau counts as left when a neuron has this overlap with a direction of the target.
LEFT = 0.5
# A velocity or a rate below this fraction of the scale cannot be distinguished from the error of the integrals.
NOISE = 1e-6
# Without overlap Q and a are followed for so long; they are at rest when nothing moves faster than this, and lost
# when a row is as long as that.
RELAXED, AT_REST, LOST = 300.0, 1e-6, 1e6
# Rest only below this learning rate is a drift too slow to be seen: there is none.
NO_REST = 100.0 * AT_REST
# A learning rate in place of zero, which no training method has.
TINY = 1e-9


@dataclass(frozen=True)
class Plateau:
    """The escape from the plateau, in the time unit of the package; numbers that do not exist are None."""

    exponent: int | None  # 1 or 2; None when the linearised ODE does not leave the plateau, or there is none
    learning_rate: float | None
    maximal_learning_rate: float | None  # above it the plateau is not left
    speed: float | None  # speed of the fastest neuron, for exponent 1
    growth_rate: float | None  # growth rate of the squared overlap, for exponent 2
    time: float | None  # to an overlap of one half, mean over random starts
    steps: float | None
    samples: float | None
    decay: float  # rate over the learning rate at which the noise of SGD turns a neuron away from any direction

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON."""
        return asdict(self)


def plateau(
    problem: Problem, learning_rate: float | None = None, spherical: bool = True, layer_ratio: float = 0.0
) -> Plateau:
    r"""The time scale on which one-pass SGD leaves the plateau of a random start.

    For exponent 1 the fastest neuron obeys :math:`\dot m = v - (\gamma b - \alpha) m`; for exponent 2 the squared
    overlap grows at the rate :math:`2\lambda` from :math:`m_0^2`, whose mean logarithm over random starts is known.

    Parameters
    ----------
    problem
        The problem; its start is not used.
    learning_rate
        If None: for exponent 2 the rate of the fewest steps at leading order in log d, which maximises
        :math:`\gamma \lambda(\gamma)`; for exponent 1 that at which v equals the decay of an overlap one.
    spherical
        Whether rows keep their length.
    layer_ratio
        The learning rate of the second layer over that of the first; 0 where it is fixed.

    Notes
    -----
    Assumes one sample a step and :math:`d \to \infty`. The noise of SGD, and the way to the relaxed plateau, change the
    exit by a time of order one, and are left out. A learning rate at which Q and a come to no rest, or rows grow
    without bound, counts as one at which the plateau is not left. Checked against: the closed forms of phase retrieval
    at any width, on the sphere, free and with both layers trained, and the overlap process.
    """
    constraint = Sphere() if spherical else Free()
    layers = Both(layer_ratio) if layer_ratio else First()
    engine = choose(problem).variants()[0]
    a = np.asarray(problem.draw(seed_key(0)).a)
    P = np.asarray(problem.P, dtype=float)
    root = np.linalg.cholesky(P)

    data = as_data((problem, SGD(1.0, constraint=constraint, layers=layers)))
    v, both = jax.device_get(_linearised(engine, *data, jnp.asarray(root), jnp.asarray(a)))
    A, with_noise = both.reshape(2, v.size, v.size)
    B = A - with_noise
    # Every target has the decay by noise, which sets the scale below which numbers are rounding.
    scale = sum(float(np.max(np.abs(x))) for x in (A, B, v))
    turning = float(np.max(np.diagonal(B)))
    speed = float(np.max(np.linalg.norm(v, axis=1)))

    def rate_at(gamma: float) -> float:
        if spherical and not layer_ratio:
            return float(np.max(np.linalg.eigvals(A - gamma * B).real))
        training = as_data(SGD(gamma, constraint=constraint, layers=layers))
        matrix, speed = jax.device_get(_relaxed(engine, data[0], training, jnp.asarray(root), jnp.asarray(a)))
        is_at_rest = np.isfinite(matrix).all() and speed < AT_REST
        return float(np.max(np.linalg.eigvals(matrix).real)) if is_at_rest else -1.0

    if speed > NOISE * scale:
        neuron = int(np.argmax(np.linalg.norm(v, axis=1)))
        block = slice(neuron * problem.k, (neuron + 1) * problem.k)
        along = v[neuron] / speed
        decay, growth = along @ B[block, block] @ along, along @ A[block, block] @ along
        largest = None if decay <= 0 else float((speed / LEFT + growth) / decay)
        gamma = learning_rate or (1.0 if decay <= 0 else float(speed / decay))
        left = gamma * decay - growth
        inside = 1.0 - left * LEFT / speed
        time = None if inside <= 0 else LEFT / speed if abs(left) < 1e-12 else float(-np.log(inside) / left)
        return _plateau(problem, 1, gamma, largest, speed, None, time, turning)
    if rate_at(TINY) <= NOISE * scale:
        return Plateau(None, learning_rate, None, None, None, None, None, None, turning)
    largest = _zero_of(rate_at)
    if largest is not None and largest < NO_REST:
        return Plateau(None, learning_rate, None, None, None, None, None, None, turning)
    gamma = learning_rate or (_best(rate_at, largest) if largest else 1.0)
    rate = rate_at(gamma)
    start = float(mean_log_overlap(1, problem.d).value)
    time = (np.log(LEFT**2) - start) / (2.0 * rate) if rate > 0 else None
    return _plateau(problem, 2, gamma, largest, None, 2.0 * rate, time, turning)


def _plateau(
    problem: Problem,
    exponent: int,
    gamma: float,
    largest: float | None,
    speed: float | None,
    growth: float | None,
    time: float | None,
    decay: float,
) -> Plateau:
    steps = None if time is None else float(time / SGD(gamma).clock(problem).time_per_step)
    time = None if time is None else float(time)
    return Plateau(exponent, float(gamma), largest, speed, growth, time, steps, steps, decay)


def _zero_of(rate: Any) -> float | None:
    """The learning rate at which the growth rate vanishes; None when it never does."""
    from scipy.optimize import brentq

    high = 1e-3
    while rate(high) > 0:
        high *= 2.0
        if high > 1e9:
            return None
    return float(brentq(rate, TINY, high, xtol=1e-14))  # pyright: ignore[reportArgumentType]


def _best(rate: Any, largest: float) -> float:
    """The learning rate that maximises its product with the growth rate."""
    from scipy.optimize import minimize_scalar

    optimum = minimize_scalar(lambda g: -g * rate(g), bounds=(0.0, largest), method="bounded", options={"xatol": 1e-12})
    return float(optimum.x)  # pyright: ignore[reportAttributeAccessIssue]


@KeptProgram
def _linearised(engine: Chosen, problem: Problem, training: SGD, root: Array, a: Array) -> tuple[Array, Array]:
    """The velocity of the overlaps with orthonormal target directions at the plateau, and its derivative.

    The derivative is given twice: without the noise of SGD, and with it at learning rate one.
    """
    at = jnp.zeros((problem.p, problem.k))

    def velocities(M: Array) -> Array:
        return jnp.stack([_velocity(engine, problem, training, root, jnp.eye(problem.p), M, a, x) for x in (0.0, 1.0)])

    return velocities(at)[0], jax.jacfwd(velocities)(at)


def _velocity(
    engine: Chosen, problem: Problem, training: SGD, root: Array, Q: Array, M: Array, a: Array, variance: float = 1.0
) -> Array:
    """The velocity of the overlaps with orthonormal target directions."""
    overlaps = Overlaps(Q, M @ root.T, root @ root.T, a)
    dM = drift(problem, training, overlaps, engine.moments(problem, overlaps), variance).M
    return jax.scipy.linalg.solve_triangular(root, dM.T, lower=True).T


@KeptProgram
def _relaxed(engine: Chosen, problem: Problem, training: SGD, root: Array, a: Array) -> tuple[Array, Array]:
    """The derivative of the velocity where Q and a have come to rest without overlap, and how fast they still move."""
    at = jnp.zeros((problem.p, problem.k))

    def motion(_: Any, state: tuple[Array, Array], __: Any) -> tuple[Array, Array]:
        overlaps = Overlaps(state[0], at, root @ root.T, state[1])
        change = drift(problem, training, overlaps, engine.moments(problem, overlaps))
        return change.Q, change.a

    start, times = (jnp.eye(problem.p), a), jnp.array([0.0, RELAXED])
    end = solve(
        motion, start, times, None, 1e-8, 1e-10, 100_000, lambda y, _: jnp.max(jnp.abs(y[0])) > LOST, is_coarse=True
    )
    Q, weights = (x[-1] for x in end.states)
    left = motion(0.0, (Q, weights), None)
    matrix = jax.jacfwd(lambda M: _velocity(engine, problem, training, root, Q, M, weights))(at)
    return matrix.reshape(at.size, at.size), jnp.max(jnp.array([jnp.max(jnp.abs(x)) for x in left]))
