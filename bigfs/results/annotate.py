"""Annotation of the AnnData that a run read: the result as columns of ``var``, copy or in place."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.config import Config
from bigfs.core.errors import InputError
from bigfs.core.paths import is_there
from bigfs.core.threads import ignoring_warnings
from bigfs.results.export import creating
from bigfs.results.result import Result
from bigfs.stages.curves import columns_of_var, selected_features
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs, Stage, unplanned_stage
from bigfs.store.fingerprint import changed
from bigfs.store.formats.annotated import read_var_names
from bigfs.store.location import (
    Location,
    as_location,
    files_below,
    is_remote,
    is_within,
    keep_rights,
    remove_tree,
    unnamed_file,
)
from bigfs.store.records import refuse_inside_ours
from bigfs.store.scratch import Scratch
from bigfs.store.source import as_path

# Constants of linux/fs.h and fcntl.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def write_annotated(result: Result, dest: str | Location, *, overwrite: bool = False) -> Path:
    """Copy the AnnData of a run and add rank, score and selection of each feature to its ``var``.

    The columns are ``bigfs_rank`` (1 is the best), ``bigfs_score`` and ``bigfs_selected``. The
    method and the settings are stored in ``uns["bigfs"]``. scanpy's functions use the selected
    features with ``mask_var="bigfs_selected"``; by default they use ``var["highly_variable"]`` if
    it exists. The copy appears under its name when it is complete. With ``overwrite``, ``dest`` may
    be the input itself: the file or store is then replaced atomically by its copy. In that case the
    chunks of a store's matrices are linked instead of copied.

    Parameters
    ----------
    result : Result
    dest : str or Path
        NAME.h5ad or NAME.zarr, in the format of the input.
    overwrite : bool, default=False
        Replace an existing .h5ad file, or the store that was read.

    Returns
    -------
    dest : Path

    Raises
    ------
    InputError
        If the input is not an AnnData on a local disk, has other features now or changes meanwhile,
        ``dest`` exists, or owner and group of the replaced files cannot be kept.
    StorageError
        If writing fails.
    """
    source, place = check_annotatable(str(result.manifest["data"]["uri"])), as_location(dest)
    if not isinstance(place, Path):
        raise InputError(f"{dest}: a copy can only be written to a local disk. Give a local path.")
    kind = source.suffix.lower()
    if place.suffix.lower() != kind:
        raise InputError(f"{dest}: a copy of {source} must end in {source.suffix}.")
    refuse_inside_ours(place)
    if is_within(place, result.path):
        raise InputError(f"{dest} lies in the run directory. Give a place outside it.")
    if is_there(place, "the copy"):
        same = place.resolve() == source.resolve()
        if not (overwrite and (same or place.is_file() and kind == ".h5ad")):
            cure = ", or --overwrite" if same or kind == ".h5ad" else ""
            raise InputError(f"{dest} already exists. Give another name{cure}.")
    if result.settings["input"].get("columns") is not None:
        raise InputError(
            f"{source} has more features than the run read (input.columns), so that its var cannot "
            "hold the result. Export the selected columns, which keeps the rest of it."
        )
    columns = columns_of_var(result.ranking, result.scores, result.selected)
    names, run = result.feature_names, (result.method, result.settings)
    return copy_annotated(source, place, names, columns, *run, overwrite=overwrite)


def check_annotatable(uri: str) -> Path:
    """Return the path of an AnnData on a local disk.

    Raises
    ------
    InputError
        If the URI is not a .h5ad or .zarr path on a local disk.
    """
    source = as_path(uri)
    if not isinstance(source, Path) or source.suffix.lower() not in _WRITERS:
        raise InputError(
            f"{uri} is not a .h5ad file or AnnData .zarr on a local disk; only these can be "
            "annotated. Export the selected columns instead."
        )
    return source


def copy_annotated(
    source: Path,
    place: Path,
    names: list[str] | None,
    columns: dict[str, np.ndarray],
    method: str,
    settings: dict[str, Any],
    *,
    overwrite: bool = False,
) -> Path:
    """Copy an AnnData and add columns to its ``var``, whose features must be ``names``.

    The method, and its settings as JSON, are stored in ``uns``.

    Raises
    ------
    InputError
        If the AnnData has other features, or changes meanwhile.
    StorageError
        If writing fails.
    """
    if names is None or read_var_names(source, len(names)) != names:
        raise InputError(
            f"{source}: its var has other features than the run read (a layer 'raw' has features "
            "of its own). Run again, or export the selected columns."
        )
    target = place.resolve() if overwrite else place  # a link is kept, and its target replaced
    about = {"method": method, "parameters": json.dumps(settings, default=str)}
    with creating(target):
        _WRITERS[source.suffix.lower()](source, target, columns, about, overwrite)
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


def _copy_h5ad(
    source: Path, place: Path, columns: dict[str, Any], about: dict[str, Any], overwrite: bool
) -> None:
    import h5py

    with unnamed_file(place, overwrite=overwrite) as file:
        with source.open("rb") as original:
            shutil.copyfileobj(original, file, 2**22)
        file.seek(0)
        copied = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]  # has readinto
        with h5py.File(file, "r+") as root:
            texts = partial(np.array, dtype=h5py.string_dtype())
            _write_result(root, columns, about, texts)
        with source.open("rb") as original:
            if hashlib.file_digest(original, "sha256").digest() != copied:
                raise changed(str(source))


def _copy_zarr(
    source: Path, place: Path, columns: dict[str, Any], about: dict[str, Any], overwrite: bool
) -> None:
    """Copy a store; an existing one is exchanged for its copy, whose chunks are hard links."""
    import zarr

    in_place = overwrite and place.exists()
    partial = place.with_name(f"{place.name}.partial-{uuid.uuid4().hex[:8]}")
    before = files_below(source)

    def copy(file: str, copied: str) -> None:
        inside = Path(file).relative_to(source).parts
        if in_place and len(inside) > 1 and inside[0] not in ("var", "uns"):  # not modified below
            os.link(file, copied)
        else:
            shutil.copy2(file, copied)

    try:
        shutil.copytree(source, partial, copy_function=copy)
        # The old consolidated metadata do not include the new arrays.
        root: Any = zarr.open_group(partial, mode="r+", use_consolidated=False)
        _write_result(root, columns, about, list)
        with ignoring_warnings():  # consolidated metadata are not part of the zarr v3 standard yet
            zarr.consolidate_metadata(str(partial))
        if in_place:
            _keep_rights_below(partial, place)
        if files_below(source) != before:
            raise changed(str(source))
        if in_place:
            _exchange(partial, place)
        else:
            partial.rename(place)
    finally:
        remove_tree(partial)


def _keep_rights_below(copy: Path, original: Path) -> None:
    """Give folders and files of a copy the permissions and owners of those that they replace."""
    for top, _, names in os.walk(copy):
        for path in (Path(top), *(Path(top, name) for name in names)):
            former = original / path.relative_to(copy)
            if former.exists():
                keep_rights(path, former.stat(), former)


def _exchange(first: Path, second: Path) -> None:
    """Swap the names of two folders atomically; raise OSError if the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if not hasattr(libc, "renameat2"):
        raise OSError("this system cannot swap two folders in one step; write a copy instead")
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        raise OSError(f"{os.strerror(ctypes.get_errno())}; write a copy instead")


