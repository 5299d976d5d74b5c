"""Gaussian averages: the moments, the engines that compute them, and the choice of engines."""

from twolayer.expectation.auto import ENGINES as ENGINES
from twolayer.expectation.auto import Auto as Auto
from twolayer.expectation.auto import Chosen as Chosen
from twolayer.expectation.auto import choose as choose
from twolayer.expectation.auto import estimate as estimate
from twolayer.expectation.auto import in_parts as in_parts
from twolayer.expectation.auto import risk_along as risk_along
from twolayer.expectation.auto import risks_along as risks_along
from twolayer.expectation.auto import risks_of as risks_of
from twolayer.expectation.base import AbstractEngine as AbstractEngine
from twolayer.expectation.closed.polynomial_tables import PolynomialTables as PolynomialTables
from twolayer.expectation.closed.square import SquareUnits as SquareUnits
from twolayer.expectation.closed.units import ThresholdUnits as ThresholdUnits
from twolayer.expectation.moments import MOMENTS as MOMENTS
from twolayer.expectation.moments import Moments as Moments
from twolayer.expectation.moments import increment_covariance as increment_covariance
from twolayer.expectation.moments import increment_parts as increment_parts
from twolayer.expectation.moments import increment_rates as increment_rates
from twolayer.expectation.panels import Panels as Panels
from twolayer.expectation.qmc import Cloud as Cloud
from twolayer.expectation.qmc import MonteCarlo as MonteCarlo
from twolayer.expectation.quadrature import Quadrature as Quadrature
from twolayer.expectation.ridges import Ridges as Ridges
from twolayer.expectation.series import MehlerSeries as MehlerSeries
from twolayer.expectation.slices import Slices as Slices
from twolayer.expectation.tilted import Tilted as Tilted
