"""Exit times of several runs or starts, some of which may not have exited: their mean, median and share."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from twolayer.data.summary import finite

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Sample:
    """Exit times of several starts or runs, all followed until the time ``until``; NaN where there was no exit by then.

    Such a time is censored: all that is known is that it exceeds ``until``. Since all runs are followed equally long,
    the Kaplan-Meier estimate of the survival function at a time is the share of all runs that have not exited by then,
    and its standard error (Greenwood) that of a share. A run that diverged has not exited, and never will.
    """

    times: np.ndarray
    until: float

    @property
    def size(self) -> int:
        """The number of starts or runs."""
        return self.times.size

    @property
    def exited(self) -> np.ndarray:
        """The times of the runs that have exited."""
        return self.times[np.isfinite(self.times)]

    @property
    def is_censored(self) -> bool:
        """Whether some did not exit, so that the sample has no mean."""
        return self.exited.size < self.size

    @property
    def share(self) -> float:
        """The share of all that has exited."""
        return self.exited.size / self.size

    @property
    def share_error(self) -> float:
        """One standard deviation of the share, by Wilson's score, which is positive also where all or none exited."""
        n = self.size
        return float(np.sqrt(self.share * (1.0 - self.share) / n + 0.25 / n**2) / (1.0 + 1.0 / n))

    @property
    def mean(self) -> float:
        """The mean exit time; NaN where some did not exit, since the mean over the others is too early."""
        return np.nan if self.is_censored else float(np.mean(self.times))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN for fewer than two runs, and where some did not exit."""
        return np.nan if self.is_censored else _standard_error(self.times)

    @property
    def restricted_mean(self) -> float:
        """The mean of the exit time or ``until``, whichever is earlier: the area below the survival function."""
        return float(np.mean(self._restricted)) if np.isfinite(self.until) or not self.is_censored else np.nan

    @property
    def restricted_mean_error(self) -> float:
        """Standard error of the restricted mean; NaN for fewer than two runs."""
        return _standard_error(self._restricted) if np.isfinite(self.until) or not self.is_censored else np.nan

    @property
    def _restricted(self) -> np.ndarray:
        return np.where(np.isfinite(self.times), self.times, self.until)

    @property
    def median(self) -> float:
        """The time by which half of all have exited; NaN when fewer have."""
        return self.quantile(0.5)

    @property
    def median_error(self) -> float:
        """Half the distance of the quantiles one standard deviation of a share around one half; NaN if not reached."""
        deviation = min(0.5 / np.sqrt(self.size), 0.5)
        return 0.5 * (self.quantile(0.5 + deviation) - self.quantile(0.5 - deviation))

    def quantile(self, fraction: float) -> float:
        """The time by which this fraction of all has exited; NaN when fewer have."""
        ordered = np.sort(np.where(np.isfinite(self.times), self.times, np.inf))
        time = float(np.quantile(ordered, fraction, method="inverted_cdf"))
        return time if np.isfinite(time) else np.nan

    @property
    def censoring(self) -> str:
        """The sentence that says how many have not exited."""
        return (
            f"{self.size - self.exited.size} of {self.size} runs had not exited by time {self.until:.4g}: their times "
            f"are censored, and there is no mean. The share that exited is {self.share:.3f} +- {self.share_error:.3f}."
        )

    def to_dict(self, unit: float = 1.0) -> dict[str, Any]:
        """Plain data, with times in another unit; numbers that do not exist are None."""
        return {
            "mean": finite(self.mean * unit),
            "stderr": finite(self.standard_error * unit),
            "median": finite(self.median * unit),
            "median_stderr": finite(self.median_error * unit),
            "restricted_mean": finite(self.restricted_mean * unit),
            "restricted_mean_stderr": finite(self.restricted_mean_error * unit),
            "until": finite(self.until * unit),
            "quantiles": {str(fraction): finite(self.quantile(fraction) * unit) for fraction in QUANTILES},
            "replicas": self.size,
            "exited": int(self.exited.size),
            "censored": int(self.size - self.exited.size),
            "share_exited": self.share,
            "share_exited_stderr": self.share_error,
        }


def _standard_error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(values.size)) if values.size > 1 else np.nan
