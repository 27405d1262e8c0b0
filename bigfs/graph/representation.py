"""Representation by which rows are compared: all features, components, or a stored array.

If the Gram matrix is small, the components are computed from it in one pass; regressions and
curves need it as well. Otherwise passes ``X'(XQ)`` from a random start find them. A last pass
writes the projected rows.

Wide dense rows are compared by components if a sample shows that these preserve their neighbors.
The share of the neighbors in all features that a graph of components contains is measured for some
rows; the last pass finds their true neighbors.
"""

from __future__ import annotations

import re
from itertools import chain, compress
from typing import Any

import numpy as np
from scipy.linalg import eigh

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import compact
from bigfs.blocks.kernels import (
    Gram,
    PartialGram,
    block_gram,
    block_xtv,
    complete_gram,
    float_tiles,
    merge_gram,
)
from bigfs.blocks.rowblocks import fold_parts, gram_bytes, gram_step, moments_step
from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.paths import OBJECT
from bigfs.core.seeds import rng
from bigfs.core.text import FROM_0
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB
from bigfs.graph.local import merge_exact, prepare_rows, search_exact, share_listed
from bigfs.graph.recall import (
    RecallEstimate,
    estimate_of,
    sample_rows,
    scattered_rows,
    search_pieces,
)
from bigfs.store.csr import first_unusable
from bigfs.store.fingerprint import fingerprint, fingerprint_of_rows, refuse_object
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Scratch, block_rows
from bigfs.store.several import sources_of
from bigfs.store.source import RandomAccessSource, Source, open_matrix

# Directions iterated beyond the requested components (oversampling).
_SPARE = 10
# Upper bound on the passes that find components without a Gram matrix; they end once the explained
# variance grows by less than this share.
MOST_PASSES, _LEAST_GROWTH = 8, 5e-4
PRINCIPAL = "principal"
# Dense data with more features and at least that many rows are compared by components: by the
# smallest of `_NUMBERS` that keeps this share of each row's nearest neighbors in a sample.
WIDE, MANY_ROWS = 256, 50_000
# Workers with less memory have no room for the following computations next to a loaded pynndescent.
_LEAST_LIMIT = 3 * 2**29
_NUMBERS, _LEAST_KEPT = (50, 100, 200), 0.85
# Rows of the sample, upper bound on its values, and number of stretches of the data that it is
# taken from. The components are fitted to four fifths of its rows and tested on the neighbors of
# the others.
_SAMPLED_ROWS, _SAMPLED_VALUES, _STRETCHES = 2000, 2**24, 8
# Number of rows whose true neighbors in all features are found, and of neighbors for each.
_CHECKED_ROWS, _CHECKED_NEIGHBORS = 100, 10
_CHECKED, _TRUE = "checked", "checked_indices"
_SEARCH_BYTES = 48 * MIB
# If a smaller share of a column remains after projecting out the others, it may be rounding error.
_LEAST_LEFT = 1e-5
# From this many rows per feature on, the Gram matrix is less work than passes.
_ROWS_OF_GRAM = 16
# A larger Gram matrix is not stored for later stages.
LARGEST_GRAM_BYTES = 64 * MIB
_HASHED_ROWS = 10_000


