"""twolayer: see exactly how two-layer neural networks learn.

State a learning problem once; simulate it at finite d, predict it by theory, and compare the two.
"""

from twolayer import kernel as kernel
from twolayer import learnability as learnability
from twolayer.ask import Ask as Ask
from twolayer.core.checkpoint import Checkpoint as Checkpoint
from twolayer.core.errors import CheckpointWarning as CheckpointWarning
from twolayer.core.errors import ComputationFailed as ComputationFailed
from twolayer.core.errors import InvalidInput as InvalidInput
from twolayer.core.errors import NotApplicable as NotApplicable
from twolayer.core.precision import precision as precision
from twolayer.data import load as load
from twolayer.data import load_samples as load_samples
from twolayer.data import save as save
from twolayer.data import summary as summary
from twolayer.description import AbstractDescription as AbstractDescription
from twolayer.expectation import Auto as Auto
from twolayer.problem import AbstractActivation as AbstractActivation
from twolayer.problem import AbstractTarget as AbstractTarget
from twolayer.problem import Committee as Committee
from twolayer.problem import Custom as Custom
from twolayer.problem import Gaussian as Gaussian
from twolayer.problem import GivenOverlaps as GivenOverlaps
from twolayer.problem import Hermite as Hermite
from twolayer.problem import Labels as Labels
from twolayer.problem import MultiIndex as MultiIndex
from twolayer.problem import Overlaps as Overlaps
from twolayer.problem import PhaseRetrieval as PhaseRetrieval
from twolayer.problem import Problem as Problem
from twolayer.problem import RandomStart as RandomStart
from twolayer.problem import Samples as Samples
from twolayer.problem import ScatteredStart as ScatteredStart
from twolayer.problem import SingleIndex as SingleIndex
from twolayer.problem import Square as Square
from twolayer.problem import Staircase as Staircase
from twolayer.problem import Student as Student
from twolayer.problem import WarmStart as WarmStart
from twolayer.simulation import DirectSGD as DirectSGD
from twolayer.simulation import OverlapSGD as OverlapSGD
from twolayer.theory import DMFT as DMFT
from twolayer.theory import HDMF as HDMF
from twolayer.theory import SDE as SDE
from twolayer.theory import BatchMap as BatchMap
from twolayer.theory import MeanField as MeanField
from twolayer.theory import SaadSolla as SaadSolla
from twolayer.theory import fluctuations as fluctuations
from twolayer.theory.symbolic import Equations as Equations
from twolayer.training import SGD as SGD
from twolayer.training import AbstractMethod as AbstractMethod
from twolayer.training import Both as Both
from twolayer.training import First as First
from twolayer.training import Free as Free
from twolayer.training import Fresh as Fresh
from twolayer.training import HeavyBall as HeavyBall
from twolayer.training import LookAhead as LookAhead
from twolayer.training import Nesterov as Nesterov
from twolayer.training import Repeated as Repeated
from twolayer.training import Reused as Reused
from twolayer.training import Schedule as Schedule
from twolayer.training import Second as Second
from twolayer.training import Sphere as Sphere
from twolayer.training import conventions as conventions
from twolayer.verbs import Interrupted as Interrupted
from twolayer.verbs import compare as compare
from twolayer.verbs import derive as derive
from twolayer.verbs import evolve as evolve
from twolayer.verbs import exit_time as exit_time
from twolayer.verbs import explain as explain
from twolayer.verbs import learn as learn
from twolayer.verbs import ntk as ntk
from twolayer.verbs import optimise as optimise

__version__ = "0.1.0"
