"""Files: whatever is done to a data file or to a result, it is read or refused in one sentence that names it."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from pyarrow import parquet, table

import twolayer as tl
from tests.fuzz.mutations import mutate_bytes
from twolayer.data.images import SETS, load_images


def _valid_npz(rng):
    file = io.BytesIO()
    np.savez_compressed(file, X=rng.standard_normal((9, 3)), y=np.arange(9) % 3)
    return file.getvalue()


def _plain_npz(rng):
    file = io.BytesIO()
    np.savez(file, X=rng.standard_normal((9, 3)), y=np.arange(9) % 3)
    return file.getvalue()


def _valid_csv(rng):
    rows = [",".join(f"{x:.4f}" for x in row) for row in rng.standard_normal((9, 4))]
    return "\n".join(["a,b,c,y", *rows]).encode()


def _valid_parquet(rng):
    file = io.BytesIO()
    parquet.write_table(table({name: rng.standard_normal(9) for name in "abcy"}), file)
    return file.getvalue()


KINDS = {"a.npz": _valid_npz, "b.npz": _plain_npz, "a.csv": _valid_csv, "a.parquet": _valid_parquet}


@pytest.mark.parametrize("name", KINDS)
def test_mutated_tables(fuzz, name):
    content = KINDS[name](np.random.default_rng(1))
    path = fuzz.folder / name
    for _ in fuzz.rounds(100, 800):
        path.write_bytes(mutate_bytes(fuzz.rng, content))
        fuzz.call(lambda: tl.load_samples(path), name)
    assert fuzz.outcomes["refused"] > 20


def _idx(values):
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.tobytes())


def test_mutated_idx_files(fuzz):
    rng = np.random.default_rng(1)
    shapes = ((20, 5, 5), (20,), (8, 5, 5), (8,))
    contents = [_idx(rng.integers(0, 2, shape, dtype=np.uint8)) for shape in shapes]
    files = [fuzz.folder / file.name for file in SETS["mnist"].files]
    for case in fuzz.rounds(100, 600):
        for place, (path, content) in enumerate(zip(files, contents, strict=True)):
            path.parent.mkdir(exist_ok=True)
            plain = gzip.compress(mutate_bytes(fuzz.rng, gzip.decompress(content)))
            changed = mutate_bytes(fuzz.rng, content) if case % 2 else plain
            path.write_bytes(changed if place == case % 4 else content)
        fuzz.call(lambda: load_images("mnist", fuzz.folder, verify=False), "idx")
    assert fuzz.outcomes["refused"] > 20


def test_mutated_cifar(fuzz):
    rng = np.random.default_rng(1)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = 2 * 3073
            archive.addfile(member, io.BytesIO(rng.bytes(member.size)))
    for case in fuzz.rounds(80, 600):
        plain = mutate_bytes(fuzz.rng, file.getvalue()) if case % 2 else file.getvalue()
        packed = gzip.compress(plain, 1)
        packed = packed if case % 2 else mutate_bytes(fuzz.rng, packed)
        (fuzz.folder / "cifar-10-binary.tar.gz").write_bytes(packed)
        fuzz.call(lambda: load_images("cifar10", fuzz.folder, verify=False), "cifar")
    assert fuzz.outcomes["refused"] > 20


def test_mutated_results(fuzz):
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(5), start=tl.WarmStart(0.3))
    result = tl.evolve(problem, tl.SGD(0.1, constraint="sphere"), "DirectSGD", until=0.5, save=3)
    content = tl.save(result, fuzz.folder / "whole.nc").read_bytes()
    path = fuzz.folder / "bad.nc"
    for case in fuzz.rounds(40, 400):
        changed = bytearray(mutate_bytes(fuzz.rng, content))
        if case % 3 == 0 and (at := content.find(b"schema")) > 0:
            changed = bytearray(content)
            changed[at + int(fuzz.rng.integers(64))] ^= 1 << int(fuzz.rng.integers(8))
        path.write_bytes(bytes(changed))
        fuzz.call(lambda: tl.load(path), "result")
    assert fuzz.outcomes["refused"] > 10
