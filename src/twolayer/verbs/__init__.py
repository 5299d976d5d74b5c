"""The three verbs: evolve, compare, explain."""

from twolayer.verbs.compare import compare as compare
from twolayer.verbs.evolve import Interrupted as Interrupted
from twolayer.verbs.evolve import evolve as evolve
from twolayer.verbs.explain import explain as explain
