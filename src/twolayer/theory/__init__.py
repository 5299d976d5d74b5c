"""Theories: descriptions of training in a limit of high dimension, large batches or infinite width."""

from twolayer.theory.batch_map import BatchMap as BatchMap
from twolayer.theory.dmft import DMFT as DMFT
from twolayer.theory.formulas import phase_retrieval as phase_retrieval
from twolayer.theory.hdmf import HDMF as HDMF
from twolayer.theory.mean_field import MeanField as MeanField
from twolayer.theory.saad_solla import SaadSolla as SaadSolla
from twolayer.theory.sde import SDE as SDE
