"""Recognise the activations that users give as functions, so that engines made for known ones serve them too.

A function is compared with the named activations, and with families whose parameters are read off its values: piecewise
linear functions between the kinks that were found, polynomials, rescaled error functions and hyperbolic tangents, silu,
gelu and softplus of any slope, waves and Gaussian bumps. It is one of them if values and slopes agree up to rounding on
two other sets of points. Simulations and clouds of points still call the function of the user.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from twolayer.core.precision import double
from twolayer.expectation.closed.bumps import gaussian_sum
from twolayer.expectation.closed.waves import wave_of
from twolayer.problem import AbstractActivation, Custom, Problem
from twolayer.problem.activations import (
    Cosine,
    GaussianBump,
    Gelu,
    GeluTanh,
    PiecewiseLinear,
    PolynomialActivation,
    Rescaled,
    Silu,
    Softplus,
    as_activation,
    names,
)
from twolayer.problem.activations.found_kinks import MOST, rounded
from twolayer.specification.fields import replaced

# Where functions are compared: near the origin at irregular distances, and further out.
NEAR = np.sin(np.arange(1.0, 122.0)) * 6.0
OUT = np.random.default_rng(0).uniform(-40.0, 40.0, 64)
POINTS = np.concatenate([NEAR, OUT])
# Values and slopes agree up to rounding of this size.
OF_VALUE, OF_SLOPE = 2e-14, 4e-13
# Where a bounded function has reached its limits.
LIMIT = 36.0
# Where softplus and gelu are lines, for slopes above a tenth.
LINE = 1e3
# The largest degree of a polynomial, and points through which it is laid.
DEGREE, LAID = 12, 3.0 * np.cos(np.pi * (np.arange(40) + 0.5) / 40)


def recognised(activation: AbstractActivation) -> AbstractActivation:
    """Return the known activation that a user's function is, or the activation itself."""
    if not isinstance(activation, Custom):
        return activation
    with jax.ensure_compile_time_eval(), double():  # also while another program is traced
        try:
            hash(activation)
        except TypeError:
            return _known.__wrapped__(activation)
        return _known(activation)


def with_known_units(problem: Problem) -> Problem:
    """Return the problem with recognised activations of student and target in place of a user's functions."""
    student = replaced(problem.student, activation=recognised(problem.student.activation))
    target: Any = problem.target
    for name in ("activation", "link"):
        unit = getattr(target, name, None)
        if isinstance(unit, AbstractActivation):
            target = replaced(target, **{name: recognised(unit)})
    return replaced(problem, student=student, target=target)


@lru_cache(maxsize=64)
def _known(custom: Custom) -> AbstractActivation:
    values = _function(custom)
    given = values(POINTS)
    if not np.all(np.isfinite(given)):
        return custom
    for candidate in itertools.chain(_named(given), _fitted(custom, values)):
        if _agrees(_function(candidate)(POINTS), given) and _slope_at_zero(candidate) == _slope_at_zero(custom):
            return candidate
    return custom


def _function(activation: AbstractActivation) -> Callable[[np.ndarray], np.ndarray]:
    compiled = jax.jit(lambda x: jnp.stack([activation(x), activation.derivative(x)]))
    return lambda x: np.asarray(compiled(jnp.asarray(x)))


def _slope_at_zero(activation: AbstractActivation) -> float:
    """Return the slope at zero, which a row of zero weights has; it is a convention at a kink."""
    return round(float(activation.derivative(jnp.zeros(()))), 12)


def _agrees(candidate: np.ndarray, given: np.ndarray) -> bool:
    size = 1.0 + np.abs(given)
    allowed = np.stack([OF_VALUE * (size[0] + np.abs(POINTS)), OF_SLOPE * size[1]])
    return bool(np.all(np.abs(candidate - given) <= allowed))


@lru_cache(maxsize=1)
def _table() -> tuple[tuple[AbstractActivation, ...], np.ndarray]:
    """Return the named activations and their values, all in one program."""
    activations = tuple(as_activation(name) for name in names())
    compiled = jax.jit(lambda x: jnp.stack([activation(x) for activation in activations]))
    return activations, np.asarray(compiled(jnp.asarray(POINTS)))


def _named(given: np.ndarray) -> Iterator[AbstractActivation]:
    activations, values = _table()
    close = np.all(np.abs(values - given[0]) <= 1e-12 * (1.0 + np.abs(given[0])), axis=1)
    return (activation for activation, is_close in zip(activations, close, strict=True) if is_close)


