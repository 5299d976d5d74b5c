"""Datasets in, figures out. No physics is computed here."""

from twolayer.plots.cloud import flow as flow
from twolayer.plots.cloud import flow_movie as flow_movie
from twolayer.plots.escape import exit_law as exit_law
from twolayer.plots.escape import exit_scan as exit_scan
from twolayer.plots.figure_files import save_figure as save_figure
from twolayer.plots.memory_kernels import kernels as kernels
from twolayer.plots.ntk import complexity_sweep as complexity_sweep
from twolayer.plots.ntk import lazy_training as lazy_training
from twolayer.plots.orders import Distances as Distances
from twolayer.plots.orders import convergence as convergence
from twolayer.plots.panels import Panel as Panel
from twolayer.plots.panels import panels as panels
from twolayer.plots.series import HeatMap as HeatMap
from twolayer.plots.series import Note as Note
from twolayer.plots.series import Rule as Rule
from twolayer.plots.series import Series as Series
from twolayer.plots.staircase import staircase as staircase
from twolayer.plots.sweeps import sweep as sweep
from twolayer.plots.tasks import tasks as tasks
from twolayer.plots.trajectories import overlaps as overlaps
from twolayer.plots.trajectories import risk as risk
from twolayer.plots.view import View as View
