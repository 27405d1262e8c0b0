"""The passes of NDFS over X and the graph: in this process, or by row blocks on workers.

Both run the same kernel on the same rows. `ResidentPasses` holds a matrix of one block with its
graph and F: nothing but the arithmetic is left of a pass. `StreamedPasses` keeps F in storage by
row blocks, a new array every iteration, and each task reads its rows of X, of W and of F, and the
rows of F its edges lead to.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bigfs.blocks.csr_kernels import kernel_bytes
from bigfs.blocks.kernels import Gram
from bigfs.blocks.rowblocks import BlockReader, RowBlocks, fold_parts
from bigfs.core.cost import Shape, Step
from bigfs.core.paths import plain_name
from bigfs.graph.affinity import AffinityMatrix
from bigfs.runtime.execute import map_reduce
from bigfs.selectors.memory import forget, memory
from bigfs.selectors.ndfs.kernels import FactorSums, Update, block_step, merge_sums, smoothness
from bigfs.store.location import remove_tree
from bigfs.store.scratch import ArrayRef, Scratch


@dataclass
class Ending:
    """Figures of the final F from the last pass over the graph."""

    smoothness: float  # ``tr(F'LF)``
    distance: float  # ``|F - F_start|``
    changed: int  # rows whose largest entry is in another column than at the start


def merge_endings(a: Ending, b: Ending) -> Ending:
    """Merge two of them; distances add in squares."""
    return Ending(a.smoothness + b.smoothness, a.distance + b.distance, a.changed + b.changed)


def uncentered(gram: Gram) -> np.ndarray:
    """Return ``X'X`` of the data as they are, in the memory of the Gram matrix."""
    for row, value in enumerate(gram.mean):
        gram.gram[row] += gram.count * value * gram.mean
    return gram.gram


class FactorPasses(Protocol):
    """Interface of the data to the iteration."""

    scale: np.ndarray

    def step(self, coef: np.ndarray, ftf: np.ndarray, update: Update) -> FactorSums:
        """Replace F by the next one, in one pass over X; ``scale`` is applied first."""

    def finish(self, labels: ArrayRef) -> Ending:
        """Look at the final F: a pass over the graph alone, which writes the labels."""

    def state(self) -> dict[str, Any]:
        """Return the state from which `restore` comes back to this F."""

    def restore(self, state: dict[str, Any]) -> None:
        """Come back to a stored F."""


class ResidentPasses:
    """A matrix of one block, its graph and F, all in this process.

    Whoever uses it limits the threads: asking for that in every pass would take longer than
    many a pass.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n_samples, n_features), float64
    W : scipy CSR matrix of shape (n_samples, n_samples)
    degrees : ndarray of shape (n_samples,)
        Row sums of W.
    F : ndarray of shape (n_samples, n_clusters), float64
        The start.
    mean : ndarray of shape (n_features,), float64, or None, default=None
        What is still to be subtracted from X where the regressions have an intercept.

    Attributes
    ----------
    F : ndarray
        The current iterate, before ``scale``.
    scale : ndarray of shape (n_clusters,)
        Factors of F's columns that the next pass applies.
    """

    def __init__(
        self, X: Any, W: Any, degrees: np.ndarray, F: np.ndarray, mean: np.ndarray | None = None
    ) -> None:
        self.X, self.F, self.mean = X, F, mean
        self.scale = np.ones(F.shape[1])
        self._W, self._root = W, 1 / np.sqrt(degrees)[:, None]
        self._start = F

    def gram(self) -> np.ndarray:
        """Return ``X'X``."""
        return np.asarray(self.X.T @ self.X)

    def _smoothed(self) -> np.ndarray:
        return np.asarray(self._root * (self._W @ (self._root * self.F)))

    def step(self, coef: np.ndarray, ftf: np.ndarray, update: Update) -> FactorSums:
        """Replace F by the next one."""
        self.F = self.F * self.scale
        self.scale = np.ones(len(ftf))
        self.F, sums = block_step(self.X, self.F, self._smoothed(), coef, ftf, update)
        return sums

    def finish(self, labels: ArrayRef) -> Ending:
        """Look at the final F and write the labels."""
        self.F = self.F * self.scale
        self.scale = np.ones(len(self.scale))
        ending, assigned = _look_back(self.F, self._smoothed(), self._start)
        labels.write(0, assigned)
        return ending

    def state(self) -> dict[str, Any]:
        """Return F and the scale that is still to be applied."""
        return {"F": self.F, "scale": self.scale}

    def restore(self, state: dict[str, Any]) -> None:
        """Come back to a stored F."""
        self.F, self.scale = state["F"], state["scale"]


