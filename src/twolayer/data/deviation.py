r"""How far an account is from the judge, in standard errors, and what that means.

Replica by replica both accounts begin at the same start, so their difference :math:`\delta` is that of the dynamics.
Its mean over R replicas has the standard error :math:`s/\sqrt R`. Two effects of finite d are expected in a correct
limit theory: single runs scatter by s, and, because the dynamics is not linear, scatter shifts the mean by about
:math:`s^2` over the range of the variable.

An account agrees when no deviation exceeds the threshold of Student's t at a family-wise false-alarm rate. Beyond it,
the deviation is called a finite-d effect as long as that shift, or the scatter of a single run, can explain it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

FALSE_ALARM = 1e-3
ROUNDING = 1e-12
# A comparison that could miss a deviation of more than this part of the risk's range is said to be a weak one.
WEAK = 0.5
COMPARED = ("risk", "training_risk", "M", "Q", "a")


class Deviation(NamedTuple):
    """One variable of one account against the judge, at every time and entry (arrays: time, entries...)."""

    mean: Any
    standard_error: Any
    scatter: Any
    shift: Any  # the size of the shift of the mean that finite d is expected to cause
    z: Any  # mean over standard error
    numerical: Any  # numerical error of both accounts together
    spread: float  # the range of the account's values


def deviation(judge: "xr.Dataset", account: "xr.Dataset", name: str) -> Deviation:
    """Compare one variable; an account without scatter of its own may have a single replica."""
    theirs, ours = judge[name].values, account[name].values
    error = f"{name}_error" if name.endswith("risk") else "overlap_error"
    numerical = np.max(judge[error].values, axis=0) + np.max(account[error].values, axis=0)
    difference = theirs - ours
    replicas = difference.shape[0]
    numerical = numerical.reshape(numerical.shape + (1,) * (difference.ndim - 2))
    mean = difference.mean(axis=0)
    scatter = difference.std(axis=0, ddof=1) if replicas > 1 else np.full_like(mean, np.nan)
    standard_error = scatter / np.sqrt(replicas)
    both = np.concatenate([theirs.ravel(), ours.ravel()])
    spread = float(np.max(both) - np.min(both))
    # Scatter at one time is the cause of shifts at later times: the running maximum is what counts. A shift beyond the
    # scatter itself is no longer a small effect of it.
    widest = np.maximum.accumulate(_largest_entry(scatter), axis=0)
    shift = np.broadcast_to(np.minimum(widest**2 / max(spread, ROUNDING), widest), mean.shape)
    numerical = np.broadcast_to(numerical + ROUNDING * max(1.0, spread), mean.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(np.abs(mean) <= ROUNDING * max(1.0, spread), 0.0, mean / standard_error)
    return Deviation(mean, standard_error, scatter, shift, z, numerical, spread)


def _largest_entry(x: np.ndarray) -> np.ndarray:
    """The largest over the entries of a matrix at each time, kept as broadcastable axes."""
    axes = tuple(range(1, x.ndim))
    return np.max(np.nan_to_num(x), axis=axes, keepdims=True, initial=0.0) if axes else np.nan_to_num(x)


def threshold(replicas: int, numbers: int) -> float:
    """The deviation in standard errors that chance exceeds once in 1/FALSE_ALARM comparisons of so many numbers."""
    from scipy.stats import t

    return float(t.isf(FALSE_ALARM / (2.0 * max(1, numbers)), max(1, replicas - 1)))


class Finding(NamedTuple):
    """The verdict on one account."""

    account: str
    judge: str
    outcome: str  # "agrees", "consistent" (but weakly tested), "finite-d effect", "differs", "undecided"
    sentence: str
    largest_z: float
    where: str
    threshold: float


def judge_account(
    judge_name: str, account_name: str, judge: "xr.Dataset", account: "xr.Dataset", finite_d: float, d: int
) -> tuple[Finding, dict[str, Deviation]]:
    """Compare all variables of one account with the judge.

    ``finite_d`` is the expected relative size sqrt(gamma/(p d)).
    """
    replicas = max(judge.sizes["replica"], account.sizes["replica"])
    if min(judge.sizes["replica"], account.sizes["replica"]) == 0:
        return _undecided(account_name, judge_name, "no replica reached the end in both"), {}
    present = [name for name in COMPARED if all(name in each and each[name].size for each in (judge, account))]
    if not all(np.all(np.isfinite(each[name].values)) for each in (judge, account) for name in present):
        return _undecided(account_name, judge_name, "a replica that reached the end contains NaN"), {}
    deviations = {name: deviation(judge, account, name) for name in present}
    deviations = {name: item for name, item in deviations.items() if np.any(np.abs(item.mean) > item.numerical)}
    if not deviations:
        sentence = f"{account_name} agrees with {judge_name}: the two are the same within their numerical error."
        return Finding(account_name, judge_name, "agrees", sentence, 0.0, "", np.inf), {}
    if replicas < 2:
        reason = "one replica gives no standard error; ask for more replicas"
        return _undecided(account_name, judge_name, reason), deviations
    numbers = sum(int(np.isfinite(item.z).sum()) for item in deviations.values())
    limit = threshold(replicas, numbers)
    worst = {name: _worst(item) for name, item in deviations.items()}
    name = max(worst, key=lambda key: worst[key][0])
    z, index = worst[name]
    at, *place = index
    item = deviations[name]
    size = float(np.abs(item.mean[index]))
    scatter = max(float(np.max(each.scatter)) for each in deviations.values())
    shift = max(float(np.max(each.shift)) for each in deviations.values())
    entry = f"[{','.join(map(str, place))}]" if place else ""
    where = f"{name}{entry} at time {float(judge.time.values[at]):.3g}"
    seen = f"the mean of {replicas} runs is at most {z:.1f} standard errors away ({size:.2g}, in {where})"
    expected = (
        f"single runs at d = {d} scatter by up to {scatter:.2g} around it "
        f"(expected order sqrt(gamma/(p d)) = {finite_d:.2g}), which may shift their mean by about {shift:.2g}"
    )
    chance = f"chance alone reaches {limit:.1f} once in {1 / FALSE_ALARM:.0f} comparisons of {numbers} numbers"
    missed = _could_miss(deviations["risk"], limit) if "risk" in deviations else 0.0
    weak = ""
    if z <= limit and missed > WEAK:
        outcome, head = "consistent", f"{account_name} is consistent with {judge_name}"
        weak = (
            f" Where single runs scatter most, a deviation of the risk by {min(missed, 1.0):.0%} of its range could "
            "have been missed: more replicas or a larger d would sharpen this."
        )
    elif z <= limit:
        outcome, head = "agrees", f"{account_name} agrees with {judge_name}"
    elif size <= float(item.scatter[index]) or all(_beyond_shift(each) <= limit for each in deviations.values()):
        outcome = "finite-d effect"
        head = f"{account_name} follows {judge_name} up to a finite-d effect, to be confirmed at larger d"
    else:
        outcome, head = "differs", f"{account_name} differs from {judge_name}"
    sentence = f"{head}: {seen}; {chance}; {expected}.{weak}"
    return Finding(account_name, judge_name, outcome, sentence, z, where, limit), deviations


def _could_miss(item: Deviation, limit: float) -> float:
    """The largest deviation that would have passed, over the range of the mean: the weakness of the comparison."""
    return float(np.max(limit * item.standard_error + item.numerical) / max(item.spread, ROUNDING))


def _undecided(account_name: str, judge_name: str, reason: str) -> Finding:
    sentence = f"{account_name} against {judge_name} is undecided: {reason}."
    return Finding(account_name, judge_name, "undecided", sentence, 0.0, "", np.inf)


def _worst(item: Deviation) -> tuple[float, tuple[int, ...]]:
    """The largest deviation in standard errors among the numbers that differ by more than their numerical error."""
    order = np.where(np.abs(item.mean) > item.numerical, np.abs(item.z), 0.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(order)), order.shape))
    return float(order[index]), index


def _beyond_shift(item: Deviation) -> float:
    """The largest deviation in standard errors after the expected shift and the numerical error are allowed for."""
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = (np.abs(item.mean) - item.shift - item.numerical) / item.standard_error
    return float(np.max(np.where(np.abs(item.mean) > item.shift + item.numerical, beyond, 0.0)))
