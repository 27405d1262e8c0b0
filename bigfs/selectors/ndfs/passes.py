"""The passes of NDFS over X and the graph, by row blocks; imports no scikit-learn.

F is stored by row blocks, as a new array in every iteration. Each task reads its rows of X, W and
F, and the rows of F of the neighbors of its rows.
"""

from __future__ import annotations

import math
import operator
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bigfs.blocks.csr_kernels import compact, kernel_bytes
from bigfs.blocks.kernels import float_tiles
from bigfs.blocks.rowblocks import BlockReader, RowBlocks, fold_parts
from bigfs.core.cost import Shape, Step
from bigfs.core.paths import plain_name
from bigfs.core.threads import compiled
from bigfs.graph import AffinityMatrix
from bigfs.runtime.execute import map_reduce
from bigfs.selectors.kept import forget, memory
from bigfs.spectral.kernels import compiled_products
from bigfs.store.location import remove_tree
from bigfs.store.scratch import ArrayRef, Scratch

# Entries below this are set to zero, because their products would underflow.
_FLUSH = 1e-30
# The printed denominator can be negative. It is clamped so that an entry grows at most by this
# factor in one iteration.
_GROWTH = 10.0


Sums = TypeVar("Sums", "FactorSums", "Ending")


@dataclass(frozen=True)
class Update:
    """A multiplicative update with its parameters."""

    kind: str  # "safe" or "printed"
    alpha: float
    gamma: float

    def apply(self, F: np.ndarray, SF: np.ndarray, HF: np.ndarray, ftf: np.ndarray) -> np.ndarray:
        """Return the next F of the given rows, not normalized.

        Parameters
        ----------
        F, SF, HF : ndarray of shape (rows, n_clusters), float64
            Rows of F, of ``D^-1/2 W D^-1/2 F`` and of ``X (X'X + beta Delta)^-1 X'F``.
        ftf : ndarray of shape (n_clusters, n_clusters)
            ``F'F`` of all rows.
        """
        after = np.empty(F.shape)
        flat = (np.ascontiguousarray(rows).ravel() for rows in (F, SF, HF, F @ ftf))
        weights = float(self.alpha), float(self.gamma)
        update = compiled(_update, error_model="numpy")
        update(*flat, *weights, self.kind == "safe", after.ravel())
        return after


def _update(
    F: Any, SF: Any, HF: Any, FFF: Any, alpha: float, gamma: float, is_safe: bool, out: Any
) -> None:
    """Compute the next entries of F from those of F, ``SF``, ``HF`` and ``F (F'F)``."""
    for i in range(F.size):
        above, below = gamma * F[i], gamma * FFF[i]
        if is_safe:
            positive = max(HF[i], 0.0)
            above += SF[i] + alpha * positive
            below += (1 + alpha) * F[i] + alpha * (positive - HF[i])
        else:  # eq. (15), MF = F - SF + alpha (F - HF)
            below += (1 + alpha) * F[i] - SF[i] - alpha * HF[i]
            below = max(below, above / _GROWTH)
        ratio = above / below if below > 0 else 0.0
        if is_safe:
            ratio = math.sqrt(math.sqrt(ratio))
        ratio *= F[i]
        out[i] = ratio if ratio >= _FLUSH else 0.0


@dataclass
class FactorSums:
    """Sums of one pass over blocks; the sums of two blocks are added by `merge_sums`."""

    # Of shape (n_features + 1, n_clusters), float64: ``X'F`` of the new F; the last row has the
    # sums of the columns of F.
    xtf: np.ndarray
    ftf: np.ndarray  # of shape (n_clusters, n_clusters), float64: ``F'F`` of the new F
    overlap: np.ndarray  # of shape (n_clusters,), float64: products of new and old columns of F
    smoothness: float  # ``tr(F'LF)`` of the old F


def merge_sums(a: Sums, b: Sums) -> Sums:
    """Add the second sums to the first in place."""
    for name, sums in vars(b).items():
        setattr(a, name, operator.iadd(getattr(a, name), sums))
    return a


