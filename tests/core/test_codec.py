"""Objects <-> plain data <-> canonical JSON <-> hash."""

import json
import random

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.experiment import RunSpec
from twolayer.specification.codec import content_hash, decode, encode, from_json, to_json

# ------------------------------------------------------------------------------------------- random problems

finite = st.floats(-3.0, 3.0, allow_nan=False, allow_subnormal=False)
positive = st.floats(1e-3, 10.0)
activations = st.sampled_from(["erf", "relu", "tanh", "square", "sigmoid", "softplus", "gelu", "linear", "he3"])


def correlation(k: int, strength: float) -> list[list[float]]:
    """A positive definite matrix: entries decay with the distance of the indices."""
    return [[strength ** abs(r - s) for s in range(k)] for r in range(k)]


# The strategies give plain data, and the tests build the objects: the type checker of the test session draws random
# numbers of its own, which Hypothesis does not allow while it generates.


@st.composite
def targets(draw):
    kind = draw(st.sampled_from(["Committee", "Hermite", "Staircase", "PhaseRetrieval", "SingleIndex"]))
    if kind == "Committee":
        k = draw(st.integers(1, 3))
        P = draw(st.none() | st.floats(-0.9, 0.9).map(lambda s: correlation(k, s)))
        outer = draw(st.none() | st.lists(finite, min_size=k, max_size=k))
        return k, {"kind": kind, "k": k, "activation": draw(activations), "P": P, "second_layer": outer}
    if kind == "Hermite":
        k = draw(st.integers(1, 2))
        degrees = st.tuples(*[st.integers(0, 4)] * k).map(lambda key: ",".join(map(str, key)))
        return k, {"kind": kind, "coefficients": draw(st.dictionaries(degrees, finite, min_size=1, max_size=3))}
    if kind == "Staircase":
        k = draw(st.integers(1, 3))
        steps = draw(st.none() | st.lists(finite, min_size=k, max_size=k))
        return k, {"kind": kind, "k": k, "coefficients": steps}
    return 1, {"kind": kind} | ({"link": draw(activations)} if kind == "SingleIndex" else {})


@st.composite
def problems(draw):
    k, target = draw(targets())
    p = draw(st.integers(1, 4))
    outer = st.sampled_from(["ones", "rademacher", "gaussian"]) | st.lists(finite, min_size=p, max_size=p)
    law, norm, m, q = st.sampled_from(["sphere", "gaussian"]), positive, st.floats(-0.1, 0.1), st.floats(0.5, 2.0)
    given_q = q.map(lambda q: {"Q": (q * np.eye(p)).tolist(), "M": np.zeros((p, k)).tolist()})
    start = (
        st.fixed_dictionaries({"kind": st.just("RandomStart"), "law": law, "norm": norm})
        | st.fixed_dictionaries({"kind": st.just("WarmStart"), "m": m})
        | given_q.map(lambda data: {"kind": "GivenOverlaps"} | data)
    )
    return {
        "kind": "Problem",
        "target": target,
        "student": {"kind": "Student", "p": p, "activation": draw(activations), "second_layer": draw(outer)},
        "inputs": {"kind": "Gaussian", "d": draw(st.integers(p + k, 10**6))},
        "start": draw(start),
        "noise": draw(st.floats(0.0, 2.0)),
    }


@st.composite
def trainings(draw):
    reused = st.fixed_dictionaries(
        {"kind": st.just("Reused"), "alpha": positive}, optional={"replacement": st.booleans()}
    )
    ratio = st.floats(0.0, 3.0).map(lambda ratio: {"kind": "Both", "ratio": ratio})
    return {
        "learning_rate": draw(positive),
        "batch_size": draw(st.none() | st.integers(1, 1000)),
        "reuse": draw(st.just("Fresh") | reused),
        "layers": draw(st.just("First") | ratio),
        "constraint": draw(st.sampled_from(["Free", "Sphere", {"kind": "Sphere", "riemannian": True}])),
        "weight_decay": draw(st.floats(0.0, 1.0)),
        "momentum": draw(st.floats(0.0, 0.99)),
    }


