"""A quantity is predicted, measured and judged, whichever analysis asks for it."""

import numpy as np
import pytest

import twolayer as tl
from twolayer.analyses.escape.exit_time import ExitTime
from twolayer.analyses.lazy.ntk import Residuals
from twolayer.analyses.learnable.direction_order import DirectionOrder
from twolayer.analyses.learnable.escape_slope import EscapeSlope, Slope
from twolayer.analyses.quantity import AbstractQuantity
from twolayer.data.deviation import OUTCOMES
from twolayer.theory import BatchMap

PROBLEM = tl.Problem(tl.SingleIndex("linear"), tl.Student(1, "linear"), tl.Gaussian(10))
TRAINING = tl.SGD(0.1)
# 64 runs with mean 2 and standard error 0.025, around which chance reaches 3.5 standard errors.
RUNS = 2.0 + 0.2 * np.tile([-1.0, 1.0], 32)


class Known(AbstractQuantity):
    """A quantity of which both sides are given."""

    def __init__(self, prediction, runs):
        self.prediction, self.runs = prediction, runs

    def predict(self, problem, training):
        return self.prediction

    def measure(self, problem, training):
        return self.runs


@pytest.mark.parametrize(
    ("prediction", "runs", "outcome"),
    [
        (tl.Prediction(2.05, 0.0), RUNS, "agrees"),
        (tl.Prediction(2.3, 0.0), RUNS, "differs"),
        (tl.Prediction(2.3, 0.25), RUNS, "agrees"),
        (tl.Prediction(2.3, 0.0, 0.25), RUNS, "finite-d effect"),
        (tl.Prediction(2.3, 0.0), 2.0 + 4.0 * (RUNS - 2.0) + 0.1, "agrees"),
        (tl.Prediction(2.3, 0.0), 2.0 + 20.0 * (RUNS - 2.0), "consistent"),
        (tl.Prediction(2.3, 0.0), RUNS[:1], "undecided"),
        (tl.Prediction(np.nan, 0.0), RUNS, "undecided"),
    ],
)
def test_one_number_ends_in_one_of_the_five_words(prediction, runs, outcome):
    quantity = Known(prediction, runs)
    finding = quantity.judge(quantity.predict(PROBLEM, TRAINING), quantity.measure(PROBLEM, TRAINING))
    assert finding.outcome == outcome and finding.outcome in OUTCOMES
    assert finding.sentence.startswith("Known ") and f"{len(runs)} runs" in finding.sentence


class Threshold(AbstractQuantity):
    """A quantity with a field, on which its answer depends."""

    def __init__(self, level):
        self.level = level

    def predict(self, problem, training):
        return tl.Prediction(self.level, 0.0, 0.25)

    def measure(self, problem, training):
        return RUNS.tolist()


def test_a_quantity_of_ones_own_becomes_a_labelled_result(tmp_path):
    told = []
    result = tl.verify(Threshold(2.3), PROBLEM, TRAINING, progress=lambda *both: told.append(both))
    assert (float(result.predicted), float(result.model_error)) == (2.3, 0.25)
    assert np.array_equal(result.measured, RUNS) and result.attrs["outcome"] == "finite-d effect"
    again = tl.load(tl.save(result, tmp_path / "threshold.nc"))
    assert again.identical(result) and tl.summary(again) == tl.summary(result)
    lines = str(tl.summary(result)).splitlines()
    assert lines[1].split() == ["predicted", "2.3"] and lines[2].split()[:5] == ["measured,", "64", "runs", "2", "+-"]
    assert lines[-2].startswith("Verdict: finite-d effect: ") and lines[-1] == result.attrs["verdict"]
    assert [name for name, _ in told] == ["Threshold, predicted", "Threshold, measured"]
    other = tl.verify(Threshold(2.4), PROBLEM, TRAINING)
    assert other.attrs["spec_hash"] != result.attrs["spec_hash"]  # the field is a part of what is asked


@pytest.mark.parametrize(
    ("prediction", "runs", "match"),
    [
        ({"first": 1.0}, RUNS, r"`Known.predict` must return a `Prediction`.* but returns dict"),
        (tl.Prediction(1.0, 0.0), RUNS[None], r"`Known.measure` must return one number .* shape \(1, 64\)"),
        (tl.Prediction(1.0, 0.0), 3.0, r"`Known.measure` must return one number .* returns float"),
    ],
)
def test_what_is_not_one_number_is_refused_in_one_sentence(prediction, runs, match):
    with pytest.raises(tl.NotApplicable, match=match):
        Known(None, None).judge(prediction, runs)


def test_every_analysis_that_measures_is_a_quantity():
    assert set(AbstractQuantity.__subclasses__()) >= {ExitTime, DirectionOrder, EscapeSlope, Residuals}


def test_the_order_of_directions_follows_the_reuse_of_the_training():
    analysis = tl.learnability("z1 + z1*z2 + he3(z3)")
    order = DirectionOrder(analysis, analysis.staircase, BatchMap(), "giant steps")
    fresh = order.predict(PROBLEM, tl.SGD(0.1, batch_size=100))
    again = order.predict(PROBLEM, tl.SGD(0.1, batch_size=None, reuse=tl.Reused(4.0)))
    # z1 after one step, z2 after two, z3 of leap three never; a step later on one batch
    assert fresh.present.tolist() == [[True, False, False], [True, True, False], [True, True, False]]
    assert again.present.tolist() == [[False, False, False], [True, False, False], [True, True, False]]
    assert np.array_equal(fresh.absent, ~fresh.present) and again.absent.tolist() == [[False, False, True]] * 3


def test_the_slope_of_the_escape_is_that_of_the_power_law():
    """Steps that grow as d^2 to the last bit: the prediction for leap 3, whatever the dimension of the problem."""
    dimensions, runs = (10, 100, 1000), (512, 256, 128)
    quantity = EscapeSlope(3, 1.0, 1, tuple(zip(dimensions, runs, strict=True)))
    steps = 7.0 * np.array(dimensions) ** 2.0
    predicted = quantity.predict(PROBLEM, TRAINING)
    slope, error = quantity._fit(steps, 0.01 * steps, predicted.value)
    assert predicted.value == 2.0 and abs(slope - 2.0) < 1e-12  # least squares through exact points
    for number, outcome in ((slope, "agrees"), (2.1, "finite-d effect"), (2.5, "differs")):
        measured = Slope(3, "steps", dimensions, tuple(steps), tuple(0.01 * steps), runs, number, 0.01, predicted.value)
        assert quantity.judge(predicted, measured).outcome == outcome
    assert 0.0 < error < 0.01