def resident_bytes(shape: Shape, n_entries: int, n_clusters: int, solver_bytes: int) -> int:
    """Return the bytes that `ResidentPasses` and its regressions need.

    X in float64 and, at most as large, as it was read or centered, or what the solver takes; the
    graph; F with the arrays of an update.
    """
    n = shape.n_samples
    x_bytes = 8 * n * shape.n_features
    data = x_bytes + max(x_bytes, solver_bytes)
    return data + 12 * n_entries + n * (40 + 96 * n_clusters)


@dataclass(frozen=True)
class _Rows:
    """A block, dense or CSR, as a worker keeps it."""

    X: Any

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        if not hasattr(self.X, "indptr"):
            return int(self.X.nbytes)
        return int(self.X.data.nbytes + self.X.indices.nbytes + self.X.indptr.nbytes)


@dataclass(frozen=True)
class _Context:
    """The inputs of every task of a pass; small and picklable.

    ``small`` has the scale of F's columns in its first row; then follow ``F'F`` and the
    coefficients. A pass over the graph alone has no reader.
    """

    run: str
    reader: BlockReader | None
    W: AffinityMatrix
    F: ArrayRef
    out: ArrayRef
    small: ArrayRef
    update: Update | None
    keeps_x: bool
    keep_x_bytes: int
    keep_f_bytes: int


@dataclass
class StreamedPasses:
    """A matrix of many blocks, read by tasks."""

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

    def _context(self, out: ArrayRef, small: ArrayRef) -> _Context:
        return _Context(
            # A source in memory is read without a copy: there is nothing to keep.
            self._run, None, self.W, self.F, out, small, None,
            self.blocks.source.shareable, self.keep_x_bytes, self.keep_f_bytes,
        )  # fmt: skip

    def step(self, coef: np.ndarray, ftf: np.ndarray, update: Update) -> FactorSums:
        """Replace F by the next one: a task for each block."""
        scratch, width = self.blocks.scratch, len(ftf)
        shape = (self.blocks.n_samples, width)
        # A new array each time: a task that outlives its pass can only repeat what it wrote.
        out = self.folder.create(self.folder.unique("F"), shape, np.float64, self.blocks.rows)
        small = scratch.put(scratch.unique("small"), np.vstack([self.scale, ftf, coef]))
        reader = self.blocks.start_pass()
        context = replace(self._context(out, small), reader=reader, update=update)
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
        ending = map_reduce(
            _finish_task, self.blocks.bounds, merge_endings, context, self._start, label="ndfs end"
        )
        scratch.remove(small)
        forget(self._run)
        ending.distance = float(np.sqrt(ending.distance))
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
    """Return the steps of `StreamedPasses`: passes over X, and over F and the graph alone."""
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
    F = _scaled(context.F.read(start, stop), scale)
    SF = smoothed_rows(start, stop, context, scale)
    X = memory.get(
        context.run,
        ("X", start),
        lambda: _Rows(reader.read(start, stop)),
        context.keep_x_bytes if context.keeps_x else 0,
    ).X
    after, sums = block_step(X, F, SF, coef, ftf, context.update)
    context.out.write(start, after)
    return sums


