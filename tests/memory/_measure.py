"""Data on a worker's disk, and the bar: measured <= predicted <= 2 x measured from 100 MiB on.

Both are counted from the worker with all imports done. Measured is the largest resident size
(VmHWM) since it was reset through /proc/self/clear_refs, while the library's own calls run on
the worker as in a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost
from bigfs.core.units import GIB, MIB
from bigfs.plan.plan import Place as RunPlace
from bigfs.plan.plan import make_plan
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.rundir import Footprint
from bigfs.stages.stage import Stage
from bigfs.store.scratch import Scratch

LIMIT = 4 * GIB


@dataclass
class Place:
    """A folder that the worker shares, and data in it."""

    path: Path

    def scratch(self) -> Scratch:
        """Return a folder for what tasks share."""
        return Scratch(self.path / "scratch")

    def blocks(self, n: int, d: int, rows: int | None = None) -> RowBlocks:
        """Return random float32 rows around a few centers, as an npy file read by ranges."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, d), dtype=np.float32)
        X += 4 * rng.standard_normal((5, d), dtype=np.float32)[rng.integers(5, size=n)]
        np.save(self.path / "X.npy", X)
        del X
        return RowBlocks.from_any(self.path / "X.npy", scratch=self.scratch(), rows=rows)

    def empty_blocks(self, n: int, d: int, rows: int | None = None) -> RowBlocks:
        """Return such rows, dense, with nearly as few zeros as are multiplied as CSR."""
        self.blocks(n, d)
        X = np.load(self.path / "X.npy")
        X[np.random.default_rng(1).random((n, d), dtype=np.float32) > 0.065] = 0.0
        np.save(self.path / "X.npy", X)
        del X
        return RowBlocks.from_any(self.path / "X.npy", scratch=self.scratch(), rows=rows)

    def stored_blocks(self, n: int, d: int, rows: int | None = None) -> RowBlocks:
        """Return such rows as a run reads them: from a checked store, in chunks as ingest makes."""
        from bigfs import ingest

        self.blocks(n, d)
        ingest(self.path / "X.npy", self.path / "X.zarr")
        return RowBlocks.from_any(self.path / "X.zarr", scratch=self.scratch(), rows=rows)

    def sparse_blocks(self, n: int, d: int, rows: int | None = None) -> RowBlocks:
        """Return counts in a store of CSR blocks, 100 entries a row."""
        from scipy.sparse import csr_array

        from bigfs import ingest

        rng = np.random.default_rng(0)
        columns = np.sort(rng.integers(d, size=(n, 100)), axis=1).astype(np.int32)
        values = (1 + rng.poisson(1, size=columns.size)).astype(np.float32)
        X = csr_array((values, columns.ravel(), np.arange(0, 100 * n + 1, 100)), shape=(n, d))
        ingest(X, self.path / "X.zarr", rows=rows)
        scratch = self.scratch()
        return RowBlocks.from_any(self.path / "X.zarr", scratch=scratch, sparse=True)

    def graph(self, n: int, k: int) -> Any:
        """Return a graph as a search would: neighbors within one of 20 groups, a few beyond."""
        from bigfs.graph.cost import graph_block_rows
        from bigfs.graph.knn import KNNGraph
        from bigfs.graph.recall import RecallEstimate

        rng, scratch, rows = np.random.default_rng(0), self.scratch(), graph_block_rows(k)
        size = n // 20
        home = np.minimum(np.arange(n) // size, 19)[:, None] * size
        steps = 1 + np.arange(k) * (size // k) + rng.integers(size // k - 1, size=(n, k))
        indices = home + (np.arange(n)[:, None] - home + steps) % size
        beyond = rng.random(n) < 0.02
        indices[beyond, 0] = rng.integers(n, size=beyond.sum())
        indices[indices[:, 0] == np.arange(n), 0] = 0
        indices = indices.astype(np.int32)
        distances = np.sort(rng.random((n, k), dtype=np.float32), axis=1)
        stored = {}
        for name, values in (("indices", indices), ("distances", distances),
                             ("partitions", np.arange(n, dtype=np.int32) * 20 // n)):  # fmt: skip
            stored[name] = scratch.create(name, values.shape, values.dtype, rows)
            stored[name].write(0, values)
        return KNNGraph(
            stored["indices"], stored["distances"], stored["partitions"], "euclidean", "exact", 1,
            RecallEstimate(1.0, 1.0, 1.0, n, exact=True), scratch,
        )  # fmt: skip

    def graph_stage(self, n: int, k: int) -> Path:
        """Store a graph with heat weights as its stage does; return the folder."""
        from bigfs.graph import affinity

        graph, scratch = self.graph(n, k), self.scratch()
        W = affinity(graph, weight="heat", scratch=scratch.child("affinity"))
        scratch.describe(graph=graph.describe(), affinity=W.describe())
        return Path(scratch.path)

    def spectral_stage(self, n: int, n_components: int, rows: int) -> Path:
        """Store random vectors as the spectral stage does; return the folder."""
        Y = np.random.default_rng(1).standard_normal((n, n_components))
        scratch = self.scratch().child("spectral")
        stored = scratch.create("embedding", Y.shape, Y.dtype, rows)
        stored.write(0, Y)
        values = np.linspace(0.1, 0.5, n_components)
        actual = SpectralEmbedding(
            values, stored, np.linalg.norm(Y, axis=0), np.zeros(n_components),
            np.zeros(n_components, bool), 1.0, 1e-6, 1, values,
            "eigsh", "", 0, 0, scratch,
        )  # fmt: skip
        scratch.describe(**actual.describe())
        return Path(scratch.path)


@dataclass(frozen=True)
class _Priced:
    """A strategy of which only the cost matters."""

    priced: StageCost

    def cost(self) -> StageCost:
        return self.priced


def hold_to_the_bar(cost: StageCost, work: Callable[[], Any], *, alone: bool = False) -> None:
    """Run the work on the worker in scope and hold its peak against the cost.

    ``alone``: the work is all that a client without workers does.
    """
    place = RunPlace(LIMIT, limits={"this process": LIMIT} if alone else {})
    stage = Stage("stage", 1, {}, lambda shape: _Priced(cost))  # type: ignore[arg-type]
    [planned] = make_plan([stage], None, place).stages
    assert not planned.refusal
    footprint = Footprint(planned, LIMIT)
    work()
    record = footprint.record()
    predicted, measured = (
        record[f"{name}_peak_bytes"] - record["baseline_bytes"]
        for name in ("predicted", "measured")
    )
    message = (
        f"predicted {predicted / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB above a worker of "
        f"{record['baseline_bytes'] / MIB:.0f} MiB, {record['seconds']} s"
    )
    print(message)
    needed = cost.task_bytes + cost.keeps_bytes
    assert max(needed, cost.client_bytes if alone else 0) >= 100 * MIB
    assert measured <= predicted <= 2 * measured, message
