"""The Chebyshev iteration in one process: a block in panels of a few columns each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np

from bigfs.core.seeds import rng
from bigfs.spectral.coarse import (
    coarse_bytes,
    coarse_rows,
    group_rows,
    is_worth,
    most_entries,
    n_near,
)
from bigfs.spectral.eigsh import solve_dense
from bigfs.spectral.iteration import (
    FLOAT32_TOL,
    Iteration,
    Window,
    block_bytes,
    is_small,
    panel_widths,
)
from bigfs.spectral.kernels import RowKernel, aligned
from bigfs.spectral.problem import Eigenpairs, Problem, tiles
from bigfs.spectral.start import RANDOM_SHARE, SWEEPS, StoredStart
from bigfs.store.chunking import block_bounds


def solve_chebyshev(
    W: Any | Callable[[], Any],
    n_components: int,
    *,
    tol: float,
    random_state: int,
    n_threads: int = 1,
    start: StoredStart | None = None,
    partitions: np.ndarray | None = None,
) -> Eigenpairs:
    """Return the smallest eigenpairs of ``L y = lambda D y`` beyond the trivial one.

    Parameters, result and errors are those of `bigfs.spectral.eigsh.solve_eigsh`, and
    ``n_threads``, the threads of the products; the result is the same bits for any number.
    ``W`` may be a function that reads the matrix: it is read again at the end then, and not held
    in between, but for a copy in another order.
    Near ``start``, eigenvectors of a graph of the first rows, are those of all rows; without it
    the block begins near those of a coarse graph (`bigfs.spectral.coarse`). Most edges are within
    the ``partitions``, a number for each row.

    Notes
    -----
    Follows [1]_, with converged vectors locked, and degree and cut chosen before every round
    from the Ritz values and residuals of the one before. Rows are reordered (reverse
    Cuthill-McKee within partitions) so that neighbors are near each other in memory. Small
    problems are solved densely. Below a tolerance of 5e-5 the last rounds run in float64.

    References
    ----------
    .. [1] Y. Zhou, Y. Saad, M. L. Tiago, J. R. Chelikowsky, "Self-consistent-field calculations
       using Chebyshev-filtered subspace iteration", J. Comput. Phys. 219, 2006,
       doi:10.1016/j.jcp.2006.03.017.
    """
    load = W if callable(W) else lambda: W
    problem = Problem.of(load(), n_components, tol)
    if not problem.n_missing:
        return problem.finish(np.zeros(0), np.zeros((problem.n_samples, 0)))
    if is_small(problem):
        return solve_dense(problem)
    with PanelBlock(problem, random_state, n_threads, start, partitions) as block:
        mu = Iteration(problem, block, block.n_near).run()
    vectors = block.vectors(len(mu))
    problem.W = load()
    return replace(problem.finish(mu, vectors), guards=block.guards)


# Entries of W that are renumbered at a time.
_ENTRIES = 2**20
# Rounds of a rough solution, and the tolerance that they aim at.
_ROUGH_ROUNDS, _ROUGH_TOL = 3, 1e-2


class PanelBlock:
    """A `bigfs.spectral.iteration.Block` whose rows are in an order that keeps neighbors near.

    The filter takes one panel after the other, so its second buffer is as narrow as a panel.
    Use it in a ``with`` block, which ends the threads and lets the reordered W go; `vectors` is
    for afterwards.

    Parameters
    ----------
    problem : Problem
    random_state : int
        Seed of the start.
    n_threads : int
        Threads of the products; the result is the same bits for any number.
    start : StoredStart or None, default=None
        What the first columns begin with. None: eigenvectors of a coarse graph, if that is small
        enough; the others are random.
    partitions : ndarray of shape (n_samples,) or None, default=None
        Groups of rows within which most edges are.
    """

    def __init__(
        self,
        problem: Problem,
        random_state: int,
        n_threads: int,
        start: StoredStart | None = None,
        partitions: np.ndarray | None = None,
    ) -> None:
        self.problem, self._n_threads, self._start = problem, n_threads, start
        self._random = rng(random_state, "spectral")
        self._order = near_order(problem.W, partitions)
        self._degrees = problem.root[self._order] ** 2
        self._labels = problem.null.labels[self._order]
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self._locked: list[np.ndarray] = []
        self._active: list[np.ndarray] = []
        # Columns that begin near their end; and those beyond the result, once there is one.
        self.n_near = 0
        self.guards = np.empty((0, 0), np.float32)

    def __enter__(self) -> PanelBlock:
        problem = self.problem
        self._W = reordered(problem.W, self._order, weight_type(problem.W.data, problem.tol))
        problem.W = None
        csr = (self._W.indptr, self._W.indices, self._W.data)
        self._kernel = RowKernel(csr, self._degrees, self._n_threads)
        coarse = self._coarse() if self._start is None else None
        root = np.sqrt(self._degrees, dtype=np.float32)[:, None]
        for width in panel_widths(problem.n_missing):
            panel = aligned((problem.n_samples, width), np.float32)
            self._random.standard_normal(out=panel, dtype=np.float32)
            panel /= root
            self._active.append(panel)
        if self._start is not None:
            self._begin_near(self._start)
        elif coarse is not None:
            self._begin_coarse(*coarse)
        return self

    def _coarse(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the groups of rows, and vectors of shape (n_groups, n_near) of their graph.

        There is room for them, since the block is not there yet.
        """
        n, missing = self.problem.n_samples, self.problem.n_missing
        if not is_worth(n, 0):
            return None
        W = self._W
        groups, count = group_rows(W.indptr, W.indices, n)
        if not is_worth(n, count):
            return None
        room = block_bytes(n, missing, self.problem.tol)
        most, shape = most_entries(n, room), (count, count)
        W = coarse_rows((W.indptr, W.indices, W.data), groups, groups, shape, most)
        if W is None or coarse_bytes(count, W.nnz, n_near(missing)) > room:
            return None
        vectors = rough_vectors(W, self.problem.n_connected, n_near(missing), self._random)
        return None if vectors is None else (groups, vectors)

    def _begin_coarse(self, groups: np.ndarray, vectors: np.ndarray) -> None:
        """Let the first columns begin near vectors that are the same in each group of rows."""
        first, scale = 0, np.float32(np.sqrt(self.problem.n_samples))
        for panel in self._active:
            part = scale * vectors[:, first : first + panel.shape[1]]
            columns = panel[:, : part.shape[1]]
            columns *= np.float32(RANDOM_SHARE)
            for start, stop in tiles(len(panel)):
                columns[start:stop] += part[groups[start:stop]]
            first += panel.shape[1]
        self.n_near = vectors.shape[1]

    def _begin_near(self, start: StoredStart) -> None:
        """Let the first columns begin near a start; a little of the random ones stays in them.

        Each row that is new, or joined to a new one, is the mean of its neighbors, from some
        sweeps.
        """
        place = np.empty_like(self._order)
        place[self._order] = np.arange(len(place), dtype=place.dtype)
        columns, first = [], 0
        for panel in self._active:
            columns.append(panel[:, : max(0, start.width - first)])
            columns[-1][:] *= np.float32(RANDOM_SHARE)
            first += panel.shape[1]
        scale = np.float32(np.sqrt(self.problem.n_samples))
        for begin, end in block_bounds(start.n_samples, start.task_rows):
            rows, first = scale * start.read(begin, end), 0
            for part in columns:
                part[place[begin:end]] += rows[:, first : first + part.shape[1]]
                first += part.shape[1]
        new = place[start.n_samples :]
        joined = np.union1d(new, self._W[new].indices)
        W, degrees = self._W[joined], self._degrees[joined, None]
        for panel in self._active:
            for _ in range(SWEEPS):
                panel[joined] = (W @ panel) / degrees
        self.n_near = min(start.width, self.width)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kernel.close()
        # The vectors take the place of the reordered W.
        del self._W, self._kernel

    @property
    def n_locked(self) -> int:
        """Vectors that are locked."""
        return sum(panel.shape[1] for panel in self._locked)

    @property
    def width(self) -> int:
        """Vectors that are not."""
        return sum(panel.shape[1] for panel in self._active)

    def lanczos(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the diagonals of the tridiagonal matrix of some Lanczos steps."""
        root = np.sqrt(self._degrees)
        alpha, beta = np.zeros(steps), np.zeros(steps)
        last, v = np.zeros_like(root), self._random.standard_normal(len(root))
        v /= np.linalg.norm(v)
        for j in range(steps):
            z = (v / root)[:, None]
            following = self._kernel.product(z, 0, len(z))[:, 0] * root
            following -= beta[j - 1] * last if j else 0.0
            alpha[j] = following @ v
            following -= alpha[j] * v
            beta[j] = np.linalg.norm(following)
            last, v = v, following / beta[j]
        return alpha, beta

    def filter(self, window: Window, degree: int) -> None:
        """Replace every panel by the filter's polynomial of P times it."""
        steps, spare = window.recurrence(degree), np.empty((0, 0))
        for place, panel in enumerate(self._active):
            if spare.shape != panel.shape:
                del spare  # before there is another
                spare = aligned(panel.shape, panel.dtype)
            self._active[place], spare = self._filtered(panel, spare, steps)

    def _filtered(
        self, old: np.ndarray, new: np.ndarray, steps: list[tuple[float, float, float]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a panel after some steps of the recurrence, and the one before it."""
        for a, b, c in steps:
            self._kernel.step(old, new, a, b, c)
            old, new = new, old
        return old, new

    def project(self) -> None:
        """Remove the null space and the locked vectors."""
        volumes, width = self.problem.null.volumes, self.width
        means = np.zeros((len(volumes), width))
        shares = np.zeros((self.n_locked, width))
        for start, stop in tiles(len(self._degrees)):
            z = _rows(self._active, start, stop)
            means += self._members(start, stop) @ z
            z *= self._degrees[start:stop, None]
            shares += _rows(self._locked, start, stop).T @ z
        means /= volumes[:, None]
        for start, stop in tiles(len(self._degrees)):
            z = _rows(self._active, start, stop)
            z -= means[self._labels[start:stop]]
            z -= _rows(self._locked, start, stop) @ shares
            self._store(z, start, stop)

    def grams(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``Z'DZ`` and ``Z'DPZ``."""
        overlap, energy = np.zeros((2, self.width, self.width))

        def part(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
            z = _rows(self._active, start, stop)
            weighted = self._degrees[start:stop, None] * z
            return z.T @ weighted, weighted.T @ self._product(start, stop)

        for of_overlap, of_energy in self._kernel.map(part, tiles(len(self._degrees))):
            overlap += of_overlap
            energy += of_energy
        return overlap, energy

    def rotate(self, turn: np.ndarray) -> None:
        """Replace Z by ``Z turn``."""
        for start, stop in tiles(len(self._degrees)):
            self._store(_rows(self._active, start, stop) @ turn, start, stop)

    def squares(self, mu: np.ndarray) -> np.ndarray:
        """Return the squared residuals of the vectors."""
        total = np.zeros(self.width)

        def part(start: int, stop: int) -> np.ndarray:
            gap = self._product(start, stop)
            gap -= mu * _rows(self._active, start, stop)
            gap *= gap
            return self._degrees[start:stop] @ gap

        for squares in self._kernel.map(part, tiles(len(self._degrees))):
            total += squares
        return total

    def lock(self, count: int) -> int:
        """Lock leading panels."""
        before = self.n_locked
        while self._active[0].shape[1] <= count - (self.n_locked - before):
            self._locked.append(self._active.pop(0))
        return self.n_locked - before

    def refine(self) -> None:
        """Go on in float64."""
        self.dtype = np.dtype(np.float64)
        for panels in (self._locked, self._active):
            for place, panel in enumerate(panels):
                panels[place] = aligned(panel.shape, np.float64)
                panels[place][:] = panel

    def saved(self) -> None:
        """Return nothing: a task begins anew."""

    def commit(self, state: dict[str, Any]) -> None:
        """Keep nothing."""

    def vectors(self, count: int) -> np.ndarray:
        """Return unit vectors ``u = D^1/2 z`` in the graph's own order, float64; panels go.

        The columns beyond those asked for become the `guards`, but for those that began anywhere
        where others did not.
        """
        vectors = np.empty((self.problem.n_samples, count))
        root, panels, first = np.sqrt(self._degrees), self._locked + self._active, 0
        self._locked, self._active = [], []
        widths = np.cumsum([0] + [panel.shape[1] for panel in panels])
        missing = self.problem.n_missing
        known = self.n_near or int(widths[-1])
        beyond = [
            panel[:, max(0, missing - begin) : max(0, known - begin)]
            for panel, begin in zip(panels, widths[:-1].tolist(), strict=True)
        ]
        self.guards = np.empty((len(vectors), known - missing), np.float32)
        self.guards[self._order] = np.hstack(beyond, dtype=np.float32, casting="same_kind")
        del beyond
        while first < count:
            panel = panels.pop(0)[:, : count - first]
            last = first + panel.shape[1]
            for start, stop in tiles(len(vectors)):
                rows = panel[start:stop].astype(np.float64) * root[start:stop, None]
                vectors[self._order[start:stop], first:last] = rows
            first = last
        del panels, panel
        return self._orthonormal(vectors)

    def _orthonormal(self, vectors: np.ndarray) -> np.ndarray:
        """Make vectors that are orthonormal in float32 so in float64, in place."""
        null = self.problem.null
        overlap = np.zeros((vectors.shape[1],) * 2)
        for column in vectors.T:
            column -= null.project(column)
        for start, stop in tiles(len(vectors)):
            overlap += vectors[start:stop].T @ vectors[start:stop]
        turn = np.linalg.inv(np.linalg.cholesky(overlap)).T
        for start, stop in tiles(len(vectors)):
            vectors[start:stop] = vectors[start:stop] @ turn
        return vectors

    def _product(self, start: int, stop: int) -> np.ndarray:
        """Return rows of ``P Z``, float64."""
        parts = [self._kernel.product(panel, start, stop) for panel in self._active]
        return np.hstack(parts, dtype=np.float64)

    def _store(self, rows: np.ndarray, start: int, stop: int) -> None:
        """Write rows of Z into the panels."""
        first = 0
        for panel in self._active:
            panel[start:stop] = rows[:, first : first + panel.shape[1]]
            first += panel.shape[1]

    def _members(self, start: int, stop: int) -> Any:
        """Return the degrees as an (n_components, rows) matrix: a column per row of the graph."""
        return members(
            self._degrees[start:stop], self._labels[start:stop], self.problem.n_connected
        )


def rough_vectors(
    W: Any, n_connected: int, n_vectors: int, random: np.random.Generator
) -> np.ndarray | None:
    """Return vectors ``y`` near the smallest eigenpairs of ``L y = lambda D y``.

    Parameters
    ----------
    W : scipy CSR matrix of shape (n_rows, n_rows), float64
        A coarse graph; its diagonal counts.
    n_connected : int
        Its connected components.
    n_vectors : int
        Beyond the null space.
    random : Generator
        Gives the seed.

    Returns
    -------
    vectors : ndarray of shape (n_rows, n_vectors), float32
        None instead if the graph has not so many.
    """
    if len(W.indptr) - 1 - n_connected <= n_vectors:
        return None
    problem = Problem.of(W, n_connected - 1 + n_vectors, _ROUGH_TOL)
    if is_small(problem):
        return solve_dense(problem).vectors[:, problem.n_known :].astype(np.float32)
    root = problem.root[:, None]
    with PanelBlock(problem, int(random.integers(2**31)), 1) as block:
        Iteration(problem, block, block.n_near).run_roughly(_ROUGH_ROUNDS)
    return (block.vectors(n_vectors) / root).astype(np.float32)


def members(degrees: np.ndarray, labels: np.ndarray, n_connected: int) -> Any:
    """Return the degrees of some rows as a sparse (n_connected, n_rows) matrix."""
    from scipy.sparse import csc_array

    pointers = np.arange(len(degrees) + 1)
    return csc_array((degrees, labels, pointers), shape=(n_connected, len(degrees)))


def _rows(panels: list[np.ndarray], start: int, stop: int) -> np.ndarray:
    """Return rows of all panels side by side, float64: a copy."""
    if not panels:
        return np.zeros((stop - start, 0))
    return np.hstack([panel[start:stop] for panel in panels], dtype=np.float64)


def near_order(W: Any, groups: np.ndarray | None) -> np.ndarray:
    """Return the rows in an order that keeps neighbors near: Cuthill-McKee within groups.

    Of many rows, Cuthill-McKee alone leaves neighbors farther apart than a processor's cache.
    """
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(W, symmetric_mode=True)
    return order if groups is None else order[np.argsort(groups[order], kind="stable")]


def reordered(W: Any, order: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Return W with rows and columns in the given order; columns are not sorted.

    Weights get the type that is given.
    """
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    data = W.data.astype(dtype, copy=False)
    rows = type(W)((data, W.indices, W.indptr), shape=W.shape)[order]
    for start in range(0, len(rows.indices), _ENTRIES):
        part = rows.indices[start : start + _ENTRIES]
        part[:] = place[part]
    return rows


def weight_type(weights: np.ndarray, tol: float) -> np.dtype[Any]:
    """Return the type weights are multiplied in: float32 if that is exact or exact enough."""
    single = tol >= FLOAT32_TOL or bool((weights.astype(np.float32) == weights).all())
    return np.dtype(np.float32 if single else np.float64)
