"""The cost of the eigenvectors of a graph, before there is a graph."""

from __future__ import annotations

from bigfs.core.cost import StageCost, Step
from bigfs.core.units import MIB
from bigfs.spectral.choice import (
    SPECTRUM,
    Choice,
    choose_solver,
    row_block_bytes,
    solver_bytes,
)
from bigfs.spectral.iteration import block_width
from bigfs.spectral.rowgraph import wanted_rows
from bigfs.spectral.strips import strip_bytes, strip_count

# Entries of W for each neighbor of a row.
_ENTRIES = (1.0, 1.25, 1.5, 1.75, 2.0)
# Rounds of the filter and its products, and sums and changes of a round: typical, no bound.
_ROUNDS = 8
_PRODUCTS = 600
_SUMS = 4
# Rows of the largest block over those wanted: partitions are kept whole.
_UNEVEN = 1.6
# One number a row, sorted; the labels of components beside the edges that join them.
_ORDER_BYTES = 32
_COMPONENT_EDGES = 64 * MIB


def spectral_cost(
    n_samples: int,
    n_neighbors: int,
    n_components: int | str,
    memory_limit: int,
    *,
    solver: str = "auto",
    tol: float = 1e-6,
    weight: str = "binary",
) -> StageCost:
    """Return the cost of `bigfs.spectral.embedding.spectral_embedding`.

    The graph has once to twice as many entries as neighbors, since an edge exists if either end
    lists the other; which solver fits, and what it takes, may differ in between.

    Raises
    ------
    MemoryLimitError
        If the solver does not fit ``memory_limit``.
    """
    wanted = min(SPECTRUM, n_samples - 1) if isinstance(n_components, str) else n_components
    costs = [
        _cost(n_samples, int(n_samples * n_neighbors * factor), wanted, memory_limit,
              solver, tol, weight == "binary")
        for factor in _ENTRIES
    ]  # fmt: skip
    return max(costs, key=lambda cost: cost.task_bytes)


def _cost(
    n: int, n_entries: int, wanted: int, limit: int, solver: str, tol: float, binary: bool
) -> StageCost:
    """Return the cost of a graph of so many entries."""
    choice = choose_solver(solver, n, n_entries, wanted, tol, limit, binary=binary)
    stored = 8 * n * wanted
    if not choice.distributed:
        what = f"W with up to {n_entries:,} entries and {wanted} vectors, solver {choice.solver}"
        needed = solver_bytes(choice.solver, n, n_entries, wanted, tol, binary)
        requests = 2 + n_entries // 2**20 + n // 2**17
        step = Step(what, needed, 1, 0, requests)
        return StageCost((step,), stored, stored, loads=_loads(choice))
    steps = _spread_steps(choice, n, n_entries, wanted, binary)
    vectors = 8 * n * block_width(wanted)
    # Blocks of W with the edges on their way, and three iterates with rows copied for others.
    scratch = 40 * n_entries + 5 * vectors + stored
    return StageCost(tuple(steps), scratch, stored, loads=_loads(choice), at_most=True)


def _loads(choice: Choice) -> tuple[str, ...]:
    """Return the modules that only some solvers need."""
    return ("bigfs.spectral.kernels",) if choice.solver == "chebyshev" else ()


def _spread_steps(choice: Choice, n: int, n_entries: int, wanted: int, binary: bool) -> list[Step]:
    """Return the steps of the solver on row blocks."""
    wanted_of_block = wanted_rows(n, choice.most_rows)
    blocks = -(-n // wanted_of_block)
    rows = min(n, int(_UNEVEN * wanted_of_block))
    needed = rows * row_block_bytes(n, n_entries, wanted)
    what = f"a block of {rows:,} rows of W with its vectors"
    steps = [
        Step(f"the order of {n:,} rows", _ORDER_BYTES * n + _COMPONENT_EDGES, 2, 0, 64),
        Step("edges on their way to their blocks", needed, 2 * blocks, 0, 4 * blocks**2),
        Step("groups of rows and their graph", needed, 3 * blocks + 1, 0, blocks * (blocks + 6)),
        Step(what, needed, _SUMS * blocks, 0, _SUMS * 3 * blocks, _ROUNDS),
    ]
    if choice.strip_row_bytes:
        strips = strip_count(block_width(wanted), choice.strip_row_bytes)
        what = f"W with up to {n_entries:,} entries and a strip of {n:,} rows"
        strip = strip_bytes(n, n_entries, choice.strip_row_bytes, binary=binary)
        steps.append(Step(f"the order of W with up to {n_entries:,} entries", strip, 1, 0, blocks))
        steps.append(Step(what, strip, strips, 0, strips * 4 * blocks, 2 * _ROUNDS))
    else:
        steps.append(Step(what, needed, blocks, 0, blocks * (blocks + 2), _PRODUCTS))
    return steps
