"""Results: labelled datasets, files, comparisons; and data sets that are read from files."""

from twolayer.data.dataset import to_dataset as to_dataset
from twolayer.data.deviation import Finding as Finding
from twolayer.data.deviation import judge_description as judge_description
from twolayer.data.provenance import versions as versions
from twolayer.data.random_features import features as features
from twolayer.data.samples import load_samples as load_samples
from twolayer.data.samples import randomise_labels as randomise_labels
from twolayer.data.schema import validate as validate
from twolayer.data.store import load as load
from twolayer.data.store import save as save
from twolayer.data.summary import summary as summary
