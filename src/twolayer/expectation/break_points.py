"""Find where a function of one number needs nodes: its kinks, and the ends of pieces that a short rule resolves.

A user's function may have any shape: when the field is long, a bump that is narrower than the distance of the nodes of
a rule is missed by every order in the same way. So the function is evaluated on a fine grid of its argument and divided
into pieces on which it is a polynomial to the requested accuracy. Rules that break at the ends of these pieces resolve
the function at any length of the field.
"""

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.core.precision import double
from twolayer.problem import AbstractActivation, AbstractTarget
from twolayer.problem.ridge_form import Along

# The function is evaluated at distances of `NEAR[1]` up to `NEAR[0]`, and of `FAR[1]` from there to `FAR[0]`; narrower
# features are missed.
NEAR, FAR = (40.0, 0.005), (400.0, 0.05)
# Nodes on each piece, and tolerances of the polynomial through them, the next of which is used if there are too many.
NODES, TOLERANCES = 24, (1e-9, 1e-6, 1e-3)
CHECKS = 2 * NODES + 1
# Largest number of ends of pieces besides kinks. An oscillation over the whole line has more, and gets a selection.
MOST = 8
# Largest number of pieces on each level of the subdivision, for functions that never fit.
MOST_PIECES = 256
# Pieces shorter than this indicate an undeclared kink.
SHORTEST = 1e-13
MOST_KINKS = 16
# Kinks are looked for until no new one is found, or so often.
ROUNDS = 4
# Ratio of the lengths of pieces that are tried around a place.
STEP = 2.0**0.5
# Waves are not followed below this length.
FINEST = 0.02
# Values are computed in blocks of one size, so that the function is compiled once.
BLOCK = 4096

Function = Callable[[np.ndarray], np.ndarray]
R = TypeVar("R")


class Breaks(NamedTuple):
    """The kinks of a function, including undeclared ones, and the ends of the pieces on which a short rule resolves it.

    ``is_settled`` says whether these pieces resolve it everywhere; an oscillation over the whole line needs more, and
    ``wave`` is the length of pieces that resolve it. ``scales`` are some places with the half-length of the longest
    piece around them that a short rule resolves.
    """

    kinks: tuple[float, ...]
    ends: tuple[float, ...]
    is_settled: bool
    wave: float = 0.0
    scales: tuple[tuple[float, float], ...] = ()


# The breaks of a polynomial.
WHOLE = Breaks((), (), True)


def compiled(function: Callable[[jax.Array], jax.Array]) -> Function:
    """Return the function on NumPy arrays of any length, with one or more values for each number."""
    with_columns = jax.jit(function)

    def values(x: np.ndarray) -> np.ndarray:
        padded = np.concatenate([x, np.zeros(-len(x) % BLOCK)]).reshape(-1, BLOCK)
        with double(), np.errstate(all="ignore"):
            return np.concatenate([np.asarray(with_columns(jnp.asarray(block))) for block in padded])[: len(x)]

    return values


def grid() -> np.ndarray:
    """Return the places at which a function is evaluated to find its features, symmetric around zero."""
    half = np.concatenate([np.arange(0.0, NEAR[0], NEAR[1]), np.arange(NEAR[0], FAR[0] + FAR[1], FAR[1])])
    return np.concatenate([-half[:0:-1], half])