def check_representation(representation: str, metric: str) -> int | None:
    """Return the number of components of ``"pca:p"``, None for ``"raw"``.

    Raises
    ------
    InputError
        If it is neither, or the metric of principal components is not euclidean.
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


def components_enough(
    source: Source, preprocess: str, n_neighbors: int, memory_limit: int
) -> int | None:
    """Return the number of components that keep the neighbors of wide rows, or None to use rows.

    Parameters
    ----------
    source : Source
        Dense, with more than `WIDE` features and at least `MANY_ROWS` rows; otherwise None is
        returned. Some of its rows are read: stretches spread over all rows, or the first rows if
        the source has no random access.
    preprocess : str
    n_neighbors : int
    memory_limit : int
        Limit of a worker. With little memory, small parts of the raw rows are searched, without
        pynndescent.
    """
    if memory_limit < _LEAST_LIMIT or source.sparse or source.read_once:
        return None
    if source.n_features <= WIDE or (source.counted_samples or 0) < MANY_ROWS:
        return None
    try:
        rows = RowBlocks.from_any(_sample(source), transform=preprocess)
        X = rows.start_pass().read(0, rows.n_samples).astype(np.float32)
    except InputError:  # invalid values are reported when all rows are read
        return None
    if len(X) < 5 * n_neighbors:
        return None
    order = rng(0, "components").permutation(len(X))
    tests, fitted = np.split(order, [len(X) // 5])
    X -= X[fitted].mean(axis=0)
    wanted = min(_NUMBERS[-1], X.shape[1], len(fitted))
    projected = X @ _leading_components(X[fitted], wanted, rng(0, "components"))
    true, _ = search_exact(X, n_neighbors, X[tests], tests)
    for p in _NUMBERS:
        narrow = projected[:, :p]
        near, _ = search_exact(narrow, n_neighbors, narrow[tests], tests)
        if share_listed(near, true).mean() >= _LEAST_KEPT:
            return p
    return None


def _leading_components(
    sample: np.ndarray, n_components: int, generator: np.random.Generator
) -> np.ndarray:
    """Return the leading right singular vectors of centered rows, float32, from a random start."""
    sample = sample.astype(np.float32)
    start = generator.normal(size=(len(sample), n_components + 10)).astype(np.float32)
    Q, _ = np.linalg.qr(sample.T @ start)
    Q, _ = np.linalg.qr(sample.T @ (sample @ Q))
    scores = sample @ Q
    values, vectors = np.linalg.eigh(scores.T @ scores)
    order = np.argsort(-values, kind="stable")[:n_components]
    return np.ascontiguousarray(Q @ vectors[:, order])


def _sample(source: Source) -> np.ndarray:
    """Return sampled rows without NaN or inf, from stretches of the data or from its start."""
    n = min(_SAMPLED_ROWS, _SAMPLED_VALUES // source.n_features)
    parts: list[np.ndarray] = []
    if isinstance(source, RandomAccessSource):
        each = n // _STRETCHES
        for start in np.linspace(0, source.n_samples - each, _STRETCHES).astype(int).tolist():
            parts.append(np.asarray(source.read(start, start + each)))
    else:
        for block in source.iter_blocks(n):
            parts.append(np.asarray(block))
            if sum(map(len, parts)) >= n:
                break
    X = np.concatenate(parts)[:n]
    return X[np.isfinite(X).all(axis=1)]


def principal_rows(
    blocks: RowBlocks,
    n_components: int,
    random_state: int,
    scratch: Scratch,
    *,
    check: bool = False,
    gram: bool = False,
) -> tuple[RowBlocks, float, Gram | None]:
    """Project rows on their first principal components: passes that find them, one that writes.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    n_components : int
        At most ``min(n_samples, n_features)``.
    random_state : int
    scratch : Scratch
        Receives the projected rows, float32.
    check : bool, default=False
        If True, it also receives the true neighbors of some rows of dense data, for
        `recall_of_all`.
    gram : bool, default=False
        If True, the components are computed from the Gram matrix, in one pass.

    Returns
    -------
    projected : RowBlocks of shape (n_samples, n_components)
    explained : float
        Share of the variance that the components explain.
    products : Gram or None
        The Gram matrix, if it was formed.

    Raises
    ------
    InputError
        If there are fewer than ``n_components`` components.

    Notes
    -----
    Without a Gram matrix the components are found by LOBPCG (Knyazev, SIAM Journal on Scientific
    Computing 23(2), 2001, doi:10.1137/S1064827500366124), with at most `MOST_PASSES` iterations.
    It stops after the first iteration that increases the explained variance by less than a
    relative 5e-4.
    """
    most = min(blocks.n_samples, blocks.n_features)
    if n_components > most:
        raise InputError(
            f"representation 'pca:{n_components}' needs at most {most} components, since X has "
            f"{blocks.n_samples} rows and {blocks.n_features} features."
        )
    check = check and not blocks.sparse and blocks.n_samples > _CHECKED_NEIGHBORS
    checked = sample_rows(blocks.n_samples, random_state, _CHECKED_ROWS if check else 0)
    products = None
    with scratch.temporary("pca") as working:
        if gram:
            parts, queries = blocks.reduce(_gram_kernel, _merge_sums, checked, label="pca")
            products = complete_gram(parts, blocks.n_features)
            rest = blocks.n_features - n_components
            with single_thread():
                values, vectors = eigh(products.gram, subset_by_index=(rest, blocks.n_features - 1))
            components, total = _fixed_signs(vectors[:, ::-1]), float(products.gram.trace())
            mean = working.put("mean", products.mean)
        else:
            moments = blocks.moments()
            offset, total = blocks.offset, float(moments.squares.sum())
            mean = working.put("mean", moments.mean if offset is None else moments.mean - offset)
            components, values, queries = _subspace(
                blocks, mean, n_components, random_state, working, checked
            )
        stored = working.put("components", components)
        shape = (blocks.n_samples, n_components)
        out = scratch.create(PRINCIPAL, shape, np.float32, blocks.rows)
        sampled = None
        if check:
            rows = working.put("queries", np.concatenate(queries))
            sampled = scratch.put(_CHECKED, checked), rows
        true = blocks.reduce(_project_kernel, _nearer, mean, stored, out, sampled, label="project")
    if check:
        scratch.put(_TRUE, true[0])
    explained = float(values.sum()) / total if total > 0 else 1.0
    return open_principal(scratch.path, scratch), explained, products


def _subspace(
    blocks: RowBlocks,
    mean: ArrayRef,
    n_components: int,
    random_state: int,
    working: Scratch,
    checked: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return components, their squared singular values, and the rows to check.

    Each pass multiplies the residuals of the directions by the covariance. The iteration ends
    after the first pass that hardly increases the variance explained by the components.
    """
    d, width = blocks.n_features, min(blocks.n_features, n_components + _SPARE)
    block = rng(random_state, "pca").normal(size=(d, width))
    basis, image = np.zeros((d, 0)), np.zeros((d, 0))  # image is the covariance times the basis
    explained, queries = 0.0, []
    for number in range(MOST_PASSES):
        block = _beside(basis, block)
        if not block.shape[1]:  # few features: the basis already spans all directions
            break
        stored = working.put(working.unique("Q"), block)
        rows = checked if number == 0 else checked[:0]
        product, rows_of_pass = blocks.reduce(
            _covariance_kernel, _merge_sums, mean, stored, rows, label="pca"
        )
        working.remove(stored)
        queries += rows_of_pass
        basis, image = np.hstack([basis, block]), np.hstack([image, product])
        projected = basis.T @ image
        values, vectors = np.linalg.eigh((projected + projected.T) / 2)
        values, vectors = values[::-1][:width], vectors[:, ::-1][:, :width]
        before, explained = explained, float(values[:n_components].sum())
        if explained - before <= _LEAST_GROWTH * explained:
            break
        # The leading directions, and the part of the former ones that is orthogonal to them.
        former = np.eye(len(vectors), width)
        turn = np.hstack([vectors, _beside(vectors, former)])
        basis, image, vectors = basis @ turn, image @ turn, np.eye(turn.shape[1], width)
        block = image[:, :width] - basis[:, :width] * values
    components = _fixed_signs(basis @ vectors[:, :n_components])
    return components, values[:n_components], queries


