"""The verbs: evolve one description, compare several, explain what applies, derive the equations."""

from twolayer.verbs.compare import compare as compare
from twolayer.verbs.derive import derive as derive
from twolayer.verbs.evolve import Interrupted as Interrupted
from twolayer.verbs.evolve import evolve as evolve
from twolayer.verbs.explain import explain as explain
