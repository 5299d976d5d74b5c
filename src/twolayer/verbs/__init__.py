"""The verbs: evolve, compare, explain, derive; and analyses that ask one question: exit_time, learn."""

from twolayer.verbs.compare import compare as compare
from twolayer.verbs.derive import derive as derive
from twolayer.verbs.evolve import Interrupted as Interrupted
from twolayer.verbs.evolve import evolve as evolve
from twolayer.verbs.exit_result import ExitTime as ExitTime
from twolayer.verbs.exit_time import exit_time as exit_time
from twolayer.verbs.explain import explain as explain
from twolayer.verbs.learn import Learned as Learned
from twolayer.verbs.learn import learn as learn
from twolayer.verbs.ntk import ntk as ntk
from twolayer.verbs.ntk_result import NTK as NTK
from twolayer.verbs.optimise import Optimum as Optimum
from twolayer.verbs.optimise import optimise as optimise
