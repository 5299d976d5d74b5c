"""The converters: what they let through, and the sentence they refuse with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from twolayer.core.errors import InvalidInput, nearest
from twolayer.specification import fields

count, number, array = fields.count("x", low=1, high=10), fields.number("x", low=0.0, below=1.0), fields.array("x", 2)


@pytest.mark.parametrize("value", [1, 10, 3.0, np.int8(3), np.float32(3.0), np.array(3), jnp.asarray(3)])
def test_count_gives_a_python_int(value):
    assert type(count(value)) is int and count(value) == int(value)


@pytest.mark.parametrize(
    "value", [0, 11, -1, 2.5, True, "3", None, [3], np.array([3]), np.nan, np.inf, 1j, pytest.param(10**400, id="huge")]
)
def test_count_refuses(value):
    with pytest.raises(InvalidInput, match="Argument `x` must be a whole number of at least 1 and at most 10, but is "):
        count(value)


def test_optional():
    assert fields.count("x", optional=True)(None) is None
    assert fields.number("x", optional=True)(None) is None
    assert fields.array("x", 1, optional=True)(None) is None
    for converter in (fields.count("x"), fields.number("x"), fields.array("x", 1)):
        with pytest.raises(InvalidInput):
            converter(None)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.25), np.array(0.5), 1 - 2**-53])
def test_number_gives_a_python_float(value):
    assert type(number(value)) is float and number(value) == value


def test_number_leaves_jax_numbers_alone():
    value = jnp.asarray(0.5)
    assert number(value) is value
    assert jax.grad(lambda x: 3.0 * number(x))(0.5) == 3.0  # a tracer passes, to be differentiated


@pytest.mark.parametrize(
    "value",
    [
        -1e-300,
        1.0,
        np.nan,
        -np.inf,
        "0.5",
        None,
        True,
        [0.5],
        1j,
        jnp.asarray(2.0),
        pytest.param(10**400, id="huge"),
        np.array(1j),
        np.array("a"),
    ],
)
def test_number_refuses(value):
    with pytest.raises(InvalidInput, match="Argument `x` must be a finite number at least 0 and below 1, but is "):
        number(value)


def test_strict_and_weak_bounds():
    assert fields.number("x", low=0.0, high=1.0)(0.0) == 0.0 and fields.number("x", low=0.0, high=1.0)(1.0) == 1.0
    for bounds in ({"above": 0.0}, {"below": 0.0}):
        with pytest.raises(InvalidInput):
            fields.number("x", **bounds)(0.0)


def test_array_gives_float64_or_the_jax_array():
    assert array([[1, 2]]).dtype == np.float64
    assert array(np.ones((2, 3), np.float32)).dtype == np.float64
    value = jnp.ones((1, 1))
    assert array(value) is value


@pytest.mark.parametrize(
    "value",
    [
        [1.0, 2.0],
        1.0,
        [[1.0], [2.0, 3.0]],
        "abc",
        [["a"]],
        None,
        {},
        [[np.nan]],
        [[np.inf]],
        jnp.asarray([[jnp.nan]]),
        jnp.ones(3),
        [[1j]],
        np.array([[1j]]),
        [[10**400]],
    ],
)
def test_array_refuses(value):
    with pytest.raises(InvalidInput, match="Argument `x` must be "):
        array(value)


def test_a_long_value_is_shortened():
    with pytest.raises(InvalidInput) as caught:
        number("x" * 10_000)
    assert len(str(caught.value)) < 200


def test_choice_and_flag_and_instance():
    choose = fields.choice("law", ("sphere", "gaussian"))
    assert choose("sphere") == "sphere"
    with pytest.raises(InvalidInput, match="did you mean 'gaussian'"):
        choose("gaussan")
    for value in (None, 3, ["sphere"]):
        with pytest.raises(InvalidInput, match="`law`"):
            choose(value)
    assert fields.flag("f")(np.True_) is True
    for value in (1, "true", None):
        with pytest.raises(InvalidInput, match="true or false"):
            fields.flag("f")(value)
    with pytest.raises(InvalidInput, match="must be a text, but is 3"):
        fields.instance("t", str, "a text")(3)


def test_nearest():
    assert nearest("relo", ["relu", "erf"]) == "did you mean 'relu'? Allowed: erf, relu."
    assert nearest("zzz", ["relu", "erf"]) == "allowed are erf, relu."


def test_as_data_makes_nonzero_numbers_arrays():
    import twolayer as tl

    data = fields.as_data(tl.SGD(0.3, momentum=0.0, layers=tl.Both(0.0)))
    assert isinstance(data.learning_rate, np.ndarray) and data.learning_rate == 0.3
    assert data.momentum == 0.0 and isinstance(data.momentum, float)  # exact zeros stay structure
    assert isinstance(data.layers, tl.Both) and isinstance(data.layers.ratio, float)
