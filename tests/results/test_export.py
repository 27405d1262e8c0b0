"""Exported columns are those of the input, in every format, and appear whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray

import bigfs
from bigfs.core.errors import InputError, StorageError
from bigfs.results.annotate import export_result
from bigfs.results.result import Result
from bigfs.store import location, values

NAMES = ["a", "b, quoted", "c", "d", "e"]
FORMATS = (".zarr", ".parquet", ".npy", ".csv", ".h5ad")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    scale = np.array([1, 4, 2, 5, 3])
    values = np.random.default_rng(0).normal(size=(300, 5)) * scale
    return pd.DataFrame(values, columns=NAMES)


@pytest.fixture(scope="module")
def result(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("export")
    frame.to_csv(folder / "X.csv", index=False)
    return _run(folder, folder / "X.csv")


def _run(folder: Path, uri: Path, **changes: Any) -> Result:
    return bigfs.run(
        {
            "run": str(folder / "run"),
            "input": {"uri": str(uri)},
            "method": "max_variance",
            "n_features_to_select": 3,
            **changes,
        }
    )


def _read(place: Path) -> tuple[np.ndarray, list[str] | None]:
    if place.suffix == ".h5ad":
        import h5py

        with h5py.File(place) as file:
            assert file.attrs["encoding-type"] == "anndata"
            assert file["obs/_index"][-1] == b"299"
            return file["X"][:], [name.decode() for name in file["var/_index"][:]]
    source = bigfs.open_matrix(place)
    return np.concatenate(list(source.iter_blocks(70))), source.feature_names


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_selected_columns_and_nothing_else(
    result: Result, frame: pd.DataFrame, tmp_path: Path, suffix: str
) -> None:
    values, names = _read(result.export(tmp_path / f"out{suffix}"))
    kept = ["b, quoted", "d", "e"]  # in the order of the input
    np.testing.assert_array_equal(values, frame[kept].to_numpy())
    assert names == (None if suffix == ".npy" else kept)
    values, names = _read(
        result.export(tmp_path / f"two{suffix}", n_features_to_select=2, by_rank=True)
    )
    np.testing.assert_array_equal(values, frame[["d", "b, quoted"]].to_numpy())
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out{suffix}", f"two{suffix}"]


def test_a_number_of_features_is_refused_by_the_name_that_it_is_given_by(
    result: Result, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"support \(export --m\): n_features_to_select"):
        result.support(0)
    with pytest.raises(InputError, match=r"support \(export --m\): n_features_to_select"):
        result.export(tmp_path / "out.npy", n_features_to_select=0)
    assert not list(tmp_path.iterdir())


def test_anndata_reads_it(result: Result, frame: pd.DataFrame, tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    actual = anndata.read_h5ad(result.export(tmp_path / "out.h5ad"))
    np.testing.assert_array_equal(actual.X, frame[["b, quoted", "d", "e"]].to_numpy())
    assert list(actual.var_names) == ["b, quoted", "d", "e"]
    assert actual.n_obs == 300


def test_an_anndata_keeps_everything_whatever_the_case_of_its_ending(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    data = anndata.AnnData(X, pd.DataFrame({"kind": np.arange(40)}, [f"c{i}" for i in range(40)]))
    data.layers["double"] = 2 * X
    for name, dest in (("a.h5ad", "b.H5AD"), ("c.H5AD", "d.h5ad")):
        data.write_h5ad(tmp_path / name)
        result = _run(tmp_path, tmp_path / name, run=str(tmp_path / dest[0]))
        actual = anndata.read_h5ad(result.export(tmp_path / dest))
        assert list(actual.obs) == ["kind"] and list(actual.layers) == ["double"]
    marked = anndata.read_h5ad(export_result(result, tmp_path / "e.h5ad", annotate=True))
    assert marked.shape == (40, 5) and "bigfs_rank" in marked.var


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ids_on_request(result: Result, tmp_path: Path, suffix: str) -> None:
    place = result.export(tmp_path / f"out{suffix}", ids=True)
    read = pd.read_csv if suffix == ".csv" else pd.read_parquet
    assert read(place)["row"].tolist() == list(range(300))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64, bool])
@pytest.mark.parametrize("stored", [False, True])
def test_values_keep_their_type(tmp_path: Path, dtype: Any, stored: bool) -> None:
    draw = np.random.default_rng(1)
    X = (
        draw.integers(0, 2, (50, 4)).astype(dtype)
        if dtype is bool
        else (draw.integers(0, 200, (50, 4)).astype(dtype))
    )
    np.save(tmp_path / "X.npy", X)
    uri = tmp_path / "X.npy"
    if stored:
        uri = bigfs.ingest(uri, tmp_path / "X.zarr").path
    run_result = _run(tmp_path, uri)
    out = np.load(run_result.export(tmp_path / "out.npy"))
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, X[:, run_result.selected])


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("packing", ["scale", "unsigned", "fill"])
def test_values_of_a_packed_file_are_exported_as_xarray_reads_them(
    tmp_path: Path, packing: str, stored: bool
) -> None:
    """They were written in the packed type: reflectances as 0, and 131 as -125."""
    rng, attributes, encoding = np.random.default_rng(1), {}, {"dtype": "i2", "_FillValue": -9}
    X = rng.random((50, 4)) if packing == "scale" else rng.integers(0, 256, (50, 4)).astype("f4")
    if packing == "scale":
        encoding["scale_factor"] = 1e-4
    if packing == "unsigned":
        X, attributes, encoding = X.astype("u1").astype("i1"), {"_Unsigned": "true"}, {}
    file = tmp_path / "X.nc"
    data = xarray.Dataset({"v": (("row", "band"), X, attributes)})
    data.to_netcdf(file, engine="h5netcdf", encoding={"v": encoding})
    with xarray.open_dataset(file, engine="h5netcdf") as own:
        expected = own["v"].to_numpy()
    uri = bigfs.ingest(file, tmp_path / "X.zarr").path if stored else file
    result = _run(tmp_path, uri)
    out = np.load(result.export(tmp_path / "out.npy"))
    assert out.dtype == expected.dtype
    np.testing.assert_array_equal(out, expected[:, result.selected])


def test_filled_and_appended_values_of_whole_numbers_are_no_whole_numbers(tmp_path: Path) -> None:
    X = np.random.default_rng(1).integers(0, 100, (40, 4)).astype(np.int16)
    np.save(tmp_path / "first.npy", X)
    np.save(tmp_path / "second.npy", np.float32(X + 0.25))
    bigfs.ingest(tmp_path / "first.npy", tmp_path / "grown.zarr")
    bigfs.ingest(tmp_path / "second.npy", tmp_path / "grown.zarr", append=True)
    filled = X.astype(np.float32)
    filled[3, 2] = np.delete(X[:, 2], 3).mean(dtype=np.float64)
    X[3, 2] = -9
    np.save(tmp_path / "X.npy", X)
    bigfs.ingest(tmp_path / "X.npy", tmp_path / "filled.zarr", no_data=-9, missing="mean")
    for name, expected in (("grown", np.load(tmp_path / "second.npy")), ("filled", filled)):
        result = _run(tmp_path / name, tmp_path / f"{name}.zarr")
        out = np.load(result.export(tmp_path / f"{name}.npy", n_features_to_select=4))
        assert out.dtype == np.float32
        np.testing.assert_allclose(out[-40:], expected, rtol=1e-6)


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_is_there_stays_unless_told(result: Result, tmp_path: Path, suffix: str) -> None:
    place = tmp_path / f"out{suffix}"
    place.write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        result.export(place)
    assert place.read_text() == "mine"
    if suffix == ".zarr":
        with pytest.raises(InputError, match="not a store that bigfs wrote"):
            result.export(place, overwrite=True)
    else:
        assert _read(result.export(place, overwrite=True))[0].shape == (300, 3)


def test_what_cannot_be_written_is_refused(result: Result, tmp_path: Path) -> None:
    for name, message in (
        ("out.xlsx", "must end in .npy, .csv, .parquet"),
        ("out", "must end in"),
        ("s3://lab/out.npy", "only .zarr can be written to a bucket"),
    ):
        with pytest.raises(InputError, match=message):
            result.export(name)
    with pytest.raises(InputError, match="cannot hold ids"):
        result.export(tmp_path / "out.npy", ids=True)
    with pytest.raises(InputError, match="lies in the run directory"):
        result.export(result.path / "out.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        result.export(tmp_path / "folder.npy", overwrite=True)
    with pytest.raises(InputError, match="n_features_to_select"):
        result.export(tmp_path / "out.npy", n_features_to_select=6)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npy"]


def test_the_input_is_not_overwritten_and_a_changed_one_is_refused(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    store = bigfs.ingest(frame, tmp_path / "X.zarr").path
    run_result = _run(tmp_path, store)
    with pytest.raises(InputError, match="is the input of the run"):
        run_result.export(store, overwrite=True)
    bigfs.ingest(frame * 2, store, overwrite=True)
    with pytest.raises(InputError, match="has changed since the run"):
        run_result.export(tmp_path / "out.npy")


def test_what_would_be_a_part_of_the_input_is_refused(tmp_path: Path) -> None:
    days, X = tmp_path / "days", np.random.default_rng(0).normal(size=(30, 4))
    days.mkdir()
    for name in "ab":
        np.save(days / f"{name}.npy", X)
    for uri in (days, days / "*.npy"):
        run_result = _run(tmp_path, uri, run=str(tmp_path / f"run-{len(uri.name)}"))
        with pytest.raises(InputError, match="would be a part of the input"):
            run_result.export(days / "selected.npy")
    run_result.export(tmp_path / "out.npy")


def test_the_input_is_that_of_the_run_wherever_the_export_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seed in (("one", 0), ("two", 1)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "X.npy", np.random.default_rng(seed).normal(size=(30, 4)))
    monkeypatch.chdir(tmp_path / "one")
    run_result = _run(tmp_path, Path("X.npy"))
    monkeypatch.chdir(tmp_path / "two")
    with pytest.raises(InputError, match="is the input of the run"):
        run_result.export("../one/X.npy", overwrite=True)
    assert run_result.export("X.npy", overwrite=True).exists()


def test_whole_numbers_that_were_rounded_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores of earlier versions may hold some."""
    monkeypatch.setattr(values, "EXACT", 2**63)
    X = np.random.default_rng(1).integers(0, 1000, (20, 3))
    X[3] = 2**53 + 1
    np.save(tmp_path / "X.npy", X)
    run_result = _run(tmp_path, tmp_path / "X.npy")
    with pytest.raises(InputError, match=r"row 3 has a whole number beyond 2\^53"):
        run_result.export(tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("dtype", [">f4", "longdouble"])
def test_types_of_other_machines(tmp_path: Path, dtype: str) -> None:
    X = np.random.default_rng(1).integers(0, 9, (20, 3)).astype(dtype)
    np.save(tmp_path / "X.npy", X)
    run_result = _run(tmp_path, tmp_path / "X.npy")
    np.testing.assert_array_equal(pd.read_parquet(run_result.export(tmp_path / "o.parquet")), X)


def test_features_without_names_keep_their_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.arange(20.0).reshape(5, 4) * [1, 3, 2, 4])
    run_result = _run(tmp_path, tmp_path / "X.npy", n_features_to_select=2)
    assert list(pd.read_csv(run_result.export(tmp_path / "o.csv"))) == ["1", "3"]
    assert bigfs.open_matrix(run_result.export(tmp_path / "o.zarr")).feature_names == ["1", "3"]


