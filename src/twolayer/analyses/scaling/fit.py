"""Exponents of power laws: least squares in logarithms within a stated window, with intervals from the replicas."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from twolayer.core.errors import InvalidInput, NotApplicable, shown, takes_these
from twolayer.core.precision import double
from twolayer.core.text import Text, table
from twolayer.data.deviation import Finding, judge_number, worst_outcome
from twolayer.data.provenance import Question, provenance
from twolayer.data.schema import Schema, Variable, add_kind, kind_of, label
from twolayer.data.summary import verdict_lines
from twolayer.description import Exactness
from twolayer.specification.fields import choice, count

if TYPE_CHECKING:
    import xarray as xr

# Points of a curve on an even grid in the logarithm, and the fewest that a fit takes.
GRID, FEWEST = 48, 3
# Part of the interval that is left out on both sides together.
OUTSIDE = 0.05
# Multiplications by a sample in training: forwards once, and twice as many backwards, each with its addition.
OPERATIONS = 6.0
AGAINST = ("samples", "time", "compute")
METHOD = (
    "least squares of log risk by log {x} on {points}; intervals are 95% of {bootstrap} bootstrap samples of the "
    "replicas, and the range of both halves of the window where there is one replica"
)


def summary(result: "xr.Dataset") -> Text:
    """The exponent of each curve with its interval and window."""
    rows = []
    for name in result.curve.values:
        here = result.sel(curve=name)
        interval = f"{float(here.exponent_low):.3f} to {float(here.exponent_high):.3f}"
        window = f"{float(here.window[0]):.3g} to {float(here.window[1]):.3g}"
        rows.append([name, f"{float(here.exponent):.3f}", interval, window])
    lines = [f"Risk against {result.attrs['against']}, {result.attrs['method']}.", ""]
    lines += table(["curve", "exponent", "interval", "window"], rows, right=(1, 2, 3))
    if "width_exponent" in result:
        lines.append(f"The best width grows as compute to the power {float(result.width_exponent):.3f}.")
    verdict = verdict_lines(result.attrs)
    return Text("\n".join([*lines, *[""] * bool(verdict), *verdict]))


SCALING = add_kind(
    Schema(
        kind="scaling",
        variables={
            "exponent": Variable(("curve",), "slope of log risk by log x within the window"),
            "exponent_low": Variable(("curve",), "lower end of the interval of the exponent"),
            "exponent_high": Variable(("curve",), "upper end of the interval of the exponent"),
            "exponent_of_half": Variable(("curve", "half"), "exponent in the lower and the upper half of the window"),
            "prefactor": Variable(("curve",), "risk that the fit has at x = 1"),
            "window": Variable(("curve", "end"), "where the fit begins and ends"),
            "x": Variable(("curve", "point"), "samples, time, operations or an axis: see the attribute `against`"),
            "risk": Variable(("curve", "point"), "excess risk, mean over replicas"),
            "local_exponent": Variable(("curve", "point"), "slope of log risk by log x at each point"),
        },
        optional={
            "width": Variable(("point",), "best width for a number of operations"),
            "width_exponent": Variable((), "slope of the logarithm of the best width by that of the operations"),
        },
        coordinates={"curve": Variable(("curve",), "description, and values of the axes of a sweep")},
        attributes=("against", "method", "judge", "outcome", "verdict"),
        summary=summary,
    )
)


class RiskCurve(NamedTuple):
    """Risks of replicas at increasing positive x."""

    name: str
    description: str
    is_exact: bool
    x: Float[np.ndarray, " points"]
    risk: Float[np.ndarray, "replicas points"]

    def on_grid(self) -> "RiskCurve":
        """The same on an even grid in log x, so that dense save points count no more than others."""
        grid = np.geomspace(self.x[0], self.x[-1], GRID)
        rows = [np.exp(np.interp(np.log(grid), np.log(self.x), np.log(row))) for row in self.risk]
        return self._replace(x=grid, risk=np.array(rows))


@takes_these
def scaling(
    result: "xr.Dataset | xr.DataTree",
    against: str = "samples",
    *,
    window: tuple[float | int, float | int] | list[float | int] | None = None,
    bootstrap: int = 400,
    seed: int = 0,
) -> "xr.Dataset":
    r"""Fit the exponents of the excess risk against samples, time, compute, or an axis of a sweep such as the width.

    .. math:: \log \mathcal R = \log A + b \log x

    The mean over replicas is fitted by least squares; along a run on an even grid in the logarithm. Compute is
    :math:`6\,p\,d` operations a sample. Against compute a sweep over ``problem.student.p`` also has the frontier: the
    least risk of all widths at each number of operations, and the best width there.

    Parameters
    ----------
    result
        What `evolve`, `compare` or `sweep` returned.
    against
        ``"samples"``, ``"time"``, ``"compute"``, or the name of an axis of a sweep, along which final risks are fitted.
    window
        The least and the largest x of the fit; by default the upper half of the logarithmic range of a run, and the
        whole of an axis.
    bootstrap, seed
        How often the replicas are drawn again, and the seed of that.

    Returns
    -------
    A labelled dataset of kind "scaling" along ``curve``: ``exponent`` with ``exponent_low`` and ``exponent_high``, the
    ``window``, exponents of both halves of it, ``local_exponent`` along the curve. Where a measurement stands beside
    theories, ``outcome`` and ``verdict`` compare their exponents.

    Examples
    --------
    >>> import twolayer as tl
    >>> problem = tl.Problem(tl.SingleIndex("linear"), tl.Student(1, "linear"), tl.Gaussian(100), noise=1.0)
    >>> result = tl.scaling(tl.evolve(problem, tl.SGD(0.1), "SaadSolla", until=1.0, save="log:50"))
    >>> result.exponent.dims
    ('curve',)
    """
    draws = count("bootstrap", low=2, high=10**5)(bootstrap)
    rng = np.random.default_rng(count("seed", low=0, high=2**31 - 1)(seed))
    nodes = _nodes(result)
    axes = sorted({axis for dataset in nodes.values() for axis in _axes(dataset)})
    choice("against", (*AGAINST, *axes))(against)
    ends = _as_window(window)
    curves = [curve for name, dataset in nodes.items() for curve in _curves(name, dataset, axes, against)]
    is_axis = against in axes
    values, width, frontier = [], {}, None
    if against == "compute" and "p" in axes:
        frontier, width = _frontier(curves)
        curves.append(frontier)
    for curve in curves:
        values.append(_fitted(curve, ends, is_axis, draws, rng))
    arrays = _arrays(values)
    if width:
        place = np.interp(np.log(arrays["x"][-1]), np.log(width["x"]), np.log(width["p"]))
        inside = (arrays["x"][-1] >= values[-1]["window"][0]) & (arrays["x"][-1] <= values[-1]["window"][1])
        arrays |= {"width": np.exp(place)}
        arrays["width_exponent"] = np.polyfit(np.log(arrays["x"][-1][inside]), place[inside], 1)[0]
    judge, findings = _judged(curves, values)
    outcome = worst_outcome(finding.outcome for finding in findings)
    sentence = " ".join(finding.sentence for finding in findings) or "Nothing to compare with."
    points = "values of the axis" if is_axis else f"{GRID} points that are even in the logarithm"
    first = next(iter(nodes.values())).attrs
    with double():
        fields = {"of": first.get("spec", ""), "against": against, "window": ends, "bootstrap": draws, "seed": seed}
        attributes = {
            "against": against,
            "method": METHOD.format(x=against, points=points, bootstrap=draws),
            "judge": judge,
            "outcome": outcome,
            "verdict": sentence,
        } | provenance(Question("scaling", fields), seed)
        names = {"curve": [curve.name for curve in curves]}
        return label(SCALING, arrays, names, attributes)


# ------------------------------------------------------------------------------------------------------- the curves


def _nodes(result: "xr.Dataset | xr.DataTree") -> dict[str, "xr.Dataset"]:
    """The datasets of a result by the names of their descriptions."""
    import xarray as xr

    if isinstance(result, xr.DataTree) and result.children:
        nodes = {str(name): child.to_dataset() for name, child in result.children.items()}
    elif isinstance(result, xr.Dataset):
        nodes = {str(result.attrs.get("description", "result")): result}
    else:
        nodes = {}
    kinds = [kind_of(node.attrs) if "excess_risk" in node else "" for node in nodes.values()]
    if not kinds or any(kind not in ("trajectory", "sweep") for kind in kinds):
        raise InvalidInput(
            "Argument `result` must be what `evolve`, `compare` or `sweep` returned, with the risk along runs, but is "
            f"{shown(type(result).__name__)}."
        )
    return nodes


def _axes(dataset: "xr.Dataset") -> list[str]:
    """The axes of a sweep among the dimensions of the risk."""
    return [str(name) for name in dataset.excess_risk.dims if name not in ("replica", "time", "point")]


def _curves(name: str, dataset: "xr.Dataset", axes: Sequence[str], against: str) -> list[RiskCurve]:
    """The curves of one description: one for each point of the axes that are not fitted along."""
    along = "time" if "time" in dataset.excess_risk.dims else "point"
    others = [axis for axis in _axes(dataset) if axis != against]
    is_exact = dataset.attrs.get("exactness") == Exactness.EXACT.value
    curves = []
    for index in np.ndindex(*(dataset.sizes[axis] for axis in others)):
        part = dataset.isel(dict(zip(others, index, strict=True)))
        stated = [f"{axis} = {part[axis].item()}" for axis in others]
        words = ", ".join([name, *stated])
        if against in axes:
            x, risk = part[against].values, part.excess_risk.transpose("replica", against, along).values
            curves.append(_checked(words, name, is_exact, x, _last(risk)))
            continue
        risk = part.excess_risk.transpose("replica", along).values
        x = part["time"].values if against == "time" else part["samples"].values
        if against == "compute":
            x = x * OPERATIONS * _size(part, "p") * _size(part, "d")
        curves.append(_checked(words, name, is_exact, x, risk))
    return curves


def _last(risk: np.ndarray) -> np.ndarray:
    """The last risk of each run that is there, (replicas, values)."""
    there = np.isfinite(risk)
    place = risk.shape[2] - 1 - np.argmax(there[:, :, ::-1], axis=2)
    return np.take_along_axis(risk, place[:, :, None], axis=2)[:, :, 0]


def _size(part: "xr.Dataset", name: str) -> float:
    """The width or the dimension of a run: an axis of a sweep, or what its specification says."""
    if name in part.coords and part[name].ndim == 0:
        return float(part[name])
    if name == "p" and "i" in part.sizes:
        return float(part.sizes["i"])
    spec = json.loads(str(part.attrs.get("spec", "{}")) or "{}")
    problem = spec.get("problem", {}) or spec.get("query", {}).get("problem", {})
    size = problem.get("inputs", {}).get("d") if name == "d" else problem.get("student", {}).get("p")
    if size is None:
        raise NotApplicable(f"The result does not say its `{name}`: sweep over it, or give the results of one run.")
    return float(size)


def _checked(words: str, name: str, is_exact: bool, x: Any, risk: np.ndarray) -> RiskCurve:
    """A curve without points at which x or a risk is not positive, and without replicas that did not reach the end."""
    x = np.asarray(x, dtype=float)
    done = np.isfinite(risk).any(axis=1)
    keep = (x > 0.0) & np.isfinite(x) & np.all(np.isfinite(risk[done]) & (risk[done] > 0.0), axis=0)
    order = np.argsort(x[keep])
    return RiskCurve(words, name, is_exact, x[keep][order], risk[done][:, keep][:, order])


def _frontier(curves: Sequence[RiskCurve]) -> tuple[RiskCurve, dict[str, np.ndarray]]:
    """The least mean risk of all widths at each number of operations that one of them reaches, and the best width."""
    low, high = min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)
    grid = np.geomspace(low, high, 4 * GRID)
    rows = np.full((len(curves), len(grid)), np.inf)
    for row, curve in zip(rows, curves, strict=True):
        inside = (grid >= curve.x[0]) & (grid <= curve.x[-1])
        mean = np.log(curve.risk.mean(axis=0))
        row[inside] = np.exp(np.interp(np.log(grid[inside]), np.log(curve.x), mean))
    best = np.argmin(rows, axis=0)
    there = np.isfinite(rows.min(axis=0))
    widths = np.array([float(curve.name.split("p = ")[1].split(",")[0]) for curve in curves])
    risk = rows.min(axis=0)[None, there]
    return RiskCurve("frontier", "frontier", False, grid[there], risk), {"x": grid[there], "p": widths[best][there]}


# --------------------------------------------------------------------------------------------------------- the fits


def _as_window(window: Any) -> tuple[float, float] | None:
    if window is None:
        return None
    is_pair = isinstance(window, tuple | list) and len(window) == 2
    ends = (float(window[0]), float(window[1])) if is_pair else (0.0, 0.0)
    if not 0.0 < ends[0] < ends[1] < np.inf:
        raise InvalidInput(f"Argument `window` must be two increasing positive numbers, but is {shown(window)}.")
    return ends


def _fitted(
    curve: RiskCurve, ends: tuple[float, float] | None, is_axis: bool, draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    """The exponent of a curve with its interval, and what goes with it."""
    if len(curve.x) < FEWEST:
        raise InvalidInput(
            f"Argument `result` must have at least {FEWEST} points with positive x and risk on a curve, but "
            f"{curve.name} has {len(curve.x)}."
        )
    used = curve if is_axis else curve.on_grid()
    x, risk = used.x, used.risk
    middle = x[0] if is_axis else np.sqrt(x[0] * x[-1])
    low, high = ends if ends is not None else (middle, x[-1])
    inside = (x >= low * (1.0 - 1e-9)) & (x <= high * (1.0 + 1e-9))
    known = np.sum((curve.x >= low * (1.0 - 1e-9)) & (curve.x <= high * (1.0 + 1e-9)))
    if inside.sum() < FEWEST or known < FEWEST:
        raise InvalidInput(
            f"Argument `window` must contain at least {FEWEST} points of every curve, but {low:.6g} to {high:.6g} has "
            f"{min(known, inside.sum())} of {curve.name}."
        )
    log_x = np.log(x[inside])

    def slope(rows: np.ndarray, part: slice = slice(None)) -> tuple[float, float]:
        b, a = np.polyfit(log_x[part], np.log(rows.mean(axis=0)[inside][part]), 1)
        return float(b), float(a)

    exponent, log_prefactor = slope(risk)
    half = len(log_x) // 2
    halves = [slope(risk, slice(0, max(half + 1, 2)))[0], slope(risk, slice(min(half, len(log_x) - 2), None))[0]]
    replicas = len(risk)
    drawn = [slope(risk[rng.integers(replicas, size=replicas)])[0] for _ in range(draws if replicas > 1 else 0)]
    ends_of = np.quantile(drawn, [OUTSIDE / 2, 1.0 - OUTSIDE / 2]) if drawn else np.array([min(halves), max(halves)])
    interval = exponent + (ends_of - exponent) * (_few(replicas) if drawn else 1.0)
    return {
        "exponent": exponent,
        "exponent_low": min(float(interval[0]), exponent),
        "exponent_high": max(float(interval[1]), exponent),
        "exponent_of_half": halves,
        "prefactor": float(np.exp(log_prefactor)),
        "window": [float(x[inside][0]), float(x[inside][-1])],
        "x": x,
        "risk": risk.mean(axis=0),
        "local_exponent": np.gradient(np.log(risk.mean(axis=0)), np.log(x)),
        "standard_error": float(np.std(drawn, ddof=1)) if drawn else np.nan,
        "replicas": replicas,
    }


def _few(replicas: int) -> float:
    """By how much the bootstrap of few replicas is too narrow: its variance, and Student's t in place of the normal."""
    from scipy.special import ndtri, stdtrit

    end = 1.0 - OUTSIDE / 2
    return float(np.sqrt(replicas / (replicas - 1)) * stdtrit(replicas - 1, end) / ndtri(end))


