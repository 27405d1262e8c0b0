"""The matrix as row blocks: the only place where a pass over the data becomes tasks.

A pass is one streaming read of X. Each task reads one block, transforms it, passes it to a kernel
and returns a small result; partial results are merged in a fixed tree order.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bigfs.blocks import csr_kernels, kernels, preprocess
from bigfs.blocks.kernels import Gram, Moments, PartialGram
from bigfs.blocks.preprocess import Transform
from bigfs.core.cost import Shape, Step, loop_seconds, pass_over, product_seconds
from bigfs.core.errors import InputError, check_choice, row_in_the_original
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.text import FROM_0
from bigfs.core.units import parse_bytes
from bigfs.runtime.execute import TREE_ARITY, map_reduce, run_tasks
from bigfs.runtime.progress import silenced
from bigfs.runtime.scope import crosses_processes
from bigfs.store.cleaning import refusal
from bigfs.store.columns import different_units
from bigfs.store.csr import check_dense, first_unusable
from bigfs.store.ingest import ingest
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds, block_rows, check_block_rows
from bigfs.store.source import RandomAccessSource, Source, open_matrix, pickled_for_task
from bigfs.store.values import SMALLEST

logger = logging.getLogger("bigfs")

# Standard deviations of features that differ by more than this factor are reported.
_SCALES = 1e3
# Rows per block that are inspected for that.
_SCALE_ROWS = 1000
# Sources in this process's memory: the task graph refers to them by token and never contains them.
_local_sources: weakref.WeakValueDictionary[int, RandomAccessSource] = weakref.WeakValueDictionary()
_tokens = itertools.count()


@dataclass(frozen=True)
class BlockReader:
    """Reads and transforms rows of X inside a task; pickles to a few hundred bytes."""

    source: RandomAccessSource | None  # a source that other processes can open
    token: int  # key of a source that lives in this process only, if ``source`` is None
    transform: Transform
    sparse: bool = False  # True if rows are read in CSR form

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "source": pickled_for_task(self.source)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, source=pickle.loads(state["source"]))

    def read(self, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop``, transformed; callers must not write into them.

        Raises
        ------
        InputError
            At the first value that is not finite or too large to be squared, with its row and
            column.
        """
        source = self.source if self.source is not None else _local_sources[self.token]
        # Values are checked at every read: a store may have changed since it was checked.
        # If zeros stay zeros, entries are transformed before the block is made dense.
        if self.sparse or (source.sparse and self.transform.columns is None):
            X = source.read_rows(start, stop)
        else:
            X = source.read(start, stop)
        unusable = first_unusable(X)
        if unusable is not None:
            raise refusal(source, start + unusable[0], *unusable[1:])
        X = self.transform.apply(X, start)
        return X if self.sparse or isinstance(X, np.ndarray) else X.toarray()


