"""The predicted cost of a stage: memory of a task, passes, tasks, requests, scratch.

Each subpackage states the costs of its stages with these classes, by the same formulas that its
memory checks use; `bigfs.plan.plan` adds them up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# Measured: a submitted task with its descriptors takes 0.7 to 1.4 KB pickled, plus its key.
DESCRIPTOR_BYTES = 2048


@dataclass(frozen=True)
class Shape:
    """Shape of a matrix, its blocks and its chunks."""

    n_samples: int
    n_features: int
    itemsize: int  # bytes of a value in memory: 4 or 8
    block_rows: int  # rows of a task's block
    chunk_rows: int  # rows of a stored chunk
    # Number of stored entries of a matrix with CSR blocks, and of its largest block. None: blocks
    # are dense.
    n_entries: int | None = None
    block_entries: int | None = None

    @property
    def n_values(self) -> int:
        """Number of values that are stored."""
        return self.n_samples * self.n_features if self.n_entries is None else self.n_entries

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in memory."""
        if self.n_entries is not None:
            return self.n_entries * (self.itemsize + 4) + 4 * self.n_samples
        return self.n_samples * self.n_features * self.itemsize

    @property
    def rows(self) -> int:
        """Number of rows in the largest block."""
        return min(self.block_rows, self.n_samples)

    @property
    def n_blocks(self) -> int:
        """Number of blocks, and so of tasks in a pass."""
        return -(-self.n_samples // self.block_rows)

    @property
    def n_chunks(self) -> int:
        """Number of stored chunks, and so of requests in a pass."""
        return -(-self.n_samples // self.chunk_rows)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in memory."""
        if self.block_entries is not None:
            return self.block_entries * (self.itemsize + 4) + 4 * self.rows
        return self.rows * self.n_features * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Bytes needed while a block is read: the block, and the buffer that it is decoded from."""
        return 2 * self.block_bytes


@dataclass(frozen=True)
class Step:
    """Tasks of one kind within a stage."""

    what: str  # description of the task
    task_bytes: int  # largest memory of one task, beyond the baseline of its process
    tasks: int = 1  # number of tasks in one repetition of the step
    passes: int = 0  # number of times that one repetition reads all of X
    requests: int = 0  # number of chunks and ranges that one repetition reads and writes
    times: int = 1  # upper bound of the number of repetitions
    by_client: bool = False  # True if the client does it itself, on results of the workers
    before_kept: bool = False  # True if processes do not yet hold what they keep between passes
    # Estimated processor time of one repetition, with reading; a smaller value if ``times`` is far
    # above the usual number of repetitions.
    seconds: float = 0.0


def pass_over(
    shape: Shape, what: str, task_bytes: int = 0, *, times: int = 1, seconds: float = 0.0
) -> Step:
    """Return the step of a pass: a task for each block, which needs ``task_bytes`` besides it.

    ``seconds`` is the processor time of the pass without reading.
    """
    needed, seconds = shape.read_bytes + task_bytes, seconds + read_seconds(shape)
    return Step(what, needed, shape.n_blocks, 1, shape.n_chunks, times, seconds=seconds)


# Rates per second, measured on a core of 2023: multiplications in matrix products, steps of loops
# over entries, and bytes that are read and checked.
PRODUCTS_RATE, LOOP_RATE, READ_RATE = 2e10, 1e9, 5e8


def read_seconds(shape: Shape) -> float:
    """Return the processor time of reading a matrix once."""
    return shape.nbytes / READ_RATE


def product_seconds(*sizes: float) -> float:
    """Return the processor time of a matrix product, given its three dimensions."""
    return math.prod(sizes) / PRODUCTS_RATE


def loop_seconds(*sizes: float) -> float:
    """Return the processor time of nested loops with the given numbers of iterations."""
    return math.prod(sizes) / LOOP_RATE


@dataclass(frozen=True)
class StageCost:
    """The cost of a stage."""

    steps: tuple[Step, ...]
    scratch_bytes: int = 0  # largest size in the run directory, including the result
    stored_bytes: int = 0  # size of the result, which stays
    # Bytes that processes would keep in memory between passes; they keep the part that fits.
    keeps_bytes: int = 0
    compiles: bool = False  # True if its processes load pynndescent, and stay larger for it
    # Modules that tasks import in addition to those of all stages; their function ``warm_up``, if
    # there is one, is called before memory is measured.
    loads: tuple[str, ...] = ()
    # True if passes and tasks are upper bounds, since an iteration may end earlier.
    at_most: bool = False

    @property
    def largest(self) -> Step:
        """The step with the largest tasks of workers, or of the client if workers do nothing."""
        return max(self.by_workers or self.steps, key=lambda step: step.task_bytes)

    @property
    def by_workers(self) -> list[Step]:
        """The steps that workers do."""
        return [step for step in self.steps if not step.by_client]

    @property
    def task_bytes(self) -> int:
        """Largest memory of one task of a worker, beyond the baseline of its process."""
        return max((step.task_bytes for step in self.by_workers), default=0)

    @property
    def client_bytes(self) -> int:
        """Largest memory that the client needs for steps that it does itself."""
        return max((step.task_bytes for step in self.steps if step.by_client), default=0)

    @property
    def passes(self) -> int:
        """Number of times that all of X is read."""
        return sum(step.passes * step.times for step in self.steps)

    @property
    def seconds(self) -> float:
        """Processor time in seconds, estimated from measured rates."""
        return sum(step.seconds * step.times for step in self.steps)

    @property
    def tasks(self) -> int:
        """Number of all tasks."""
        return sum(step.tasks * step.times for step in self.steps)

    @property
    def requests(self) -> int:
        """Number of chunks and ranges that are read and written."""
        return sum(step.requests * step.times for step in self.steps)

    @property
    def graph_bytes(self) -> int:
        """Size of the largest task graph on the scheduler: all tasks of one step."""
        return DESCRIPTOR_BYTES * max(step.tasks for step in self.steps)


@dataclass(frozen=True)
class StagePlan:
    """The strategy of one stage and its predicted costs.

    Attributes
    ----------
    name : str
    strategy : object or None
        The strategy that the run executes, and whose cost this is. None if none fits.
    cost : StageCost or None
        None if it is not known.
    predicted_peak_bytes : int
        Largest resident size of a worker process.
    bytes_read : int
        Bytes of X that are read, uncompressed.
    used_bytes : int
        Part of the peak beyond the size of the process before the stage.
    tasks_at_once : int
        Number of tasks that a process runs at the same time.
    refusal : str
        Reason why the stage does not fit; empty if it does.
    """

    name: str
    strategy: Any
    cost: StageCost | None
    predicted_peak_bytes: int = 0
    bytes_read: int = 0
    used_bytes: int = 0
    tasks_at_once: int = 1
    refusal: str = ""

    @property
    def seconds(self) -> float:
        """Processor time in seconds, estimated from measured rates."""
        return 0.0 if self.cost is None else self.cost.seconds