class _Pieces:
    """Subdivision of the line between given kinks."""

    nodes = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    weights = (-1.0) ** np.arange(NODES) * np.sin(np.pi * (np.arange(NODES) + 0.5) / NODES)

    def __init__(self, function: Function):
        self.function = function
        self.x = grid()
        half = self.x[len(self.x) // 2 :]
        self.values = function(self.x)
        self.is_finite = np.all(np.isfinite(self.values), axis=1)
        size = np.where(self.is_finite[:, None], np.abs(self.values), 0.0)
        by_distance = np.maximum(size[len(half) - 1 :], size[: len(half)][::-1])
        self.distance, self.largest = half, np.maximum.accumulate(by_distance, axis=0)

    def scale(self, low: float, high: float) -> np.ndarray:
        """Return the largest values up to the distance of a piece, relative to which its accuracy is measured."""
        near = self.largest[np.searchsorted(self.distance, 12.0)]
        place = min(np.searchsorted(self.distance, max(abs(low), abs(high))), len(self.distance) - 1)
        return np.maximum(self.largest[place], 1e-12 * near)

    def fits(self, pieces: list[tuple[float, float]], tolerance: float) -> list[bool]:
        """Return whether the polynomial through Chebyshev nodes approximates the function on each piece."""
        low, high = np.array(pieces).T
        centre, half = 0.5 * (low + high)[:, None], 0.5 * (high - low)[:, None]
        check_nodes = np.linspace(-1.0, 1.0, CHECKS + 2)[1:-1]
        places = np.concatenate([centre + half * self.nodes, centre + half * check_nodes], axis=1)
        values = self.function(places.ravel()).reshape(*places.shape, -1)
        results = []
        for i, (a, b) in enumerate(pieces):
            first, last = np.searchsorted(self.x, a, side="right"), np.searchsorted(self.x, b, side="left")
            x = np.concatenate([check_nodes, (self.x[first:last] - centre[i]) / half[i]])
            truth = np.concatenate([values[i, NODES:], self.values[first:last]])
            results.append(self._fits_one(values[i, :NODES], x, truth, tolerance * self.scale(a, b)))
        return results

    def _fits_one(self, nodes: np.ndarray, x: np.ndarray, truth: np.ndarray, tolerance: np.ndarray) -> bool:
        if not (np.all(np.isfinite(nodes)) and np.all(np.isfinite(truth))):
            return True  # values that overflow are counted with the tails
        gap = x[:, None] - self.nodes[None, :]
        shares = self.weights[None, :] / np.where(gap == 0.0, 1e-300, gap)
        shares = shares / np.sum(shares, axis=1)[:, None]
        return bool(np.all(np.abs(shares @ nodes - truth) <= tolerance[None, :] + 1e-290))

    def divide(self, kinks: tuple[float, ...], tolerance: float) -> tuple[list[tuple[float, float]], list[float]]:
        """Divide the line into pieces on which a polynomial fits; also return the places around which none fits."""
        level = list(zip((-FAR[0], *kinks), (*kinks, FAR[0]), strict=True))
        done, unknown = [], []
        while level:
            if len(level) > MOST_PIECES:
                return done + level, unknown
            further = []
            for (low, high), fits in zip(level, self.fits(level, tolerance), strict=True):
                if fits:
                    done.append((low, high))
                elif high - low < SHORTEST * max(1.0, abs(low)):
                    unknown.append(0.5 * (low + high))
                else:
                    further += [(low, 0.5 * (low + high)), (0.5 * (low + high), high)]
            level = further
        return sorted(done), sorted(unknown)

    def merge(self, pieces: list[tuple[float, float]], kinks: tuple[float, ...], tolerance: float) -> list[float]:
        """Join neighbouring pieces wherever a polynomial fits their union, and return the remaining inner ends."""
        ends, start = [], pieces[0][0]
        for (_, high), (_, beyond) in pairwise(pieces):
            if high in kinks:
                start = high
            elif not self.fits([(start, beyond)], tolerance)[0]:
                ends.append(high)
                start = high
        return ends

    def is_kink(self, end: float, pieces: list[tuple[float, float]]) -> bool:
        """Whether a polynomial fits on both sides of a place but not across, however short the piece."""
        low = max(a for a, _ in pieces if a < end)
        high = min(b for _, b in pieces if b > end)
        width = min(end - low, high - end) / 16.0
        return not self.fits([(end - width, end + width)], TOLERANCES[0])[0]

    def scales(self, ends: list[float], kinks: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
        """Return places between the ends of pieces, with the half-length of the longest piece around each that fits."""
        places = np.array(sorted({*ends, *kinks}))
        if len(places) < 2:
            return ()
        gaps = np.diff(places)
        points = np.unique((places[:-1, None] + gaps[:, None] * np.linspace(0.0, 1.0, 5)).ravel())
        walls = np.array([-np.inf, *kinks, np.inf])
        side = np.searchsorted(walls, points, side="right")
        left, right = walls[side - 1], walls[np.minimum(side, len(walls) - 1)]
        half, length = np.zeros(len(points)), float(gaps.max())
        while np.any(half == 0.0) and length > 0.25 * gaps.min():
            rest = np.flatnonzero(half == 0.0)
            tried = [(max(points[i] - length, left[i]), min(points[i] + length, right[i])) for i in rest]
            half[rest[np.array(self.fits(tried, TOLERANCES[0]))]] = length
            length /= STEP
        return tuple(zip(points.tolist(), np.maximum(half, length).tolist(), strict=True))

    def wave(self) -> float:
        """Return a length of pieces on which a polynomial fits near the origin."""
        length = NEAR[0]
        while length > FINEST:
            starts = np.arange(-0.5 * NEAR[0], 0.5 * NEAR[0], length)
            if all(self.fits([(start, start + length) for start in starts], TOLERANCES[0])):
                return length
            length *= 0.5
        return length


def breaks_of(function: Callable[[jax.Array], jax.Array], kinks: tuple[float, ...]) -> Breaks:
    """Return where a rule for a function must break, for any length of the field.

    Parameters
    ----------
    function
        A JAX function of numbers (n,) with one or more values for each, (n, columns).
    kinks
        The declared kinks of the function.

    Returns
    -------
    Kinks, including undeclared ones, and ends of pieces.
    """
    pieces = _Pieces(compiled(function))
    all_kinks, has_few = _all_kinks(pieces, tuple(sorted(kinks)))
    ends: list[float] = []
    for tolerance in TOLERANCES:
        leaves, _ = pieces.divide(all_kinks, tolerance)
        if len(leaves) < MOST_PIECES:
            ends = [end for end in pieces.merge(leaves, all_kinks, tolerance) if abs(end) <= FAR[0] / 2]
            if len(ends) <= MOST:
                scales = pieces.scales(ends, all_kinks)
                return Breaks(all_kinks, tuple(ends), has_few, 0.0 if has_few else pieces.wave(), scales)
    # A selection of the ends, so that at least the interval with the features is not missed.
    some = np.linspace(0, len(ends) - 1, MOST).round().astype(int) if ends else ()
    return Breaks(all_kinks, tuple(ends[i] for i in some), False, pieces.wave())


def _all_kinks(pieces: _Pieces, declared: tuple[float, ...]) -> tuple[tuple[float, ...], bool]:
    """Return the declared kinks with those that the subdivision finds, and whether these are few."""
    kinks = declared
    for _ in range(ROUNDS):
        leaves, unknown = pieces.divide(kinks, TOLERANCES[-1])
        merged = [place for i, place in enumerate(unknown) if i == 0 or place - unknown[i - 1] > 1e-9]
        if len(merged) > MOST_KINKS or len(leaves) >= MOST_PIECES:
            return kinks, len(merged) <= MOST_KINKS
        # A kink where two pieces meet, such as zero, is seen in neither of them.
        ends = pieces.merge(leaves, kinks, TOLERANCES[-1]) if leaves else []
        breaks = {round(place, 12) for place in (*merged, *(end for end in ends if pieces.is_kink(end, leaves)))}
        if breaks <= set(kinks):
            break
        kinks = tuple(sorted({*kinks, *breaks}))
    return kinks, True


@lru_cache(maxsize=64)
def _activation_breaks(activation: AbstractActivation) -> Breaks:
    return breaks_of(lambda x: jnp.stack([activation(x), activation.derivative(x)], axis=1), activation.kinks)


@lru_cache(maxsize=64)
def _line_breaks(function: Along) -> Breaks:
    return breaks_of(lambda x: function(x)[:, None], function.kinks)


@lru_cache(maxsize=64)
def _target_breaks(target: AbstractTarget) -> Breaks:
    return breaks_of(lambda x: target(x[:, None])[:, None], (target.kinks or ((),))[0])


def cached_breaks(cached: "_lru_cache_wrapper[R]", subject: object) -> R:
    """Return what is cached, or compute it for a function with arrays, which cannot be a key of the cache."""
    with jax.ensure_compile_time_eval():  # also while another program is traced
        try:
            hash(subject)
        except TypeError:
            return cached.__wrapped__(subject)
        return cached(subject)


def activation_breaks(activation: AbstractActivation) -> Breaks:
    """Return kinks and ends of pieces of an activation and its slope, in its argument."""
    return WHOLE if activation.coefficients is not None else cached_breaks(_activation_breaks, activation)


def line_breaks(function: Along) -> Breaks:
    """Return kinks and ends of pieces of a target along a line, in the field along it."""
    return cached_breaks(_line_breaks, function)


def target_breaks(target: AbstractTarget) -> Breaks:
    """Return kinks and ends of pieces of a target of one field, in that field."""
    if target.units is not None:
        return activation_breaks(target.units.activation)
    return WHOLE if target.polynomial is not None else cached_breaks(_target_breaks, target)
