"""The spectral embedding of a graph: smallest eigenpairs of L y = lambda D y.

Small graphs are one task on a worker, which reads W from storage and writes the embedding back;
larger ones are solved by many tasks. Neither W nor the vectors reach the client.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, check_choice, check_count, check_share
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, budget_after_search
from bigfs.core.units import parse_bytes
from bigfs.graph import AffinityMatrix, KNNGraph, affinity, affinity_from_csr
from bigfs.runtime.execute import run_tasks
from bigfs.spectral.chebyshev import ThinGraph, solve_chebyshev
from bigfs.spectral.choice import (
    CLEAR_GAP,
    SOLVERS,
    SPECTRUM,
    choose_solver,
    eigsh_bytes,
    relative_gaps,
    suggest_n_clusters,
)
from bigfs.spectral.eigsh import Stalled, solve_eigsh
from bigfs.spectral.iteration import block_width, count_before_bulk
from bigfs.spectral.problem import GUARDS
from bigfs.spectral.tasks import StoredStart, copy_columns
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Kept, Scratch, block_bounds, read_attributes
from bigfs.store.scratch import chunk_rows as chunk_rows_of

# Attributes of an embedding that are arrays, and those that are not part of its metadata.
_ARRAYS = ("eigenvalues", "norms", "residuals", "mixed", "spectrum")
_PLACES = ("embedding_ref", "scratch")


@dataclass(frozen=True)
class SpectralEmbedding(Kept):
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
        ``|S u - (1 - lambda) u|`` of the unit vectors ``u = D^1/2 y``: at most ``tol`` times the
        eigenvalue, or the residual that leaves an angle of ``tol`` to the true vector. It may be
        larger for pairs in the bulk of the spectrum, which are given up if they converge slowly.
    mixed : ndarray of shape (n_components,), bool
        Vectors whose eigenvalues are so close to adjacent ones that the residuals do not separate
        them: their span is known, but not each of them.
    edge : float
        The largest computed eigenvalue, including some beyond the requested ones.
    tol : float
        Requested tolerance of the vectors.
    n_connected_components : int
        Number of components of the graph; each beyond the first gives one eigenvalue of zero.
    spectrum : ndarray of shape (n_computed,), float64
        All computed eigenvalues, ascending: those of the embedding and, if their number was
        "auto", those beyond the gap.
    solver, reason : str
        The solver that ran, and the reason for it.
    n_products : int
        Number of products of W with one vector.
    n_iterations : int
        Number of iterations of the solver.
    scratch : Scratch
        Keeps the stored embedding alive.
    n_guards : int
        Number of vectors beyond the requested ones that are stored for an update.
    """

    eigenvalues: np.ndarray
    embedding_ref: ArrayRef
    norms: np.ndarray
    residuals: np.ndarray
    mixed: np.ndarray
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

    @property
    def embedding(self) -> Any:
        """The eigenvectors as a zarr array, read lazily."""
        return self.embedding_ref.open(self.scratch)

    def describe(self) -> dict[str, Any]:
        """Return the metadata that `open` needs besides the stored embedding, as JSON values."""
        values = {name: getattr(self, name) for name in vars(self) if name not in _PLACES}
        return {k: v.tolist() if k in _ARRAYS else v for k, v in values.items()}

    def notes(self) -> list[str]:
        """Return notes on the pairs that describe groups, and on how "auto" chose their number."""
        sentences, values = [], [f"{value:.3g}" for value in self.spectrum]
        kept = len(self.eigenvalues)
        missing = max(0, kept - self.n_connected_components + 1)
        n_guards = block_width(missing) - missing if self.solver == "chebyshev" else GUARDS
        n_groups = count_before_bulk(self.eigenvalues, self.edge, n_guards)
        if kept < len(values):
            gaps = relative_gaps(self.spectrum)
            is_clear = gaps.max() >= CLEAR_GAP
            at = kept if is_clear else int(gaps.argmax()) + 2
            where = f"number {at - 1} is {values[at - 2]}, number {at} is {values[at - 1]}"
            sentences.append(
                f"n_clusters auto: {kept}, at the last clear gap between the first {len(values)} "
                f"eigenvalues of the graph: {where}."
                if is_clear
                else f"n_clusters auto: {kept}, without a clear gap between the first "
                f"{len(values)} eigenvalues of the graph (the largest gap: {where}). Too few "
                "clusters cost more than too many; set n_clusters if you know it."
            )
        elif n_groups is not None:
            sentences.append(
                f"{n_groups} of {kept} eigenvectors describe groups, the others belong to the bulk "
                f"of the spectrum, which begins at {values[n_groups]}: {n_groups} eigenvectors "
                f"suffice to separate {n_groups + 1} groups."
                if n_groups
                else f"No eigenvector describes groups: even the first one, {values[0]}, belongs "
                "to the bulk of the spectrum. The data may have no groups."
            )
        if self.mixed.any():
            last = np.flatnonzero(self.mixed) + 1
            sentences.append(
                f"Eigenvectors {_ranges(last)} cannot be separated from those of adjacent "
                "eigenvalues: only their joint span is determined. A smaller spectral.tol may "
                "separate them, unless their eigenvalues are equal."
            )
        return sentences

    @classmethod
    def open(cls, path: Location) -> SpectralEmbedding:
        """Return the embedding that was stored in a folder."""
        stored = read_attributes(path)
        values = {f.name: stored[f.name] for f in fields(cls) if f.name in stored}
        values |= {name: np.array(stored[name]) for name in _ARRAYS}
        return cls(embedding_ref=ArrayRef.at(path / "embedding"), scratch=Scratch(path), **values)


