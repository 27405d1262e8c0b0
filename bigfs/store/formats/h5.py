"""Files of HDF5, whatever they are called: whose format they are is told by what they hold.

What a library wrote is read as that library reads it, or refused by its name. Only arrays that
are of no such format are read as they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from bigfs.core.errors import InputError
from bigfs.store.formats import mat
from bigfs.store.formats.cube import CubeSource
from bigfs.store.formats.hdf5 import H5Rows, find, member, open_h5, open_member, refuse_links
from bigfs.store.formats.parts import open_dense
from bigfs.store.formats.xarrays import is_described, named_beside, open_described, read_labels
from bigfs.store.location import METADATA_BYTES, Location
from bigfs.store.source import Source, choose_member, no_column
from bigfs.store.values import decoding

_CUBE = ("features", "no_data")


@dataclass(frozen=True)
class _Kind:
    """A format in HDF5: how it is told, and its reader or what converts it."""

    what: str
    is_it: Callable[[Any], bool]
    module: str = ""
    takes: tuple[str, ...] = ()
    cure: str = ""

    @property
    def reader(self) -> Any:
        """The module."""
        return import_module(f"bigfs.store.formats.{self.module}")


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda file: all(name in file for name in names)


def _has_attribute(*names: str) -> Callable[[Any], bool]:
    """Tell a file by attributes of its root or of the groups in it."""
    return lambda file: any(
        name in node.attrs
        for node in (file, *(find(file, key, "") for key in file if _is_group(file, key)))
        for name in names
    )


def _is_group(file: Any, name: str) -> bool:
    import h5py

    is_hard = isinstance(file.get(name, getlink=True), h5py.HardLink)
    return is_hard and file.get(name, getclass=True) is h5py.Group


_KINDS = (
    _Kind("MuData", _has("mod", "obs", "var"), "annotated", ("layer",)),
    _Kind(
        "AnnData",
        lambda file: file.attrs.get("encoding-type") == "anndata" or _has("obs", "var")(file),
        "annotated", ("layer",),
    ),
    _Kind("loom", _has("matrix", "row_attrs", "col_attrs"), "tenx", ("layer",)),
    _Kind("counts of Cell Ranger", lambda file: bool(genomes_of(file)), "tenx", ("feature_types",)),
    _Kind(
        "a list of molecules of Cell Ranger", _has("barcode_idx", "umi"),
        cure="Give filtered_feature_bc_matrix.h5.",
    ),
    _Kind("a list of molecules of Cell Ranger", _has("barcode", "gene", "umi"),
          cure="Give filtered_gene_bc_matrices_h5.h5."),
    _Kind(
        "a store of pandas", _has_attribute("pandas_type", "pandas_version"),
        cure="Convert it: pandas.read_hdf(FILE).to_parquet('X.parquet').",
    ),
    _Kind(
        "a model of Keras, or its weights",
        lambda file: _has("layers", "vars")(file) or _has("model_weights")(file)
        or _has_attribute("keras_version", "layer_names", "weight_names")(file),
        cure="It holds no data of samples.",
    ),
    _Kind(
        "a store of Seurat", _has("assays"),
        cure="Convert it in R: SeuratDisk::Convert(FILE, dest = 'h5ad').",
    ),
)  # fmt: skip


def genomes_of(file: Any) -> list[str]:
    """Return the groups of counts that Cell Ranger wrote: one of version 3, one a genome before."""
    return [
        name
        for name in file
        if _is_group(file, name)
        and {"barcodes", "indptr"} <= set(file[name])
        and (name == "matrix" or "gene_names" in file[name])
    ]


def open_file(path: Location, variable: str | None, **settings: Any) -> Source:
    """Open a file: by the reader of its format, or an array of it as it lies.

    ``settings`` are those of the format, where they are given.
    """
    with open_h5(path) as file, decoding(str(path)):
        kind = _kind_of(file)
    if kind is None or (variable is not None and not kind.module):
        _check(path, "arrays", _CUBE, settings)
        reader = mat.open_file if mat.is_hdf5(path) else open_array
        opened: Source = reader(path, variable, **settings)
        return opened
    if not kind.module:
        raise InputError(f"{path} is {kind.what}, which is not read. {kind.cure}")
    _check(path, kind.what, kind.takes, settings)
    opened = kind.reader.open_file(path, variable, **settings)
    return opened


def _check(path: Location, what: str, takes: tuple[str, ...], settings: dict[str, Any]) -> None:
    """Raise InputError for settings that files of a kind do not have."""
    for name, value in settings.items():
        if name not in takes:
            raise InputError(
                f"{path} holds {what}, which has no {name}. Got {value!r}; leave it out "
                f"(input.{name})."
            )


def open_array(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open an array of a file: the one that is named, or the only one of two dimensions or more.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, where they are given.
    """
    with open_h5(path) as file, decoding(str(path)):
        arrays = _arrays(file)
        large = {n for n, a in arrays.items() if len(a.shape) > 1 and min(a.shape) > 1}
        named = None if variable is None else variable.strip("/")
        matrices = sorted(large - named_beside(array.attrs for array in arrays.values()) or large)
        name = choose_member(path, list(arrays), matrices, named)
        uri, place = f"{path}::{name}", partial(open_member, str(path.absolute()), name)
        array = member(file, name, str(path))
        if array.dtype.kind not in "fiub":
            raise InputError(f"{uri} holds {array.dtype}, not numbers. Name another array.")
        dims = dimensions(array)
        others = None
        if is_described(array.attrs, "DIMENSION_LIST" in array.attrs):
            refuse_links(file, str(path))
            others = _not_needed(array.parent, name.rpartition("/")[2], dims, uri)
        is_matrix = len(array.shape) == 2 and not cube
    if others is not None:
        opened = path if isinstance(path, Path) else path.open("rb")
        return open_described(uri, opened, name, place, others, cube,
                              engine="h5netcdf", phony_dims="access")  # fmt: skip
    return open_dense(place, uri) if is_matrix else CubeSource(uri, place, dims, **cube)


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of every array of a file."""
    with open_h5(path) as file, decoding(str(path)):
        return [(name, array.shape, str(array.dtype)) for name, array in _arrays(file).items()]


def read_column(path: Location, name: str, rows: Sequence[str] = ()) -> Any:
    """Return an array by its name: labels, or what rows are chosen by; a column of an AnnData.

    ``rows`` are the dimensions of the rows that it belongs to, where they are known.
    """
    with open_h5(path) as file, decoding(str(path)):
        kind = _kind_of(file)
        node = find(file, name.strip("/"), str(path)) if name else None
        if kind is None or node is not None and hasattr(node, "shape"):
            if node is None or not hasattr(node, "shape"):
                raise no_column(str(path), name, _arrays(file))
            uri = f"{path}::{name}"
            others = [dimensions(array) for array in _arrays(file).values()]
            array = H5Rows(node, uri)
            return read_labels(array, dimensions(node), array.attrs, others, rows, uri)
    return kind.reader.read_column(path, name)


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns as AnnData."""
    from bigfs.store.formats.annotated import write

    write(file, selected)


def _kind_of(file: Any) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.is_it(file)), None)


def _arrays(file: Any) -> dict[str, Any]:
    """Return the arrays of a file by name."""
    arrays: dict[str, Any] = {}

    def note(name: str, node: Any) -> None:
        if hasattr(node, "shape") and node.shape and not name.startswith("#"):  # MATLAB's own
            arrays[name] = node

    file.visititems(note)  # does not follow links to other files
    return arrays


def _not_needed(group: Any, name: str, dims: list[str] | None, uri: str) -> list[str]:
    """Return the members of a group that are neither an array nor coordinates of a usual size."""

    def is_needed(other: str) -> bool:
        if other == name:
            return True
        node = find(group, other, uri) if other in (dims or ()) else None
        return hasattr(node, "shape") and H5Rows(node, uri).nbytes <= METADATA_BYTES

    return [other for other in group if not is_needed(other)]


def dimensions(array: Any) -> list[str] | None:
    """Return the names of the dimensions that have scales or labels, None if they are no names."""
    names = []
    for i, dim in enumerate(array.dims):
        scale = "" if not len(dim) else dim[0].name.rpartition("/")[2]
        names.append(dim.label or scale or str(i))
    return names if len(set(names)) == len(names) else None
