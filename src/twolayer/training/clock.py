"""The clock: the one place where steps, time and samples are converted."""

from typing import Any, NamedTuple

import numpy as np

from twolayer.core.types import Numbers, NumbersLike


class Clock(NamedTuple):
    r"""Conversion between steps, time and samples, the same in every regime.

    .. math:: t = \frac{\gamma}{p d}\,\mathrm{samples}, \qquad \mathrm{samples} = n_b\,\mathrm{step}
    """

    time_per_sample: Any
    samples_per_step: int

    @property
    def time_per_step(self) -> Numbers:
        """The time of one step."""
        return self.time_per_sample * self.samples_per_step

    def steps(self, time: NumbersLike) -> Numbers:
        """Return the number of the step nearest to a time."""
        return np.rint(np.minimum(np.asarray(time) / self.time_per_step, 2.0**62)).astype(np.int64)

    def steps_at(self, time: NumbersLike) -> Numbers:
        """Return the number of steps taken at a time, as a real number: limit theories have no discrete steps."""
        return np.asarray(time) / float(self.time_per_step)

    def time(self, step: NumbersLike) -> Numbers:
        """Return the time after ``step`` steps."""
        return np.asarray(step) * self.time_per_step

    def samples(self, step: NumbersLike) -> Numbers:
        """Return the number of samples seen after ``step`` steps."""
        return np.asarray(step) * self.samples_per_step

    def samples_at(self, time: NumbersLike) -> Numbers:
        """Return the number of samples seen at a time, as a real number."""
        return np.asarray(time) / float(self.time_per_sample)
