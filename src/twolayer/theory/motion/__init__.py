"""What the descriptions of this room share: drifts, integrators, error bounds, thresholds."""
