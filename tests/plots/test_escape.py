"""Figures of exit times show the numbers of their results."""

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

import twolayer as tl
from twolayer import plots
from twolayer.analyses.escape.exit_result import ESTIMATES, judge_exit, label_exit
from twolayer.analyses.escape.exit_theories import Predictions
from twolayer.analyses.escape.sample import Sample
from twolayer.analyses.quantity import Prediction
from twolayer.data.provenance import Question, provenance
from twolayer.theory.formulas import phase_retrieval as theory

if TYPE_CHECKING:
    import xarray as xr

MODEL_ERRORS = {"ode_with_noise": 0.2, "ode_at_finite_d": 0.1}


def made(p: int = 1, d: int = 1000, gamma: float = 1 / 12, missing: int = 0, **changes: Any) -> "xr.Dataset":
    """A result of plausible numbers; ``changes`` are other parts of it."""
    rng = np.random.default_rng(d + p)
    times = 1.0 + rng.exponential(0.5, 200)
    times[:missing] = np.nan
    values = {
        name: Prediction(1.2 + 0.1 * place, 1e-6, MODEL_ERRORS.get(name, np.nan))
        for place, name in enumerate(ESTIMATES)
    }
    rates = {
        "growth_rate": theory.growth_rate(p, gamma, 0.0),
        "optimal_learning_rate": theory.optimal_learning_rate(p, 0.0),
        "maximal_learning_rate": theory.maximal_learning_rate(p, 0.0),
        "recovery_learning_rate": theory.recovery_learning_rate(p, 0.0),
        "noise_shift": float(theory.noise_shift(p, gamma, 0.0)),
    }
    parts = {
        "estimates": values,
        "ode": Sample(np.sort(times + 0.1), np.inf),
        "measured": Sample(times, 10.0),
    } | changes
    attributes = {
        "p": p,
        "d": d,
        "noise": 0.0,
        "threshold": 0.1,
        "learning_rate": gamma,
        "steps_per_time": p * d / gamma,
        "criterion": "risk",
        "definition": "",
    }
    predictions = Predictions(parts["estimates"], rates, parts["ode"])
    finding = judge_exit(predictions.estimates, parts["measured"])
    return label_exit(predictions, parts["measured"], finding, attributes | provenance(Question("exit_time", {}), 0))


def predicted(result: "xr.Dataset", name: str) -> float:
    return float(result.predicted.sel(estimate=name))


def texts(figure) -> str:
    return " ".join(text.get_text() for ax in figure.axes for text in ax.get_legend().get_texts())


def written(figure, tmp_path) -> None:
    paths = plots.save_figure(figure, tmp_path / "figure")
    assert paths[0].read_bytes().startswith(b"\x89PNG")


def test_the_law_is_the_distribution_of_the_sample(tmp_path):
    result = made()
    figure = plots.exit_law(result)
    written(figure, tmp_path)
    (ax,) = figure.axes
    steps = max((line for line in ax.lines if len(line.get_xdata()) == 202), key=lambda line: line.get_zorder())
    np.testing.assert_allclose(np.asarray(steps.get_xdata())[1:-1], np.sort(result.measured.values))
    np.testing.assert_allclose(np.asarray(steps.get_ydata())[1:-1], np.arange(1, 201) / 200)
    assert steps.get_ydata()[-1] == 1.0 and steps.get_xdata()[-1] >= ax.get_xlim()[1]  # to the edge of the panel
    marks = {round(float(line.get_xdata()[0]), 9) for line in ax.lines if len(line.get_xdata()) == 2}
    assert round(float(result.measured_mean), 9) in marks
    assert {round(predicted(result, name), 9) for name in ("annealed", "quenched", "ode")} <= marks
    assert "measured: 200 runs" in texts(figure) and "quenched" in texts(figure)
    assert "T=0.1" in ax.get_title()


def test_runs_that_never_exit_keep_the_law_below_one():
    (ax,) = plots.exit_law(made(missing=50)).axes
    highest = max(float(np.max(line.get_ydata())) for line in ax.lines if len(line.get_xdata()) == 152)
    assert highest == pytest.approx(0.75)


def test_censored_runs_are_marked_where_they_end(tmp_path):
    result = made(missing=50)
    figure = plots.exit_law(result)
    written(figure, tmp_path)
    (ax,) = figure.axes
    (mark,) = [line for line in ax.lines if line.get_marker() == "+"]
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (10.0, pytest.approx(0.75)) and ax.get_xlim()[1] > 10.0
    assert "censored: 50 runs" in texts(figure)
    assert "median: measured" in texts(figure) and "mean: measured" not in texts(figure)
    places = {round(float(line.get_xdata()[0]), 9) for line in ax.lines if len(line.get_xdata()) == 2}
    assert round(float(result.measured_median), 9) in places
    survivors = float(result.measured.mean())  # without those that are NaN
    assert round(survivors, 9) not in places  # the mean over those that exited is not drawn
    never = plots.exit_law(made(missing=150))
    assert "median" not in texts(never) and "mean: measured" not in texts(never)