def _finish_task(bounds: tuple[int, int], context: _Context, first: ArrayRef) -> Ending:
    """Compare one block of the final F with its start, and write the labels."""
    start, stop = bounds
    scale = context.small.load()[0]
    F = _scaled(context.F.read(start, stop), scale)
    SF = smoothed_rows(start, stop, context, scale)
    ending, labels = _look_back(F, SF, first.read(start, stop))
    context.out.write(start, labels)
    ending.distance **= 2
    return ending


def _look_back(F: np.ndarray, SF: np.ndarray, first: np.ndarray) -> tuple[Ending, np.ndarray]:
    """Return the details of the final F, and its labels."""
    labels = F.argmax(axis=1).astype(np.int32)
    changed = int((labels != first.argmax(axis=1)).sum())
    return Ending(smoothness(F, SF), float(np.linalg.norm(F - first)), changed), labels


@dataclass(frozen=True)
class _EdgeRows:
    """Rows of W, and ``D^-1/2`` of the same rows as a column."""

    indptr: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    root: np.ndarray

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.indptr, self.columns, self.weights, self.root))

    @classmethod
    def read(cls, W: AffinityMatrix, start: int, stop: int) -> _EdgeRows:
        indptr = W.indptr.read(start, stop + 1)
        first, last = int(indptr[0]), int(indptr[-1])
        root = 1 / np.sqrt(W.degrees.read(start, stop))[:, None]
        return cls(indptr - first, W.indices.read(first, last), W.data.read(first, last), root)


def smoothed_rows(start: int, stop: int, context: _Context, scale: np.ndarray) -> np.ndarray:
    """Return rows of ``D^-1/2 W D^-1/2 F``: the block's edges, and F where they lead to."""
    from scipy.sparse import csr_array

    W, F = context.W, context.F
    edges = memory.get(
        context.run, ("W", start), lambda: _EdgeRows.read(W, start, stop), context.keep_x_bytes
    )
    columns = edges.columns
    if F.nbytes + W.degrees.nbytes <= context.keep_f_bytes:
        key = ("F", F.path)
        memory.drop(context.run, "F", besides=key)
        budget = context.keep_x_bytes + context.keep_f_bytes
        everywhere = memory.get(
            context.run, key, lambda: _weighted(F.load(), scale, W.degrees.load()), budget
        )
    else:
        everywhere, columns = _halo(columns, context, scale)
    rows = csr_array((edges.weights, columns, edges.indptr), (stop - start, len(everywhere)))
    smoothed: np.ndarray = rows @ everywhere
    smoothed *= edges.root
    return smoothed


def _scaled(F: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return rows of F with scaled columns: in the safe update scales are 1, and copies cost."""
    return F if (scale == 1).all() else F * scale


def _weighted(F: np.ndarray, scale: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Return rows of ``D^-1/2 F``, in the memory of F where that is fresh."""
    scaled = _scaled(F, scale)
    root = np.sqrt(degrees)[:, None]
    return np.divide(scaled, root, out=scaled if scaled.flags.writeable else None)


def _halo(
    columns: np.ndarray, context: _Context, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of ``D^-1/2 F`` that edges lead to, and where each edge finds its own."""
    rows, places = np.unique(columns, return_inverse=True)
    F, degrees = context.F, context.W.degrees
    out = np.empty((len(rows), F.shape[1]))
    home = rows // F.chunk_rows
    for chunk in np.unique(home):
        in_chunk = home == chunk
        begin = int(chunk) * F.chunk_rows
        end = min(begin + F.chunk_rows, F.shape[0])
        inside = rows[in_chunk] - begin
        out[in_chunk] = _weighted(
            F.read(begin, end)[inside], scale, degrees.read(begin, end)[inside]
        )
    return out, places.astype(np.int32)


def squared_sums(F: ArrayRef, bounds: list[tuple[int, int]]) -> np.ndarray:
    """Return ``F'F``, without reading X."""
    return map_reduce(_ftf_task, bounds, np.add, F, label="F'F")


def _ftf_task(bounds: tuple[int, int], F: ArrayRef) -> np.ndarray:
    rows = F.read(*bounds)
    return np.asarray(rows.T @ rows)
