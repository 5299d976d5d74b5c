"""The theorems on lazy training beside a run: which of their conditions hold for its data, and what they promise."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twolayer.analyses.lazy.networks import LIPSCHITZ, METRICS
from twolayer.core.text import table
from twolayer.kernel import theorems

if TYPE_CHECKING:
    from twolayer.analyses.lazy.lazy_ask import NTKAsk
    from twolayer.analyses.lazy.networks import Networks
    from twolayer.kernel import AbstractSpectrum, Trained

CONDITION, CLAIM = "condition", "claim"
LEAST, MOST = "at least", "at most"
# The part of the factor of a step that rounding may make up where the factor is still read from the losses.
READABLE = 0.01
WORDS = {"absolute_loss": "min(|u - y|, 1)", "ramp_loss": "ramp", "logistic_loss": "logistic, from its value at y"}


class Statement(NamedTuple):
    """A condition or a claim of a theorem: a number that must be at least or at most another."""

    theorem: str
    role: str
    quantity: str
    side: str
    needed: float
    here: float

    @property
    def holds(self) -> float:
        """One where it holds, zero where it does not, NaN where there is no number."""
        if not np.isfinite([self.needed, self.here]).all():
            return np.nan
        return float(self.here >= self.needed if self.side == LEAST else self.here <= self.needed)


def theorem_values(
    y: np.ndarray,
    spectrum: "AbstractSpectrum",
    networks: "Networks",
    asked: "NTKAsk",
    measured: dict[str, Any],
) -> dict[str, Any]:
    """The table of the theorems, and their numbers; nothing where they do not apply.

    ``measured`` holds what the run gave: ``trained``, the networks of the given labels; ``predicted``, their residual
    norms; ``complexity``; Gram distances; test errors; forms and bounds of a target.
    """
    if not networks.setting.has_network or spectrum.is_singular or spectrum.ridge:
        return {}
    rows = [*_conditions(y, spectrum, networks, asked), *_of_training(y, spectrum, networks, asked, measured)]
    values: dict[str, Any] = {
        "required_steps": theorems.required_steps(len(y), spectrum.lambda_min, networks.eta, float(asked.delta)),
        "bound_remainder": theorems.remainder(len(y), spectrum.lambda_min, float(asked.delta)),
        "contraction_bound": theorems.contraction(networks.eta, spectrum.lambda_min),
    }
    values["loss_bound"] = measured["complexity"] + values["bound_remainder"]
    rows += _of_tests(values["loss_bound"], networks, y, measured)
    if "share_complexity" in measured:
        values["share_loss_bound"] = np.asarray(measured["share_complexity"]) + values["bound_remainder"]
    if "target_form" in measured:
        words = "sqrt(y H^-1 y) of the target"
        rows.append(Statement("6.1", CLAIM, words, MOST, measured["target_bound"], measured["target_form"]))
    return values | {
        "theorem": [row.theorem for row in rows],
        "theorem_role": [row.role for row in rows],
        "theorem_side": [row.side for row in rows],
        "theorem_needed": [row.needed for row in rows],
        "theorem_here": [row.here for row in rows],
        "theorem_holds": [row.holds for row in rows],
        "statement": [f"{row.theorem}: {row.quantity}" for row in rows],
    }


def _conditions(y: np.ndarray, spectrum: "AbstractSpectrum", networks: "Networks", asked: "NTKAsk") -> list[Statement]:
    n, smallest, delta = len(y), spectrum.lambda_min, float(asked.delta)
    epsilon = float(asked.epsilon) * float(np.linalg.norm(y))
    kappa = networks.setting.deviation(networks.X.shape[1])
    # Without a network the student's width and start are those of no run.
    width, scale = (float(networks.setting.width), kappa) if networks.replicas else (np.nan, np.nan)
    rows: list[tuple[str, str, str, float, float]] = [
        ("all", "largest |y|", MOST, 1.0, float(np.max(np.abs(y)))),
        ("all", "lambda_0, above its error", LEAST, spectrum.lambda_min_error, smallest),
        ("all", "kappa", MOST, 1.0, scale),
        ("all", "step size, lambda_0 / n^2", MOST, theorems.allowed_step_size(n, smallest), networks.eta),
        ("3.1", "width", LEAST, theorems.needed_width("3.1", n, smallest, kappa, delta), width),
        ("4.1", "width", LEAST, theorems.needed_width("4.1", n, smallest, kappa, delta, epsilon), width),
    ]
    if networks.setting.start != "antisymmetric":  # outputs that begin at zero need no small scale
        rows.append(("4.1", "kappa", MOST, theorems.allowed_kappa("4.1", n, smallest, delta, epsilon), scale))
        rows.append(("5.1", "kappa", MOST, theorems.allowed_kappa("5.1", n, smallest, delta), scale))
    steps = theorems.required_steps(n, smallest, networks.eta, delta)
    rows.append(("5.1", "epochs", LEAST, steps, float(networks.steps)))
    return [Statement(theorem, CONDITION, *numbers) for theorem, *numbers in rows]  # pyright: ignore[reportArgumentType]


def _of_training(
    y: np.ndarray, spectrum: "AbstractSpectrum", networks: "Networks", asked: "NTKAsk", measured: dict[str, Any]
) -> list[Statement]:
    """What the theorems say of the networks that were trained; of several, the one that is furthest off."""
    runs: list[Trained] = measured["trained"]
    if not runs:
        return []
    smallest, delta = spectrum.lambda_min, float(asked.delta)
    start = networks.setting
    kappa = 0.0 if start.start == "antisymmetric" else start.deviation(networks.X.shape[1])
    largest = max(float(run.losses[0]) for run in runs)
    far = max(float(np.max(np.abs(run.residuals - measured["predicted"]))) for run in runs)
    factors = [largest_factor(run.residuals, networks.eta * smallest, networks.precision) for run in runs]
    rows = [
        Statement("3.1", CLAIM, "loss at the start", MOST, theorems.initial_loss(y, kappa) / delta, largest),
        Statement(
            "3.1",
            CLAIM,
            "factor of the loss in a step",
            MOST,
            theorems.contraction(networks.eta, smallest),
            max(factors),
        ),
        Statement(
            "4.1", CLAIM, "distance from the prediction", MOST, float(asked.epsilon) * float(np.linalg.norm(y)), far
        ),
    ]
    # The proof of 3.1 needs Gram matrices of the network this near to the limit, at the start and in training.
    for name, when, part in (
        ("initial", "||H(0) - H||, lambda_0 / 4", 0.25),
        ("final", f"||H({networks.steps}) - H||, lambda_0 / 2", 0.5),
    ):
        if f"{name}_gram_distance" in measured:
            moved = float(np.max(measured[f"{name}_gram_distance"]))
            rows.append(Statement("3.1", CONDITION, f"{when} in its proof", MOST, part * smallest, moved))
    return rows


def _of_tests(bound: float, networks: "Networks", y: np.ndarray, measured: dict[str, Any]) -> list[Statement]:
    """Losses on the test samples against the bound of theorem 5.1, to which the loss in training is added."""
    if "kernel_test_error" not in measured:
        return []
    root = np.sqrt(len(y))
    left = float(measured["predicted"][-1]) / root
    tested = {"kernel": (left, np.asarray(measured["kernel_test_error"]))}
    if networks.replicas:
        left = max(float(run.residuals[-1]) for run in measured["trained"]) / root
        tested["network"] = (left, np.max(measured["network_test_error"], axis=0))
    return [
        Statement("5.1", CLAIM, f"{WORDS[loss]}, {name}", MOST, bound + left, float(errors[METRICS.index(loss)]))
        for name, (left, errors) in tested.items()
        for loss in LIPSCHITZ
    ]


def largest_factor(residuals: np.ndarray, rate: float, precision: str) -> float:
    r"""The largest factor of the loss in a step, where rounding is small beside the ``rate`` :math:`\eta\lambda_0`."""
    rounding = float(np.finfo(np.float64 if precision == "double" else np.float32).eps)
    floor = rounding * np.sqrt(len(residuals)) / (READABLE * rate) * residuals[0]
    readable = residuals[:-1] > floor
    if not np.any(readable):
        return np.nan
    return float(np.max((residuals[1:][readable] / residuals[:-1][readable]) ** 2))


def theorem_rows(data: list[dict[str, Any]]) -> list[str]:
    """The table in words: conditions first, then what is promised."""
    known = {True: "yes", False: "no", None: "-"}
    rows = [
        [
            row["statement"],
            row["role"],
            row["side"],
            *(_number(row[name]) for name in ("needed", "here")),
            known[row["holds"]],
        ]
        for role in (CONDITION, CLAIM)
        for row in data
        if row["role"] == role
    ]
    return table(["theorem", "is a", "must be", "needed", "here", "holds"], rows, right=(3, 4))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}" if 0.9 < abs(value) < 1e5 else f"{value:.3g}"
