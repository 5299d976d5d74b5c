"""The verb that finds the best learning rate, or the best piecewise constant schedule of it, through the ODE."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from twolayer.ask import Ask, make_plan
from twolayer.core.errors import ComputationFailed, InvalidInput, takes_these
from twolayer.core.precision import double
from twolayer.expectation import choose
from twolayer.problem import Overlaps, Problem
from twolayer.specification.fields import as_data, count, instance, number
from twolayer.theory import SaadSolla
from twolayer.theory.motion.optimal import risk_after, samples_to
from twolayer.training import SGD, Schedule

# Rates are sought within this factor of the one that is given.
RANGE = 100.0
# Spans after which a threshold that was not reached counts as never reached, in those of the constant rate.
PATIENCE = 20.0
# What a rate that leads nowhere costs, in units of the logarithm.
NOWHERE = 50.0


@dataclass(frozen=True)
class Optimum:
    """The best learning rates, what they reach, and what the best constant rate reaches.

    ``value`` is the excess risk at the end, or the number of samples over d until the threshold, averaged over starts.
    """

    training: SGD | Schedule
    rates: np.ndarray
    spans: np.ndarray  # samples over d for each rate; the last one may not be used up
    value: float
    constant_rate: float
    constant_value: float
    evaluations: int

    def __str__(self) -> str:
        shown = ", ".join(f"{rate:.6g}" for rate in self.rates)
        return (
            f"learning rates {shown}: {self.value:.6g}\n"
            f"best constant rate {self.constant_rate:.6g}: {self.constant_value:.6g}"
        )


@takes_these
def optimise(
    problem: Problem,
    training: SGD,
    *,
    risk_threshold: float | int | None = None,
    samples: float | int | None = None,
    pieces: Any = 1,
    starts: Any = 1,
    seed: Any = 0,
) -> Optimum:
    r"""The learning rate, or a schedule of several, that is best according to the ODE of `SaadSolla`.

    The gradient with respect to the logarithms of the rates passes through the solution of the ODE (and through the
    event that ends it); they are moved by L-BFGS.

    Parameters
    ----------
    problem, training
        What is learned, and how; ``training.learning_rate`` is where the search begins.
    risk_threshold
        Minimise the number of samples until the excess risk is at most this.
    samples
        Minimise the excess risk after so many samples. One of the two must be given.
    pieces
        The number of learning rates, each for an equal share of the samples (of those that the best constant rate
        needs, when a threshold is asked).
    starts
        Starts drawn from the problem over which the objective is averaged (the risk: its logarithm).
    seed
        The seed of the starts.

    Returns
    -------
    The best rates and the `SGD` or `Schedule` that uses them, beside the best constant rate.
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", SGD, "a training method such as SGD(learning_rate=0.5)")(training)
    risk_threshold = number("risk_threshold", above=0.0, optional=True)(risk_threshold)
    samples = number("samples", above=0.0, optional=True)(samples)
    pieces = count("pieces", high=64)(pieces)
    starts = count("starts", high=10**4)(starts)
    if (risk_threshold is None) == (samples is None):
        raise InvalidInput("Exactly one of `risk_threshold` and `samples` must be given.")
    SaadSolla().require(problem, training)
    first = float(training.learning_rate)
    with double():
        step = float(training.clock(problem).time_per_step)
        drawn = starts if problem.has_random_start else 1
        plan = make_plan(problem, training, Ask(until=step, save=[step], replicas=drawn, seed=seed))
        threshold = None if risk_threshold is None else np.asarray(risk_threshold)
        goal = partial(_goal, *as_data((problem, training)), plan.starts, threshold)
        # A constant rate is sought as equal rates of all pieces: one compiled program serves both searches.
        whole = samples / problem.d if samples is not None else _first_span(goal, first, pieces)
        spans = np.full(pieces, whole / pieces)
        constant, value, evaluations = _descend(partial(_tied, goal), np.log([first]), spans)
        rates = constant
        constant_value = value
        if pieces > 1:
            used = whole if samples is not None else value
            spans = np.full(pieces, used / pieces)
            if samples is None:  # the last rate goes on until the threshold is reached
                spans[-1] = PATIENCE * used
            rates, value, more = _descend(goal, np.full(pieces, constant[0]), spans)
            evaluations += more
    best, kept = np.exp(rates), float(np.exp(constant[0]))
    return Optimum(_as_training(problem, training, best, spans), best, spans, value, kept, constant_value, evaluations)


