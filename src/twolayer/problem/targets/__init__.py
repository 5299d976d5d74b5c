"""Targets: the functions of k fields that are learned."""

from twolayer.problem.targets.committee import Committee as Committee
from twolayer.problem.targets.labels import Labels as Labels
from twolayer.problem.targets.mixture import Mixture as Mixture
from twolayer.problem.targets.multi_index import Hermite as Hermite
from twolayer.problem.targets.multi_index import MultiIndex as MultiIndex
from twolayer.problem.targets.multi_index import Staircase as Staircase
from twolayer.problem.targets.signs import Signs as Signs
from twolayer.problem.targets.signs import has_signs as has_signs
from twolayer.problem.targets.single_index import PhaseRetrieval as PhaseRetrieval
from twolayer.problem.targets.single_index import SingleIndex as SingleIndex
from twolayer.problem.targets.target import AbstractTarget as AbstractTarget
from twolayer.problem.targets.target import Units as Units
from twolayer.problem.targets.target import check_covariance as check_covariance
