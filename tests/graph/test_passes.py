"""Passes of the neighbor search over X, counted by the store, and its scratch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

from bigfs.blocks import RowBlocks
from bigfs.core.errors import MemoryLimitError
from bigfs.graph import knn_graph
from bigfs.store.scratch import Scratch
from tests.graph._brute import manifold


class _CountingStore(zarr.storage.LocalStore):
    """Counts how often each chunk of a matrix is read."""

    reads: dict[str, int] = {}

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        if "/c/" in f"/{key}":
            self.reads[key] = self.reads.get(key, 0) + 1
        return await super().get(key, *args, **kwargs)


@pytest.fixture
def counted(tmp_path: Path) -> tuple[RowBlocks, dict[str, int]]:
    """Row blocks of 10 chunks whose reads are counted from here on."""
    X = manifold(2000, 6)
    path = str(tmp_path / "X.zarr")
    zarr.create_array(store=path, shape=X.shape, dtype="f4", chunks=(200, 6))[...] = X
    store = _CountingStore(path)
    blocks = RowBlocks.from_any(zarr.open_array(store, mode="r"), scratch=Scratch(tmp_path / "s"))
    store.reads.clear()
    return blocks, store.reads


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"algorithm": "exact", "n_partitions": 1}, 1),  # to scratch; nothing to check
        ({"algorithm": "exact", "n_partitions": 5}, 3),  # sample, distribute, check
        ({"algorithm": "exact", "n_partitions": 5, "representation": "pca:3"}, 2),  # Gram
        ({"algorithm": "exact", "n_partitions": 5, "recall_target": 0.9, "eps": 0.5}, 4),  # pilot
    ],
)
def test_passes_over_X(
    counted: tuple[RowBlocks, dict[str, int]], options: dict[str, Any], passes: int
) -> None:
    blocks, reads = counted
    graph = knn_graph(blocks, 4, **options)
    assert len(reads) == 10
    assert set(reads.values()) == {passes}
    assert graph.details["passes"] == passes


def test_scratch_is_predicted_and_removed(counted: tuple[RowBlocks, dict[str, int]]) -> None:
    blocks, _ = counted
    graph = knn_graph(blocks, 4, algorithm="exact", n_partitions=5)
    measured, predicted = (graph.details[f"{w}scratch_bytes"] for w in ("", "predicted_"))
    assert 0 < measured <= predicted <= 2 * measured
    names = {path.name for path in graph.scratch.path.iterdir()}
    checked = {"checked_rows", "checked_indices", "checked_distances"}
    assert names == {"indices", "distances", "partitions"} | checked


def test_too_little_scratch_is_refused(tmp_path: Path) -> None:
    Scratch(tmp_path).check_free("graph", 1)
    with pytest.raises(MemoryLimitError, match="'graph' needs about .* of scratch .* free"):
        Scratch(tmp_path).check_free("graph", 2**50)
