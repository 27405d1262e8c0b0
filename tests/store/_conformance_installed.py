"""Files that installed packages ship, for `_conformance`: as others wrote them years ago.

Whatever is no matrix of real numbers may be refused; what is read must be the same.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.store._conformance import Own, case

_MOST_BYTES = 2**21


def _files(package: str, folder: str, pattern: str) -> Iterator[Path]:
    """Yield files of a package; where there are none, a case says so by being skipped."""
    spec = importlib.util.find_spec(package)
    files: list[Path] = []
    if spec is not None and spec.origin is not None:
        files = sorted((Path(spec.origin).parent / folder).glob(pattern))
        files = [file for file in files if file.stat().st_size <= _MOST_BYTES]
    if not files:
        case(f"{package}: {folder}/{pattern}", needs=(f"the data of {package}",))(_absent)
    yield from files


def _absent(folder: Path) -> tuple[Path, None]:
    return folder, None


def _shipped(path: Path, read: Callable[[Path], Own | None]) -> Any:
    def make(folder: Path) -> tuple[Path, Own | None]:
        try:
            return path, read(path)
        except Exception:  # of files that are damaged on purpose
            return path, None

    return make


def _as_own(values: Any, names: list[str] | None = None, **options: Any) -> Own | None:
    """Return a matrix of real numbers as what the library says; None if it is none."""
    values = np.asarray(values)
    if values.dtype.kind not in "fiub" or values.ndim < 2:
        return None
    return Own(values.reshape(-1, values.shape[-1]), names, **options)


# MATLAB files of all versions since 4, of scipy


def _variable(name: str) -> Callable[[Path], Own | None]:
    def read(path: Path) -> Own | None:
        from scipy.io import loadmat

        values = loadmat(path, variable_names=[name], spmatrix=False).get(name)
        return _as_own(values.toarray() if hasattr(values, "toarray") else values)

    return read


def _variables(path: Path) -> list[tuple[str, int]]:
    """Return the variables of a file, and the dimensions that they have."""
    from scipy.io import whosmat

    try:
        return [(name, len(shape)) for name, shape, _ in whosmat(path)]
    except Exception:  # damaged on purpose, or of version 7.3
        return [("", 2)]


def _none(path: Path) -> None:
    return None


for _path in _files("scipy", "io/matlab/tests/data", "*.mat"):
    for _name, _dimensions in _variables(_path):
        _given: dict[str, Any] = {"variable": _name} if _name else {}
        _given |= {"features": -1} if _dimensions > 2 else {}
        case(f"scipy: {_path.name} {_name}".strip(), refused="", **_given)(
            _shipped(_path, _variable(_name) if _name else _none)
        )


# Text tables of statsmodels, scikit-learn and matplotlib


def _csv(header: int | None = 0) -> Callable[[Path], Own | None]:
    def read(path: Path) -> Own | None:
        import pandas as pd

        frame = pd.read_csv(path, header=header, float_precision="round_trip")
        if not all(kind.kind in "fiu" for kind in frame.dtypes):
            return None
        names = None if header is None else [str(name) for name in frame.columns]
        return _as_own(frame.to_numpy(np.float64), names)

    return read


for _package, _folder in (
    ("statsmodels", "datasets"), ("sklearn", "datasets/data"), ("matplotlib", "mpl-data"),
):  # fmt: skip
    for _path in _files(_package, _folder, "**/*.csv*"):
        _named = not _path.name.startswith(("digits", "diabetes"))
        case(f"{_package}: {_path.parent.name}/{_path.name}", refused="", header=_named)(
            _shipped(_path, _csv(0 if _named else None))
        )


# NumPy, Parquet, Feather


def _npy(path: Path) -> Own | None:
    return _as_own(np.load(path, allow_pickle=False))


for _path in _files("numpy", "lib/tests/data", "*.np[yz]"):
    _needed = "pickled" if "objarr.npy" in _path.name else ""
    case(f"numpy: {_path.name}", refused=_needed)(
        _shipped(_path, _npy if _path.suffix == ".npy" else _none)
    )


def _pandas(kind: str) -> Callable[[Path], Own | None]:
    def read(path: Path) -> Own | None:
        import pandas as pd

        frame = getattr(pd, f"read_{kind}")(path)
        if not all(kind.kind in "fiub" for kind in frame.dtypes):
            return None
        return _as_own(frame.to_numpy(np.float64), [str(name) for name in frame.columns])

    return read


for _kind in ("parquet", "feather"):
    for _path in _files("pyarrow", f"tests/data/{_kind}", f"*.{_kind}"):
        case(f"pyarrow: {_path.name}", refused="")(_shipped(_path, _pandas(_kind)))


# AnnData of scanpy, NetCDF of scipy, HDF5 of h5py, svmlight of scikit-learn


def _h5ad(path: Path) -> Own | None:
    import anndata as ad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata = ad.read_h5ad(path)
    X = adata.X.toarray() if hasattr(adata.X, "toarray") else adata.X
    labels = {f"{{}}::{name}": adata.obs[name] for name in ("bulk_labels", "louvain")}
    return Own(X, list(adata.var_names), list(adata.obs_names), labels)


for _path in _files("scanpy", "datasets", "*.h5ad"):
    case(f"scanpy: {_path.name}", needs=("anndata",))(_shipped(_path, _h5ad))


def _netcdf(path: Path) -> Own | None:
    import xarray as xr

    with xr.open_dataset(path, decode_times=False) as data:
        large = [name for name in data.data_vars if data[name].ndim > 1]
        if len(large) != 1:
            return None
        array = data[large[0]]
        last = array.dims[-1]
        names = [str(v) for v in array[last].values] if last in array.coords else None
        return _as_own(array.values, names)


for _path in _files("scipy", "io/tests/data", "*.nc"):
    case(f"scipy: {_path.name}", refused="", needs=("xarray",))(_shipped(_path, _netcdf))
for _path in _files("h5py", "tests/data_files", "*.h5"):
    case(f"h5py: {_path.name}", refused="", needs=("h5py",))(_shipped(_path, _none))


def _svmlight(path: Path) -> Own | None:
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(path))
    return Own(X.toarray(), labels={"{}": y})


for _path in _files("sklearn", "datasets/tests/data", "svmlight*"):
    case(f"sklearn: {_path.name}", refused="")(_shipped(_path, _svmlight))
for _path in _files("pyamg", "gallery/example_data", "*.mat"):
    case(f"pyamg: {_path.name}", refused="", variable="A")(_shipped(_path, _variable("A")))
