"""How objects show themselves: short on a terminal, as tables in a notebook, and never as pages of numbers."""

from typing import Any

import jax
import numpy as np
import pytest

import twolayer as tl

START = tl.GivenOverlaps(np.eye(40), np.zeros((40, 2)))
PROBLEM = tl.Problem(tl.Committee(2, "erf"), tl.Student(40, "erf"), tl.Gaussian(1000), start=START, noise=0.1)


def in_notebook(value: Any) -> str:
    return value._repr_html_()


def test_a_problem_reads_as_the_call_that_makes_it():
    assert repr(PROBLEM) == (
        "Problem(\n"
        "    target=Committee(k=2, activation=Erf()),\n"
        "    student=Student(p=40, activation=Erf()),\n"
        "    inputs=Gaussian(d=1000),\n"
        "    start=GivenOverlaps(Q=<array of shape (40, 40)>, M=<array of shape (40, 2)>),\n"
        "    noise=0.1,\n"
        ")"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Committee(k=2, activation=Erf(), P=[[1.0, 0.3], [0.3, 2.0]])",
        "Student(p=2, activation=Relu(), second_layer=[0.1, -0.7])",
        "SGD(learning_rate=0.5, batch_size=3, reuse=Fresh(), layers=First(), constraint=Sphere())",
        "Schedule(\n    phases=[\n",
        "Custom(silu)",
        "SaadSolla()",
    ],
)
def test_short_objects_stand_on_one_line_without_their_defaults(text):
    shown = [
        tl.Committee(2, "erf", P=[[1.0, 0.3], [0.3, 2.0]]),
        tl.Student(2, "relu", second_layer=[0.1, -0.7]),
        tl.SGD(0.5, batch_size=3, constraint="sphere"),
        tl.Schedule([tl.SGD(0.5), tl.SGD(1.0)], [3.0]),
        tl.Student(1, jax.nn.silu).activation,
        tl.SaadSolla(),
    ]
    assert any(repr(value).startswith(text) for value in shown)


def test_what_is_traced_can_be_shown():
    seen = []
    jax.jit(lambda gamma: seen.append(repr(tl.SGD(gamma))))(0.1)
    assert "learning_rate=<traced float" in seen[0]


def test_a_notebook_shows_tables_within_tables_and_escapes_what_users_wrote():
    shown = in_notebook(PROBLEM)
    assert shown.count("<table>") == 2, "the problem and its long start; what is short stays in its cell"
    for name in ("target", "student", "inputs", "start", "loss", "noise"):
        assert f">{name}</th>" in shown
    assert "Committee(k=2, activation=Erf())" in shown and "&lt;array of shape (40, 40)&gt;" in shown

    def named(x):
        return x

    named.__name__ = "<script>"
    wild = in_notebook(tl.Problem(tl.PhaseRetrieval(), tl.Student(1, named), tl.Gaussian(10)))
    assert "<script>" not in wild and "&lt;script&gt;" in wild
    assert "Sphere()" in in_notebook(tl.SGD(0.1, constraint="sphere"))
    assert in_notebook(tl.Schedule([tl.SGD(0.5), tl.SGD(1.0)], [3.0])).count("<table>") == 3


def test_a_class_of_a_user_shows_itself_once_it_is_registered(own_registry):
    @tl.register
    class Shown(tl.AbstractMethod):
        """A method."""

        size: float = 1.0

        def advance(self, W, V, move):
            return W, V

    assert repr(Shown(2.0)) == "Shown(size=2.0)" and "size</th>" in in_notebook(Shown(2.0))
