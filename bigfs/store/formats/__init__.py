"""Formats of files and folders, each with a module in this package and an entry in `FORMATS`.

A module for tables defines ``open_table(path, **settings)``, which returns a `Table`; reading needs
nothing else. Any other module defines ``open_file(path, variable, **settings)``, which returns a
`Source`. It may also define ``preview(path)``, which returns name, shape and type of the arrays
that `bigfs inspect` lists, and ``read_column(path, name)``, which returns the values of an array or
a column, such as labels. Any module may define ``write(file, columns)``, which exports the selected
columns.
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
    """Format of files or folders: its reader, how it is recognized, and its settings."""

    module: str  # reader, a module of this package
    endings: tuple[str, ...] = ()  # extensions of names, in lower case
    # Settings of `open_matrix` that the reader accepts besides ``variable``; tables have "roles".
    takes: tuple[str, ...] = ()
    magic: bytes | tuple[bytes, ...] = ()  # first bytes, used if the name is not sufficient
    folders: tuple[str, ...] = ()  # names, one of which a folder of the format contains
    writes: tuple[str, ...] = ()  # extensions that export can write
    keeps_ids: bool = False  # whether an export may hold the rows' ids
    # Whether ``read_column`` accepts the dimensions of the rows, for arrays of several dimensions.
    takes_dimensions: bool = False

    @property
    def is_table(self) -> bool:
        """True if its columns have names and roles."""
        return "roles" in self.takes

    def proposed(self, path: Location) -> dict[str, Any]:
        """Return the settings with which a file can probably be read, empty if it needs none."""
        propose = getattr(self.reader, "propose", None)
        return {} if propose is None else propose(path)

    @property
    def has_labels(self) -> bool:
        """True if labels can be read from an array or a column of such a file."""
        return self.is_table or hasattr(self.reader, "read_column")

    @property
    def reader(self) -> Any:
        """Module that reads the format."""
        return import_module(f"{__name__}.{self.module}")


CUBE = ("features", "no_data")
TEXTS = (".csv", ".tsv", ".txt", ".data", ".tab")
_PACKED = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
MARKET = ("matrix.mtx.gz", "matrix.mtx")
_COUNTS = Format(
    "market", (".mtx", ".mtx.gz"), ("feature_types",), b"%%MatrixMarket", folders=MARKET
)
ZARR = Format(
    "zarr_array", (".zarr", ".zarr.zip"), ("layer", *CUBE),
    folders=("zarr.json", ".zarray", ".zgroup"), writes=(".zarr",), takes_dimensions=True,
)  # fmt: skip
HDF5 = Format(
    "hdf5",
    (".h5ad", ".h5", ".hdf5", ".h5mu", ".loom", ".nc", ".nc4", ".he5", ".h5seurat"),
    ("layer", "feature_types", *CUBE), b"\x89HDF\r\n\x1a\n",
    writes=(".h5ad",), keeps_ids=True, takes_dimensions=True,
)  # fmt: skip
FORMATS = (
    Format(
        "npy", (".npy",), CUBE, b"\x93NUMPY", writes=(".npy",), takes_dimensions=True
    ),
    Format("npz", (".npz",), CUBE, takes_dimensions=True),
    Format(
        "csv", tuple(e + p for e in TEXTS for p in _PACKED), ("roles", "header", "csv"),
        writes=(".csv",), keeps_ids=True,
    ),
    Format("parquet", (".parquet",), ("roles",), b"PAR1", writes=(".parquet",), keeps_ids=True),
    Format(
        "feather", (".feather", ".arrow", ".arrows", ".ipc"), ("roles",), b"ARROW1",
        writes=(".feather", ".arrow"), keeps_ids=True,
    ),
    Format("mat", (".mat",), CUBE, b"MATLAB"),
    Format(
        "svmlight",
        tuple(f"{end}{packed}" for end in (".svm", ".svmlight", ".libsvm")
              for packed in ("", ".gz", ".bz2")),
    ),
    HDF5,
    # NetCDF 3, which is not based on HDF5.
    Format("xarrays", (), CUBE, b"CDF", takes_dimensions=True),
    Format(
        "raster", (".tif", ".tiff", ".img", ".dat", ".bsq", ".bil", ".bip", ".hdr"), CUBE,
        (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), writes=(".tif", ".tiff"),
    ),
    _COUNTS,
    ZARR,
)  # fmt: skip
# Extensions of the files of tables, and of the files that may be parts of a table in a folder. Of
# the texts only .csv and .tsv may be parts.
TABLES = tuple(ending for entry in FORMATS if entry.is_table for ending in entry.endings)
PARTS = tuple(ending for ending in TABLES if not ending.startswith((".txt", ".data", ".tab")))
# Extensions of unsupported files, with code that converts them.
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
    """Return the format for the extension of a name, or None if it is unknown."""
    lower = name.lower()
    return next((entry for entry in FORMATS if lower.endswith(entry.endings)), None)


def format_of(path: Location) -> Format:
    """Return the format of a file or folder, by its name or else by its first bytes.

    Raises
    ------
    InputError
        If the format is unknown or not supported.
    """
    if path.is_dir():
        return format_of_folder(path) or ZARR
    lower = path.name.lower()
    for endings, cure in REFUSED.items():
        if lower.endswith(endings):
            raise InputError(f"{path}: this kind of file is not supported. Convert it: {cure}.")
    known = None if lower.endswith(".zarr") else format_named(path.name)
    if known not in (None, HDF5):  # NetCDF 3 may have an extension of HDF5
        return known
    begin = b""
    if not isinstance(path, Path) or path.is_file():  # reading a pipe would block
        with path.open("rb") as file:
            begin = file.read(_MAGIC_BYTES)
    for entry in FORMATS:
        if begin.startswith(entry.magic):
            return entry
    if known is not None:
        return known
    others = (entry for entry in FORMATS if entry is not ZARR)
    raise InputError(
        f"{path}: neither its name nor its first bytes show the kind of file. Known endings: "
        f"{shown(others)}; and zarr folders."
    )


def format_of_folder(path: Location) -> Format | None:
    """Return the format of a folder that holds one matrix, or None if it has no known format.

    File names in a folder of counts may begin with a sample name.
    """
    for entry in FORMATS:
        if any((path / name).exists() for name in entry.folders):
            return entry
    names = [file.name for file in path.iterdir()] if isinstance(path, Path) else []
    return _COUNTS if any(name.endswith(MARKET) for name in names) else None


def shown(entries: Iterable[Format]) -> str:
    """Return the extensions of formats for a message, without those of compressed texts."""
    return ", ".join(e for entry in entries for e in entry.endings if e.count(".") == 1)


def taken_by(setting: str) -> str:
    """Return the extensions of the formats that accept a setting, for a message."""
    return shown(entry for entry in FORMATS if setting in entry.takes)
