"""The spectral embedding of a graph: smallest eigenpairs of L y = lambda D y.

The eigenproblem runs as one task on a worker, which reads W from storage and writes the
embedding back, or on row blocks, as many tasks: neither W nor the vectors reach the client.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigfs.core.checks import check_choice, check_count
from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.core.units import parse_bytes
from bigfs.graph import AffinityMatrix, KNNGraph, affinity, affinity_from_csr
from bigfs.runtime.execute import run_tasks
from bigfs.spectral.chebyshev import solve_chebyshev
from bigfs.spectral.choice import (
    CLEAR_GAP,
    SOLVERS,
    SPECTRUM,
    choose_solver,
    count_before_bulk,
    relative_gaps,
    suggest_n_clusters,
)
from bigfs.spectral.distributed import solve_distributed
from bigfs.spectral.eigsh import Stalled, solve_eigsh
from bigfs.spectral.iteration import block_width
from bigfs.spectral.lobpcg import solve_lobpcg
from bigfs.spectral.problem import GUARDS, Eigenpairs
from bigfs.spectral.start import StoredStart
from bigfs.store.chunking import chunk_rows as chunk_rows_of
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes

# Attributes of an embedding that are stored beside its vectors.
_ARRAYS = ("eigenvalues", "norms", "residuals", "spectrum")
_VALUES = (
    "edge",
    "tol",
    "n_connected_components",
    "solver",
    "reason",
    "n_products",
    "n_iterations",
    "n_guards",
    "details",
)


@dataclass(frozen=True)
class SpectralEmbedding:
    """Eigenpairs of a graph's normalized Laplacian, without the trivial one.

    Attributes
    ----------
    eigenvalues : ndarray of shape (n_components,), float64
        Ascending eigenvalues of ``L y = lambda D y``.
    embedding_ref : ArrayRef of shape (n_samples, n_components), float64
        The eigenvectors y with unit D-norm, ``y'Dy = 1``, and a fixed sign.
    norms : ndarray of shape (n_components,), float64
        Euclidean norms of the y, for methods that scale them to one.
    residuals : ndarray of shape (n_components,), float64
        ``|S u - (1 - lambda) u|`` of the unit vectors ``u = D^1/2 y``: at most ``tol``, but for
        pairs of the bulk, which are left as they are where they are slow.
    edge : float
        The largest eigenvalue that was looked at, of those asked for and some beyond.
    tol : float
        What residuals were to be.
    n_connected_components : int
        Of the graph; each beyond the first gives one eigenvalue of zero.
    spectrum : ndarray of shape (n_computed,), float64
        All eigenvalues that were computed, ascending: those of the embedding and, if their
        number was "auto", the ones beyond the gap.
    solver, reason : str
        The solver that ran, and why this one.
    n_products : int
        Products of W with one vector that it took.
    n_iterations : int
        Rounds of the solver.
    scratch : Scratch
        Keeps the stored embedding alive.
    n_guards : int
        Vectors beyond those asked for that are kept for an update.
    details : dict
        Of a solution on row blocks: how many, the rows they need of each other, and what was
        read of other blocks; see `bigfs.spectral.distributed.solve_distributed`.
    """

    eigenvalues: np.ndarray
    embedding_ref: ArrayRef
    norms: np.ndarray
    residuals: np.ndarray
    edge: float
    tol: float
    n_connected_components: int
    spectrum: np.ndarray
    solver: str
    reason: str
    n_products: int
    n_iterations: int
    scratch: Scratch
    n_guards: int = 0
    details: dict[str, int] = field(default_factory=dict)

    @property
    def embedding(self) -> Any:
        """The eigenvectors as a zarr array, read when asked."""
        return self.embedding_ref.open(self.scratch)

    def describe(self) -> dict[str, Any]:
        """Return the metadata that `open` needs beside the stored embedding, as JSON values."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return {**arrays, **{name: getattr(self, name) for name in _VALUES}}

    def _n_before_bulk(self) -> int | None:
        """Return how many pairs come before the bulk; None: all, or no gap."""
        missing = max(0, len(self.eigenvalues) - self.n_connected_components + 1)
        n_guards = block_width(missing) - missing if self.solver == "chebyshev" else GUARDS
        return count_before_bulk(self.eigenvalues, self.edge, n_guards)

    def notes(self) -> list[str]:
        """Return notes on which pairs describe groups, and how "auto" chose their number."""
        sentences, values = [], [f"{value:.3g}" for value in self.spectrum]
        kept, n_late = len(self.eigenvalues), int((self.residuals > self.tol).sum())
        if kept < len(values):
            gaps = relative_gaps(self.spectrum)
            is_clear = gaps.max() >= CLEAR_GAP
            at = kept if is_clear else int(gaps.argmax()) + 2
            where = f"the {at - 1}. is {values[at - 2]}, the {at}. {values[at - 1]}"
            sentences.append(
                f"n_clusters auto: {kept}, at the last clear gap between the first {len(values)} "
                f"eigenvalues of the graph: {where}."
                if is_clear
                else f"n_clusters auto: {kept}, without a clear gap between the first "
                f"{len(values)} eigenvalues of the graph (the largest: {where}). Too few cost "
                "more than too many; give n_clusters if you know it."
            )
        elif (n_groups := self._n_before_bulk()) is not None:
            sentences.append(
                f"{n_groups} of {kept} eigenvectors describe groups, the others belong to the bulk "
                f"of the spectrum, which begins at {values[n_groups]}: {n_groups} would do, which "
                f"tell {n_groups + 1} groups apart."
                if n_groups
                else f"No eigenvector describes groups: even the first one, {values[0]}, belongs "
                "to the bulk of the spectrum. The data may have no groups."
            )
        if n_late:
            sentences.append(
                f"{n_late} eigenvectors of the bulk are known to a residual of "
                f"{self.residuals.max():.1g}, not {self.tol:g}: no gap sets them apart from those "
                "beyond."
            )
        return sentences

    @classmethod
    def open(cls, path: Location) -> SpectralEmbedding:
        """Return the embedding that was stored in a folder."""
        stored = read_attributes(path)
        values: dict[str, Any] = {name: np.array(stored[name]) for name in _ARRAYS}
        values |= {name: stored[name] for name in _VALUES if name in stored}
        return cls(embedding_ref=ArrayRef.at(path / "embedding"), scratch=Scratch(path), **values)


