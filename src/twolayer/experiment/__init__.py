"""Specifications in files, and how they are run."""

from twolayer.ask import RunSpec as RunSpec
from twolayer.experiment.lazy import load_data as load_data
from twolayer.experiment.lazy import read_lazy_spec as read_lazy_spec
from twolayer.experiment.specs import analysis_of as analysis_of
from twolayer.experiment.specs import demo_spec as demo_spec
from twolayer.experiment.specs import from_tables as from_tables
from twolayer.experiment.specs import parse_spec as parse_spec
from twolayer.experiment.specs import read_question as read_question
from twolayer.experiment.specs import read_run_tables as read_run_tables
from twolayer.experiment.specs import read_spec as read_spec
from twolayer.experiment.specs import run_spec as run_spec
from twolayer.experiment.sweep_specs import read_sweep as read_sweep
