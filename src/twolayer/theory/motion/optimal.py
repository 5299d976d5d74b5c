r"""Risk and sample counts under a piecewise constant learning rate, as differentiable functions of the rates.

In units of samples over dimension, :math:`\alpha = n/d`, the ODE reads :math:`dX/d\alpha = \frac{\gamma(\alpha)}{p}
F_\gamma(X)`: the interval is fixed and the rates occur in the right-hand side only, so that gradients pass through the
solver and none of its times depends on them.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.core.types import Numbers
from twolayer.expectation import Chosen
from twolayer.problem import Overlaps, Problem
from twolayer.theory.motion.integrate import solve
from twolayer.theory.saad_solla import OverlapFlow, as_state
from twolayer.training import SGD

RTOL, ATOL = 1e-9, 1e-11
MAX_STEPS = 4096


def _flow(engine: Chosen, problem: Problem, training: SGD, P: Array, rate: Any) -> OverlapFlow:
    """The ODE at a learning rate, with samples over dimension as time."""
    training = eqx.tree_at(lambda t: t.learning_rate, training, rate)
    return OverlapFlow(problem, training, engine, P, 1.0, pace=rate / problem.p)


def _velocity(alpha: Any, state: Any, args: tuple[OverlapFlow, Any]) -> Any:
    return args[0].velocity(state)


def _above(state: Any, args: tuple[OverlapFlow, Any]) -> Array:
    return args[0].risk(state) - args[1]


def _never(state: Any, args: Any) -> Array:
    return jnp.any(~jnp.isfinite(state[0]))


def risk_after(
    engine: Chosen,
    problem: Problem,
    training: SGD,
    start: Overlaps,
    rates: Float[Array, " n"],
    spans: Float[Array, " n"],
    looser: Numbers = 1.0,
) -> Float[Array, ""]:
    """The excess risk after the samples of all spans, each at its own rate; ``looser`` multiplies the tolerances."""
    state = _followed(engine, problem, training, start, rates, spans, None, looser)[0]
    return _flow(engine, problem, training, start.P, rates[-1]).risk(state)


def samples_to(
    engine: Chosen,
    problem: Problem,
    training: SGD,
    start: Overlaps,
    rates: Float[Array, " n"],
    spans: Float[Array, " n"],
    threshold: Numbers,
    looser: Numbers = 1.0,
) -> Float[Array, ""]:
    """Samples over dimension until the excess risk is at the threshold; infinite when the spans do not suffice.

    ``looser`` multiplies the tolerances.
    """
    _, total, is_there = _followed(engine, problem, training, start, rates, spans, threshold, looser)
    return jnp.where(is_there, total, jnp.inf)


def _followed(
    engine: Chosen,
    problem: Problem,
    training: SGD,
    start: Overlaps,
    rates: Float[Array, " n"],
    spans: Float[Array, " n"],
    threshold: Any,
    looser: Any,
) -> tuple[Any, Float[Array, ""], Array]:
    """The last state, the samples until the threshold is reached, and whether it is; None for no threshold."""
    event, is_watched = (_above, True) if threshold is not None else (_never, False)

    def piece(carry: Any, interval: Any) -> Any:
        state, total, is_there = carry
        rate, span = interval
        args = (_flow(engine, problem, training, start.P, rate), threshold)
        times = jnp.stack([jnp.zeros(()), span])
        accuracy = looser * RTOL, looser * ATOL, MAX_STEPS
        solution = solve(_velocity, state, times, args, *accuracy, event, locate=is_watched)
        ended = jax.tree.map(lambda x: x[-1], solution.states)
        if not is_watched:
            return (ended, total, is_there), None
        total = total + jnp.where(is_there, 0.0, solution.reached)
        # The state stays as it is once the threshold is reached.
        state = jax.tree.map(lambda old, new: jnp.where(is_there, old, new), state, ended)
        return (state, total, is_there | solution.has_stopped), None

    begun = (as_state(start), jnp.zeros(()), jnp.asarray(False))
    return jax.lax.scan(piece, begun, (rates, spans))[0]
