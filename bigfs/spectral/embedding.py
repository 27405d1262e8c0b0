"""The spectral embedding of a graph: smallest eigenpairs of L y = lambda D y.

The eigenproblem runs as one task on a worker, which reads W from storage and writes the
embedding back: neither reaches the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.execute import run_tasks
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.units import parse_bytes
from bigfs.graph import AffinityMatrix, KNNGraph, affinity, affinity_from_csr
from bigfs.spectral.eigsh import solve_eigsh
from bigfs.store.scratch import ArrayRef, Scratch

SOLVERS = ("auto", "eigsh")


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
        ``|S u - (1 - lambda) u|`` of the unit vectors ``u = D^1/2 y``.
    n_connected_components : int
        Of the graph; each beyond the first gives one eigenvalue of zero.
    solver : str
        The solver that ran.
    n_products : int
        Products with W it took.
    scratch : Scratch
        Keeps the stored embedding alive.
    """

    eigenvalues: np.ndarray
    embedding_ref: ArrayRef
    norms: np.ndarray
    residuals: np.ndarray
    n_connected_components: int
    solver: str
    n_products: int
    scratch: Scratch

    @property
    def embedding(self) -> Any:
        """The eigenvectors as a zarr array, read when asked."""
        return self.embedding_ref.open()


def spectral_embedding(
    graph: Any,
    n_components: int,
    *,
    solver: str = "auto",
    tol: float = 1e-6,
    random_state: int = 0,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    scratch: Scratch | None = None,
    chunk_rows: int | None = None,
) -> SpectralEmbedding:
    """Return the smallest non-trivial eigenpairs of ``L y = lambda D y``.

    The vector of ones (``D^1/2 1`` of the normalized problem) is projected out and
    ``n_components`` more are returned, the null space of further connected components included.

    Parameters
    ----------
    graph : AffinityMatrix, KNNGraph or scipy sparse matrix of shape (n_samples, n_samples)
        Affinity W: symmetric, not negative, zero diagonal. A `KNNGraph` gets binary weights.
    n_components : int
        Number of eigenvectors, in [1, n_samples - 1].
    solver : {"auto", "eigsh"}, default="auto"
        ``eigsh`` is scipy's ARPACK on D^-1/2 W D^-1/2, and what ``auto`` takes.
    tol : float, default=1e-6
        Largest residual accepted.
    random_state : int, default=0
        Seed of the start vector.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.
    scratch : Scratch or None, default=None
        Where the embedding is stored. None: a temporary folder that lives with the result.
    chunk_rows : int or None, default=None
        Rows per stored chunk of the embedding; None: one chunk.

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
        If W and the basis do not fit one worker.

    Notes
    -----
    Implements eq. (1) of [1]_ through the largest eigenpairs of ``S = D^-1/2 W D^-1/2``, so no
    factorization is needed. Cost: no pass over X; one worker holds W twice and 2K + 20 vectors.

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
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}. Got {solver!r}.")
    scratch = scratch or Scratch()
    W = _as_affinity(graph, scratch)
    n_samples = W.n_samples
    if not 1 <= n_components < n_samples:
        raise InputError(
            f"n_components must be an int in [1, {n_samples - 1}], since the graph has "
            f"{n_samples} rows. Got {n_components}."
        )
    needed = eigsh_bytes(n_samples, W.nnz, n_components)
    check_fits(
        "spectral",
        needed,
        parse_bytes(memory_limit),
        f"W with {W.nnz:,} entries, twice, and the Lanczos basis of {n_components} vectors",
    )
    out = scratch.create("embedding", (n_samples, n_components), np.float64, chunk_rows)
    task = _Eigenproblem(n_components, tol, random_state)
    [found] = run_tasks(_solve, [task], W, out, label="spectral", unit="problems")
    return SpectralEmbedding(embedding_ref=out, solver="eigsh", scratch=scratch, **found)


def eigsh_bytes(n_samples: int, n_entries: int, n_components: int) -> int:
    """Return what a worker needs for W, its scaled copy and the Lanczos basis, in bytes."""
    basis = max(2 * (n_components + 1) + 1, 20) + 3 * n_components
    return 2 * 12 * n_entries + 8 * n_samples * (basis + 4)


@dataclass(frozen=True)
class _Eigenproblem:
    """What the solver's task has to know."""

    n_components: int
    tol: float
    random_state: int


def _as_affinity(graph: Any, scratch: Scratch) -> AffinityMatrix:
    if isinstance(graph, AffinityMatrix):
        return graph
    if isinstance(graph, KNNGraph):
        return affinity(graph, scratch=scratch.child("affinity"))
    return affinity_from_csr(graph, scratch=scratch.child("affinity"))


def _solve(task: _Eigenproblem, W: AffinityMatrix, out: ArrayRef) -> dict[str, Any]:
    """Solve on a worker, store the vectors, and return what is small."""
    solved = solve_eigsh(W.load(), task.n_components, tol=task.tol, random_state=task.random_state)
    out.write(0, solved.vectors)
    return {
        "eigenvalues": solved.eigenvalues,
        "norms": np.linalg.norm(solved.vectors, axis=0),
        "residuals": solved.residuals,
        "n_connected_components": solved.n_connected_components,
        "n_products": solved.n_products,
    }
