"""The pages beyond the papers are made at their small size, and their claims hold; a broken one fails."""

import equinox as eqx
import pytest

import twolayer as tl
from tests.gallery.pages import check, double_the_rate, names_of, twice
from twolayer.gallery import PageOptions, find_page, make
from twolayer.theory.formulas import one_neuron, phase_retrieval


@pytest.mark.parametrize("name", names_of("beyond_the_papers"))
def test_claims_hold(name, tmp_path):
    check(find_page(name), tmp_path / name)


@pytest.mark.long
def test_the_page_on_a_million_dimensions_fails_with_one_term_twice_as_large(tmp_path, monkeypatch):
    original = one_neuron._coefficients
    monkeypatch.setattr(one_neuron, "_coefficients", lambda *numbers: tuple(map(twice, original(*numbers))))
    assert not make(find_page("million-dimensions"), tmp_path / "page", PageOptions()).holds


@pytest.mark.long
def test_the_page_on_schedules_fails_with_a_noise_twice_as_large(tmp_path, monkeypatch):
    double_the_rate(monkeypatch, tl.SaadSolla)
    assert not make(find_page("optimised-schedule"), tmp_path / "page", PageOptions()).holds


@pytest.mark.long
def test_the_page_on_plateaus_fails_with_a_growth_rate_wrong_by_a_thousandth(tmp_path, monkeypatch):
    original = phase_retrieval.growth_rate
    monkeypatch.setattr(phase_retrieval, "growth_rate", lambda *numbers: 1.001 * original(*numbers))
    assert not make(find_page("plateau-lengths"), tmp_path / "page", PageOptions()).holds


@pytest.mark.long
def test_the_page_on_exponents_fails_with_a_noise_twice_as_large(tmp_path, monkeypatch):
    double_the_rate(monkeypatch, tl.SaadSolla)
    assert not make(find_page("risk-exponents"), tmp_path / "page", PageOptions()).holds


@pytest.mark.long
def test_the_page_on_emergence_fails_with_a_target_twice_as_strong(tmp_path, monkeypatch):
    """In the theory alone: directions emerge in half of the time."""
    run = tl.SaadSolla.run

    def wrong(self, problem, training, plan):
        return run(self, eqx.tree_at(lambda p: p.target.second_layer, problem, replace_fn=twice), training, plan)

    monkeypatch.setattr(tl.SaadSolla, "run", wrong)
    assert not make(find_page("emergence"), tmp_path / "page", PageOptions()).holds


@pytest.mark.long
def test_the_page_on_forgetting_fails_with_a_noise_twice_as_large(tmp_path, monkeypatch):
    double_the_rate(monkeypatch, tl.SaadSolla)
    assert not make(find_page("forgetting"), tmp_path / "page", PageOptions()).holds


@pytest.mark.long
def test_the_page_on_replay_fails_with_a_noise_twice_as_large(tmp_path, monkeypatch):
    double_the_rate(monkeypatch, tl.SaadSolla)
    assert not make(find_page("optimal-replay"), tmp_path / "page", PageOptions()).holds


@pytest.mark.long
def test_the_page_on_data_fails_with_a_noise_twice_as_large(tmp_path, monkeypatch):
    double_the_rate(monkeypatch, tl.SaadSolla)
    assert not make(find_page("gaussian-equivalence"), tmp_path / "page", PageOptions()).holds
