"""Questions about a problem, each answered by predictions and, on request, by a measurement."""

from twolayer.analyses.averages.moments import moments as moments
from twolayer.analyses.escape.exit_time import ExitTime as ExitTime
from twolayer.analyses.escape.exit_time import exit_time as exit_time
from twolayer.analyses.lazy.lazy_ask import LazySpec as LazySpec
from twolayer.analyses.lazy.lazy_ask import NTKAsk as NTKAsk
from twolayer.analyses.lazy.ntk import ntk as ntk
from twolayer.analyses.learnable.learn import learn as learn
from twolayer.analyses.quantity import verify as verify
from twolayer.analyses.rates.optimise import best_training as best_training
from twolayer.analyses.rates.optimise import optimise as optimise
from twolayer.analyses.scaling.fit import scaling as scaling
from twolayer.analyses.scatter.fluctuations import fluctuations as fluctuations
from twolayer.analyses.tasks.forgetting import forgetting as forgetting
