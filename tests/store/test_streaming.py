"""Ingest needs the memory of a few chunks, whatever the size of the file."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bigfs.core.units import MIB
from bigfs.store.source import Source, open_matrix

N_FEATURES = 64
FILE_BYTES = 200 * 10**6
# Five copies of a chunk of 16 MB: read, regrouped, checked, compressed, written.
ALLOWED_BYTES = 80 * MIB
# Arrow also keeps a dictionary for each column of a row group.
ALLOWED_ARROW_BYTES = 140 * MIB

_PROGRAM = """
import sys
import numpy, zarr, zarr.codecs
import bigfs.store
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.store.scratch import chunk_rows
from bigfs.store.ingest import ingest, ingest_bytes
from bigfs.store.source import open_matrix
path, dest, missing = sys.argv[1:]
if "csv" in path:
    import pandas
if "parquet" in path:
    import pyarrow.parquet
warm = numpy.ones((1000, 64)), dest + ".warm"
ingest(*warm)
reset_peak()
before = peak_bytes()
source = open_matrix(path)
report = ingest(source, dest, missing=missing)
d, size = source.n_features, source.dtype.itemsize
chunk = min(report.n_samples, chunk_rows(d, size)) * d * size
print(report.n_samples, peak_bytes() - before, ingest_bytes(chunk, source.held_bytes))
"""


def _lines(path: Path, n_features: int) -> int:
    """Write a CSV of about 200 MB, a wide one of 60, and return its rows."""
    block = np.random.default_rng(0).normal(size=(128_000 // n_features or 2, n_features))
    text = "\n".join(",".join(map(repr, row)) for row in block.tolist()) + "\n"
    repeats = (FILE_BYTES if n_features == N_FEATURES else 60 * 10**6) // len(text)
    with path.open("w") as file:
        for _ in range(repeats):
            file.write(text)
    return repeats * len(block)


def _values(path: Path, dtype: str, by_columns: bool = False, file_bytes: int = FILE_BYTES) -> int:
    """Write an .npy of about 200 MB and return its rows."""
    rows = file_bytes // (N_FEATURES * np.dtype(dtype).itemsize)
    header = {"descr": np.dtype(dtype).str, "fortran_order": by_columns,
              "shape": (rows, N_FEATURES)}  # fmt: skip
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        block = np.random.default_rng(0).integers(0, 99, (rows, 1)).astype(dtype)
        for _ in range(N_FEATURES):
            file.write(block.tobytes())
    return rows


def _write(form: str, folder: Path) -> tuple[Path, int]:
    if form.startswith("csv"):
        n_features = 100_000 if "wide" in form else N_FEATURES
        return folder / "X.csv", _lines(folder / "X.csv", n_features)
    if form.startswith("npy"):
        path = folder / "X.npy"
        return path, _values(path, "uint8" if "uint8" in form else "f4", "columns" in form)
    size = 2 * FILE_BYTES if form == "parquet" else FILE_BYTES
    rows = _values(folder / "X.npy", "f4", file_bytes=size)
    if form == "npz":
        with zipfile.ZipFile(folder / "X.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            file.write(folder / "X.npy")
    else:
        import pandas as pd

        frame = pd.DataFrame(np.load(folder / "X.npy")).add_prefix("x")
        frame.to_parquet(folder / "X.parquet")
    return folder / f"X.{form}", rows


@pytest.mark.full
@pytest.mark.memory
@pytest.mark.parametrize(
    ("form", "missing"),
    [
        ("csv", "error"), ("csv wide", "error"), ("npy", "error"), ("npy", "mean"),
        ("npy uint8", "error"), ("npy by columns", "error"), ("npz", "error"),
        ("parquet", "error"),
    ],
)  # fmt: skip
def test_memory_does_not_grow_with_the_file(tmp_path: Path, form: str, missing: str) -> None:
    path, rows = _write(form, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path), str(tmp_path / "out.zarr"), missing],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], timeout=200,
    )  # fmt: skip
    written, grown, predicted = (int(word) for word in done.stdout.split())
    assert written == rows
    assert grown <= predicted, f"grew by {grown / MIB:.0f} MiB, {predicted / MIB:.0f} predicted"
    if form != "csv wide":  # a line alone has megabytes
        allowed = ALLOWED_ARROW_BYTES if form == "parquet" else ALLOWED_BYTES
        assert grown < allowed, f"grew by {grown / MIB:.0f} MiB, {allowed / MIB:.0f} allowed"


_CUBE = """
import sys
import h5py, numpy, zarr, zarr.codecs
import bigfs.store
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.store.scratch import chunk_rows
from bigfs.store.ingest import ingest, ingest_bytes
from bigfs.store.source import open_matrix
uri, features, dest = sys.argv[1:]
ingest(numpy.ones((1000, 64)), dest + ".warm")
reset_peak()
before = peak_bytes()
source = open_matrix(uri, features=int(features))
report = ingest(source, dest)
chunk = chunk_rows(source.n_features, 4) * source.n_features * 4
print(report.n_samples, peak_bytes() - before, ingest_bytes(chunk, source.held_bytes))
"""


@pytest.mark.full
@pytest.mark.memory
@pytest.mark.parametrize(
    ("shape", "chunks", "features"),
    [
        ((100, 500, 500), (1, 500, 500), 0),  # a chunk holds a band: by way of a temporary file
        ((500, 500, 100), (50, 50, 100), 2),
    ],
)
def test_a_cube_is_read_piece_by_piece(
    shape: tuple[int, ...], chunks: tuple[int, ...], features: int, tmp_path: Path
) -> None:
    import zarr

    pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    band = np.random.default_rng(0).normal(size=(500, 500)).astype(np.float32)
    array = zarr.create_array(
        store=str(tmp_path / "X.zarr"), shape=shape, dtype="f4", chunks=chunks, compressors=None
    )
    array[...] = np.broadcast_to(band if features == 0 else band[:, :, None], shape)
    done = subprocess.run(
        [sys.executable, "-c", _CUBE, str(tmp_path / "X.zarr"), str(features),
         str(tmp_path / "out.zarr")],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], timeout=200,
    )  # fmt: skip
    rows, grown, predicted = (int(word) for word in done.stdout.split())
    assert rows == 500 * 500
    message = f"grew by {grown / MIB:.0f} MiB, {predicted / MIB:.0f} predicted"
    assert grown <= predicted <= max(100 * MIB, 2 * grown), message


def opened(form: str, path: str) -> Source:
    """Open a file, a folder, or a lazy frame of one."""
    if form == "polars":
        import polars as pl

        return open_matrix(pl.scan_parquet(f"{path}/*.parquet"))
    return open_matrix(path, features="band") if form == "netcdf" else open_matrix(path)


def written(form: str, path: Path, rows: int) -> None:
    """Write rows of 100 features: a file of HDF5 or NetCDF, or a folder of ten of Parquet."""
    block = np.random.default_rng(0).normal(size=(rows, 100)).astype(np.float32)
    if form == "hdf5":
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("X", data=block, chunks=(1000, 100))
    elif form == "netcdf":
        import xarray as xr

        scene = xr.DataArray(block.T.reshape(100, 100, -1), dims=("band", "y", "x"), name="X")
        chunks = {"X": {"chunksizes": (1, 100, scene.sizes["x"])}}
        scene.to_netcdf(path, engine="h5netcdf", encoding=chunks)
    else:
        import pandas as pd

        path.mkdir()
        for i, part in enumerate(np.split(block, 10)):
            pd.DataFrame(part).add_prefix("x").to_parquet(path / f"{i}.parquet", index=False)


_SOURCE = """
import sys, pathlib
import numpy, pandas, zarr, zarr.codecs
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.store.scratch import chunk_rows
from bigfs.store.ingest import ingest, ingest_bytes
from tests.store.test_streaming import opened
form, small, path = sys.argv[1:]
ingest(opened(form, small), small + ".zarr")
source = opened(form, path)  # polars writes a file here
reset_peak()
before = peak_bytes()
report = ingest(source, path + ".zarr")
chunk = chunk_rows(100, source.dtype.itemsize) * 100 * source.dtype.itemsize
print(report.n_samples, peak_bytes() - before, ingest_bytes(chunk, source.held_bytes))
"""


@pytest.mark.full
@pytest.mark.memory
@pytest.mark.parametrize(
    ("form", "needs"),
    [
        ("hdf5", "h5py"), ("netcdf", "h5netcdf"), ("files", "pyarrow"), ("polars", "polars"),
    ],
)  # fmt: skip
def test_a_source_takes_what_is_planned(form: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    suffix = {"hdf5": ".h5", "netcdf": ".nc"}.get(form, "")
    for name, rows in (("small", 2000), ("large", 500_000)):
        written(form, tmp_path / f"{name}{suffix}", rows)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SOURCE, form, str(tmp_path / f"small{suffix}"),
         str(tmp_path / f"large{suffix}")],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], timeout=200,
    )  # fmt: skip
    rows, grown, predicted = (int(word) for word in done.stdout.split())
    message = f"grew by {grown / MIB:.0f} MiB, {predicted / MIB:.0f} predicted"
    assert rows == 500_000 and grown <= predicted, message
    if form != "polars":  # whose allocator still has what it wrote the file with
        assert predicted <= max(100 * MIB, 2 * grown), message
