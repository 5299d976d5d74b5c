"""What `ntk` gives back: a dataset with its schema, its short table, and plain data for JSON."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.lazy.networks import LIPSCHITZ, METRICS
from twolayer.analyses.lazy.setting import learning_rate
from twolayer.analyses.lazy.theorem_conditions import theorem_rows
from twolayer.core.precision import double
from twolayer.core.text import Text, table
from twolayer.data.deviation import Finding
from twolayer.data.provenance import provenance
from twolayer.data.schema import Schema, Variable, add_kind, check_kind, label
from twolayer.data.summary import as_python, finite, verdict_lines
from twolayer.kernel import FreeSpectrum, Trained

if TYPE_CHECKING:
    import xarray as xr

    from twolayer.analyses.lazy.lazy_ask import LazySpec
    from twolayer.analyses.lazy.ntk import LazyPrediction

# Beyond this many points a curve is thinned in plain data; the dataset keeps all of them.
MOST_POINTS = 2001
KIND = "lazy_training"
LABELS = "labels"
NETWORKS = ("replica", LABELS)


def label_result(
    spec: "LazySpec",
    predicted: "LazyPrediction",
    trained: list[list[Trained]],
    finding: Finding | None,
    values: dict[str, Any],
    notes: list[str],
) -> "xr.Dataset":
    """The dataset of all numbers; the verdict is among its attributes where networks were trained."""
    networks, spectrum = predicted.networks, predicted.spectrum
    curves: list[Any] = predicted.curves  # there are projections where the spectrum is exact
    coordinates: dict[str, Any] = {
        LABELS: [curve.labels for curve in curves],
        "step": np.arange(networks.steps + 1),
    }
    measures = [(np.nan, np.nan) if c.complexity is None else (c.complexity.value, c.complexity.error) for c in curves]
    residuals = np.stack([curve.prediction.residuals for curve in curves])
    values = {
        "lambda_min": spectrum.lambda_min,
        "lambda_min_error": spectrum.lambda_min_error,
        "lambda_max": spectrum.lambda_max,
        "lambda_max_error": spectrum.lambda_max_error,
        "step_size": networks.eta,
        "largest_step_size": 2.0 / spectrum.lambda_max,
        "learning_rate": learning_rate(networks.eta, spec.problem.d),
        "eigenvalues": spectrum.eigenvalues,
        "complexity": [value for value, _ in measures],
        "complexity_error": [error for _, error in measures],
        "predicted_residual": residuals,
        "predicted_error": np.stack([curve.prediction.error for curve in curves]),
        **values,
    }
    if isinstance(spectrum, FreeSpectrum):
        values |= {"eigenvalue_counts": spectrum.counts, **_rules(curves)}
    else:
        values["projections"] = np.stack([curve.projections for curve in curves])
    attributes = _attributes(spec, predicted, notes)
    if finding is not None:
        norms = np.stack([[run.residuals for run in runs] for runs in trained], axis=1)
        values |= {
            "trained_residual": norms,
            "deviation": np.abs(norms - residuals).max(axis=-1) / residuals[:, 0],
            "flip_share": np.stack([[run.flip_share for run in runs] for runs in trained], axis=1),
        }
        coordinates["replica"] = np.arange(networks.replicas)
        attributes |= finding.attributes | {"judge": finding.judge}
    if "kernel_test_error" in values:
        coordinates["metric"] = list(METRICS)
    if "share_complexity" in values:
        coordinates["share"] = list(spec.ask.shares)
    if "statement" in values:
        coordinates["statement"] = values.pop("statement")
    return label(SCHEMA, values, coordinates, attributes)


def _rules(curves: list[Any]) -> dict[str, Any]:
    """The measures of the labels on the spectrum where there are no eigenvectors; shorter ones end in NaN."""
    longest = max(len(curve.prediction.weights) for curve in curves)

    def padded(numbers: np.ndarray) -> np.ndarray:
        return np.pad(numbers, (0, longest - len(numbers)), constant_values=np.nan)

    return {
        "rule_eigenvalues": np.stack([padded(curve.prediction.eigenvalues) for curve in curves]),
        "rule_weights": np.stack([padded(curve.prediction.weights) for curve in curves]),
    }


def _attributes(spec: "LazySpec", predicted: "LazyPrediction", notes: list[str]) -> dict[str, Any]:
    networks, setting = predicted.networks, predicted.networks.setting
    with double():  # whatever the caller's, the kernel's numbers are made in double precision
        origin = provenance(spec, spec.ask.seed, ["arora2019"])
    return {
        **origin,
        "n": len(networks.X),
        "d": networks.X.shape[1],
        "activation": type(setting.activation).__name__.lower(),
        "layers": setting.layers,
        "ridge": float(spec.ask.ridge),
        "width": setting.width,
        "start": setting.start,
        "kappa": setting.kappa,
        "network_precision": spec.ask.precision,
        "target_formula": "" if spec.ask.target is None else spec.ask.target_name,
        "test_samples": 0 if spec.ask.test is None else spec.ask.test.n,
        **predicted.route,
        "notes": "\n".join(notes),
    }


def share_errors(result: "xr.Dataset") -> "tuple[xr.DataArray, xr.DataArray | None, str]":
    """Test errors of kernel and networks along the shares of random labels: wrong signs, or the loss of real labels."""
    names, words = ("share_kernel_error", "share_network_error"), "test error"
    if bool(np.isnan(result.share_kernel_error).any()):
        result, words = result.sel(metric="absolute_loss"), "test loss"
        names = ("share_kernel_loss", "share_network_loss")
    return result[names[0]], result[names[1]] if names[1] in result else None, words


def rank_correlation(result: "xr.Dataset") -> float | None:
    """Spearman's, of the measure and the test error over the shares of random labels; None for fewer than three."""
    if result.sizes.get("share", 0) < 3:
        return None
    kernel, network, _ = share_errors(result)
    errors = kernel if network is None else network.mean("replica")
    if len(np.unique(errors)) < 2:
        return None
    from scipy.stats import spearmanr

    correlation: Any = spearmanr(result.share_complexity, errors)
    return float(correlation.statistic)


