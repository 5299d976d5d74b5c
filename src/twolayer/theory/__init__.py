"""Limiting accounts of training."""

from twolayer.theory import phase_retrieval as phase_retrieval
from twolayer.theory.saad_solla import SaadSolla as SaadSolla
