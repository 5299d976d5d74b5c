r"""Gradient descent of an actual network of relu units on a data set, all samples at each step.

.. math:: u_i = \frac{1}{\sqrt m} \sum_r a_r\,(w_r \cdot x_i)_+, \qquad
          w_r \leftarrow w_r - \frac{\eta\,a_r}{\sqrt m} \sum_i e_i\,\mathbb 1\{w_r \cdot x_i \ge 0\}\,x_i

with :math:`e = u - y`. The first layer is trained; :math:`a_r = \pm 1`.
Inputs enter through their products :math:`G = X X^\top` alone, so that
the fields :math:`Z = W X^\top` are followed in place of the weights (the dual form), which is exact:

.. math:: Z \leftarrow Z - \frac{\eta}{\sqrt m}\,a \odot \big[(\mathbb 1\{Z \ge 0\} \odot e^\top)\,G\big]
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from twolayer.core.errors import ComputationFailed, InvalidInput
from twolayer.core.memory_limit import available_memory, bytes_in_words
from twolayer.core.precision import double
from twolayer.core.types import NumbersLike
from twolayer.kernel.device import device_memory
from twolayer.kernel.matrices import UNITS, gram_of_fields, unit_rows
from twolayer.kernel.products import PRECISIONS
from twolayer.problem.student import MOST_UNITS
from twolayer.specification.fields import array, choice, count, number
from twolayer.stepping import Stepper, run_steps

STARTS = ("antisymmetric", "small", "sphere")
# Products of float32 have ten bits by default on accelerators: a run in single precision would be none.
EXACT = jax.lax.Precision.HIGHEST
# Deviations of the weights at the start: any where pairs of units cancel, small ones where nothing does.
KAPPA = {"antisymmetric": 1.0, "small": 0.01, "sphere": 1.0}
# Numbers in a block of units: what fits the caches, what fills a GPU.
BLOCK = {"cpu": 2**21, "gpu": 2**29}
# A residual this many times that at the start is on its way to infinity.
DIVERGED = 1e3


@dataclass(frozen=True)
class Trained:
    r"""The training of one network.

    Norms of the residual :math:`\|y - u(k)\|` at steps 0, 1, ..., outputs at the end, on the training and on other
    inputs; the share of the signs :math:`\mathbb 1\{w_r \cdot x_i \ge 0\}` that are not what they were at the start;
    and the Gram matrices before and after.
    """

    width: int
    eta: float
    start: str
    kappa: float
    residuals: np.ndarray
    outputs: np.ndarray
    other_outputs: np.ndarray | None
    flip_share: float
    initial_gram: np.ndarray | None
    final_gram: np.ndarray | None

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self.residuals.size - 1

    @property
    def losses(self) -> np.ndarray:
        r"""The losses :math:`\frac12\|y - u(k)\|^2`."""
        return 0.5 * self.residuals**2


# Large: each of its thirteen arguments is an option of its own of the network or of its training.
def train(
    X: NumbersLike,
    y: NumbersLike,
    *,
    width: NumbersLike,
    eta: float | int,
    steps: NumbersLike,
    start: str = "antisymmetric",
    kappa: float | int | None = None,
    seed: int = 0,
    replica: int = 0,
    others: NumbersLike | None = None,
    precision: str = "double",
    grams: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Trained:
    r"""Train a network by gradient descent on all samples.

    Parameters
    ----------
    X, y
        Inputs of unit norm and labels.
    width
        m, the number of units; even for the antisymmetric start.
    eta
        The step size, for the loss :math:`\frac12\|y - u\|^2` (a sum).
    steps
        The number of steps.
    start
        ``"antisymmetric"``: pairs of units with one weight vector and opposite signs, so that outputs begin at exactly
        zero; ``"small"``: independent units with small weights, as in the paper; ``"sphere"``: independent units whose
        weight vectors have one length.
    kappa
        Deviation of the weights at the start: by default 1, and 0.01 for small ones; on the sphere, the length.
    seed, replica
        The seed of the weights and signs, and which of its independent networks is trained.
    others
        Other inputs of unit norm, at which outputs are computed at the end.
    precision
        ``"double"``, or ``"single"``, which takes half of the time and memory.
    grams
        Whether the Gram matrices at the start and at the end are computed.
    progress
        Called with the fraction that is done.

    Returns
    -------
    The residuals, outputs, flipped signs and Gram matrices. Cost: :math:`2 m n \min(n, 2 d)` operations a step.
    Memory: fields of all units, twice, and once more with ``others``.

    Notes
    -----
    Checked against gradient descent on the weights by automatic differentiation.
    """
    X, labels = _checked(X, y)
    width = count("width", high=MOST_UNITS)(width)
    eta = float(number("eta", above=0.0)(eta))
    steps = count("steps", low=0, high=10**7)(steps)
    start = choice("start", STARTS)(start)
    kappa = KAPPA[start] if kappa is None else float(number("kappa", above=0.0)(kappa))
    seed, replica = count("seed", low=0)(seed), count("replica", low=0)(replica)
    dtype: Any = np.float64 if choice("precision", PRECISIONS)(precision) == "double" else np.float32
    if start == "antisymmetric" and width % 2:
        raise InvalidInput(f"Argument `width` must be even for the antisymmetric start, but is {width}.")
    T = None if others is None else _checked(others, None)[0]
    if T is not None and T.shape[1] != X.shape[1]:
        raise InvalidInput(f"Argument `others` must have {X.shape[1]} columns as `X`, but has {T.shape[1]}.")
    check_memory(len(X), width, precision, has_others=T is not None, grams=grams)
    signs = second_layer(width, start, seed, replica)
    G = X @ X.T
    # Fewer dimensions than samples: the product with X X^T is cheaper as two products, with X and with its transpose.
    factors = (X, X.T) if 2 * X.shape[1] < len(X) else (G,)
    Z0 = np.empty((width, len(X)), dtype)
    for rows, W in first_layer(width, X.shape[1], start, kappa, seed, replica):
        Z0[rows] = W @ X.T
    were_on = np.packbits(Z0 >= 0.0)
    initial = gram_of_fields(G, _blocks(Z0)) if grams else None
    residuals, Z, shares, e = _descend(
        Z0, signs, factors, labels, eta, steps, T is not None, progress or (lambda fraction: None)
    )
    flipped = np.unpackbits(were_on ^ np.packbits(Z >= 0.0), count=Z.size)
    other_outputs = None
    if T is not None:
        other_outputs = np.zeros(len(T))
        GT = (X @ T.T).astype(dtype)
        for rows, W in first_layer(width, X.shape[1], start, kappa, seed, replica):
            a = signs[rows, None]
            fields = W @ T.T - a / math.sqrt(width) * (shares[rows] @ GT)
            other_outputs += (a * np.maximum(fields, 0.0)).sum(axis=0) / math.sqrt(width)
    return Trained(
        width,
        eta,
        start,
        kappa,
        residuals,
        labels + e,
        other_outputs,
        float(np.mean(flipped)) if flipped.size else 0.0,
        initial,
        gram_of_fields(G, _blocks(Z)) if grams else None,
    )


def check_memory(n: int, width: int, precision: str, *, has_others: bool, grams: bool) -> None:
    """Refuse a network whose fields do not fit the memory, and say what would."""
    size = 8 if precision == "double" else 4
    # Fields at the start, while they move, as they are copied, and signs; each sample's share likewise (measured: 3.6).
    a_unit = size * n * (6 if has_others else 4)
    fixed = 8 * n**2 * (4 if grams else 2)
    there = min(available_memory(), device_memory(jax.local_devices()[:1]))
    if a_unit * width + fixed <= there:
        return
    fits = max(0, int((there - fixed) // a_unit)) // 2 * 2
    way = f"a width of {fits} would fit" if fits >= 2 else "take fewer samples"
    way += ", and twice of it in single precision" if size == 8 and fits >= 2 else ""
    raise InvalidInput(
        f"Argument `width` must be smaller: {width} units on {n} samples need "
        f"{bytes_in_words(a_unit * width + fixed)}, and {bytes_in_words(there)} are there; {way}."
    )


def _checked(X: Any, y: Any) -> tuple[np.ndarray, Any]:
    X = array("X", 2)(X)
    _, norms = unit_rows(X)
    if np.max(np.abs(norms - 1.0)) > 1e-6:
        worst = int(np.argmax(np.abs(norms - 1.0)))
        raise InvalidInput(
            f"Argument `X` must have rows of unit norm, but row {worst} has norm {norms[worst]:.6g}: divide each row "
            "by its norm."
        )
    if y is not None:
        y = array("y", 1)(y)
        if len(y) != len(X):
            raise InvalidInput(f"Argument `y` must have one label per row of `X` ({len(X)}), but has shape {y.shape}.")
    return X, y


def _generator(seed: int, purpose: int, replica: int) -> np.random.Generator:
    """Random numbers of one purpose; those of the first replica are a function of the seed alone."""
    return np.random.default_rng([seed, purpose, replica] if replica else [seed, purpose])


def second_layer(width: int, start: str, seed: int, replica: int = 0) -> np.ndarray:
    """Signs of all units: random, or plus for the first and minus for the second half."""
    if start == "antisymmetric":
        return np.repeat([1.0, -1.0], width // 2)
    return _generator(seed, 1, replica).choice([-1.0, 1.0], width)


def first_layer(
    width: int, d: int, start: str, kappa: float, seed: int, replica: int = 0
) -> Iterator[tuple[Any, np.ndarray]]:
    """The weights at the start, block after block of units (their places, their rows); the same at each call."""
    rng = _generator(seed, 0, replica)
    distinct = width // 2 if start == "antisymmetric" else width
    for first in range(0, distinct, UNITS):
        rows = np.arange(first, min(first + UNITS, distinct))
        W = kappa * rng.standard_normal((len(rows), d))
        if start == "sphere":
            W *= kappa / np.linalg.norm(W, axis=1, keepdims=True)
        yield rows, W
        if start == "antisymmetric":
            yield rows + distinct, W


def _blocks(Z: np.ndarray) -> Iterator[np.ndarray]:
    return (Z[first : first + UNITS] for first in range(0, len(Z), UNITS))


def _descend(
    Z0: np.ndarray,
    signs: np.ndarray,
    factors: tuple[np.ndarray, ...],
    y: np.ndarray,
    eta: float,
    steps: int,
    with_shares: bool,
    progress: Callable[[float], None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Norms of the residual, the fields and each sample's share in each unit at the end, and u - y there."""
    (m, n), dtype = Z0.shape, Z0.dtype
    parts = _parts(m, n)
    with double():
        Z, a = jnp.asarray(Z0.reshape(parts, -1, n)), jnp.asarray(signs.reshape(parts, -1), dtype)
        shares = jnp.zeros_like(Z) if with_shares else jnp.zeros((parts, 1, 1), dtype)
        labels, size = jnp.asarray(y, dtype), jnp.asarray(eta, dtype)
        products = tuple(jnp.asarray(factor, dtype) for factor in factors)
        e = _residual(Z, a, labels)
        begun = _Descent(Z, shares, e, jnp.zeros(steps + 1, dtype).at[0].set(jnp.linalg.norm(e)))

        def advance(now: _Descent, first: Any, last: Any) -> _Descent:
            now = _advance(now, a, products, labels, size, first, last)
            norms = np.asarray(now.norms)[: int(last) + 1]
            if not norms[-1] < DIVERGED * max(float(norms[0]), 1e-300):
                raise ComputationFailed(
                    f"Gradient descent diverges: after {last} steps of size {eta:g} the residual is {norms[-1]:.3g}, "
                    f"and {norms[0]:.3g} at the start.",
                    norms.copy(),
                )
            return now

        end = run_steps(Stepper(begun, advance, lambda now: {}), np.unique([0, steps]), progress).state
        return (
            np.asarray(end.norms, dtype=np.float64),
            np.asarray(end.Z).reshape(m, n),
            np.asarray(end.shares).reshape(m, n) if with_shares else np.zeros((m, 0), dtype),
            np.asarray(end.e, dtype=np.float64),
        )


