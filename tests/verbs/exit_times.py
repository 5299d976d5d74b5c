"""Problems of exit times, and readers of their results."""

from typing import TYPE_CHECKING

import twolayer as tl
from twolayer.analyses.escape.exit_result import sample_of
from twolayer.analyses.escape.sample import Sample
from twolayer.theory.formulas import phase_retrieval as theory

if TYPE_CHECKING:
    import xarray as xr


def predicted(result: "xr.Dataset", name: str) -> float:
    return float(result.predicted.sel(estimate=name))


def error_of(result: "xr.Dataset", name: str) -> float:
    return float(result.predicted_error.sel(estimate=name))


def model_error(result: "xr.Dataset", name: str) -> float:
    return float(result.model_error.sel(estimate=name))


def notes(result: "xr.Dataset") -> list[str]:
    return result.attrs["notes"].splitlines()


def measured_sample(result: "xr.Dataset", name: str = "measured") -> Sample:
    sample = sample_of(result, name)
    assert sample is not None
    return sample


def setting(p: int, d: int, noise: float, rate: float | None = None) -> tuple[tl.Problem, tl.SGD]:
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d), noise=noise)
    gamma = theory.optimal_learning_rate(p, noise) if rate is None else rate
    return problem, tl.SGD(gamma, constraint=tl.Sphere())


# One problem and number of replicas for several tests, so that it is compiled once.
REPLICAS = 1024


def one(**asked) -> "xr.Dataset":
    return tl.exit_time(*setting(1, 1000, 0.0), **{"threshold": 0.1, "replicas": REPLICAS} | asked)
