"""Every input that cannot be used is refused in words, whatever the library beneath says."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from bigfs.core.errors import CorruptStoreError, InputError, InputTypeError, StorageError
from bigfs.store.ingest import ingest
from bigfs.store.source import open_matrix

X = np.arange(12.0).reshape(4, 3)


def _text(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
        return folder / name

    return write


def _npy(value: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.save(folder / "X.npy", np.asarray(value))
        return folder / "X.npy"

    return write


def _npz(**members: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        np.savez(folder / "X.npz", **members)
        return folder / "X.npz"

    return write


def _mat(**variables: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        from scipy.io import savemat

        savemat(folder / "X.mat", variables)
        return folder / "X.mat"

    return write


def _frame(**columns: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)


def _parquet(**columns: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        _frame(**columns).to_parquet(folder / "X.parquet")
        return folder / "X.parquet"

    return write


def _zarr(value: np.ndarray) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        array = zarr.create_array(store=str(folder / "X.zarr"), shape=value.shape,
                                  dtype=value.dtype)  # fmt: skip
        array[...] = value
        return folder / "X.zarr"

    return write


def _zarr_group(folder: Path) -> Path:
    group = zarr.open_group(str(folder / "X.zarr"), mode="w")
    group.create_array("data", shape=(4, 3), dtype="f4")
    group.create_array("other", shape=(4, 3), dtype="f4")
    group.create_group("more")
    return folder / "X.zarr"


def _names(names: list[str]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        array = zarr.create_array(store=str(folder / "X.zarr"), shape=(4, 3), dtype="f4")
        array.attrs["feature_names"] = names
        return folder / "X.zarr"

    return write


def _damaged(write: Callable[[Path], Path], name: str, content: bytes) -> Callable[[Path], Path]:
    def damage(folder: Path) -> Path:
        path = write(folder)
        (path / name).write_bytes(content)
        return path

    return damage


def _cut(write: Callable[[Path], Path], keep: float) -> Callable[[Path], Path]:
    def cut(folder: Path) -> Path:
        path = write(folder)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
        return path

    return cut


def _flipped(write: Callable[[Path], Path], position: int) -> Callable[[Path], Path]:
    def flip(folder: Path) -> Path:
        path = write(folder)
        content = bytearray(path.read_bytes())
        content[position] ^= 0xFF
        path.write_bytes(content)
        return path

    return flip


def _zip_of_later(folder: Path) -> Path:
    """A .npz whose directory asks for version 25.5 of zip."""
    path = _npz(X=X)(folder)
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 6] = 255
    path.write_bytes(content)
    return path


def _dask(folder: Path, unknown: bool = False) -> Any:
    import dask.array as da

    lazy = da.from_array(X, chunks=(2, 3))
    return lazy[lazy[:, 0] > 1] if unknown else lazy.astype(complex)


def _dask_series(folder: Path) -> Any:
    dd = pytest.importorskip("dask.dataframe", reason="dask.dataframe needs pyarrow")
    return dd.from_pandas(_frame(a=[1.0, 2.0]), npartitions=1)["a"]


def _sparse(shape: tuple[int, int], dtype: str = "f8") -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(shape, dtype=dtype)


HEADER = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"

# what is wrong -> (how to make it, a fragment of the message)
CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no such path": (lambda f: f / "no.npy", "no.npy does not exist. Check the path"),
    "no such file of a file URI": (lambda f: f"file://{f}/no.csv", "no.csv does not exist"),
    "unknown ending": (_text("X.xyz", "?"), r"Known endings: \.npy, \.npz, \.csv.*zarr folders"),
    "no ending": (_text("X", "?"), "show the kind of file"),
    "remote": (
        lambda f: "s3://key:secret@lab/X.zarr?token=1",
        "^s3://lab/X.zarr: an address must not contain",
    ),
    "unknown set": (lambda f: "sklearn:mnist", "sklearn:breast_cancer, sklearn:digits"),
    "folder of something": (lambda f: f, "is a folder, but not a zarr array or group"),
    "list": (lambda f: [[1, 2], [3, 4]], "must be a path, a list of paths, .* Got list"),
    "none": (lambda f: None, "Got NoneType"),
    "series": (lambda f: _frame(a=[1, 2])["a"], "Got Series"),
    "one dimension": (lambda f: np.arange(3.0), r"2 dimensions. Got shape \(3,\)"),
    "three dimensions": (lambda f: np.zeros((2, 2, 2)), r"Got shape \(2, 2, 2\)"),
    "one row": (lambda f: np.zeros((1, 3)), r"2 samples and 1 feature.*shape \(1, 3\)"),
    "no column": (lambda f: np.zeros((3, 0)), r"Got shape \(3, 0\)"),
    "complex": (lambda f: X + 1j, "real numbers. Got complex128"),
    "objects": (lambda f: X.astype(object), "Got object"),
    "texts": (lambda f: X.astype(str), "Got str"),
    "dates": (lambda f: X.astype("datetime64[s]"), "Got datetime64"),
    "records": (lambda f: np.zeros((2, 2), dtype=[("a", "f4")]), "real numbers"),
    "masked": (lambda f: np.ma.masked_less(X, 1).astype(complex), "Got complex128"),
    "frame with text": (
        lambda f: _frame(a=[1, 2], b=["x", "y"]),
        "column 'b' holds .*Leave",
    ),
    "frame with categories": (
        lambda f: _frame(a=[1, 2], b=_frame(c=["x", "y"])["c"].astype("category")),
        "column 'b' holds category",
    ),
    "frame with a name twice": (
        lambda f: _frame(a=[1, 2], b=[3, 4]).set_axis(["a", "a"], axis=1),
        "'a' appears twice",
    ),
    "frame without columns": (lambda f: _frame(), r"Got shape \(0, 0\)"),
    "sparse, complex": (lambda f: _sparse((3, 3), "c8"), "Got complex64"),
    "sparse, one row": (lambda f: _sparse((1, 3)), r"Got shape \(1, 3\)"),
    "dask, unknown shape": (lambda f: _dask(f, unknown=True), "compute_chunk_sizes"),
    "dask, complex": (_dask, "Got complex128"),
    "dask series": (_dask_series, r"to_dask_array\(lengths=True\)"),
    "npy of text": (_text("X.npy", "hello, world"), "not in NumPy's .npy format"),
    "npy empty": (_text("X.npy", b""), "not in NumPy's .npy format"),
    "npy pickled": (_npy(np.array([[1, None]] * 2, dtype=object)), "pickled Python objects"),
    "npy cut off": (_cut(_npy(X), 0.9), "is cut off: 201 of 224 bytes"),
    "npy of one dimension": (_npy(X[0]), r"Got shape \(3,\)"),
    "npy of texts": (_npy(X.astype(str)), "Got str"),
    "npz of text": (_text("X.npz", "hello"), "is not a .npz file"),
    "npz without a matrix": (_npz(y=X[0]), r"no matrix of numbers \(it has y\). Save one"),
    "npz with two": (_npz(a=X, b=X), r"2 matrices \(it has a, b\).*--variable"),
    "npz pickled": (_npz(X=X.astype(object)), "X.npz::X holds pickled"),
    "npz damaged": (_flipped(_npz(X=np.zeros((99, 99))), 5000), "X.npz::X is damaged.*CRC"),
    "npz of a later zip": (_zip_of_later, "is not a .npz file"),
    "npz cut off": (_cut(_npz(X=X), 0.8), "is not a .npz file"),
    "npz, bad CSR": (
        _npz(data=[1.0], indices=[9], indptr=[0, 1, 1], shape=[2, 3]),
        "parts of a sparse matrix",
    ),
    "npz, bad format": (
        _npz(data=[1.0], indices=[1], indptr=[0, 1, 1], shape=[2, 3], format="zip"),
        "parts of a sparse matrix",
    ),
    "csv empty": (_text("X.csv", b""), "is empty"),
    "csv of header alone": (_text("X.csv", "a,b\n"), "at least 2 samples are needed. Got 0"),
    "csv of one row": (_text("X.csv", "1,2\n"), "at least 2 samples are needed. Got 1"),
    "csv short line": (_text("X.csv", "a,b\n1,2\n3\n"), "line 3 has 1 cells.*line has 2 columns"),
    "csv long line": (_text("X.csv", "1,2\n3,4,5\n6,7\n"), "line 2 has 3 cells"),
    "csv text cell": (_text("X.csv", "a,b\n1,2\n3,dog\n"), r"line 3, column 1 \('b'\) is 'dog'"),
    "csv quoted text": (_text("X.csv", '1,2\n3,"4,5"\n'), "line 2, column 1 is '4,5'"),
    "csv underscore": (_text("X.csv", "1,2\n3,1_000\n"), "line 2, column 1 is '1_000'"),
    "csv true": (_text("X.csv", "1,2\n3,True\n"), "is 'True', which is not a number"),
    "csv semicolons": (_text("X.csv", "a;b\n1;2\n"), "holds '1;2'.*Cells are separated by ','"),
    "csv name twice": (_text("X.csv", "a,a\n1,2\n"), "the feature name 'a' appears twice"),
    "csv with index": (_text("X.csv", ",a\n0,2\n1,3\n"), r"to_csv\(..., index=False\)"),
    "csv numbered, with index": (_text("X.csv", ",0,1\n0,2,4\n"), r"to_csv\(..., index=False\)"),
    "csv nameless": (_text("X.csv", "a,,c\n0,2,3\n"), "column 1 has no name in the header"),
    "csv of bytes": (_text("X.csv", bytes(range(256))), "it holds zero bytes"),
    "csv of zeros": (_text("X.csv", b"\0" * 99), "zero bytes"),
    "csv UTF-32": (_text("X.csv", "1,2\n3,4\n".encode("utf-32")), "not UTF-8.*utf-32"),
    "csv of gzip": (
        _text("X.csv", b"\x1f\x8b\x08\n"),
        r"compressed by gzip. Add .gz to its name.$",
    ),
    "no path": (lambda place: "", "The path of the input is empty"),
    "csv of Parquet": (_text("X.csv", b"PAR1\xf0\x00\n"), r"is a Parquet file. Name it .parquet.$"),
    "durations": (
        _parquet(a=[1.0, 2], b=np.array([1, 2], "m8[s]")),
        r"'b' holds duration.* \(no setting encodes it: convert it to numbers\)",
    ),
    "csv UTF-16": (_text("X.csv", "1,2\n3,4\n".encode("utf-16")), "not UTF-8.*utf-16"),
    "csv.gz of text": (_text("X.csv.gz", "1,2\n"), "not a readable text table.*[Gg]zip"),
    "csv.gz cut off": (
        _cut(_text("X.csv.gz", gzip.compress(b"1.25,2.5\n3,4\n" * 9999)), 0.5),
        "cannot be read",
    ),
    "parquet of text": (_text("X.parquet", "hello" * 9), "is not a Parquet file"),
    "parquet with text": (_parquet(a=[1, 2], b=["x", "y"]), "column 'b' holds .*string"),
    "parquet with dates": (
        _parquet(a=np.array([1, 2], dtype="datetime64[s]")),
        "column 'a' holds timestamp",
    ),
    "parquet of one row": (_parquet(a=[1.0]), r"Got shape \(1, 1\)"),
    "mat of text": (_text("X.mat", "hello" * 99), "is not a .mat file, or is damaged"),
    "mat empty": (_text("X.mat", b""), "is not a .mat file, or is damaged"),
    "mat 7.3": (
        _text("X.mat", HEADER + b"\0" * 999),
        "cannot be opened as an HDF5 file.*Write it again",
    ),
    "mat without a matrix": (_mat(y=[1.0, 2]), r"no matrix of numbers \(it has y\)"),
    "mat with two": (_mat(a=X, b=X), "2 matrices"),
    "mat of a struct": (_mat(X={"a": X}), "'X' is a struct, not a matrix"),
    "mat complex": (_mat(X=X + 1j), "Got complex numbers"),
    "mat cut off": (_cut(_mat(X=np.random.default_rng(0).normal(size=(9, 9))), 0.5), "damaged"),
    "zarr of one dimension": (_zarr(X[0]), r"Got shape \(3,\)"),
    "zarr of dates": (_zarr(X.astype("datetime64[s]")), "Got datetime64"),
    "zarr, complex": (_zarr(X + 1j), "Got complex128"),
    "zarr group without X": (_zarr_group, "holds 2 matrices .it has data, other.. Name one"),
    "zarr, too few names": (_names(["a", "b"]), "2 feature names for 3 features"),
    "zarr, name twice": (_names(["a", "b", "a"]), "'a' appears twice"),
    "zarr, damaged metadata": (_damaged(_zarr(X), "zarr.json", b"{"), "damaged zarr folder"),
    "zarr, short metadata": (
        _damaged(_zarr(X), "zarr.json", b'{"zarr_format": 3, "node_type": "array"}'),
        "damaged zarr folder",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_words(case: str, tmp_path: Path) -> None:
    make, message = CASES[case]
    (tmp_path / "in").mkdir()
    bad = make(tmp_path / "in")
    with pytest.raises(InputError, match=message) as caught:
        ingest(bad, tmp_path / "out.zarr")
    assert type(caught.value) in (InputError, InputTypeError)
    assert "secret" not in str(caught.value)
    assert str(caught.value).endswith((".", ")")), "a message is a sentence"
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing is left"


def test_a_group_of_hdf5_and_integers_that_arrow_does_not_have(tmp_path: Path) -> None:
    h5py, polars = pytest.importorskip("h5py"), pytest.importorskip("polars", "1.20")
    with h5py.File(tmp_path / "X.h5", "w") as file:
        for group in (file, file.create_group("a")):
            with pytest.raises(InputError, match="of an HDF5 file, which is not an array. Give"):
                open_matrix(group)
    X = polars.DataFrame({"a": [1.0, 2.0], "b": polars.Series([1, 2], dtype=polars.Int128)})
    for frame in (X, X.lazy()):
        with pytest.raises(InputError, match="'b' holds Int128, .* X.cast..'b': polars.Int64"):
            open_matrix(frame)
    assert open_matrix(X.cast({"b": polars.Int64})).n_features == 2


def test_objects_of_other_kinds_are_type_errors() -> None:
    for item in ([1, 2], None, 3, object(), {"X": X}):
        with pytest.raises(InputTypeError, match="must be a path"):
            open_matrix(item)


@pytest.mark.parametrize(
    ("make", "variable", "message"),
    [
        (_npy(X), "X", "holds one matrix; variable must be None. Got 'X'"),
        (_text("X.csv", "1,2\n3,4\n"), "a", "holds one matrix"),
        (_zarr(X), "X", "holds one matrix"),
        (lambda f: "sklearn:iris", "X", "holds one matrix"),
        (_npz(X=X), "Y", "has no array 'Y'. It has X"),
        (_mat(X=X), "Y", "has no array 'Y'. It has X"),
        (_zarr_group, "Y", "has no array 'Y'. It has data, other"),
        (_zarr_group, "more", "has no array 'more'"),
    ],
)
def test_a_variable_that_is_not_there(
    make: Callable[[Path], Any], variable: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        open_matrix(make(tmp_path), variable=variable)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    source = open_matrix(_npy(X)(tmp_path))
    _npy(X[:2])(tmp_path)
    with pytest.raises(StorageError, match="became shorter"):
        source.read(2, 4)  # type: ignore[attr-defined]
    (tmp_path / "X.npy").unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        source.read(2, 4)  # type: ignore[attr-defined]


def test_a_foreign_chunk_that_cannot_be_decoded(tmp_path: Path) -> None:
    path = _zarr(X)(tmp_path)
    source = open_matrix(path)
    (path / "c/0/0").write_bytes(b"nonsense")
    with pytest.raises(CorruptStoreError, match="rows 0 to 4 cannot be decoded"):
        source.read(0, 4)  # type: ignore[attr-defined]
