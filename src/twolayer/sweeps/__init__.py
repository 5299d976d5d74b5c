"""Sweeps: one question at every point of a grid, on one machine or a cluster, with nothing lost."""

from twolayer.sweeps.result import counts as counts
from twolayer.sweeps.result import failures as failures
from twolayer.sweeps.run import SweepSpec as SweepSpec
from twolayer.sweeps.run import kept_cells as kept_cells
from twolayer.sweeps.run import load_sweep as load_sweep
from twolayer.sweeps.run import make_spec as make_spec
from twolayer.sweeps.run import run_sweep as run_sweep
from twolayer.sweeps.run import sweep as sweep
