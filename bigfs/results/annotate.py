"""The AnnData that a run read, with the result as columns of its ``var``: a copy, or in place."""

from __future__ import annotations

import ctypes
import os
import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.paths import is_there
from bigfs.results.export import creating
from bigfs.results.result import Result
from bigfs.store.formats.annotated import ENCODING, read_var_names
from bigfs.store.location import Location, as_location, is_within, remove_tree, unnamed_file
from bigfs.store.records import refuse_inside_ours
from bigfs.store.source import as_path

# Of linux/fs.h and fcntl.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def write_annotated(
    result: Result, dest: str | Location, *, key_added: str = "bigfs", overwrite: bool = False
) -> Path:
    """Copy the AnnData of a run with rank, score and selection of every feature in its ``var``.

    The copy appears under its name when it is complete. ``dest`` may be the input itself, if
    ``overwrite`` is given: file or store are replaced by their copy, at once. The copy of a store
    shares the chunks of its matrices with it, so that they are not copied.

    Parameters
    ----------
    result : Result
    dest : str or Path
        NAME.h5ad or NAME.zarr, as the input is.
    key_added : str, default="bigfs"
        Beginning of the columns: ``bigfs_rank`` (1 is the best), ``bigfs_score`` and
        ``bigfs_selected``.
    overwrite : bool, default=False
        Replace a .h5ad file that is there, or the store that was read.

    Returns
    -------
    dest : Path

    Raises
    ------
    InputError
        If the input is no AnnData on a local disk, has other features by now, or ``dest`` is there.
    StorageError
        If writing fails.
    """
    source, place = check_annotatable(str(result.settings["input"]["uri"])), as_location(dest)
    if not isinstance(place, Path):
        raise InputError(f"{dest}: a copy can be written to a local disk only. Give a path there.")
    if place.suffix != source.suffix:
        raise InputError(f"{dest}: a copy of {source} must end in {source.suffix}.")
    refuse_inside_ours(place)
    if is_within(place, result.path):
        raise InputError(f"{dest} lies in the run directory. Give a place outside it.")
    if is_there(place, "the copy"):
        same = place.resolve() == source.resolve()
        if not (overwrite and (same or place.is_file() and place.suffix == ".h5ad")):
            cure = ", or --overwrite" if same or place.suffix == ".h5ad" else ""
            raise InputError(f"{dest} already exists. Give another name{cure}.")
    columns = columns_of_var(result.ranking, result.scores, result.selected, key_added=key_added)
    return copy_annotated(source, place, result.feature_names, columns, overwrite=overwrite)


def check_annotatable(uri: str) -> Path:
    """Return the place of an AnnData on a local disk.

    Raises
    ------
    InputError
        If it is none.
    """
    source = as_path(uri)
    if not isinstance(source, Path) or source.suffix not in _WRITERS:
        raise InputError(
            f"{uri} is not a .h5ad file or AnnData .zarr on a local disk; only these get "
            "columns of var. Export the selected columns instead."
        )
    return source


def columns_of_var(
    ranking: np.ndarray, scores: np.ndarray, selected: np.ndarray, *, key_added: str = "bigfs"
) -> dict[str, np.ndarray]:
    """Return rank (1 is the best), score and selection of every feature by their column's names."""
    order = np.empty(len(ranking), dtype=np.int64)
    order[ranking] = np.arange(1, len(ranking) + 1)
    return {
        f"{key_added}_rank": order,
        f"{key_added}_score": np.asarray(scores, dtype=np.float64),
        f"{key_added}_selected": np.isin(np.arange(len(ranking)), selected),
    }


def copy_annotated(
    source: Path,
    place: Path,
    names: list[str] | None,
    columns: dict[str, np.ndarray],
    *,
    overwrite: bool = False,
) -> Path:
    """Copy an AnnData with further columns of ``var``, which must have these names.

    Raises
    ------
    InputError
        If it has other features.
    StorageError
        If writing fails.
    """
    if names is None or read_var_names(source, len(names)) != names:
        raise InputError(
            f"{source}: its var has other features than the run read (a layer 'raw' has features "
            "of its own). Run again, or export the selected columns."
        )
    with creating(place):
        _WRITERS[source.suffix](source, place, columns, overwrite)
    return place


def export_result(
    result: Result, dest: str, *, annotate: bool, overwrite: bool = False, **options: Any
) -> Location:
    """Write the selected columns of a run's data, or a copy of its AnnData with the result."""
    if not annotate:
        return result.export(dest, overwrite=overwrite, **options)
    given = [name for name, value in options.items() if value]
    if given:
        raise InputError(
            f"--annotate writes all features, and cannot be combined with {', '.join(given)}."
        )
    return write_annotated(result, dest, overwrite=overwrite)


def _copy_h5ad(source: Path, place: Path, columns: dict[str, Any], overwrite: bool) -> None:
    import h5py

    with unnamed_file(place, overwrite=overwrite) as file:
        with source.open("rb") as original:
            shutil.copyfileobj(original, file, 2**22)
        with h5py.File(file, "r+") as root:
            var = root["var"]
            order = _write_columns(var, columns, var.create_dataset)
            var.attrs["column-order"] = np.array(order, dtype=h5py.string_dtype())


def _copy_zarr(source: Path, place: Path, columns: dict[str, Any], overwrite: bool) -> None:
    import zarr

    """Copy a store; one that is there is exchanged for its copy, which shares its chunks."""
    in_place = overwrite and place.exists()
    partial = place.with_name(f"{place.name}.partial-{uuid.uuid4().hex[:8]}")

    def copy(file: str, copied: str) -> None:
        inside = Path(file).relative_to(source).parts
        if in_place and len(inside) > 1 and inside[0] != "var":  # not changed below
            os.link(file, copied)
        else:
            shutil.copy2(file, copied)

    try:
        shutil.copytree(source, partial, copy_function=copy)
        # Without the old collection of all metadata, which knows nothing of new arrays.
        root: Any = zarr.open_group(partial, mode="r+", use_consolidated=False)
        var = root["var"]
        var.attrs["column-order"] = _write_columns(var, columns, var.create_array)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is no part of the standard of version 3 yet
            zarr.consolidate_metadata(str(partial))
        if in_place:
            _exchange(partial, place)
        else:
            partial.rename(place)
    finally:
        remove_tree(partial)


def _exchange(first: Path, second: Path) -> None:
    """Let two folders change their names, at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if not hasattr(libc, "renameat2"):
        raise OSError("this system cannot swap two folders in one step; write a copy instead")
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        raise OSError(f"{os.strerror(ctypes.get_errno())}; write a copy instead")


def _write_columns(var: Any, columns: dict[str, Any], create: Any) -> list[str]:
    """Write columns of a frame; return the names of all its columns."""
    order = [str(name) for name in var.attrs["column-order"]]
    for name, values in columns.items():
        if name in var:
            del var[name]
        column = create(name, data=values)
        column.attrs[ENCODING], column.attrs["encoding-version"] = "array", "0.2.0"
    return [*order, *(name for name in columns if name not in order)]


_WRITERS = {".h5ad": _copy_h5ad, ".zarr": _copy_zarr}
