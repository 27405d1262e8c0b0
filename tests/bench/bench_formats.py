"""Files as other libraries write them: rows a second beside their own reader, and the peak.

    python -m tests.bench.bench_formats FOLDER [--mb 200] [--only NAME ...]

Each file is written by the library whose format it is (those of Cell Ranger and MATLAB 7.3 by h5py
in their layout); what is not installed is left out. Each
reader goes through all rows in a process of its own: seconds of the processor, and the largest
resident size beyond that after the imports. "bigfs" is `open_matrix(...).iter_blocks`, "own" is the
library's reader as its users would write it, by pieces where it can.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.store.source import open_matrix
from tests.store._formats import write_tenx

FEATURES, FILES, ROWS = 200, 20, 4000
NAMES = [f"g{j}" for j in range(FEATURES)]


@dataclass(frozen=True)
class Format:
    """A file, and two ways to read it.

    Attributes
    ----------
    write : callable
        ``write(folder, rows)`` makes it and returns its path.
    read : callable
        ``read(path)`` yields its rows by the library's own means.
    settings : dict
        What `open_matrix` is given.
    needs : tuple of str
        Packages.
    share : float
        Of the size that is asked for.
    opened : callable
        ``opened(path)`` is what `open_matrix` is given.
    """

    write: Callable[[Path, int], Path]
    read: Callable[[Path], Iterator[np.ndarray]]
    settings: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    share: float = 1.0
    opened: Callable[[Path], Any] = str

    def blocks(self, reader: str, path: Path) -> Iterator[np.ndarray]:
        """Yield all rows, by bigfs or by the library's own reader."""
        if reader == "own":
            return self.read(path)
        return open_matrix(self.opened(path), **self.settings).iter_blocks(ROWS)

    @property
    def is_installed(self) -> bool:
        """Whether all packages are there."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


def _values(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, FEATURES)).astype(np.float32)


def _frame(i: int, rows: int) -> Any:
    import pandas as pd

    frame = pd.DataFrame(_values(rows, i), columns=NAMES)
    return frame.assign(id=[f"s{i}-{j}" for j in range(rows)], note="as it was measured")


def _parts(form: str) -> Callable[[Path, int], Path]:
    def write(folder: Path, rows: int) -> Path:
        (folder / form).mkdir()
        for i in range(FILES):
            frame = _frame(i, max(2, rows // FILES))
            getattr(frame, f"to_{form}")(folder / form / f"{i:02}.{form}", index=False)
        return folder / form

    return write


def _dask_parquet(folder: Path, rows: int) -> Path:
    import dask.dataframe as dd

    frame = _frame(0, rows).assign(site=np.array(["a", "b"])[np.arange(rows) % 2])
    frame = dd.from_pandas(frame, chunksize=20_000)
    frame.to_parquet(folder / "sites", partition_on=["site"], write_index=False)
    return folder / "sites"


def _scene(rows: int) -> Any:
    import xarray as xr

    side = max(2, int(rows**0.5))
    bands = {"band": 400.0 + np.arange(FEATURES)}
    values = _values(side * side).reshape(side, side, FEATURES)
    return xr.DataArray(values, dims=("y", "x", "band"), coords=bands, name="radiance")


def _netcdf(by_bands: bool) -> Callable[[Path, int], Path]:
    def write(folder: Path, rows: int) -> Path:
        scene, place = _scene(rows), folder / f"scene-{by_bands}.nc"
        scene = scene.transpose("band", "y", "x") if by_bands else scene
        chunks = (1, 10**4, 10**4) if by_bands else (64, 64, FEATURES)
        sizes = tuple(map(min, chunks, scene.shape))
        scene.to_netcdf(place, engine="h5netcdf", encoding={"radiance": {"chunksizes": sizes}})
        return place

    return write


def _xarray_zarr(folder: Path, rows: int) -> Path:
    scene = _scene(rows).transpose("band", "y", "x").chunk({"band": 1, "y": 500, "x": 500})
    scene.to_dataset().to_zarr(folder / "scene.zarr", zarr_format=2)
    return folder / "scene.zarr"


def _hdf5(folder: Path, rows: int) -> Path:
    import h5py

    with h5py.File(folder / "X.h5", "w") as file:
        file.create_dataset("scans/X", data=_values(rows), chunks=(min(rows, 1000), FEATURES))
    return folder / "X.h5"


def _matlab(folder: Path, rows: int) -> Path:
    from scipy.io import savemat

    savemat(folder / "X.mat", {"fea": _values(rows)})
    return folder / "X.mat"


def _npy(folder: Path, rows: int) -> Path:
    np.save(folder / "X.npy", _values(rows))
    return folder / "X.npy"


def _npz(folder: Path, rows: int) -> Path:
    np.savez_compressed(folder / "X.npz", X=_values(rows))
    return folder / "X.npz"


def _zarr(folder: Path, rows: int) -> Path:
    import zarr

    values = _values(rows)
    zarr.create_array(store=str(folder / "X.zarr"), data=values, chunks=(min(rows, ROWS), FEATURES))
    return folder / "X.zarr"


def _counts(rows: int) -> Any:
    import scipy.sparse as sp

    return sp.random_array((rows, FEATURES), density=0.1, format="csr", rng=0, dtype=np.float32)


def _h5ad(folder: Path, rows: int) -> Path:
    import anndata

    anndata.AnnData(_counts(rows)).write_h5ad(folder / "X.h5ad")
    return folder / "X.h5ad"


def _annotated_zarr(folder: Path, rows: int) -> Path:
    import anndata

    anndata.AnnData(_counts(rows)).write_zarr(folder / "cells.zarr")
    return folder / "cells.zarr"


def _cells(rows: int) -> Any:
    counts = _counts(rows)
    counts.data = np.ceil(9 * counts.data)
    return counts.astype(np.int32)


def _market(folder: Path, rows: int) -> Path:
    from scipy.io import mmwrite

    mmwrite(folder / "matrix.mtx", _cells(rows).T.tocsc())  # Cell Ranger's columns are cells
    lines = [f"ENSG{j}\t{name}\tGene Expression\n" for j, name in enumerate(NAMES)]
    (folder / "features.tsv").write_text("".join(lines))
    (folder / "barcodes.tsv").write_text("".join(f"AAC{i}-1\n" for i in range(rows)))
    return folder


def _tenx(folder: Path, rows: int) -> Path:
    return write_tenx(folder / "filtered_feature_bc_matrix.h5", _cells(rows), NAMES, NAMES)


def _matlab_73(folder: Path, rows: int) -> Path:
    import h5py

    place = folder / "X.mat"
    with h5py.File(place, "w", userblock_size=512) as file:
        chunks = (1, min(rows, 100_000))  # MATLAB stores column by column
        file.create_dataset("fea", data=_values(rows).T, chunks=chunks, compression="gzip")
        file["fea"].attrs["MATLAB_class"] = np.bytes_("single")
    with place.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(128))
    return place


def _read_parquet(path: Path) -> Iterator[np.ndarray]:
    import pyarrow.dataset as ds

    files = ds.dataset(sorted(path.rglob("*.parquet")), format="parquet")
    for batch in files.to_batches(columns=NAMES, use_threads=False):
        yield np.column_stack([column.to_numpy() for column in batch.columns])


def _read_polars(path: Path) -> Iterator[np.ndarray]:
    import polars as pl

    yield pl.scan_parquet(path / "*.parquet").select(NAMES).collect(engine="streaming").to_numpy()


def _read_dask(path: Path) -> Iterator[np.ndarray]:
    import dask.dataframe as dd

    frame = dd.read_parquet(path)[NAMES]
    for i in range(frame.npartitions):
        yield frame.partitions[i].compute(scheduler="synchronous").to_numpy()


def _read_csv(path: Path) -> Iterator[np.ndarray]:
    import pyarrow.csv as pc

    numbers = pc.ConvertOptions(include_columns=NAMES)
    for file in sorted(path.glob("*.csv")):
        with pc.open_csv(file, pc.ReadOptions(use_threads=False), None, numbers) as reader:
            for batch in reader:
                yield np.column_stack([column.to_numpy() for column in batch.columns])


def _read_xarray(path: Path) -> Iterator[np.ndarray]:
    import xarray as xr

    scene = (xr.open_zarr(path) if path.is_dir() else xr.open_dataset(path))["radiance"]
    step = max(1, ROWS // scene.sizes["x"])
    for y in range(0, scene.sizes["y"], step):
        part = scene.isel(y=slice(y, y + step)).transpose("y", "x", "band")
        yield part.values.reshape(-1, FEATURES)


def _read_hdf5(path: Path) -> Iterator[np.ndarray]:
    import h5py

    with h5py.File(path) as file:
        yield from _slices(file["scans/X"])


def _read_matlab(path: Path) -> Iterator[np.ndarray]:
    from scipy.io import loadmat

    yield loadmat(path)["fea"]


def _read_npz(path: Path) -> Iterator[np.ndarray]:
    yield np.load(path)["X"]


def _read_zarr(path: Path) -> Iterator[np.ndarray]:
    import zarr

    return _slices(zarr.open_array(str(path), mode="r"))


def _read_h5ad(path: Path) -> Iterator[np.ndarray]:
    import anndata

    for chunk, _, _ in anndata.read_h5ad(path, backed="r").chunked_X(ROWS):
        yield chunk.toarray()


def _read_annotated_zarr(path: Path) -> Iterator[np.ndarray]:
    import anndata

    yield anndata.read_zarr(path).X.toarray()


def _read_market(path: Path) -> Iterator[np.ndarray]:
    from scipy.io import mmread

    yield mmread(path / "matrix.mtx").T.tocsr().toarray()


def _read_tenx(path: Path) -> Iterator[np.ndarray]:
    import h5py
    import scipy.sparse as sp

    with h5py.File(path) as file:
        parts = [file[f"matrix/{name}"][:] for name in ("data", "indices", "indptr")]
        shape = tuple(file["matrix/shape"][:])[::-1]
    yield sp.csr_array(tuple(parts), shape=shape).toarray()


def _read_matlab_73(path: Path) -> Iterator[np.ndarray]:
    import h5py

    with h5py.File(path) as file:
        yield file["fea"][:].T


def _slices(array: Any) -> Iterator[np.ndarray]:
    for start in range(0, array.shape[0], ROWS):
        yield array[start : start + ROWS]


def _as_dask(path: Path) -> Any:
    import dask.dataframe as dd

    return dd.read_parquet(path)


def _as_polars(path: Path) -> Any:
    import polars as pl

    return pl.scan_parquet(path / "*.parquet")


def _as_stream(path: Path) -> Any:
    import pyarrow.dataset as ds

    files = ds.dataset(sorted(path.rglob("*.parquet")), format="parquet")
    return files.scanner(use_threads=False).to_reader()


_TABLE: dict[str, Any] = {"columns": "g*", "index": "id"}
_BANDS: dict[str, Any] = {"features": "band"}
_PARQUET, _NETCDF = ("pyarrow", "pandas"), ("xarray", "h5netcdf")
FORMATS = {
    "Parquet, 20 files of pandas": Format(_parts("parquet"), _read_parquet, _TABLE, _PARQUET),
    "Parquet of Dask, by site": Format(
        _dask_parquet, _read_parquet, _TABLE | {"labels": "site"}, (*_PARQUET, "dask")
    ),
    "Dask frame": Format(
        _dask_parquet, _read_dask, _TABLE, (*_PARQUET, "dask"), opened=_as_dask
    ),
    "polars, lazy": Format(
        _parts("parquet"), _read_polars, _TABLE, (*_PARQUET, "polars"), opened=_as_polars
    ),
    "Arrow stream": Format(
        _parts("parquet"), _read_parquet, _TABLE, _PARQUET, opened=_as_stream
    ),
    "CSV, 20 files of pandas": Format(_parts("csv"), _read_csv, _TABLE, _PARQUET, share=0.2),
    "NetCDF of xarray, chunks of pixels": Format(_netcdf(False), _read_xarray, _BANDS, _NETCDF),
    "NetCDF of xarray, chunks of bands": Format(
        _netcdf(True), _read_xarray, _BANDS, _NETCDF, share=0.5
    ),
    "zarr of xarray, chunks of bands": Format(
        _xarray_zarr, _read_xarray, _BANDS, ("xarray", "dask"), share=0.5
    ),
    "zarr": Format(_zarr, _read_zarr),
    "HDF5 of h5py": Format(_hdf5, _read_hdf5, {"variable": "scans/X"}, ("h5py",)),
    "MATLAB 5 of scipy": Format(_matlab, _read_matlab),
    ".h5ad of anndata, 10 % entries": Format(_h5ad, _read_h5ad, {}, ("anndata",)),
    "zarr of anndata, 10 % entries": Format(
        _annotated_zarr, _read_annotated_zarr, {}, ("anndata",)
    ),
    "10x HDF5, by h5py, 10 % entries": Format(_tenx, _read_tenx, {}, ("h5py",)),
    "Matrix Market of scipy, 10 % entries": Format(_market, _read_market, share=0.2),
    "MATLAB 7.3, by h5py": Format(
        _matlab_73, _read_matlab_73, {"features": 1}, ("h5py",), share=0.5
    ),
    ".npy": Format(_npy, lambda path: _slices(np.load(path, mmap_mode="r"))),
    ".npz, compressed": Format(_npz, _read_npz),
}  # fmt: skip
_PROGRAM = """
import sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import numpy, pandas, scipy.io, scipy.sparse, zarr
for name in ("pyarrow.dataset", "pyarrow.parquet", "xarray", "h5netcdf", "h5py", "polars",
             "dask.dataframe", "anndata"):
    try: __import__(name)
    except ImportError: pass
