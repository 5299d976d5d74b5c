"""What every registered class promises, found by walking the registry: a new class is tested by being there."""

import inspect
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
import twolayer.experiment  # registers the specification of a run
from twolayer.problem import AbstractActivation, AbstractTarget
from twolayer.specification.codec import content_hash, decode, encode, from_json, to_json
from twolayer.specification.registry import register, registered

BIBLIOGRAPHY = Path(__file__).parents[1] / "docs" / "references.bib"
CLASSES = {name: cls for name, cls in sorted(registered().items()) if cls.__module__.startswith("twolayer.")}

# Arguments for classes that need some. Custom holds a function, which cannot be read back.
EXAMPLES = {
    "Eigenvalues": lambda cls: cls([(2.0, 0.25), (0.5, 0.75)]),
    "Committee": lambda cls: cls(2, "erf", P=[[1.0, 0.3], [0.3, 2.0]], second_layer=[1.0, -0.5]),
    "Custom": lambda cls: cls(jnp.cos, parity=1, growth=0),
    "CustomLoss": lambda cls: cls(lambda y, s: jnp.cosh(y - s) - 1.0),
    "Expression": lambda cls: cls("tanh(z1) + 2.5*z1*z2"),
    "Flips": lambda cls: cls(0.1),
    "Gaussian": lambda cls: cls(100),
    "GivenOverlaps": lambda cls: cls([[1.0, 0.1], [0.1, 1.0]], [[0.3], [0.2]], [[1.5]]),
    "HeavyBall": lambda cls: cls(0.7),
    "Hermite": lambda cls: cls({(1, 0): 1.0, (0, 3): 0.1}),
    "HermiteActivation": lambda cls: cls(3),
    "Mixture": lambda cls: cls([tl.Committee(2, "erf"), tl.MultiIndex("z1*z2")], [0.75, 0.25]),
    "MultiIndex": lambda cls: cls("z1*z2 + abs(z3)", k=4, smooth=False),
    "Nesterov": lambda cls: cls(0.7),
    "PolynomialActivation": lambda cls: cls([1.0, -0.5, 2.0]),
    "Rescaled": lambda cls: cls("tanh", 1.5, 2.0, 0.5),
    "PiecewiseLinear": lambda cls: cls([-1.0, 0.5], [1.0, -0.25], slope=0.5, offset=0.1),
    "PowerLaw": lambda cls: cls(1.5),
    "Problem": lambda cls: cls(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(30), noise=0.1),
    "Reused": lambda cls: cls(2.5),
    "Schedule": lambda cls: cls([tl.SGD(0.5), tl.SGD(1.0, layers=tl.Second(2.0))], [3.0]),
    "LazySpec": lambda cls: cls(
        tl.Problem(tl.Labels(), tl.Student(4, "relu"), tl.Samples(np.eye(3), [1.0, -1.0, 1.0])), tl.First()
    ),
    "LookAhead": lambda cls: cls(-0.5),
    "PowerSum": lambda cls: cls([1.0, 0.5], [[1.0, 0.0], [0.0, 2.0]], [1, 2]),
    "RunSpec": lambda cls: cls(
        tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(30)), tl.SGD(0.1), [tl.SaadSolla()]
    ),
    "SGD": lambda cls: cls(0.7, reuse=tl.Reused(2.0), layers=tl.Both(0.3), constraint=tl.Sphere(), momentum=0.5),
    "RidgeRegression": lambda cls: cls(0.1, samples=300),
    "Samples": lambda cls: cls(np.arange(6.0).reshape(3, 2) / 7, [0.1, 0.2, 0.3]),
    "Signs": lambda cls: cls(tl.MultiIndex("z1 + 0.5*z2", k=2)),
    "SingleIndex": lambda cls: cls("z**3 - 3*z"),
    "Staircase": lambda cls: cls(3, coefficients=[1.0, 0.5, 0.1]),
    "Student": lambda cls: cls(2, "relu", second_layer=[0.1, -0.7]),
    "Task": lambda cls: cls(tl.SGD(0.5), tl.Committee(2, "relu"), noise=0.1),
    "WarmStart": lambda cls: cls([[0.1, 0.2]], 1.5),
}
WITH_FUNCTION = {"Custom", "CustomLoss"}


