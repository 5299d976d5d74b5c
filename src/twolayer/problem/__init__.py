"""The learning problem: targets, students, inputs and starts."""

from twolayer.problem.activations import AbstractActivation as AbstractActivation
from twolayer.problem.activations import Custom as Custom
from twolayer.problem.expression import Expression as Expression
from twolayer.problem.inputs import AbstractInputs as AbstractInputs
from twolayer.problem.inputs import Gaussian as Gaussian
from twolayer.problem.inputs import Samples as Samples
from twolayer.problem.losses import AbstractLoss as AbstractLoss
from twolayer.problem.losses import Square as Square
from twolayer.problem.overlaps import Overlaps as Overlaps
from twolayer.problem.overlaps import embed as embed
from twolayer.problem.problem import Problem as Problem
from twolayer.problem.starts import AbstractStart as AbstractStart
from twolayer.problem.starts import AntisymmetricStart as AntisymmetricStart
from twolayer.problem.starts import GivenOverlaps as GivenOverlaps
from twolayer.problem.starts import RandomStart as RandomStart
from twolayer.problem.starts import ScatteredStart as ScatteredStart
from twolayer.problem.starts import WarmStart as WarmStart
from twolayer.problem.student import Student as Student
from twolayer.problem.targets import AbstractTarget as AbstractTarget
from twolayer.problem.targets import Committee as Committee
from twolayer.problem.targets import Hermite as Hermite
from twolayer.problem.targets import Labels as Labels
from twolayer.problem.targets import MultiIndex as MultiIndex
from twolayer.problem.targets import PhaseRetrieval as PhaseRetrieval
from twolayer.problem.targets import SingleIndex as SingleIndex
from twolayer.problem.targets import Staircase as Staircase