def shuffled(data, rng):
    """The same tables with their keys in another order."""
    if isinstance(data, dict):
        keys = list(data)
        rng.shuffle(keys)
        return {key: shuffled(data[key], rng) for key in keys}
    return [shuffled(item, rng) for item in data] if isinstance(data, list) else data


def numbers_in(data, path=()):
    """The paths of all numbers in plain data."""
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        return [found for key, item in items for found in numbers_in(item, (*path, key))]
    return [path] if isinstance(data, int | float) and not isinstance(data, bool) else []


def with_other_number(data, path):
    changed = json.loads(json.dumps(data))
    place = changed
    for key in path[:-1]:
        place = place[key]
    old = place[path[-1]]
    place[path[-1]] = old + 1 if isinstance(old, int) else np.nextafter(old, 10.0)  # the smallest change there is
    return changed


@settings(max_examples=50)
@given(problems(), st.integers(0, 2**31))
def test_a_problem_survives_the_journey(data, seed):
    problem = decode(data, tl.Problem)
    text = to_json(problem)
    back = from_json(text, tl.Problem)
    assert to_json(back) == text
    assert content_hash(back) == content_hash(problem)
    data = encode(problem)
    assert to_json(decode(shuffled(data, random.Random(seed)), tl.Problem)) == text  # the order of keys is no content
    assert to_json(decode(json.loads(json.dumps(data, indent=2)), tl.Problem)) == text


@settings(max_examples=50)
@given(trainings())
def test_a_training_survives_the_journey(data):
    training = decode(data, tl.SGD)
    text = to_json(training)
    back = from_json(text, tl.SGD)
    assert to_json(back) == text and content_hash(back) == content_hash(training)
    fresh_default = 1 if data["reuse"] == "Fresh" else None  # None stays None for a reused set: all of it
    expected = fresh_default if data["batch_size"] is None else data["batch_size"]
    assert back.batch_size == training.batch_size == expected
    assert back.learning_rate == data["learning_rate"]  # to the last digit


@settings(max_examples=25)
@given(problems())
def test_the_hash_changes_with_any_number(data):
    problem = decode(data, tl.Problem)
    data = encode(problem)
    hashes = {content_hash(problem)}
    paths = numbers_in(data)
    for path in paths:
        changed = with_other_number(data, path)
        # The changed text need not be a valid problem: the hash is that of the text.
        hashes.add(content_hash(changed))
    assert len(hashes) == 1 + len(paths)


def test_the_hash_is_that_of_the_canonical_text():
    import hashlib

    training = tl.SGD(0.1)
    text = to_json(training)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert content_hash(training) == hashlib.sha256(text.encode()).hexdigest()


def test_the_same_value_in_another_type_is_the_same_text():
    plain = tl.SGD(0.5, batch_size=2)
    assert to_json(tl.SGD(np.float64(0.5), batch_size=2)) == to_json(plain)
    assert to_json(tl.SGD(jnp.asarray(0.5), batch_size=2)) == to_json(plain)
    listed = tl.GivenOverlaps([[1, 0], [0, 1]], [[0.25], [0]])
    assert to_json(listed) == to_json(tl.GivenOverlaps(jnp.eye(2), np.array([[0.25], [0.0]])))


# ---------------------------------------------------------------------------------------------- other ways in

SPEC = {
    "kind": "Problem",
    "target": {"kind": "Committee", "k": 2, "activation": "erf"},
    "student": {"kind": "Student", "p": 3, "activation": "relu"},
    "inputs": {"kind": "Gaussian", "d": 30},
}


def spec(**changes):
    """The specification above with some entries replaced, by dotted path; None removes one."""
    data = json.loads(json.dumps(SPEC))
    for path, value in changes.items():
        *way, last = path.split("__")
        place = data
        for key in way:
            place = place[key]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return data


