"""What `ntk` gives back: a dataset with its schema, its short table, and plain data for JSON."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from twolayer.analyses.lazy.networks import METRICS
from twolayer.analyses.lazy.setting import learning_rate
from twolayer.analyses.lazy.verdict import judge_networks
from twolayer.core.errors import InvalidInput
from twolayer.core.precision import double
from twolayer.core.text import Text
from twolayer.data.provenance import provenance
from twolayer.data.schema import Schema, Variable, add_kind, kind_of, label
from twolayer.data.summary import explained
from twolayer.kernel import FreeSpectrum, Spectrum

if TYPE_CHECKING:
    import xarray as xr

    from twolayer.analyses.lazy.ask import LazySpec
    from twolayer.analyses.lazy.networks import Networks
    from twolayer.analyses.lazy.setting import KernelSetting

# Beyond this many points a curve is thinned in plain data; the dataset keeps all of them.
MOST_POINTS = 2001
KIND = "lazy_training"
LABELS = "labels"
NETWORKS = ("replica", LABELS)


def label_result(
    spec: "LazySpec",
    setting: "KernelSetting",
    spectrum: Spectrum | FreeSpectrum,
    networks: "Networks",
    curves: list[Any],
    values: dict[str, Any],
    route: dict[str, str],
    notes: list[str],
) -> "xr.Dataset":
    """The dataset of all numbers; the verdict is among its attributes where networks were trained."""
    names = [curve.labels for curve in curves]
    coordinates: dict[str, Any] = {LABELS: names, "step": np.arange(networks.steps + 1)}
    measures = [(np.nan, np.nan) if c.complexity is None else (c.complexity.value, c.complexity.error) for c in curves]
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
        "predicted_residual": np.stack([curve.prediction.residuals for curve in curves]),
        "predicted_error": np.stack([curve.prediction.error for curve in curves]),
        **values,
    }
    if isinstance(spectrum, FreeSpectrum):
        values |= {"eigenvalue_counts": spectrum.counts, **_rules(curves)}
    else:
        values["projections"] = np.stack([curve.projections for curve in curves])
    attributes = _attributes(spec, setting, networks, route, notes)
    if networks.replicas:
        trained = np.stack([[run.residuals for run in curve.trained] for curve in curves], axis=1)
        gaps = np.abs(trained - values["predicted_residual"]).max(axis=-1) / values["predicted_residual"][:, 0]
        values |= {
            "trained_residual": trained,
            "deviation": gaps,
            "flip_share": np.stack([[run.flip_share for run in curve.trained] for curve in curves], axis=1),
        }
        coordinates["replica"] = np.arange(networks.replicas)
        forms = np.sqrt(0.5 * spectrum.n) * np.asarray(values["complexity"])  # sqrt(y H^-1 y)
        finding = judge_networks(
            values["predicted_residual"], values["predicted_error"], trained, names, setting.width, forms
        )
        attributes |= {"outcome": finding.outcome, "verdict": finding.sentence, "judge": finding.judge}
    if "kernel_test_error" in values:
        coordinates["metric"] = list(METRICS)
    if "share_complexity" in values:
        coordinates["share"] = list(spec.ask.shares)
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


def _attributes(
    spec: "LazySpec", setting: "KernelSetting", networks: "Networks", route: dict[str, str], notes: list[str]
) -> dict[str, Any]:
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
        **route,
        "notes": "\n".join(notes),
    }


def check_lazy(result: object) -> None:
    """Refuse what is not a result of `ntk`."""
    import xarray as xr

    if not isinstance(result, xr.Dataset):
        raise InvalidInput(f"Argument `result` must be what `ntk` returned, but is a {type(result).__name__}.")
    if kind_of(result.attrs) != KIND:
        raise InvalidInput(
            f"Argument `result` must be what `ntk` returned, but is a dataset of the kind {kind_of(result.attrs)!r}."
        )


def rank_correlation(result: "xr.Dataset") -> float | None:
    """Spearman's, of the measure and the test error over the shares of random labels; None for fewer than three."""
    if result.sizes.get("share", 0) < 3:
        return None
    has_network = "share_network_error" in result
    errors = result.share_network_error.mean("replica") if has_network else result.share_kernel_error
    if len(np.unique(errors)) < 2:
        return None
    from scipy.stats import spearmanr

    correlation: Any = spearmanr(result.share_complexity, errors)
    return float(correlation.statistic)


