"""Lazy training on a data set: Gram matrices, predicted and actual training, complexity, provable bounds."""

from twolayer.kernel.bounds import PowerSum as PowerSum
from twolayer.kernel.bounds import cosine as cosine
from twolayer.kernel.bounds import from_expression as from_expression
from twolayer.kernel.bounds import linear as linear
from twolayer.kernel.bounds import power_sum as power_sum
from twolayer.kernel.bounds import quadratic as quadratic
from twolayer.kernel.eigen import Spectrum as Spectrum
from twolayer.kernel.eigen import complexity as complexity
from twolayer.kernel.eigen import decompose as decompose
from twolayer.kernel.eigen import measure as measure
from twolayer.kernel.eigen import residuals as residuals
from twolayer.kernel.eigen import spectrum as spectrum
from twolayer.kernel.free import FreeSpectrum as FreeSpectrum
from twolayer.kernel.free import free_spectrum as free_spectrum
from twolayer.kernel.krylov import SpectralRule as SpectralRule
from twolayer.kernel.krylov import lanczos as lanczos
from twolayer.kernel.krylov import trace as trace
from twolayer.kernel.matrices import gram as gram
from twolayer.kernel.matrices import network_gram as network_gram
from twolayer.kernel.matrices import parallel_pairs as parallel_pairs
from twolayer.kernel.products import GramProduct as GramProduct
from twolayer.kernel.spectra import AbstractSpectrum as AbstractSpectrum
from twolayer.kernel.spectra import explain_singular as explain_singular
from twolayer.kernel.training import Trained as Trained
from twolayer.kernel.training import train as train