def _fitted(custom: Custom, values: Callable[[np.ndarray], np.ndarray]) -> Iterator[AbstractActivation]:
    if custom.kinks:
        candidate = _piecewise_linear(custom, values)
        if candidate is not None:
            yield candidate
        return
    if not custom.has_known_kinks:
        return
    yield from _bounded(values)
    yield from _silu(values)
    yield from _rectifying(values)
    yield from _polynomial(values)
    yield from _wave(custom)
    yield from _bump(custom)


def _piecewise_linear(custom: Custom, values: Callable[[np.ndarray], np.ndarray]) -> AbstractActivation | None:
    """Return the continuous function that is linear between the kinks, from its slopes there and a value."""
    kinks = np.array(custom.kinks)
    middle = np.concatenate([[kinks[0] - 1.0], 0.5 * (kinks[1:] + kinks[:-1]), [kinks[-1] + 1.0]])
    value, slope = values(middle)
    slope = rounded(slope)
    changes = np.diff(slope)
    is_kink = np.abs(changes) > 1e-12
    if not np.any(is_kink):
        return None
    offset = float(rounded(value[:1] - slope[0] * middle[0])[0])
    at_zero = _slope_at_zero(custom) if 0.0 in custom.kinks else None
    return PiecewiseLinear(tuple(kinks[is_kink]), tuple(changes[is_kink]), float(slope[0]), offset, at_zero)


def _bounded(values: Callable[[np.ndarray], np.ndarray]) -> Iterator[AbstractActivation]:
    """Return the rescaled sigmoidal functions with the limits and the slope at zero of a function."""
    (low, centre, high), slopes = values(np.array([-LIMIT, 0.0, LIMIT]))
    amplitude, offset = 0.5 * (high - low), 0.5 * (high + low)
    if abs(slopes[0]) + abs(slopes[2]) > 1e-12 or abs(amplitude) < 1e-12 or abs(centre - offset) > 1e-12:
        return
    for name, steepness in (("erf", np.sqrt(2.0 / np.pi)), ("tanh", 1.0)):
        numbers = rounded(np.array([amplitude, slopes[1] / (amplitude * steepness), offset]))
        if numbers[1] > 0.0:
            yield Rescaled(name, *map(float, numbers))


def _silu(values: Callable[[np.ndarray], np.ndarray]) -> Iterator[AbstractActivation]:
    at_one = values(np.ones(1))[0, 0]
    if 0.0 < at_one < 1.0 and at_one != 0.5:
        yield Silu(float(rounded(np.log([at_one / (1.0 - at_one)]))[0]))


def _rectifying(values: Callable[[np.ndarray], np.ndarray]) -> Iterator[AbstractActivation]:
    """Return softplus and gelu with the limits of a function on both sides and its values between."""
    (low, centre, _), (left, _, right) = values(np.array([-LINE, 0.0, LINE]))
    if not np.isfinite(low + right) or abs(left) > 1e-12 or abs(right) < 1e-12:
        return
    if abs(centre - low) > 1e-12:
        amplitude, offset = (rounded(np.array([(centre - low) / np.log(2.0), low]))).tolist()
        units = [(Softplus(), amplitude, offset)] if right / amplitude > 0.0 else []
    else:
        places = np.array([10.0, 3.0, 1.0, 0.3, 0.1])
        shares = (values(places)[0] - centre) / (right * places)
        rates = ndtri(shares[(shares > 0.55) & (shares < 0.98)]) / places[(shares > 0.55) & (shares < 0.98)]
        units = [(Gelu(), right / float(rounded(rates[:1], 1e-14)[0]), float(low))] if len(rates) else []
    for base, amplitude, offset in units:
        rate = float(rounded(np.array([right / amplitude]), 1e-14)[0])
        yield Rescaled(base, float(rounded(np.array([amplitude]), 1e-14)[0]), rate, offset)


def _wave(custom: Custom) -> Iterator[AbstractActivation]:
    wave = wave_of(custom)
    if wave is None:
        return
    amplitude, phase = abs(wave.amplitude), float(np.angle(wave.amplitude))
    if abs(phase) > 0.75 * np.pi:  # minus a cosine
        amplitude, phase = -amplitude, phase - np.copysign(np.pi, phase)
    quarter = np.copysign(0.5 * np.pi, phase)
    phase = float(quarter) if abs(phase - quarter) < 1e-13 else float(rounded(np.array([phase]), 1e-13)[0])
    amplitude, frequency, mean = rounded(np.array([amplitude, wave.number, wave.mean]), 1e-13).tolist()
    yield _scaled(Cosine(frequency, phase), amplitude, mean)


