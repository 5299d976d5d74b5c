"""Axes: values, ranges in words, products, fields that change together, and names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twolayer as tl
from twolayer.sweeps.axes import labels, make_axes, places


def test_ranges_in_words():
    (axis,) = make_axes({"training.learning_rate": "log:1e-3:1:4"})
    assert np.allclose(axis.values[0], [1e-3, 1e-2, 1e-1, 1.0])
    (axis,) = make_axes({"training.learning_rate": "lin:0:1:5"})
    assert np.allclose(axis.values[0], np.linspace(0, 1, 5))


def test_ranges_of_whole_numbers_are_rounded_and_differ():
    (axis,) = make_axes({"problem.inputs.d": "log:1:10:9"}, whole=["problem.inputs.d"])
    assert axis.values[0] == tuple(dict.fromkeys(round(x) for x in np.geomspace(1, 10, 9)))
    assert all(isinstance(value, int) for value in axis.values[0])


def test_the_last_axis_runs_fastest():
    axes = make_axes({"run.seed": [1, 2], "problem.noise": [0.0, 0.1, 0.2]})
    assert list(places(axes)) == [(i, j) for i in range(2) for j in range(3)]


def test_fields_that_change_together_are_one_dimension():
    over = {"run.seed": [1, 2], "problem.noise": [0.0, 0.1], "training.learning_rate": [1.0, 2.0, 3.0]}
    axes = make_axes(over, together=[["run.seed", "problem.noise"]])
    assert [axis.names for axis in axes] == [("seed", "noise"), ("learning_rate",)]
    assert axes[0].values == ((1, 2), (0.0, 0.1))


def test_names_are_as_short_as_they_can_be():
    axes = make_axes({"problem.target.activation": ["erf"], "problem.student.activation": ["erf"], "run.seed": [1]})
    assert [axis.name for axis in axes] == ["target_activation", "student_activation", "seed"]


@given(st.lists(st.one_of(st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=5, unique=True))
def test_numbers_stay_numbers(values):
    assert labels(values).tolist() == values


def test_objects_are_labelled_by_their_text():
    written = labels([tl.PhaseRetrieval(), tl.Committee(2, "erf")])
    assert written[0] == "PhaseRetrieval()" and written[1].startswith("Committee(")


@pytest.mark.parametrize(
    ("over", "together", "part"),
    [
        ({}, (), "`over` must map"),
        ({"run.seed": []}, (), "at least one value"),
        ({"run.seed": 3}, (), "must be a list of values"),
        ({"run.seed": np.array(3)}, (), "must be a list of values"),
        ({"run.seed": range(10**18)}, (), "at most 1000000 values"),
        ({"run.seed": [1, 1]}, (), "1 twice"),
        ({"run.seed": [*range(10**5), 99_999]}, (), "99999 twice"),
        ({"run.seed": "log:0:1:3"}, (), "positive ends"),
        ({"run.seed": "log:1:1:3"}, (), "different ends"),
        ({"run.seed": "log:1:2"}, (), "log:LOW:HIGH:N"),
        ({"run.seed": "lin:1:2:1"}, (), "2 to"),
        ({"run.seed": "lin:1:2:99999999999"}, (), "2 to"),
        ({"run.seed": range(10**4), "problem.noise": range(10**5)}, (), "spans 1e+09"),
        ({"run.seed": [1, 2]}, [["run.seed", "problem.noise"]], "not in `over`"),
        ({"run.seed": [1, 2], "problem.noise": [1.0]}, [["run.seed", "problem.noise"]], "equally many"),
        ({"run.seed": [1, 2]}, [["run.seed"]], "two paths or more"),
    ],
)
def test_bad_axes_are_refused_in_one_sentence(over, together, part):
    with pytest.raises(tl.InvalidInput, match=part.replace("(", r"\(").replace("+", r"\+")) as raised:
        make_axes(over, together)
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)