# --------------------------------------------------------------------------------------------------- plain data


def to_dict(result: "xr.Dataset") -> dict[str, Any]:
    """Convert a result of `ntk` to plain data for JSON: means over networks, None for numbers that do not exist."""
    check_kind(result, KIND, "ntk")
    attributes = result.attrs
    mean = result.mean("replica", keep_attrs=True) if "replica" in result.dims else result

    def value(name: str) -> float | None:
        return finite(mean[name]) if name in result else None

    bounds = {"measured": "target_form", "bound": "target_bound", "sharp_bound": "target_sharp_bound"}
    target = {"formula": attributes["target_formula"]} | {key: value(name) for key, name in bounds.items()}
    is_free = "eigenvalue_counts" in result
    given = result.sel({LABELS: "given"})
    return {
        **{
            name: as_python(attributes[name])
            for name in ("n", "d", "activation", "layers", "ridge", "method", "reason")
        },
        **{name: value(name) for name in ("lambda_min", "lambda_min_error", "lambda_max", "lambda_max_error")},
        "complexity": finite(given.complexity),
        "complexity_error": finite(given.complexity_error),
        "eta": value("step_size"),
        "largest_eta": value("largest_step_size"),
        "learning_rate": value("learning_rate"),
        "steps": int(result.step[-1]),
        "replicas": result.sizes.get("replica", 0),
        "curves": {str(name): _curve(result.sel({LABELS: name})) for name in result[LABELS].values},
        "initial_gram_distance": value("initial_gram_distance"),
        "final_gram_distance": value("final_gram_distance"),
        "test": _test(mean),
        "shares": _shares(mean),
        "rank_correlation": rank_correlation(result),
        "target": target if attributes["target_formula"] else None,
        **{name: value(name) for name in ("loss_bound", "bound_remainder", "required_steps")},
        "theorems": _theorems(result),
        "eigenvalues": result.eigenvalues.values.tolist(),
        "eigenvalues_are": "nodes of the density, of eigenvalue_counts each" if is_free else "all",
        "eigenvalue_counts": result.eigenvalue_counts.values.tolist() if is_free else None,
        "outcome": attributes.get("outcome"),
        "verdict": attributes.get("verdict"),
        "notes": attributes["notes"].splitlines(),
        "seed": int(attributes["seed"]),
        "spec_hash": attributes["spec_hash"],
        "versions": json.loads(attributes["versions"]),
    }


