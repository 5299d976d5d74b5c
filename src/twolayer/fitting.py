"""The second layer fitted in closed form: what simulations and theories of a phase of `RidgeRegression` have in common.

The risk is quadratic in the second layer. On the population its coefficients are Gaussian averages of the features,
which the engines compute; a simulation takes those of its samples.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from twolayer.core.precision import double
from twolayer.core.programs import KeptProgram
from twolayer.description import AbstractDescription, Applies, Exactness, Plan, Record, Status, first_crossings
from twolayer.expectation import Auto, Chosen, in_parts, risk_along
from twolayer.problem import Gaussian, Overlaps, Problem, Square
from twolayer.specification.fields import as_data
from twolayer.training import RidgeRegression

NEEDED = ("excess_risk", "chi")


def refusal(problem: Problem, engine: Auto) -> str:
    """Why the second layer cannot be fitted in closed form on fresh samples; empty if it can."""
    if not isinstance(problem.inputs, Gaussian):
        return "it fits the second layer on fresh Gaussian samples, but `problem.inputs` is a data set."
    if not problem.is_isotropic:
        return "it fits the second layer on inputs with the covariance I, but `problem.inputs` has a spectrum."
    if not isinstance(problem.loss, Square) or not problem.is_quadratic:
        other = f"loss is {problem.loss}" if not isinstance(problem.loss, Square) else f"noise is {problem.noise}"
        return f"the fit of the second layer has a closed form for the square loss, but the {other}."
    return engine.refusal(problem, NEEDED)


def feature_averages(
    engine: Chosen, problem: Problem, overlaps: Overlaps
) -> tuple[Float[Array, "p p"], Float[Array, " p"]]:
    r"""Return :math:`E[\sigma_i \sigma_j]` and :math:`E[\sigma_i f]`, by one variant of the engines.

    The moment :math:`\chi_i = E[\sigma_i (f - \frac1p \sum_j a_j \sigma_j)]` is linear in the second layer: its value
    at zero and its slope are the two.
    """

    def chi(a: Array) -> Array:
        at = Overlaps(overlaps.Q, overlaps.M, overlaps.P, a)
        return engine.parts(problem, at, ("chi",))["chi"]

    nothing = jnp.zeros(problem.p)
    return -jax.jacfwd(chi)(nothing) / problem.student.scale, chi(nothing)


def population_fit(
    problem: Problem, fit: RidgeRegression, chosen: Chosen, starts: Overlaps
) -> tuple[np.ndarray, Float[np.ndarray, " replicas"]]:
    """The second layers (replicas, p) that `RidgeRegression` has on the population, and the largest error of each."""
    rows = [np.asarray(x) for x in (starts.Q, starts.M)]
    variants = [_fits_of_rows(variant, problem, fit, starts.P, rows) for variant in chosen.variants()]
    result = chosen.combine(tuple(variants))
    return np.asarray(result.value), np.max(np.asarray(result.error), axis=1)


def _fits_of_rows(
    variant: Chosen, problem: Problem, fit: RidgeRegression, P: Float[Array, "k k"], rows: list[np.ndarray]
) -> Float[np.ndarray, "rows p"]:
    setting = as_data((problem.without_dimension, fit))
    return in_parts(lambda part: _population_fit(variant, *setting, P, part), rows)


@KeptProgram
def _population_fit(
    engine: Chosen, problem: Problem, fit: RidgeRegression, P: Float[Array, "k k"], rows: list[Array]
) -> Float[Array, "rows p"]:
    def one(row: list[Array]) -> Array:
        return fit.solve(*feature_averages(engine, problem, Overlaps(row[0], row[1], P, jnp.zeros(problem.p))))

    return jax.lax.map(one, rows)


def fitted_risks(
    problem: Problem,
    fit: RidgeRegression,
    Q: Float[np.ndarray, "replicas times p p"],
    M: Float[np.ndarray, "replicas times p k"],
    engine: Auto = Auto(),
) -> tuple[Float[np.ndarray, "replicas times"], Float[np.ndarray, "replicas times"]]:
    """Return the excess risk with the second layer that a fit on the population has at each saved point, and its error.

    One run gives the test error after every number of steps on the first layer, where a `Schedule` gives it after one.
    What n samples would add is left out.
    """
    with double():
        chosen = engine.choose(problem, NEEDED)
        P = jnp.asarray(problem.target.target_overlaps)
        rows = [np.asarray(x, dtype=float).reshape(-1, *x.shape[2:]) for x in (Q, M)]
        # The fit is by one variant: the risk is at its minimum there, so that an error of the fit hardly moves it.
        a = _fits_of_rows(chosen.variants()[0], problem, fit, P, rows)
        return risk_along(chosen, problem, Q, M, P, a.reshape(*Q.shape[:2], problem.p))


def run_fits(
    problem: Problem,
    fit: RidgeRegression,
    plan: Plan,
    engine: Auto,
    on_samples: Callable[[Any], Any] | None = None,
) -> Record:
    """The record of a phase in which the first layer rests: before its first step, and after so many fits.

    ``on_samples`` gives the second layers (replicas, p) that are fitted on the samples of a step. Without it, or where
    the fit is on the population, that of the engines is taken at every step.
    """
    is_sampled = on_samples is not None and fit.samples is not None
    chosen = engine.choose(problem, NEEDED[:1] if is_sampled else NEEDED)
    start = np.asarray(plan.starts.a)
    layers: dict[int, tuple[np.ndarray, np.ndarray]] = {0: (start, np.zeros(plan.replicas))}
    # A step in continuous time, known to rounding, counts when it is over.
    numbers = np.floor(np.asarray(plan.steps) + 1e-9).astype(int)
    numbers = numbers if is_sampled else np.minimum(numbers, 1)
    for place, number in enumerate(numbers):
        if number not in layers and on_samples is not None and is_sampled:
            layers[number] = (np.asarray(on_samples(np.asarray(number))), np.zeros(plan.replicas))
        elif number not in layers:
            layers[number] = population_fit(problem, fit, chosen, plan.starts)
        plan.progress((place + 1) / len(numbers))
    a, a_error = (np.stack([layers[number][part] for number in numbers], axis=1) for part in (0, 1))
    Q, M = (np.repeat(np.asarray(x)[:, None], len(numbers), axis=1) for x in (plan.starts.Q, plan.starts.M))
    risk, error = risk_along(chosen, problem, Q, M, plan.starts.P, a)
    status = np.full(plan.replicas, Status.DONE, dtype=np.int8)
    return Record(Q, M, a, risk, error, a_error, status, *first_crossings(plan, risk, Q, M), chosen.name)


class FitsPopulation(AbstractDescription):
    r"""Base class: a theory that fits the second layer on the population, as :math:`n \to \infty`.

    What n samples add to the risk is left out: of order p/n times the risk itself and the noise of the labels.
    """

    def applies_to_fit(self, problem: Problem, fit: RidgeRegression) -> Applies:
        reason = refusal(problem, self._fit_engine)
        limit = "" if fit.samples is None else " as n -> infinity, without what they add to the risk, O(p/n)"
        statement = f"{fit.words}{limit}"
        return Applies(not reason, Exactness.LIMIT_BATCH, reason or statement)

    def run_fit(self, problem: Problem, fit: RidgeRegression, plan: Plan) -> Record:
        return run_fits(problem, fit, plan, self._fit_engine)

    @property
    def _fit_engine(self) -> Auto:
        return getattr(self, "engine", Auto())
