"""Shared parts of the theories: drifts, increments, integrators, error bounds, particles."""
