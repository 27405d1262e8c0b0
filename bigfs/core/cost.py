"""The predicted cost of a stage: memory of a task, passes, tasks, requests, scratch.

Every room states its own costs with these, by the formulas that its refusals use; `bigfs.plan.plan`
adds them up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# Measured: a submitted task with its descriptors, pickled, is 0.7 to 1.4 KB, and has a key.
DESCRIPTOR_BYTES = 2048


@dataclass(frozen=True)
class Shape:
    """A matrix as the stages see it."""

    n_samples: int
    n_features: int
    itemsize: int  # bytes of a value in memory: 4 or 8
    block_rows: int  # rows of a task's block
    chunk_rows: int  # rows of a stored chunk
    # Of a matrix whose blocks are in CSR form: its entries, and those of the largest block. None:
    # blocks are dense.
    n_entries: int | None = None
    block_entries: int | None = None

    @property
    def n_values(self) -> int:
        """Values that are stored."""
        return self.n_samples * self.n_features if self.n_entries is None else self.n_entries

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in memory."""
        if self.n_entries is not None:
            return self.n_entries * (self.itemsize + 4) + 4 * self.n_samples
        return self.n_samples * self.n_features * self.itemsize

    @property
    def rows(self) -> int:
        """Rows of the largest block."""
        return min(self.block_rows, self.n_samples)

    @property
    def n_blocks(self) -> int:
        """Blocks, and tasks of a pass."""
        return -(-self.n_samples // self.block_rows)

    @property
    def n_chunks(self) -> int:
        """Stored chunks, and requests of a pass."""
        return -(-self.n_samples // self.chunk_rows)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in memory."""
        if self.block_entries is not None:
            return self.block_entries * (self.itemsize + 4) + 4 * self.rows
        return self.rows * self.n_features * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Bytes of a block while it is read: itself, and what it is decoded from or copied to."""
        return 2 * self.block_bytes


@dataclass(frozen=True)
class Step:
    """Tasks of one kind within a stage."""

    what: str  # the task in words
    task_bytes: int  # the most that one needs beyond what its process is before
    tasks: int = 1  # how many there are at a time
    passes: int = 0  # how often they read all of X
    requests: int = 0  # chunks and ranges that they read and write
    times: int = 1  # how often the step is done, at most
    by_client: bool = False  # whether the client does it itself, on what workers have summed up
    before_kept: bool = False  # whether processes do not yet have what they keep between passes
    # Processor time of all tasks, once, with reading: an estimate; less where ``times`` is a bound
    # far above what is usual.
    seconds: float = 0.0


def pass_over(
    shape: Shape, what: str, task_bytes: int = 0, *, times: int = 1, seconds: float = 0.0
) -> Step:
    """Return the step of a pass: a task for each block, which needs ``task_bytes`` beside it.

    ``seconds`` is what it computes, beside reading.
    """
    needed, seconds = shape.read_bytes + task_bytes, seconds + read_seconds(shape)
    return Step(what, needed, shape.n_blocks, 1, shape.n_chunks, times, seconds=seconds)


# Measured on a core of 2023: multiplications by products of matrices, by loops over entries, and
# bytes that are read and checked, a second.
PRODUCTS_RATE, LOOP_RATE, READ_RATE = 2e10, 1e9, 5e8


def read_seconds(shape: Shape) -> float:
    """Return the processor time of reading a matrix once."""
    return shape.nbytes / READ_RATE


def product_seconds(*sizes: float) -> float:
    """Return the processor time of a product of matrices with these three sizes."""
    return math.prod(sizes) / PRODUCTS_RATE


def loop_seconds(*sizes: float) -> float:
    """Return the processor time of as many steps of a loop as the product of some sizes."""
    return math.prod(sizes) / LOOP_RATE


@dataclass(frozen=True)
class StageCost:
    """The cost of a stage."""

    steps: tuple[Step, ...]
    scratch_bytes: int = 0  # the most it has in the run directory at once, its result included
    stored_bytes: int = 0  # its result, which stays
    # What processes would like to keep in memory between passes; they keep what fits.
    keeps_bytes: int = 0
    compiles: bool = False  # whether its processes load pynndescent, and stay larger for it
    # Modules that tasks import beyond what all stages do; their ``warm_up``, if there is one, is
    # run before anything is measured.
    loads: tuple[str, ...] = ()
    # Whether passes and tasks are bounds of an iteration that may end earlier.
    at_most: bool = False

    @property
    def largest(self) -> Step:
        """The step whose tasks need the most of a worker; the client's if workers do nothing."""
        return max(self.by_workers or self.steps, key=lambda step: step.task_bytes)

    @property
    def by_workers(self) -> list[Step]:
        """The steps that are tasks of workers."""
        return [step for step in self.steps if not step.by_client]

    @property
    def task_bytes(self) -> int:
        """The most that one task needs beyond its process's baseline."""
        return max((step.task_bytes for step in self.by_workers), default=0)

    @property
    def client_bytes(self) -> int:
        """The most that the client needs for what it does itself."""
        return max((step.task_bytes for step in self.steps if step.by_client), default=0)

    @property
    def passes(self) -> int:
        """Reads of all of X."""
        return sum(step.passes * step.times for step in self.steps)

    @property
    def seconds(self) -> float:
        """Processor time: an estimate from measured rates."""
        return sum(step.seconds * step.times for step in self.steps)

    @property
    def tasks(self) -> int:
        """All tasks."""
        return sum(step.tasks * step.times for step in self.steps)

    @property
    def requests(self) -> int:
        """Chunks and ranges read and written."""
        return sum(step.requests * step.times for step in self.steps)

    @property
    def graph_bytes(self) -> int:
        """The largest set of tasks that belong together, as the scheduler sees it."""
        return DESCRIPTOR_BYTES * max(step.tasks for step in self.steps)


@dataclass(frozen=True)
class StagePlan:
    """One stage's strategy and its figures.

    Attributes
    ----------
    name : str
    strategy : object or None
        What the run executes, and whose cost this is. None where none fits.
    cost : StageCost or None
        None where it is not known.
    predicted_peak_bytes : int
        Largest resident size of a worker process.
    bytes_read : int
        Of X, uncompressed.
    used_bytes : int
        Of the peak, beyond what the process is before the stage.
    tasks_at_once : int
        How many tasks a process runs at the same time.
    refusal : str
        Why it does not fit; empty where it does.
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
        """Processor time: an estimate from measured rates."""
        return 0.0 if self.cost is None else self.cost.seconds
