"""Samples that come back: the frame of the weights, typical samples, Sobol nets."""