def _curve(curve: "xr.Dataset") -> dict[str, Any]:
    thin = max(1, -(-curve.sizes["step"] // MOST_POINTS))
    has_network, has_modes = "trained_residual" in curve, "projections" in curve
    rule = {} if has_modes else {"eigenvalues": curve.rule_eigenvalues, "weights": curve.rule_weights}
    return {
        "complexity": finite(curve.complexity),
        "step": curve.step.values[::thin].tolist(),
        "predicted": curve.predicted_residual.values[::thin].tolist(),
        "predicted_error": curve.predicted_error.values[::thin].tolist(),
        "trained": curve.trained_residual.mean("replica").values[::thin].tolist() if has_network else None,
        **{name: float(curve[name].mean()) if has_network else None for name in ("deviation", "flip_share")},
        **{name: as_python(curve.attrs[name]) if has_network else None for name in ("width", "start", "kappa")},
        "projections": curve.projections.values.tolist() if has_modes else None,
        "measure": {name: x.values[np.isfinite(x.values)].tolist() for name, x in rule.items()} or None,
    }


def _test(mean: "xr.Dataset") -> dict[str, Any] | None:
    if "kernel_test_error" not in mean:
        return None
    errors = {
        name: {metric: finite(mean[f"{name}_test_error"].sel(metric=metric)) for metric in METRICS}
        for name in ("kernel", "network")
        if f"{name}_test_error" in mean
    }
    return {"n": int(mean.attrs["test_samples"]), "kernel": errors["kernel"], "network": errors.get("network")}


def _theorems(result: "xr.Dataset") -> list[dict[str, Any]]:
    names = ("role", "side", "needed", "here", "holds")
    rows = []
    for place in range(result.sizes.get("statement", 0)):
        row = result.isel(statement=place)
        cells = [row[f"theorem_{name}"].item() for name in names]
        role, side, needed, here = *cells[:2], *map(finite, cells[2:4])
        holds = None if np.isnan(cells[4]) else bool(cells[4])
        rows.append(
            {"statement": row.statement.item(), **dict(zip(names, (role, side, needed, here, holds), strict=True))}
        )
    return rows


def _shares(mean: "xr.Dataset") -> list[dict[str, float | None]]:
    names = {"share": "share", "complexity": "share_complexity", "kernel_error": "share_kernel_error"}
    names |= {"test_error": "share_network_error", "bound": "share_loss_bound"}
    if "share_kernel_loss" in mean:
        mean = mean.assign(kernel_loss=mean.share_kernel_loss.sel(metric="absolute_loss"))
        names["kernel_loss"] = "kernel_loss"
    if "share_network_loss" in mean:
        mean = mean.assign(network_loss=mean.share_network_loss.sel(metric="absolute_loss"))
        names["network_loss"] = "network_loss"
    rows = [mean.isel(share=place) for place in range(mean.sizes.get("share", 0))]
    return [{key: finite(row[name]) if name in row else None for key, name in names.items()} for row in rows]


# ----------------------------------------------------------------------------------------------------- the table

_METHODS = {"exact": "exact, all eigenvalues", "free": "matrix-free"}
_TRAINED = {"first": "first layer trained", "second": "second layer trained", "both": "both layers trained"}


def summary(result: "xr.Dataset") -> Text:
    """The short table of a result: spectrum, measure, curves, test errors, bounds, verdict and notes."""
    data = to_dict(result)
    steps, replicas = data["steps"], data["replicas"]
    facts = {
        "route": f"{_METHODS[data['method']]}: {data['reason']}",
        "smallest eigenvalue": f"{data['lambda_min']:.4g} +- {data['lambda_min_error']:.1e}",
        "largest eigenvalue": f"{data['lambda_max']:.6g} +- {data['lambda_max_error']:.1e}",
        "step size": f"{data['eta']:.4g}, below 2 / lambda_max = {data['largest_eta']:.4g}",
        "learning rate": f"{data['learning_rate']:.4g}, d times the step size",
    }
    if data["complexity"] is not None:
        facts["complexity sqrt(2yH^-1y/n)"] = f"{data['complexity']:.6g} +- {data['complexity_error']:.1e}"
    lines = [
        f"{data['n']} samples in {data['d']} dimensions, {data['activation']}, {_TRAINED[data['layers']]}"
        + (f", ridge {data['ridge']:g}" if data["ridge"] else "")
        + (f"; mean of {replicas} networks" if replicas > 1 else ""),
        "",
        *(f"{name:<28}{fact}" for name, fact in facts.items()),
        "",
        *_curve_rows(data["curves"], steps),
    ]
    if data["initial_gram_distance"] is not None:
        ends = data["initial_gram_distance"], data["final_gram_distance"]
        lines += ["", f"||H(0) - H|| = {ends[0]:.4g}, ||H({steps}) - H|| = {ends[1]:.4g}"]
    if data["test"] is not None:
        forms = {"mean_square": ".4g", "mean_absolute": ".4g", "wrong_share": ".4f"} | dict.fromkeys(LIPSCHITZ, ".4f")
        tested = [(name, data["test"][name]) for name in ("kernel", "network") if data["test"][name] is not None]
        rows = [[name, *(_cell(errors[metric], form) for metric, form in forms.items())] for name, errors in tested]
        header = [f"test error, n = {data['test']['n']}", "mean (u-y)^2", "mean |u-y|", "wrong signs"]
        lines += ["", *table([*header, "l1 below 1", "ramp", "logistic"], rows, right=range(1, 7))]
    if data["shares"]:
        names = ("complexity", "bound", "kernel_error", "test_error", "kernel_loss", "network_loss")
        rows = [[f"{row['share']:.2f}", *(_cell(row.get(name), ".4f") for name in names)] for row in data["shares"]]
        header = ["random labels", "complexity", "bound", "kernel error", "network error", "kernel l1", "network l1"]
        lines += ["", *table(header, rows, right=range(1, 7))]
    if data["rank_correlation"] is not None:
        lines.append(f"rank correlation of complexity and test error: {data['rank_correlation']:.3f}")
    if data["target"] is not None:
        formula, measured, bound, sharp = data["target"].values()
        norm = f"sqrt(yH^-1y) = {_cell(measured, '.4f')}"
        lines += ["", f"target {formula}: {norm}, below {sharp:.4f} (sharp) and {bound:.4f} (paper)"]
    if data["theorems"]:
        delta = json.loads(result.attrs["spec"])["ask"]["delta"]
        lines += ["", f"Theorems at failure probability {delta:g}, conditions with the constant 1:"]
        lines += theorem_rows(data["theorems"])
    if data["outcome"] is not None:
        lines += ["", *verdict_lines(data)]
    return Text("\n".join([*lines, *([""] if data["notes"] else []), *data["notes"]]))


def _curve_rows(curves: dict[str, dict[str, Any]], steps: int) -> list[str]:
    rows = []
    for name, curve in curves.items():
        last = {key: None if curve[key] is None else curve[key][-1] for key in ("predicted", "trained")}
        numbers = (curve["complexity"], *last.values(), curve["deviation"], curve["flip_share"])
        forms = (".4f", ".4f", ".4f", ".2%", ".2%")
        rows.append([name, *(_cell(number, form) for number, form in zip(numbers, forms, strict=True))])
    header = ["labels", "complexity", f"|y-u| at {steps}", "trained", "deviation", "flipped signs"]
    return table(header, rows, right=range(1, 6))


def _cell(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


# ---------------------------------------------------------------------------------------------------- the schema

SCHEMA = add_kind(
    Schema(
        kind=KIND,
        variables={
            "eigenvalues": Variable(("mode",), "eigenvalues of the Gram matrix, or nodes of their density"),
            "lambda_min": Variable((), "smallest eigenvalue of the Gram matrix"),
            "lambda_min_error": Variable((), "bound on the error of the smallest eigenvalue"),
            "lambda_max": Variable((), "largest eigenvalue of the Gram matrix"),
            "lambda_max_error": Variable((), "bound on the error of the largest eigenvalue"),
            "step_size": Variable((), "step size of gradient descent, learning_rate / d"),
            "largest_step_size": Variable((), "step size at which gradient descent diverges, 2 / lambda_max"),
            "learning_rate": Variable((), "learning rate"),
            "complexity": Variable((LABELS,), "complexity measure sqrt(2 y H^-1 y / n)"),
            "complexity_error": Variable((LABELS,), "bound on the error of the complexity measure"),
            "predicted_residual": Variable((LABELS, "step"), "predicted norm of y - u"),
            "predicted_error": Variable((LABELS, "step"), "bound on the numerical error of the predicted norm"),
        },
        optional={
            "eigenvalue_counts": Variable(("mode",), "eigenvalues for which a node of the density stands"),
            "projections": Variable((LABELS, "mode"), "projections of the labels on the eigenvectors"),
            "rule_eigenvalues": Variable((LABELS, "node"), "nodes of the measure of the labels on the spectrum"),
            "rule_weights": Variable((LABELS, "node"), "weights of the measure of the labels on the spectrum"),
            "trained_residual": Variable((*NETWORKS, "step"), "norm of y - u of the trained network"),
            "deviation": Variable(NETWORKS, "largest distance of the trained norm from the predicted, over that of y"),
            "flip_share": Variable(NETWORKS, "share of the signs of the units that flipped in training"),
            "initial_gram_distance": Variable(("replica",), "spectral norm of H(0) - H"),
            "final_gram_distance": Variable(("replica",), "spectral norm of H - H after the last step"),
            "kernel_test_error": Variable(("metric",), "test error of the infinitely wide network"),
            "network_test_error": Variable(("replica", "metric"), "test error of the trained network"),
            "share_complexity": Variable(("share",), "complexity measure with a share of random labels"),
            "share_complexity_error": Variable(("share",), "bound on the error of that complexity measure"),
            "share_kernel_error": Variable(("share",), "share of wrong signs of the infinitely wide network"),
            "share_network_error": Variable(("replica", "share"), "share of wrong signs of the trained network"),
            "kernel_test_deviation": Variable(("metric",), "standard error of that test error over the test samples"),
            "network_test_deviation": Variable(
                ("replica", "metric"), "standard error of the test error of the network over the test samples"
            ),
            "share_kernel_loss": Variable(("share", "metric"), "errors of the kernel on labels of the same law"),
            "share_network_loss": Variable(
                ("replica", "share", "metric"), "errors of the network on labels of the same law"
            ),
            "share_loss_bound": Variable(("share",), "bound of theorem 5.1 with a share of random labels"),
            "loss_bound": Variable((), "bound of theorem 5.1 on the loss: measure and remainder"),
            "bound_remainder": Variable((), "remainder of theorem 5.1"),
            "required_steps": Variable((), "epochs that theorem 5.1 requires", "steps"),
            "contraction_bound": Variable(
                (), "factor of the loss in a step of theorem 3.1, 1 - step_size lambda_min / 2"
            ),
            "theorem": Variable(("statement",), "which theorem"),
            "theorem_role": Variable(("statement",), "a condition of the theorem, or a claim"),
            "theorem_side": Variable(("statement",), "whether the number must be at least or at most what is needed"),
            "theorem_needed": Variable(("statement",), "the number that the theorem needs or promises"),
            "theorem_here": Variable(("statement",), "the number of this run"),
            "theorem_holds": Variable(("statement",), "1 where it holds, 0 where not, NaN where there is no number"),
            "statement": Variable(("statement",), "condition or claim of a theorem"),
            "target_form": Variable((), "sqrt(y H^-1 y) of the target"),
            "target_bound": Variable((), "bound of the paper on sqrt(y H^-1 y)"),
            "target_sharp_bound": Variable((), "sharp bound on sqrt(y H^-1 y)"),
            "replica": Variable(("replica",), "number of the trained network"),
            "metric": Variable(("metric",), "which error on the test samples"),
            "share": Variable(("share",), "share of random labels"),
        },
        coordinates={
            LABELS: Variable((LABELS,), "given labels, or labels drawn at random"),
            "step": Variable(("step",), "number of steps taken", "steps"),
        },
        attributes=("n", "d", "activation", "layers", "ridge", "method", "reason", "notes"),
        summary=summary,
    )
)
