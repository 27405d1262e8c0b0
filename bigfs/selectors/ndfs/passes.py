"""The passes of NDFS over X and the graph, by row blocks; imports no scikit-learn.

F is stored by row blocks, a new array every iteration. Each task reads its rows of X, of W and of
F, and the rows of F its edges lead to.
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

# Entries below this are taken for zero: their products would underflow.
_FLUSH = 1e-30
# The printed denominator can be negative; clamped, an entry grows at most this much at once.
_GROWTH = 10.0


Sums = TypeVar("Sums", "FactorSums", "Ending")


@dataclass(frozen=True)
class Update:
    """One of the multiplicative updates with its parameters."""

    kind: str  # one of "safe", "printed"
    alpha: float
    gamma: float

    def apply(self, F: np.ndarray, SF: np.ndarray, HF: np.ndarray, ftf: np.ndarray) -> np.ndarray:
        """Return the next F of some rows, not normalized.

        Parameters
        ----------
        F, SF, HF : ndarray of shape (rows, n_clusters), float64
            The rows of F, of ``D^-1/2 W D^-1/2 F`` and of ``X (X'X + beta Delta)^-1 X'F``.
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
    """Sums of one pass; two of them add up."""

    # Of shape (n_features + 1, n_clusters), float64: ``X'F`` of the new F; the last row has the
    # sums of its columns.
    xtf: np.ndarray
    ftf: np.ndarray  # of shape (n_clusters, n_clusters), float64: ``F'F`` of the new F
    overlap: np.ndarray  # of shape (n_clusters,), float64: products of the new and the old columns
    smoothness: float  # ``tr(F'LF)`` of the old F


def merge_sums(a: Sums, b: Sums) -> Sums:
    """Add the second to the first, in its memory."""
    for name, sums in vars(b).items():
        setattr(a, name, operator.iadd(getattr(a, name), sums))
    return a


def row_parts(X: Any) -> Iterator[tuple[slice, Any]]:
    """Yield a block in float64: CSR at once, of a dense one some rows at a time."""
    if not hasattr(X, "indptr"):
        return float_tiles(X)
    return iter([(slice(0, X.shape[0]), X.astype(np.float64, copy=False))])


def block_step(
    X: Any, F: np.ndarray, SF: np.ndarray, coef: np.ndarray, ftf: np.ndarray, update: Update
) -> tuple[np.ndarray, FactorSums]:
    """Return the next F of a row block and its share of the sums, reading X once.

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
    """Return the rows' share of ``tr(F'LF)``, with ``L = I - D^-1/2 W D^-1/2``."""
    return float(np.einsum("ij,ij->", F, F - SF))


def inverse_norms(squares: np.ndarray) -> np.ndarray:
    """Return ``1 / sqrt(squares)``, and 1 for an emptied cluster."""
    return 1 / np.sqrt(np.where(squares > 0, squares, 1.0))


@dataclass
class Ending:
    """Figures of the final F from the last pass over the graph; two of them add up."""

    smoothness: float  # ``tr(F'LF)``
    squared: float  # ``|F - F_start|^2``
    changed: int  # rows whose largest entry is in another column than at the start


@dataclass(frozen=True)
class _Context:
    """The inputs of every task of a pass; small and picklable.

    ``small`` has the scale of F's columns in its first row; then follow ``F'F`` and the
    coefficients. A pass over the graph alone has neither a reader nor an update.
    """

    run: str
    W: AffinityMatrix
    F: ArrayRef
    out: ArrayRef
    small: ArrayRef
    reader: BlockReader | None
    update: Update | None
    # What a worker process may keep of X, of X with the edges, and of F and the degrees.
    keep_block_bytes: int
    keep_x_bytes: int
    keep_f_bytes: int


@dataclass
class FactorPasses:
    """F beside X and the graph: each pass is a task for each block."""

    blocks: RowBlocks
    W: AffinityMatrix
    F: ArrayRef  # of shape (n_samples, n_clusters), float64: the current iterate, before ``scale``
    folder: Scratch  # where the iterates are stored
    # What a worker process may keep of X, and of F and the degrees.
    keep_x_bytes: int
    keep_f_bytes: int
    # Of shape (n_clusters,): factors of F's columns that the next pass applies.
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
        # A source in memory is read as it is: there is nothing to keep but what a transform makes.
        keeps_x = self.blocks.source.shareable or self.blocks.transform.kind != "none"
        keeps = self.keep_x_bytes if keeps_x else 0, self.keep_x_bytes, self.keep_f_bytes
        return _Context(self._run, self.W, self.F, out, small, reader, update, *keeps)

    def step(self, coef: np.ndarray, ftf: np.ndarray, update: Update) -> FactorSums:
        """Replace F by the next one, in one pass over X; ``scale`` is applied first."""
        scratch, width = self.blocks.scratch, len(ftf)
        shape = (self.blocks.n_samples, width)
        # A new array each time: a task that outlives its pass can only repeat what it wrote.
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
        """Delete old iterates but the last two, those of checkpoints and the start."""
        stored = [ref for ref in self._old[:-2] if ref.path in self._stored]
        for ref in self._old[:-2]:
            if ref.path not in self._stored:
                self.folder.remove(ref)
        self._old = stored + self._old[-2:]

    def finish(self, labels: ArrayRef) -> Ending:
        """Look at the final F and write the labels, without reading X."""
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
        """Return the address of F and the scale that is still to be applied."""
        # The one before it stays too: a late task that reads it must not write wrong rows.
        self._stored = {self._start.path, self.F.path, *(ref.path for ref in self._old[-1:])}
        return {"F_name": self.F.path.rsplit("/", 1)[1], "scale": self.scale}

    def restore(self, state: dict[str, Any]) -> None:
        """Come back to a stored F."""
        F = ArrayRef.at(self.folder.path / plain_name(str(state["F_name"]), self.folder.path))
        F.check_complete()
        self.F, self.scale = F, state["scale"]
        self._stored.add(F.path)
        # What a killed run was writing may be no array yet.
        for left in self.folder.path.glob("F-*"):
            if str(left) not in self._stored:
                remove_tree(left)


def block_bytes(shape: Shape, n_entries: int, n_clusters: int) -> int:
    """Return the bytes of a task for a block, its edges and their rows of F.

    Parameters
    ----------
    shape : Shape
    n_entries : int
        Stored entries of the affinity matrix.
    n_clusters : int
    """
    edges = -(-n_entries // shape.n_samples)
    # A block and its copy while it is read, edges with their rows of F, F before and after.
    per_row = edges * (24 + 8 * n_clusters) + 48 * n_clusters
    return shape.read_bytes + kernel_bytes(shape) + shape.rows * per_row + 8 * 10**6


def product_bytes(shape: Shape, n_clusters: int) -> int:
    """Return the bytes of the arrays (n_features, n_clusters) that a pass multiplies and sums.

    The one that it reads, the block's own sums and those of a fold.
    """
    return 8 * (fold_parts(shape.n_blocks) + 2) * shape.n_features * n_clusters


def graph_steps(shape: Shape, n_entries: int, n_clusters: int, max_iter: int) -> tuple[Step, ...]:
    """Return the steps of `FactorPasses`: passes over X, and over F and the graph alone."""
    needed = block_bytes(shape, n_entries, n_clusters)
    what = f"a block of {shape.rows:,} rows with its edges' rows of F"
    on_x = needed + product_bytes(shape, n_clusters)
    return (
        Step(what, on_x, shape.n_blocks, 1, 3 * shape.n_chunks, max_iter),
        # F'F of the start, and the labels of the end.
        Step("rows of F with their edges", needed, shape.n_blocks, 0, 2 * shape.n_blocks, 2),
    )


def _step_task(bounds: tuple[int, int], context: _Context) -> FactorSums:
    """Run the kernel on one block."""
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
    """Compare one block of the final F with its start, and write the labels."""
    start, stop = bounds
    scale = context.small.load()[0]
    F, before = context.F.read(start, stop) * scale, first.read(start, stop)
    SF = smoothed_rows(start, stop, context, scale)
    labels = F.argmax(axis=1).astype(np.int32)
    context.out.write(start, labels)
    changed = int((labels != before.argmax(axis=1)).sum())
    return Ending(smoothness(F, SF), float(((F - before) ** 2).sum()), changed)


def _edge_rows(W: AffinityMatrix, start: int, stop: int) -> tuple[np.ndarray, ...]:
    """Return row ends, columns and weights of rows of W, and their ``D^-1/2`` as a column."""
    return *W.read(start, stop), 1 / np.sqrt(W.degrees.read(start, stop))[:, None]


def smoothed_rows(start: int, stop: int, context: _Context, scale: np.ndarray) -> np.ndarray:
    """Return rows of ``D^-1/2 W D^-1/2 F``: the block's edges, and F where they lead to."""
    W, F = context.W, context.F
    kept_bytes = context.keep_x_bytes
    edges = memory.get(context.run, ("W", start), lambda: _edge_rows(W, start, stop), kept_bytes)
    indptr, columns, weights, root = edges
    if F.nbytes + W.degrees.nbytes <= context.keep_f_bytes:
        key = ("F", F.path)
        memory.drop(context.run, "F", besides=key)
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
    """Return rows of ``D^-1/2 F``, with scaled columns."""
    weighted = F * scale
    weighted /= np.sqrt(degrees)[:, None]
    return weighted


def squared_sums(F: ArrayRef, bounds: list[tuple[int, int]]) -> np.ndarray:
    """Return ``F'F``, without reading X."""
    return map_reduce(_ftf_task, bounds, np.add, F, label="F'F")


def _ftf_task(bounds: tuple[int, int], F: ArrayRef) -> np.ndarray:
    rows = F.read(*bounds)
    return np.asarray(rows.T @ rows)
