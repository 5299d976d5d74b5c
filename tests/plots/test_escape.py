"""Figures of exit times show the numbers of their results."""

import dataclasses

import numpy as np
import pytest

import twolayer as tl
from twolayer import plots
from twolayer.analyses import ExitTime
from twolayer.analyses.escape.result import ESTIMATES, Sample
from twolayer.core.estimate import Estimate
from twolayer.theory.formulas import phase_retrieval as theory


def made(p: int = 1, d: int = 1000, gamma: float = 1 / 12, missing: int = 0) -> ExitTime:
    """A result of plausible numbers."""
    rng = np.random.default_rng(d + p)
    times = 1.0 + rng.exponential(0.5, 200)
    times[:missing] = np.nan
    shift = float(theory.noise_shift(p, gamma, 0.0))
    values = {name: Estimate(1.2 + 0.1 * place, 1e-6) for place, name in enumerate(ESTIMATES)}
    return ExitTime(
        p=p,
        d=d,
        noise=0.0,
        threshold=0.1,
        learning_rate=gamma,
        steps_per_time=p * d / gamma,
        growth_rate=theory.growth_rate(p, gamma, 0.0),
        optimal_learning_rate=theory.optimal_learning_rate(p, 0.0),
        maximal_learning_rate=theory.maximal_learning_rate(p, 0.0),
        recovery_learning_rate=theory.recovery_learning_rate(p, 0.0),
        noise_shift=shift,
        **values,
        ode_sample=Sample(np.sort(times + 0.1), np.inf),
        measured=Sample(times, 10.0),
        measured_by="OverlapSGD",
        notes=(),
        model_errors={"ode_with_noise": 0.2, "ode_at_finite_d": 0.1},
    )


def texts(figure) -> str:
    return " ".join(text.get_text() for legend in figure.legends for text in legend.get_texts())


def written(figure, tmp_path) -> None:
    paths = plots.save_figure(figure, tmp_path / "figure")
    assert paths[0].read_bytes().startswith(b"\x89PNG")


def test_the_law_is_the_distribution_of_the_sample(tmp_path):
    result = made()
    figure = plots.exit_law(result)
    written(figure, tmp_path)
    (ax,) = figure.axes
    steps = max((line for line in ax.lines if len(line.get_xdata()) == 202), key=lambda line: line.get_zorder())
    np.testing.assert_allclose(np.asarray(steps.get_xdata())[1:-1], np.sort(result.measured.times))
    np.testing.assert_allclose(np.asarray(steps.get_ydata())[1:-1], np.arange(1, 201) / 200)
    assert steps.get_ydata()[-1] == 1.0 and steps.get_xdata()[-1] >= ax.get_xlim()[1]  # to the edge of the panel
    marks = {round(float(line.get_xdata()[0]), 9) for line in ax.lines if len(line.get_xdata()) == 2}
    assert round(result.measured.mean, 9) in marks
    assert {round(result.estimates[name].value, 9) for name in ("annealed", "quenched", "ode")} <= marks
    assert "measured: 200 runs" in texts(figure) and "quenched" in texts(figure)
    assert "T=0.1" in figure.get_suptitle()


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
    assert round(result.measured.median, 9) in places
    survivors = float(np.mean(result.measured.exited))
    assert round(survivors, 9) not in places  # the mean over those that exited is not drawn
    never = plots.exit_law(made(missing=150))
    assert "median" not in texts(never) and "mean: measured" not in texts(never)


def test_the_error_of_the_model_is_a_band():
    result = made()
    (ax,) = plots.exit_law(result).axes
    spans = [patch.get_extents().transformed(ax.transData.inverted()) for patch in ax.patches]
    value = result.ode_at_finite_d.value
    assert any(np.allclose((span.x0, span.x1), (value - 0.1, value + 0.1), atol=1e-5) for span in spans)
    (ax,) = plots.exit_scan([made(d=d) for d in (100, 1000)], "d").axes
    bands = [band.get_paths()[0].vertices[:, 1] for band in ax.collections if len(band.get_paths()) == 1]
    assert any(np.allclose((np.min(band), np.max(band)), (12 * (value - 0.1), 12 * (value + 0.1))) for band in bands)


@pytest.mark.parametrize("change", [{"measured": None}, {"ode_sample": None}, {"ode": Estimate(np.inf, 0.0)}])
def test_what_is_not_there_is_not_drawn(change, tmp_path):
    written(plots.exit_law(dataclasses.replace(made(), **change), "a title"), tmp_path)
    bare = dataclasses.replace(made(), **change, **{name: None for name in ESTIMATES if name not in change})
    written(plots.exit_law(bare), tmp_path)


def test_a_scan_of_the_dimension_shows_steps_over_d(tmp_path):
    results = [made(d=d) for d in (1000, 100, 10_000)]
    figure = plots.exit_scan(results, "d")
    written(figure, tmp_path)
    (ax,) = figure.axes
    line = next(line for line in ax.lines if line.get_label() == "_child0")
    np.testing.assert_allclose(line.get_xdata(), [100, 1000, 10_000])
    np.testing.assert_allclose(line.get_ydata(), results[0].annealed.value * 12)
    assert ax.get_xscale() == "log" and "d" in ax.get_ylabel()
    container = ax.containers[0]
    measured = [results[1], results[0], results[2]]
    np.testing.assert_allclose(container[0].get_ydata(), [12 * each.measured.mean for each in measured])


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
    np.testing.assert_allclose(values[:2], [each.measured.mean / each.annealed.value for each in results[:2]])
    assert np.isnan(values[2]) and "not all runs exit at 4" in texts(figure)
    assert r"\gamma_{\mathrm{opt}}" in figure.get_suptitle()


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(tl.InvalidInput, match="`axis`"):
        plots.exit_scan([made(), made()], "noise")
    with pytest.raises(tl.InvalidInput, match="at least two"):
        plots.exit_scan([made()], "d")
    with pytest.raises(tl.InvalidInput, match="no measured time"):
        bare = [dataclasses.replace(made(d=d), measured=None) for d in (10, 100)]
        plots.exit_scan(bare, "d", ratio=True)
