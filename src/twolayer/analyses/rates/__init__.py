"""The best learning rates."""
