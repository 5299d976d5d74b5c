"""Statistics over the replicas of a run, part by part: memory does not grow with the number of replicas.

A part is a fixed number of replicas, whose random numbers follow from their places. Its result is what is needed of it:
counts, means, sums of squares, and how many numbers fall into each of fixed bins. Parts are put together in their
order, so that the statistics do not depend on who computed them, to the last bit.

The bins are those of the leading binary digits of a number: `PER_OCTAVE` of them between a power of two and the next.
Counts are whole numbers, and their sums exact; a quantile is known to the width of a bin.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from twolayer.core.types import Numbers
from twolayer.data.schema import TRAJECTORY
from twolayer.description import Status
from twolayer.sweeps.content import CellNode, CellStatus, CellVariable, Content

# Bits of a double that are not looked at: 7 of its 52 digits are.
DIGITS = 7
PER_OCTAVE = 2**DIGITS
_HIDDEN = 52 - DIGITS
# Bins have numbers within this of zero, on either side.
_MOST = 2**19
# What is counted in bins, what only the largest number is kept of, and what is no number of a replica.
BINNED = ("excess_risk", "crossing_time", "overlap_time")
LARGEST = ("risk_error", "overlap_error")
OTHER = ("status",)
PASSAGE = "crossing_time"
QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
# The replicas of a part are a power of two, such that what is saved of them takes no more than these bytes.
BYTES, FEWEST, MOST = 2**27, 2**6, 2**16


def part_size(p: int, k: int, points: int) -> int:
    """The number of replicas of a part; it depends on nothing but the sizes of a run."""
    fitting = BYTES // (8 * points * (p * (p + k + 1) + k + 8))
    return min(max(1 << (max(1, fitting).bit_length() - 1), FEWEST), MOST)


# ------------------------------------------------------------------------------------------------------------- bins


def bins_of(values: np.ndarray) -> np.ndarray:
    """The bin of each number, which grows with it."""
    size = np.ascontiguousarray(np.abs(values), dtype=np.float64).view(np.int64) >> _HIDDEN
    return np.where(values < 0.0, -size - 1, size)


def ends_of(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ends of bins, the smaller one first."""
    size = np.where(bins < 0, -bins - 1, bins)
    inner, outer = ((size + n << _HIDDEN).astype(np.int64).view(np.float64) for n in (0, 1))
    return np.where(bins < 0, -outer, inner), np.where(bins < 0, -inner, outer)


