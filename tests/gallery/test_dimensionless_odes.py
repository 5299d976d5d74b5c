"""The pages of this source text are made at their small size, and their claims hold, but not with broken physics."""

import jax
import pytest

from tests.gallery.pages import check, names_of
from twolayer.gallery import PageOptions, find_page, make
from twolayer.theory.hdmf import FieldLandscape
from twolayer.theory.mean_field import PairLandscape
from twolayer.theory.motion import drift


@pytest.mark.parametrize("name", names_of("dimensionless_odes"))
def test_claims_hold(name, tmp_path):
    check(find_page(name), tmp_path / name)


def double_the_variance(monkeypatch):
    """The variance of the gradient in the drift of Q, gamma / p times an average over four fields."""
    true = drift.mean_increments
    monkeypatch.setattr(drift, "mean_increments", lambda *args: true(*args[:4], 2.0 * args[4]))


def double_the_pull(landscape):
    """The force on the overlaps of the particles; that on what is outside of the target stays as it is."""

    def broken(monkeypatch):
        true = landscape.force

        def force(self, particles, with_a=True):
            forces = true(self, particles, with_a)
            return forces._replace(b=2.0 * forces.b)

        monkeypatch.setattr(landscape, "force", force)

    return broken


# One term of the theory of each page, twice as large as it is.
BROKEN = {
    "sgd-to-ode": double_the_variance,
    "wide-students": double_the_pull(FieldLandscape),
    "mean-field": double_the_pull(PairLandscape),
    "wasserstein-flow": double_the_pull(FieldLandscape),
    "learning-rate-regimes": double_the_variance,
}


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN)
def test_a_page_fails_with_one_term_twice_as_large(name, tmp_path, monkeypatch):
    jax.clear_caches()  # what was compiled before has the true term
    BROKEN[name](monkeypatch)
    result = make(find_page(name), tmp_path / name, PageOptions())
    jax.clear_caches()
    assert not result.holds, str(result)