@dataclass(frozen=True)
class Resume:
    """Settings of a run that may be interrupted or updated.

    Attributes
    ----------
    checkpoint : Path, ObjectPath or None, default=None
        Folder that is kept when a run is interrupted: with chebyshev the next run continues from
        it.
    start : SpectralEmbedding or None, default=None
        The embedding of the first rows' graph by the solver ``chebyshev``, which provides initial
        vectors for the same solver.
    keeps_guards : bool, default=True
        If True, the vectors beyond the requested ones are stored too, which a ``start`` needs.
    """

    checkpoint: Location | None = None
    start: SpectralEmbedding | None = None
    keeps_guards: bool = True


def spectral_embedding(
    graph: Any,
    n_components: int | str,
    *,
    solver: str = "auto",
    tol: float = 1e-4,
    random_state: int = 0,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    scratch: Scratch | None = None,
    chunk_rows: int | None = None,
    resume: Resume | None = None,
) -> SpectralEmbedding:
    """Return the smallest non-trivial eigenpairs of ``L y = lambda D y``.

    The vector of ones (``D^1/2 1`` of the normalized problem) is projected out and ``n_components``
    further vectors are returned, including the null space of additional connected components.

    Parameters
    ----------
    graph : AffinityMatrix, KNNGraph or scipy sparse matrix of shape (n_samples, n_samples)
        Affinity W: symmetric, not negative, zero diagonal. A `KNNGraph` gets binary weights.
    n_components : int or "auto"
        Number of eigenvectors, in [1, n_samples - 1]. "auto": the number of clusters at the
        last clear gap among the first 30 eigenvalues, or 8 or more if no gap is clear.
    solver : {"auto", "eigsh", "chebyshev"}, default="auto"
        ``eigsh`` is scipy's ARPACK on D^-1/2 W D^-1/2 or, for long thin graphs, on a factorization
        of the Laplacian; ``chebyshev`` is a filtered subspace iteration, which is the fastest for
        many rows and needs the least memory. ``auto`` uses eigsh if it fits and there are at most
        100,000 rows or the graph is thin, and chebyshev otherwise.
    tol : float, default=1e-4
        Accepted residual, relative to the eigenvalue, or accepted angle to the true vector, in
        (0, 1]. Feature selection needs less accuracy: runs and estimators use 3e-3 by default.
    random_state : int, default=0
        Seed of the start vector.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.
    scratch : Scratch or None, default=None
        Where the embedding is stored. None: a temporary folder that is deleted with the result.
    chunk_rows : int or None, default=None
        Rows per stored chunk of the embedding; None: one chunk, or several with chebyshev.
    resume : Resume or None, default=None
        For a run that may be interrupted or updated.

    Returns
    -------
    result : SpectralEmbedding

    Raises
    ------
    InputError
        If a parameter is out of range or W is not an affinity matrix.
    ConvergenceError
        If a residual remains above what ``tol`` accepts; the message lists the residuals.
    MemoryLimitError
        If W and the basis do not fit one worker, or not even a few columns of the vectors do.

    Notes
    -----
    Implements eq. (1) of [1]_ through the largest eigenpairs of ``S = D^-1/2 W D^-1/2``. Cost: no
    pass over X, and the memory given by `bigfs.spectral.choice.choose_solver`.

    Vectors of equal eigenvalues, or of eigenvalues too close for ``tol``, get a basis that depends
    only on their span; a note lists them. The number of clusters is that of
    `bigfs.spectral.choice.suggest_n_clusters`.

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
    check_share("tol", tol)
    scratch, resume, limit = scratch or Scratch(), resume or Resume(), parse_bytes(memory_limit)
    settings: dict[str, Any] = {"tol": tol, "random_state": random_state}
    W, is_auto = _as_affinity(graph, scratch), n_components == "auto"
    n_computed = _check_n_components(n_components, W.n_samples)
    size = (W.n_samples, W.nnz, n_computed)
    choice = choose_solver(solver, *size, limit, W.weight == "binary")
    if choice.solver == "chebyshev" and chunk_rows is None:
        chunk_rows = chunk_rows_of(n_computed, 8)
    name = "embedding-computed" if is_auto else "embedding"
    out = scratch.create(name, (W.n_samples, n_computed), np.float64, chunk_rows)
    # A factorization is a different task from the chosen one, so its memory is checked separately.
    fits = eigsh_bytes(*size) <= budget_after_search(limit)
    refuses_thin = solver == "auto" and fits and resume.start is None
    used, reason = choice.solver, choice.reason
    guards_folder = str(scratch.path) if resume.keeps_guards and not is_auto else None

    def solve(refuses_thin: bool) -> dict[str, Any]:
        if used == "eigsh":
            task = (_eigsh_task, [n_computed], W, out, settings)
            [solution] = run_tasks(*task, label="spectral", unit="", notes=True)
            return dict(solution)
        folder = scratch.child(scratch.unique("spectral"))
        return solve_chebyshev(
            W, n_computed, out, folder, choice.storage, checkpoint=resume.checkpoint,
            start=_stored(resume.start), guards_folder=guards_folder, refuses_thin=refuses_thin,
            **settings,
        )  # fmt: skip

    try:
        solution = solve(refuses_thin)
    except (ThinGraph, Stalled) as error:
        used, reason = error.instead
        solution = solve(refuses_thin=False)
    spectrum = solution["eigenvalues"]
    if is_auto:
        # Keep only the first of the computed columns.
        kept, computed = suggest_n_clusters(spectrum), out
        out = scratch.create("embedding", (W.n_samples, kept), np.float64, computed.chunk_rows)
        bounds = block_bounds(W.n_samples, computed.chunk_rows)
        run_tasks(copy_columns, bounds, computed, out, label="spectral", unit="chunks")
        scratch.remove(computed)
        for name in ("eigenvalues", "norms", "residuals", "mixed"):
            solution[name] = solution[name][:kept]
    return SpectralEmbedding(
        embedding_ref=out,
        spectrum=spectrum,
        tol=tol,
        scratch=scratch,
        solver=used,
        reason=reason,
        **solution,
    )


def _eigsh_task(
    n_components: int, W: AffinityMatrix, out: ArrayRef, options: dict[str, Any]
) -> dict[str, Any]:
    solution = dict(vars(solve_eigsh(W.load(), n_components, **options)))
    vectors = solution.pop("vectors")
    out.write(0, vectors)
    return {**solution, "norms": np.linalg.norm(vectors, axis=0)}


def _ranges(numbers: np.ndarray) -> str:
    """Return ascending numbers as text, such as "1 to 3, 5"."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _stored(start: SpectralEmbedding | None) -> StoredStart | None:
    """Return the addresses of a start; None if it has no guards."""
    if start is None or not start.n_guards:
        return None
    guards = ArrayRef.at(start.scratch.path / "guards")
    return StoredStart(start.embedding_ref, guards, start.n_connected_components - 1)


def _as_affinity(graph: Any, scratch: Scratch) -> AffinityMatrix:
    if isinstance(graph, AffinityMatrix):
        return graph
    build = affinity if isinstance(graph, KNNGraph) else affinity_from_csr
    return build(graph, scratch=scratch.child("affinity"))


def _check_n_components(n_components: int | str, n_samples: int) -> int:
    """Return the number of pairs to compute."""
    if n_components == "auto":
        if n_samples < 4:
            raise InputError(
                "n_components 'auto' needs a graph of at least 4 rows to find a gap. "
                f"Got {n_samples} rows."
            )
        return min(SPECTRUM, n_samples - 1)
    reason = f"since the graph has {n_samples} rows, or 'auto'"
    return check_count("n_components", n_components, n_samples - 1, reason)
