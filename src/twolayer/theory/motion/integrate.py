"""Adaptive integration of differential equations, as a program that contains the right-hand side once.

Compiling is most of what a first result costs, and the right-hand sides here are large programs of Gaussian averages.
General solvers hold several copies of them: for the size of the first step, for the stages, for events. This one is a
loop over steps around a loop over stages. A first step of size zero gives the slope at the start, and an event is
located by shorter steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
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


class _Course(NamedTuple):
    """The state of the loop over steps."""

    t: Array
    y: Float[Array, " n"]
    slope: Float[Array, " n"]
    size: Array  # of the next step, before it is cut to end at a given time
    landed: Array  # how many of the times at which steps end are passed
    saved: Float[Array, "times n"]
    enclosure: _Enclosure
    attempts: Array
    has_stopped: Array


class _Attempt(NamedTuple):
    """A step: its size, its end, the slopes of its stages, and its error in units of the tolerance."""

    size: Array
    y: Float[Array, " n"]
    slopes: Float[Array, "stages n"]
    error: Array


class _Tolerance(NamedTuple):
    rtol: Numbers
    atol: Numbers

    def norm(self, x: Array, *states: Array) -> Array:
        """The root mean square of a vector, in units of what is tolerated at the states."""
        size = jnp.max(jnp.abs(jnp.stack(states)), axis=0)
        return jnp.sqrt(jnp.mean((x / (self.atol + self.rtol * size)) ** 2))


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
    tableau, tolerance = TSITOURAS if is_coarse else DORMAND_PRINCE, _Tolerance(rtol, atol)
    ends = times if landing is None else landing
    last = len(ends) - 1

    def velocity(t: Array, y: Array) -> Array:
        return ravel_pytree(field(t, unravel(y), args))[0]

    def is_running(course: _Course) -> Array:
        is_stuck = (course.attempts > 1) & (course.size <= LEAST_STEP * jnp.abs(course.t))
        return (course.landed <= last) & ~course.has_stopped & ~is_stuck

    def advance(course: _Course) -> _Course:
        is_first = course.attempts == 0
        to_end = ends[jnp.minimum(course.landed, last)] - course.t
        size = jnp.minimum(course.size, course.enclosure.trial(course.attempts)) if locate else course.size
        is_cut = (size >= (1.0 - 1e-12) * to_end) & ~is_first
        size = jnp.where(is_cut, to_end, jnp.where(is_first, 0.0, jax.lax.stop_gradient(size)))
        attempt = _attempt(velocity, tableau, tolerance, course, size)
        value = jnp.asarray(stop(unravel(attempt.y), args))
        has_passed = (attempt.error <= 1.0) & ~is_first & (value <= 0.0) if locate else jnp.asarray(False)
        is_taken = (attempt.error <= 1.0) & ~has_passed
        has_landed = is_taken & is_cut

        saved = course.saved
        if landing is not None:
            inside = is_taken & (times > course.t) & (times <= course.t + size)
            saved = jnp.where(inside[:, None], _between(tableau, course, attempt, times), saved)
        elif not locate:
            index = jnp.minimum(course.landed, last)
            saved = saved.at[index].set(jnp.where(has_landed, attempt.y, saved[index]))
        t = jnp.where(is_taken, course.t + size, course.t)
        enclosure = course.enclosure.after(size, value, is_taken, has_passed) if locate else course.enclosure
        has_stopped = is_taken & (value.astype(bool) if not locate else is_first & (value <= 0.0))
        if locate:
            has_stopped = has_stopped | (enclosure.ahead <= ENCLOSED * (t - times[0]))
        return _Course(
            t,
            jnp.where(is_taken, attempt.y, course.y),
            jnp.where(is_taken, attempt.slopes[-1], course.slope),
            jax.lax.stop_gradient(_next_size(tableau, tolerance, course, attempt, is_taken, is_cut)),
            course.landed + has_landed,
            saved,
            enclosure,
            course.attempts + 1,
            has_stopped,
        )

    # Where starts are mapped, all numbers of the loop are mapped from the beginning: JAX would otherwise find out which
    # ones are by tracing the whole loop several times.
    zero = jnp.where(jnp.isnan(y0[:1]), 0.0, jnp.zeros(1, y0.dtype))[0]
    nothing, count = jnp.zeros_like(y0), zero.astype(int)
    table = jnp.full((1 if locate else len(times), len(y0)), jnp.inf, y0.dtype).at[0].set(y0)
    begun = _Course(
        *(times[0] + zero, y0, nothing + zero, zero, 1 + count, table),
        *(_Enclosure(zero, zero + jnp.inf, zero), count, zero > 0.0),
    )
    course = _loop(is_running, advance, begun, max_steps, is_reversible)
    is_finished = (course.landed > last) & ~course.has_stopped
    rest = course.enclosure.secant
    reached = course.t + rest
    saved = (course.y + rest * course.slope)[None] if locate else course.saved
    return Solution(jax.vmap(unravel)(saved), reached, is_finished, course.has_stopped)


def _loop(
    is_running: Callable[[_Course], Array],
    advance: Callable[[_Course], _Course],
    begun: _Course,
    max_steps: int,
    is_reversible: bool,
) -> _Course:
    """Apply the steps while the integration runs, and at most a number of them after the first one of size zero."""
    if is_reversible:
        return eqxi.while_loop(is_running, advance, begun, max_steps=max_steps + 1, kind="checkpointed")
    return jax.lax.while_loop(lambda course: is_running(course) & (course.attempts <= max_steps), advance, begun)


def _attempt(
    velocity: Callable[[Array, Array], Array], tableau: Tableau, tolerance: _Tolerance, course: _Course, size: Array
) -> _Attempt:
    A, c = jnp.asarray(tableau.A, course.y.dtype), jnp.asarray(tableau.c, course.y.dtype)
    stages = len(tableau.c)

    def stage(i: Array, slopes: Array) -> Array:
        return slopes.at[i].set(velocity(course.t + c[i] * size, course.y + size * (A[i] @ slopes)))

    slopes = jnp.zeros((stages, len(course.y)), course.y.dtype).at[0].set(course.slope)
    slopes = jax.lax.fori_loop(1, stages, stage, slopes)
    y = course.y + size * (A[-1] @ slopes)
    error = size * (jnp.asarray(tableau.error, course.y.dtype) @ slopes)
    return _Attempt(size, y, slopes, tolerance.norm(error, course.y, y))


def _between(tableau: Tableau, course: _Course, attempt: _Attempt, times: Array) -> Float[Array, "times n"]:
    """The values at all times by the interpolation of the step, which holds for those inside of it."""
    part = (times - course.t) / jnp.where(attempt.size > 0.0, attempt.size, 1.0)
    powers = jnp.clip(part, 0.0, 1.0)[:, None] ** jnp.arange(1, tableau.dense.shape[1] + 1)[None, :]
    return course.y[None, :] + attempt.size * (powers @ jnp.asarray(tableau.dense, course.y.dtype).T @ attempt.slopes)


def _next_size(
    tableau: Tableau, tolerance: _Tolerance, course: _Course, attempt: _Attempt, is_taken: Array, is_cut: Array
) -> Array:
    """The size of the next step, from the error of this one or, at the start, from the slope there."""
    length, speed = tolerance.norm(course.y, course.y), tolerance.norm(attempt.slopes[-1], course.y)
    first = FIRST * jnp.maximum(length, 1.0) / jnp.maximum(speed, 1e-300)
    error = jnp.where(jnp.isnan(attempt.error), jnp.inf, attempt.error)
    best = SAFETY * jnp.maximum(error, 1e-30) ** (-1.0 / (tableau.order + 1))
    # Steps do not grow after one that was too large; one that was cut says nothing against the size before.
    size = attempt.size * jnp.clip(best, SHRINK, jnp.where(error <= 1.0, GROW, SAFETY))
    size = jnp.where(is_taken & is_cut, jnp.maximum(size, course.size), size)
    return jnp.where(course.attempts == 0, first, size)
