"""Find where a function of one number needs nodes: its kinks, and the ends of pieces that a short rule resolves.

A user's function may have any shape: when the field is long, a bump that is narrower than the distance of the nodes of
a rule is missed by every order in the same way. So the function is evaluated on a fine grid of its argument and divided
into pieces on which it is a polynomial to the requested accuracy. Rules that break at the ends of these pieces resolve
the function at any length of the field.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.core.precision import double
from twolayer.problem import AbstractActivation, AbstractTarget

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
# Values are computed in blocks of one size, so that the function is compiled once.
BLOCK = 4096

Function = Callable[[np.ndarray], np.ndarray]


class Breaks(NamedTuple):
    """The kinks of a function, including undeclared ones, and the ends of the pieces on which a short rule resolves it.

    ``is_settled`` says whether these pieces resolve it everywhere; an oscillation over the whole line needs more.
    """

    kinks: tuple[float, ...]
    ends: tuple[float, ...]
    is_settled: bool


# The breaks of a polynomial.
WHOLE = Breaks((), (), True)


def _compiled(function: Callable[[jax.Array], jax.Array]) -> Function:
    """Return the function on NumPy arrays of any length, with one or more values for each number."""
    with_columns = jax.jit(function)

    def values(x: np.ndarray) -> np.ndarray:
        padded = np.concatenate([x, np.zeros(-len(x) % BLOCK)]).reshape(-1, BLOCK)
        with double(), np.errstate(all="ignore"):
            return np.concatenate([np.asarray(with_columns(jnp.asarray(block))) for block in padded])[: len(x)]

    return values


class _Pieces:
    """Subdivision of the line between given kinks."""

    nodes = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
    weights = (-1.0) ** np.arange(NODES) * np.sin(np.pi * (np.arange(NODES) + 0.5) / NODES)

    def __init__(self, function: Function):
        self.function = function
        half = np.concatenate([np.arange(0.0, NEAR[0], NEAR[1]), np.arange(NEAR[0], FAR[0] + FAR[1], FAR[1])])
        self.x = np.concatenate([-half[:0:-1], half])
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
    pieces = _Pieces(_compiled(function))
    all_kinks = tuple(sorted(kinks))
    _, unknown = pieces.divide(all_kinks, TOLERANCES[-1])
    merged = [place for i, place in enumerate(unknown) if i == 0 or place - unknown[i - 1] > 1e-9]
    if len(merged) <= MOST_KINKS:
        all_kinks = tuple(sorted({*all_kinks, *(round(place, 12) for place in merged)}))
    ends: list[float] = []
    for tolerance in TOLERANCES:
        leaves, _ = pieces.divide(all_kinks, tolerance)
        if len(leaves) < MOST_PIECES:
            ends = [end for end in pieces.merge(leaves, all_kinks, tolerance) if abs(end) <= FAR[0] / 2]
            if len(ends) <= MOST:
                return Breaks(all_kinks, tuple(ends), len(merged) <= MOST_KINKS)
    # A selection of the ends, so that at least the interval with the features is not missed.
    some = np.linspace(0, len(ends) - 1, MOST).round().astype(int) if ends else ()
    return Breaks(all_kinks, tuple(ends[i] for i in some), False)


@lru_cache(maxsize=64)
def _activation_breaks(activation: AbstractActivation) -> Breaks:
    return breaks_of(lambda x: jnp.stack([activation(x), activation.derivative(x)], axis=1), activation.kinks)


@lru_cache(maxsize=64)
def _target_breaks(target: AbstractTarget) -> Breaks:
    return breaks_of(lambda x: target(x[:, None])[:, None], (target.kinks or ((),))[0])


def _cached_breaks(cached: Any, subject: Any) -> Breaks:
    """Return cached breaks, or compute them for a function with arrays, which cannot be a key of the cache."""
    with jax.ensure_compile_time_eval():  # also while another program is traced
        try:
            hash(subject)
        except TypeError:
            return cached.__wrapped__(subject)
        return cached(subject)


def activation_breaks(activation: AbstractActivation) -> Breaks:
    """Return kinks and ends of pieces of an activation and its slope, in its argument."""
    return WHOLE if activation.coefficients is not None else _cached_breaks(_activation_breaks, activation)


def target_breaks(target: AbstractTarget) -> Breaks:
    """Return kinks and ends of pieces of a target of one field, in that field."""
    if target.units is not None:
        return activation_breaks(target.units.activation)
    return WHOLE if target.polynomial is not None else _cached_breaks(_target_breaks, target)
