"""Exact processes at finite d."""

from twolayer.simulation.direct import DirectSGD as DirectSGD