def spectral_embedding(
    graph: Any,
    n_components: int | str,
    *,
    solver: str = "auto",
    distributed: bool | None = None,
    tol: float = 1e-6,
    random_state: int = 0,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    scratch: Scratch | None = None,
    chunk_rows: int | None = None,
    checkpoint: Location | None = None,
    start: SpectralEmbedding | None = None,
    keeps_guards: bool = True,
) -> SpectralEmbedding:
    """Return the smallest non-trivial eigenpairs of ``L y = lambda D y``.

    The vector of ones (``D^1/2 1`` of the normalized problem) is projected out and
    ``n_components`` more are returned, the null space of further connected components included.

    Parameters
    ----------
    graph : AffinityMatrix, KNNGraph or scipy sparse matrix of shape (n_samples, n_samples)
        Affinity W: symmetric, not negative, zero diagonal. A `KNNGraph` gets binary weights.
    n_components : int or "auto"
        Number of eigenvectors, in [1, n_samples - 1]. "auto": the number of clusters at the
        last clear gap among the first 30 eigenvalues, or 8 or more if no gap is clear.
    solver : {"auto", "eigsh", "lobpcg", "chebyshev"}, default="auto"
        ``eigsh`` is scipy's ARPACK on D^-1/2 W D^-1/2; ``lobpcg`` scipy's block method with a
        multigrid preconditioner; ``chebyshev`` a filtered subspace iteration, the fastest for
        many rows and the one of least memory. ``auto`` takes eigsh where it fits and rows are
        at most 100,000, and otherwise chebyshev.
    distributed : bool or None, default=None
        Whether ``chebyshev`` (or ``auto``) runs on row blocks, as tasks that all workers share.
        None: where one task cannot hold W and the vectors, or rows are 2,000,000 or more; the
        filter then takes a few columns of all rows as one task, if W and these fit, and row blocks
        otherwise. Small graphs never do.
    tol : float, default=1e-6
        Largest residual accepted.
    random_state : int, default=0
        Seed of the start vector.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.
    scratch : Scratch or None, default=None
        Where the embedding is stored. None: a temporary folder that lives with the result.
    chunk_rows : int or None, default=None
        Rows per stored chunk of the embedding; None: one chunk, or several on row blocks.
    checkpoint : Path, ObjectPath or None, default=None
        Folder that outlives an interrupted run: on row blocks the next one goes on from the last
        product.
    start : SpectralEmbedding or None, default=None
        That of the first rows' graph by the solver ``chebyshev``, near which the same solver
        begins.
    keeps_guards : bool, default=True
        Whether the vectors beyond those asked for are stored too, which a ``start`` needs.

    Returns
    -------
    result : SpectralEmbedding

    Raises
    ------
    InputError
        If ``n_components`` or ``solver`` is out of range or W is not an affinity matrix.
    ConvergenceError
        If a residual stays above ``tol``; the message gives them.
    MemoryLimitError
        If W and the basis do not fit one worker, or not even row blocks do.

    Notes
    -----
    Implements eq. (1) of [1]_ through the largest eigenpairs of ``S = D^-1/2 W D^-1/2``, so no
    factorization is needed. Cost: no pass over X; one worker holds W twice and the vectors. On
    row blocks a task holds those of a block; W goes through scratch once and the vectors at every
    product, of which workers read from other blocks the rows that their edges lead to.
    The number of clusters is that of `bigfs.spectral.choice.suggest_n_clusters`.

    References
    ----------
    .. [1] D. Cai, C. Zhang, X. He, "Unsupervised feature selection for multi-cluster data",
       KDD 2010, section 3.1, doi:10.1145/1835804.1835848.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from bigfs import knn_graph, spectral_embedding
    >>> graph = knn_graph(load_digits().data, 5)
    >>> spectral_embedding(graph, 3).embedding.shape
    (1797, 3)
    """
    check_choice("solver", solver, SOLVERS)
    scratch = scratch or Scratch()
    W = _as_affinity(graph, scratch)
    n_samples = W.n_samples
    n_computed = _check_n_components(n_components, n_samples)
    limit = parse_bytes(memory_limit)
    choice = choose_solver(
        solver, n_samples, W.nnz, n_computed, tol, limit, distributed, W.weight == "binary"
    )
    name = "embedding" if n_components != "auto" else "embedding-computed"
    if choice.distributed and chunk_rows is None:
        chunk_rows = chunk_rows_of(n_computed, 8)
    out = scratch.create(name, (n_samples, n_computed), np.float64, chunk_rows)
    folder = str(scratch.path) if keeps_guards and n_components != "auto" else None
    if choice.distributed:
        working = scratch.child(scratch.unique("spectral"))
        solution = solve_distributed(
            W, n_computed, out, working,
            tol=tol, random_state=random_state, most_rows=choice.most_rows,
            strip_row_bytes=choice.strip_row_bytes, checkpoint=checkpoint, start=_stored(start),
            guards_folder=folder,
        )  # fmt: skip
    else:
        task = _Eigenproblem(choice.solver, n_computed, tol, random_state, folder, _stored(start))
        [solution] = run_tasks(_solve, [task], W, out, label="spectral", unit="", notes=True)
    spectrum = solution["eigenvalues"]
    if n_components == "auto":
        kept = suggest_n_clusters(spectrum)
        out = _first_columns(out, kept, scratch)
        for name in ("eigenvalues", "norms", "residuals"):
            solution[name] = solution[name][:kept]
    return SpectralEmbedding(
        embedding_ref=out,
        spectrum=spectrum,
        tol=tol,
        scratch=scratch,
        **{"solver": choice.solver, "reason": choice.reason, **solution},
    )


