"""The pages of this source text are made at their small size, and their claims hold; a broken one fails."""

import json

import jax
import numpy as np
import pytest

import twolayer as tl
from tests.gallery.pages import check, double_the_rate, names_of, script_of
from twolayer.gallery import PageOptions, agrees, find_page, make
from twolayer.gallery.make import read_page_spec
from twolayer.gallery.page import ERRORS
from twolayer.theory import batch_map


@pytest.mark.parametrize("name", names_of("first_order_methods"))
def test_claims_hold(name, tmp_path):
    check(find_page(name), tmp_path / name)


@pytest.mark.long
def test_the_staircase_page_fails_when_the_noise_of_a_batch_counts_twice(monkeypatch):
    """Giant steps and the fit: the map agrees with SGD, and does not when one of its terms is doubled."""
    script = script_of(find_page("staircase"))
    second_layer = np.random.default_rng(0).standard_normal(12)
    problem, larger = (script.layered(script.STAIRCASE, d, second_layer) for d in (256, 512))
    layers = [script.first_layers(system, tl.OverlapSGD(), 16) for system in (problem, larger)]
    runs = [script.errors(problem, result)[0] for result in layers]

    def claim():
        jax.clear_caches()
        predicted = script.errors(problem, script.first_layers(problem, script.THEORY))[0][0]
        return agrees("error", *(x[1:] for x in script.extrapolated(*runs)), predicted[1:])

    assert claim().holds
    weights = batch_map.student_weights
    monkeypatch.setattr(batch_map, "student_weights", lambda problem, a: 2.0**0.5 * weights(problem, a))
    assert not claim().holds


@pytest.mark.long
def test_the_page_on_reused_batches_fails_with_steps_twice_as_large(monkeypatch):
    script, page = script_of(find_page("reused-batches")), find_page("reused-batches")
    neuron = script.of_width(read_page_spec(page.folder / "spec.toml"), 400, np.ones(1))
    monkeypatch.setattr(script, "GRADIENTS", 2)
    asked = ("one neuron", neuron, 24, tl.DMFT(samples=2**14))
    assert all(claim.holds for claim in script.overlaps_panel(*asked)[1])
    double_the_rate(monkeypatch, tl.DMFT)
    assert not all(claim.holds for claim in script.overlaps_panel(*asked)[1])


@pytest.mark.long
def test_the_page_on_learnable_targets_fails_with_leaps_twice_as_large():
    """A leap of two in place of one predicts that giant steps find nothing, and runs find it."""
    script, page = script_of(find_page("learnable-targets")), find_page("learnable-targets")
    spec = read_page_spec(page.folder / "spec.toml")
    answer = json.loads(tl.learn("z1**3").attrs["answer"])
    for stage in answer["order"]:
        stage["leap"] *= 2
    (found, absent), (found_again, absent_again) = script.runs_of(answer, spec, 128, 32)
    assert not found and min(absent) > ERRORS and min(found_again) > ERRORS and not absent_again


@pytest.mark.long
@pytest.mark.parametrize("theory", [tl.SaadSolla, tl.BatchMap])
def test_the_page_on_batch_sizes_fails_with_steps_twice_as_large(theory, tmp_path, monkeypatch):
    double_the_rate(monkeypatch, theory)
    assert not make(find_page("batch-sizes"), tmp_path / "page", PageOptions()).holds
