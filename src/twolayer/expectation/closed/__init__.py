"""Engines with closed formulas for Gaussian averages: threshold units, squares, polynomials."""