def example(name):
    if name in EXAMPLES:
        return EXAMPLES[name](CLASSES[name])
    needed = [
        parameter.name
        for parameter in inspect.signature(CLASSES[name]).parameters.values()
        if parameter.default is inspect.Parameter.empty
    ]
    assert not needed, f"`{name}` needs {needed}: give it a line in EXAMPLES of this file"
    return CLASSES[name]()


def of(family):
    return [name for name, cls in CLASSES.items() if issubclass(cls, family)]


@pytest.mark.parametrize("name", CLASSES)
def test_docstring(name):
    text = CLASSES[name].__dict__.get("__doc__") or ""
    assert len(text.strip()) > 5 and not text.startswith(f"{name}("), f"`{name}` needs a docstring of its own"


WITH_EQUATION = sorted({*of(tl.AbstractDescription), *of(AbstractTarget), *of(AbstractActivation), "SGD", "Problem"})


@pytest.mark.parametrize("name", [name for name in WITH_EQUATION if name not in WITH_FUNCTION])
def test_docstring_has_an_equation(name):
    text = CLASSES[name].__doc__
    assert ":math:" in text or ".. math::" in text


@pytest.mark.parametrize("name", CLASSES)
def test_citations_are_in_the_bibliography(name):
    known = re.findall(r"^@\w+\{([^,]+),", BIBLIOGRAPHY.read_text(), flags=re.MULTILINE)
    cited = re.findall(r":cite:\w+:`([^`]+)`", CLASSES[name].__doc__ or "")
    if issubclass(CLASSES[name], tl.AbstractDescription):
        cited += example(name).references
    missing = [key for keys in cited for key in keys.split(",") if key.strip() not in known]
    assert not missing


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in WITH_FUNCTION])
def test_round_trip(name):
    value = example(name)
    text = to_json(value)
    back = from_json(text, CLASSES[name])
    assert type(back) is type(value)
    assert to_json(back) == text and content_hash(back) == content_hash(value)
    again = decode(encode(value), eqx.Module)  # by its kind alone
    assert type(again) is type(value) and to_json(again) == text
    assert eqx.tree_equal(back, again)


@pytest.mark.parametrize("name", CLASSES)
def test_final_and_immutable(name):
    cls, value = CLASSES[name], example(name)
    assert issubclass(cls, eqx.Module) and not inspect.isabstract(cls)
    assert not [other for other in CLASSES.values() if other is not cls and issubclass(other, cls)]
    with pytest.raises(AttributeError):
        value.something = 1
    assert name in repr(value)


def same_under_transformations(value, x):
    """Eager, compiled, mapped and compiled-mapped evaluation agree; compiling again is not needed for other numbers."""
    traces = []

    @eqx.filter_jit
    def call(value, x):
        traces.append(None)
        return value(x)

    eager = np.asarray(value(x))
    # XLA may fuse and reorder: a few roundings of numbers of order ten.
    close = {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(call(value, x), eager, **close)
    np.testing.assert_allclose(jax.vmap(value)(x), eager, **close)
    np.testing.assert_allclose(jax.jit(jax.vmap(value))(x), eager, **close)
    call(value, x + 1.0)
    assert len(traces) == 1, "compiled twice for the same shapes"


@pytest.mark.parametrize("name", of(AbstractActivation))
def test_activations_compile_and_map(name):
    activation = example(name)
    x = jnp.asarray(np.random.default_rng(0).standard_normal(7))
    same_under_transformations(activation, x)
    gradient = jax.vmap(jax.grad(lambda x: activation(x)))(x)
    np.testing.assert_allclose(activation.derivative(x), gradient, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in of(AbstractTarget) if name not in ("Labels", "Mixture")])
def test_targets_compile_and_map(name):
    target = example(name)
    same_under_transformations(target, jnp.asarray(np.random.default_rng(0).standard_normal((5, target.k))))


@pytest.mark.parametrize("name", of(tl.AbstractDescription))
def test_descriptions_answer_whether_they_apply(name):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(2, "square"), tl.Gaussian(30))
    answer = example(name).applies(problem, tl.SGD(0.1))
    assert isinstance(answer.ok, bool) and answer.statement and "\n" not in answer.statement


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register(type("Erf", (), {}))
    assert register(CLASSES["Erf"]) is CLASSES["Erf"]  # the same class again is no harm
