"""Formulas and fixed points: escape, plateaus, random starts, phase retrieval."""
