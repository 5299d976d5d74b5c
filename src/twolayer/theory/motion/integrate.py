"""Adaptive integration of differential equations, as a program that contains the right-hand side once.

Compiling is most of what a first result costs, and the right-hand sides here are large programs of Gaussian averages.
General solvers hold several copies of them: for the size of the first step, for the stages, for events. This one is a
loop over steps around a loop over stages. A first step of size zero gives the slope at the start, and an event is
located by shorter steps.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from twolayer.core.types import Numbers
from twolayer.theory.motion.tableaus import DORMAND_PRINCE, TSITOURAS, Tableau

# A step is this part of the one whose error would be the tolerance, within these factors of the step before it.
SAFETY, SHRINK, GROW = 0.9, 0.2, 10.0
# The first step, as a part of the time in which the state would change by its own size.
FIRST = 0.01
# Steps below this part of the time are lost in rounding.
LEAST_STEP = 1e-15
# An event is enclosed by steps to this part of the time, and the secant between both ends gives the root.
ENCLOSED = 1e-7
# Part of an enclosure by which it shrinks at least with each step.
SHARE = 0.02


class Solution(NamedTuple):
    """A trajectory at the save points, infinite after the time at which it stopped."""

    states: Any  # pytree with a leading time axis
    reached: Float[Array, ""]  # the last time reached
    is_finished: Any  # whether this is the end of the interval
    has_stopped: Any  # whether the stop condition ended it


class _Enclosure(NamedTuple):
    """The event: its function at the state, the size of a step that passes it (or infinity), and the function there."""

    value: Array
    ahead: Array
    behind: Array

    @property
    def secant(self) -> Array:
        """The time from the state to the root of the straight line through both ends."""
        drop = jnp.where(jnp.isfinite(self.ahead), self.value - self.behind, 1.0)
        return jnp.where(jnp.isfinite(self.ahead), self.ahead, 0.0) * self.value / jnp.where(drop > 0.0, drop, 1.0)

    def trial(self, attempts: Array) -> Array:
        """The size of the step that encloses the root more closely: the secant's, or half of the enclosure."""
        inner = jnp.clip(self.secant, SHARE * self.ahead, (1.0 - SHARE) * self.ahead)
        size = jnp.where(attempts % 3 == 0, 0.5 * self.ahead, inner)
        return jnp.where(jnp.isfinite(self.ahead), size, jnp.inf)

    def after(self, size: Array, value: Array, is_taken: Array, has_passed: Array) -> "_Enclosure":
        """The enclosure after an attempted step of some size, at whose end the function has some value."""
        ahead = jnp.where(has_passed, size, jnp.where(is_taken, self.ahead - size, self.ahead))
        return _Enclosure(jnp.where(is_taken, value, self.value), ahead, jnp.where(has_passed, value, self.behind))


class StepCourse(NamedTuple):
    """The state of the loop over steps: of one trajectory by JAX, or of many along the last axis by NumPy."""

    t: Any
    y: Any
    slope: Any
    size: Any  # of the next step, before it is cut to end at a given time
    landed: Any  # how many of the times at which steps end are passed
    attempts: Any
    has_stopped: Any


class Attempt(NamedTuple):
    """A step: its size, whether it was cut, its end, the slope there, and its error in units of the tolerance."""

    size: Any
    is_cut: Any
    y: Any
    slope: Any
    error: Any


class Tolerance(NamedTuple):
    """The error of a step that is tolerated: relative and absolute."""

    rtol: Numbers
    atol: Numbers

    def norm(self, xp: ModuleType, x: Numbers, *states: Numbers) -> Numbers:
        """The root mean square of a vector, in units of what is tolerated at the states."""
        size = abs(states[0])
        for state in states[1:]:
            size = xp.maximum(size, abs(state))
        return xp.sqrt(xp.mean((x / (self.atol + self.rtol * size)) ** 2, axis=0))