def row_parts(X: Any) -> Iterator[tuple[slice, Any]]:
    """Return the parts of a block in float64: a CSR block as one, a dense block by row tiles."""
    if not hasattr(X, "indptr"):
        return float_tiles(X)
    return iter([(slice(0, X.shape[0]), X.astype(np.float64, copy=False))])


def block_step(
    X: Any, F: np.ndarray, SF: np.ndarray, coef: np.ndarray, ftf: np.ndarray, update: Update
) -> tuple[np.ndarray, FactorSums]:
    """Return the next F of a row block and its contribution to the sums, reading X once.

    Parameters
    ----------
    X : ndarray or csr_array of shape (rows, n_features), float32 or float64
    F, SF : ndarray of shape (rows, n_clusters), float64
    coef : ndarray of shape (n_features + 1, n_clusters), float64
        ``(X'X + beta Delta)^-1 X'F``; the last row is the intercept.
    ftf : ndarray of shape (n_clusters, n_clusters), float64
    update : Update
    """
    after, xtf = np.empty_like(F), np.zeros(coef.shape)
    for part, rows in row_parts(X):
        after[part] = update.apply(F[part], SF[part], rows @ coef[:-1] + coef[-1], ftf)
        xtf[:-1] += rows.T @ after[part]
    xtf[-1] = after.sum(axis=0)
    overlap = np.einsum("ij,ij->j", after, F)
    return after, FactorSums(xtf, after.T @ after, overlap, smoothness(F, SF))


def smoothness(F: np.ndarray, SF: np.ndarray) -> float:
    """Return the contribution of rows to ``tr(F'LF)``, with ``L = I - D^-1/2 W D^-1/2``."""
    return float(np.einsum("ij,ij->", F, F - SF))


def inverse_norms(squares: np.ndarray) -> np.ndarray:
    """Return ``1 / sqrt(squares)``; 1 for clusters that have become empty."""
    return 1 / np.sqrt(np.where(squares > 0, squares, 1.0))


@dataclass
class Ending:
    """Measures of the final F from the last pass over the graph, added by `merge_sums`."""

    smoothness: float  # ``tr(F'LF)``
    squared: float  # ``|F - F_start|^2``
    changed: int  # number of rows whose largest entry is in another column than at the start


@dataclass(frozen=True)
class _Context:
    """Inputs of every task of a pass; small and picklable.

    The first row of ``small`` is the scale of F's columns; ``F'F`` and the coefficients follow. A
    pass over the graph alone has neither a reader nor an update.
    """

    run: str
    W: AffinityMatrix
    F: ArrayRef
    out: ArrayRef
    small: ArrayRef
    reader: BlockReader | None
    update: Update | None
    # Bytes that a worker process may keep of X, of X with the edges, and of F with the degrees.
    keep_block_bytes: int
    keep_x_bytes: int
    keep_f_bytes: int


