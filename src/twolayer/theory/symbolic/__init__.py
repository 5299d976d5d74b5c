"""The equations of motion as formulas."""

from twolayer.theory.symbolic.equations import Equation as Equation
from twolayer.theory.symbolic.equations import Equations as Equations
from twolayer.theory.symbolic.motion import derive_motion as derive_motion
