"""zarr arrays and groups, versions 2 and 3."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError, StorageError
from bigfs.store.source import RandomAccessSource, check_names, check_shape, work_dtype

logger = logging.getLogger("bigfs")
_SHOWN = 3


class ZarrSource(RandomAccessSource):
    """A two-dimensional zarr array of numbers.

    Pickles to its address and metadata; the array is opened again where it is unpickled. An
    array on a store that is not a local folder is kept as an object.
    """

    def __init__(self, array: Any, uri: str, path: str | None, attributes: dict[str, Any]) -> None:
        self.uri = uri
        check_shape(array.shape, uri)
        self.n_samples, self.n_features = (int(size) for size in array.shape)
        self.dtype = work_dtype(array.dtype, uri)
        self.chunk_rows = int((array.shards or array.chunks)[0])
        names = attributes.get("feature_names")
        self.feature_names = None if names is None else [str(name) for name in names]
        check_names(self.feature_names, self.n_features, uri)
        self.checked = "bigfs_store" in attributes
        self._path = path
        self._array = array
        if path is not None:
            self._check_chunks(array, Path(path))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        array = self._array if self._array is not None else _open_array(str(self._path))
        try:
            rows = np.asarray(array[start:stop])
        except (OSError, ValueError, RuntimeError) as error:
            raise StorageError(
                f"{self.uri}: rows {start} to {stop} cannot be read ({type(error).__name__}: "
                f"{error}). Check it with: bigfs inspect --verify {self.uri}"
            ) from error
        return rows.astype(self.dtype, copy=False)

    def _check_chunks(self, array: Any, path: Path) -> None:
        """A missing chunk reads as zeros: corruption in our stores, said aloud in others'."""
        missing = missing_chunks(array, path)
        if not missing:
            return
        shown = ", ".join(missing[:_SHOWN])
        if self.checked:
            raise CorruptStoreError(
                f"{self.uri}: {len(missing)} chunks are missing ({shown}) and would read as "
                "zeros. Ingest the source again."
            )
        logger.warning(
            "%s: %d chunks were never written (%s) and read as the fill value %s.",
            self.uri, len(missing), shown, array.fill_value,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._path is not None:
            state["_array"] = None
        # 50,000 names are a megabyte, and no task needs them.
        state["feature_names"] = None
        return state


@lru_cache(maxsize=16)
def _open_array(path: str) -> Any:
    import zarr

    return zarr.open_array(path, mode="r")


def missing_chunks(array: Any, path: Path) -> list[str]:
    """Return the keys of the chunks (or shards) of a local array that do not exist."""
    grid = array.shards or array.chunks
    counts = [-(-size // step) for size, step in zip(array.shape, grid, strict=True)]
    if array.metadata.zarr_format == 3:
        encode = array.metadata.encode_chunk_key
    else:
        separator = array.metadata.dimension_separator

        def encode(index: tuple[int, ...]) -> str:
            return separator.join(str(i) for i in index)

    expected = [encode(index) for index in np.ndindex(*counts)]
    there = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    return [key for key in expected if key not in there]


def open_zarr(node: Any, variable: str | None) -> ZarrSource:
    """Open a zarr array, or ``X`` (or ``variable``) of a group."""
    import zarr

    uri = str(node.store_path)
    attributes = dict(node.attrs)
    if isinstance(node, zarr.Group):
        name = variable or "X"
        members = sorted(node.array_keys())
        if name not in members:
            raise InputError(
                f"{uri} is a zarr group without an array {name!r}. "
                f"It has {', '.join(members) or 'no arrays'}; name one with input.variable."
            )
        node = node[name]
    elif variable is not None:
        raise InputError(f"{uri} is one array; input.variable must be null. Got {variable!r}.")
    store = node.store_path.store
    root = getattr(store, "root", None)
    local = type(store) is zarr.storage.LocalStore and root is not None
    path = str(Path(root).absolute() / node.store_path.path) if local else None
    return ZarrSource(node, uri.removeprefix("file://"), path, attributes)


def open_file(path: Path, variable: str | None) -> ZarrSource:
    """Open a zarr folder."""
    import zarr

    try:
        node = zarr.open(str(path), mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is a folder, but no zarr array or group ({type(error).__name__})."
        ) from None
    return open_zarr(node, variable)