# Large: it is the one integrator of all theories, and takes the options of each of them.
def solve(
    field: Callable[[Any, Any, Any], Any],
    start: PyTree,
    times: Float[Array, " times"],
    args: PyTree,
    rtol: Numbers,
    atol: Numbers,
    max_steps: int,
    stop: Callable[[Any, Any], Any],
    locate: bool = False,
    is_coarse: bool = False,
    landing: Array | None = None,
    is_reversible: bool = False,
) -> Solution:
    """Integrate ``dy/dt = field(t, y, args)`` from ``times[0]``.

    The method is the eighth-order one of Prince and Dormand, or the fifth-order one of Tsitouras when the right-hand
    side is ``is_coarse``: known to few digits, or not smooth, so that a high order gains nothing.

    Steps end on the save points, so that saved values have the accuracy of the method and not of an interpolation. With
    other times at which steps end, ``landing``, the values at the save points are interpolated.
    ``stop(y, args)`` ends the integration when it turns true or, with ``locate``, when it falls to zero, at the root;
    then only the state at the end is saved. Solutions have derivatives in forward mode, and in reverse mode if they
    are ``is_reversible``.
    """
    y0, unravel = ravel_pytree(start)
    tableau, tolerance = TSITOURAS if is_coarse else DORMAND_PRINCE, Tolerance(rtol, atol)
    ends = times if landing is None else landing
    last = len(ends) - 1

    def velocity(t: Array, y: Array) -> Array:
        return ravel_pytree(field(t, unravel(y), args))[0]

    def is_going_on(state: _Looped) -> Array:
        return jnp.asarray(is_running(state.course, last))

    def advance(state: _Looped) -> _Looped:
        course, saved, enclosure = state
        is_first = course.attempts == 0
        wanted = jnp.minimum(course.size, enclosure.trial(course.attempts)) if locate else course.size
        end = ends[jnp.minimum(course.landed, last)]
        step: Any = next_step(jnp, course, jax.lax.stop_gradient(wanted), end)
        size, is_cut = step
        attempt, slopes = _attempt(velocity, tableau, tolerance, course, size, is_cut)
        value = jnp.asarray(stop(unravel(attempt.y), args))
        has_passed = (attempt.error <= 1.0) & ~is_first & (value <= 0.0) if locate else jnp.asarray(False)
        is_taken = (attempt.error <= 1.0) & ~has_passed

        if landing is not None:
            inside = is_taken & (times > course.t) & (times <= course.t + size)
            saved = jnp.where(inside[:, None], _between(tableau, course, attempt, slopes, times), saved)
        elif not locate:
            index = jnp.minimum(course.landed, last)
            saved = saved.at[index].set(jnp.where(is_taken & is_cut, attempt.y, saved[index]))
        following = after_step(jnp, course, attempt, tolerance, tableau.order, is_taken)
        following = following._replace(size=jax.lax.stop_gradient(following.size))
        if not locate:
            return _Looped(following._replace(has_stopped=is_taken & value.astype(bool)), saved, enclosure)
        enclosure = enclosure.after(size, value, is_taken, has_passed)
        is_enclosed = enclosure.ahead <= ENCLOSED * (following.t - times[0])
        has_stopped = (is_taken & is_first & (value <= 0.0)) | is_enclosed
        return _Looped(following._replace(has_stopped=has_stopped), saved, enclosure)

    # Where starts are mapped, all numbers of the loop are mapped from the beginning: JAX would otherwise find out which
    # ones are by tracing the whole loop several times.
    zero = jnp.where(jnp.isnan(y0[:1]), 0.0, jnp.zeros(1, y0.dtype))[0]
    nothing, count = jnp.zeros_like(y0), zero.astype(int)
    table = jnp.full((1 if locate else len(times), len(y0)), jnp.inf, y0.dtype).at[0].set(y0)
    course = StepCourse(times[0] + zero, y0, nothing + zero, zero, 1 + count, count, zero > 0.0)
    begun = _Looped(course, table, _Enclosure(zero, zero + jnp.inf, zero))
    course, saved, enclosure = _loop(is_going_on, advance, begun, max_steps, is_reversible)
    is_finished = (course.landed > last) & ~course.has_stopped
    rest = enclosure.secant
    reached = course.t + rest
    saved = (course.y + rest * course.slope)[None] if locate else saved
    return Solution(jax.vmap(unravel)(saved), reached, is_finished, course.has_stopped)


class _Looped(NamedTuple):
    """What the loop over steps of one trajectory carries."""

    course: StepCourse
    saved: Float[Array, "times n"]
    enclosure: _Enclosure


def _loop(
    is_running: Callable[[_Looped], Array],
    advance: Callable[[_Looped], _Looped],
    begun: _Looped,
    max_steps: int,
    is_reversible: bool,
) -> _Looped:
    """Apply the steps while the integration runs, and at most a number of them after the first one of size zero."""
    if is_reversible:
        return eqxi.while_loop(is_running, advance, begun, max_steps=max_steps + 1, kind="checkpointed")
    return jax.lax.while_loop(lambda looped: is_running(looped) & (looped.course.attempts <= max_steps), advance, begun)