from bigfs.core.memory import peak_bytes, reset_peak
from tests.bench.bench_formats import FORMATS
name, reader, small, path = sys.argv[1:]
for block in FORMATS[name].blocks(reader, Path(small)): block.sum()  # what is loaded late
reset_peak(); before = peak_bytes(); start = time.process_time(); n = 0
for block in FORMATS[name].blocks(reader, Path(path)):
    n += len(block); block.sum()
print(n, time.process_time() - start, peak_bytes() - before)
"""


def measured(name: str, reader: str, small: Path, path: Path) -> tuple[int, float, int]:
    """Return rows, processor seconds and bytes of one reader, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, name, reader, str(small), str(path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    n, seconds, peak = done.stdout.split()
    return int(n), float(seconds), int(peak)


def main(arguments: list[str] | None = None) -> None:
    """Write and read every format, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--mb", type=float, default=200)
    parser.add_argument("--only", nargs="*", default=list(FORMATS))
    options = parser.parse_args(arguments)
    print("| format | rows | bigfs, rows/s | own reader, rows/s | bigfs, peak | own, peak |")
    print("| --- | --- | --- | --- | --- | --- |")
    for i, name in enumerate(options.only):
        chosen = FORMATS[name]
        if not chosen.is_installed:
            print(f"| {name} | needs {', '.join(chosen.needs)} | | | | |")
            continue
        paths = []
        for size, mb in (("small", 2.0), ("large", options.mb * chosen.share)):
            folder = options.folder / f"{i}-{size}"
            folder.mkdir(parents=True)
            paths.append(chosen.write(folder, int(mb * 1e6 / (4 * FEATURES))))
        both = [measured(name, reader, *paths) for reader in ("bigfs", "own")]
        assert both[0][0] == both[1][0], f"{name}: {both}"
        speeds = " | ".join(f"{n / seconds:,.0f}" for n, seconds, _ in both)
        peaks = " | ".join(f"{peak / 2**20:,.0f} MiB" for _, _, peak in both)
        print(f"| {name} | {both[0][0]:,} | {speeds} | {peaks} |", flush=True)


if __name__ == "__main__":
    main()