@dataclass
class FactorPasses:
    """The iterate F with X and the graph; each pass runs one task per block."""

    blocks: RowBlocks
    W: AffinityMatrix
    F: ArrayRef  # of shape (n_samples, n_clusters), float64: the current iterate, without ``scale``
    folder: Scratch  # where the iterates are stored
    # Bytes that a worker process may keep of X with the edges, and of F with the degrees.
    keep_x_bytes: int
    keep_f_bytes: int
    # Of shape (n_clusters,): factors of F's columns, which the next pass applies.
    scale: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._run = uuid.uuid4().hex
        self._start = self.F
        self.scale = np.ones(self.F.shape[1])
        self._old: list[ArrayRef] = []
        self._stored: set[str] = {self.F.path}

    def _context(
        self,
        out: ArrayRef,
        small: ArrayRef,
        reader: BlockReader | None = None,
        update: Update | None = None,
    ) -> _Context:
        # A source in memory is read without a copy, so blocks need to be kept only if a transform
        # creates new ones.
        keeps_x = self.blocks.source.shareable or self.blocks.transform.kind != "none"
        keeps = self.keep_x_bytes if keeps_x else 0, self.keep_x_bytes, self.keep_f_bytes
        return _Context(self._run, self.W, self.F, out, small, reader, update, *keeps)

    def step(self, coef: np.ndarray, ftf: np.ndarray, update: Update) -> FactorSums:
        """Replace F by the next one, in one pass over X; ``scale`` is applied first."""
        scratch, width = self.blocks.scratch, len(ftf)
        shape = (self.blocks.n_samples, width)
        # A new array in every pass, so that a task that outlives its pass can only rewrite the same
        # values.
        out = self.folder.create(self.folder.unique("F"), shape, np.float64, self.blocks.rows)
        small = scratch.put(scratch.unique("small"), np.vstack([self.scale, ftf, coef]))
        context = self._context(out, small, self.blocks.start_pass(), update)
        sums = map_reduce(_step_task, self.blocks.bounds, merge_sums, context, label="ndfs")
        out.check_complete()
        scratch.remove(small)
        self._old.append(self.F)
        self._drop()
        self.F, self.scale = out, np.ones(width)
        return sums

    def _drop(self) -> None:
        """Delete old iterates, except the last two, those of checkpoints, and the start."""
        stored = [ref for ref in self._old[:-2] if ref.path in self._stored]
        for ref in self._old[:-2]:
            if ref.path not in self._stored:
                self.folder.remove(ref)
        self._old = stored + self._old[-2:]

    def finish(self, labels: ArrayRef) -> Ending:
        """Write the labels of the final F and return its measures, without reading X."""
        scratch = self.blocks.scratch
        small = scratch.put(scratch.unique("small"), self.scale[None, :])
        context = self._context(labels, small)
        ending: Ending = map_reduce(
            _finish_task, self.blocks.bounds, merge_sums, context, self._start, label="ndfs end"
        )
        scratch.remove(small)
        forget(self._run)
        return ending

    def state(self) -> dict[str, Any]:
        """Return the name of F and the scale still to be applied, for a checkpoint.

        The stored F is not deleted until the next checkpoint.
        """
        # The iterate before it is kept too, because a late task that reads it must not write wrong
        # rows.
        self._stored = {self._start.path, self.F.path, *(ref.path for ref in self._old[-1:])}
        return {"F_name": self.F.path.rsplit("/", 1)[1], "scale": self.scale}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore F from a checkpoint.

        Raises
        ------
        StorageError
            If F is missing or incomplete.
        """
        F = ArrayRef.at(self.folder.path / plain_name(str(state["F_name"]), self.folder.path))
        F.check_complete()
        self.F, self.scale = F, state["scale"]
        self._stored.add(F.path)
        # Iterates left by a killed run may be incomplete.
        for left in self.folder.path.glob("F-*"):
            if str(left) not in self._stored:
                remove_tree(left)


def block_bytes(shape: Shape, n_entries: int, n_clusters: int) -> int:
    """Return the bytes of a task: a block, its edges and the rows of F that they refer to.

    Parameters
    ----------
    shape : Shape
    n_entries : int
        Number of stored entries of the affinity matrix.
    n_clusters : int
    """
    edges = -(-n_entries // shape.n_samples)
    # A block and its copy while it is read, edges with their rows of F, and the old and new F.
    per_row = edges * (24 + 8 * n_clusters) + 48 * n_clusters
    return shape.read_bytes + kernel_bytes(shape) + shape.rows * per_row + 8 * 10**6


def product_bytes(shape: Shape, n_clusters: int) -> int:
    """Return the bytes of the (n_features, n_clusters) arrays that a task of a pass holds.

    These are the coefficients, the sums of the block and those of a fold.
    """
    return 8 * (fold_parts(shape.n_blocks) + 2) * shape.n_features * n_clusters


def graph_steps(shape: Shape, n_entries: int, n_clusters: int, max_iter: int) -> tuple[Step, ...]:
    """Return the steps of `FactorPasses`: passes over X, and passes over F and the graph only."""
    needed = block_bytes(shape, n_entries, n_clusters)
    what = f"a block of {shape.rows:,} rows with its neighbors' rows of F"
    on_x = needed + product_bytes(shape, n_clusters)
    return (
        Step(what, on_x, shape.n_blocks, 1, 3 * shape.n_chunks, max_iter),
        # F'F of the start, and the final labels.
        Step("rows of F with their edges", needed, shape.n_blocks, 0, 2 * shape.n_blocks, 2),
    )


def _step_task(bounds: tuple[int, int], context: _Context) -> FactorSums:
    """Compute and write the next F of one block, and return its sums."""
    start, stop = bounds
    reader = context.reader
    assert reader is not None and context.update is not None
    small, width = context.small.load(), context.F.shape[1]
    scale, ftf, coef = small[0], small[1 : width + 1], small[width + 1 :]
    F = context.F.read(start, stop) * scale
    SF = smoothed_rows(start, stop, context, scale)
    key, kept_bytes = ("X", start), context.keep_block_bytes
    X = memory.get(context.run, key, lambda: compact(reader.read(start, stop)), kept_bytes)
    after, sums = block_step(X, F, SF, coef, ftf, context.update)
    context.out.write(start, after)
    return sums


def _finish_task(bounds: tuple[int, int], context: _Context, first: ArrayRef) -> Ending:
    """Write the labels of one block of the final F, and compare it with the start."""
    start, stop = bounds
    scale = context.small.load()[0]
    F, before = context.F.read(start, stop) * scale, first.read(start, stop)
    SF = smoothed_rows(start, stop, context, scale)
    labels = F.argmax(axis=1).astype(np.int32)
    context.out.write(start, labels)
    changed = int((labels != before.argmax(axis=1)).sum())
    return Ending(smoothness(F, SF), float(((F - before) ** 2).sum()), changed)


def _edge_rows(W: AffinityMatrix, start: int, stop: int) -> tuple[np.ndarray, ...]:
    """Return indptr, columns and weights of the rows of W, and their ``D^-1/2`` as a column."""
    return *W.read(start, stop), 1 / np.sqrt(W.degrees.read(start, stop))[:, None]


def smoothed_rows(start: int, stop: int, context: _Context, scale: np.ndarray) -> np.ndarray:
    """Return the rows of ``D^-1/2 W D^-1/2 F`` of a block.

    If F and the degrees fit into ``keep_f_bytes``, they are loaded once and cached; else only the
    rows of F that the edges of the block refer to are read.
    """
    W, F = context.W, context.F
    kept_bytes = context.keep_x_bytes
    edges = memory.get(context.run, ("W", start), lambda: _edge_rows(W, start, stop), kept_bytes)
    indptr, columns, weights, root = edges
    if F.nbytes + W.degrees.nbytes <= context.keep_f_bytes:
        key = ("F", F.path)
        memory.drop(context.run, "F", kept_key=key)
        budget = context.keep_x_bytes + context.keep_f_bytes
        everywhere = memory.get(
            context.run, key, lambda: _weighted(F.load(), scale, W.degrees.load()), budget
        )
    else:
        rows, columns = np.unique(columns, return_inverse=True)
        everywhere = _weighted(F.take(rows), scale, W.degrees.take(rows))
    smoothed, n_rows = np.empty((stop - start, F.shape[1])), stop - start
    _, products_with_rows = compiled_products()
    matrix = indptr, columns, weights, np.ones(n_rows)
    products_with_rows(*matrix, everywhere, np.arange(n_rows), smoothed)
    smoothed *= root
    return smoothed


def _weighted(F: np.ndarray, scale: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Return rows of ``D^-1/2 F`` with scaled columns."""
    weighted = F * scale
    weighted /= np.sqrt(degrees)[:, None]
    return weighted


def squared_sums(F: ArrayRef, bounds: list[tuple[int, int]]) -> np.ndarray:
    """Return ``F'F``, without reading X."""
    return map_reduce(_ftf_task, bounds, np.add, F, label="F'F")


def _ftf_task(bounds: tuple[int, int], F: ArrayRef) -> np.ndarray:
    rows = F.read(*bounds)
    return np.asarray(rows.T @ rows)
