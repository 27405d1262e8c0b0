"""The data stage: copies an input into a chunked store, unless it already is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bigfs.blocks import preprocess
from bigfs.blocks.rowblocks import moments_step
from bigfs.config.sections import InputConfig
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds
from bigfs.stages.stage import Stage
from bigfs.store.ingest import ingest_bytes

INGEST_VERSION = 5


def data_stage(
    settings: InputConfig,
    transform: str,
    stored: bool,
    held_bytes: int = 0,
    temporary_bytes: int = 0,
    rows: int | None = None,
) -> Stage:
    """Return the data stage.

    Parameters
    ----------
    settings : InputConfig
    transform : str
        The preprocessing, which may need the moments of the features.
    stored : bool
        True if the input already is a store.
    held_bytes : int, default=0
        Bytes that the source holds while it is read.
    temporary_bytes : int, default=0
        Bytes that reading the source writes to disk.
    rows : int or None, default=None
        Rows per chunk of the copy, if not the default.
    """
    depends = settings.model_dump(include={"variable", "header", "csv", "missing"})
    fields = type(settings).model_fields
    others = {name: v for name, v in settings.opening.items() if v != fields[name].default}
    depends = others | depends | ({} if rows is None else {"blocks.rows": rows})
    given = settings.missing, transform, stored, held_bytes, temporary_bytes

    def choose(shape: Shape) -> Any:  # for the plan only: the run calls `ingest`
        return Ingestion(shape, *given)

    return Stage("data", INGEST_VERSION, depends, choose, sparse=True)


# Measured: loop steps per value that is read, checked, packed and written.
_COPY_LOOPS = 20


@dataclass(frozen=True)
class Ingestion:
    """Chunks of the input one after the other; attributes are those of `data_stage`."""

    shape: Shape
    missing: str
    transform: str
    stored: bool
    held_bytes: int
    temporary_bytes: int

    def cost(self) -> StageCost | None:
        """Return the cost of the copy, and of the moments that a transform needs."""
        shape, steps, stored = self.shape, [], 0
        if not self.stored:
            chunk = shape.chunk_rows * shape.n_features * shape.itemsize
            if shape.n_entries is not None:
                # As read, in the source's rows, in order and by chunks; and all row pointers.
                chunk = shape.block_bytes + 4 * shape.n_samples
            reads = 2 if self.missing == "mean" else 1
            needed, requests = ingest_bytes(chunk, self.held_bytes), 2 * shape.n_chunks
            seconds = loop_seconds(shape.n_values, _COPY_LOOPS)
            steps.append(
                Step("a chunk of the input", needed, 1, 1, requests, reads, seconds=seconds)
            )
            stored = shape.nbytes
        if preprocess.needs_moments(self.transform):
            steps.append(moments_step(shape))
        scratch = stored + self.temporary_bytes
        return StageCost(tuple(steps), scratch, stored) if steps else None
