"""Names by which programs are found without tracing: the same in every process, another one for whatever matters."""

import subprocess
import sys
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twolayer as tl
from twolayer.core.stable_names import Argument, Nameless, digest
from twolayer.specification.fields import replaced

PROBLEM = tl.Problem(tl.Committee(2, "erf"), tl.Student(2, "erf"), tl.Gaussian(d=50), noise=0.1)
SCALE = 2.0


def written(text, **known):
    """A function of a script of the user, with what the script knows."""
    exec(text, known | {"jnp": jnp, "jax": jax}, known)
    function = known["own"]
    return types.FunctionType(function.__code__, known | {"jnp": jnp}, "own", function.__defaults__)


def test_two_processes_give_the_same_name():
    program = (
        "import twolayer as tl; from twolayer.core.stable_names import digest\n"
        "problem = tl.Problem(tl.Committee(2, 'erf'), tl.Student(2, 'erf'), tl.Gaussian(d=50), noise=0.1)\n"
        "print(digest(problem, lambda x: x in {'a', 'b', 'c'}))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    names = {
        subprocess.check_output([sys.executable, "-c", program], env=environment | {"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    }
    assert len(names) == 1


@pytest.mark.parametrize(
    "other",
    [
        replaced(PROBLEM, noise=0.2),
        replaced(PROBLEM, student=tl.Student(3, "erf")),
        replaced(PROBLEM, student=tl.Student(2, "relu")),
        replaced(PROBLEM, target=tl.PhaseRetrieval()),
        replaced(PROBLEM, loss="huber"),
    ],
)
def test_what_a_program_depends_on_has_another_name(other):
    assert digest(PROBLEM) == digest(replaced(PROBLEM, noise=0.1))
    assert digest(PROBLEM) != digest(other)


def test_arrays_are_constants_unless_a_program_is_given_them():
    constants = np.zeros(3), np.ones(3), np.zeros((3, 1)), np.zeros(3, dtype=np.float32)
    given = Argument((3,), "float64", False), Argument((4,), "float64", False), Argument((3,), "float64", True)
    assert len({digest(x) for x in (*constants, *given)}) == 7
    assert digest(jnp.ones(3)) == digest(np.ones(3)) != digest(partial(jnp.clip, np.ones(3)))
    assert digest(partial(jnp.clip, np.ones(3))) != digest(partial(jnp.clip, np.zeros(3)))
    with pytest.raises(Nameless):
        digest(jax.random.key(0))


def test_numbers_are_named_by_their_values_and_types():
    assert len({digest(x) for x in (1, 1.0, True, "1", None, (1,), [1], -0.0, 0.0)}) == 9


def test_functions_of_the_user_are_named_by_all_that_they_compute_with():
    texts = {
        "plain": "def own(x): return scale * jnp.tanh(x)",
        "other function": "def own(x): return scale * jnp.sin(x)",
        "other number": "def own(x): return 1.5 * scale * jnp.tanh(x)",
        "other default": "def own(x, y=2): return scale * jnp.tanh(x)",
        "within": "def own(x): return (lambda z: scale * jnp.tanh(z))(x)",
        "within, another": "def own(x): return (lambda z: scale * jnp.cos(z))(x)",
    }
    names = {key: digest(written(text, scale=2.0)) for key, text in texts.items()}
    assert len(set(names.values())) == len(texts)
    assert names["plain"] == digest(written(texts["plain"], scale=2.0))
    for other in (2.5, np.array(2.0), np.array(3.0), written(texts["plain"], scale=1.0)):
        assert digest(written(texts["plain"], scale=other)) != names["plain"]
    weights = [digest(written(texts["plain"], scale=np.array([1.0, x]))) for x in (2.0, 3.0)]
    assert weights[0] != weights[1]  # constants of a function count by their numbers


def test_closures_and_partial_functions_are_named_by_what_they_hold():
    def power(n):
        return lambda x: x**n

    assert digest(power(2)) == digest(power(2)) != digest(power(3))
    assert digest(partial(jnp.clip, max=1.0)) != digest(partial(jnp.clip, max=2.0))
    assert digest(jax.nn.silu) == digest(jax.nn.silu) != digest(jax.nn.gelu)


def test_a_function_that_refers_to_itself_has_a_name():
    def own(x, n):
        return x if n == 0 else own(jnp.sin(x), n - 1)

    assert digest(own)


def test_what_two_processes_cannot_recognise_has_no_name():
    class Own:
        pass

    module = types.ModuleType("of_the_user")
    for thing in (Own(), Own, module, written("def own(x): return module.f(x)", module=module), {1, 2}, object()):
        with pytest.raises(Nameless):
            digest(thing)
