"""Thin blocks of vectors in storage, in the order of the graph's rows, and the tasks on them.

Vectors are stored in one file per block of rows, which contains one panel of columns after the
other, or in one file per panel, which contains one block of rows after the other. So a task can
read one panel of all rows or some rows of all panels from either. Every attempt of a task writes a
file of its own, and `Vectors` names the committed attempts: nothing else is ever read.

Chebyshev's recurrence is independent for each column. A task reads W and its panel once, and
multiplies many times. W is held or read for each product (`bigfs.spectral.operator.Transition`).
All other tasks process some rows of all vectors: sums, small rotations, signs, and the embedding.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bigfs.core.seeds import rng
from bigfs.spectral.kernels import aligned
from bigfs.spectral.operator import StoredGraph, Transition
from bigfs.spectral.problem import PIVOT_TIE, SIGN_TIE, TILE_ROWS
from bigfs.store.location import Location, as_location, read_into, replaced_file
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef, block_bounds

# Number of smoothing sweeps over the neighbors of new rows before a start is used.
SWEEPS = 8
# Share of the random block kept in the columns of a start, so that no direction is missing.
_RANDOM_SHARE = 1e-3


@dataclass(frozen=True)
class Vectors:
    """Addresses of the vectors z; JSON values."""

    folder: str
    step: int  # distinguishes the vectors of one folder
    n_samples: int
    block_rows: int
    dtype: str
    widths: Sequence[int]  # columns of each panel
    by_panel: bool  # one file per panel; otherwise one per block of rows
    done: int = 0  # completed steps of the recurrence
    attempts: Sequence[int | None] = ()  # the committed attempt of each file; None: no such file

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First row of each block, and one past its last."""
        return block_bounds(self.n_samples, self.block_rows)

    def _path(self, file: int, attempt: int) -> Location:
        kind = "panel" if self.by_panel else "rows"
        return as_location(self.folder) / f"{kind}-{self.step:06d}-{file:05d}-{attempt:016x}"

    def write(self, file: int, parts: Iterable[np.ndarray]) -> int:
        """Write a file of consecutive arrays; return the attempt."""
        attempt = secrets.randbits(62)
        with replaced_file(self._path(file, attempt), sync=False, own=True) as out:
            for part in parts:
                out.write(part.ravel().view("u1").data)
                del part  # before the next one is created
        return attempt

    def read_panel(
        self, start: int, stop: int, panel: int, second: str | None = None
    ) -> np.ndarray:
        """Read some rows of a panel; within one block unless there is a file per panel.

        With ``second``, a dtype, read the array that follows the vectors in a panel's file: their
        products, or the previous vectors of the recurrence.
        """
        size, width = np.dtype(self.dtype).itemsize, self.widths[panel]
        out = np.empty((stop - start, width), second or self.dtype)
        file, begin = panel, start * width * out.itemsize
        if not self.by_panel:
            file = start // self.block_rows
            first, last = self.bounds[file]
            begin += ((last - first) * sum(self.widths[:panel]) - first * width) * size
        elif second:
            begin += self.n_samples * width * size
        attempt = self.attempts[file]
        assert attempt is not None
        with open_own(self._path(file, attempt), buffering=0) as source:
            read_into(source, begin, out)
        return out

    def read(
        self, start: int, stop: int, second: str | None = None,
        columns: tuple[int, int] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Read some rows, float64: all columns, or those in the range ``columns``."""
        first, last = columns or (0, sum(self.widths))
        out, begin = np.empty((stop - start, last - first)), 0
        for panel, width in enumerate(self.widths):
            low, high = max(first, begin), min(last, begin + width)
            if low < high:
                part = self.read_panel(start, stop, panel, second)[:, low - begin : high - begin]
                out[:, low - first : high - first] = part
            begin += width
        return out

    def remove(self) -> None:
        """Delete the files."""
        for file, attempt in enumerate(self.attempts):
            if attempt is not None:
                self._path(file, attempt).unlink(missing_ok=True)


@dataclass(frozen=True)
class StoredStart:
    """Eigenvectors of a graph's first rows, a start for those of the whole graph."""

    embedding: ArrayRef  # of shape (n_old, n_components), float64: of the graph of the first rows
    guards: ArrayRef  # of shape (n_old, n_guards), float32: further vectors, less accurate
    n_known: int  # number of leading vectors in the null space, which are skipped

    @property
    def width(self) -> int:
        """Number of vectors."""
        return self.embedding.shape[1] - self.n_known + self.guards.shape[1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read consecutive rows, (stop - start, width) float32."""
        vectors = self.embedding.read(start, stop)[:, self.n_known :].astype(np.float32)
        return np.hstack([vectors, self.guards.read(start, stop)])


@dataclass(frozen=True)
class Begin:
    """The initial vectors of a block; columns without an approximation are random."""

    random_state: int
    start: StoredStart | None = None  # eigenvectors of the first rows
    # Of shape (n_samples,), int32, and (n_groups, n_near), float32: vectors that are constant on
    # each group of rows.
    groups: ArrayRef | None = None
    vectors: ArrayRef | None = None
    n_near: int = 0  # number of leading columns that approximate their eigenvectors


def begin_task(panel: int, graph: StoredGraph, begin: Begin, target: Vectors) -> int:
    """Write a panel of the initial block of an iteration; return the attempt."""
    first, width = sum(target.widths[:panel]), target.widths[panel]
    root = np.sqrt(graph.W.degrees.load(), dtype=np.float32)
    X = np.empty((graph.n_samples, width), target.dtype)
    for j in range(width):
        generator = rng(begin.random_state, "spectral", first + j)
        X[:, j] = generator.standard_normal(len(X), dtype=np.float32) / root
    near = slice(0, max(0, min(begin.n_near - first, width)))
    X[:, near] *= np.float32(_RANDOM_SHARE)
    scale = np.float32(np.sqrt(graph.n_samples))
    columns = slice(first, first + near.stop)
    if begin.start is not None:
        former = begin.start.embedding
        for start, stop in block_bounds(former.shape[0], former.chunk_rows):
            X[start:stop, near] += scale * begin.start.read(start, stop)[:, columns]
    if begin.groups is not None and begin.vectors is not None and near.stop:
        vectors = np.empty((begin.vectors.shape[0], near.stop), np.float32)
        for start, stop in block_bounds(len(vectors), begin.vectors.chunk_rows):
            vectors[start:stop] = scale * begin.vectors.read(start, stop)[:, columns]
        for start, stop in target.bounds:
            X[start:stop, near] += vectors[begin.groups.read(start, stop)]
    return target.write(panel, [X])


def copy_columns(bounds: tuple[int, int], source: Vectors | ArrayRef, out: ArrayRef) -> None:
    """Store the first columns of a block of rows."""
    out.write(bounds[0], source.read(*bounds)[:, : out.shape[1]])


def filter_task(
    panel: int,
    graph: StoredGraph,
    source: Vectors,
    state: Vectors | None,
    target: Vectors,
    steps: Sequence[tuple[float, float, float]],
    n_frozen: int,
    is_last: bool,
    begin: Begin,
) -> int:
    """Apply some steps of the recurrence to a panel, from ``source`` or continuing at ``state``.

    The first ``n_frozen`` panels are unchanged. The file contains the vectors and, after the last
    step, their products P z in float64, otherwise the previous vectors. Returns the attempt.
    """
    products, width, first = Transition(graph), target.widths[panel], sum(target.widths[:panel])
    X, Y = (aligned((graph.n_samples, width), target.dtype) for _ in range(2))
    frozen = panel < n_frozen
    for start, stop in target.bounds:
        where = products.where(start, stop)
        if state is not None and not frozen:
            X[where] = state.read_panel(start, stop, panel)
            Y[where] = state.read_panel(start, stop, panel, target.dtype)
        else:
            X[where] = source.read(start, stop, columns=(first, first + width))
    if begin.start is not None and state is None:
        is_new = np.ones(graph.n_samples, bool)
        is_new[products.where(0, begin.start.embedding.shape[0])] = False
        products.smooth(X, is_new, SWEEPS)
    for scalars in () if frozen else steps:
        products.step(X, Y, *scalars)
        X, Y = Y, X
    if is_last:
        Y = X  # frees memory that rows of W need when they are read for the products

    def parts() -> Iterator[np.ndarray]:
        for start, stop in target.bounds:
            yield X[products.where(start, stop)]
        for start, stop in target.bounds:
            yield products.product(X, start, stop) if is_last else Y[products.where(start, stop)]

    return target.write(panel, parts())


def lanczos_task(steps: int, graph: StoredGraph, random_state: int) -> np.ndarray:
    """Return the diagonals of the tridiagonal matrix after some Lanczos steps, shape (2, steps)."""
    products = Transition(graph)
    root = np.empty(graph.n_samples)
    root[products.where(0, graph.n_samples)] = np.sqrt(graph.W.degrees.load())
    alpha, beta = np.zeros((2, steps))
    v = np.empty_like(root)
    draw: Any = rng(random_state, "spectral bound").standard_normal(len(root))
    v[products.where(0, graph.n_samples)] = draw
    v /= np.linalg.norm(v)
    last, following = np.zeros_like(root), np.empty((len(root), 1))
    for j in range(steps):
        products.step((v / root)[:, None], following, 1.0, 0.0, 0.0)
        w = following[:, 0] * root
        w -= beta[j - 1] * last if j else 0.0
        alpha[j] = w @ v
        w -= alpha[j] * v
        beta[j] = np.linalg.norm(w)
        last, v = v, w / beta[j]
    return np.stack([alpha, beta])


def sums_task(bounds: tuple[int, int], graph: StoredGraph, filtered: Vectors) -> np.ndarray:
    """Return ``1'DZ`` of each component and, stacked below, ``Z'DZ`` and ``Z'DPZ``."""
    from scipy.sparse import csc_array

    degrees, labels = graph.W.degrees.read(*bounds), graph.labels.read(*bounds)
    z, product = filtered.read(*bounds), filtered.read(*bounds, "float64")
    pointers = np.arange(len(z) + 1)
    members = csc_array((degrees, labels, pointers), shape=(graph.n_connected, len(z)))
    overlap, energy = np.zeros((2, z.shape[1], z.shape[1]))
    for start, stop in block_bounds(len(z), TILE_ROWS):
        weighted = degrees[start:stop, None] * z[start:stop]
        overlap += z[start:stop].T @ weighted
        energy += weighted.T @ product[start:stop]
    return np.vstack([members @ z, overlap, energy])


@dataclass(frozen=True)
class RitzVectors:
    """Filtered vectors minus their means on each component, rotated to Ritz vectors."""

    filtered: Vectors
    means: ArrayRef  # of shape (n_connected, width)
    turn: ArrayRef  # of shape (width, width)

    @classmethod
    def open(cls, filtered: dict[str, Any], **refs: dict[str, Any]) -> RitzVectors:
        """Return the vectors given in a record."""
        arrays = {name: ArrayRef.at(ref["path"]) for name, ref in refs.items()}
        return cls(Vectors(**filtered), **arrays)

    def rows(
        self, graph: StoredGraph, bounds: tuple[int, int], second: str | None = None
    ) -> np.ndarray:
        """Return some rows of the vectors, or of their products with P if ``second`` is "float64".

        P is the identity on the null space, so the same means are subtracted from both.
        """
        null = self.means.load()[graph.labels.read(*bounds)]
        return np.asarray((self.filtered.read(*bounds, second) - null) @ self.turn.load())


def turn_task(
    bounds: tuple[int, int],
    graph: StoredGraph,
    turned: RitzVectors,
    target: Vectors,
    mu: np.ndarray,
) -> tuple[int, np.ndarray]:
    """Store a block of rows of Ritz vectors, and compute their residuals.

    Returns the attempt and the contributions of these rows to the squared residuals.
    """
    degrees = graph.W.degrees.read(*bounds)
    z, product = turned.rows(graph, bounds), turned.rows(graph, bounds, "float64")
    squares = np.zeros(len(mu))
    for start, stop in block_bounds(len(z), TILE_ROWS):
        gap = product[start:stop] - mu * z[start:stop]
        squares += degrees[start:stop] @ (gap * gap)
    parts = np.split(z.astype(target.dtype, copy=False), np.cumsum(target.widths)[:-1], axis=1)
    return target.write(bounds[0] // target.block_rows, parts), squares


@dataclass(frozen=True)
class Final:
    """The requested vectors y, as linear combinations of the last z."""

    z: RitzVectors | None  # None: all vectors are in the null space
    # Of shape (n_connected, n_known): the vectors of the null space, constant on each component.
    levels: ArrayRef
    turn: ArrayRef  # of shape (width, n_columns)

    def rows(
        self, graph: StoredGraph, bounds: tuple[int, int], second: str | None = None
    ) -> np.ndarray:
        """Return some rows of the vectors, or of their products, as `RitzVectors.rows` does."""
        known = self.levels.load()[graph.labels.read(*bounds)]
        if self.z is None:
            return known
        return np.hstack([known, self.z.rows(graph, bounds, second) @ self.turn.load()])


@dataclass(frozen=True)
class Measure:
    """Columns among which the largest entry is searched."""

    columns: tuple[int, int]
    # None: the size is that of every entry. Otherwise the D-weighted squared norm of the rows after
    # projecting out the span of these columns.
    turn: np.ndarray | None = None

    def sizes(self, rows: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns of rows, and the sizes to compare, one column for each comparison.

        ``root`` holds the square roots of the rows' degrees.
        """
        rows = rows[:, slice(*self.columns)]
        if self.turn is None:
            return rows, np.abs(rows)
        rows = rows * root[:, None]
        left = np.einsum("ij,ij->i", rows, rows) - ((rows @ self.turn) ** 2).sum(axis=1)
        return rows, left[:, None]


class Pivot(NamedTuple):
    """The first row whose size in a column is the largest up to a tie, and its replacements.

    Rows are ascending, and each is larger than those before it: if later blocks contain rows larger
    than the first one by more than the tie, one of the others is the pivot.
    """

    tie: float  # relative difference to the largest size up to which sizes are equal
    rows: list[tuple[int, float, np.ndarray]]  # number of the row, size, columns

    def join(self, other: Pivot) -> Pivot:
        """Return the pivot among the rows of both."""
        rows = sorted(self.rows + other.rows, key=lambda row: row[0])
        least = _least(max(size for _, size, _ in rows), self.tie)
        kept: list[tuple[int, float, np.ndarray]] = []
        for row in rows:
            if row[1] >= least and (not kept or row[1] > kept[-1][1]):
                kept.append(row)
        return Pivot(self.tie, kept)


def _least(largest: float, tie: float) -> float:
    """Return the least size that ties with the largest, which may be negative from rounding."""
    return min(largest, (1.0 - tie) * largest)


def pivots_task(
    bounds: tuple[int, int], graph: StoredGraph, final: Final, measures: Sequence[Measure]
) -> list[Pivot]:
    """Return the pivots of each column of each measure among the rows of a block."""
    vectors, root = final.rows(graph, bounds), np.sqrt(graph.W.degrees.read(*bounds))
    pivots = []
    for measure in measures:
        rows, sizes = measure.sizes(vectors, root)
        tie = SIGN_TIE if measure.turn is None else PIVOT_TIE
        for size in sizes.T:
            near = np.flatnonzero(size >= _least(size.max(), tie))
            near = near[np.diff(np.maximum.accumulate(size[near]), prepend=-np.inf) > 0]
            # Copies, since a view would keep the whole block in memory.
            leading = [(bounds[0] + i, float(size[i]), rows[i].copy()) for i in near.tolist()]
            pivots.append(Pivot(tie, leading))
    return pivots


def join_pivots(a: list[Pivot], b: list[Pivot]) -> list[Pivot]:
    """Combine two results of `pivots_task`."""
    return [pivot.join(other) for pivot, other in zip(a, b, strict=True)]


def write_task(
    bounds: tuple[int, int],
    graph: StoredGraph,
    final: Final,
    factors: np.ndarray,
    values: np.ndarray,
    out: ArrayRef,
    guards: ArrayRef | None,
) -> np.ndarray:
    """Write a chunk of the embedding, and of the guards beyond it.

    Parameters
    ----------
    bounds : tuple of (int, int)
    graph : StoredGraph
    final : Final
        Its first columns are the embedding, the others are the guards.
    factors, values : ndarray of shape (n_components,)
        Signs of the vectors, and their eigenvalues.
    out, guards : ArrayRef

    Returns
    -------
    sums : ndarray of shape (2, n_components)
        Squares of the vectors' entries, and squared residuals.
    """
    start, count = bounds[0], out.shape[1]
    rows, products = (final.rows(graph, bounds, kind) for kind in (None, "float64"))
    y = rows[:, :count] * factors
    gap = products[:, :count] * factors - (1.0 - values) * y
    out.write(start, y)
    if guards is not None:
        guards.write(start, rows[:, count : count + guards.shape[1]].astype(np.float32))
    degrees = graph.W.degrees.read(*bounds)
    return np.stack([np.einsum("ij,ij->j", y, y), degrees @ (gap * gap)])
