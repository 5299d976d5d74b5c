"""The pages of this source text are made at their small size, and their claims hold."""

import importlib.util

import jax
import numpy as np
import pytest

import twolayer as tl
from tests.gallery.pages import check, names_of
from twolayer.gallery import agrees, find_page
from twolayer.theory import batch_map


@pytest.mark.parametrize("name", names_of("first_order_methods"))
def test_claims_hold(name, tmp_path):
    check(find_page(name), tmp_path / name)


@pytest.mark.long
def test_the_staircase_page_fails_when_the_noise_of_a_batch_counts_twice(monkeypatch):
    """One giant step and the fit: the map agrees with SGD, and does not when one of its terms is doubled."""
    folder = find_page("staircase").folder
    where = importlib.util.spec_from_file_location("staircase_script", folder / "script.py")
    script = importlib.util.module_from_spec(where)
    where.loader.exec_module(script)
    problem = script.layered(script.STAIRCASE, 500, np.random.default_rng(0).standard_normal(12))
    n = script.ALPHA * 500
    training = tl.SGD(script.RATE * 12 / script.ALPHA, batch_size=n)

    def claim():
        jax.clear_caches()
        predicted = script.errors(problem, training, script.THEORY, [1], n)[0][0]
        mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(8)
        return agrees("error", mean, error, predicted, known_to=2.0 * 12 / n * predicted)

    runs = script.errors(problem, training, tl.OverlapSGD(), [1], n, replicas=8)[0]
    assert claim().holds
    weights = batch_map.student_weights
    monkeypatch.setattr(batch_map, "student_weights", lambda problem, a: 2.0**0.5 * weights(problem, a))
    assert not claim().holds
