"""Find where a JAX function of one number has kinks and jumps, from the operations it consists of.

A kink can only be where an operation has one: where the arguments of ``max``, ``min`` and comparisons are equal, and
where that of ``abs`` or ``sign`` is zero. These differences are evaluated along the argument of the function, so that
any change of the argument in between is followed. A candidate is a kink if the function or one of its first derivatives
jumps there, which they do not in ``logaddexp``. A function with other operations, such as roots and rounding, is also
scanned on a grid.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from twolayer.core.precision import double

# Places beyond this distance are not looked at, and zeros closer than the spacing of the grid may be missed.
REACH, GRID = 40.0, 16001
# More kinks than this are an oscillation, which rules between kinks do not resolve.
MOST = 24
# Distances from a place at which both sides are compared, and the jump, relative to the size, that makes it a kink.
NEAR, FAR, JUMP = 1e-9, 1e-7, 1e-5
# Derivatives whose jumps count.
ORDERS = 3

DIFFERENCES = {"max", "min", "lt", "le", "gt", "ge", "eq", "ne", "nextafter"}
AT_ZERO = {"abs", "sign"}
SMOOTH = {
    *("add", "sub", "mul", "neg", "exp", "exp2", "expm1", "tanh", "sinh", "cosh", "sin", "cos", "atan", "asinh", "erf"),
    *("erfc", "logistic", "integer_pow", "square", "select_n", "convert_element_type", "copy", "broadcast_in_dim"),
    *("stop_gradient", "and", "or", "not", "is_finite", "clamp", "reshape", "squeeze", "copy_p", "xor", "slice"),
    *("dot_general", "reduce_sum", "reduce_prod", "cumsum", "cumprod", "concatenate", "transpose", "expand_dims"),
    *("dynamic_slice", "gather", "iota", "rev", "pad", "split"),
}
# Lines through the space of several fields along which kinks are looked for: axes, and directions in between.
LINES = 4


def kinks_in(function: Callable[[Any], Any]) -> tuple[float, ...] | None:
    """Return the places within ``REACH`` where a JAX function of one number has a kink or a jump.

    None if there are more than ``MOST``: the function is then as unknown to a rule as one that was never looked at.
    """
    with jax.ensure_compile_time_eval(), double():  # also while another program is traced
        return _cached(function) if _is_hashable(function) else _cached.__wrapped__(function)


def has_kinks(function: Callable[[Any], Any], k: int) -> bool:
    """Return whether a JAX function of an array of k fields has a kink or a jump on some lines through their space."""
    with jax.ensure_compile_time_eval(), double():
        return _some_line(function, k) if _is_hashable(function) else _some_line.__wrapped__(function, k)


@lru_cache(maxsize=256)
def _some_line(function: Callable[[Any], Any], k: int) -> bool:
    closed = jax.make_jaxpr(function)(jnp.zeros(k))
    surfaces = _surfaces(closed.jaxpr, closed.consts, jnp.zeros(k))
    if surfaces.is_known and not surfaces.values:
        return False
    rng = np.random.default_rng(0)
    directions = np.concatenate([np.eye(k), rng.standard_normal((LINES if k > 1 else 0, k))])
    return any(
        kinks_in(lambda t, x=start, d=direction: function(x + t * d)) != ()
        for start, direction in zip(0.5 * rng.standard_normal(directions.shape), directions, strict=True)
    )


def _is_hashable(function: object) -> bool:
    try:
        hash(function)
    except TypeError:
        return False
    return True


@lru_cache(maxsize=256)
def _cached(function: Callable[[Any], Any]) -> tuple[float, ...] | None:
    closed = jax.make_jaxpr(function)(jnp.zeros(()))
    surfaces = _surfaces(closed.jaxpr, closed.consts, jnp.zeros(()))
    is_known = surfaces.is_known
    candidates: set[float] = set()
    if surfaces.values:
        values = jax.jit(jax.vmap(lambda x: jnp.concatenate(_surfaces(closed.jaxpr, closed.consts, x).values)))

        def differences(x: np.ndarray) -> np.ndarray:
            return np.asarray(values(jnp.asarray(x)))

        candidates |= set(_zeros(differences))
    derivatives = _derivatives(function)
    if not is_known:
        candidates |= set(_scanned(derivatives))
    if not candidates:
        return ()
    places = np.array(sorted(candidates))
    places = places[np.concatenate([[True], np.diff(places) > 1e-9])]
    kinks = places[_is_kink(derivatives, places)]
    return tuple(float(kink) for kink in kinks) if len(kinks) <= MOST else None


class _Surfaces:
    """The numbers whose zeros may be kinks, at one argument, and whether all operations are known."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.is_known = True


def _surfaces(jaxpr: Any, consts: Any, *args: Any) -> _Surfaces:
    """Evaluate a program and collect the numbers whose zeros may be kinks."""
    surfaces = _Surfaces()
    _evaluate(jaxpr, consts, args, surfaces)
    return surfaces


