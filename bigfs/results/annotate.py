"""A copy of the AnnData that a run read, with the result as columns of its ``var``."""

from __future__ import annotations

import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.core.paths import is_there
from bigfs.results.result import Result
from bigfs.store.formats.annotated import ENCODING, read_var_names
from bigfs.store.location import Location, as_location, is_within, remove_tree, unnamed_file
from bigfs.store.records import refuse_inside_ours


def write_annotated(
    result: Result, dest: str | Location, *, key_added: str = "bigfs", overwrite: bool = False
) -> Path:
    """Copy the AnnData of a run with rank, score and selection of every feature in its ``var``.

    The copy appears under its name when it is complete. ``dest`` may be the input itself, if it
    is a .h5ad file and ``overwrite`` is given: the file is replaced by its copy, at once.

    Parameters
    ----------
    result : Result
    dest : str or Path
        NAME.h5ad or NAME.zarr, as the input is.
    key_added : str, default="bigfs"
        Beginning of the columns: ``bigfs_rank`` (1 is the best), ``bigfs_score`` and
        ``bigfs_selected``.
    overwrite : bool, default=False
        Replace a .h5ad file that is there.

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
    source, place = as_location(str(result.settings["input"]["uri"])), as_location(dest)
    names, suffix = result.feature_names, Path(str(source)).suffix
    if not (isinstance(source, Path) and isinstance(place, Path)) or suffix not in _WRITERS:
        raise InputError(
            f"{source} is no .h5ad file or AnnData .zarr on a local disk, and only these get "
            "columns of var. Export the selected columns instead."
        )
    if place.suffix != suffix:
        raise InputError(f"{dest}: a copy of {source} must end in {suffix}.")
    if names is None or read_var_names(source, len(names)) != names:
        raise InputError(
            f"{source}: its var has other features than the run read (a layer 'raw' has features "
            "of its own). Run again, or export the selected columns."
        )
    refuse_inside_ours(place)
    if is_within(place, result.path):
        raise InputError(f"{dest} lies in the run directory. Give a place outside it.")
    if is_there(place, "the copy") and not (overwrite and suffix == ".h5ad" and place.is_file()):
        cure = ", or --overwrite" if suffix == ".h5ad" else ""
        raise InputError(f"{dest} already exists. Give another name{cure}.")
    order = np.empty(len(names), dtype=np.int64)
    order[result.ranking] = np.arange(1, len(names) + 1)
    columns = {
        f"{key_added}_rank": order,
        f"{key_added}_score": np.asarray(result.scores, dtype=np.float64),
        f"{key_added}_selected": np.isin(np.arange(len(names)), result.selected),
    }
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _WRITERS[suffix](source, place, columns, overwrite)
    except FileExistsError:
        raise InputError(f"{place} appeared meanwhile, and stays. Give another name.") from None
    except OSError as error:
        raise StorageError(f"Cannot write {place}: {error}. Nothing was left there.") from error
    return place


def export_result(
    result: Result, dest: str, *, annotate: bool, overwrite: bool = False, **options: Any
) -> Location:
    """Write the selected columns of a run's data, or a copy of its AnnData with the result."""
    if not annotate:
        return result.export(dest, overwrite=overwrite, **options)
    given = [name for name, value in options.items() if value]
    if given:
        raise InputError(f"--annotate writes all features, and takes no {', '.join(given)}.")
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

    partial = place.with_name(f"{place.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        shutil.copytree(source, partial)
        # Without the old collection of all metadata, which knows nothing of new arrays.
        root: Any = zarr.open_group(partial, mode="r+", use_consolidated=False)
        var = root["var"]
        var.attrs["column-order"] = _write_columns(var, columns, var.create_array)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is no part of the standard of version 3 yet
            zarr.consolidate_metadata(str(partial))
        partial.rename(place)
    finally:
        remove_tree(partial)


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
