"""What an analysis is: a number asked of a problem and a training, which theories predict and runs measure."""

import abc
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from twolayer.ask import Training
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
    """A number that is asked of a problem and a training.

    Its fields say what exactly is asked. The verb of an analysis labels what ``predict`` and ``measure`` return and
    judges the one by the other.
    """

    @abc.abstractmethod
    def predict(self, problem: Problem, training: Training) -> Predicted:
        """What theories say; a theory that does not apply is left out."""

    @abc.abstractmethod
    def measure(self, problem: Problem, training: Training) -> Measured:
        """What runs give."""