class BinCounts(NamedTuple):
    """How many numbers fall into each bin, at each place of an array; places and bins are one whole number, sorted."""

    codes: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "BinCounts":
        """Count numbers along the first axis; those that are missing do not count."""
        codes, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for place, column in enumerate(values.reshape(len(values), math.prod(values.shape[1:])).T):
            bins = bins_of(column[np.isfinite(column)])
            if bins.size:
                first = int(bins.min())
                number = np.bincount(bins - first)
                there = np.flatnonzero(number)
                codes.append(2 * _MOST * place + there + first + _MOST)
                counts.append(number[there])
        return cls(np.concatenate(codes), np.concatenate(counts))

    def joined(self, other: "BinCounts") -> "BinCounts":
        """Add the counts of another part."""
        codes, where = np.unique(np.concatenate([self.codes, other.codes]), return_inverse=True)
        counts = np.zeros(len(codes), np.int64)
        np.add.at(counts, where, np.concatenate([self.counts, other.counts]))
        return BinCounts(codes, counts)

    def places(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each place that has numbers: its number, its bins and their counts."""
        place = self.codes // (2 * _MOST)
        ends = np.append(np.flatnonzero(np.diff(place)) + 1, len(place)) if len(place) else place
        for first, last in zip(np.append(0, ends)[: len(ends)], ends, strict=True):
            yield int(place[first]), self.codes[first:last] % (2 * _MOST) - _MOST, self.counts[first:last]


def quantiles_of(bins: np.ndarray, counts: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Quantiles of numbers in bins, and their errors.

    The error is the distance to the farther end of the bins that hold the numbers one standard deviation
    :math:`\sqrt{n q (1 - q)}` of the rank below and above: the scatter of the sample, and the width of a bin.
    """
    total = int(counts.sum())
    summed = np.cumsum(counts)
    spread = np.sqrt(total * levels * (1.0 - levels))

    def at(rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rank = np.clip(np.ceil(rank), 1, total)
        return ends_of(bins[np.searchsorted(summed, rank)])

    low, high = at(total * levels)
    value = 0.5 * (low + high)
    return value, np.maximum(value - at(total * levels - spread)[0], at(total * levels + spread)[1] - value)


# ------------------------------------------------------------------------------------------------------------ parts


def reduced(node: CellNode) -> CellNode:
    """Reduce the trajectories of some replicas to the statistics that are kept."""
    variables = {}
    for name, variable in node.variables.items():
        if variable.dimensions[:1] != ("replica",):
            variables[name] = variable
            continue
        if variable.is_coordinate or name in OTHER:
            continue
        values, rest = np.asarray(variable.values, np.float64), variable.dimensions[1:]
        there = np.isfinite(values)
        number = there.sum(axis=0)
        if name in LARGEST:
            stated: dict[str, Any] = {"": np.max(np.where(np.isnan(values), -np.inf, values), axis=0)}
        else:
            mean = np.where(there, values, 0.0).sum(axis=0) / np.maximum(number, 1)
            squares = (np.where(there, values - mean, 0.0) ** 2).sum(axis=0)
            stated = {"_count": number, "_mean": mean, "_squares": squares}
        for ending, array in stated.items():
            variables[name + ending] = CellVariable(rest, np.asarray(array), variable.attributes, False)
        if name in BINNED:
            counts = BinCounts.of(values)
            for ending, array in zip(("_codes", "_counts"), counts, strict=True):
                variables[name + ending] = CellVariable((f"{name}_bin",), array, {}, False)
    status = np.bincount(node.variables["status"].values, minlength=len(Status))
    variables["replicas"] = CellVariable(("ending",), status, {"long_name": "replicas that ended so"}, False)
    return CellNode(variables, node.attributes)


def joined(left: CellNode, right: CellNode) -> CellNode:
    """Join the statistics of two parts of the replicas, in this order."""
    variables = dict(left.variables)

    def both(name: str) -> tuple[np.ndarray, np.ndarray]:
        return left.variables[name].values, right.variables[name].values

    def put(name: str, values: Numbers) -> None:
        variables[name] = left.variables[name]._replace(values=np.asarray(values))

    put("replicas", np.add(*both("replicas")))
    for name in LARGEST:
        put(name, np.maximum(*both(name)))
    for name in _reduced_names(left):
        n, m = both(f"{name}_count")
        total = n + m
        first, second = both(f"{name}_mean")
        share = m / np.maximum(total, 1)
        put(f"{name}_count", total)
        put(f"{name}_mean", first + share * (second - first))
        put(f"{name}_squares", np.add(*both(f"{name}_squares")) + n * share * (second - first) ** 2)
        if f"{name}_codes" in variables:
            counts = _counts(left, name).joined(_counts(right, name))
            put(f"{name}_codes", counts.codes)
            put(f"{name}_counts", counts.counts)
    return CellNode(variables, left.attributes)


def _reduced_names(node: CellNode) -> list[str]:
    return [name.removesuffix("_squares") for name in node.variables if name.endswith("_squares")]


def _counts(node: CellNode, name: str) -> BinCounts:
    return BinCounts(node.variables[f"{name}_codes"].values, node.variables[f"{name}_counts"].values)


# ------------------------------------------------------------------------------------------------------- the result


def concluded(node: CellNode) -> Content:
    """The statistics of a run from what is kept of all its parts."""
    working = [f"{name}{end}" for name in _reduced_names(node) for end in ("_codes", "_counts", "_squares")]
    variables = {name: variable for name, variable in node.variables.items() if name not in working}
    endings = np.array([status.name.lower() for status in Status])
    variables["ending"] = CellVariable(("ending",), endings, {}, True)
    variables["quantile"] = CellVariable(("quantile",), np.array(QUANTILES), {}, True)
    for name in _reduced_names(node):
        variables |= _moments(node, name)
        if name in BINNED:
            variables |= _quantiles(node, name)
    for name in LARGEST:
        values = variables[name].values
        variables[name] = variables[name]._replace(values=np.where(values < 0.0, np.nan, values))
    variables |= _histogram(node, PASSAGE)
    ended = node.variables["replicas"].values
    broken = [status for status in (Status.DIVERGED, Status.UNFINISHED) if ended[status]]
    if not broken:
        return Content(CellStatus.DONE, "", {"": CellNode(variables, node.attributes)})
    number = int(sum(ended[status] for status in broken))
    message = f"{number} of {int(ended.sum())} replicas: {broken[0].sentence}."
    return Content(CellStatus.DIVERGED, message, {"": CellNode(variables, node.attributes)})


def _moments(node: CellNode, name: str) -> dict[str, CellVariable]:
    mean, number = node.variables[f"{name}_mean"], node.variables[f"{name}_count"].values
    squares = node.variables[f"{name}_squares"].values
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(number > 1, squares / (number - 1), np.nan)
        stderr = np.sqrt(variance / number)
    units = str(mean.attributes.get("units", "1"))
    squared = units if units == "1" else f"({units})^2"

    def of(values: Numbers, words: str, units: str) -> CellVariable:
        return CellVariable(mean.dimensions, np.asarray(values), _stated(mean.attributes, words, units), False)

    return {
        f"{name}_count": of(number, "number of replicas with a value of", "1"),
        f"{name}_mean": of(np.where(number > 0, mean.values, np.nan), "mean of", units),
        f"{name}_variance": of(variance, "variance of", squared),
        f"{name}_stderr": of(stderr, "standard error of the mean of", units),
    }


def _stated(attributes: Mapping[str, Any], words: str, units: str) -> dict[str, Any]:
    return {"long_name": f"{words}: {attributes.get('long_name', '')}", "units": units}


def _quantiles(node: CellNode, name: str) -> dict[str, CellVariable]:
    mean = node.variables[f"{name}_mean"]
    units = str(mean.attributes.get("units", "1"))
    values, errors = (np.full((len(QUANTILES), mean.values.size), np.nan) for _ in range(2))
    for place, bins, counts in _counts(node, name).places():
        values[:, place], errors[:, place] = quantiles_of(bins, counts, np.array(QUANTILES))

    def of(values: np.ndarray, words: str) -> CellVariable:
        shape = (len(QUANTILES), *mean.values.shape)
        return CellVariable(
            ("quantile", *mean.dimensions), values.reshape(shape), _stated(mean.attributes, words, units), False
        )

    return {
        f"{name}_quantile": of(values, "quantiles of"),
        f"{name}_quantile_error": of(errors, "standard error and width of the bins of quantiles of"),
    }


def _histogram(node: CellNode, name: str) -> dict[str, CellVariable]:
    """How many numbers there are in each bin between the smallest and the largest of them."""
    bins, counts = next(((bins, counts) for _, bins, counts in _counts(node, name).places()), (None, None))
    if bins is None or counts is None:
        return {}
    all_bins = np.arange(bins[0], bins[-1] + 1)
    number = np.zeros(len(all_bins), np.int64)
    number[bins - bins[0]] = counts
    low, high = ends_of(all_bins)
    units = str(node.variables[f"{name}_mean"].attributes.get("units", "1"))

    def of(values: np.ndarray, words: str, units: str) -> CellVariable:
        return CellVariable(("bin",), values, {"long_name": words, "units": units}, False)

    return {
        f"{name}_histogram": of(number, "number of replicas whose first passage lies in the bin", "1"),
        f"{name}_from": of(low, "smaller end of the bin", units),
        f"{name}_to": of(high, "larger end of the bin", units),
    }


assert set(BINNED + LARGEST + OTHER) <= set(TRAJECTORY.variables)
