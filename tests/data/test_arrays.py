"""Arrays in damaged and forged files: refused before anything is made, in one sentence that names the file."""

import gzip
import zipfile

import numpy as np
import pytest

import twolayer as tl
from twolayer.data.array_files import read_idx


def _member(shape, descr="<f8", data=b"\0" * 16, version=b"\x01\x00"):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(118) + b"\n"
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + data


def _archive(path, **members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


@pytest.mark.parametrize(
    "X, words",
    [
        (_member((10**12, 10**6)), r"does not fit the \d+ bytes"),
        (_member((2, -1)), "dimensions"),
        (_member(()), "dimensions"),
        (_member((2,), descr="<U2"), "must hold numbers"),
        (_member((2,), descr="|O"), "must hold numbers"),
        (_member((2,), descr=[("a", "<f8")]), "must hold numbers"),
        (_member("none"), "shape"),
        (_member((2,), version=b"\x09\x00"), "does not begin with the header"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "header of an array"),
        (b"", "does not begin with the header"),
        (_member((2,)), "must hold rows of inputs and one label for each"),
    ],
)
def test_forged_arrays_are_refused(tmp_path, X, words):
    _archive(tmp_path / "forged.npz", X=X, y=_member((2,)))
    with pytest.raises(tl.InvalidInput, match=words) as told:
        tl.load_samples(tmp_path / "forged.npz")
    assert "forged.npz" in str(told.value)


def test_arrays_larger_than_the_memory_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "zeros.npz", X=np.zeros((3000, 1000)), y=np.zeros(3000))
    shape = np.array([2**20, 2**10], ">i4").tobytes()
    (tmp_path / "zeros.gz").write_bytes(gzip.compress(b"\0\0\x08\x02" + shape + b"\0" * 100))
    monkeypatch.setattr("twolayer.core.memory_limit._of_the_machine", lambda: 2**24)
    with pytest.raises(tl.InvalidInput, match=r"needs 72 MB of memory, but 16\.8 MB is available"):
        tl.load_samples(tmp_path / "zeros.npz")
    with pytest.raises(tl.InvalidInput, match="of memory"):
        read_idx(tmp_path / "zeros.gz")


@pytest.mark.parametrize(
    "content, words",
    [
        (b"\xff\xfe1,2\n", "table of numbers"),
        (b"a,b,c,y\n1,2\n", "4 names for its 2 columns"),
        (b"x" * 140_000 + b",y\n1,2\n", "table of numbers"),
        (b"", "must have rows"),
        (b"a,y\n", "must have rows"),
        (b"1,\x00\n", "must have rows"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, content, words):
    (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(tl.InvalidInput, match=words) as told:
        tl.load_samples(tmp_path / "bad.csv")
    assert "bad.csv" in str(told.value) and "\n" not in str(told.value)


def test_what_numpy_writes_is_read(tmp_path):
    for order in "CF":
        X = np.asarray(np.random.default_rng(0).integers(1, 9, (6, 4)), order=order)
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "a.npz", X=X.astype(np.float32), y=np.arange(6, dtype=">i2"))
            found = tl.load_samples(tmp_path / "a.npz", normalise=False)
            assert np.array_equal(found.X, X) and np.array_equal(found.y, np.arange(6))


def test_a_damaged_schema_is_refused(tmp_path):
    import xarray as xr

    for schema in ("one", -1, 1.5, np.zeros(3)):
        xr.Dataset({"x": ("t", np.arange(3))}, attrs={"schema": schema}).to_netcdf(
            tmp_path / "bad.nc", engine="h5netcdf"
        )
        with pytest.raises(tl.InvalidInput, match="`schema` of a result must be a whole number"):
            tl.load(tmp_path / "bad.nc")


def test_devices_and_pipes_are_no_files():
    with pytest.raises(tl.InvalidInput, match="is a device or a pipe"):
        tl.load("/dev/zero")
