"""Choice of the eigensolver, by the memory that each needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.memory import budget_after_search, check_fits
from bigfs.core.units import MIB, format_bytes
from bigfs.spectral.eigsh import DENSE_ROWS
from bigfs.spectral.iteration import block_bytes, block_width, bulk_begins
from bigfs.spectral.problem import GUARDS
from bigfs.spectral.rowgraph import LEAST_ROWS
from bigfs.spectral.strips import widest_strip

# Eigenvalues among which a gap is looked for.
SPECTRUM = 30
SOLVERS = ("auto", "eigsh", "lobpcg", "chebyshev")
# From here on eigsh takes several times the processor time of chebyshev.
_LARGE_ROWS = 100_000
# From here on chebyshev runs on row blocks even where one task could hold all of it.
_MANY_ROWS = 2_000_000
# Without a clear gap "auto" takes no fewer clusters than most methods by default.
_NO_FEWER = 8
# Eigenvalues of a normalized Laplacian far below this belong to groups as good as apart.
_NEARLY_ZERO = 0.01
# A gap of this share of the eigenvalue above it is clear.
CLEAR_GAP = 0.5


def largest_count(n_clusters: int | str) -> int:
    """Return a number of clusters, or the most that "auto" chooses."""
    return SPECTRUM if isinstance(n_clusters, str) else n_clusters


def solver_bytes(
    solver: str, n_samples: int, n_entries: int, n_components: int, tol: float, binary: bool
) -> int:
    """Return the bytes that a worker needs for W and the solver's own arrays.

    Parameters
    ----------
    solver : {"eigsh", "lobpcg", "chebyshev"}
    n_samples, n_entries : int
        Rows and stored entries of W.
    n_components : int
    tol : float
        Decides whether chebyshev needs blocks in float64.
    binary : bool
        Whether weights are all one, and half as long in chebyshev's copy of W.
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
    # While W is reordered; then its copy and the block; then W and the vectors, which a null space
    # puts in an array once more.
    copied = graph - (4 * n_entries if binary else 0)
    return max(
        graph + copied, copied + block_bytes(n_samples, n_components, tol),
        graph + 2 * vector * (n_components + 1),
    )  # fmt: skip


