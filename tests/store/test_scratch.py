"""Shared arrays: what is missing is an error, and an array keeps its folder."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bigfs.core.errors import InputError, StorageError
from bigfs.graph import knn_graph
from bigfs.store.scratch import ArrayRef, Scratch


def test_a_missing_chunk_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    ref = Scratch(tmp_path).create("a", (10, 2), "f4", 4)
    ref.write(0, np.ones((4, 2), np.float32))
    ref.write(8, np.ones((2, 2), np.float32))
    assert ref.read(0, 4).sum() == 8 and ref.read(8, 10).sum() == 4
    with pytest.raises(StorageError, match="chunk 1 is missing"):
        ref.read(3, 5)
    with pytest.raises(StorageError, match="chunk 1 is missing"):
        ref.load()


def test_a_temporary_folder_ends_with_its_block(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    with pytest.raises(ZeroDivisionError), scratch.temporary("step") as working:
        ref = working.put("values", np.arange(5.0), 2)
        assert ref.chunk_rows == 2
        np.testing.assert_array_equal(ref.load(), np.arange(5.0))
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


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
    scratch = Scratch()
    stored = scratch.put("coef", np.zeros((2, 0)))
    assert stored.load().shape == (2, 0)


def test_an_array_that_takes_the_place_of_another_is_never_read_as_it(tmp_path: Path) -> None:
    old = Scratch(tmp_path).put("a", np.arange(12.0).reshape(6, 2))
    assert old.load().sum() == 66
    shutil.rmtree(tmp_path / "a")  # by another process, whose paths are the same
    with subprocess.Popen([sys.executable, "-c", REPLACED, str(tmp_path)]) as other:
        assert other.wait(60) == 0
    new = ArrayRef.at(tmp_path / "a")
    assert new.shape == (5, 3) and new.load().tolist() == [[1.0] * 3] * 5
    for use in (old.load, lambda: old.write(0, np.zeros((6, 2)))):
        with pytest.raises(StorageError, match="replaced by another run"):
            use()
    assert new.load().sum() == 15


REPLACED = """
import sys, numpy as np
from bigfs.store.scratch import Scratch
Scratch(sys.argv[1]).create("a", (5, 3), "f8", 2).write(0, np.ones((5, 3)))
"""


def test_a_forked_child_leaves_the_folder_to_its_parent() -> None:
    scratch = Scratch()
    ref = scratch.put("a", np.ones(3))
    child = os.fork()
    if not child:
        del scratch
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.exists()
    assert ref.load().sum() == 3


def test_what_is_too_large_for_a_pickle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigfs.store.scratch.CARRIED_BYTES", 1000)
    graph = knn_graph(np.random.default_rng(0).normal(size=(200, 2)), 5)
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(InputError, match="at most 1000 B. Use bigfs.run, whose run"):
            copied(graph)
        with pytest.raises(InputError, match="'indices"):
            copied(graph.indices)
    with pytest.raises(InputError, match="a temporary folder that is removed with it"):
        pickle.dumps(graph.scratch)


def test_arrays_of_a_folder_that_stays_are_pickled_by_their_address(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(3000, 2))
    graph = knn_graph(X, 5, scratch=Scratch(tmp_path))
    data = pickle.dumps((graph, graph.indices))
    assert len(data) < 10_000
    copied, indices = pickle.loads(data)
    assert np.array_equal(copied.distances[:], graph.distances[:])
    assert np.array_equal(indices[:], graph.indices[:])
    next(Path(graph.indices_ref.path).glob("c.*")).unlink()
    for array in (indices, copied.indices, pickle.loads(pickle.dumps(indices))):
        with pytest.raises(StorageError, match="chunk 0 is missing"):
            array[:]
