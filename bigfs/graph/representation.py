"""The representation that rows are compared by: all features, components, or a stored array.

A streaming randomized PCA: two fused passes ``X'(XQ)`` from a random start find the subspace,
a third writes the projected rows.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import tile_rows
from bigfs.blocks.rowblocks import fold_parts, moments_step
from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.core.errors import InputError
from bigfs.core.seeds import rng
from bigfs.core.text import FROM_0
from bigfs.core.uris import OBJECT
from bigfs.store.chunking import block_rows
from bigfs.store.fingerprint import fingerprint, fingerprint_of_rows, refuse_object
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Scratch
from bigfs.store.source import RandomAccessSource, open_matrix
from bigfs.store.values import first_unusable

_SPARE = 10
PRINCIPAL = "principal"
_HASHED_ROWS = 10_000


def check_representation(representation: str, metric: str) -> int | None:
    """Return the number of components of ``"pca:p"``, None for ``"raw"``.

    Raises
    ------
    InputError
        If it is none of these, or the metric of principal components is not euclidean.
    """
    if representation == "raw":
        return None
    match = re.fullmatch(r"pca:([1-9][0-9]*)", str(representation))
    if match is None:
        raise InputError(
            f"representation must be 'raw' or 'pca:p', for instance 'pca:50'. Got "
            f"{representation!r}."
        )
    if metric != "euclidean":
        raise InputError(
            f"representation '{representation}' needs metric 'euclidean', since centering "
            f"changes angles. Got metric '{metric}'."
        )
    return int(match.group(1))


def principal_rows(
    blocks: RowBlocks, n_components: int, random_state: int, scratch: Scratch
) -> tuple[RowBlocks, float]:
    """Project rows to their first principal components: two passes, and one that writes.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    n_components : int
        At most ``min(n_samples, n_features)``.
    random_state : int
    scratch : Scratch
        Gets the projected rows, float32.

    Returns
    -------
    projected : RowBlocks of shape (n_samples, n_components)
    explained : float
        Share of the variance that the components hold.

    Raises
    ------
    InputError
        If there are not so many components.

    Notes
    -----
    Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 53(2), 2011,
    algorithm 4.4 with one power iteration, doi:10.1137/090771806.
    """
    most = min(blocks.n_samples, blocks.n_features)
    if n_components > most:
        raise InputError(
            f"representation 'pca:{n_components}' needs at most {most} components, since X has "
            f"{blocks.n_samples} rows and {blocks.n_features} features."
        )
    moments = blocks.moments()
    center = moments.mean if blocks.offset is None else moments.mean - blocks.offset
    width = min(blocks.n_features, n_components + _SPARE)
    Q = rng(random_state, "pca").normal(size=(blocks.n_features, width))
    mean = scratch.put(scratch.unique("mean"), center)
    for _ in range(2):
        Q, _ = np.linalg.qr(Q)
        stored = scratch.put(scratch.unique("Q"), Q)
        product = blocks.reduce(_covariance_kernel, np.add, mean, stored, label="pca")
        projected = Q.T @ product
        values, vectors = np.linalg.eigh((projected + projected.T) / 2)
        order = np.argsort(-values)[:n_components]
        components = _fixed_signs(Q @ vectors[:, order])
        Q = product
        scratch.remove(stored)
    stored = scratch.put(scratch.unique("components"), components)
    shape = (blocks.n_samples, n_components)
    out = scratch.create(PRINCIPAL, shape, np.float32, blocks.rows)
    blocks.map_blocks(_project_kernel, mean, stored, out, label="project")
    scratch.remove(stored, mean)
    total = float(moments.squares.sum())
    explained = float(values[order].sum()) / total if total > 0 else 1.0
    return open_principal(scratch.path, scratch), explained


def with_member(settings: GraphConfig, data: Any) -> GraphConfig:
    """Return settings of a graph with the part that they name of an AnnData in memory, opened.

    Raises
    ------
    InputError
        If the data are no AnnData in memory, or it has no such member.
    """
    place, _, name = settings.representation.rpartition("::")
    if place and not place.startswith(OBJECT):  # of a file
        return settings
    if not hasattr(data, "obsp"):
        raise InputError(
            f"graph.representation is '{name}', which is a part of an AnnData, and the data are "
            "none. Give an AnnData, the path of one, or 'raw'."
        )
    from bigfs.store.formats.annotated import member_of

    source = member_of(data, name)
    held = settings.model_copy()
    pieces = source.parts if settings.is_finished else source.iter_blocks(_HASHED_ROWS)
    held._member = source, fingerprint_of_rows(pieces, None)
    return held


def open_member(settings: GraphConfig) -> Any:
    """Open the array or graph that the representation names, ``"FILE::obsm/NAME"`` or ``obsp``."""
    from bigfs.store.formats.annotated import open_obsm, open_obsp

    if settings._member is not None:
        return settings._member[0]
    place, _, name = settings.representation.rpartition("::")
    refuse_object(place)
    return (open_obsp if settings.is_finished else open_obsm)(as_location(place), name)


def content_of_member(settings: GraphConfig) -> str:
    """Return a key of the content of what `open_member` opens, or of the file that it is in."""
    if settings._member is not None:
        return settings._member[1]
    return fingerprint(settings.representation.rpartition("::")[0])


def copy_representation(source: RandomAccessSource, blocks: RowBlocks, scratch: Scratch) -> None:
    """Store the rows of an array of ``obsm`` as those of principal components are, float32.

    Raises
    ------
    InputError
        If it has not a row for each row of the input, or a value is not finite.
    """
    uri, dropped = source.uri, np.asarray(blocks.source.dropped, dtype=np.int64)
    if source.n_samples != blocks.n_samples + len(dropped):
        raise InputError(
            f"{uri} has {source.n_samples:,} rows, and the data have "
            f"{blocks.n_samples + len(dropped):,}. It must be of the same samples."
        )
    kept = np.delete(np.arange(source.n_samples), dropped)
    out = scratch.create(PRINCIPAL, (blocks.n_samples, source.n_features), np.float32, blocks.rows)
    for first, last in blocks.bounds:
        rows = kept[first:last]
        part = source.read(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]]
        place = first_unusable(part)
        if place is not None:
            row, column = int(rows[place[0]]), place[1]
            raise InputError(f"{uri}: row {row}, column {column} is {part[place]}. {FROM_0}")
        out.write(first, part.astype(np.float32))


def open_principal(path: Location, scratch: Scratch) -> RowBlocks:
    """Return the projected rows that `principal_rows` stored in a folder."""
    source = open_matrix(path / PRINCIPAL)
    assert isinstance(source, RandomAccessSource)
    return RowBlocks(source, scratch)


def principal_shape(shape: Shape, n_components: int) -> Shape:
    """Return the shape of the projected rows of data of a shape."""
    rows = block_rows(n_components, 4, shape.rows)
    return Shape(shape.n_samples, n_components, 4, rows, shape.rows)


def principal_steps(shape: Shape, n_components: int) -> tuple[Step, ...]:
    """Return the steps of `principal_rows`."""
    width = min(shape.n_features, n_components + _SPARE)
    sums = 8 * shape.n_features * width
    # Sums, the one on its way, directions, their product with a block.
    parts = fold_parts(shape.n_blocks) + 3
    needed = parts * sums + 16 * shape.rows * width
    needed += 12 * (shape.block_entries or 0)  # in float64
    client = Step("the principal directions", 8 * sums, by_client=True)
    what = "a block and its principal components"
    return (moments_step(shape), pass_over(shape, what, needed, times=3), client)


def _fixed_signs(components: np.ndarray) -> np.ndarray:
    """Return the columns with their largest entry positive."""
    largest = np.abs(components).argmax(axis=0)
    return components * np.sign(components[largest, np.arange(components.shape[1])])


def _covariance_kernel(X: np.ndarray, first_row: int, mean: ArrayRef, Q: ArrayRef) -> np.ndarray:
    """Return ``Xc'(Xc Q)`` of one block, (n_features, width), float64."""
    center, directions = mean.load(), Q.load()
    if hasattr(X, "indptr"):
        projected = _project_entries(X, center, directions)
        sums = X.astype(np.float64).T @ projected
        sums -= np.multiply.outer(center, projected.sum(axis=0))
        return np.asarray(sums)
    total = np.zeros(directions.shape)
    step = tile_rows(X.shape[1])
    for begin in range(0, len(X), step):
        tile = X[begin : begin + step] - center
        total += tile.T @ (tile @ directions)
    return total


def _project_entries(X: Any, center: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return ``(X - 1 m') Q`` of a CSR block, (n_rows, width), float64."""
    projected: np.ndarray = X.astype(np.float64) @ directions
    projected -= center @ directions
    return projected


def _project_kernel(
    X: np.ndarray, first_row: int, mean: ArrayRef, components: ArrayRef, out: ArrayRef
) -> None:
    center, directions = mean.load(), components.load()
    if hasattr(X, "indptr"):
        out.write(first_row, _project_entries(X, center, directions).astype(np.float32))
        return
    projected = np.empty((len(X), directions.shape[1]), np.float32)
    step = tile_rows(X.shape[1])
    for begin in range(0, len(X), step):
        projected[begin : begin + step] = (X[begin : begin + step] - center) @ directions
    out.write(first_row, projected)
