"""Simulations that are exact at finite dimension d: SGD on the weights, and the process of its overlaps."""

from twolayer.simulation.direct import DirectSGD as DirectSGD
from twolayer.simulation.overlap_sgd import OverlapSGD as OverlapSGD