class _Descent(NamedTuple):
    """The state of a network, and the norms of the residual after every step so far."""

    Z: Any
    shares: Any
    e: Any
    norms: Any


def _parts(m: int, n: int) -> int:
    """Into how many blocks the units are cut: the least number that divides them and whose blocks are small enough."""
    most = BLOCK["cpu" if jax.default_backend() == "cpu" else "gpu"]
    enough = (parts for parts in range(max(1, -(-m * n // most)), m + 1) if m % parts == 0)
    return next(enough, 1)


def _residual(Z: Any, a: Any, y: Any) -> Any:
    outputs = jax.lax.map(lambda block: block[1] @ jnp.maximum(block[0], 0.0), (Z, a))
    return jnp.sum(outputs, axis=0) / jnp.sqrt(jnp.asarray(a.size, Z.dtype)) - y


@partial(jax.jit, donate_argnums=0)
def _advance(now: _Descent, a: Any, factors: Any, y: Any, eta: Any, first: Any, last: Any) -> _Descent:
    """Several steps; the residual couples all blocks of units, everything else is done block by block."""
    root = jnp.sqrt(jnp.asarray(a.size, now.Z.dtype))

    def step(number: Any, now: _Descent) -> _Descent:
        def advance_block(outputs: Any, block: Any) -> Any:
            fields, kept, sign = block
            pull = eta * jnp.where(fields >= 0.0, now.e[None, :], 0.0)
            move = reduce(partial(jnp.matmul, precision=EXACT), factors, pull)
            fields = fields - (sign / root)[:, None] * move
            kept = kept + pull if kept.shape == pull.shape else kept
            return outputs + sign @ jnp.maximum(fields, 0.0), (fields, kept)

        outputs, (Z, shares) = jax.lax.scan(advance_block, jnp.zeros_like(now.e), (now.Z, now.shares, a))
        e = outputs / root - y
        return _Descent(Z, shares, e, now.norms.at[number + 1].set(jnp.linalg.norm(e)))

    return jax.lax.fori_loop(first, last, step, now)
