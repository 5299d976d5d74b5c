r"""Whether networks of finite width train as the kernel predicts.

What is judged is the norm of the residual :math:`\|y - u(k)\|` over :math:`\|y\|`, at every step and for every set of
labels: its mean over the networks against the prediction. A network of width p departs from its limit by order
:math:`1/\sqrt p`, in two ways that play the part of finite d in other comparisons (`twolayer.kernel.finite_width` has
both to first order):

- Its Gram matrix fluctuates at the start. A matrix that is off by a share :math:`\epsilon` of itself moves the norm by
  :math:`\epsilon/2` at most, by the Cauchy-Schwarz inequality in time. The share has the deviation
  :math:`\sqrt{2/p}` where a pair of units is active on all samples of a cluster or on none, and less elsewhere.
- Fitting the labels moves the weights of a unit by :math:`\sqrt{y^\top H^{-1} y / p}`, where they begin with a
  deviation of order one, so that signs flip, with the density :math:`1/\sqrt{2\pi}`; the residual lags behind by half
  of this share, up to a factor of order one.
"""

import numpy as np
from jaxtyping import Float

from twolayer.data.deviation import (
    FALSE_ALARM,
    ROUNDING,
    WEAK,
    Finding,
    head_of,
    outcome_of,
    shared_scatter,
    sharing,
    threshold,
)

# How much a lazy network may be off, times sqrt(p): half of the deviation of a share of the Gram matrix, and half of
# the density of fields at zero, which multiplies the weights' way.
FLUCTUATION, MOVEMENT = 0.5 * np.sqrt(2.0), 0.5 / np.sqrt(2.0 * np.pi)
# The way of the weights where the Gram matrix is singular and does not tell it: that of a hundred labels along
# eigenvectors with the eigenvalue 1/4, to which the kernel falls in many dimensions.
USUAL_WAY = 20.0


def width_effect(width: int, ways: Float[np.ndarray, " labels"]) -> Float[np.ndarray, " labels"]:
    r"""How far a lazy network may be from its limit; ``ways`` are :math:`\sqrt{y^\top H^{-1} y}`.

    It is at most half of the norm of the labels: beyond, no network would be told apart from any other.
    """
    ways = np.where(np.isfinite(ways), ways, USUAL_WAY)
    return np.minimum((FLUCTUATION + MOVEMENT * ways) / np.sqrt(width), WEAK)


def judge_networks(
    predicted: Float[np.ndarray, "labels step"],
    error: Float[np.ndarray, "labels step"],
    trained: Float[np.ndarray, "replica labels step"],
    labels: list[str],
    width: int,
    ways: Float[np.ndarray, " labels"],
) -> Finding:
    """Compare residual norms of networks with their prediction; one of the five words of a verdict."""
    scale = np.maximum(predicted[:, :1], ROUNDING)
    runs = len(trained)
    gap = np.abs(trained.mean(axis=0) - predicted) / scale
    scatter = shared_scatter(trained.std(axis=0, ddof=1).T).T / scale if runs > 1 else np.zeros_like(gap)
    standard_error = scatter / np.sqrt(runs)
    limit = threshold(runs, gap.size, sharing(gap.shape[1])) if runs > 1 else 0.0
    allowed = error / scale + ROUNDING + limit * standard_error
    effect = width_effect(width, ways)[:, None]
    place = tuple(int(i) for i in np.unravel_index(int(np.argmax(gap - allowed - effect)), gap.shape))
    judge = f"{runs} network{'s' if runs > 1 else ''} of width {width}"
    outcome = outcome_of(
        bool(np.all(gap <= allowed)), bool(np.max(allowed) > WEAK), bool(np.all(gap <= allowed + effect))
    )
    cause = "an effect of finite width, which stands for finite d here"
    head = head_of(outcome, "The kernel's prediction", judge, cause)
    where = f"{labels[place[0]]} labels at step {place[1]}"
    seen = f"the norm of y - u is {gap[place]:.2g} |y| away from the predicted one ({where})"
    size = f"a lazy network of this width may be off by {float(effect[place[0], 0]):.2g} |y|"
    chance = (
        f"chance reaches {limit:.1f} standard errors, {limit * standard_error[place]:.2g} |y| there, once in "
        f"{1 / FALSE_ALARM:.0f} comparisons of {gap.size} numbers"
        if runs > 1
        else "one network alone has no standard error: more `replicas` would tell chance from the rest"
    )
    z = float(gap[place] / standard_error[place]) if standard_error[place] > 0.0 else 0.0
    sentence = f"{head}: {seen}; {size}; {chance}."
    return Finding("kernel", judge, outcome, sentence, z, where, limit)
