r"""Deviations of a description from the judge in standard errors, and the verdict that follows from them.

Each replica of both descriptions begins at the same start, so their difference :math:`\delta` is that of the
dynamics. Its mean over R replicas has the standard error :math:`s/\sqrt R`. Two effects of finite d are expected in a
correct limit theory: single runs scatter by s, and, because the dynamics is not linear, scatter shifts the mean by
about :math:`s^2` over the range of the variable.

The scatter s at a time is the standard deviation of the replicas, or its root mean square over w neighbouring times
if that is larger. A few replicas may coincide at one time by chance, and would then seem to have no scatter there.

A description agrees when no deviation exceeds a threshold that chance exceeds in a fraction :math:`\alpha` of
comparisons of N numbers. It is the larger one of two quantiles of Student's t. Neighbouring times may be all but the
same number: then there are N/w tests with R - 1 degrees of freedom. Or they may be independent: then there are N tests
with w (R - 1) degrees of freedom. Where the scatter changes so much from time to time that a single one makes up the
mean square, this happens once in w times, as in the first case. Beyond the threshold, the deviation is called a
finite-d effect as long as that shift, or the scatter of a single run, can explain it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

FALSE_ALARM = 1e-3
ROUNDING = 1e-12
# A comparison that could miss a deviation of more than this fraction of the range of the risk is a weak one.
WEAK = 0.5
COMPARED = ("risk", "training_risk", "task_risk", "M", "Q", "a", "M_block", "Q_block")
# The words of a verdict, from the best to the worst, and what each of them means.
OUTCOMES = {
    "agrees": "no difference exceeds what chance and the stated errors allow, and a large one would have been seen",
    "consistent": "no difference exceeds what chance allows, but the scatter is too wide for a sharp test",
    "undecided": "there is not enough data for a verdict",
    "finite-d effect": "the difference is real and of the size that finite d causes; it should shrink as d grows",
    "differs": "the difference is larger than chance, numerical errors and finite d can explain",
}


# Times that share their scatter: this part of all of them on each side, and at least one.
NEIGHBOURS = 1 / 16


class Deviation(NamedTuple):
    """The difference of one variable between a description and the judge (arrays: time, entries...)."""

    mean: Any
    standard_error: Any
    scatter: Any  # of single replicas, shared by neighbouring times
    shift: Any  # the size of the shift of the mean that finite d is expected to cause
    z: Any  # mean over standard error
    numerical: Any  # numerical error of both descriptions together
    spread: float  # the range of the description's values


def deviation(judge: "xr.Dataset", description: "xr.Dataset", name: str) -> Deviation:
    """Compare one variable of a description with the judge; a deterministic description may have a single replica."""
    theirs, ours = judge[name].values, description[name].values
    error = f"{name}_error" if name.endswith("risk") else "overlap_error"
    numerical = np.max(judge[error].values, axis=0) + np.max(description[error].values, axis=0)
    difference = theirs - ours
    replicas = difference.shape[0]
    numerical = numerical.reshape(numerical.shape + (1,) * (difference.ndim - 1 - numerical.ndim))
    mean = difference.mean(axis=0)
    scatter = shared_scatter(difference.std(axis=0, ddof=1)) if replicas > 1 else np.full_like(mean, np.nan)
    standard_error = scatter / np.sqrt(replicas)
    both = np.concatenate([theirs.ravel(), ours.ravel()])
    spread = float(np.max(both) - np.min(both))
    # Scatter at one time causes shifts at later times, so its running maximum is used. A shift that exceeds the scatter
    # is not a small effect of it, so the scatter is an upper bound.
    widest = np.maximum.accumulate(_largest_entry(scatter), axis=0)
    shift = np.broadcast_to(np.minimum(widest**2 / max(spread, ROUNDING), widest), mean.shape)
    numerical = np.broadcast_to(numerical + ROUNDING * max(1.0, spread), mean.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(np.abs(mean) <= ROUNDING * max(1.0, spread), 0.0, mean / standard_error)
    return Deviation(mean, standard_error, scatter, shift, z, numerical, spread)


def _largest_entry(x: np.ndarray) -> np.ndarray:
    """The largest entry at each time; axes are kept for broadcasting."""
    axes = tuple(range(1, x.ndim))
    return np.max(np.nan_to_num(x), axis=axes, keepdims=True, initial=0.0) if axes else np.nan_to_num(x)


def neighbours(times: int) -> int:
    """How many times on each side of one share their scatter with it."""
    return max(1, int(NEIGHBOURS * times))


def sharing(times: int) -> int:
    """How many times share one scatter, away from the first and the last."""
    return max(1, min(times, 2 * neighbours(times) + 1))


def shared_scatter(scatter: np.ndarray) -> np.ndarray:
    """Raise the scatter at each time (the first axis) to its root mean square over the neighbouring times."""
    times, reach = len(scatter), neighbours(len(scatter))
    spans = (slice(max(0, time - reach), time + reach + 1) for time in range(times))
    means = [np.mean(scatter[span] ** 2, axis=0) for span in spans]
    return np.maximum(scatter, np.sqrt(np.reshape(means, scatter.shape)))


def threshold(replicas: int, numbers: int, shared: int = 1) -> float:
    """The deviation, in standard errors, that chance exceeds in a fraction FALSE_ALARM of comparisons at most.

    ``shared`` of the numbers have one estimate of their scatter (see `sharing`).
    """
    from scipy.special import stdtrit

    degrees, numbers = max(1, replicas - 1), max(1, numbers)
    shared, chance = min(shared, numbers), FALSE_ALARM / (2.0 * numbers)
    return -min(float(stdtrit(degrees, shared * chance)), float(stdtrit(shared * degrees, chance)))


class Finding(NamedTuple):
    """The verdict on one description, or on one predicted number."""

    description: str
    judge: str
    outcome: str  # "agrees", "consistent" (but weakly tested), "finite-d effect", "differs", "undecided"
    sentence: str
    largest_z: float
    where: str
    threshold: float

    @property
    def attributes(self) -> dict[str, str]:
        """The verdict as results carry it: one word, and a sentence."""
        return {"outcome": self.outcome, "verdict": self.sentence}


def judge_description(
    judge_name: str,
    description_name: str,
    judge: "xr.Dataset",
    description: "xr.Dataset",
    finite_d: str,
    d: int,
    is_limit: bool = True,
) -> tuple[Finding, dict[str, Deviation]]:
    """Compare all variables of one description with the judge.

    ``finite_d`` is the expected relative size of finite-d effects, as a formula with its value. Where the description
    is no limit (``is_limit=False``) but a process at the same d, finite d explains no difference.
    """
    replicas = max(judge.sizes["replica"], description.sizes["replica"])
    if min(judge.sizes["replica"], description.sizes["replica"]) == 0:
        return _undecided(description_name, judge_name, "no replica reached the end in both"), {}
    present = [name for name in COMPARED if all(name in side and side[name].size for side in (judge, description))]
    if not all(np.all(np.isfinite(side[name].values)) for side in (judge, description) for name in present):
        return _undecided(description_name, judge_name, "a replica that reached the end contains NaN"), {}
    deviations = {name: deviation(judge, description, name) for name in present}
    deviations = {name: item for name, item in deviations.items() if np.any(np.abs(item.mean) > item.numerical)}
    if not deviations:
        sentence = f"{description_name} agrees with {judge_name}: the two are the same within their numerical error."
        return Finding(description_name, judge_name, "agrees", sentence, 0.0, "", np.inf), {}
    if replicas < 2:
        reason = "one replica gives no standard error; ask for more replicas"
        return _undecided(description_name, judge_name, reason), deviations
    numbers = sum(int(np.isfinite(item.z).sum()) for item in deviations.values())
    limit = threshold(replicas, numbers, sharing(judge.sizes["time"]))
    worst = {name: _worst(item) for name, item in deviations.items()}
    name = max(worst, key=lambda key: worst[key][0])
    z, index = worst[name]
    at, *place = index
    item = deviations[name]
    size = float(np.abs(item.mean[index]))
    scatter = max(float(np.max(other.scatter)) for other in deviations.values())
    shift = max(float(np.max(other.shift)) for other in deviations.values())
    entry = f"[{','.join(map(str, place))}]" if place else ""
    where = f"{name}{entry} at time {float(judge.time.values[at]):.3g}"
    seen = f"the mean of {replicas} runs is at most {z:.1f} standard errors away ({size:.2g}, in {where})"
    expected = (
        f"single runs at d = {d} scatter by up to {scatter:.2g} around it "
        f"(expected order {finite_d}), which may shift their mean by about {shift:.2g}"
    )
    chance = f"chance alone reaches {limit:.1f} once in {1 / FALSE_ALARM:.0f} comparisons of {numbers} numbers"
    missed = _could_miss(deviations["risk"], limit) if "risk" in deviations else 0.0
    of_finite_d = size <= float(item.scatter[index]) or all(_beyond_shift(x) <= limit for x in deviations.values())
    of_finite_d &= is_limit
    outcome = outcome_of(z <= limit, missed > WEAK, of_finite_d)
    weak = (
        f" Where single runs scatter most, a deviation of the risk by {min(missed, 1.0):.0%} of its range could "
        "have been missed: more replicas or a larger d would sharpen this."
    )
    head = head_of(outcome, description_name, judge_name, "a finite-d effect, to be confirmed at larger d")
    sentence = f"{head}: {seen}; {chance}; {expected}.{weak if outcome == 'consistent' else ''}"
    return Finding(description_name, judge_name, outcome, sentence, z, where, limit), deviations


def judge_number(
    name: str,
    predicted: float,
    error: float,
    measured: float,
    standard_error: float,
    runs: int,
    finite_d: float = 0.0,
    scale: float | None = None,
) -> Finding:
    """Compare one predicted number with the mean of a measurement.

    Parameters
    ----------
    name
        What the number is, for the sentence.
    predicted, error
        The prediction and the bound on its numerical error.
    measured, standard_error, runs
        Mean, standard error and number of independent runs of the measurement.
    finite_d
        The largest error that a correct prediction of the limit may have at this d.
    scale
        What a sharp test resolves a part of; by default the larger of the two numbers.
    """
    judge = f"{runs} runs"
    if runs < 2 or not np.isfinite([predicted, measured, standard_error]).all():
        return _undecided(name, judge, "two finite numbers and a standard error are needed")
    limit = threshold(runs, 1)
    gap = abs(measured - predicted)
    allowed = limit * standard_error + error
    scale = max(abs(predicted), abs(measured), ROUNDING) if scale is None else scale
    z = gap / max(standard_error, ROUNDING * scale)
    seen = f"predicted {predicted:.6g}, measured {measured:.6g} +- {standard_error:.2g} ({z:.1f} standard errors away)"
    outcome = outcome_of(bool(gap <= allowed), bool(allowed > WEAK * scale), bool(gap <= allowed + finite_d))
    head = head_of(outcome, name, judge, f"a finite-d effect of at most {finite_d:.2g}")
    return Finding(name, judge, outcome, f"{head}: {seen}.", z, name, limit)


def outcome_of(is_within_chance: bool, is_weak: bool, is_of_finite_d: bool) -> str:
    """The word of a verdict, by what explains the difference: chance (which may say little), or finite d."""
    if is_within_chance:
        return "consistent" if is_weak else "agrees"
    return "finite-d effect" if is_of_finite_d else "differs"


def head_of(outcome: str, name: str, judge: str, effect: str) -> str:
    """How the sentence of a verdict begins; ``effect`` says what finite d causes."""
    heads = {"agrees": "agrees with", "consistent": "is consistent with", "finite-d effect": "follows"}
    end = f" up to {effect}" if outcome == "finite-d effect" else ""
    return f"{name} {heads.get(outcome, 'differs from')} {judge}{end}"


def worst_outcome(outcomes: Iterable[str]) -> str:
    """The outcome of several findings together, which is the worst of them; "single" if there are none."""
    return max(outcomes, key=list(OUTCOMES).index, default="single")


def _could_miss(item: Deviation, limit: float) -> float:
    """The largest deviation that would not have been noticed, relative to the range of the variable."""
    return float(np.max(limit * item.standard_error + item.numerical) / max(item.spread, ROUNDING))


def _undecided(description_name: str, judge_name: str, reason: str) -> Finding:
    sentence = f"{description_name} against {judge_name} is undecided: {reason}."
    return Finding(description_name, judge_name, "undecided", sentence, 0.0, "", np.inf)


def _worst(item: Deviation) -> tuple[float, tuple[int, ...]]:
    """The largest deviation in standard errors among the numbers that differ by more than their numerical error."""
    order = np.where(np.abs(item.mean) > item.numerical, np.abs(item.z), 0.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(order)), order.shape))
    return float(order[index]), index


def _beyond_shift(item: Deviation) -> float:
    """The largest deviation in standard errors after subtracting the expected shift and the numerical error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = (np.abs(item.mean) - item.shift - item.numerical) / item.standard_error
    return float(np.max(np.where(np.abs(item.mean) > item.shift + item.numerical, beyond, 0.0)))
