"""The selected columns of an AnnData as an AnnData: what describes its rows and columns stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.runtime.progress import track
from bigfs.store.formats.annotated import ENCODING, SPARSE, append_lines, on_disk
from bigfs.store.source import as_path, open_matrix

# Values of a matrix that are copied at a time.
_PIECE = 2**21


def original_of(
    uri: str, layer: str | None, n_samples: int, names: list[str] | None
) -> Path | None:
    """Return the AnnData that a run read, if it is on a local disk and has the same shape still."""
    place = as_path(uri)
    if not isinstance(place, Path) or place.suffix not in (".h5ad", ".zarr") or names is None:
        return None
    try:
        source = open_matrix(place, layer=layer)
        with on_disk(place) as tree:
            is_old = any(hasattr(tree.frame(name), "shape") for name in ("obs", "var"))
    except InputError:
        return None
    same = source.feature_names == names and source.n_samples == n_samples
    return place if same and layer != "raw" and not is_old else None


def write_subset(file: IO[bytes], original: Path, kept: np.ndarray) -> None:
    """Write an AnnData with some of its columns; all else stays, and sparse matrices sparse.

    Parameters
    ----------
    file : file open for writing and reading
    original : Path
        A .h5ad file or an AnnData zarr store. Its matrices are read piece by piece.
    kept : ndarray of shape (n_kept,), int64
        The columns, in the order to write.
    """
    import h5py
    from anndata.io import read_elem, write_elem

    with on_disk(original) as tree, h5py.File(file, "w") as root:
        root.attrs.update({ENCODING: "anndata", "encoding-version": "0.1.0"})
        source = tree.root

        def copy(name: str) -> None:
            if tree.is_zarr:
                write_elem(root, name, read_elem(source[name]))
            else:
                source.copy(source[name], root, name)

        def of_columns(group: str, take: Callable[[Any], Any]) -> None:
            taken = {key: take(read_elem(source[group][key])) for key in source[group]}
            write_elem(root, group, taken)

        for name in source:
            if name == "var":
                write_elem(root, name, read_elem(source[name]).iloc[kept])
            elif name == "varm":
                of_columns(name, lambda values: _rows(values, kept))
            elif name == "varp":
                of_columns(name, lambda values: values[kept][:, kept])
            elif name not in ("X", "layers"):
                copy(name)
        matrices = [name for name in ("X",) if name in source]
        if "layers" in source:
            write_elem(root, "layers", {})
            matrices += [f"layers/{name}" for name in source["layers"]]
        for name in matrices:
            if source[name].attrs.get(ENCODING) == "null":
                copy(name)
            else:
                _write_matrix(root, name, source[name], kept)


def _rows(values: Any, kept: np.ndarray) -> Any:
    return values.iloc[kept] if hasattr(values, "iloc") else values[kept]


def _write_matrix(root: Any, name: str, node: Any, kept: np.ndarray) -> None:
    """Write some columns of a dense or sparse matrix, piece by piece."""
    from anndata.io import sparse_dataset

    kind, matrix, packed = node.attrs.get(ENCODING), node, node
    if kind in SPARSE:
        matrix, packed = sparse_dataset(node), node["data"]
    elif not hasattr(node, "shape"):
        raise InputError(f"{name} is stored as {kind}, which is not written. Export to .zarr.")
    by_column = kind == "csc_matrix"
    options = {"compression": packed.compression} if hasattr(packed, "id") else {}
    if kind not in SPARSE:
        shape = (node.shape[0], len(kept))
        target = root.create_dataset(name, shape, node.dtype, **(options if min(shape) else {}))
        target.attrs.update({ENCODING: "array", "encoding-version": "0.2.0"})
    entries = packed.shape[0] if kind in SPARSE else node.shape[0] * node.shape[1]
    total = len(kept) if by_column else matrix.shape[0]
    per_line = entries // max(1, matrix.shape[1 if by_column else 0])
    with track(f"export {name}", total, "columns" if by_column else "rows") as progress:
        for start, stop in _pieces(total, max(1, _PIECE // max(1, per_line))):
            if kind not in SPARSE:
                target[start:stop] = matrix[start:stop][:, kept]
            else:
                lines = matrix[:, kept[start:stop]] if by_column else matrix[start:stop][:, kept]
                lines = lines.asformat(kind[:3])
                lines.sort_indices()
                append_lines(root, name, lines, is_first=start == 0, **options)
            progress.advance(stop - start)


def _pieces(total: int, step: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + step, total)) for start in range(0, total, step))
