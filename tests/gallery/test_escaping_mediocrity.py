"""The pages of this source text are made at their small size, and their claims hold, but not with broken physics."""

import pytest

import twolayer as tl
from tests.gallery.pages import check, double_the_rate, names_of, twice
from twolayer.gallery import PageOptions, find_page, make
from twolayer.theory.formulas import one_neuron, phase_retrieval
from twolayer.theory.formulas.quadratic import QuadraticStudent


@pytest.mark.parametrize("name", names_of("escaping_mediocrity"))
def test_claims_hold(name, tmp_path):
    check(find_page(name), tmp_path / name)


# One term of the theory of each page, twice as large as it is.
BROKEN = {
    "escape-times": (one_neuron, "diffusion_strength"),
    "escape-width": (phase_retrieval, "rate_constant"),
    "optimal-learning-rate": (phase_retrieval, "rate_constant"),
    "second-layer": (QuadraticStudent, "diffusion"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_a_page_fails_with_one_term_twice_as_large(name, tmp_path, monkeypatch):
    place, term = BROKEN[name]
    original = getattr(place, term)
    monkeypatch.setattr(place, term, lambda *numbers: twice(original(*numbers)))
    assert not make(find_page(name), tmp_path / name, PageOptions()).holds


@pytest.mark.parametrize(
    "name, theory",
    [
        pytest.param("escape-trajectories", tl.SDE, marks=pytest.mark.long),
        pytest.param("risk-floor", tl.SaadSolla, marks=pytest.mark.slow),
    ],
)
def test_a_page_fails_with_a_noise_twice_as_large(name, theory, tmp_path, monkeypatch):
    double_the_rate(monkeypatch, theory)
    assert not make(find_page(name), tmp_path / name, PageOptions()).holds