def _arrays(values: list[dict[str, Any]]) -> dict[str, Any]:
    """The fits of all curves as arrays; shorter curves are filled up with NaN."""
    longest = max(len(value["x"]) for value in values)
    arrays: dict[str, Any] = {}
    for name in SCALING.variables:
        rows = [np.asarray(value[name], dtype=float) for value in values]
        if name in ("x", "risk", "local_exponent"):
            rows = [np.pad(row, (0, longest - len(row)), constant_values=np.nan) for row in rows]
        arrays[name] = np.stack(rows)
    return arrays


def _judged(curves: Sequence[RiskCurve], values: Sequence[dict[str, Any]]) -> tuple[str, list[Finding]]:
    """The exponents of theories by that of the measurement of the same curve, where there is one."""
    exact = next((curve.description for curve in curves if curve.is_exact), "")
    findings: list[Finding] = []
    measured = {c.name.removeprefix(exact): v for c, v in zip(curves, values, strict=True) if c.description == exact}
    for curve, value in zip(curves, values, strict=True):
        beside = measured.get(curve.name.removeprefix(curve.description))
        if not exact or curve.description in (exact, "frontier") or beside is None:
            continue
        numbers = (value["exponent"], 0.0, beside["exponent"], beside["standard_error"], beside["replicas"])
        findings.append(judge_number(f"The exponent of {curve.name}", *numbers))
    return exact or curves[0].description, findings
