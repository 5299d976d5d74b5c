"""What an analysis is: a number asked of a problem and a training, which theories predict and runs measure."""

import abc
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from twolayer.ask import Training
from twolayer.core.errors import NotApplicable
from twolayer.data.deviation import Finding, judge_number
from twolayer.problem import Problem

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

    Its fields say what exactly is asked. ``judge`` sets what runs give beside what theories say and ends in a verdict;
    ``verify`` does all three. Every analysis that measures what it predicts is built like this: the exit time, the
    order of directions and the slope of the escape times in `learn`, and the residuals of networks in `ntk`.
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
        if not (isinstance(predicted, Prediction) and isinstance(measured, np.ndarray)):
            raise NotApplicable(
                f"`{type(self).__name__}.judge` must be written: without it `predict` returns a `Prediction` and "
                f"`measure` an array, but they return {type(predicted).__name__} and {type(measured).__name__}."
            )
        runs = len(measured)
        standard_error = float(np.std(measured, ddof=1) / np.sqrt(runs)) if runs > 1 else np.nan
        mean, finite_d = float(np.mean(measured)), float(np.nan_to_num(predicted.model_error))
        name = type(self).__name__
        return judge_number(name, predicted.value, predicted.error, mean, standard_error, runs, finite_d)

    def verify(self, problem: Problem, training: Training) -> Finding:
        """Predict the quantity, measure it, and judge the prediction by the measurement."""
        return self.judge(self.predict(problem, training), self.measure(problem, training))
