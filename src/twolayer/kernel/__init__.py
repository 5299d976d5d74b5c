"""Lazy training on a data set: Gram matrices, predicted and actual training, complexity, provable bounds."""

from twolayer.kernel.matrices import gram as gram
from twolayer.kernel.matrices import network_gram as network_gram
from twolayer.kernel.matrices import parallel_pairs as parallel_pairs