def test_shorthands():
    full = to_json(decode(SPEC, tl.Problem))
    assert to_json(decode(spec(kind=None), tl.Problem)) == full
    assert to_json(decode(spec(student__kind=None), tl.Problem)) == full  # a concrete class needs no kind
    assert to_json(decode(spec(student__activation={"kind": "Relu"}), tl.Problem)) == full
    assert to_json(decode(spec(start="RandomStart"), tl.Problem)) == full
    problem = decode(SPEC, tl.Problem)
    assert decode(problem, tl.Problem) is problem


REFUSED = [
    ("unknown kind", spec(target__kind="Commmittee"), ["`target`", "'Commmittee'", "did you mean 'Committee'?"]),
    ("kind of another family", spec(target__kind="Gaussian"), ["`target`", "'Gaussian' is not known here"]),
    ("unknown field", spec(student__actvation="erf"), ["`student`", "'actvation'", "did you mean 'activation'?"]),
    ("unknown field at the top", spec(starrt="RandomStart"), ["'starrt'", "did you mean 'start'?"]),
    ("missing field", spec(student__p=None), ["`student`", "`Student` needs the field `p`"]),
    ("missing part", spec(inputs=None), ["`Problem` needs the field `inputs`"]),
    ("no kind", spec(target__kind=None), ["`target`", "needs a `kind`", "Committee", "PhaseRetrieval"]),
    ("not a table", spec(target=3), ["`target`", "3"]),
    ("bad value", spec(student__p=0), ["`student`", "`p`", "at least 1", "0"]),
    ("text for a number", spec(student__p="3"), ["`student`", "`p`", "'3'"]),
    ("unknown activation", spec(target__activation="reelu"), ["`target.activation`", "'reelu'", "'relu'"]),
    ("unknown start", spec(start="RandomStrat"), ["`start`", "did you mean 'RandomStart'?"]),
    ("bad field of a start", spec(start={"kind": "RandomStart", "norm": -1.0}), ["`start`", "`norm`", "-1.0"]),
    ("not a number", spec(noise=float("nan")), ["`noise`", "nan"]),
    ("function", spec(target__activation={"kind": "callable", "name": "f"}), ["`target.activation`", "'f'"]),
    ("hostile formula", spec(target={"kind": "MultiIndex", "function": "__import__('os')", "k": 1}), ["`target`"]),
]


@pytest.mark.parametrize("data, words", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refusals_say_where_and_what(data, words):
    with pytest.raises(InvalidInput) as caught:
        decode(data, tl.Problem)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_the_path_is_the_whole_path():
    with pytest.raises(InvalidInput, match=r"^`problem\.target\.activation`: "):
        decode(spec(target__activation={"kind": "Errf"}), tl.Problem, path="problem")


def test_objects_with_a_function_say_that_they_cannot_be_read_back():
    problem = tl.Problem(tl.Committee(1, jnp.sin), tl.Student(1, "erf"), tl.Gaussian(9))
    text = to_json(problem)  # can be written, for the record
    assert "callable" in text
    with pytest.raises(InvalidInput, match="cannot be rebuilt"):
        from_json(text, tl.Problem)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        "3",
        "null",
        '{"kind": "SGD", "learning_rate": NaN}',
        '{"kind": "SGD", "learning_rate": 1e999}',
        '{"kind": ["SGD"]}',
        '{"kind": "SGD", "learning_rate": {"kind": "SGD"}}',
    ],
)
def test_bad_json_is_refused_in_one_line(text):
    with pytest.raises(InvalidInput) as caught:
        from_json(text, tl.SGD)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"kind": "SGD", "learning_rate": 1' + "0" * 400 + "}", id="integer beyond a float"),
        pytest.param('{"kind": "SGD", "learning_rate": 1' + "0" * 5000 + "}", id="integer beyond Python's limit"),
        pytest.param("[" * 100_000, id="nested without end"),
    ],
)
def test_monstrous_json_is_refused_in_one_line(text):
    with pytest.raises(InvalidInput) as caught:
        from_json(text, tl.SGD)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.array([1.0, np.nan]), {"a": -np.inf}, 1j, b"x", {1}])
