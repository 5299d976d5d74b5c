r"""The numbers in the theorems on lazy training: what they need of width, scale and steps, and what they promise.

Theorems 3.1, 4.1 and 5.1 of :cite:t:`arora2019` for relu units of which the first layer is trained, inputs of unit norm
and labels :math:`|y| \le 1`. Their conditions are stated up to constants: the numbers here are these orders with the
constant one. What they promise has constants that are derived here:

- **Loss at the start.** :math:`\mathbb E\,\Phi(0) = \frac12 \|y\|^2 + \frac14 n \kappa^2`, so that by Markov's
  inequality :math:`\Phi(0)` is at most this over :math:`\delta` with probability :math:`1 - \delta`.
- **Loss on new samples.** Predictors of norm B in the space of the kernel have Rademacher complexity
  :math:`\frac{B}{n}\,\mathbb E\sqrt{\sigma^\top H \sigma} \le \frac{B}{n}\sqrt{\mathrm{tr} H} = B/\sqrt{2n}`. With
  the usual bound for losses between zero and one, for all integers B up to
  :math:`N = \lceil\sqrt{n/\lambda_0}\rceil` at once, of which the one above :math:`\sqrt{y^\top H^{-1} y}` is taken,

  .. math:: L_{\mathcal D} \le L_S + \sqrt{\frac{2\,y^\top H^{-1} y}{n}} + \sqrt{\frac2n}
            + 3\sqrt{\frac{\log(2N/\delta)}{2n}}

  with probability :math:`1 - \delta` over the samples. The last two terms are the theorem's
  :math:`O(\sqrt{\log(n/\lambda_0\delta)/n})`; width and scale of the start add terms that vanish in their limits.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from twolayer.core.errors import InvalidInput
from twolayer.core.types import NumbersLike
from twolayer.kernel.eigen import spectrum
from twolayer.specification.fields import array, count, number


def needed_width(theorem: str, n: int, lambda_0: float, kappa: float, delta: float, epsilon: float = 1.0) -> float:
    r"""The width that theorem 3.1 or 4.1 needs.

    .. math:: \frac{n^6}{\lambda_0^4 \kappa^2 \delta^3} \quad (3.1), \qquad
              \frac{n^7}{\lambda_0^4 \kappa^2 \delta^4 \epsilon^2} \quad (4.1)
    """
    if theorem == "3.1":
        return n**6 / (lambda_0**4 * kappa**2 * delta**3)
    return n**7 / (lambda_0**4 * kappa**2 * delta**4 * epsilon**2)


def allowed_step_size(n: int, lambda_0: float) -> float:
    r"""The step size of all three theorems, :math:`\lambda_0/n^2`."""
    return lambda_0 / n**2


def allowed_kappa(theorem: str, n: int, lambda_0: float, delta: float, epsilon: float = 1.0) -> float:
    r"""The scale of the start in theorem 4.1, :math:`\epsilon\delta/\sqrt n`, or 5.1, :math:`\lambda_0\delta/n`."""
    return epsilon * delta / math.sqrt(n) if theorem == "4.1" else lambda_0 * delta / n


def required_steps(n: int, lambda_0: float, eta: float, delta: float) -> float:
    r"""The epochs of theorem 5.1, :math:`\log(n/\delta)/\eta\lambda_0`: residuals are below :math:`\|y\|\,\delta/n`."""
    return math.log(n / delta) / (eta * lambda_0)


def contraction(eta: float, lambda_0: float) -> float:
    r"""The factor of theorem 3.1 by which each step lowers the loss at least, :math:`1 - \eta\lambda_0/2`."""
    return 1.0 - 0.5 * eta * lambda_0


def initial_loss(y: NumbersLike, kappa: float) -> float:
    r"""The mean loss at a Gaussian start of deviation kappa, :math:`\frac12 \|y\|^2 + \frac14 n \kappa^2`."""
    y = array("y", 1)(y)
    return 0.5 * float(y @ y) + 0.25 * len(y) * kappa**2


def remainder(n: int, lambda_0: float, delta: float) -> float:
    r"""The remainder of theorem 5.1, :math:`\sqrt{2/n} + 3\sqrt{\log(2\lceil\sqrt{n/\lambda_0}\rceil/\delta)/2n}`."""
    norms = math.ceil(math.sqrt(n / lambda_0))
    return math.sqrt(2.0 / n) + 3.0 * math.sqrt(math.log(2.0 * norms / delta) / (2.0 * n))


class NonDegenerate(NamedTuple):
    r"""How often independent draws of n samples have :math:`\lambda_{\min}(H^\infty) \ge \lambda_0`.

    ``share`` of the draws have, and the probability is between ``low`` and ``high`` (Clopper and Pearson's interval, of
    at least the given ``confidence``). ``lambda_min`` holds the smallest eigenvalues of all draws.
    """

    n: int
    lambda_0: float
    lambda_min: np.ndarray
    share: float
    low: float
    high: float
    confidence: float

    def is_shown(self, delta: float | int) -> bool:
        r"""Whether the draws show that the law is :math:`(\lambda_0, \delta, n)`-non-degenerate, at this confidence."""
        return self.low >= 1.0 - float(number("delta", above=0.0, below=1.0)(delta))


def non_degenerate(
    inputs: NumbersLike | Callable[[int], NumbersLike],
    n: int,
    lambda_0: float | int,
    *,
    draws: int = 100,
    confidence: float | int = 0.95,
    seed: int = 0,
) -> NonDegenerate:
    r"""The probability over n samples that :math:`\lambda_{\min}(H^\infty) \ge \lambda_0`, with an interval.

    A law of the data is :math:`(\lambda_0, \delta, n)`-non-degenerate where this probability is at least
    :math:`1 - \delta`, the assumption of theorem 5.1 of :cite:t:`arora2019`.

    Parameters
    ----------
    inputs
        A function that draws n inputs from a seed; or the rows of a data set, which are shuffled and cut into disjoint
        sets of n, so that the draws are independent.
    n, lambda_0
        The number of samples and the smallest eigenvalue that is asked for.
    draws
        How many sets are drawn; of a data set, at most as many as there are.
    confidence
        Of the interval.
    seed
        Of the draws.
    """
    from scipy.stats import binomtest

    n, draws = count("n")(n), count("draws")(draws)
    lambda_0 = float(number("lambda_0", low=0.0)(lambda_0))
    confidence = float(number("confidence", above=0.0, below=1.0)(confidence))
    seed = count("seed", low=0)(seed)
    if callable(inputs):
        sets = (array("inputs", 2)(inputs(seed + place)) for place in range(draws))
    else:
        pool = array("inputs", 2)(inputs)
        if len(pool) < n:
            raise InvalidInput(f"Argument `n` must be at most {len(pool)}, the rows of `inputs`, but is {n}.")
        order = np.random.default_rng([seed, 30]).permutation(len(pool))
        sets = (pool[order[first : first + n]] for first in range(0, len(pool) - n + 1, n)[:draws])
    spectra = [spectrum(X) for X in sets]
    smallest = np.array([known.lambda_min for known in spectra])
    reached = int(sum(known.lambda_min - known.lambda_min_error >= lambda_0 for known in spectra))
    interval = binomtest(reached, len(smallest)).proportion_ci(confidence, method="exact")
    return NonDegenerate(
        n, lambda_0, smallest, reached / len(smallest), float(interval.low), float(interval.high), confidence
    )
