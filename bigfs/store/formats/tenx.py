"""HDF5 files of Cell Ranger (10x): counts of features by cells; rows here are the cells."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.formats.hdf5 import H5Place, find, open_h5
from bigfs.store.formats.parts import CSRParts
from bigfs.store.location import Location
from bigfs.store.source import Source, check_names
from bigfs.store.values import decoding

logger = logging.getLogger("bigfs")


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open a filtered or raw feature-barcode matrix in HDF5, or an array of another file.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, where they are given.
    """
    uri, place = str(path), str(path.absolute())
    with open_h5(path) as file, decoding(uri):
        is_counts = find(file, "matrix/features/name", uri) is not None
        if not is_counts and find(file, "matrix/indptr", uri) is not None:
            raise InputError(
                f"{uri} is not a feature-barcode matrix of Cell Ranger 3 or later. Read it with "
                "scanpy and write a .h5ad."
            )
    if not is_counts or variable is not None:
        from bigfs.store.formats import h5

        return h5.open_file(path, variable, **cube)
    with open_h5(path) as file, decoding(uri):
        shape = find(file, "matrix/shape", uri)
        sizes = np.asarray(shape[:2])[::-1] if shape is not None and shape.shape == (2,) else ()
        source = CSRParts(H5Place(place, "matrix"), sizes, uri)
        with H5Place(place, "matrix/features").open() as about:
            texts = []
            for name in ("name", "id"):
                if about[name].shape != (source.n_features,):
                    raise InputError(f"{uri}: there is not one {name} for each feature.")
                values = about[name][0 : source.n_features].tolist()
                texts.append([v.decode() if isinstance(v, bytes) else str(v) for v in values])
        source.feature_names = unique_names(texts[0], texts[1], uri)
    return source


def unique_names(names: list[str], ids: list[str], uri: str) -> list[str]:
    """Return names, with the id behind those that several features have."""
    counts = Counter(names)
    unique = [
        name if counts[name] == 1 else f"{name} ({feature})"
        for name, feature in zip(names, ids, strict=True)
    ]
    shared = sum(1 for count in counts.values() if count > 1)
    if shared:
        logger.info("%s: %d names belong to several features; their ids are appended.", uri, shared)
    check_names(unique, len(unique), uri)
    return unique