def _first_columns(ref: ArrayRef, count: int, scratch: Scratch) -> ArrayRef:
    """Store the first columns alone, in place of the array."""
    shape, rows = (ref.shape[0], count), ref.chunk_rows
    narrow = scratch.create("embedding", shape, np.float64, rows)
    starts = range(0, ref.shape[0], rows)
    run_tasks(_copy_columns, starts, ref, narrow, label="spectral", unit="chunks")
    scratch.remove(ref)
    return narrow


def _copy_columns(start: int, source: ArrayRef, target: ArrayRef) -> None:
    rows = source.read(start, min(start + source.chunk_rows, source.shape[0]))
    target.write(start, rows[:, : target.shape[1]])


@dataclass(frozen=True)
class _Eigenproblem:
    """Arguments of the solver's task."""

    solver: str
    n_components: int
    tol: float
    random_state: int
    folder: str | None
    start: StoredStart | None = None


def _stored(start: SpectralEmbedding | None) -> StoredStart | None:
    """Return the addresses of a start."""
    if start is None or not start.n_guards:
        return None
    guards = ArrayRef.at(start.scratch.path / "guards")
    return StoredStart(start.embedding_ref, guards, start.n_connected_components - 1)


def _as_affinity(graph: Any, scratch: Scratch) -> AffinityMatrix:
    if isinstance(graph, AffinityMatrix):
        return graph
    if isinstance(graph, KNNGraph):
        return affinity(graph, scratch=scratch.child("affinity"))
    return affinity_from_csr(graph, scratch=scratch.child("affinity"))