def row_block_bytes(n_samples: int, n_entries: int, n_components: int) -> int:
    """Return the bytes of a task of the distributed solver for each row of its block.

    The most that a task holds: the edges while they are sorted, or vectors in float64 beside one
    panel with a foreign row for every edge.
    """
    degree = -(-n_entries // n_samples)
    return 64 * degree + 24 * block_width(n_components) + 128 * (1 + degree)


@dataclass(frozen=True)
class Choice:
    """The solver that will run."""

    solver: str  # one of "eigsh", "lobpcg", "chebyshev"
    distributed: bool  # on row blocks, as many tasks; otherwise as one task
    reason: str
    most_rows: int  # rows of a block that fit a task
    # Bytes of a row where the filter takes a few columns of all rows at a time; 0: row blocks.
    strip_row_bytes: int = 0


def choose_solver(
    solver: str,
    n_samples: int,
    n_entries: int,
    n_components: int,
    tol: float,
    memory_limit: int,
    distributed: bool | None = None,
    binary: bool = False,
) -> Choice:
    """Return the solver that will run, where, and why.

    It follows from sizes and settings, never from the cluster, so that results do not. The filter
    runs in strips where it was not asked to be on row blocks and a task can hold W
    and a strip, of columns as wide as fit. Workers may have run pynndescent before.

    Raises
    ------
    InputError
        If a solver is to be distributed that cannot.
    MemoryLimitError
        If it does not fit the limit; of ``auto``, if the most frugal one does not.
    """
    size = (n_samples, n_entries, n_components, tol, binary)
    if distributed and solver not in ("auto", "chebyshev"):
        raise InputError(
            f"distributed must be False for solver '{solver}', which runs in one task. Use "
            "solver 'chebyshev'."
        )
    budget = budget_after_search(memory_limit)
    row_bytes = row_block_bytes(n_samples, n_entries, n_components)
    most_rows = budget // row_bytes
    too_small = n_samples < max(DENSE_ROWS, 8 * block_width(n_components))
    if distributed is None:
        spread, where = _is_spread(solver, size, budget) if not too_small else (False, "")
    else:
        spread, where = distributed and not too_small, "as asked for"
    if spread:
        reason = "asked for" if solver == "chebyshev" else "the one solver for row blocks"
        needed = max(3 * LEAST_ROWS * row_bytes, 32 * n_samples + 64 * MIB)
        what = f"row blocks of W with {n_entries:,} entries and {n_components} vectors"
        check_fits("spectral", needed, memory_limit, what)
        strip = 0 if distributed else widest_strip(*size[:2], budget, binary=binary)
        shape = "on row blocks, the filter in strips," if strip else "on row blocks"
        return Choice("chebyshev", True, f"{reason}; {shape} {where}", most_rows, strip)
    chosen, reason = _in_one_task(solver, size, budget)
    check_fits(
        "spectral",
        solver_bytes(chosen, *size),
        memory_limit,
        f"W with {n_entries:,} entries and {n_components} vectors with solver '{chosen}'",
    )
    return Choice(chosen, False, reason, most_rows)


def _in_one_task(
    solver: str, size: tuple[int, int, int, float, bool], budget: int
) -> tuple[str, str]:
    """Return the solver for one task, and why."""
    if solver != "auto":
        return solver, "asked for"
    needed = solver_bytes("eigsh", *size)
    cost = f"eigsh needs {format_bytes(needed)} of the {format_bytes(budget)} of a task"
    if needed > budget:
        return "chebyshev", f"{cost}, which does not fit"
    if size[0] > _LARGE_ROWS:
        return "chebyshev", f"faster than eigsh for {size[0]:,} rows and {size[2]} vectors"
    return "eigsh", f"{cost}, and {size[0]:,} rows are few"


def _is_spread(
    solver: str, size: tuple[int, int, int, float, bool], budget: int
) -> tuple[bool, str]:
    """Say whether the solver should run on row blocks, and why."""
    if solver not in ("auto", "chebyshev"):
        return False, ""
    needed = solver_bytes("chebyshev", *size)
    if needed > budget:
        cost = f"{format_bytes(needed)} of the {format_bytes(budget)} of a task"
        return True, f"since one task would need {cost}"
    if size[0] >= _MANY_ROWS:
        return True, f"since {size[0]:,} rows are work for several workers"
    return False, ""


def count_before_bulk(eigenvalues: np.ndarray, edge: float, n_beyond: int = GUARDS) -> int | None:
    """Return how many of the pairs come before the bulk of the spectrum; None: all, or no gap.

    Parameters as in `bigfs.spectral.iteration.bulk_begins`.
    """
    begins = bulk_begins(eigenvalues, edge, n_beyond)
    return int(begins.argmax()) if begins.any() else None


def suggest_n_clusters(
    eigenvalues: np.ndarray, clear_gap: float = CLEAR_GAP, no_fewer: int = _NO_FEWER
) -> int:
    """Return the number of clusters that "auto" takes: that of the last clear gap.

    A gap is clear if the eigenvalue above it is at least twice that below, and 0.01 more: what is
    needed of the bulk of the spectrum, too. If none is, it is the number of the largest gap, but
    at least 8, the default of most methods. Too few clusters cost more than too many, so an
    earlier gap, between groups of groups, does not count.

    Parameters
    ----------
    eigenvalues : ndarray of shape (n_components,), float64
        As in `relative_gaps`.
    clear_gap : float, default=0.5
        The least relative gap that is clear.
    no_fewer : int, default=8
        The least number without a clear gap.

    Returns
    -------
    n_clusters : int
        In [2, n_components]; ``n_components`` if all eigenvalues are zero.
    """
    gaps = relative_gaps(eigenvalues)
    clear = np.flatnonzero(gaps >= clear_gap)
    if len(clear):
        return int(clear[-1]) + 2
    at_least = no_fewer if gaps.any() else len(eigenvalues)
    return min(max(int(gaps.argmax()) + 2, at_least), len(eigenvalues))


def relative_gaps(eigenvalues: np.ndarray) -> np.ndarray:
    """Return the gap above the eigenvalues of each number of clusters.

    Parameters
    ----------
    eigenvalues : ndarray of shape (n_components,), float64
        Ascending, without the trivial one: the second smallest first; at least 2.

    Returns
    -------
    gaps : ndarray of shape (n_components - 1,), float64
        ``(l_{c+1} - l_c) / (l_{c+1} + 0.01)`` for c = 2, 3, ..., where ``l_1 = 0`` is the trivial
        eigenvalue; in [0, 1].

    Notes
    -----
    von Luxburg, "A tutorial on spectral clustering", Statistics and Computing 17, 2007, section
    8.3, with the gap relative to its upper end. Values below 1e-9 count as zero. Those far below
    0.01 hardly differ: they belong to groups that a few edges, or none, connect with the others.
    """
    values = np.where(eigenvalues < 1e-9, 0.0, eigenvalues)
    return np.asarray(np.diff(values) / (values[1:] + _NEARLY_ZERO))