def test_ids_are_refused_where_they_would_be_others(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(9, 3))
    X[4, 1] = np.nan
    np.save(tmp_path / "X.npy", X)
    given = {"uri": str(tmp_path / "X.npy"), "missing": "drop_rows"}
    run_result = _run(tmp_path, tmp_path / "X.npy", input=given)
    with pytest.raises(InputError, match="left out rows .input.rows, or input.missing"):
        run_result.export(tmp_path / "o.csv", ids=True)
    pd.DataFrame(X[:4], columns=["row", "b", "c"]).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "second").mkdir()
    named = _run(tmp_path / "second", tmp_path / "rows.csv")
    with pytest.raises(InputError, match="a feature is named 'row'"):
        named.export(tmp_path / "o.csv", ids=True)


def test_nothing_is_written_into_inputs_runs_and_stores(tmp_path: Path, result: Result) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(30, 5)))
    run_result = _run(tmp_path, tmp_path / "X.npy")
    with pytest.raises(InputError, match="is the input of the run"):
        run_result.export(tmp_path / "X.npy", overwrite=True)
    store = bigfs.ingest(tmp_path / "X.npy", tmp_path / "X.zarr").path
    for place in (
        store / "new.npy",
        run_result.path / "features.csv",
        run_result.path / "data.zarr/x.csv",
    ):
        with pytest.raises(InputError, match="a run or a store"):
            result.export(place, overwrite=True)


