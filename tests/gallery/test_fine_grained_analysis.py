"""The pages of this source text are made at their small size, and their claims hold; a broken one fails."""

import shutil

import numpy as np
import pytest

from tests.gallery.pages import check, names_of
from twolayer.gallery import Page, PageOptions, find_page, make
from twolayer.kernel import bounds, eigen, spectra, training


@pytest.mark.parametrize("name", names_of("fine_grained_analysis"))
def test_claims_hold(name, tmp_path):
    check(find_page(name), tmp_path / name)


# ------------------------------------------------------------------- what is off by a factor of two must be seen

# Sizes at which a page takes seconds.
SMALL = {
    "lazy-training": {"n = 100": "n = 40", "p = 4096": "p = 2048", "steps = 100": "steps = 40"},
    "complexity": {"test = 2000": "test = 500", "p = 512": "p = 128", "steps = 200": "steps = 40"},
    "provable-learning": {"p = 512": "p = 128", "steps = 200": "steps = 40"},
}


def small_page(name, folder):
    """A copy of a page with smaller sizes."""
    shutil.copytree(find_page(name).folder, folder)
    text = (folder / "spec.toml").read_text()
    for old, new in SMALL[name].items():
        assert old in text
        text = text.replace(old, new)
    (folder / "spec.toml").write_text(text)
    return Page(folder)


def fails(name, folder):
    """The sentences of the claims that do not hold at the small size."""
    result = make(small_page(name, folder / "page"), folder / "made", PageOptions())
    return [claim.sentence for claim in result.claims if not claim.holds]


def double_the_gram_matrix(monkeypatch):
    true = eigen.gram_with_error

    def wrong(*args, **kwargs):
        H, error = true(*args, **kwargs)
        return 2.0 * H, error

    monkeypatch.setattr(eigen, "gram_with_error", wrong)
    monkeypatch.setattr("twolayer.analyses.lazy.ntk.gram_with_error", wrong)


def double_the_measure(monkeypatch):
    true = spectra.as_measure
    wrong = lambda form, n: true(type(form)(4.0 * form.value, form.error), n)  # noqa: E731
    for place in ("twolayer.analyses.lazy.ntk", "twolayer.analyses.lazy.networks"):
        monkeypatch.setattr(f"{place}.as_measure", wrong)


def double_the_start(monkeypatch):
    true = training.first_layer

    def wrong(*args):
        return ((rows, 2.0 * W) for rows, W in true(*args))

    monkeypatch.setattr(training, "first_layer", wrong)


def double_the_steps(monkeypatch):
    true = training._descend

    def wrong(Z0, signs, factors, y, eta, *rest):
        return true(Z0, signs, factors, y, 2.0 * eta, *rest)

    monkeypatch.setattr(training, "_descend", wrong)


def halve_the_bound(monkeypatch):
    true = vars(bounds.PowerSum)["bound"].fget
    monkeypatch.setattr(bounds.PowerSum, "bound", property(lambda self: 0.5 * true(self)))


def double_the_coefficients(monkeypatch):
    true = bounds.series_coefficient
    monkeypatch.setattr(bounds, "series_coefficient", lambda q: 2.0 * true(q))


def randomise_half_as_many(monkeypatch):
    from twolayer.data import samples

    true = samples.randomise_labels
    for place in ("twolayer.data.randomise_labels", "twolayer.analyses.lazy.ntk.randomise_labels"):
        monkeypatch.setattr(place, lambda y, share, seed=0: true(y, 0.5 * np.asarray(share), seed))


BROKEN = [
    ("lazy-training", double_the_gram_matrix),
    ("lazy-training", double_the_start),
    ("lazy-training", double_the_steps),
    ("complexity", double_the_gram_matrix),
    ("complexity", double_the_measure),
    ("complexity", randomise_half_as_many),
    ("provable-learning", double_the_gram_matrix),
    ("provable-learning", halve_the_bound),
    ("provable-learning", double_the_coefficients),
]


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_small_pages_hold(name, tmp_path):
    assert fails(name, tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("name, broken", BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_a_factor_of_two_is_seen(name, broken, tmp_path, monkeypatch):
    broken(monkeypatch)
    assert fails(name, tmp_path)


@pytest.mark.long
def test_projections_that_are_twice_as_large_are_seen(tmp_path, monkeypatch):
    true = eigen.Spectrum.projections
    monkeypatch.setattr(eigen.Spectrum, "projections", lambda self, y: 2.0 * true(self, y))
    assert not make(find_page("eigenvector-projections"), tmp_path / "page", PageOptions()).holds
