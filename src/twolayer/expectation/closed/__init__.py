"""Engines whose Gaussian averages are closed formulas: erf, squares, polynomials."""