def test_without_unnamed_files_it_is_the_same(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(location.os, "O_TMPFILE")
    place = tmp_path / "out.npy"
    assert np.load(result.export(place)).shape == (300, 3)
    with pytest.raises(InputError, match="already exists"):
        result.export(place)
    result.export(place, n_features_to_select=1, overwrite=True)
    assert np.load(place).shape == (300, 1)
    assert os.listdir(tmp_path) == ["out.npy"]


def test_a_full_disk_leaves_nothing(result: Result, tmp_path: Path) -> None:
    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(location.os, "fsync", fail)
        with pytest.raises(StorageError, match="No space left"):
            result.export(tmp_path / "out.npy")
    assert os.listdir(tmp_path) == []


def _has_open(pid: int, folder: Path) -> bool:
    """Say whether a process has a file of a folder open, with or without a name."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(link).startswith(str(folder)):
                return True
    return False


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_in_the_middle_leaves_nothing(tmp_path: Path, number: int) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).random((100_000, 60)))
    run_result = _run(tmp_path, tmp_path / "X.npy", n_features_to_select=50)
    folder = tmp_path / "out"
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "bigfs",
        "export",
        str(run_result.path),
        str(folder / "out.csv"),
    ]
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not _has_open(process.pid, folder):
                time.sleep(0.005)
            process.send_signal(number)
            process.wait(30)
        if process.returncode != 0:
            break
        # A busy machine: the export had ended when the signal was sent.
        (folder / "out.csv").unlink()
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert os.listdir(folder) == []


def test_a_result_is_a_frame_and_short_in_a_notebook(result: Result) -> None:
    table = result.to_frame()
    assert table["name"].tolist()[:3] == ["d", "b, quoted", "e"]
    assert table["selected"].tolist() == [True, True, True, False, False]
    assert table["rank"].tolist() == [1, 2, 3, 4, 5]
    assert repr(result) == (
        f"<Result of max_variance: 3 of 5 features selected from 300 samples: {result.path}>"
    )
    assert "<td>b, quoted</td>" in result._repr_html_()


def test_transform_keeps_the_columns_of_any_kind_of_data(
    result: Result, frame: pd.DataFrame, tmp_path: Path
) -> None:
    expected = frame.to_numpy()[:, [1, 3, 4]]
    np.save(tmp_path / "X.npy", frame.to_numpy())
    shuffled = frame[["e", "d", "c", "b, quoted", "a"]]
    assert result.transform(shuffled).columns.tolist() == ["b, quoted", "d", "e"]
    np.testing.assert_array_equal(result.transform(shuffled), expected)
    np.testing.assert_array_equal(result.transform(frame.to_numpy()), expected)
    np.testing.assert_array_equal(result.transform(frame.to_numpy().tolist()), expected)
    np.testing.assert_array_equal(
        result.transform(sp.csr_array(frame.to_numpy())).toarray(), expected
    )
    np.testing.assert_array_equal(result.transform(tmp_path / "X.npy").compute(), expected)
    store = bigfs.ingest(shuffled, tmp_path / "shuffled.zarr").path
    np.testing.assert_array_equal(result.transform(store).compute(), expected)
    missing = frame.astype(float)
    missing.loc[3, ["a", "b, quoted", "d"]] = np.nan
    missing.to_csv(tmp_path / "missing.csv", index=False)
    missing.to_parquet(tmp_path / "missing.parquet")
    np.save(tmp_path / "missing.npy", missing.to_numpy())
    expected = missing.to_numpy()[:, [1, 3, 4]]
    np.testing.assert_array_equal(result.transform(missing), expected)
    for name in ("missing.csv", "missing.parquet", "missing.npy"):
        np.testing.assert_allclose(result.transform(tmp_path / name).compute(), expected)
    with pytest.raises(InputError, match="the run had 5 features"):
        result.transform(expected)
    with pytest.raises(InputError, match="X has no column 'd'"):
        result.transform(frame.drop(columns="d"))


def test_columns_of_a_table_keep_their_types(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "count": rng.integers(0, 1000, 40),
            "large": rng.integers(2**40, 2**41, 40),
            "flag": rng.random(40) > 0.5,
            "single": rng.random(40).astype(np.float32),
            "small": rng.integers(-9, 9, 40).astype(np.int8),
        }
    )
    frame.to_parquet(tmp_path / "X.parquet")
    settings = {"method": "max_variance", "n_features_to_select": 5, "preprocess": "none"}
    run = {**settings, "run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.parquet")}}
    result = bigfs.run(run)
    for name, read in (("a.parquet", pd.read_parquet), ("a.feather", pd.read_feather)):
        pd.testing.assert_frame_equal(read(result.export(tmp_path / name)), frame)
    text = result.export(tmp_path / "a.csv").read_text().splitlines()[1]
    assert text.startswith(f"{frame['count'][0]},{frame['large'][0]},{frame['flag'][0]},")
    part = frame.assign(count=frame["count"] + 0.5)  # of parts, and of rows added later
    part.to_parquet(tmp_path / "Y.parquet")
    several = {**run, "run": str(tmp_path / "several")}
    several["input"] = {"uri": [str(tmp_path / "X.parquet"), str(tmp_path / "Y.parquet")]}
    store = tmp_path / "X.zarr"
    bigfs.ingest(tmp_path / "X.parquet", store)
    bigfs.ingest(tmp_path / "Y.parquet", store, append=True)
    grown = {**run, "run": str(tmp_path / "grown"), "input": {"uri": str(store)}}
    for config in (several, grown):
        both = pd.read_parquet(bigfs.run(config).export(Path(f"{config['run']}.parquet")))
        types = [str(kind) for kind in both.dtypes]
        assert types == ["float64", "int64", "bool", "float32", "int8"]
    gap = frame.astype({"count": "Int64"})
    gap.loc[3, "count"] = pd.NA
    gap.to_parquet(tmp_path / "gaps.parquet")
    gaps = {**run, "run": str(tmp_path / "gaps")}
    gaps["input"] = {"uri": str(tmp_path / "gaps.parquet"), "missing": "mean"}
    filled = pd.read_parquet(bigfs.run(gaps).export(tmp_path / "filled.parquet"))
    assert {str(kind) for kind in filled.dtypes} == {"float64"}