def _bump(custom: Custom) -> Iterator[AbstractActivation]:
    bump = gaussian_sum(custom)
    if bump is None or len(bump.c) > 1:
        return
    centre, width = float(np.real(bump.beta[0] / bump.alpha[0])), float(bump.alpha[0] ** -0.5)
    height, mean, centre, width = rounded(np.array([bump.c[0], bump.mean, centre, width]), 1e-14).tolist()
    yield _scaled(GaussianBump(centre, width), height, mean)


def _scaled(base: AbstractActivation, amplitude: float, offset: float) -> AbstractActivation:
    return base if amplitude == 1.0 and offset == 0.0 else Rescaled(base, amplitude, 1.0, offset)


def _polynomial(values: Callable[[np.ndarray], np.ndarray]) -> Iterator[AbstractActivation]:
    y = values(LAID)[0]
    coefficients = np.polynomial.chebyshev.chebfit(LAID / 3.0, y, DEGREE)
    shortened = np.polynomial.chebyshev.cheb2poly(coefficients)  # without the last ones where they are exactly zero
    powers = np.pad(shortened, (0, DEGREE + 1 - len(shortened))) / 3.0 ** np.arange(DEGREE + 1)
    size = np.max(np.abs(y))
    kept = np.abs(powers) * 3.0 ** np.arange(DEGREE + 1) > 1e-10 * size
    if np.any(kept) and not np.all(kept):
        degree = int(np.flatnonzero(kept)[-1])
        yield PolynomialActivation(tuple(float(c) for c in rounded(np.where(kept, powers, 0.0)[: degree + 1], 1e-12)))


def _words(activation: AbstractActivation) -> str:
    """Return what a known activation is, in words."""
    match activation:
        case Silu(slope=slope) if slope != 1.0:
            return f"silu, slope {slope:g}"
        case GeluTanh():
            return "gelu_tanh, the GELU with a hyperbolic tangent"
        case Cosine(frequency=frequency, phase=phase):
            if activation.parity == -1:
                return f"{'-' if phase > 0.0 else ''}sin({frequency:g} x)"
            return f"cos({frequency:g} x{f' {phase:+.6g}' if phase else ''})"
        case GaussianBump(centre=centre, width=width):
            return f"a Gaussian bump at {centre:g}, width {width:g}"
        case Rescaled(base=base, amplitude=amplitude, rate=rate, offset=offset):
            shifted = f" + {offset:g}" if offset else ""
            if isinstance(base, Cosine | GaussianBump):  # with a scale of its own
                return f"{amplitude:g} times {_words(base)}{shifted}"
            return f"{amplitude:g} {type(base).__name__.lower()}({rate:g} x){shifted}"
        case PolynomialActivation():
            return f"a polynomial of degree {activation.growth}"
        case PiecewiseLinear(kinks=(0.0,), changes=(change,), slope=slope, offset=0.0) if slope + change == 1.0:
            return f"leaky relu, slope {slope:g}" if slope else "relu"
        case PiecewiseLinear(kinks=(0.0,), changes=(2.0,), slope=-1.0, offset=0.0):
            return "abs"
        case PiecewiseLinear():
            return "piecewise linear"
    return next((name for name, cls in names().items() if cls is type(activation)), str(activation))


def notes_on(problem: Problem) -> tuple[str, ...]:
    """Return what was found out about the functions that a user gave, in sentences."""
    owners = [("student", problem.student.activation)]
    unit = getattr(problem.target, "activation", getattr(problem.target, "link", None))
    owners += [("target", unit)] if isinstance(unit, AbstractActivation) else []
    notes = []
    for owner, activation in owners:
        if not isinstance(activation, Custom):
            continue
        known = recognised(activation)
        if known is not activation:
            notes.append(f"The {owner}'s activation {activation} is recognised as {_words(known)}.")
        if not activation.has_known_kinks:
            notes.append(
                f"The {owner}'s activation {activation} has more than {MOST} kinks or jumps, too many for rules "
                "between them: its averages are those of an unknown function, with the larger error of these."
            )
        elif activation.kinks:
            places = ", ".join(f"{kink:g}" for kink in activation.kinks)
            notes.append(f"The {owner}'s activation {activation} has kinks or jumps at {places}.")
    fields = () if problem.target.units is not None else problem.target.kinks or ()
    if problem.target.kinks is None and problem.target.units is None:
        notes.append("The target has kinks or jumps that are not at a few places along single fields.")
    for r, kinks in enumerate(fields, start=1):
        if kinks:
            notes.append(f"The target has kinks or jumps along z{r} at {', '.join(f'{kink:g}' for kink in kinks)}.")
    if not problem.is_quadratic:
        notes.append(
            f"The averages of {problem.loss} with noise {problem.noise} do not come apart: each is over all fields at "
            "once."
        )
    return tuple(notes)
