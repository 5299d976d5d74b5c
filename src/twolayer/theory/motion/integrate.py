"""Interface to diffrax: tolerances, steps that end on the save points, events."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree


class Solution(NamedTuple):
    """A trajectory at the save points, infinite after the time at which it stopped."""

    states: Any  # pytree with a leading time axis
    reached: Float[Array, ""]  # the last time reached
    is_finished: Any  # whether this is the end of the interval
    has_stopped: Any  # whether the stop condition ended it


# It has many parameters because it is the only place that calls diffrax: each is an option of one of its objects.
def solve(
    field: Callable[[Any, Any, Any], Any],
    start: PyTree,
    times: Float[Array, " times"],
    args: PyTree,
    rtol: float | np.ndarray | Array,
    atol: float | np.ndarray | Array,
    max_steps: int,
    stop: Callable[[Any, Any], Any],
    locate: bool = False,
    is_coarse: bool = False,
    landing: Array | None = None,
    is_differentiated: bool = False,
) -> Solution:
    """Integrate ``dy/dt = field(t, y, args)`` from ``times[0]``.

    The method is the eighth-order one of Dormand and Prince, or the fifth-order one of Tsitouras when the right-hand
    side is ``is_coarse``: known to few digits, or not smooth, so that a high order gains nothing.

    Steps end on the save points, so that saved values have the accuracy of the method and not of an interpolation. With
    other times at which steps end, ``landing``, the values at the save points are interpolated.
    ``stop(y, args)`` ends the integration when it turns true or, with ``locate``, when it crosses zero, at the root.
    ``is_differentiated`` solutions have derivatives in forward mode (few parameters), and none in reverse mode.
    """
    import diffrax
    import optimistix

    controller = diffrax.ClipStepSizeController(
        diffrax.PIDController(rtol=rtol, atol=atol), step_ts=times if landing is None else landing
    )
    event = diffrax.Event(
        lambda t, y, args, **_: stop(y, args), optimistix.Newton(rtol=1e-10, atol=1e-10) if locate else None
    )
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),  # pyright: ignore[reportArgumentType]
        diffrax.Tsit5() if is_coarse else diffrax.Dopri8(),
        t0=times[0],
        t1=times[-1],
        dt0=None,
        y0=start,
        args=args,
        saveat=diffrax.SaveAt(t1=True) if locate else diffrax.SaveAt(ts=times),
        stepsize_controller=controller,
        max_steps=max_steps,
        event=event,
        adjoint=diffrax.ForwardMode() if is_differentiated else diffrax.RecursiveCheckpointAdjoint(),
        throw=False,
    )
    result = solution.result
    has_stopped = result == diffrax.RESULTS.event_occurred
    assert solution.ts is not None
    finite = jnp.where(jnp.isfinite(solution.ts), solution.ts, -jnp.inf)
    return Solution(solution.ys, jnp.max(finite), result == diffrax.RESULTS.successful, has_stopped)
