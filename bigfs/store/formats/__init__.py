"""Formats of files and folders: each is one module here and one line of `FORMATS`.

A module of tables has ``open_table(path, **settings)``, which returns a `Table`; all else follows
from it. Another module has ``open_file(path, variable, **settings)``, which returns a `Source`,
and may have ``preview(path)``, the arrays that `bigfs inspect` lists, as name, shape and type, and
``read_column(path, name)``, the values of an array or a column, by which labels are named. With
``write(file, columns)`` the selected columns are exported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError
from bigfs.store.location import Location


@dataclass(frozen=True)
class Format:
    """A format: by what it is told, and what it takes."""

    module: str  # its reader, in this folder
    endings: tuple[str, ...] = ()  # of names, in small letters
    # Settings of `open_matrix` that its reader takes, beside ``variable``; a table takes "roles".
    takes: tuple[str, ...] = ()
    magic: bytes | tuple[bytes, ...] = ()  # how a file begins, where the name does not tell
    folders: tuple[str, ...] = ()  # what a folder of the format holds one of
    writes: tuple[str, ...] = ()  # those of the endings that export writes
    keeps_ids: bool = False  # whether an export may hold the rows' ids
    # Whether ``read_column`` takes the dimensions of the rows, for arrays of several dimensions.
    takes_dimensions: bool = False

    @property
    def is_table(self) -> bool:
        """True if its columns have names and roles."""
        return "roles" in self.takes

    def proposed(self, path: Location) -> dict[str, Any]:
        """Return the settings with which a file seems to be readable; empty: it needs none."""
        propose = getattr(self.reader, "propose", None)
        return {} if propose is None else propose(path)

    @property
    def has_labels(self) -> bool:
        """True if an array or a column of it may be labels."""
        return self.is_table or hasattr(self.reader, "read_column")

    @property
    def reader(self) -> Any:
        """The module."""
        return import_module(f"{__name__}.{self.module}")


_CUBE = ("features", "no_data")
TEXTS = (".csv", ".tsv", ".txt", ".data", ".tab")
_PACKED = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
MARKET = ("matrix.mtx.gz", "matrix.mtx")
_COUNTS = Format(
    "market", (".mtx", ".mtx.gz"), ("feature_types",), b"%%MatrixMarket", folders=MARKET
)
ZARR = Format(
    "zarr_array", (".zarr", ".zarr.zip"), ("layer", *_CUBE),
    folders=("zarr.json", ".zarray", ".zgroup"), writes=(".zarr",), takes_dimensions=True,
)  # fmt: skip
HDF5 = Format(
    "hdf5",
    (".h5ad", ".h5", ".hdf5", ".h5mu", ".loom", ".nc", ".nc4", ".he5", ".h5seurat"),
    ("layer", "feature_types", *_CUBE), b"\x89HDF\r\n\x1a\n",
    writes=(".h5ad",), keeps_ids=True, takes_dimensions=True,
)  # fmt: skip
FORMATS = (
    Format(
        "npy", (".npy",), _CUBE, b"\x93NUMPY", writes=(".npy",), takes_dimensions=True
    ),
    Format("npz", (".npz",), _CUBE, takes_dimensions=True),
    Format(
        "csv", tuple(e + p for e in TEXTS for p in _PACKED), ("roles", "header", "csv"),
        writes=(".csv",), keeps_ids=True,
    ),
    Format("parquet", (".parquet",), ("roles",), b"PAR1", writes=(".parquet",), keeps_ids=True),
    Format(
        "feather", (".feather", ".arrow", ".arrows", ".ipc"), ("roles",), b"ARROW1",
        writes=(".feather", ".arrow"), keeps_ids=True,
    ),
    Format("mat", (".mat",), _CUBE, b"MATLAB"),
    Format(
        "svmlight",
        tuple(f"{end}{packed}" for end in (".svm", ".svmlight", ".libsvm")
              for packed in ("", ".gz", ".bz2")),
    ),
    HDF5,
    # NetCDF 3, which is no HDF5.
    Format("xarrays", (), _CUBE, b"CDF", takes_dimensions=True),
    Format(
        "raster", (".tif", ".tiff", ".img", ".dat", ".bsq", ".bil", ".bip", ".hdr"), _CUBE,
        (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), writes=(".tif", ".tiff"),
    ),
    _COUNTS,
    ZARR,
)  # fmt: skip
# Endings of the files of tables; in a folder other texts than .csv and .tsv are no parts of one.
TABLES = tuple(ending for entry in FORMATS if entry.is_table for ending in entry.endings)
PARTS = tuple(ending for ending in TABLES if not ending.startswith((".txt", ".data", ".tab")))
# What is not read, and what converts it.
REFUSED = {
    (".xlsx", ".xls", ".ods"): "pandas.read_excel(path).to_parquet('X.parquet')",
    (".sav", ".por"): "pandas.read_spss(path).to_parquet('X.parquet')",
    (".dta",): "pandas.read_stata(path).to_parquet('X.parquet')",
    (".sas7bdat", ".xpt"): "pandas.read_sas(path).to_parquet('X.parquet')",
    (".sqlite", ".sqlite3", ".db"): "pandas.read_sql(query, connection).to_parquet('X.parquet')",
    (".arff",): "pandas.DataFrame(scipy.io.arff.loadarff(path)[0]).to_parquet('X.parquet')",
    (".rds", ".rdata"): "arrow::write_parquet(x, 'X.parquet') in R",
    (".pkl", ".pickle", ".joblib"): "numpy.save('X.npy', X), where it was written",
}
_MAGIC_BYTES = 16


def format_named(name: str) -> Format | None:
    """Return the format that the ending of a name tells; None if it tells none."""
    lower = name.lower()
    return next((entry for entry in FORMATS if lower.endswith(entry.endings)), None)


def format_of(path: Location) -> Format:
    """Return the format of a file or folder: by its name, else by how it begins.

    Raises
    ------
    InputError
        If it is of none of them.
    """
    if path.is_dir():
        return format_of_folder(path) or ZARR
    lower = path.name.lower()
    for endings, cure in REFUSED.items():
        if lower.endswith(endings):
            raise InputError(f"{path}: this kind of file is not read. Convert it: {cure}.")
    known = None if lower.endswith(".zarr") else format_named(path.name)
    if known not in (None, HDF5):  # some name NetCDF 3 so too
        return known
    begin = b""
    if not isinstance(path, Path) or path.is_file():  # a pipe would be waited for
        with path.open("rb") as file:
            begin = file.read(_MAGIC_BYTES)
    for entry in FORMATS:
        if begin.startswith(entry.magic):
            return entry
    if known is not None:
        return known
    others = (entry for entry in FORMATS if entry is not ZARR)
    raise InputError(
        f"{path}: neither the name nor the first bytes show the kind of file. Known endings: "
        f"{shown(others)}; and zarr folders."
    )


def format_of_folder(path: Location) -> Format | None:
    """Return the format of a folder that is one matrix; None if it is of none.

    The names of a folder of counts may begin with that of a sample.
    """
    for entry in FORMATS:
        if any((path / name).exists() for name in entry.folders):
            return entry
    names = [file.name for file in path.iterdir()] if isinstance(path, Path) else []
    return _COUNTS if any(name.endswith(MARKET) for name in names) else None


def shown(entries: Iterable[Format]) -> str:
    """Return the endings of some formats, without those of packed texts."""
    return ", ".join(e for entry in entries for e in entry.endings if e.count(".") == 1)


def taken_by(setting: str) -> str:
    """Return the endings of the formats that take a setting, for a message."""
    return shown(entry for entry in FORMATS if setting in entry.takes)
