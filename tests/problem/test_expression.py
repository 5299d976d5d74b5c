"""Formulas of users: their values, what is recognised about them, and what is refused."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import twolayer as tl
from twolayer.core.errors import InvalidInput
from twolayer.problem.expression import MAX_DEPTH, MAX_FIELDS, MAX_LENGTH, MAX_POWER, Expression

FIELDS = np.random.default_rng(3).standard_normal((30, 3))
NAMES = {
    "pi": math.pi,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "sign": np.sign,
    "step": lambda x: np.heaviside(x, 0.5),
    "max": np.maximum,
    "min": np.minimum,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "erf": lambda x: special.erf(x / math.sqrt(2)),
    "sigmoid": special.expit,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "gelu": lambda x: x * special.ndtr(x),
    "square": np.square,
    "linear": lambda x: x,
    "he2": lambda x: x**2 - 1,
    "he3": lambda x: x**3 - 3 * x,
}


def by_python(text: str, fields: np.ndarray = FIELDS) -> np.ndarray:
    """The same text evaluated by Python over NumPy: a reference for text that the test itself wrote."""
    variables = {f"z{r + 1}": fields[:, r] for r in range(fields.shape[1])} | {"z": fields[:, 0]}
    with np.errstate(all="ignore"):
        return np.broadcast_to(eval(text, {"__builtins__": {}}, NAMES | variables), fields.shape[0])


# text, is it smooth, is it a polynomial
GOOD = [
    ("z1", True, True),
    ("z", True, True),
    ("3.5", True, True),
    ("-z1 + +z2", True, True),
    ("z1 - z2 - z3", True, True),
    ("z1 - (z2 - z3)", True, True),
    ("2*z1**3/4 - z2*z3 + 1e-3", True, True),
    ("(z1 + z2)**2*z3", True, True),
    ("-z1**2", True, True),
    ("(-z1)**2", True, True),
    ("z1**0", True, True),
    ("he2(z1) + he3(z1 - 2*z2)", True, True),
    ("square(linear(z1) + pi)", True, True),
    ("z1/(2 + 3)/pi", True, True),
    ("0*z1", True, True),
    ("tanh(z1) + z1*z2", True, False),
    ("erf(z1)*sigmoid(z2) - softplus(z3) + gelu(z1)", True, False),
    ("exp(-z1**2)*cos(2*z2) + sin(z3)", True, False),
    ("1/(1 + z1**2)", True, False),
    ("log(2 + cos(z1))", True, False),
    ("sqrt(1 + z1**2)", True, False),
    ("relu(z1) - relu(-z1)", False, False),
    ("abs(z1*z2)", False, False),
    ("sign(z1) + step(z2)", False, False),
    ("max(z1, z2) + min(z3, 0.5)", False, False),
    ("tanh(relu(z2))", False, False),
]


@pytest.mark.parametrize("text, smooth, polynomial", GOOD, ids=[row[0] for row in GOOD])
def test_values_and_declarations(text, smooth, polynomial):
    expression = Expression(text)
    values = np.asarray(expression(jnp.asarray(FIELDS)))
    np.testing.assert_allclose(values, by_python(text), rtol=1e-12, atol=1e-12)
    assert values.shape == (30,) and values.dtype == np.float64
    assert expression.is_smooth == smooth
    found = expression.polynomial(3)
    assert (found is not None) == polynomial
    if found is not None:
        terms = [c * np.prod(FIELDS ** np.array(e), axis=1) for e, c in found.terms.items()]
        np.testing.assert_allclose(np.sum(terms, axis=0) + np.zeros(30), by_python(text), rtol=1e-11, atol=1e-11)


leaves = st.sampled_from(["z1", "z2", "z3", "2", "0.5", "pi"])
formulas = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
        | inner.map(lambda t: f"(-{t})")
        | st.tuples(inner, st.integers(0, 2)).map(lambda t: f"{t[0]}**{t[1]}")
        | st.tuples(st.sampled_from(["tanh", "relu", "he2", "sin", "abs"]), inner).map(lambda t: f"{t[0]}({t[1]})")
        | st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(formulas)
def test_any_formula_means_what_python_means(text):
    values = np.asarray(Expression(text)(jnp.asarray(FIELDS[:5])))
    expected = by_python(text, FIELDS[:5])
    # A value may be the small difference of large ones (powers of powers): compare with the largest on the way.
    if np.all(np.abs(expected) < 1e6):
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-7)


def test_shapes_and_number_of_fields():
    expression = Expression("z1*z3")
    assert expression.fields == 3
    fields = jnp.asarray(FIELDS).reshape(5, 6, 3)
    assert expression(fields).shape == (5, 6)
    assert expression(fields[0, 0]).shape == ()
    assert Expression("pi").fields == 0 and Expression("z").fields == 1 and Expression("z12").fields == 12
    assert Expression(f"z{MAX_FIELDS}").fields == MAX_FIELDS
    assert Expression("1").polynomial(2).terms == {(0, 0): 1.0}


def test_division_by_the_constant_zero_is_no_polynomial():
    assert Expression("z1/0").polynomial(1) is None
    with pytest.raises(InvalidInput):
        tl.MultiIndex("z1/0")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("z1 + he3(tanh(z2))", "tanh(z2)"),
        ("z1**2 / (1 + z2)", "z1 ** 2 / (1 + z2)"),
        ("max(z1, z2) * 3", "max(z1, z2)"),
        ("(z1**12)**3", "(z1**12)**3"),
        ("he2(z1)*z2/3 + pi", ""),
    ],
)
def test_the_part_that_is_no_polynomial_is_named(text, part):
    assert Expression(text).obstacle(2) == part


def test_a_polynomial_of_too_high_degree_is_treated_as_any_function():
    assert Expression("(z1**12)**3").polynomial(1) is None


def test_a_polynomial_of_too_many_terms_is_treated_as_any_function(fresh_python):
    """Expanding would give C(43, 12) = 1.5e10 terms; runs apart and with a limit on memory, since it would take all."""
    program = """
