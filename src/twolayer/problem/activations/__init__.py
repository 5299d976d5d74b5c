"""Activations: functions of one local field with declared properties."""

from twolayer.problem.activations.base import AbstractActivation as AbstractActivation
from twolayer.problem.activations.base import ActivationLike as ActivationLike
from twolayer.problem.activations.base import AsActivation as AsActivation
from twolayer.problem.activations.base import as_activation as as_activation
from twolayer.problem.activations.base import names as names
from twolayer.problem.activations.custom import Custom as Custom
from twolayer.problem.activations.erf import Erf as Erf
from twolayer.problem.activations.piecewise import AbsActivation as AbsActivation
from twolayer.problem.activations.piecewise import AbstractPiecewiseLinear as AbstractPiecewiseLinear
from twolayer.problem.activations.piecewise import Hardsigmoid as Hardsigmoid
from twolayer.problem.activations.piecewise import Hardtanh as Hardtanh
from twolayer.problem.activations.piecewise import LeakyRelu as LeakyRelu
from twolayer.problem.activations.piecewise import PiecewiseLinear as PiecewiseLinear
from twolayer.problem.activations.piecewise import Relu6 as Relu6
from twolayer.problem.activations.polynomial import HermiteActivation as HermiteActivation
from twolayer.problem.activations.polynomial import Linear as Linear
from twolayer.problem.activations.polynomial import PolynomialActivation as PolynomialActivation
from twolayer.problem.activations.polynomial import SquareActivation as SquareActivation
from twolayer.problem.activations.relu import Relu as Relu
from twolayer.problem.activations.smooth import Gelu as Gelu
from twolayer.problem.activations.smooth import Rescaled as Rescaled
from twolayer.problem.activations.smooth import Sigmoid as Sigmoid
from twolayer.problem.activations.smooth import Silu as Silu
from twolayer.problem.activations.smooth import Softplus as Softplus
from twolayer.problem.activations.smooth import Tanh as Tanh
