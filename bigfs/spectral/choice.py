"""Which eigensolver runs: what each needs in memory, and the choice of ``auto``."""

from __future__ import annotations

import numpy as np

from bigfs.core.memory import check_fits, task_budget
from bigfs.core.units import format_bytes
from bigfs.spectral.iteration import block_bytes
from bigfs.spectral.problem import GUARDS

SOLVERS = ("auto", "eigsh", "lobpcg", "chebyshev")
# From here on eigsh takes several times the processor time of chebyshev.
_LARGE_ROWS = 100_000


def solver_bytes(solver: str, n_samples: int, n_entries: int, n_components: int, tol: float) -> int:
    """Return what a worker needs for W and the solver's own arrays, in bytes.

    Parameters
    ----------
    solver : {"eigsh", "lobpcg", "chebyshev"}
    n_samples, n_entries : int
        Rows and stored entries of W.
    n_components : int
    tol : float
        Decides whether chebyshev needs blocks in float64.
    """
    graph, vector = 12 * n_entries + 8 * n_samples, 8 * n_samples
    wanted = n_components + GUARDS
    if solver == "eigsh":
        # A scaled copy; the Lanczos basis; its Ritz vectors, and these once more in order.
        return 2 * graph + vector * (max(2 * wanted + 1, 20) + 3 * wanted + 4)
    if solver == "lobpcg":
        # A scaled copy, the shifted one and the levels below it; X, R, P and their products, and
        # what scipy copies of them. Measured: 0.74 GiB for 200,000 rows and 20 vectors.
        return 12 * graph + vector * (12 * wanted + 6)
    return 2 * graph + block_bytes(n_samples, n_components, tol)


def choose_solver(
    solver: str,
    n_samples: int,
    n_entries: int,
    n_components: int,
    tol: float,
    memory_limit_bytes: int,
) -> tuple[str, str]:
    """Return the solver that will run, and why.

    Raises
    ------
    MemoryLimitError
        If it does not fit the limit; of ``auto``, if the most frugal one does not.
    """
    size = (n_samples, n_entries, n_components, tol)
    if solver != "auto":
        chosen, reason = solver, "asked for"
    else:
        budget, needed = task_budget(memory_limit_bytes), solver_bytes("eigsh", *size)
        cost = f"eigsh needs {format_bytes(needed)} of the {format_bytes(budget)} of a task"
        if needed > budget:
            chosen, reason = "chebyshev", f"{cost}, which does not fit"
        elif n_samples > _LARGE_ROWS:
            chosen = "chebyshev"
            reason = f"faster than eigsh for {n_samples:,} rows and {n_components} vectors"
        else:
            chosen, reason = "eigsh", f"{cost}, and {n_samples:,} rows are few"
    check_fits(
        "spectral",
        solver_bytes(chosen, *size),
        memory_limit_bytes,
        f"W with {n_entries:,} entries and {n_components} vectors with solver '{chosen}'",
    )
    return chosen, reason


def suggest_n_clusters(eigenvalues: np.ndarray) -> int:
    """Return the number of clusters c of the largest relative eigengap.

    Parameters
    ----------
    eigenvalues : ndarray of shape (n_components,), float64
        Ascending, without the trivial one: the second smallest first; at least 2.

    Returns
    -------
    n_clusters : int
        The c in [2, n_components] that maximizes ``(l_{c+1} - l_c) / l_{c+1}``, the smallest of
        several, where ``l_1 = 0`` is the trivial eigenvalue. With several connected components,
        their number; ``n_components`` if there are more of them.

    Notes
    -----
    von Luxburg, "A tutorial on spectral clustering", Statistics and Computing 17, 2007, section
    8.3, with the gap relative to its upper end. Values below 1e-9 count as zero.
    """
    values = np.where(eigenvalues < 1e-9, 0.0, eigenvalues)
    upper = values[1:]
    if not upper.any():
        return len(values)
    gaps = (upper - values[:-1]) / np.where(upper > 0, upper, 1.0)
    return int(gaps.argmax()) + 2