def test_what_has_no_canonical_text_is_refused(value):
    with pytest.raises(InvalidInput):
        to_json(value)


def test_two_functions_of_one_name_have_different_hashes():
    first, again, other = (tl.MultiIndex(f, k=2) for f in (lambda z: z[0], lambda z: z[0], lambda z: z[1]))
    assert content_hash(first) == content_hash(again)
    assert content_hash(first) != content_hash(other)

    def make(c):
        return lambda z: c * z[0]

    closed = [tl.MultiIndex(make(c), k=2) for c in (1.0, 2.0)]
    assert content_hash(closed[0]) != content_hash(closed[1])


# --------------------------------------------------------------------------------------- fields of several classes

SCHEDULES = [
    tl.Schedule([tl.SGD(0.5), tl.SGD(0.1, layers=tl.Second(0.5))], [2.0]),
    tl.Schedule([tl.SGD(0.5, reuse=tl.Reused(2.0)), tl.SGD(0.1, reuse=tl.Reused(2.0))], [2.0]),
    tl.Schedule([tl.SGD(0.5, batch_size=40), tl.RidgeRegression(0.1, samples=40)], [2.0]),
]


@pytest.mark.parametrize(
    "training", [tl.SGD(0.5, constraint=tl.Sphere()), *SCHEDULES], ids=["SGD", "fresh", "reused", "fit"]
)
def test_a_specification_with_any_training_is_rebuilt_by_its_json(training):
    problem = tl.Problem(tl.Committee(1, "erf"), tl.Student(2, "erf"), tl.Gaussian(20))
    spec = RunSpec(problem, training, (tl.DirectSGD(), tl.SDE(dt=0.1)))
    rebuilt = from_json(to_json(spec), RunSpec)
    assert rebuilt.training == training and content_hash(rebuilt) == content_hash(spec)
    assert from_json(to_json(training), (tl.SGD, tl.Schedule)) == training


def test_of_several_classes_the_one_with_the_fields_is_read():
    phases = [{"learning_rate": 0.5}, {"learning_rate": 0.1}]
    assert decode({"phases": phases, "switches": [1.0]}, (tl.SGD, tl.Schedule)) == tl.Schedule(
        [tl.SGD(0.5), tl.SGD(0.1)], [1.0]
    )
    assert decode({"learning_rate": 0.5}, (tl.SGD, tl.Schedule)) == tl.SGD(0.5)
    for data, name in [({"phases": phases, "switch": [1.0]}, "Schedule"), ({"rate": 1.0}, "SGD"), ({}, "SGD")]:
        with pytest.raises(InvalidInput, match=f"`{name}` "):
            decode(data, (tl.SGD, tl.Schedule))
    with pytest.raises(InvalidInput, match="not known here"):
        decode({"kind": "Gaussian", "d": 3}, (tl.SGD, tl.Schedule))


CLOSURES = """
import numpy as np
from twolayer.specification.codec import content_hash
def scaled(function, factor, table):
    def inner(x, again=False):
        return inner(x) if again else factor * function(x) + table[0]
    return inner
table, other = np.zeros(20000), np.zeros(20000)
other[10000] = 1.0  # where the printed form of the table has dots
one, two = lambda x: x + 1, lambda x: x + 2
functions = [scaled(one, 2.0, table), scaled(two, 2.0, table), scaled(one, 2.0, other)]
print(*map(content_hash, functions))
"""


def test_a_function_is_known_by_what_it_encloses_in_every_process(fresh_python):
    first, second = (fresh_python(CLOSURES).split() for _ in range(2))
    assert first == second and len(set(first)) == 3
