"""Limiting accounts of training."""

from twolayer.theory.saad_solla import SaadSolla as SaadSolla
