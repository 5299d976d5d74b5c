"""Thresholds that descriptions watch at every step: which are crossed, and how crossings become times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.core.precision import double
from twolayer.description import Plan, Record, Status, Watch, stopped
from twolayer.problem import Overlaps
from twolayer.training import Clock

# One neuron of length 2 whose cosines with the two target directions are 0.6 and -0.8.
OVERLAPS = {"Q": [[4.0]], "M": [[1.2, -1.6]], "P": [[1.0, 0.0], [0.0, 1.0]], "a": [1.0]}
RISK_THRESHOLD, COSINE_THRESHOLD = 0.3, 0.7


@pytest.mark.parametrize(
    ("risk", "overlaps", "crossings"),
    [(True, True, [5.0, -1.0, 5.0]), (True, False, [5.0]), (False, True, [-1.0, 5.0]), (False, False, [-1.0])],
)
def test_crossings_are_of_the_watched_thresholds(risk, overlaps, crossings):
    """The risk 0.2 and the second cosine have reached their thresholds at step 5, the first cosine has not."""
    watch = Watch(risk, overlaps)
    with double():
        state = Overlaps(*(jnp.asarray(OVERLAPS[name]) for name in ("Q", "M", "P", "a")))
        before = jnp.full(watch.size(2), -1.0)
        thresholds = jnp.array([RISK_THRESHOLD, COSINE_THRESHOLD])
        after = watch.crossed(state, jnp.asarray(0.2) if risk else None, thresholds, before, 5.0)
        later = watch.crossed(state, jnp.asarray(0.2) if risk else None, thresholds, after, 9.0)
    np.testing.assert_array_equal(after, crossings)
    np.testing.assert_array_equal(later, crossings)  # a first crossing is kept


@pytest.mark.parametrize(("risk", "overlaps"), [(True, True), (True, False), (False, True), (False, False)])
def test_times_are_missing_where_nothing_was_crossed_or_watched(risk, overlaps):
    watch = Watch(risk, overlaps)
    crossing = np.concatenate([[4.0] * risk, [-1.0, 6.0] * overlaps]) if watch.is_on else np.array([-1.0])
    risk_time, overlap_time = watch.times(crossing[None, :], 2, Clock(time_per_sample=0.5, samples_per_step=1))
    np.testing.assert_array_equal(risk_time, [2.0 if risk else np.nan])
    np.testing.assert_array_equal(overlap_time, [[np.nan, 3.0 if overlaps else np.nan]])


def test_nothing_is_reported_after_a_replica_has_stopped():
    """At its first threshold: what was crossed or diverged later, before the run ended, leaves no trace."""
    starts = Overlaps(jnp.ones((2, 1, 1)), jnp.ones((2, 1, 2)), jnp.eye(2), jnp.ones((2, 1)))
    times = np.arange(4.0)
    plan = Plan(starts, jax.random.split(jax.random.key(0), 2), np.arange(4), times, 0.1, 0.5, True, True)
    row = np.ones((2, 4))
    row[0, 3] = np.nan
    status = np.array([Status.DIVERGED, Status.DONE], np.int8)
    crossing, overlap_time = np.array([np.nan, 2.5]), np.array([[1.5, 2.5], [np.nan, np.nan]])
    record = Record(row[..., None, None], row[..., None, None], row[..., None], row, row, row, status,
                    crossing, overlap_time, "")  # fmt: skip
    cut = stopped(record, plan)
    np.testing.assert_array_equal(cut.overlap_time, [[1.5, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(cut.crossing_time, [np.nan, 2.5])
    np.testing.assert_array_equal(np.isnan(cut.excess_risk), [[False, False, True, True], [False] * 3 + [True]])
    assert cut.status.tolist() == [Status.STOPPED, Status.STOPPED]