def test_the_error_of_the_model_is_a_band():
    result = made()
    (ax,) = plots.exit_law(result).axes
    spans = [patch.get_extents().transformed(ax.transData.inverted()) for patch in ax.patches]
    value = predicted(result, "ode_at_finite_d")
    assert any(np.allclose((span.x0, span.x1), (value - 0.1, value + 0.1), atol=1e-5) for span in spans)
    (ax,) = plots.exit_scan([made(d=d) for d in (100, 1000)], "d").axes
    bands = [band.get_paths()[0].vertices[:, 1] for band in ax.collections if len(band.get_paths()) == 1]
    assert any(np.allclose((np.min(band), np.max(band)), (12 * (value - 0.1), 12 * (value + 0.1))) for band in bands)


CHANGES = {
    "not measured": {"measured": None},
    "no ODE": {"ode": None},
    "an ODE that never exits": {"estimates": {"ode": Prediction(np.inf, 0.0)}},
    "a measurement alone": {"ode": None, "estimates": {}},
    "nothing": {"ode": None, "estimates": {}, "measured": None},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_not_there_is_not_drawn(change, tmp_path):
    written(plots.exit_law(made(**change), "a title"), tmp_path)


def test_a_schedule_has_no_axis_of_steps_and_no_scan(tmp_path):
    result = made()
    del result.attrs["steps_per_time"]
    figure = plots.exit_law(result)
    assert not figure.axes[0].child_axes
    assert plots.exit_law(made()).axes[0].child_axes[0].get_xlabel() == "steps"
    with pytest.raises(tl.InvalidInput, match="schedule"):
        plots.exit_scan([result, result], "d")


def test_figures_are_drawn_on_given_axes():
    figure, (left, right) = plt.subplots(1, 2)
    try:
        assert plots.exit_law(made(), ax=left) is left
        assert plots.exit_scan([made(d=d) for d in (100, 1000)], "d", "steps", ax=right) is right
        assert left.get_xlabel().startswith("exit time") and right.get_title() == "steps"
        assert not figure.legends and not figure.get_suptitle()
        assert "measured: 200 runs" in [text.get_text() for text in left.get_legend().get_texts()]
        assert "annealed" in [text.get_text() for text in right.get_legend().get_texts()]
    finally:
        plt.close(figure)


def test_a_scan_of_the_dimension_shows_steps_over_d(tmp_path):
    results = [made(d=d) for d in (1000, 100, 10_000)]
    figure = plots.exit_scan(results, "d")
    written(figure, tmp_path)
    (ax,) = figure.axes
    line = next(line for line in ax.lines if line.get_label() == "annealed")
    np.testing.assert_allclose(line.get_xdata(), [100, 1000, 10_000])
    np.testing.assert_allclose(line.get_ydata(), predicted(results[0], "annealed") * 12)
    assert ax.get_xscale() == "log" and "d" in ax.get_ylabel()
    container = ax.containers[0]
    measured = [results[1], results[0], results[2]]
    np.testing.assert_allclose(container[0].get_ydata(), [12 * float(result.measured_mean) for result in measured])


def test_a_scan_of_the_rate_marks_the_optimum(tmp_path):
    figure = plots.exit_scan([made(gamma=rate) for rate in (0.03, 0.06, 0.12)], "learning_rate")
    written(figure, tmp_path)
    (ax,) = figure.axes
    assert any(np.allclose(line.get_xdata(), 1 / 12) for line in ax.lines if len(line.get_xdata()) == 2)
    assert "opt" in texts(figure)


def test_ratios_leave_out_what_would_mislead(tmp_path):
    optimal = [theory.optimal_learning_rate(p, 0.0) for p in (1, 2, 4)]
    results = [made(p, gamma=rate, missing=p // 4) for p, rate in zip((1, 2, 4), optimal, strict=True)]
    figure = plots.exit_scan(results, "p", ratio=True)
    written(figure, tmp_path)
    (ax,) = figure.axes
    values = ax.containers[0][0].get_ydata()
    np.testing.assert_allclose(
        values[:2], [float(result.measured_mean) / predicted(result, "annealed") for result in results[:2]]
    )
    assert np.isnan(values[2]) and "not all runs exit at 4" in texts(figure)
    assert r"\gamma_{\mathrm{opt}}" in ax.get_title()


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(tl.InvalidInput, match="`axis`"):
        plots.exit_scan([made(), made()], "noise")
    with pytest.raises(tl.InvalidInput, match="at least two"):
        plots.exit_scan([made()], "d")
    with pytest.raises(tl.InvalidInput, match="no measured time"):
        bare = [made(d=d, measured=None) for d in (10, 100)]
        plots.exit_scan(bare, "d", ratio=True)
    with pytest.raises(tl.InvalidInput, match="what `exit_time` returned, but is a dict"):
        plots.exit_law({})
    with pytest.raises(tl.InvalidInput, match="its kind is 'trajectory'"):
        plots.exit_law(made().assign_attrs(kind="trajectory"))
