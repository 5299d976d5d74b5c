"""Averages over the law of the start, against closed forms, limits and drawn starts."""

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma

import twolayer as tl
from twolayer.core.random import replica_key
from twolayer.theory.formulas.random_start import (
    mean_log_overlap,
    mean_over_largest,
    mean_over_overlap,
    overlap_rule,
    sum_of_alignments,
    sum_of_squares,
)

DIMENSIONS = [2, 3, 4, 10, 1000, 10**6, 10**12]


@pytest.mark.parametrize("d", DIMENSIONS)
def test_the_rule_knows_the_beta_law(d):
    """Up to a million dimensions to rounding; beyond, where the density is very narrow, within the reported error."""
    known = {
        "one": (lambda u: np.ones_like(u), 1.0),
        "mean": (lambda u: d * u, 1.0),
        "square": (lambda u: (d * u) ** 2, 3 * d / (d + 2)),
        "logarithm": (np.log, digamma(0.5) - digamma(d / 2)),
    }
    for name, (function, exact) in known.items():
        found = mean_over_overlap(function, d)
        assert abs(found.value - exact) <= found.error, name
        assert abs(found.value - exact) < (1e-13 * abs(exact) if d <= 10**6 else 1e-7), name


@pytest.mark.parametrize(("d", "below"), [(2, 0.3), (3, 0.9), (50, 0.02), (1000, 0.5)])
def test_the_rule_over_part_of_the_law(d, below):
    exact = stats.beta(0.5, (d - 1) / 2).cdf(below)
    assert np.sum(overlap_rule(d, below)[1]) == pytest.approx(exact, abs=1e-12)


def test_the_mean_logarithm_of_one_direction_is_closed():
    for d in DIMENSIONS:
        found = mean_log_overlap(1, d)
        assert abs(found.value - (digamma(0.5) - digamma(d / 2))) <= found.error
        assert found.error < 1e-8 or d == 10**12


@pytest.mark.parametrize("p", [2, 5, 50])
def test_the_mean_logarithm_tends_to_that_of_chi_squared(p):
    """The difference from the limit shrinks in proportion to 1/d."""
    limit = digamma(p / 2) + np.log(2.0)
    gaps = [mean_log_overlap(p, d).value + np.log(d) - limit for d in (100, 1000, 10_000)]
    slopes = np.diff(np.log(np.abs(gaps))) / np.log(10.0)
    np.testing.assert_allclose(slopes, -1.0, atol=0.1)


@pytest.mark.parametrize(("p", "d"), [(3, 2), (4, 60)])
def test_drawn_starts_have_the_law(check_mean, p, d):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(p, "square"), tl.Gaussian(d))
    keys = jax.vmap(lambda replica: replica_key(3, replica))(np.arange(4000))
    starts = jax.jit(problem.draw_many)(keys)
    squares = np.asarray(starts.M)[:, 0, 0] ** 2
    assert stats.kstest(squares, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > 6e-7  # the rate of z = 5
    overlap, alignment = sum_of_squares(starts.M), sum_of_alignments(starts.Q)
    check_mean(d * overlap, p, "overlap")
    check_mean(d * alignment, p * (p - 1), "alignment")
    check_mean(np.log(overlap), mean_log_overlap(p, d).value, "logarithm")


@pytest.mark.parametrize("p", [1, 5])
def test_the_largest_of_several_overlaps_has_its_mean(p):
    squares = np.random.default_rng(0).beta(0.5, 49.5, (200_000, p)).max(axis=1)
    for function in (np.log, lambda square: square):
        mean = mean_over_largest(function, p, 100)
        assert abs(mean.value - function(squares).mean()) < 5 * function(squares).std() / np.sqrt(len(squares))
        assert mean.error < 1e-9
