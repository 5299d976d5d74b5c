r"""What the width of a network adds to its prediction, to first order in :math:`1/\sqrt m`, known before it is trained.

For relu units from an antisymmetric start with weights of deviation :math:`\kappa`. With the residual of the prediction
:math:`r(k) = (I - \eta H)^k y` and the coefficients :math:`c(k) = \eta\sum_{s<k} r(s)`, two effects are of this order.

**Scatter.** The Gram matrix of the start is a mean over :math:`m/2` pairs of units of
:math:`\phi_{ij} = 1_i 1_j\, x_i \cdot x_j`, where :math:`1_i` says whether a unit is active on a sample. A change
:math:`\delta H` changes the norm of the residual by

.. math:: \delta\|r(k)\| = -\frac{\eta}{\|r(k)\|} \sum_{s<k} r(2k - 1 - s)^\top\, \delta H\; r(s),

a mean over units, whose standard deviation is that of a single unit over :math:`\sqrt{m/2}`.

**Lag.** The field of a unit on sample i moves by :math:`a B/\sqrt m`, with :math:`B = A + c_i` while the unit is active
there and :math:`A = \sum_{j \ne i} c_j 1_j\, x_j \cdot x_i` while it is not, since the own part of the sample acts on
active units only. Therefore more fields leave zero than come to it, or rise less when they have crossed it, and both
signs of :math:`a` together change the motion: through the field of sample i its own output loses :math:`L_i`, and
those of other samples lose what its unit no longer hands on,

.. math:: L_i = \frac{E[J(A, B)]}{2\kappa\sqrt{2\pi m}}, \qquad
          K_j = \sum_{i \ne j} \int \frac{E[N(A, B)\,1_j]}{2\kappa\sqrt{2\pi m}}\; x_i \cdot x_j\; dc_i, \qquad
          \begin{aligned} AB > 0:\quad & J = \tfrac12 |B|\, c_i, && N = \mathrm{sign}(B)\, c_i, \\
          \text{else}:\quad & J = \tfrac12 \mathrm{sign}(B)\, B^2, && N = \mathrm{sign}(B)\,(A + B), \end{aligned}

given :math:`w \cdot x_i = 0`, where fields have the density :math:`1/\kappa\sqrt{2\pi}`, and for a residual that keeps
its direction. What is lost is learned again as labels are: the residual is longer by
:math:`\sum_s (I - \eta H)^{k - 1 - s} (\ell(s + 1) - \ell(s))` with :math:`\ell = L + K`. The next order is smaller by
the way of a unit's weights over their length, :math:`\sqrt{y^\top H^{-1} y / m} / \kappa`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from twolayer.kernel.eigen import Spectrum

POINTS = 24  # steps, evenly in their logarithm, between which the lag is interpolated


class WidthEffects(NamedTuple):
    r"""Changes of :math:`\|y - u(k)\|` over :math:`\|y\|` at some steps, times the root of the width."""

    scatter: Float[np.ndarray, " steps"]
    """The standard deviation over networks."""
    lag: Float[np.ndarray, " steps"]
    """The mean."""


def width_effects(
    X: Float[np.ndarray, "n d"],
    spectrum: Spectrum,
    y: Float[np.ndarray, " n"],
    steps: Sequence[int],
    eta: float,
    kappa: float = 1.0,
    units: int = 400,
    seed: int = 5,
) -> WidthEffects:
    """The effects of the width on the residual, by averages over units that are drawn from the law of the start."""
    fields = np.random.default_rng(seed).standard_normal((units, X.shape[1])) @ X.T
    labels = spectrum.projections(y)
    factors = 1.0 - eta * spectrum.eigenvalues
    scatter = [_scatter(X @ X.T, spectrum, labels, factors, k, fields >= 0.0) for k in steps]
    lag = _lag(X @ X.T, spectrum, labels, factors, steps, fields) / kappa
    return WidthEffects(np.array(scatter) / np.linalg.norm(y), lag / np.linalg.norm(y))


def _scatter(
    G: Float[np.ndarray, "n n"],
    spectrum: Spectrum,
    labels: Float[np.ndarray, " n"],
    factors: Float[np.ndarray, " n"],
    k: int,
    is_active: np.ndarray,
) -> float:
    """The standard deviation over single pairs of units, as pairs share their weights."""
    powers, values = factors**k, spectrum.eigenvalues
    apart = values[None, :] - values[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = (powers[:, None] - powers[None, :]) / apart  # of eta (1 - eta l_a)^(k - 1 - s) (1 - eta l_b)^s over s
    equal = np.abs(apart) < 1e-12 * values[0]
    slopes = k * (1.0 - factors) / values * factors ** (k - 1)
    sums = np.where(equal, slopes[:, None], sums) * powers[:, None]
    V = spectrum.eigenvectors
    pairs = V @ (sums * np.outer(labels, labels)) @ V.T * G
    active = is_active.astype(float)
    of_units = np.sum((active @ pairs) * active, axis=1) / np.linalg.norm(powers * labels)
    return float(np.sqrt(2.0) * of_units.std(ddof=1))


def _lag(
    G: Float[np.ndarray, "n n"],
    spectrum: Spectrum,
    labels: Float[np.ndarray, " n"],
    factors: Float[np.ndarray, " n"],
    steps: Sequence[int],
    fields: Float[np.ndarray, "units n"],
) -> Float[np.ndarray, " steps"]:
    """The length that the residual gains along itself."""
    k = np.unique([0, *np.geomspace(1, max(steps), POINTS).astype(int), *steps])
    V = spectrum.eigenvectors
    coefficients = V @ ((1.0 - factors[:, None] ** k) / spectrum.eigenvalues[:, None] * labels[:, None])
    changes = np.diff(coefficients, axis=1)
    lost = np.zeros((len(k) - 1, len(G)))
    for i, row in enumerate(G):
        active = (fields - np.outer(fields[:, i], row) >= 0.0).astype(float)  # of weights orthogonal to the input
        active[:, i] = 0.0
        own = coefficients[i]
        off = active @ (coefficients * row[:, None])
        on = off + own
        is_same, sign = off * on > 0.0, np.sign(on)
        overshoot = np.where(is_same, 0.5 * np.abs(on) * own, 0.5 * sign * on**2)
        fewer = np.where(is_same, sign * own, sign * (off + on))
        handed_on = (0.5 * (fewer[:, 1:] + fewer[:, :-1]) * changes[i]).T @ active / len(active)
        lost[:, i] += np.diff(overshoot.mean(axis=0))
        lost += handed_on * row
    sources = lost / np.sqrt(8.0 * np.pi) @ V
    middles = 0.5 * (k[1:] + k[:-1])
    gained = []
    for step in steps:
        before = k[1:] <= step
        left = np.sum(factors ** (step - middles[before, None]) * sources[before], axis=0)
        residual = factors**step * labels
        gained.append(residual @ left / np.linalg.norm(residual))
    return np.array(gained)
