"""The tests of twolayer."""

import os

# XLA writes two long lines to stderr for each program that it reads from the compilation cache, about processor
# features that are settings of its own compiler. The level is read once, when jax is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