def _attempt(
    velocity: Callable[[Array, Array], Array],
    tableau: Tableau,
    tolerance: Tolerance,
    course: StepCourse,
    size: Array,
    is_cut: Array,
) -> tuple[Attempt, Float[Array, "stages n"]]:
    """A step from the state of a course, and the slopes of its stages."""
    A, c = jnp.asarray(tableau.A, course.y.dtype), jnp.asarray(tableau.c, course.y.dtype)
    stages = len(tableau.c)

    def stage(i: Array, slopes: Array) -> Array:
        return slopes.at[i].set(velocity(course.t + c[i] * size, course.y + size * (A[i] @ slopes)))

    slopes = jnp.zeros((stages, len(course.y)), course.y.dtype).at[0].set(course.slope)
    slopes = jax.lax.fori_loop(1, stages, stage, slopes)
    y = course.y + size * (A[-1] @ slopes)
    error = size * (jnp.asarray(tableau.error, course.y.dtype) @ slopes)
    return Attempt(size, is_cut, y, slopes[-1], tolerance.norm(jnp, error, course.y, y)), slopes


def _between(
    tableau: Tableau, course: StepCourse, attempt: Attempt, slopes: Float[Array, "stages n"], times: Array
) -> Float[Array, "times n"]:
    """The values at all times by the interpolation of the step, which holds for those inside of it."""
    part = (times - course.t) / jnp.where(attempt.size > 0.0, attempt.size, 1.0)
    powers = jnp.clip(part, 0.0, 1.0)[:, None] ** jnp.arange(1, tableau.dense.shape[1] + 1)[None, :]
    return course.y[None, :] + attempt.size * (powers @ jnp.asarray(tableau.dense, course.y.dtype).T @ slopes)


# ------------------------------------------------------------------------- the course of steps, by JAX and by NumPy


def is_running(course: StepCourse, last: int) -> Numbers:
    """Whether a course goes on: the last of the times at which steps end is not passed, and steps are not too short."""
    is_stuck = (course.attempts > 1) & (course.size <= LEAST_STEP * abs(course.t))
    return (course.landed <= last) & ~course.has_stopped & ~is_stuck


def next_step(xp: ModuleType, course: StepCourse, wanted: Numbers, end: Numbers) -> tuple[Numbers, Numbers]:
    """The size of the next step, and whether it was cut to stop at ``end``; the first one has size zero."""
    is_first, to_end = course.attempts == 0, end - course.t
    is_cut = (wanted >= (1.0 - 1e-12) * to_end) & ~is_first
    return xp.where(is_cut, to_end, xp.where(is_first, 0.0, wanted)), is_cut


def after_step(
    xp: ModuleType, course: StepCourse, attempt: Attempt, tolerance: Tolerance, order: int, is_taken: Numbers
) -> StepCourse:
    """The course after an attempted step, without whether it has stopped."""
    return StepCourse(
        xp.where(is_taken, course.t + attempt.size, course.t),
        xp.where(is_taken, attempt.y, course.y),
        xp.where(is_taken, attempt.slope, course.slope),
        _next_size(xp, course, attempt, tolerance, order, is_taken),
        course.landed + (is_taken & attempt.is_cut),
        course.attempts + 1,
        course.has_stopped,
    )


def _next_size(
    xp: ModuleType, course: StepCourse, attempt: Attempt, tolerance: Tolerance, order: int, is_taken: Numbers
) -> Numbers:
    """The size of the next step, from the error of this one or, at the start, from the slope there."""
    error = xp.where(xp.isnan(attempt.error), xp.inf, attempt.error)
    best = SAFETY * xp.maximum(error, 1e-30) ** (-1.0 / (order + 1))
    # Steps do not grow after one that was too large; one that was cut says nothing against the size before.
    size = attempt.size * xp.clip(best, SHRINK, xp.where(error <= 1.0, GROW, SAFETY))
    size = xp.where(is_taken & attempt.is_cut, xp.maximum(size, course.size), size)
    if isinstance(course.attempts, np.ndarray) and course.attempts.all():
        return size
    length = tolerance.norm(xp, course.y, course.y)
    speed = tolerance.norm(xp, attempt.slope, course.y)
    first = FIRST * xp.maximum(length, 1.0) / xp.maximum(speed, 1e-300)
    return xp.where(course.attempts == 0, first, size)
