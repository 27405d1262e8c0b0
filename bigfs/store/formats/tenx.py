"""Counts of single cells: HDF5 of Cell Ranger (10x) and loom, and names next to .mtx files.

Rows are cells, and their ids are the barcodes. By default only one type of the features of 10x is
read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.csr import as_block
from bigfs.store.formats import hdf5
from bigfs.store.formats.cube import CubeSource, open_transposed
from bigfs.store.formats.parts import ByBands, CSRParts, StoredTexts, all_texts, check_length
from bigfs.store.location import Location
from bigfs.store.source import Source, check_names, check_no_variable, listed, no_column
from bigfs.store.values import check_vector, decoding

logger = logging.getLogger("bigfs")
GENES = "Gene Expression"
_BARCODE = "barcode"


def open_file(
    path: Location,
    variable: str | None,
    feature_types: Sequence[str] | None = None,
    layer: str | None = None,
) -> Source:
    """Open counts in HDF5, of Cell Ranger or loom.

    Parameters
    ----------
    path : Path or ObjectPath
    variable : str or None
        Genome, in files of Cell Ranger 2, or name of another array of the file.
    feature_types : sequence of str or None, default=None
        Types of features to read, in files of Cell Ranger 3. None: genes, if there are several
        types.
    layer : str or None, default=None
        Layer of a loom file. None: its main matrix.
    """
    uri = str(path)
    with hdf5.open_h5(path) as file, decoding(uri):
        if hdf5.find(file, "row_attrs", uri) is not None:
            check_no_variable(path, variable)
            return _open_loom(file, path, layer)
        genomes = hdf5.genomes_of(file)
        if variable is not None and variable not in genomes:
            if feature_types is not None:
                raise InputError(
                    f"{uri}::{variable} has no feature types. Remove input.feature_types."
                )
            return hdf5.open_array(path, variable)
        if variable is None and len(genomes) > 1:
            raise InputError(
                f"{uri} has counts of several genomes, {listed(genomes)}. Name one with "
                "input.variable (--variable, variable=)."
            )
        genome = variable or genomes[0]
        shape = hdf5.find(file, f"{genome}/shape", uri)
        sizes = np.asarray(shape[:2])[::-1] if shape is not None and shape.shape == (2,) else ()
        source = CSRParts(partial(hdf5.open_member, str(path.absolute()), genome), sizes, uri)
        about = [f"{genome}/features/{name}" for name in ("name", "id", "feature_type")]
        if hdf5.find(file, f"{genome}/features", uri) is None:
            about = [f"{genome}/gene_names", f"{genome}/genes"]
        texts = _texts(file, path, about, source.n_features)
        if len(texts) < 2:
            raise InputError(f"{uri}: {genome} has no feature names. Write it again.")
        source.index = _BARCODE
        source.ids = _stored_texts(file, path, f"{genome}/barcodes", source.n_samples)
    return of_types(source, *texts, feature_types=feature_types)


def _open_loom(file: Any, path: Location, layer: str | None) -> Source:
    """Open a loom file, which has a dense array of genes by cells with mostly zeros."""
    uri = str(path)
    name = "matrix" if layer is None else f"layers/{layer}"
    if hdf5.find(file, name, uri) is None:
        layers = hdf5.find(file, "layers", uri)
        known = "no layers" if layers is None else listed(sorted(layers))
        raise InputError(f"{uri} has no layer {layer!r}. It has {known}.")
    matrix = partial(hdf5.open_member, str(path.absolute()), name)
    source = DenseAsSparse(uri, partial(open_transposed, matrix), None, None)
    source.grid = None
    about = [f"row_attrs/{key}" for key in ("Gene", "var_names", "Accession")]
    genes = _texts(file, path, about, source.n_features)
    if genes:
        source.feature_names = unique_names(genes[0], genes[-1], uri)
    for key in ("obs_names", "CellID"):  # written by anndata, and by all others
        name = f"col_attrs/{key}"
        if hdf5.find(file, name, uri) is not None:
            source.index, source.ids = key, _stored_texts(file, path, name, source.n_samples)
    return source


def _texts(file: Any, path: Location, names: list[str], length: int) -> list[list[str]]:
    """Return the texts of each of the named arrays that exists."""
    uri = str(path)
    there = [name for name in names if hdf5.find(file, name, uri) is not None]
    return [all_texts(_stored_texts(file, path, name, length), length, uri) for name in there]


def _stored_texts(file: Any, path: Location, name: str, length: int) -> StoredTexts:
    """Return an array of texts, which must have one for each feature or cell."""
    check_length(hdf5.member(file, name, str(path)).shape, length, name, str(path))
    return StoredTexts(partial(hdf5.open_member, str(path.absolute()), name))


def of_types(
    source: CSRParts | ByBands,
    names: list[str],
    ids: list[str],
    types: list[str] | None = None,
    *,
    feature_types: Sequence[str] | None,
) -> Source:
    """Return the source restricted to features of the requested types, with their names.

    Parameters
    ----------
    source : CSRParts or ByBands
        Changed in place.
    names, ids : list of str
        Names and ids of all features; the id is appended to a name that several features share.
    types : list of str or None, default=None
        Types of all features. None: the file has no types.
    feature_types : sequence of str or None
        Types to read. None: genes, or the only type.

    Raises
    ------
    InputError
        If there are no features of a requested type, or none is requested and there are several
        types without genes.
    """
    counts = Counter(types or ())
    usual = [GENES] if GENES in counts else list(counts)
    wanted = usual if feature_types is None else list(feature_types)
    known = listed(sorted(counts)) if counts else "no feature types"
    unknown = [name for name in wanted if name not in counts]
    if unknown:
        raise InputError(f"{source.uri} has no features of type {unknown[0]!r}. It has {known}.")
    if feature_types is None and len(wanted) > 1:
        raise InputError(
            f"{source.uri} has features of several types, {known}. Choose with "
            "input.feature_types (--feature-types, feature_types=)."
        )
    if len(wanted) < len(counts):
        kept = np.flatnonzero([name in wanted for name in types or ()])
        left = ", ".join(f"{n:,} of {t}" for t, n in sorted(counts.items()) if t not in wanted)
        source.keep(kept)
        source.notes = [f"left out the features that are not {', '.join(wanted)}: {left} "
                        "(input.feature_types)"]  # fmt: skip
        names, ids = [names[j] for j in kept], [ids[j] for j in kept]
    source.feature_names = unique_names(names, ids, source.uri)
    return source


def unique_names(names: list[str], ids: list[str], uri: str) -> list[str]:
    """Return names, with the id appended to those that several features share."""
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


class DenseAsSparse(CubeSource):
    """Dense array of mostly zeros, returned as sparse blocks, as anndata does."""

    sparse = True

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive CSR blocks of at most ``rows`` rows."""
        for block in super().iter_rows(rows):
            yield as_block(block, self.dtype)


def read_column(path: Location, name: str) -> np.ndarray:
    """Return an attribute of the cells (``col_attrs``) of a loom file."""
    uri = str(path)
    with hdf5.open_h5(path) as file, decoding(uri):
        known = sorted(file["col_attrs"]) if hdf5.find(file, "col_attrs", uri) is not None else []
        if name not in known:
            raise no_column(uri, name, known)
        array = hdf5.H5Rows(hdf5.find(file, f"col_attrs/{name}", uri), uri)
        check_vector(array.shape, "S1" if array.dtype.kind == "O" else array.dtype, uri)
        values = array[0 : array.shape[0]]
    return values.astype(np.str_) if values.dtype.kind in "OS" else values