def _check_n_components(n_components: int | str, n_samples: int) -> int:
    """Return how many pairs to compute."""
    if n_components == "auto":
        if n_samples < 4:
            raise InputError(
                "n_components 'auto' needs a graph of at least 4 rows to see a gap. "
                f"Got {n_samples} rows."
            )
        return min(SPECTRUM, n_samples - 1)
    reason = f"since the graph has {n_samples} rows, or 'auto'"
    return check_count("n_components", n_components, n_samples - 1, reason)


def _solve(task: _Eigenproblem, W: AffinityMatrix, out: ArrayRef) -> dict[str, Any]:
    """Solve on a worker, store the vectors, and return the small results."""
    changed = {}
    try:
        solved = _run_solver(task, W)
    except Stalled:
        changed = {"solver": "chebyshev", "reason": f"{task.solver} did not converge"}
        solved = _run_solver(replace(task, solver="chebyshev"), W)
    out.write(0, solved.vectors)
    guards = np.empty((0, 0))
    if task.folder is not None and solved.guards is not None and solved.guards.size:
        guards = solved.guards
        scratch = Scratch(task.folder)
        scratch.create("guards", guards.shape, np.float32, out.chunk_rows).write(0, guards)
    return {
        **changed,
        "eigenvalues": solved.eigenvalues,
        "norms": np.linalg.norm(solved.vectors, axis=0),
        "residuals": solved.residuals,
        "edge": solved.edge,
        "n_connected_components": solved.n_connected_components,
        "n_products": solved.n_products,
        "n_iterations": solved.n_iterations,
        "n_guards": guards.shape[1],
    }


def _run_solver(task: _Eigenproblem, W: AffinityMatrix) -> Eigenpairs:
    options: dict[str, Any] = {"tol": task.tol, "random_state": task.random_state}
    if task.solver == "eigsh":
        return solve_eigsh(W.load(), task.n_components, **options)
    if task.solver == "lobpcg":
        return solve_lobpcg(W.load(), task.n_components, **options)
    partitions = None if W.partitions is None else W.partitions.load()
    options |= {"n_threads": _n_threads(), "start": task.start, "partitions": partitions}
    return solve_chebyshev(W.load, task.n_components, **options)


def _n_threads() -> int:
    """Return the threads this task may use: its worker's, or the cores of this process."""
    from distributed import get_worker

    try:
        return int(get_worker().state.nthreads)
    except ValueError:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