# --------------------------------------------------------------------------------------------------- plain data


def to_dict(result: "xr.Dataset") -> dict[str, Any]:
    """Plain data for JSON; numbers that do not exist are None. Of several networks it holds the means."""
    check_lazy(result)
    attributes = result.attrs

    def value(name: str) -> float | None:
        return _plain(result[name].mean("replica") if "replica" in result[name].dims else result[name])

    def held(name: str) -> Any:
        return value(name) if name in result else None

    form = held("target_form")
    target = {
        "formula": attributes["target_formula"],
        "measured": form,
        "bound": held("target_bound"),
        "sharp_bound": held("target_sharp_bound"),
    }
    is_free = "eigenvalue_counts" in result
    given = result.sel({LABELS: "given"})
    return {
        **{name: _native(attributes[name]) for name in ("n", "d", "activation", "layers", "ridge", "method", "reason")},
        **{name: value(name) for name in ("lambda_min", "lambda_min_error", "lambda_max", "lambda_max_error")},
        "complexity": _plain(given.complexity),
        "complexity_error": _plain(given.complexity_error),
        "eta": value("step_size"),
        "largest_eta": value("largest_step_size"),
        "learning_rate": value("learning_rate"),
        "steps": int(result.step[-1]),
        "replicas": result.sizes.get("replica", 0),
        "curves": {str(name): _curve(result.sel({LABELS: name})) for name in result[LABELS].values},
        "initial_gram_distance": held("initial_gram_distance"),
        "final_gram_distance": held("final_gram_distance"),
        "test": _test(result),
        "shares": _shares(result),
        "rank_correlation": rank_correlation(result),
        "target": target if attributes["target_formula"] else None,
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


def _native(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def _curve(curve: "xr.Dataset") -> dict[str, Any]:
    thin = max(1, -(-curve.sizes["step"] // MOST_POINTS))
    has_network, has_modes = "trained_residual" in curve, "projections" in curve
    rule = {} if has_modes else {"eigenvalues": curve.rule_eigenvalues, "weights": curve.rule_weights}
    attributes = {name: _native(curve.attrs[name]) if has_network else None for name in ("width", "start", "kappa")}
    return {
        "complexity": _plain(curve.complexity),
        "step": curve.step.values[::thin].tolist(),
        "predicted": curve.predicted_residual.values[::thin].tolist(),
        "predicted_error": curve.predicted_error.values[::thin].tolist(),
        "trained": curve.trained_residual.mean("replica").values[::thin].tolist() if has_network else None,
        "deviation": float(curve.deviation.mean()) if has_network else None,
        "flip_share": float(curve.flip_share.mean()) if has_network else None,
        **attributes,
        "projections": curve.projections.values.tolist() if has_modes else None,
        "measure": {name: x.values[np.isfinite(x.values)].tolist() for name, x in rule.items()} or None,
    }


def _test(result: "xr.Dataset") -> dict[str, Any] | None:
    if "kernel_test_error" not in result:
        return None

    def errors(values: "xr.DataArray") -> dict[str, float | None]:
        return {name: _plain(values.sel(metric=name)) for name in METRICS}

    network = errors(result.network_test_error.mean("replica")) if "network_test_error" in result else None
    return {"n": int(result.attrs["test_samples"]), "kernel": errors(result.kernel_test_error), "network": network}


def _shares(result: "xr.Dataset") -> list[dict[str, float | None]]:
    if "share_complexity" not in result:
        return []
    has_network = "share_network_error" in result
    networks = result.share_network_error.mean("replica").values if has_network else [None] * result.sizes["share"]
    rows = zip(
        result.share.values, result.share_complexity.values, result.share_kernel_error.values, networks, strict=True
    )
    return [
        {
            "share": float(share),
            "complexity": float(measure),
            "kernel_error": float(kernel),
            "test_error": None if network is None else float(network),
        }
        for share, measure, kernel, network in rows
    ]


# ----------------------------------------------------------------------------------------------------- the table

_METHODS = {"exact": "exact, all eigenvalues", "free": "matrix-free"}
_TRAINED = {"first": "first layer trained", "second": "second layer trained", "both": "both layers trained"}


def summary(result: "xr.Dataset") -> Text:
    """The short table of a result: spectrum, measure, curves, test errors, bounds, verdict and notes."""
    data = to_dict(result)
    steps, replicas = data["steps"], data["replicas"]
    lines = [
        f"{data['n']} samples in {data['d']} dimensions, {data['activation']}, {_TRAINED[data['layers']]}"
        + (f", ridge {data['ridge']:g}" if data["ridge"] else "")
        + (f"; mean of {replicas} networks" if replicas > 1 else ""),
        "",
        f"{'route':<28}{_METHODS[data['method']]}: {data['reason']}",
        f"{'smallest eigenvalue':<28}{data['lambda_min']:.4g} +- {data['lambda_min_error']:.1e}",
        f"{'largest eigenvalue':<28}{data['lambda_max']:.6g} +- {data['lambda_max_error']:.1e}",
        f"{'step size':<28}{data['eta']:.4g}, below 2 / lambda_max = {data['largest_eta']:.4g}",
        f"{'learning rate':<28}{data['learning_rate']:.4g}, d times the step size",
    ]
    if data["complexity"] is not None:
        measure = f"{data['complexity']:.6g} +- {data['complexity_error']:.1e}"
        lines.append(f"{'complexity sqrt(2yH^-1y/n)':<28}{measure}")
    lines += ["", f"{'labels':<10}{'complexity':>12}{f'|y-u| at {steps}':>16}{'trained':>12}{'deviation':>11}"]
    lines[-1] += f"{'flipped signs':>15}"
    lines += [_row(name, curve) for name, curve in data["curves"].items()]
    if data["initial_gram_distance"] is not None:
        ends = data["initial_gram_distance"], data["final_gram_distance"]
        lines += ["", f"||H(0) - H|| = {ends[0]:.4g}, ||H({steps}) - H|| = {ends[1]:.4g}"]
    lines += [*_test_rows(data["test"]), *_share_rows(data), *_target_row(data["target"])]
    if data["outcome"] is not None:
        lines += ["", f"Verdict: {explained(data['outcome'])}.", data["verdict"]]
    return Text("\n".join([*lines, *([""] if data["notes"] else []), *data["notes"]]))


def _row(name: str, curve: dict[str, Any]) -> str:
    measure = "-" if curve["complexity"] is None else f"{curve['complexity']:.4f}"
    words = f"{name:<10}{measure:>12}{curve['predicted'][-1]:>16.4f}"
    if curve["trained"] is None:
        return words + f"{'-':>12}{'-':>11}{'-':>15}"
    flips = f"{100.0 * curve['flip_share']:.2f}%"
    return words + f"{curve['trained'][-1]:>12.4f}{100.0 * curve['deviation']:>10.2f}%{flips:>15}"


def _test_rows(test: dict[str, Any] | None) -> list[str]:
    if test is None:
        return []
    title = f"test error, n = {test['n']}"
    rows = ["", f"{title:<24}{'mean (u-y)^2':>14}{'mean |u-y|':>14}{'wrong signs':>14}"]
    for name in ("kernel", "network"):
        errors = test[name]
        if errors is not None:
            wrong = "-" if errors["wrong_share"] is None else f"{errors['wrong_share']:.4f}"
            rows.append(f"{name:<24}{errors['mean_square']:>14.4g}{errors['mean_absolute']:>14.4g}{wrong:>14}")
    return rows


def _share_rows(data: dict[str, Any]) -> list[str]:
    if not data["shares"]:
        return []
    rows = ["", f"{'random labels':<16}{'complexity':>12}{'kernel error':>14}{'network error':>15}"]
    for row in data["shares"]:
        network = "-" if row["test_error"] is None else f"{row['test_error']:.4f}"
        rows.append(f"{row['share']:<16.2f}{row['complexity']:>12.4f}{row['kernel_error']:>14.4f}{network:>15}")
    if data["rank_correlation"] is not None:
        rows.append(f"rank correlation of complexity and test error: {data['rank_correlation']:.3f}")
    return rows


def _target_row(target: dict[str, Any] | None) -> list[str]:
    if target is None:
        return []
    measured = "-" if target["measured"] is None else f"{target['measured']:.4f}"
    return [
        "",
        f"target {target['formula']}: sqrt(yH^-1y) = {measured}, below {target['sharp_bound']:.4f} (sharp) and "
        f"{target['bound']:.4f} (paper)",
    ]


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