def _tied(goal: Callable[..., Any], log_rates: np.ndarray, spans: np.ndarray) -> tuple[Any, Any]:
    """The objective of one rate for all spans, and its derivative."""
    value, gradient = goal(np.full(len(spans), log_rates[0]), spans)
    return value, np.sum(np.asarray(gradient), keepdims=True)


def _first_span(goal: Callable[..., Any], rate: float, pieces: int) -> float:
    """A span that the given rate needs at most half of: doubled until the threshold is reached."""
    span = 1.0
    for _ in range(40):
        found = float(goal(np.full(pieces, np.log(rate)), np.full(pieces, span / pieces))[0])
        if np.isfinite(found) and found < NOWHERE:
            return PATIENCE * float(np.exp(found))
        span *= 2.0
    raise ComputationFailed("The excess risk does not reach the threshold at the learning rate that was given.", None)


@eqx.filter_jit
def _goal(
    problem: Problem, training: SGD, starts: Any, threshold: Any, log_rates: Any, spans: Any
) -> tuple[jax.Array, jax.Array]:
    """The logarithm of the objective, mean over starts, and its gradient."""
    engine = choose(problem).variants()[0]

    def objective(log_rates: Any) -> jax.Array:
        rates = jnp.exp(log_rates)

        def one(Q: Any, M: Any, a: Any) -> jax.Array:
            start = Overlaps(Q, M, starts.P, a)
            if threshold is None:
                return jnp.log(risk_after(engine, problem, training, start, rates, spans))
            return samples_to(engine, problem, training, start, rates, spans, threshold)

        mean = jnp.mean(jax.vmap(one)(starts.Q, starts.M, starts.a))
        return mean if threshold is None else jnp.log(mean)

    def twice(log_rates: Any) -> tuple[jax.Array, jax.Array]:
        value = objective(log_rates)
        return value, value

    # Forward mode: there are few rates, and the program is a tenth of the one that runs backwards.
    gradient, value = jax.jacfwd(twice, has_aux=True)(jnp.asarray(log_rates))
    return value, gradient


def _descend(goal: Callable[..., Any], log_rates: np.ndarray, spans: np.ndarray) -> tuple[np.ndarray, float, int]:
    """The best logarithms of the rates, the objective there, and how often it was computed."""
    from scipy.optimize import minimize

    def objective(log_rates: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = (np.asarray(x) for x in goal(log_rates, spans))
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            return NOWHERE, np.zeros_like(log_rates)
        return float(value), gradient

    bounds = [(x - np.log(RANGE), x + np.log(RANGE)) for x in log_rates]
    found = minimize(
        objective, log_rates, jac=True, method="L-BFGS-B", bounds=bounds, options={"gtol": 1e-9, "ftol": 1e-12}
    )
    if found.fun >= NOWHERE:
        raise ComputationFailed("No learning rate near the one that was given leads anywhere: give another.", None)
    return found.x, float(np.exp(found.fun)), int(found.nfev)


def _as_training(problem: Problem, training: SGD, rates: np.ndarray, spans: np.ndarray) -> SGD | Schedule:
    phases = [eqx.tree_at(lambda t: t.learning_rate, training, float(rate)) for rate in rates]
    if len(phases) == 1:
        return phases[0]
    times = np.cumsum(rates * spans / problem.p)
    return Schedule(tuple(phases), tuple(float(time) for time in times[:-1]))
