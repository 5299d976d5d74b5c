"""Engines whose Gaussian averages are closed formulas: threshold units, squares, polynomials."""