import resource, signal
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
from twolayer.problem.expression import Expression
signal.alarm(8)
text = "(" + "+".join(f"z{i}" for i in range(1, 33)) + ")**12"
print(Expression(text).polynomial(32))
"""
    assert fresh_python(program).strip() == "None"


HOSTILE = {
    "import": "__import__('os').system('true')",
    "bare import": "__import__('os')",
    "dunder name": "__builtins__",
    "attribute": "z1.__class__",
    "attribute chain": "().__class__.__bases__[0].__subclasses__()",
    "method": "z1.sum()",
    "lambda": "(lambda: 1)()",
    "lambda value": "lambda z1: z1",
    "comprehension": "[z1 for z1 in (1, 2)]",
    "generator": "max(z1 for z1 in (1, 2))",
    "set": "{1, 2}",
    "dict": "{1: 2}",
    "list": "[1, 2]",
    "tuple": "z1, z2",
    "subscript": "z1[0]",
    "slice": "z1[0:1]",
    "string": "'z1'",
    "bytes": "b'z1'",
    "f-string": "f'{z1}'",
    "walrus": "(z1 := 3)",
    "assignment": "z1 = 3",
    "statement": "import os",
    "two statements": "z1; z2",
    "two lines": "z1\nz2",
    "conditional": "z1 if z2 else z3",
    "comparison": "z1 < z2",
    "boolean": "z1 and z2",
    "not": "not z1",
    "invert": "~z1",
    "true": "True",
    "none": "None",
    "ellipsis": "...",
    "complex": "1j*z1",
    "await": "await z1",
    "yield": "(yield z1)",
    "matmul": "z1 @ z2",
    "floor division": "z1 // z2",
    "modulo": "z1 % z2",
    "shift": "1 << 99999",
    "tower": "9**9**9",
    "tower of fields": "z1**9**9",
    "huge power": "z1**999",
    "power 13": f"z1**{MAX_POWER + 1}",
    "negative power": "z1**-1",
    "fractional power": "z1**0.5",
    "power of a field": "2**z1",
    "huge number": "1e300",
    "infinite number": "1e999*z1",
    "huge whole number": "9" * 400,
    "whole number beyond Python's limit": "9" * 1999,
    "deep parentheses": "(" * 900 + "z1" + ")" * 900,
    "deep signs": "-" * 1500 + "z1",
    "deep calls": "tanh(" * 300 + "z1" + ")" * 300,
    "deep sum": "+".join(["z1"] * 900),
    "deep list": "[" + "-" * 1900 + "z1]",
    "very long": "z1+" * 100_000 + "z1",
    "null byte": "z1\0",
    "null byte inside": "z1 + \0 z2",
    "surrogate": "z1 + \ud800",
    "unicode name": "λ1",
    "unicode digits": "z²",
    "keyword argument": "tanh(x=z1)",
    "extra keyword argument": "tanh(z1, x=z1)",
    "star argument": "max(*z1)",
    "double star argument": "tanh(**z1)",
    "no argument": "tanh()",
    "two arguments": "tanh(z1, z2)",
    "one argument": "max(z1)",
    "three arguments": "max(z1, z2, z3)",
    "call of a number": "3(z1)",
    "call of a call": "tanh(z1)(z2)",
    "call of a field": "z1(z2)",
    "name of a function": "tanh",
    "unknown function": "eval(z1)",
    "open": "open('x')",
    "field zero": "z0",
    "field ninety-nine": "z99",
    "field beyond": f"z{MAX_FIELDS + 1}",
    "field hundred": "z100",
    "field with zero": "z01",
    "unknown name": "x1",
    "empty": "",
    "blank": "  \t ",
    "comment": "# z1",
    "unbalanced": "(z1",
    "trailing operator": "z1 +",
    "semicolon bomb": ";" * 1000,
    "backslash": "z1 \\",
    "bad escape": "'\\d'",
    "he0": "he0(z1)",
    "he13": "he13(z1)",
    "number without end": "1_000_000_000_000*z1",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused_quickly_in_one_line(text):
    begin = time.perf_counter()
    with pytest.raises(InvalidInput) as caught:
        Expression(text)
    assert time.perf_counter() - begin < 0.5
    message = str(caught.value)
    assert message and "\n" not in message and len(message) < 700
    message.encode()  # can be printed


@pytest.mark.parametrize("value", [None, 3, b"z1", ["z1"], object()])
def test_what_is_no_text_is_refused(value):
    with pytest.raises(InvalidInput, match=r"`function` must be a formula or a JAX function"):
        tl.MultiIndex(value, k=1)


def test_limits_are_as_stated():
    assert Expression("+".join(["z1"] * MAX_DEPTH)).fields == 1
    text = "z1" + " " * (MAX_LENGTH - 2)
    assert Expression(text).fields == 1
    with pytest.raises(InvalidInput, match=f"{MAX_LENGTH} characters"):
        Expression(text + " z1")


def test_a_wrong_name_gets_a_suggestion():
    with pytest.raises(InvalidInput, match="did you mean 'tanh'"):
        Expression("tan(z1)")
    with pytest.raises(InvalidInput, match="'z0' in a formula is not known"):
        Expression("z0")


def test_constants_are_known_while_a_function_is_compiled():
    """A formula divided by a root was a polynomial outside of compiled functions only."""
    formula = Expression("he3(z1)/sqrt(6)")

    def scaled(x):
        polynomial = formula.polynomial(1)
        return x * polynomial.terms[(3,)]

    assert float(jax.jit(scaled)(1.0)) == pytest.approx(6.0**-0.5)
