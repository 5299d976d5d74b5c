"""The choice of an engine: made once, before anything is compiled, with every refusal and its reason recorded."""

from typing import NamedTuple

from twolayer.core.errors import NotApplicable
from twolayer.expectation.base import AbstractEngine
from twolayer.expectation.closed.erf import ErfUnits
from twolayer.expectation.closed.polynomial import PolynomialTables
from twolayer.expectation.closed.relu import ReluUnits
from twolayer.expectation.closed.square import SquareUnits
from twolayer.expectation.qmc import Cloud
from twolayer.expectation.quadrature import Quadrature
from twolayer.problem import Gaussian, Problem

LADDER: tuple[type[AbstractEngine], ...] = (ErfUnits, ReluUnits, SquareUnits, PolynomialTables, Quadrature, Cloud)


class Refusal(NamedTuple):
    """An engine that was asked and does not serve."""

    engine: str
    reason: str


class Choice(NamedTuple):
    """The engine that serves a problem, and those asked before it."""

    engine: AbstractEngine
    refusals: tuple[Refusal, ...]


def choose(problem: Problem) -> Choice:
    """The first engine that serves: closed form, exact polynomial, quadrature, quasi-Monte Carlo."""
    if not isinstance(problem.inputs, Gaussian):
        raise NotApplicable("Gaussian moments need Gaussian inputs, but `problem.inputs` is a data set.")
    refusals = []
    for engine in LADDER:
        suits = engine.suits(problem)
        if suits.ok:
            return Choice(engine.build(problem), tuple(refusals))
        refusals.append(Refusal(engine.__name__, suits.reason))
    raise NotApplicable(f"No engine computes the Gaussian averages of this problem: {refusals[-1].reason}.")
