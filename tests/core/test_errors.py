"""Messages: of bounded length whatever was given, with the nearest name for one that does not exist."""

from pathlib import Path

import pytest

import twolayer as tl
from twolayer.core.errors import MAX_MESSAGE, MAX_PATH, MAX_VALUE, InvalidInput, nearest, shown, takes_these


def test_no_value_makes_a_message_long():
    long = "x" * 10_000
    for value in (long, long.encode(), 10**5000, [10**5000], [long], {"a": long}, Path(long), object):
        assert 0 < len(shown(value)) <= (MAX_PATH if isinstance(value, Path) else MAX_VALUE)
    assert len(str(InvalidInput(f"A value is {'x' * 10**6}."))) == MAX_MESSAGE


def test_short_values_are_shown_as_they_are():
    assert [shown(value) for value in (3, "a", [1.5], None, Path("a"))] == ["3", "'a'", "[1.5]", "None", "'a'"]
    assert shown(10**5000) == "a whole number of about 5000 digits"
    assert shown("a" * 100 + "end").endswith("end'")


def test_names_are_suggested_by_spelling_initials_and_parts():
    names = ["learning_rate", "batch_size", "risk_threshold", "overlap_threshold"]
    assert "did you mean 'learning_rate'?" in nearest("learning_rat", names)
    assert "did you mean 'learning_rate'?" in nearest("lr", names)
    assert "did you mean 'risk_threshold'?" in nearest("threshold", ["risk_threshold", "until"])
    assert nearest("q", ["abc"]) == "allowed is abc."


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: tl.SGD(lr=0.1), "`SGD` has no argument 'lr': did you mean 'learning_rate'"),
        (lambda: tl.SGD(), "`SGD` cannot be called in this way: missing a required argument: 'learning_rate'"),
        (lambda: tl.Student(p=1, activation="erf", width=2), "`Student` has no argument 'width'"),
        (lambda: tl.Free(radius=2), "`Free` has no argument 'radius': it takes none"),
        (lambda: tl.evolve(None, None, None, threshold=0.1), "'threshold': did you mean '.*thresh"),
        (lambda: tl.compare(None, None, [], replica=3), "did you mean 'replicas'"),
        (lambda: tl.explain(), "`explain` cannot be called in this way"),
        (lambda: tl.load_samples("mnist", folder="x"), "`load_samples` has no argument 'folder'"),
        (lambda: tl.SGD(0.1, constraint="spher"), "did you mean 'Sphere'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told_in_one_sentence(call, words):
    with pytest.raises(InvalidInput, match=words):
        call()
    with pytest.raises((TypeError, InvalidInput)):  # Python's own class as well, for whoever catches that
        call()


def test_every_constructor_and_verb_checks_its_arguments():
    verbs = (
        tl.evolve,
        tl.compare,
        tl.explain,
        tl.derive,
        tl.exit_time,
        tl.learn,
        tl.ntk,
        tl.optimise,
        tl.best_training,
        tl.fluctuations,
        tl.load,
        tl.save,
    )
    for called in (*verbs, *(value for value in vars(tl).values() if isinstance(value, type) and _is_ours(value))):
        with pytest.raises(InvalidInput, match="no argument 'colour'"):
            called(colour=1)


def _is_ours(cls):
    from twolayer.specification.registry import registered

    return registered().get(cls.__name__) is cls


def test_names_of_classes_stand_for_them_as_in_a_file():
    by_name = tl.SGD(0.5, reuse="fresh", layers="Both", constraint="sphere")
    assert by_name == tl.SGD(0.5, reuse=tl.Fresh(), layers=tl.Both(), constraint=tl.Sphere())
    target = tl.PhaseRetrieval()
    named = tl.Problem("PhaseRetrieval", tl.Student(1, "square"), tl.Gaussian(5), start="randomstart", loss="square")
    assert named == tl.Problem(target, tl.Student(1, "square"), tl.Gaussian(5))


def test_a_checked_function_is_itself():
    def double(x: int, *, by: int = 2) -> int:
        """Twice."""
        return by * x

    checked = takes_these(double)
    assert checked(3) == 6 and checked(3, by=3) == 9 and checked.__doc__ == "Twice."