def _write_result(root: Any, columns: dict[str, Any], about: dict[str, Any], texts: Any) -> None:
    """Write columns of ``var`` and the entry of ``uns``.

    ``texts`` converts a list of names to the form in which it is stored.
    """
    from anndata.io import write_elem

    var = root["var"]
    order = [str(name) for name in var.attrs["column-order"]]
    for name, values in columns.items():
        write_elem(var, name, values)
    order += [name for name in columns if name not in order]
    var.attrs["column-order"] = texts(order)
    if "uns" not in root:
        write_elem(root, "uns", {})
    write_elem(root, "uns/bigfs", about)


_WRITERS = {".h5ad": _copy_h5ad, ".zarr": _copy_zarr}


def check_output(config: Config) -> None:
    """Raise InputError if an annotated copy is requested but cannot be written.

    It needs an AnnData on a local disk, all of its columns, and a local run directory.
    """
    if not config.output.anndata:
        return
    check_annotatable(config.input.uri)
    if config.input.columns is not None:
        raise InputError(
            "output.anndata: true writes a copy with all columns, but input.columns leaves some "
            "out. Set input.columns to null, or output.anndata to false."
        )
    if is_remote(config.run):
        raise InputError(
            "output.anndata: true writes to a local disk, but the run directory is in a bucket. "
            "Set it to false, and write a copy with 'bigfs export RUN cells.h5ad --annotate'."
        )


def output_stages(config: Config) -> list[Stage]:
    """Return a list with the stage of the annotated copy, empty if that is not requested."""
    if not config.output.anndata:
        return []
    source = check_annotatable(config.input.uri)

    def copy(inputs: Inputs, out: Scratch) -> None:
        scores = FeatureScores.open(inputs.finished["result"])
        assert isinstance(out.path, Path)
        files = files_below(source) if source.is_dir() else {"": (source.stat().st_size, 0)}
        out.check_free("annotated", sum(size for size, _ in files.values()))
        columns = columns_of_var(scores.ranking, scores.scores, selected_features(inputs.finished))
        names = inputs.blocks.source.feature_names
        run = config.method, config.model_dump(mode="json")
        copy_annotated(source, out.path / source.name, names, columns, *run)
        out.describe(copy=source.name)

    return [unplanned_stage("annotated", 2, {}, copy, sparse=True)]
