r"""What a learning rate that changes along the samples leads to, as differentiable functions of the rates.

In units of samples over dimension, :math:`\alpha = n/d`, the ODE reads :math:`dX/d\alpha = \frac{\gamma(\alpha)}{p}
F_\gamma(X)`: the span is fixed and the rates stand in the right-hand side alone, so that gradients pass through the
solver without any of its times depending on them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from twolayer.expectation import Chosen
from twolayer.problem import Overlaps, Problem
from twolayer.theory.integrate import solve
from twolayer.theory.saad_solla import drift
from twolayer.training import SGD

RTOL, ATOL = 1e-9, 1e-11
MAX_STEPS = 4096


class _Args(NamedTuple):
    problem: Problem
    training: SGD
    engine: Chosen
    P: Any
    threshold: Any


def _field(alpha: Any, state: tuple[Array, Array, Array], args: _Args) -> tuple[Array, Array, Array]:
    overlaps = Overlaps(state[0], state[1], args.P, state[2])
    moments = args.engine.moments(args.problem, overlaps)
    speed = args.training.learning_rate / args.problem.p
    dQ, dM, da = drift(args.problem, args.training, overlaps, moments)
    return speed * dQ, speed * dM, speed * da


def _above(state: tuple[Array, Array, Array], args: _Args) -> Array:
    return excess_risk(args.engine, args.problem, Overlaps(state[0], state[1], args.P, state[2])) - args.threshold


def _never(state: tuple[Array, Array, Array], args: _Args) -> Array:
    return jnp.any(~jnp.isfinite(state[0]))


def excess_risk(engine: Chosen, problem: Problem, overlaps: Overlaps) -> Float[Array, ""]:
    """The excess risk at some overlaps."""
    return engine.parts(problem, overlaps, ("excess_risk",))["excess_risk"]


def _with_rate(training: SGD, rate: Any) -> SGD:
    return eqx.tree_at(lambda t: t.learning_rate, training, rate)


def risk_after(
    engine: Chosen,
    problem: Problem,
    training: SGD,
    start: Overlaps,
    rates: Float[Array, " n"],
    spans: Float[Array, " n"],
) -> Float[Array, ""]:
    """The excess risk after the samples of all spans, each at its own learning rate."""

    def piece(state: Any, each: Any) -> Any:
        rate, span = each
        args = _Args(problem, _with_rate(training, rate), engine, start.P, None)
        times = jnp.stack([jnp.zeros(()), span])
        path = solve(_field, state, times, args, RTOL, ATOL, MAX_STEPS, _never, is_differentiated=True).states
        return jax.tree.map(lambda x: x[-1], path), None

    state, _ = jax.lax.scan(piece, (start.Q, start.M, start.a), (rates, spans))
    return excess_risk(engine, problem, Overlaps(state[0], state[1], start.P, state[2]))


def samples_to(
    engine: Chosen,
    problem: Problem,
    training: SGD,
    start: Overlaps,
    rates: Float[Array, " n"],
    spans: Float[Array, " n"],
    threshold: Any,
) -> Float[Array, ""]:
    """Samples over dimension until the excess risk is at the threshold; infinite when the spans do not suffice."""

    def piece(carry: Any, each: Any) -> Any:
        state, total, is_there = carry
        rate, span = each
        args = _Args(problem, _with_rate(training, rate), engine, start.P, threshold)
        times = jnp.stack([jnp.zeros(()), span])
        solution = solve(_field, state, times, args, RTOL, ATOL, MAX_STEPS, _above, locate=True, is_differentiated=True)
        total = total + jnp.where(is_there, 0.0, solution.reached)
        # Beyond the threshold the state is kept: later spans are not entered.
        ended = jax.tree.map(lambda x: x[-1], solution.states)
        state = jax.tree.map(lambda old, new: jnp.where(is_there, old, new), state, ended)
        return (state, total, is_there | solution.has_stopped), None

    begun = ((start.Q, start.M, start.a), jnp.zeros(()), jnp.asarray(False))
    (_, total, is_there), _ = jax.lax.scan(piece, begun, (rates, spans))
    return jnp.where(is_there, total, jnp.inf)
