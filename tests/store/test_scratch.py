"""Shared arrays: what is missing is an error, and an array keeps its folder."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from bigfs.core.errors import StorageError
from bigfs.graph import knn_graph
from bigfs.store.scratch import Scratch


def test_a_missing_chunk_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    ref = Scratch(tmp_path).create("a", (10, 2), "f4", 4)
    ref.write(0, np.ones((4, 2), np.float32))
    ref.write(8, np.ones((2, 2), np.float32))
    assert ref.read(0, 4).sum() == 8 and ref.read(8, 10).sum() == 4
    with pytest.raises(StorageError, match="chunk 1 is missing"):
        ref.read(3, 5)
    with pytest.raises(StorageError, match="chunk 1 is missing"):
        ref.load()


def test_an_opened_array_outlives_what_it_came_from() -> None:
    X = np.random.default_rng(0).normal(size=(300, 4))
    indices = knn_graph(X, 3).indices
    gc.collect()
    assert indices[...].max() > 200
    folder = Path(indices.store.root)
    assert folder.exists()
    del indices
    gc.collect()
    assert not folder.exists()


def test_an_array_without_columns_has_no_chunks_to_miss() -> None:
    stored = Scratch().put("coef", np.zeros((2, 0)))
    assert stored.load().shape == (2, 0)