def _beside(basis: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of what the columns of ``block`` add to ``basis``.

    Columns of which only rounding errors remain are dropped.
    """
    sizes = np.linalg.norm(block, axis=0)
    block, factor = np.linalg.qr(block - basis @ (basis.T @ block))
    if (np.abs(factor.diagonal()) > _LEAST_LEFT * sizes).all():
        return block
    block, factor = np.linalg.qr(block - basis @ (basis.T @ block))
    return block[:, np.abs(factor.diagonal()) > 0.5]


def with_member(settings: GraphConfig, data: Any) -> GraphConfig:
    """Return the graph settings with the member of an in-memory AnnData that they name, opened.

    Settings that name no such member are returned unchanged.

    Raises
    ------
    InputError
        If the data are not an AnnData in memory, or it has no such member.
    """
    place, _, name = settings.representation.rpartition("::")
    if place and not place.startswith(OBJECT):  # the member of a file
        return settings
    if not hasattr(data, "obsp"):
        raise InputError(
            f"graph.representation is '{name}', which is a part of an AnnData, but the data are "
            "not an AnnData. Use an AnnData or the path of one, or set it to 'raw'."
        )
    from bigfs.store.formats.annotated import member_of

    source = member_of(data, name)
    held = settings.model_copy()
    pieces = source.parts if settings.is_finished else source.iter_blocks(_HASHED_ROWS)
    held._member = source, fingerprint_of_rows(pieces, None)
    return held


def open_member(settings: GraphConfig) -> Any:
    """Open the array or graph that the representation names, ``"FILE::obsm/NAME"`` or ``obsp``."""
    from bigfs.store.formats.annotated import member_on_disk

    if settings._member is not None:
        return settings._member[0]
    place, _, name = settings.representation.rpartition("::")
    refuse_object(place)
    if sources_of(place) is not None:
        raise InputError(
            f"graph.representation: {name} is a part of one AnnData, and {place} is several files. "
            "Write them as one (anndata.concat), or leave graph.representation out."
        )
    return member_on_disk(as_location(place), name)


def content_of_member(settings: GraphConfig) -> str:
    """Return a key of the content of the member that `open_member` opens, or of its file."""
    if settings._member is not None:
        return settings._member[1]
    return fingerprint(settings.representation.rpartition("::")[0])


def rows_left_out(source: Source, blocks: RowBlocks) -> np.ndarray:
    """Return the rows of a member of an AnnData that the data leave out, int64.

    Raises
    ------
    InputError
        If it does not have one row for each row of the input, or its ids are those of the input
        in another order.
    """
    dropped = np.asarray(blocks.source.dropped, dtype=np.int64)
    n_all = blocks.n_samples + len(dropped)
    if source.n_samples != n_all:
        raise InputError(
            f"{source.uri} has {source.n_samples:,} rows, but the data have {n_all:,}. Both must "
            "have the same samples."
        )
    mismatch, difference, kept = "", 0, np.ones(n_all, dtype=bool)
    kept[dropped] = False
    member_ids = compress(chain.from_iterable(source.iter_index()), kept)
    own = chain.from_iterable(blocks.source.iter_index())
    for row, (given, expected) in enumerate(zip(member_ids, own, strict=False)):
        difference += hash(given) - hash(expected)  # zero in the end if the ids are the same set
        if not mismatch and given != expected:
            mismatch = f"row {row} is {given}, but {expected} in the data"
    if mismatch and not difference:
        raise InputError(
            f"{source.uri}: {mismatch}. Its samples must be in the order of the data. {FROM_0}"
        )
    return dropped


def copy_representation(source: RandomAccessSource, blocks: RowBlocks, scratch: Scratch) -> None:
    """Store the rows of an array of ``obsm`` in the form of principal components, float32.

    Raises
    ------
    InputError
        If it does not have one row for each row of the input, or a value is not finite.
    """
    kept = np.delete(np.arange(source.n_samples), rows_left_out(source, blocks))
    out = scratch.create(PRINCIPAL, (blocks.n_samples, source.n_features), np.float32, blocks.rows)
    for first, last in blocks.bounds:
        rows = kept[first:last]
        part = source.read(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]]
        if (unusable := first_unusable(part)) is not None:
            row, column, value = unusable
            where = f"row {int(rows[row])}, column {column}"
            raise InputError(f"{source.uri}: {where} is {value}. {FROM_0}")
        out.write(first, part.astype(np.float32))


def open_principal(path: Location, scratch: Scratch) -> RowBlocks:
    """Return the projected rows that `principal_rows` stored in a folder."""
    source = open_matrix(path / PRINCIPAL)
    assert isinstance(source, RandomAccessSource)
    return RowBlocks(source, scratch)


def principal_shape(shape: Shape, n_components: int) -> Shape:
    """Return the shape of the projected rows of data of the given shape."""
    rows = block_rows(n_components, 4, shape.rows)
    return Shape(shape.n_samples, n_components, 4, rows, shape.rows)


def gram_is_kept(n_features: int) -> bool:
    """Return True if a Gram matrix is small enough to be stored for later stages and updates."""
    return 8 * n_features**2 <= LARGEST_GRAM_BYTES


def gram_serves(shape: Shape, memory_limit: int) -> bool:
    """Return True if the components are computed from the Gram matrix: it is small enough."""
    fits = gram_bytes(shape, 0) <= task_budget(memory_limit)
    small = gram_is_kept(shape.n_features) and shape.n_samples >= _ROWS_OF_GRAM * shape.n_features
    return shape.n_entries is None and small and fits


def principal_steps(shape: Shape, n_components: int, gram: bool = False) -> tuple[Step, ...]:
    """Return the steps of `principal_rows`."""
    width = min(shape.n_features, n_components + _SPARE)
    sums = 8 * shape.n_features * width
    search = 0 if shape.n_entries is not None else _SEARCH_BYTES
    # Partial sums, the one in transit, the directions, and their product with a block.
    needed = (fold_parts(shape.n_blocks) + 3) * sums + 16 * shape.rows * width
    needed += search + 12 * (shape.block_entries or 0)  # entries in float64
    client = Step("the principal directions", 12 * sums, by_client=True)
    what = "a block and its principal components"
    if gram:
        project = pass_over(shape, what, 16 * shape.rows * n_components + search + 2 * sums)
        # The matrix, the solver's copy, and both forms of the stored result.
        needed = 40 * shape.n_features**2 + 16 * MIB
        matrices = Step("the principal directions", needed, by_client=True)
        return (gram_step(shape, 0), project, matrices)
    return (moments_step(shape), pass_over(shape, what, needed, times=MOST_PASSES + 1), client)


def _fixed_signs(components: np.ndarray) -> np.ndarray:
    """Return the columns with their largest entry positive."""
    largest = np.abs(components).argmax(axis=0)
    return components * np.sign(components[largest, np.arange(components.shape[1])])


def _covariance_kernel(
    X: np.ndarray, first_row: int, mean: ArrayRef, Q: ArrayRef, checked: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return ``Xc'(Xc Q)`` of a block, (n_features, width), float64, and its rows to check."""
    center, rows = mean.load(), _rows_among(X, first_row, checked)
    X = compact(X)
    return block_xtv(X, _projected(X, center, Q.load()), center), rows


def _gram_kernel(
    X: np.ndarray, first_row: int, checked: np.ndarray
) -> tuple[PartialGram, list[np.ndarray]]:
    """Return the products of the columns of a block, and its rows to check."""
    return block_gram(X, None), _rows_among(X, first_row, checked)


def _rows_among(X: np.ndarray, first_row: int, checked: np.ndarray) -> list[np.ndarray]:
    return [X[checked[(checked >= first_row) & (checked < first_row + X.shape[0])] - first_row]]


def _merge_sums(
    a: tuple[Any, list[np.ndarray]], b: tuple[Any, list[np.ndarray]]
) -> tuple[Any, list[np.ndarray]]:
    """Add the sums of two sets of rows, and concatenate their rows to check."""
    is_gram = isinstance(a[0], PartialGram)
    return merge_gram(a[0], b[0]) if is_gram else a[0] + b[0], a[1] + b[1]


def _projected(X: Any, center: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return ``(X - 1 m') Q`` of a block, (n_rows, width), float64."""
    if hasattr(X, "indptr"):
        projected: np.ndarray = X.astype(np.float64) @ directions
        projected -= center @ directions
        return projected
    projected = np.empty((len(X), directions.shape[1]))
    for part, rows in float_tiles(X, center):
        projected[part] = rows @ directions
    return projected


def _project_kernel(
    X: np.ndarray,
    first_row: int,
    mean: ArrayRef,
    components: ArrayRef,
    out: ArrayRef,
    sampled: tuple[ArrayRef, ArrayRef] | None,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Write the components of a block; return its rows nearest to the checked ones."""
    out.write(first_row, _projected(X, mean.load(), components.load()))
    if sampled is None:
        return None
    own, queries = sampled[0].load(), prepare_rows(sampled[1].load(), "euclidean")
    rows = prepare_rows(X, "euclidean", first_row + np.arange(len(X)))
    return search_pieces(rows, first_row, queries, own, _CHECKED_NEIGHBORS, "euclidean")


def _nearer(a: Any, b: Any) -> Any:
    return None if a is None else merge_exact(a, b)


def recall_of_all(indices: ArrayRef, path: Location) -> RecallEstimate | None:
    """Return the share of true neighbors in all features that a graph of components contains.

    Parameters
    ----------
    indices : ArrayRef of shape (n_samples, n_neighbors), int32
        Neighbors found by components.
    path : Path or ObjectPath
        Folder where `principal_rows` stored the true neighbors; None is returned if it did not.
    """
    if not (path / _TRUE).exists():
        return None
    rows, true = ArrayRef.at(path / _CHECKED).load(), ArrayRef.at(path / _TRUE).load()
    k = min(true.shape[1], indices.shape[1])
    return estimate_of(share_listed(scattered_rows(rows, indices)[:, :k], true[:, :k]), k)
