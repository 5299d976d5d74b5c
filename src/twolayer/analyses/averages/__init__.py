"""Gaussian averages at given overlaps (`moments`)."""
