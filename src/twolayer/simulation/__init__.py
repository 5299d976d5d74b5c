"""Exact processes at finite d."""

from twolayer.simulation.direct import DirectSGD as DirectSGD
from twolayer.simulation.overlap_sgd import OverlapSGD as OverlapSGD