def _evaluate(jaxpr: Any, consts: Any, args: Any, surfaces: _Surfaces) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        inner = _inner(eqn)
        if inner is not None:
            outputs = _evaluate(inner.jaxpr, inner.consts, inputs, surfaces)
        else:
            _collect(eqn.primitive.name, inputs, surfaces)
            outputs = eqn.primitive.bind(*inputs, **eqn.params)
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
        values |= dict(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _inner(eqn: Any) -> Any:
    """Return the program that an operation calls, such as that of a function compiled by itself."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(name)
        if inner is not None and eqn.primitive.name not in ("while", "scan", "cond"):
            return inner if hasattr(inner, "consts") else jex.ClosedJaxpr(inner, ())
    return None


def _collect(name: str, inputs: list[Any], surfaces: _Surfaces) -> None:
    if not all(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in inputs):
        surfaces.is_known &= name in SMOOTH
    elif name in DIFFERENCES:
        surfaces.values.append(jnp.ravel(inputs[0] - inputs[1]))
    elif name in AT_ZERO:
        surfaces.values.append(jnp.ravel(inputs[0]))
    elif name == "clamp":
        surfaces.values += [jnp.ravel(inputs[1] - inputs[0]), jnp.ravel(inputs[1] - inputs[2])]
    else:
        surfaces.is_known &= name in SMOOTH


def _derivatives(function: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function and its first derivatives, (orders, places)."""

    def all_orders(x: jax.Array) -> jax.Array:
        orders, current = [], function
        for _ in range(ORDERS + 1):
            orders.append(current(x))
            current = _slope(current)
        return jnp.stack([jnp.asarray(order, x.dtype) for order in orders])

    compiled = jax.jit(jax.vmap(all_orders, out_axes=1))
    return lambda x: np.asarray(compiled(jnp.asarray(x)))


def _slope(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.jvp(function, (x,), (jnp.ones_like(x),))[1]


def _zeros(differences: Callable[[np.ndarray], np.ndarray]) -> list[float]:
    """Return the zeros and sign changes of several functions, each row of values for one place."""
    z = np.linspace(-REACH, REACH, GRID)
    sign = np.sign(differences(z))
    sign = np.where(np.isfinite(sign), sign, 0.0)
    exact = (sign[1:-1] == 0.0) & ((sign[:-2] != 0.0) | (sign[2:] != 0.0))
    zeros = set(z[1:-1][np.any(exact, axis=1)].tolist())
    place, column = np.nonzero(sign[:-1] * sign[1:] < 0.0)
    low, high, left = z[place], z[place + 1], sign[place, column]
    for _ in range(60 if len(place) else 0):
        middle = 0.5 * (low + high)
        is_left = np.sign(differences(middle)[np.arange(len(place)), column]) == left
        low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
    return sorted(zeros | set(rounded(high).tolist()))


def _scanned(derivatives: Callable[[np.ndarray], np.ndarray]) -> list[float]:
    """Return places at which a function or its slope changes far more than between other points of a grid."""
    z = np.linspace(-REACH, REACH, GRID)
    places: set[float] = set()
    for order in range(2):
        values = derivatives(z)[order]
        steps = np.abs(np.diff(np.where(np.isfinite(values), values, 0.0)))
        around = np.maximum(np.roll(steps, 2), np.roll(steps, -2))
        suspects = np.flatnonzero(steps / 8.0 > around + JUMP * (1.0 + np.median(steps)))
        if len(suspects) > 4 * MOST:
            continue
        low, high = z[suspects], z[suspects + 1]
        for _ in range(48 if len(suspects) else 0):
            middle = 0.5 * (low + high)
            left, centre, right = (derivatives(x)[order] for x in (low, middle, high))
            is_left = np.abs(centre - left) > np.abs(right - centre)
            low, high = np.where(is_left, low, middle), np.where(is_left, middle, high)
        places |= set(rounded(high).tolist())
    return sorted(places)


def _is_kink(derivatives: Callable[[np.ndarray], np.ndarray], places: np.ndarray) -> np.ndarray:
    """Whether the function or one of its derivatives jumps at each place."""
    near, far = (np.abs(derivatives(places + distance) - derivatives(places - distance)) for distance in (NEAR, FAR))
    # The size of each order nearby, since smooth functions differ by rounding of this size.
    size = 1.0 + np.max([np.abs(derivatives(places + offset)) for offset in (-0.5, -FAR, FAR, 0.5)], axis=0)
    with np.errstate(invalid="ignore"):
        jumps = (near > JUMP * size) & (near > 0.5 * far)
    return np.any(np.where(np.isfinite(near), jumps, False), axis=0)


def rounded(numbers: np.ndarray, error: float = 4e-15) -> np.ndarray:
    """Round numbers that are known up to an error to those of few digits that are meant."""
    short = np.round(numbers, 12)
    return np.where(np.abs(short - numbers) < error * (1.0 + np.abs(numbers)), short, numbers)
