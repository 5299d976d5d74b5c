"""The runner of steps: what it saves does not depend on its calls, on an interruption, or on a kill."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer import stepping
from twolayer.core.checkpoint import Checkpoint
from twolayer.description import Plan, Status
from twolayer.problem import Overlaps
from twolayer.stepping import Stepper, in_phases, run_each, run_steps, sealed

POINTS = np.array([0, 3, 4, 40])


def advance(x, first, last):
    for step in range(int(first), int(last)):
        x = 1.5 * x + step
    return x


def counting(start=1.0, **options):
    return Stepper(np.array([start, -start]), advance, lambda x: {"x": x, "square": x**2}, **options)


def expected(start=1.0):
    return np.stack([advance(np.array([start, -start]), 0, point) for point in POINTS], axis=1)


def stop_after(fraction):
    def progress(done):
        if done > fraction:
            raise KeyboardInterrupt

    return progress


def plan(**choices):
    one = jnp.ones((2, 1, 1))
    starts = Overlaps(one, one, jnp.eye(1), jnp.ones((2, 1)))
    return Plan(starts, jax.random.split(jax.random.key(0), 2), POINTS, 0.5 * POINTS, **choices)


@pytest.mark.parametrize("seconds", [1e-9, 0.5])
def test_what_is_saved_does_not_depend_on_the_calls(monkeypatch, seconds):
    monkeypatch.setattr(stepping, "CALL_SECONDS", seconds)
    course = run_steps(counting(), POINTS)
    np.testing.assert_array_equal(course.saved["x"], expected())
    np.testing.assert_array_equal(course.saved["square"], expected() ** 2)
    assert not course.interrupted


def test_calls_are_short_where_steps_are_slow(monkeypatch):
    """A clock on which a step takes a second: each call is a single step, so that an interruption waits for one."""
    ticks = itertools.count()
    monkeypatch.setattr(stepping.time, "perf_counter", lambda: float(next(ticks)))
    calls = list(stepping.Pace().strides(np.array([0, 5])))
    assert calls == [(step, step + 1, step == 4) for step in range(5)]
    # Steps that are computed at once, three at a time, are divided at save points only.
    calls = list(stepping.Pace().strides(np.array([1, 7, 11]), together=3))
    assert calls == [(1, 3, False), (3, 6, False), (6, 7, True), (7, 9, False), (9, 11, True)]


def test_an_interruption_keeps_the_points_and_the_next_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(stepping, "CALL_SECONDS", 1e-9)
    open_place = lambda: Checkpoint(tmp_path / "place.npz", every=1e9).open({"computation": "x"})  # noqa: E731
    course = run_steps(counting(), POINTS, stop_after(0.5), open_place())
    assert course.interrupted
    np.testing.assert_array_equal(course.saved["x"], expected()[:, :3])
    taken = []
    stepper = counting()._replace(advance=lambda x, first, last: taken.append(int(first)) or advance(x, first, last))
    resumed = run_steps(stepper, POINTS, place=open_place())
    assert min(taken) > 19
    np.testing.assert_array_equal(resumed.saved["x"], expected())
    with pytest.raises(KeyboardInterrupt):
        run_steps(counting(), POINTS, stop_after(0.0))


def test_a_process_that_is_over_keeps_its_last_values():
    taken = []
    stepper = counting(is_over=lambda row: bool(np.any(row["x"] > 3.0)))
    stepper = stepper._replace(advance=lambda x, first, last: taken.append(int(last)) or advance(x, first, last))
    saved = run_steps(stepper, POINTS).saved["x"]
    np.testing.assert_array_equal(saved[:, :2], expected()[:, :2])
    np.testing.assert_array_equal(saved[:, 2:], expected()[:, [1, 1]])
    assert max(taken) == 3


@pytest.mark.parametrize("is_kept", [True, False])
def test_several_processes_are_resumed_where_they_were(tmp_path, monkeypatch, is_kept):
    """Interrupted in the second of three: the first is not computed again, the second only where its state is large."""
    monkeypatch.setattr(stepping, "CALL_SECONDS", 1e-9)
    begun = []

    def make(start):
        begun.append(start)
        return counting(start, is_kept=is_kept)

    makers = [lambda start=start: make(start) for start in (1.0, 2.0, 3.0)]
    open_place = lambda: Checkpoint(tmp_path / "place.npz", every=0.0).open({"computation": "x"})  # noqa: E731
    saved, interrupted = run_each(makers, POINTS, plan(progress=stop_after(0.6), checkpoint=open_place()))
    assert interrupted and len(saved) == 1 and begun == [1.0, 2.0]
    first_steps = []
    monkeypatch.setattr(
        "tests.test_stepping.advance",
        lambda x, first, last, known=advance: first_steps.append(int(first)) or known(x, first, last),
    )
    saved, interrupted = run_each(makers, POINTS, plan(checkpoint=open_place()))
    assert not interrupted and begun == [1.0, 2.0, 2.0, 3.0]
    assert (first_steps[0] == 0) is not is_kept
    monkeypatch.undo()
    for start, run in zip((1.0, 2.0, 3.0), saved, strict=True):
        np.testing.assert_array_equal(run["x"], expected(start))


def test_phases_take_turns_wherever_the_calls_end():
    def adds(amount):
        return lambda x, first, last: x + amount * (int(last) - int(first))

    both = in_phases([adds(1.0), adds(100.0)], (0, 7))
    for cuts in ([0, 10], [0, 3, 10], [0, 7, 10], [0, 8, 10]):
        x = 0.0
        for first, last in itertools.pairwise(cuts):
            x = both(x, first, last)
        assert x == 7 + 300


def test_rows_are_missing_from_a_divergence_on_and_after_an_interruption():
    Q = np.ones((2, 3, 1, 1))
    Q[0, 1] = 1e9  # and back below the limit at the next point
    rows, status = sealed(plan(), {"Q": Q, "a": np.ones((2, 3, 1)), "risk": np.ones((2, 3))})
    np.testing.assert_array_equal(np.isnan(rows["risk"]), [[False, True, True, True], [False, False, False, True]])
    assert status.tolist() == [Status.DIVERGED, Status.UNFINISHED]
    assert rows["Q"].shape == (2, 4, 1, 1)
    whole = dataclasses.replace(plan(), steps=POINTS[:3], times=0.5 * POINTS[:3])
    assert sealed(whole, {"Q": Q, "a": np.ones((2, 3, 1))})[1].tolist() == [Status.DIVERGED, Status.DONE]
