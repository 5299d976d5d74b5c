"""Loading data sets: files that the tests make, and the real ones where ``TWOLAYER_DATA`` names their folder."""

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import twolayer as tl
from twolayer.data.images import SETS, load_images
from twolayer.data.samples import load_samples, randomise_labels

CIFAR_ROW = 3073
REAL = Path(os.environ.get("TWOLAYER_DATA", "/nowhere"))


@pytest.fixture(autouse=True)
def _no_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("TWOLAYER_DATA", raising=False)
    monkeypatch.setattr("twolayer.data.images.cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    x = rng.integers(1, 255, (40, 28, 28), dtype=np.uint8)
    y = (np.arange(40) % 4).astype(np.uint8)
    return {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}


def write_idx(path, values):
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + values.tobytes()))


def test_archive_and_original_files_agree(tmp_path, images):
    np.savez(tmp_path / "mnist.npz", **images)
    for file, name in zip(SETS["mnist"].files, ("x_train", "y_train", "x_test", "y_test"), strict=True):
        write_idx(tmp_path / "original" / file.name, images[name])
    first = load_samples("mnist", data_dir=tmp_path, classes=(2, 0), verify=False)
    second = load_samples("mnist", data_dir=tmp_path / "original", classes=(2, 0), verify=False)
    assert np.array_equal(first.X, second.X) and np.array_equal(first.y, second.y)
    kept = np.isin(images["y_train"], (0, 2))
    pixels = images["x_train"][kept].reshape(kept.sum(), -1).astype(float)
    np.testing.assert_allclose(first.X, pixels / np.linalg.norm(pixels, axis=1, keepdims=True), rtol=1e-15)
    assert np.array_equal(first.y, np.where(images["y_train"][kept] == 2, 1.0, -1.0))


def test_cifar_in_its_binary_form(tmp_path):
    rng = np.random.default_rng(1)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
            rows = rng.integers(0, 255, (6, CIFAR_ROW), dtype=np.uint8)
            rows[:, 0] = [0, 1, 2, 0, 1, 9]
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = rows.size
            archive.addfile(member, io.BytesIO(rows.tobytes()))
    found = load_images("cifar10", tmp_path, verify=False)
    assert found.x_train.shape == (30, 32, 32, 3) and found.x_test.shape == (6, 32, 32, 3)
    # The last batch is the test batch: its first image, red plane, second row.
    assert np.array_equal(found.x_test[0, 1, :, 0], _last_batch(tmp_path)[0, 1 + 32 : 1 + 64])
    pair = load_samples("cifar10", data_dir=tmp_path, verify=False)
    assert pair.n == 20 and set(pair.y) == {-1.0, 1.0}


def _last_batch(folder):
    with tarfile.open(folder / "cifar-10-binary.tar.gz") as archive:
        content = archive.extractfile("cifar-10-batches-bin/test_batch.bin").read()
    return np.frombuffer(content, np.uint8).reshape(-1, CIFAR_ROW)


def test_files_of_numbers(tmp_path):
    X, y = np.random.default_rng(2).standard_normal((9, 3)), np.arange(9) % 3
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.savetxt(tmp_path / "a.csv", np.column_stack([y, X]), delimiter=",", header="y,a,b,c", comments="")
    np.savetxt(tmp_path / "b.csv", np.column_stack([X, y]), delimiter=",")
    for name in ("a.npz", "a.csv", "b.csv"):
        found = load_samples(tmp_path / name, normalise=False)
        np.testing.assert_allclose(found.X, X, rtol=1e-15)
        assert np.array_equal(found.y, y)
    one_against_rest = load_samples((X, y), classes=1, n=6)
    assert np.array_equal(one_against_rest.y, [-1, 1, -1, -1, 1, -1])
    np.testing.assert_allclose(np.linalg.norm(one_against_rest.X, axis=1), 1.0, rtol=1e-15)


def test_random_labels_are_nested_and_as_many_as_asked():
    y = np.ones(1000)
    shares = np.linspace(0.0, 1.0, 11)
    paths = np.stack([randomise_labels(y, share, seed=3) for share in shares])
    flipped = (paths == -1.0).sum(axis=1)
    # Half of those that are drawn change; once changed a label stays so at larger shares.
    assert np.all(np.abs(flipped - 500 * shares) <= 5.0 * np.sqrt(250 * shares) + 1e-9)
    assert np.all(np.diff(paths, axis=0) <= 0.0)
    assert not np.array_equal(paths[5], randomise_labels(y, 0.5, seed=4))
    assert np.array_equal(y, np.ones(1000))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda d: load_samples("mnist", data_dir=d / "none"), "put 'mnist.npz'"),
        (lambda d: load_samples("mnist"), "cache"),
        (lambda d: load_samples("mnistt"), "mnist, fashion-mnist, cifar10"),
        (lambda d: load_images("minst"), "did you mean 'mnist'"),
        (lambda d: load_samples(d / "mnist.npz", n=31), "at most 30"),
        (lambda d: load_samples("mnist", data_dir=d), "SHA-256"),
        (lambda d: load_samples("mnist", data_dir=d, classes=(1, 7), verify=False), "names 7"),
        (lambda d: load_samples("mnist", data_dir=d, classes=(1, 1), verify=False), "two different"),
        (lambda d: load_samples(d / "words.csv"), "table of numbers"),
        (lambda d: load_samples(d / "other.npz"), "must hold `X` and `y`"),
        (lambda d: load_samples(d / "absent.csv"), "There is no file"),
        (lambda d: load_samples(([[1.0], [0.0]], [1.0, 1.0])), "Sample 1 is zero"),
        (lambda d: load_samples(([[1.0], [1e200]], [1.0, 1.0])), "Sample 1 has a norm above the range"),
        (lambda d: load_samples(([[1.0], [2.0]], [3.0, 1.0]), random_labels=0.5), "classes"),
        (lambda d: load_samples(([[1.0], [2.0]], [-1.0, 1.0]), random_labels=1.5), "random_labels"),
    ],
)
def test_bad_input(call, words, tmp_path, images):
    np.savez(tmp_path / "mnist.npz", **images)
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    (tmp_path / "words.csv").write_text("a,b\n1,2\nx,3\n")
    with pytest.raises(tl.InvalidInput, match=words):
        call(tmp_path)


def test_parquet(tmp_path):
    from pyarrow import parquet, table

    X, y = np.random.default_rng(2).standard_normal((9, 3)), np.arange(9) % 3
    parquet.write_table(table({"a": X[:, 0], "y": y, "b": X[:, 1], "c": X[:, 2]}), tmp_path / "a.parquet")
    found = load_samples(tmp_path / "a.parquet", normalise=False)
    assert np.array_equal(found.X, X) and np.array_equal(found.y, y)
    parquet.write_table(table({"a": ["x", "y"], "y": [1, 2]}), tmp_path / "words.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for name in ("words.parquet", "broken.parquet"):
        with pytest.raises(tl.InvalidInput, match="not a table of numbers"):
            load_samples(tmp_path / name)


def test_parquet_says_what_is_missing(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(tl.InvalidInput, match="install twolayer"):
        load_samples(tmp_path / "a.parquet")


@pytest.mark.skipif(not (REAL / "mnist.npz").is_file(), reason="no MNIST here")
def test_real_mnist():
    found = load_samples("mnist", data_dir=REAL)
    assert found.n == 5923 + 6742 and int((found.y == 1.0).sum()) == 5923
