"""Lazy training on a data set."""
