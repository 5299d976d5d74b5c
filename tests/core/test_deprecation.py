"""Former names warn at the line of the caller, name the replacement, do the same, and are removed in time."""

import inspect
import sys
import types
import warnings

import pytest

import twolayer as tl
from twolayer.core import deprecation
from twolayer.core.deprecation import overdue, renamed_argument, renamed_attributes, renamed_function


@pytest.fixture(autouse=True)
def own_list(monkeypatch):
    """What these tests deprecate is not counted among the names of the package."""
    monkeypatch.setattr(deprecation, "_deprecations", [])


@pytest.fixture
def train():
    @renamed_argument("eta", "learning_rate", since="0.2")
    @renamed_argument("kappa", "scales", since="0.2", convert=lambda kappa: [kappa, kappa])
    def train(steps: int, learning_rate: float = 1.0, scales: list | None = None) -> tuple:
        """Train."""
        return steps, learning_rate, scales

    return train


def the_warning(call):
    """Result of a call and the one warning that it gave."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = call()
    (warning,) = seen
    assert warning.category is tl.TwolayerDeprecationWarning and issubclass(warning.category, FutureWarning)
    return result, warning


def test_a_renamed_argument_warns_and_is_passed_on(train):
    result, warning = the_warning(lambda: train(3, eta=0.5))
    assert result == (3, 0.5, None)
    assert str(warning.message) == (
        "Argument `eta` of `train` is deprecated since version 0.2 and will be removed in version 0.3; "
        "use `learning_rate` instead."
    )
    assert warning.filename == __file__  # the line to change is the caller's
    assert "train(3, eta=0.5)" in inspect.getsource(sys.modules[__name__]).splitlines()[warning.lineno - 1]
    assert the_warning(lambda: train(3, kappa=2))[0] == (3, 1.0, [2, 2])


def test_the_new_name_is_silent_and_alone_in_the_signature(train):
    assert train(3, learning_rate=0.5) == (3, 0.5, None)  # warnings are errors in the tests
    assert list(inspect.signature(train).parameters) == ["steps", "learning_rate", "scales"]
    assert train.__doc__ == "Train."


@pytest.mark.parametrize("arguments", [((3, 0.1), {"eta": 0.5}), ((3,), {"learning_rate": 0.1, "eta": 0.5})])
def test_both_names_at_once_are_refused(train, arguments):
    positional, keywords = arguments
    with pytest.raises(tl.InvalidInput, match="`eta` of `train` is the former name of `learning_rate`"):
        train(*positional, **keywords)


def test_an_argument_can_only_be_renamed_to_one_that_exists():
    with pytest.raises(ValueError, match="must have an argument `rate`"):
        renamed_argument("eta", "rate", since="0.2")(lambda learning_rate: learning_rate)


def test_a_renamed_function_warns_and_calls_the_new_one():
    def new(x: float) -> float:
        """Double."""
        return 2 * x

    old = renamed_function("old", new, since="1.9")
    result, warning = the_warning(lambda: old(2.0))
    assert result == 4.0 and warning.filename == __file__
    assert "`old` is deprecated since version 1.9" in str(warning.message)
    assert str(warning.message).endswith("removed in version 1.10; use `new` instead.")
    assert old.__name__ == "old" and list(inspect.signature(old).parameters) == ["x"]


def test_renamed_attributes_of_a_module_warn(monkeypatch):
    module = types.ModuleType("house")
    module.New = "here"  # pyright: ignore[reportAttributeAccessIssue]
    module.__getattr__ = renamed_attributes("house", {"Old": "New", "Root": "math.sqrt"}, since="0.2")  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "house", module)

    result, warning = the_warning(lambda: module.Old)
    assert result == "here" and "`house.Old`" in str(warning.message) and "use `house.New`" in str(warning.message)
    result, warning = the_warning(lambda: module.Root)
    assert result(9.0) == 3.0 and "use `math.sqrt`" in str(warning.message) and warning.filename == __file__
    with pytest.raises(AttributeError, match="module 'house' has no attribute 'Never'"):
        _ = module.Never


def test_overdue_names_are_listed():
    renamed_function("old", print, since="0.2")
    assert not overdue("0.2.7")
    assert [one.former for one in overdue("0.3.0")] == ["`old`"] == [one.former for one in overdue("1.0.0")]


def test_no_name_of_the_package_is_overdue(monkeypatch):
    monkeypatch.undo()  # the list of the package itself
    assert not overdue(tl.__version__), "remove these names: their minor version has passed"
