"""What an analysis is: a number asked of a problem and a training, which theories predict and runs measure."""

import abc
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from twolayer.ask import Training
from twolayer.core.errors import NotApplicable, takes_these
from twolayer.core.precision import double
from twolayer.core.text import Text, table
from twolayer.data.deviation import Finding, judge_number
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import Schema, Variable, add_kind, label
from twolayer.data.summary import verdict_lines, with_error
from twolayer.problem import Problem
from twolayer.specification.fields import instance
from twolayer.training import SGD, Schedule
from twolayer.verbs.progress import Progress, nobody, shows_progress

if TYPE_CHECKING:
    import xarray as xr

Predicted = TypeVar("Predicted")
Measured = TypeVar("Measured")


class Prediction(NamedTuple):
    """A predicted number, a bound on the error of its evaluation, and the error of the model where that is known.

    The model error says how far the mean of actual runs may be from the prediction because the model leaves out
    something, such as higher orders in 1/d. It is NaN where nothing is known of it.
    """

    value: float
    error: float
    model_error: float = np.nan


class AbstractQuantity(abc.ABC, Generic[Predicted, Measured]):
    """A number, or several, that theories predict for a problem and a training, and that runs measure.

    Its fields say what exactly is asked. ``judge`` sets what runs give beside what theories say and ends in a verdict.
    Every analysis that measures what it predicts is built like this: the exit time, the order of directions and the
    slope of the escape times in `learn`, and the residuals of networks in `ntk`. `verify` labels the answer of one that
    is a single number.
    """

    @abc.abstractmethod
    def predict(self, problem: Problem, training: Training) -> Predicted:
        """Return what theories say of the quantity; a theory that does not apply is left out."""

    @abc.abstractmethod
    def measure(self, problem: Problem, training: Training) -> Measured:
        """Return what runs give for the quantity."""

    def judge(self, predicted: Predicted, measured: Measured) -> Finding:
        """Judge the prediction by the measurement, in the words of `compare`.

        Here it is that on a `Prediction` of one number, by the mean of an array with one number for each run; a
        quantity whose methods return anything else has a ``judge`` of its own.
        """
        value, error, model_error = _as_number(self, predicted)
        runs = _as_runs(self, measured)
        standard_error = float(np.std(runs, ddof=1) / np.sqrt(len(runs))) if len(runs) > 1 else np.nan
        mean = float(np.mean(runs)) if len(runs) else np.nan
        finite_d = float(np.nan_to_num(model_error))
        return judge_number(type(self).__name__, value, error, mean, standard_error, len(runs), finite_d)


def _as_number(quantity: AbstractQuantity[Any, Any], predicted: object) -> Prediction:
    if isinstance(predicted, Prediction):
        return predicted
    raise NotApplicable(
        f"`{type(quantity).__name__}.predict` must return a `Prediction` of one number, or the class its own `judge`, "
        f"but returns {type(predicted).__name__}."
    )


def _as_runs(quantity: AbstractQuantity[Any, Any], measured: object) -> Float[np.ndarray, " runs"]:
    runs = np.asarray(measured, dtype=float) if isinstance(measured, np.ndarray | list | tuple) else None
    if runs is not None and runs.ndim == 1:
        return runs
    raise NotApplicable(
        f"`{type(quantity).__name__}.measure` must return one number for each run, or the class its own `judge`, but "
        f"returns {type(measured).__name__ if runs is None else f'an array of shape {runs.shape}'}."
    )


# ---------------------------------------------------------------------------------- a single number, as a dataset


def summary(result: "xr.Dataset") -> Text:
    """The prediction beside the mean of the runs, and the verdict."""
    runs = result.measured.values
    error = float(np.std(runs, ddof=1) / np.sqrt(len(runs))) if len(runs) > 1 else np.nan
    rows = [
        ["predicted", with_error(float(result.predicted), float(result.predicted_error))],
        [f"measured, {len(runs)} runs", with_error(float(np.mean(runs)) if len(runs) else np.nan, error)],
    ]
    return Text(
        "\n".join([*table([result.attrs["quantity"], "value"], rows, right=(1,)), "", *verdict_lines(result.attrs)])
    )


QUANTITY = add_kind(
    Schema(
        kind="quantity",
        variables={
            "predicted": Variable((), "predicted number"),
            "predicted_error": Variable((), "bound on the error of the evaluation of the prediction"),
            "model_error": Variable((), "how far the mean of runs may be from the prediction, NaN if unknown"),
            "measured": Variable(("replica",), "number that each run gives"),
        },
        attributes=("quantity", "outcome", "verdict"),
        summary=summary,
    )
)


@takes_these
@shows_progress
def verify(
    quantity: AbstractQuantity[Prediction, Any],
    problem: Problem,
    training: SGD | Schedule,
    *,
    progress: Progress | bool | None = None,
) -> "xr.Dataset":
    """Predict a quantity of your own, measure it, and judge the prediction by the measurement.

    Parameters
    ----------
    quantity
        An `AbstractQuantity` whose ``predict`` returns a `Prediction`, and whose ``measure`` one number for each run.
    problem, training
        What is learned, and how the weights move.
    progress
        Called with the name of what is done, and the fraction of it; as in `evolve`.

    Returns
    -------
    A labelled dataset of kind "quantity": ``predicted`` with ``predicted_error`` and ``model_error``, and ``measured``
    along ``replica``. Its attributes ``outcome`` and ``verdict`` say whether the two agree.

    Examples
    --------
    >>> import numpy as np
    >>> import twolayer as tl
    >>> class InitialRisk(tl.AbstractQuantity):
    ...     def predict(self, problem, training):
    ...         return tl.Prediction(2.0 - 2.0 / problem.d, error=0.0)
    ...
    ...     def measure(self, problem, training):
    ...         runs = tl.evolve(problem, training, "OverlapSGD", until=0.01, save=2, replicas=500)
    ...         return runs.excess_risk.isel(time=0).values
    >>> problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100))
    >>> tl.verify(InitialRisk(), problem, tl.SGD(0.05, constraint=tl.Sphere())).attrs["outcome"]
    'agrees'
    """
    instance("quantity", AbstractQuantity, "an AbstractQuantity with `predict` and `measure`")(quantity)
    instance("problem", Problem, "a Problem")(problem)
    instance("training", (SGD, Schedule), "a training method such as SGD(learning_rate=0.5)")(training)
    tell, name = progress if callable(progress) else nobody, type(quantity).__name__
    with double():
        question = Question("verify", {"quantity": name, **vars(quantity), "problem": problem, "training": training})
        origin = provenance(question, int(getattr(quantity, "seed", 0)))
    tell(f"{name}, predicted", 0.0)
    predicted = quantity.predict(problem, training)
    value, error, model_error = _as_number(quantity, predicted)
    tell(f"{name}, measured", 0.0)
    measured = quantity.measure(problem, training)
    runs = _as_runs(quantity, measured)
    finding = quantity.judge(predicted, measured)
    values = {"predicted": value, "predicted_error": error, "model_error": model_error, "measured": runs}
    attributes = {"quantity": name} | finding.attributes | origin
    return label(QUANTITY, values, {"replica": np.arange(len(runs))}, attributes)
