"""Limiting accounts of training."""

from twolayer.theory import phase_retrieval as phase_retrieval
from twolayer.theory.batch_map import BatchMap as BatchMap
from twolayer.theory.saad_solla import SaadSolla as SaadSolla
