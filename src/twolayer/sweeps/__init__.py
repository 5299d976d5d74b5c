"""Sweeps: one question at every point of a grid, on one machine or a cluster, with nothing lost."""

from twolayer.sweeps.over_grid import SweepSpec as SweepSpec
from twolayer.sweeps.over_grid import kept_cells as kept_cells
from twolayer.sweeps.over_grid import load_sweep as load_sweep
from twolayer.sweeps.over_grid import make_spec as make_spec
from twolayer.sweeps.over_grid import run_sweep as run_sweep
from twolayer.sweeps.over_grid import sweep as sweep
from twolayer.sweeps.sweep_result import counts as counts
from twolayer.sweeps.sweep_result import failures as failures
