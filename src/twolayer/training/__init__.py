"""How the weights are trained: stochastic gradient descent, its options, schedules and the clock."""

from twolayer.training.clock import Clock as Clock
from twolayer.training.methods import AbstractCoordinateMethod as AbstractCoordinateMethod
from twolayer.training.methods import AbstractMethod as AbstractMethod
from twolayer.training.methods import Adam as Adam
from twolayer.training.methods import HeavyBall as HeavyBall
from twolayer.training.methods import Nesterov as Nesterov
from twolayer.training.methods import RMSProp as RMSProp
from twolayer.training.methods import SignDescent as SignDescent
from twolayer.training.regression import RidgeRegression as RidgeRegression
from twolayer.training.schedule import Phase as Phase
from twolayer.training.schedule import PhasedClock as PhasedClock
from twolayer.training.schedule import Schedule as Schedule
from twolayer.training.sgd import SGD as SGD
from twolayer.training.sgd import AbstractConstraint as AbstractConstraint
from twolayer.training.sgd import AbstractLayers as AbstractLayers
from twolayer.training.sgd import AbstractReuse as AbstractReuse
from twolayer.training.sgd import Both as Both
from twolayer.training.sgd import First as First
from twolayer.training.sgd import Free as Free
from twolayer.training.sgd import Fresh as Fresh
from twolayer.training.sgd import LookAhead as LookAhead
from twolayer.training.sgd import Repeated as Repeated
from twolayer.training.sgd import Reused as Reused
from twolayer.training.sgd import Second as Second
from twolayer.training.sgd import Sphere as Sphere
