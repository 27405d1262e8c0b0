"""Choice of the eigensolver, by the memory that each needs, and its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bigfs.core.cost import StageCost, Step, loop_seconds
from bigfs.core.memory import budget_after_search, check_fits
from bigfs.core.units import MIB, format_bytes
from bigfs.spectral.block import BLOCK_VALUES, MULTIPLICATIONS, block_rows
from bigfs.spectral.eigsh import DENSE_ROWS
from bigfs.spectral.iteration import block_width
from bigfs.spectral.kernels import CACHE_LINE
from bigfs.spectral.operator import PIECE_ROWS, SLICE_ENTRIES, Storage
from bigfs.spectral.problem import GUARDS
from bigfs.spectral.thin import factor_bytes

# Number of eigenvalues among which a gap is searched.
SPECTRUM = 30
SOLVERS = ("auto", "eigsh", "chebyshev")
# With more rows eigsh takes several times the processor time of chebyshev.
_LARGE_ROWS = 100_000
# Row lengths of a panel, the best first: rows shorter than a cache line share it with others.
ROW_BYTES = (CACHE_LINE, CACHE_LINE // 2, CACHE_LINE // 4, CACHE_LINE // 8)
# Measured: bytes per row while the order of all rows is computed, and while W is stored in that
# order; and bytes of a piece of W.
_ORDER_BYTES, _PLACE_BYTES, _PIECE_BYTES = 64, 40, 64 * MIB
# Bytes per row while the connected components are found.
_COMPONENT_BYTES = 24
# Possible numbers of entries of W per row and neighbor.
_ENTRIES = (1.0, 1.25, 1.5, 1.75, 2.0)
# Rounds of the filter: typical, not an upper bound.
_ROUNDS = 8
# Measured: products with W in a round of the filter, of one loop step per entry; and loop steps of
# eigsh per entry and vector.
_DEGREE, _LANCZOS_LOOPS = 100, 250
_KERNELS = ("bigfs.spectral.kernels",)
# Without a clear gap "auto" chooses no fewer clusters than the default of most methods.
_NO_FEWER = 8
# Eigenvalues of a normalized Laplacian far below this belong to practically separate groups.
_NEARLY_ZERO = 0.01
# A gap is clear if it is at least this share of the eigenvalue above it.
CLEAR_GAP = 0.5


def largest_count(n_clusters: int | str) -> int:
    """Return a number of clusters, or an upper bound on what "auto" chooses."""
    return SPECTRUM if isinstance(n_clusters, str) else n_clusters


def eigsh_bytes(n_samples: int, n_entries: int, n_components: int) -> int:
    """Return the bytes that a worker needs for W and the arrays of ARPACK or a factorization."""
    graph, vector, wanted = 12 * n_entries + 8 * n_samples, 8 * n_samples, n_components + GUARDS
    # A scaled copy of W; the Lanczos basis; its Ritz vectors, and a sorted copy of these.
    basis = vector * (max(2 * wanted + 1, 20) + 3 * wanted + 4)
    return 2 * graph + basis + factor_bytes(n_samples)


def panel_bytes(n_samples: int, n_entries: int, storage: Storage, *, binary: bool) -> int:
    """Return the bytes of a task: W and its order while it is computed, or W and two panels.

    Parameters
    ----------
    n_samples, n_entries : int
        Rows and stored entries of W.
    storage : Storage
    binary : bool
        True if all weights are one: they are then not stored.
    """
    vectors = 2 * storage.row_bytes * n_samples
    # Products of a block of rows, float64, while they are written.
    of_block = min(8 * BLOCK_VALUES, vectors)
    if storage.order == "none":
        return max(vectors, _COMPONENT_BYTES * n_samples) + of_block + _PIECE_BYTES
    of_graph = n_entries * (4 if binary else 12)
    # Rows of W being stored in order, and the piece that they are read from.
    of_order = _PLACE_BYTES * n_samples + 12 * min(n_entries, SLICE_ENTRIES) + _PIECE_BYTES // 2
    if storage.order == "levels":
        of_order = max(of_order, 33 * (4 * n_entries + _ORDER_BYTES * n_samples) // 32)
    if storage.in_memory:
        of_panels = 33 * (of_graph + vectors + 16 * n_samples) // 32
    else:  # the piece of W that is read, and the previous one
        of_pieces = 2 * PIECE_ROWS * (of_graph // n_samples + 16)
        of_panels = vectors + 8 * n_samples + of_pieces
    return max(of_order, of_panels) + of_block


@dataclass(frozen=True)
class Choice:
    """The solver that will run."""

    solver: str  # "eigsh" or "chebyshev"
    reason: str
    storage: Storage  # of chebyshev
    size: tuple[int, int]  # rows and stored entries of W
    n_components: int
    binary: bool  # True if all weights are one

    def cost(self) -> StageCost:
        """Return the cost of the solver."""
        (n, n_entries), wanted = self.size, self.n_components
        stored, what = 8 * n * wanted, f"W with up to {n_entries:,} entries"
        if self.solver == "eigsh":
            needed = eigsh_bytes(n, n_entries, wanted)
            requests = 2 + n_entries // 2**20 + n // 2**17
            seconds = loop_seconds(n_entries + n * wanted, wanted, _LANCZOS_LOOPS)
            what = f"{what} and {wanted} vectors, solver eigsh"
            step = Step(what, needed, 1, 0, requests, seconds=seconds)
            return StageCost((step,), stored, stored, loads=_KERNELS)
        width = block_width(wanted)
        rows = block_rows(width, n)
        blocks, panels = -(-n // rows), -(-4 * width // self.storage.row_bytes)
        of_panel = panel_bytes(n, n_entries, self.storage, binary=self.binary)
        of_rows = 8 * 6 * width * rows  # vectors, products, and both rotated
        steps = (
            Step(f"the order of {what}", of_panel, 1, 0, blocks),
            Step(f"{what} and a panel of {n:,} rows", of_panel, panels, 0, 2 * panels * blocks,
                 _ROUNDS, seconds=loop_seconds(n_entries, width, _DEGREE)),
            Step("a block of rows of the vectors", of_rows, 2 * blocks, 0,
                 (2 * panels + 1) * blocks, _ROUNDS),
        )  # fmt: skip
        # In float64: vectors of two rounds, the filtered ones and their products; if a task does a
        # part of a round, also the vectors and previous vectors that the next part starts from.
        in_parts = n_entries * self.storage.row_bytes / 8 * _DEGREE > MULTIPLICATIONS
        vectors = (48 if in_parts else 32) * n * width
        scratch = (12 + 4 * (not self.binary)) * n_entries + vectors + stored  # and W in order
        return StageCost(steps, scratch, stored, loads=_KERNELS, at_most=True)


def choose_solver(
    solver: str,
    n_samples: int,
    n_entries: int,
    n_components: int,
    memory_limit: int,
    binary: bool = False,
) -> Choice:
    """Return the solver that will run, and the reason.

    It depends on sizes and settings only, never on the cluster, so that results do not either.
    Workers may have run pynndescent before. Graphs with too few rows for chebyshev use eigsh.
    With eigsh one worker holds W twice and the vectors, with chebyshev W and a few columns of the
    vectors; if W does not fit, it is read for each product.

    Raises
    ------
    MemoryLimitError
        If the solver does not fit the limit.
    """
    budget = budget_after_search(memory_limit)
    needed = eigsh_bytes(n_samples, n_entries, n_components)
    cost = f"eigsh needs {format_bytes(needed)} of the {format_bytes(budget)} of a task"
    if n_samples <= max(DENSE_ROWS, 8 * block_width(n_components)):
        chosen, reason = "eigsh", f"{n_samples:,} rows are few"
    elif solver != "auto":
        chosen, reason = solver, "requested"
    elif needed > budget:
        chosen, reason = "chebyshev", f"{cost}, which does not fit"
    elif n_samples > _LARGE_ROWS:
        chosen = "chebyshev"
        reason = f"faster than eigsh for {n_samples:,} rows and {n_components} vectors"
    else:
        chosen, reason = "eigsh", f"{cost}, and {n_samples:,} rows are few"
    storage = _storage(n_samples, n_entries, budget, binary)
    if chosen == "chebyshev" and not storage.in_memory:
        reason += "; W is read for each product"
    choice = Choice(chosen, reason, storage, (n_samples, n_entries), n_components, binary)
    what = f"W with {n_entries:,} entries and {n_components} vectors with solver '{chosen}'"
    check_fits("spectral", choice.cost().task_bytes, memory_limit, what)
    return choice


def spectral_cost(
    n_samples: int,
    n_neighbors: int,
    n_components: int | str,
    memory_limit: int,
    *,
    solver: str = "auto",
    weight: str = "binary",
) -> StageCost:
    """Return the cost of `bigfs.spectral.embedding.spectral_embedding`.

    The graph has between one and two entries per row and neighbor, since an edge exists if either
    end lists the other; which solver fits, and what it costs, may differ in this range.

    Raises
    ------
    MemoryLimitError
        If the solver does not fit ``memory_limit``.
    """
    wanted = min(SPECTRUM, n_samples - 1) if isinstance(n_components, str) else n_components
    costs = [
        choose_solver(
            solver, n_samples, int(n_samples * n_neighbors * factor), wanted, memory_limit,
            weight == "binary",
        ).cost()
        for factor in _ENTRIES
    ]  # fmt: skip
    return max(costs, key=lambda cost: cost.task_bytes)


def _storage(n_samples: int, n_entries: int, budget: int, binary: bool) -> Storage:
    """Return how a task of chebyshev holds W and vectors: the fastest option that fits."""
    options = [(True, "levels", CACHE_LINE)]
    options += [(False, kind, length) for length in ROW_BYTES for kind in ("levels", "partitions")]
    options += [(False, "none", length) for length in ROW_BYTES]
    for in_memory, order, row_bytes in options:
        storage = Storage(in_memory, order, row_bytes, budget)
        needed = panel_bytes(n_samples, n_entries, storage, binary=binary)
        if needed <= budget:
            return replace(storage, room=needed)
    return storage


def suggest_n_clusters(
    eigenvalues: np.ndarray, clear_gap: float = CLEAR_GAP, no_fewer: int = _NO_FEWER
) -> int:
    """Return the number of clusters that "auto" chooses: that of the last clear gap.

    A gap is clear if the eigenvalue above it is at least twice that below, plus 0.01, which the
    bulk of the spectrum must satisfy as well. If there is no clear gap, it is the number of the
    largest gap, but at least 8, the default of most methods. Too few clusters cost more than too
    many, so an earlier gap, between groups of groups, does not count.

    Parameters
    ----------
    eigenvalues : ndarray of shape (n_components,), float64
        As in `relative_gaps`.
    clear_gap : float, default=0.5
        Smallest relative gap that is clear.
    no_fewer : int, default=8
        Lower bound on the number if there is no clear gap.

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
    """Return the gap above the eigenvalues for each number of clusters.

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
    8.3, with the gap relative to its upper end. Values below 1e-9 count as zero. Values far below
    0.01 hardly differ: they belong to groups connected with the others by few edges or none.
    """
    values = np.where(eigenvalues < 1e-9, 0.0, eigenvalues)
    return np.asarray(np.diff(values) / (values[1:] + _NEARLY_ZERO))
