"""How far the Gaussian equivalent of a data set carries: SGD on the data beside a control with the same covariance."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twolayer.data.deviation import Finding

if TYPE_CHECKING:
    import xarray as xr

NO_CONTROL = (
    "To tell what the data have beyond their covariance from finite d, add a control on their Gaussian equivalent: "
    "DirectSGD(equivalent=True) or OverlapSGD."
)


class Equivalence(NamedTuple):
    """How far the Gaussian equivalent carries: a word, a sentence, and the numbers in it."""

    outcome: str  # "agrees", "consistent", "differs", "undecided", as in a verdict
    sentence: str
    distance: float  # largest distance of the mean risks, relative to the range of that on the equivalent
    error: float  # its standard error
    begins: float  # the first time at which the distance is beyond chance; NaN where it never is

    @property
    def attributes(self) -> dict[str, str | float]:
        """The attributes of a comparison."""
        return {
            "equivalence": self.outcome,
            "equivalence_distance": self.distance,
            "equivalence_error": self.error,
            "equivalence_begins": self.begins,
        }


def equivalence(name: str, control: "xr.Dataset", finding: Finding) -> Equivalence:
    """Say how far the data and their equivalent agree in the risk, from the control that was compared with the data.

    ``control`` carries the differences to SGD on the data, replica by replica from the same starts.
    """
    if "difference_risk" not in control:
        return _without_difference(name, finding)
    mean = control.risk.values[np.isfinite(control.risk.values).all(axis=1)].mean(axis=0)
    span = max(float(np.ptp(mean)), 1e-12)
    far, error = (np.abs(control[f"{kind}_risk"].values) / span for kind in ("difference", "standard_error"))
    place = int(np.argmax(far))
    beyond = np.flatnonzero(np.abs(control.deviation_risk.values) > finding.threshold)  # rounding has no deviation
    begins = float(control.time.values[beyond[0]]) if beyond.size else np.nan
    if finding.outcome == "undecided":
        end = "which is undecided, since one replica gives no standard error"
    else:
        end = f"which is beyond chance from time {begins:.3g} on" if beyond.size else "which chance explains"
    known = f"standard error {error[place]:.2%}, " if np.isfinite(error[place]) else ""
    blocks = control.sizes.get("block", 1)
    spectrum = f"with the covariance in {blocks} block{'s' * (blocks != 1)}"
    when = float(control.time.values[place])
    sentence = (
        f"On the data and on their Gaussian equivalent ({name}, {spectrum}) the mean risk differs by at most "
        f"{far[place]:.2%} of its range ({known}at time {when:.3g}), {end}."
    )
    return Equivalence(finding.outcome, sentence, float(far[place]), float(error[place]), begins)


def _without_difference(name: str, finding: Finding) -> Equivalence:
    """What is said where the risk has no difference beyond its numerical error, or where none is known."""
    if finding.outcome == "undecided":
        sentence = f"Whether the Gaussian equivalent of the data carries is undecided: see the verdict on {name}."
        return Equivalence(finding.outcome, sentence, np.nan, np.nan, np.nan)
    end = ", but overlaps differ by more than chance explains" if finding.outcome == "differs" else ""
    sentence = (
        f"On the data and on their Gaussian equivalent ({name}) the mean risk is the same within its numerical "
        f"error{end}."
    )
    return Equivalence(finding.outcome, sentence, 0.0, 0.0, np.nan)
