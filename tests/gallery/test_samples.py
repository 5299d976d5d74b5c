"""Which data set the pages on lazy training take, and that they do not take another in silence."""

import numpy as np
import pytest

import twolayer as tl
from twolayer import InvalidInput, gallery
from twolayer.gallery import PageOptions
from twolayer.gallery.page_samples import DIMENSION, SYNTHETIC, two_classes


@pytest.fixture(autouse=True)
def nothing_in_the_default_places(monkeypatch, tmp_path):
    monkeypatch.delenv("TWOLAYER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_two_gaussians_where_no_images_are():
    ((name, (train, test)),) = two_classes(PageOptions(), 300, 200).items()
    assert name == SYNTHETIC and train.X.shape == (300, DIMENSION) and test.X.shape == (200, DIMENSION)
    np.testing.assert_allclose(np.linalg.norm(train.X, axis=1), 1.0, atol=1e-12)
    assert not np.isin(train.X[:, 1], test.X[:, 1]).any()
    # The means are two deviations from the middle: the sign of the first coordinate errs in 2.3% of the cases.
    assert np.mean(np.sign(test.X[:, 0]) != test.y) < 0.07


def test_images_where_they_are_and_no_other_set_in_a_folder_that_was_named(tmp_path):
    with pytest.raises(InvalidInput, match="MNIST"):
        two_classes(PageOptions(data_dir=tmp_path), 10)
    pixels = np.random.default_rng(0).integers(1, 255, (40, 32, 32, 3), dtype=np.uint8)
    classes = np.arange(40, dtype=np.uint8) % 2
    np.savez(tmp_path / "cifar10.npz", x_train=pixels, y_train=classes, x_test=pixels[:20], y_test=classes[:20])
    ((name, (train, test)),) = two_classes(PageOptions(data_dir=tmp_path), 30, 100).items()
    assert name.startswith("CIFAR-10") and (train.n, test.n) == (30, 20)
    assert set(np.asarray(train.y)) == {-1.0, 1.0}


def test_the_options_of_a_page_are_found_by_their_former_name():
    with pytest.warns(tl.TwolayerDeprecationWarning, match="PageOptions"):
        assert gallery.Ask is PageOptions