class RowBlocks:
    """A matrix as consecutive row blocks, with the passes that the methods consist of.

    Parameters
    ----------
    source : RandomAccessSource
        Source of the rows. If it lives in this process's memory, the active scheduler must run in
        this process too; `from_any` ensures that.
    scratch : Scratch
        Storage through which small arrays are shared with the tasks.
    rows : int or None, default=None
        Rows per block, a whole number of chunks. None: 16 to 64 MB per block.
    sparse : bool, default=False
        If True, kernels receive CSR blocks if the source is sparse; otherwise blocks are made
        dense when they are read.

    Attributes
    ----------
    n_samples, n_features : int
    dtype : numpy.dtype
        float32 or float64: type of the blocks that kernels receive.
    rows : int
        Rows per block.
    bounds : list of (int, int)
        First row and one past the last row of every block.
    sparse : bool
        True if blocks are in CSR form.
    passes : int
        Number of passes over X so far.
    keeps_gram : bool
        True if the Gram matrix is kept in scratch once it is computed, for several methods on the
        same data.
    former_gram : PartialGram or None
        Gram matrix of the first rows, or of all, if it is known: with `keeps_gram`, only the other
        rows are added.
    """

    def __init__(
        self,
        source: RandomAccessSource,
        scratch: Scratch,
        rows: int | None = None,
        *,
        sparse: bool = False,
    ) -> None:
        n_samples = source.n_samples
        if n_samples is None:
            raise InputError(f"{source.uri}: the number of rows is not known. Ingest it first.")
        self.source = source
        self.scratch = scratch
        self.n_samples, self.n_features = n_samples, source.n_features
        self.dtype = np.dtype(source.dtype)
        self.sparse = sparse and source.sparse
        if self.sparse:
            assert source.layout is not None
            chunk = source.chunk_rows
            self.rows = rows or source.layout.rows
        else:  # a sparse source can be read as dense blocks of any number of rows
            chunk = None if source.sparse else source.chunk_rows
            self.rows = rows or block_rows(self.n_features, self.dtype.itemsize, chunk)
        if chunk:
            check_block_rows(self.rows, chunk, n_samples)
        self.bounds = block_bounds(n_samples, self.rows)
        self.transform = Transform()
        self.keeps_gram, self.passes = False, 0
        self.former_gram: PartialGram | None = None
        self._moments: Moments | None = None
        self._gram: tuple[ArrayRef, ArrayRef] | None = None
        self._dense: RowBlocks | None = None
        self._asked_rows, self._token = rows, next(_tokens)
        if not source.shareable:
            _local_sources[self._token] = source

    @classmethod
    def from_any(
        cls,
        X: Any,
        *,
        scratch: Scratch | None = None,
        transform: str = "none",
        rows: int | None = None,
        sparse: bool = False,
        missing: str = "error",
        memory_limit: int | None = None,
    ) -> RowBlocks:
        """Open anything that `open_matrix` accepts, check it, and resolve the preprocessing.

        Data that cannot be read by row range (CSV, Parquet, Dask arrays), and data in memory if
        the tasks run in other processes, are written to scratch first. Data that bigfs has not
        checked during ingestion are checked in one pass.

        Parameters
        ----------
        X : RowBlocks, array-like, path or URI
        scratch : Scratch or None, default=None
            Storage for intermediate data. None: a temporary folder.
        transform : one of `preprocess.KINDS`, default="none"
            Preprocessing, applied whenever a block is read.
        rows : int or None
            Rows per block.
        sparse : bool, default=False
            If True, blocks of sparse data are in CSR form; the values that a transform would add
            to zeros are their `offset`. Otherwise sparse data are made dense block by block, up to
            2 GiB dense.
        missing : str, default="error"
            Treatment of NaN, as in `ingest`; with a policy other than "error", data are written to
            scratch.
        memory_limit : int or None
            Limit of this process, if the input has to be read as a whole. None: 4 GiB.

        Raises
        ------
        InputError
            If the data cannot be used; the first offending row and column are named.
        MemoryLimitError
            If the input has to be read as a whole and does not fit.
        """
        if isinstance(X, RowBlocks):
            return X
        check_choice("preprocess", transform, preprocess.KINDS)
        scratch = scratch or Scratch()
        source: Source = open_matrix(X)
        sparse = sparse and source.sparse
        if not sparse:
            check_dense(source, "this step" if transform == "none" else f"'{transform}'")
        in_place = source.checked or missing == "error"
        in_reach = isinstance(source, RandomAccessSource) and (
            source.shareable or not crosses_processes()
        )
        if in_place and in_reach:
            if source.held_bytes:
                limit = memory_limit or parse_bytes(DEFAULT_MEMORY_LIMIT)
                check_fits("data", source.held_bytes, limit, "reading the input")
            source.begin()
        else:
            path = scratch.path / scratch.unique("input.zarr")
            kept = rows if sparse or not source.sparse else None
            ingest(source, path, missing=missing, rows=kept, memory_limit=memory_limit)
            source = open_matrix(path)
        assert isinstance(source, RandomAccessSource)
        blocks = cls(source, scratch, rows, sparse=sparse)
        if not source.checked or preprocess.needs_moments(transform):
            blocks.moments()
        level = blocks._level_columns()
        blocks.transform = preprocess.resolve(transform, blocks._moments, scratch, level)
        if transform != "none":
            blocks._moments = None
        return blocks

    def _level_columns(self) -> ArrayRef | None:
        """Store the columns to treat as constant and their values; return None if there are none.

        If the moments are not known, a few rows decide if a pass for them is needed.
        """
        if self._moments is None and not kernels.level_columns(self._glance(), self.dtype).any():
            return None
        moments = self.moments()
        level = np.flatnonzero(kernels.level_columns(moments, self.dtype))
        if not len(level):
            return None
        self.refuse_below(SMALLEST, "since their squares underflow")
        least, most = moments.minimum[level], moments.maximum[level]
        value = np.where((least <= 0) & (most >= 0), 0.0, least)
        tiny = level[np.maximum(np.abs(least), np.abs(most)) < SMALLEST]
        if len(tiny):
            logger.warning(
                f"{self.source.uri}: column {tiny[0]} varies by less than {SMALLEST:.0e}, so its "
                f"squares underflow: it is treated as constant ({len(tiny):,} such columns)."
            )
        for part in (moments.mean, moments.minimum, moments.maximum):
            part[level] = value
        moments.squares[level] = 0.0
        return self.scratch.put(self.scratch.unique("level"), np.stack([level, value]))

    def refuse_below(self, least: float, reason: str) -> None:
        """Raise InputError if features vary, but none by at least ``least``.

        If the moments are not known, a few rows decide if a pass for them is needed.
        """
        if self._moments is None and not _is_below(self._glance(), least):
            return
        moments = self.moments()
        if not _is_below(moments, least):
            return
        gap = moments.maximum - moments.minimum
        column = int(gap.argmax())
        largest = self.map_blocks(_largest_kernel, column, label="largest value")
        row, value = max(largest, key=lambda pair: abs(pair[1]))
        names = self.source.feature_names
        feature = f" ({names[column]!r})" if names else ""
        row = row_in_the_original(row, self.source.dropped)
        raise InputError(
            f"{self.source.uri}: row {row}, column {column}{feature} is {value:.3g}, and no "
            f"feature varies by more than {gap[column]:.3g}: differences below {least:.0e} are too "
            f"small, {reason}. Multiply the data by a power of ten. {FROM_0}"
        )

    def _glance(self) -> Moments:
        """Return the moments of the first rows of three blocks, which does not count as a pass."""
        places = sorted({0, len(self.bounds) // 2, len(self.bounds) - 1})
        some = [(start, min(start + _SCALE_ROWS, stop))
                for start, stop in (self.bounds[place] for place in places)]  # fmt: skip
        reader, merge = self.start_pass(0), kernels.merge_moments
        with silenced(), self.source.numbering_rows():  # not part of any stage's progress
            return map_reduce(_on_block, some, merge, reader, _moments_kernel, (), label="scales")

    def transformed(self, kind: str) -> RowBlocks:
        """Return the same rows with another preprocessing, sparse ones as CSR blocks."""
        rows, scratch = self._asked_rows, self.scratch
        return self.from_any(self.source, scratch=scratch, transform=kind, rows=rows, sparse=True)

    def dense(self) -> RowBlocks:
        """Return the same rows as blocks that are made dense when they are read.

        Raises
        ------
        InputError
            If they would exceed 2 GiB.
        """
        if not self.sparse:
            return self
        if self._dense is None:
            check_dense(self.source, "this step")
            self._dense = RowBlocks(self.source, self.scratch, self._asked_rows)
            self._dense.transform, self._dense.keeps_gram = self.transform, self.keeps_gram
        return self._dense

    @property
    def nbytes(self) -> int:
        """Size of the matrix as the kernels receive it, in bytes."""
        return self.layout.nbytes

    @property
    def layout(self) -> Shape:
        """Sizes of the matrix, its blocks and chunks, from which costs are computed."""
        sizes = (self.n_samples, self.n_features, self.dtype.itemsize, self.rows)
        if not self.sparse:
            chunk = None if self.source.sparse else self.source.chunk_rows
            return Shape(*sizes, chunk or self.rows)
        assert self.source.layout is not None
        n_entries, largest = self.source.layout.n_entries, self.source.block_entries(self.rows)
        return Shape(*sizes, self.source.chunk_rows or self.rows, n_entries, largest)

    def start_pass(self, count: int = 1) -> BlockReader:
        """Count a pass (or several), and return the reader of its tasks."""
        self.passes += count
        source = self.source if self.source.shareable else None
        return BlockReader(source, self._token, self.transform, self.sparse)

    def map_blocks(
        self, kernel: Callable[..., Any], *shared: Any, label: str = "pass"
    ) -> list[Any]:
        """Run ``kernel(X_block, first_row, *shared)`` on every block: one pass.

        The results are returned in block order, so each must be small; results with a value per
        row are written by the kernel through an `ArrayRef` whose chunks are this object's blocks.
        """
        reader = self.start_pass()
        with self.source.numbering_rows():
            shared = reader, kernel, shared
            return run_tasks(_on_block, self.bounds, *shared, label=label, unit="blocks")

    def reduce(
        self,
        kernel: Callable[..., Any],
        combine: Callable[[Any, Any], Any],
        *shared: Any,
        label: str = "pass",
        since: int = 0,
    ) -> Any:
        """Run ``kernel(X_block, first_row, *shared)`` on rows from ``since`` on, and merge."""
        reader = self.start_pass(int(not since))
        bounds = [(max(start, since), stop) for start, stop in self.bounds if stop > since]
        with self.source.numbering_rows():
            return map_reduce(_on_block, bounds, combine, reader, kernel, shared, label=label)

    def create_rows(self, name: str, width: int, dtype: Any) -> ArrayRef:
        """Create an array of n_samples rows in scratch whose chunks are this object's blocks."""
        return self.scratch.create(name, (self.n_samples, width), dtype, self.rows)

    def moments(self, former: Moments | None = None) -> Moments:
        """Return per-feature moments, cached: one pass, over the rows after ``former`` if given."""
        if self._moments is None:
            merge, since = kernels.merge_moments, 0 if former is None else former.count
            moments = self.reduce(_moments_kernel, merge, label="moments", since=since)
            moments = moments if former is None else merge(former, moments)
            if self.offset is not None:
                shifted = (
                    part + self.offset for part in (moments.mean, moments.minimum, moments.maximum)
                )
                moments.mean, moments.minimum, moments.maximum = shifted
            self._moments = moments
        return self._moments

    @property
    def offset(self) -> np.ndarray | None:
        """Values to add to the columns of CSR blocks, (n_features,), float64; None if zero.

        It is never added to entries, which would turn zeros into entries. Sums of centered columns
        do not depend on it; it is added to means at the end of a pass.
        """
        return self.transform.offset() if self.sparse else None

    @cached_property
    def scale_notes(self) -> list[str]:
        """A sentence if dense features differ in scale by a factor above 1,000, else empty.

        Computed from the moments if they are known, otherwise from the first rows of three blocks,
        which does not count as a pass. For features that are each scaled to [0, 1]: a sentence if
        their units differ.
        """
        if self.sparse or self.transform.kind == "standardize":
            return []
        if self.transform.kind == "minmax":
            return [note] if (note := different_units(self.source)) else []
        moments, shown = self._moments, ""
        if moments is None:
            moments = self._glance()
            shown = f" (of {moments.count:,} rows)"
        spread = np.sqrt(moments.variance)
        varying = np.flatnonzero(~moments.constant & (spread > 0))
        if not len(varying):
            return []
        least, most = (int(varying[pick(spread[varying])]) for pick in (np.argmin, np.argmax))
        if spread[most] <= _SCALES * spread[least]:
            return []
        names = self.source.feature_names or [f"feature {i}" for i in range(self.n_features)]
        return [
            f"Scales differ: the standard deviation{shown} of {names[least]} is "
            f"{spread[least]:.3g}, that of {names[most]} is {spread[most]:.3g}. Features of large "
            "scale dominate distances; preprocess 'standardize' gives all features the same scale."
        ]

    def gram(self, Y: ArrayRef | None = None, label: str = "gram") -> Gram:
        """Return the centered Gram matrix and X'Y in one pass.

        Parameters
        ----------
        Y : ArrayRef of shape (n_samples, n_targets) or None
            Companion array; each task reads its rows that belong to the block.

        Returns
        -------
        gram : Gram
            In float64: ``gram`` (n_features, n_features), ``xty`` (n_features, n_targets).
        """
        if self.keeps_gram:
            return self._kept_gram(Y, label)
        total = self.reduce(_gram_kernel, kernels.merge_gram, Y, label=label)
        return kernels.complete_gram(total, self.n_features)

    def _kept_gram(self, Y: ArrayRef | None, label: str) -> Gram:
        """Return the Gram matrix from scratch, with X'Y from a pass of its own."""
        if self._gram is None:
            merge, total = kernels.merge_gram, self.former_gram
            since = 0 if total is None else total.count
            if since < self.n_samples:
                rest = self.reduce(_gram_kernel, merge, None, label="gram", since=since)
                total = rest if total is None else merge(total, rest)
            assert total is not None
            self.former_gram = None  # free its memory for the following
            products = kernels.complete_gram(total, self.n_features)
            put, name = self.scratch.put, self.scratch.unique
            self._gram = put(name("gram"), products.gram), put(name("mean"), products.mean)
        stored, mean = self._gram
        y_mean, xty = np.empty(0), np.empty((self.n_features, 0))
        if Y is not None:
            sums, xty = self.reduce(_cross_kernel, _add_pair, Y, mean, label=label)
            y_mean = sums / self.n_samples
        return Gram(self.n_samples, mean.load(), stored.load(), y_mean, xty)

    def xtv(self, V: ArrayRef) -> np.ndarray:
        """Return ``X'V`` for V of shape (n_samples, n_columns): one pass, float64."""
        return self.reduce(_xtv_kernel, np.add, V, label="X'V")


# Measured: loop steps for the moments, per value.
_MOMENTS_LOOPS = 3


def moments_step(shape: Shape) -> Step:
    """Return the step of `RowBlocks.moments`: a tile, or entries by column, in float64."""
    sparse = shape.n_entries is not None
    needed = csr_kernels.kernel_bytes(shape) if sparse else 2 * kernels.tile_bytes(shape.n_features)
    needed += fold_parts(shape.n_blocks) * 4 * 8 * shape.n_features  # four arrays in each
    seconds = loop_seconds(shape.n_values, _MOMENTS_LOOPS)
    return pass_over(shape, "a block and its moments", needed, seconds=seconds)


def fold_parts(n_blocks: int) -> int:
    """Return an upper bound on the partial results of a reduction that a process holds.

    These are the inputs of a fold, its output, and finished folds that wait for others.
    """
    return min(n_blocks, TREE_ARITY) + 1 + waiting_folds(n_blocks)


def waiting_folds(n_blocks: int) -> int:
    """Return an upper bound on the finished folds that wait in a process beside the next one."""
    return min(TREE_ARITY, -(-n_blocks // TREE_ARITY)) - 1


def gram_bytes(shape: Shape, n_targets: int) -> int:
    """Return the bytes of `RowBlocks.gram` with companions: partial sums, and a block.

    One more sum than are folded may still be in transit when the fold starts.
    """
    partial = 8 * (shape.n_features + n_targets) ** 2
    return (fold_parts(shape.n_blocks) + 1) * partial + shape.read_bytes


def gram_step(shape: Shape, n_targets: int, what: str = "the Gram matrix") -> Step:
    """Return the step of `RowBlocks.gram` with companions."""
    d = shape.n_features
    what = f"{what}: {fold_parts(shape.n_blocks)} sums of {d:,} x {d:,}"
    seconds = product_seconds(shape.n_samples, d, d + n_targets)
    if shape.n_entries is not None:
        seconds = loop_seconds(shape.n_entries, shape.n_entries / shape.n_samples)
    return replace(pass_over(shape, what, seconds=seconds), task_bytes=gram_bytes(shape, n_targets))


def gather_parts(blocks: RowBlocks, ids: np.ndarray, folder: Scratch, label: str) -> list[ArrayRef]:
    """Store the chosen rows, transformed, in one array per block that has any: one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    ids : ndarray of shape (n_chosen,), int
        Row numbers, ascending.
    folder : Scratch
        Storage for the arrays.
    label : str
        Name of the pass in progress reports.
    """
    wanted = folder.put(folder.unique("chosen"), ids)
    parts = blocks.map_blocks(_gather_kernel, wanted, str(folder.path), label=label)
    folder.remove(wanted)
    return [part for part in parts if part is not None]


def gather_rows(blocks: RowBlocks, ids: np.ndarray, label: str) -> ArrayRef:
    """Store the chosen rows (ascending), transformed, as one chunk in scratch: one pass."""
    scratch = blocks.scratch
    with scratch.temporary("sample") as folder:
        parts = gather_parts(blocks, ids, folder, label)
        rows = scratch.create(scratch.unique("rows"), (len(ids), blocks.n_features), blocks.dtype)
        run_tasks(_join_task, [parts], rows, label=label)
    return rows


def gather_steps(shape: Shape, size: int) -> tuple[Step, ...]:
    """Return the steps of `gather_rows` for ``size`` rows."""
    row_bytes = shape.n_features * shape.itemsize
    return (
        pass_over(shape, "a block and the rows drawn from it", min(size, shape.rows) * row_bytes),
        # The parts, the rows joined from them, and a copy while these are written.
        Step(f"{size:,} rows drawn from all blocks", 3 * size * row_bytes, 1, 0, 1),
    )


def _on_block(
    bounds: tuple[int, int],
    reader: BlockReader,
    kernel: Callable[..., Any],
    shared: tuple[Any, ...],
) -> Any:
    """Read one block and run the kernel on it."""
    start, stop = bounds
    return kernel(reader.read(start, stop), start, *shared)


def _is_below(moments: Moments, least: float) -> bool:
    """Return True if features vary, but none by at least ``least``."""
    return 0 < float((moments.maximum - moments.minimum).max()) < least


def _largest_kernel(X: Any, first_row: int, column: int) -> tuple[int, float]:
    values = np.ravel(kernels.as_dense(X[:, [column]]))
    row = int(np.abs(values).argmax())
    return first_row + row, float(values[row])


def _moments_kernel(X: Any, first_row: int) -> Moments:
    return csr_kernels.csr_moments(X) if hasattr(X, "indptr") else kernels.block_moments(X)


def _gram_kernel(X: np.ndarray, first_row: int, Y: ArrayRef | None) -> PartialGram:
    rows = None if Y is None else Y.read(first_row, first_row + len(X))
    return kernels.block_gram(X, rows)


def _cross_kernel(
    X: np.ndarray, first_row: int, Y: ArrayRef, mean: ArrayRef
) -> tuple[np.ndarray, np.ndarray]:
    """Return the column sums of Y, and the products of the centered columns of X with Y."""
    rows = Y.read(first_row, first_row + len(X)).astype(np.float64, copy=False)
    return rows.sum(axis=0), kernels.block_xtv(X, rows, mean.load())


def _add_pair(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    return a[0] + b[0], a[1] + b[1]


def _xtv_kernel(X: np.ndarray, first_row: int, V: ArrayRef) -> np.ndarray:
    return kernels.block_xtv(X, V.read(first_row, first_row + X.shape[0]))


def _gather_kernel(X: np.ndarray, first_row: int, wanted: ArrayRef, folder: str) -> ArrayRef | None:
    ids = wanted.load()
    begin, end = np.searchsorted(ids, [first_row, first_row + len(X)])
    if begin == end:
        return None
    scratch = Scratch(folder)
    return scratch.put(scratch.unique(f"rows-{first_row}"), X[ids[begin:end] - first_row])


def _join_task(parts: list[ArrayRef], rows: ArrayRef) -> None:
    rows.write(0, np.concatenate([part.load() for part in parts]))
