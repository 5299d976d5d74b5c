"""Gaussian averages: the moments, the engines that compute them, and the choice among engines."""

from twolayer.expectation.auto import Choice as Choice
from twolayer.expectation.auto import choose as choose
from twolayer.expectation.base import AbstractEngine as AbstractEngine
from twolayer.expectation.base import estimate as estimate
from twolayer.expectation.base import risk_along as risk_along
from twolayer.expectation.closed.erf import ErfUnits as ErfUnits
from twolayer.expectation.closed.polynomial import PolynomialTables as PolynomialTables
from twolayer.expectation.closed.relu import ReluUnits as ReluUnits
from twolayer.expectation.closed.square import SquareUnits as SquareUnits
from twolayer.expectation.moments import Moments as Moments
from twolayer.expectation.qmc import Cloud as Cloud
from twolayer.expectation.quadrature import Quadrature as Quadrature
