"""The verb that finds the best learning rate, or the best piecewise constant schedule of it, through the ODE."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from twolayer.analyses.tasks.planning import best_plan
from twolayer.ask import Ask, make_plan, reads_ask
from twolayer.core.errors import ComputationFailed, InvalidInput, NotApplicable, takes_these
from twolayer.core.precision import double
from twolayer.core.programs import KeptProgram
from twolayer.core.text import Text
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import Schema, Variable, add_kind, check_kind, kind_of, label
from twolayer.data.summary import with_error
from twolayer.expectation import Chosen, choose
from twolayer.problem import Overlaps, Problem
from twolayer.specification.codec import from_json, to_json
from twolayer.specification.fields import as_data, choice, count, instance, number
from twolayer.theory import SaadSolla
from twolayer.theory.motion.flow import LOOSER
from twolayer.theory.motion.optimal import risk_after, samples_to
from twolayer.training import SGD, Schedule
from twolayer.verbs.progress import Progress, nobody, shows_progress

if TYPE_CHECKING:
    import xarray as xr

# What can be planned of several tasks.
OVER = ("mixing", "order")
# Rates are sought within this factor of the one that is given.
RANGE = 100.0
# Spans after which a threshold that was not reached counts as never reached, in those of the constant rate.
PATIENCE = 20.0
# What a rate that leads nowhere costs, in units of the logarithm.
NOWHERE = 50.0
# The search ends where the derivatives by the logarithms of the rates are as small as this.
GRADIENT = 1e-9


def summary(result: "xr.Dataset") -> Text:
    """The rates with what they reach, beside the best constant one."""
    shown = ", ".join(f"{rate:.6g}" for rate in result.rate.values)
    return Text(
        f"Objective: {result.attrs['objective']}\n"
        f"learning rates {shown}: {with_error(float(result.value), float(result.value_error))}\n"
        f"best constant rate {float(result.constant_rate):.6g}: "
        f"{with_error(float(result.constant_value), float(result.constant_value_error))}"
    )


OPTIMUM = add_kind(
    Schema(
        kind="optimum",
        variables={
            "rate": Variable(("piece",), "learning rate of each piece"),
            "span": Variable(
                ("piece",), "samples over d of each piece; the last one may not be used up", "samples / d"
            ),
            "value": Variable((), "what the best rates reach: see the attribute `objective`"),
            "value_error": Variable((), "bound on the numerical error of what the best rates reach"),
            "constant_rate": Variable((), "best constant learning rate"),
            "constant_value": Variable((), "what the best constant rate reaches"),
            "constant_value_error": Variable((), "bound on the numerical error of what the best constant rate reaches"),
        },
        attributes=("objective", "training", "evaluations"),
        summary=summary,
    )
)


@takes_these
def best_training(result: "xr.Dataset") -> SGD | Schedule:
    """Build the training with the best learning rates from the result of `optimise`, also from one that was loaded.

    Parameters
    ----------
    result
        What `twolayer.optimise` returned.

    Returns
    -------
    An `SGD` for one learning rate, a `Schedule` for several, or with the best mixing or order of its tasks.
    """
    kind = "task_plan" if kind_of(getattr(result, "attrs", {})) == "task_plan" else "optimum"
    return from_json(check_kind(result, kind, "optimise").attrs["training"], (SGD, Schedule))


# Large: a verb has one argument for each thing that can be asked.
@takes_these
@reads_ask(risk_threshold="risk_threshold", replicas="starts", seed="seed")
@shows_progress
def optimise(
    problem: Problem,
    training: SGD | Schedule,
    *,
    ask: Ask | None = None,
    risk_threshold: float | int | None = None,
    samples: float | int | None = None,
    pieces: int = 1,
    tasks: str | None = None,
    until: float | int | None = None,
    starts: int = 1,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> "xr.Dataset":
    r"""Find the learning rate, or a schedule of several, that is best according to the ODE of `SaadSolla`.

    The gradient with respect to the logarithms of the rates passes through the solution of the ODE (and through the
    event that ends it); they are moved by L-BFGS.

    Parameters
    ----------
    problem, training
        What is learned, and how; ``training.learning_rate`` is where the search begins. A `Schedule` of several tasks
        is planned instead: see ``tasks``.
    ask
        ``risk_threshold``, ``replicas`` (the starts) and ``seed`` as an `Ask`, as in `evolve`; arguments beside it come
        first.
    risk_threshold
        Minimise the number of samples until the excess risk is at most this.
    samples
        Minimise the excess risk after so many samples. One of the two must be given.
    pieces
        The number of learning rates, each for an equal share of the samples (of those that the best constant rate
        needs, when a threshold is asked).
    tasks
        For a `Schedule` of several tasks, minimise the mean of their excess risks at its end: over the shares of the
        targets in its last phase, whose target is a `Mixture` (``"mixing"``: how much replay forgets least), or over
        the order of its phases (``"order"``).
    until
        The time at which the schedule of several tasks ends.
    starts
        Starts drawn from the problem over which the objective is averaged (the risk: its logarithm).
    seed
        The seed of the starts.
    progress
        Called with the name of the search, and how far the gradient has fallen towards its tolerance, in logarithms; as
        in `evolve`.

    Returns
    -------
    A labelled dataset of kind "optimum": along ``piece`` the best ``rate`` and its ``span`` of samples over d; the
    ``value`` that they reach, and the same of the best constant rate, with bounds on their numerical errors. The value
    is what the attribute ``objective`` says. `twolayer.best_training` builds the `SGD` or `Schedule` with these rates.

    For tasks, a dataset of kind "task_plan" along ``candidate``, the shares or orders that were tried: what they reach
    (``value``, and ``task_risk`` of every task), and the places of the ``best`` and of the one that was ``given``.
    """
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    starts = count("starts", high=10**4)(starts)
    seed = count("seed", low=0, high=2**31 - 1)(seed)
    tell = progress if callable(progress) else nobody
    if isinstance(training, Schedule) or tasks is not None or until is not None:
        if (risk_threshold, samples, pieces) != (None, None, 1) or not isinstance(training, Schedule):
            raise InvalidInput(
                "Arguments `tasks` and `until` are for a Schedule of several tasks, and `risk_threshold`, `samples` "
                "and `pieces` for a single SGD."
            )
        over = choice("tasks", OVER)(tasks)
        if until is None:
            raise InvalidInput("Argument `until` must say at which time the schedule ends.")
        return best_plan(problem, training, over, float(number("until", above=0.0)(until)), starts, seed, tell)
    risk_threshold = number("risk_threshold", above=0.0, optional=True)(risk_threshold)
    samples = number("samples", above=0.0, optional=True)(samples)
    pieces = count("pieces", high=64)(pieces)
    if (risk_threshold is None) == (samples is None):
        raise InvalidInput("Exactly one of `risk_threshold` and `samples` must be given.")
    SaadSolla().require(problem, training)
    if not problem.is_isotropic:
        raise NotApplicable(
            "`optimise` follows the ODE on inputs with the covariance I, "
            "but `problem.inputs` has a spectrum: see `evolve`."
        )
    if training.moves_by_signs:
        raise NotApplicable("`optimise` differentiates averages, but those of `SignDescent` jump with the fields.")
    if not training.is_fresh:
        raise NotApplicable(f"`optimise` needs samples that are used once, but `training.reuse` is {training.reuse}.")
    fields = {"risk_threshold": risk_threshold, "samples": samples, "pieces": pieces, "starts": starts, "seed": seed}
    with double():
        values, evaluations = _search(problem, training, **fields, tell=tell)
    question = Question("optimum", {"problem": problem, "training": training, **fields})
    over_d = f"samples over d until the excess risk is {risk_threshold:.6g}, mean over starts" if risk_threshold else ""
    attributes = {
        "objective": over_d or f"excess risk after {samples:.6g} samples, geometric mean over starts",
        "training": to_json(_as_training(problem, training, values["rate"], values["span"])),
        "evaluations": evaluations,
    } | provenance(question, seed, SaadSolla().references)
    return label(OPTIMUM, values, {"piece": np.arange(pieces)}, attributes)


def _search(
    problem: Problem,
    training: SGD,
    risk_threshold: Any,
    samples: Any,
    pieces: int,
    starts: int,
    seed: int,
    tell: Progress,
) -> tuple[dict[str, Any], int]:
    """The best rates and what they reach, the same of one constant rate, and how often the objective was computed."""
    first = float(training.learning_rate)
    step = float(training.clock(problem).time_per_step)
    drawn = starts if problem.has_random_start else 1
    plan = make_plan(problem, training, Ask(until=step, save=[step], replicas=drawn, seed=seed))
    threshold = None if risk_threshold is None else np.asarray(risk_threshold)
    engine = choose(problem)
    data = (*as_data((problem, training)), plan.starts, threshold)
    goal = partial(_evaluated, engine.variants()[0], data)
    # A constant rate is sought as equal rates of all pieces: one compiled program serves both searches.
    tell("one learning rate", 0.0)
    whole = samples / problem.d if samples is not None else _first_span(goal, first, pieces)
    spans = np.full(pieces, whole / pieces)
    report = partial(tell, "one learning rate")
    constant, constant_value, evaluations = _descend(partial(_tied, goal), np.log([first]), spans, report)
    rates, value = constant, constant_value
    if pieces > 1:
        used = whole if samples is not None else value
        spans = np.full(pieces, used / pieces)
        if samples is None:  # the last rate goes on until the threshold is reached
            spans[-1] = PATIENCE * used
        report = partial(tell, f"{pieces} learning rates")
        rates, value, more = _descend(goal, np.full(pieces, constant[0]), spans, report)
        evaluations += more
    error_of = partial(_relative_error, engine, data)
    tell("errors", 0.0)
    constant_error = error_of(np.full(pieces, constant[0]), np.full(pieces, whole / pieces))
    tell("errors", 0.5)
    error = constant_error if pieces == 1 else error_of(rates, spans)
    tell("errors", 1.0)
    values = {
        "rate": np.exp(rates),
        "span": spans,
        "value": value,
        "value_error": error * value,
        "constant_rate": float(np.exp(constant[0])),
        "constant_value": constant_value,
        "constant_value_error": constant_error * constant_value,
    }
    return values, evaluations


def _relative_error(engine: Chosen, data: tuple[Any, ...], log_rates: np.ndarray, spans: np.ndarray) -> float:
    """A bound on the relative error of the objective: from all variants of the averages, and from the integrator."""
    variants = engine.variants()

    def solved(variant: Chosen, looser: float) -> np.ndarray:
        return np.asarray(_evaluated(variant, data, log_rates, spans, looser)[0])

    results = tuple(solved(variant, 1.0) for variant in variants)
    combined = engine.combine(results)
    change = abs(solved(variants[0], LOOSER) - results[0])
    return float(abs(combined.value - results[0]) + combined.error + change)


def _evaluated(
    variant: Chosen, data: tuple[Any, ...], log_rates: np.ndarray, spans: np.ndarray, looser: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    problem, training, starts, threshold = data
    exactness = np.asarray(looser)  # as data: one program for both tolerances
    return _goal(variant, problem, training, starts, threshold, log_rates, spans, exactness)


def _tied(goal: Callable[..., Any], log_rates: np.ndarray, spans: np.ndarray) -> tuple[Any, Any]:
    """The objective of one rate for all spans, and its derivative."""
    value, gradient = goal(np.full(len(spans), log_rates[0]), spans)
    return value, np.sum(np.asarray(gradient), keepdims=True)


def _first_span(goal: Callable[..., Any], rate: float, pieces: int) -> float:
    """A span that the given rate needs at most half of: doubled until the threshold is reached."""
    span = 1.0
    for _ in range(40):
        value = float(goal(np.full(pieces, np.log(rate)), np.full(pieces, span / pieces))[0])
        if np.isfinite(value) and value < NOWHERE:
            return PATIENCE * float(np.exp(value))
        span *= 2.0
    raise ComputationFailed("The excess risk does not reach the threshold at the learning rate that was given.", None)


@KeptProgram
def _goal(
    engine: Chosen,
    problem: Problem,
    training: SGD,
    starts: Any,
    threshold: Any,
    log_rates: Any,
    spans: Any,
    looser: Any,
) -> tuple[jax.Array, jax.Array]:
    """The logarithm of the objective, mean over starts, and its gradient; ``looser`` multiplies the tolerances."""

    def objective(log_rates: Any) -> jax.Array:
        rates = jnp.exp(log_rates)

        def one(Q: Any, M: Any, a: Any) -> jax.Array:
            start = Overlaps(Q, M, starts.P, a)
            if threshold is None:
                return jnp.log(risk_after(engine, problem, training, start, rates, spans, looser))
            return samples_to(engine, problem, training, start, rates, spans, threshold, looser)

        mean = jnp.mean(jax.vmap(one)(starts.Q, starts.M, starts.a))
        return mean if threshold is None else jnp.log(mean)

    def twice(log_rates: Any) -> tuple[jax.Array, jax.Array]:
        value = objective(log_rates)
        return value, value

    # Forward mode: there are few rates, and the program is a tenth of the one that runs backwards.
    gradient, value = jax.jacfwd(twice, has_aux=True)(jnp.asarray(log_rates))
    return value, gradient


def _descend(
    goal: Callable[..., Any], log_rates: np.ndarray, spans: np.ndarray, tell: Callable[[float], None]
) -> tuple[np.ndarray, float, int]:
    """The best logarithms of the rates, the objective there, and how often it was computed."""
    from scipy.optimize import minimize

    slopes: list[float] = []  # the largest derivative of each evaluation

    def objective(log_rates: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = (np.asarray(x) for x in goal(log_rates, spans))
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            return NOWHERE, np.zeros_like(log_rates)
        slopes.append(float(np.max(np.abs(gradient))))
        tell(_fallen(slopes))
        return float(value), gradient

    bounds = [(x - np.log(RANGE), x + np.log(RANGE)) for x in log_rates]
    solution = minimize(
        objective, log_rates, jac=True, method="L-BFGS-B", bounds=bounds, options={"gtol": GRADIENT, "ftol": 1e-12}
    )
    if solution.fun >= NOWHERE:
        raise ComputationFailed("No learning rate near the one that was given leads anywhere: give another.", None)
    tell(1.0)
    return solution.x, float(np.exp(solution.fun)), int(solution.nfev)


def _fallen(slopes: list[float]) -> float:
    """How far derivatives have fallen from the first towards the tolerance of the search, in logarithms."""
    first, least = slopes[0], min(slopes)
    if first <= GRADIENT or least <= GRADIENT:
        return 1.0
    return float(np.log(first / least) / np.log(first / GRADIENT))


def _as_training(problem: Problem, training: SGD, rates: np.ndarray, spans: np.ndarray) -> SGD | Schedule:
    phases = [eqx.tree_at(lambda t: t.learning_rate, training, float(rate)) for rate in rates]
    if len(phases) == 1:
        return phases[0]
    times = np.cumsum(rates * spans / problem.p)
    return Schedule(tuple(phases), tuple(float(time) for time in times[:-1]))
