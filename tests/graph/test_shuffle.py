"""Runs: what one task writes by target, another reads by target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfs.core.errors import StorageError
from bigfs.graph.shuffle import Runs, commit_runs, write_run
from bigfs.store.scratch import Scratch


def _shuffle(scratch: Scratch, targets: list[np.ndarray], n_targets: int) -> Runs:
    folder = str(scratch.path)
    receipts, first = [], 0
    for run, wanted in enumerate(targets):
        ids = np.arange(first, first + len(wanted), dtype=np.int32)
        rows = np.repeat(ids[:, None], 3, axis=1).astype(np.float32)
        receipts.append(write_run(folder, run, wanted, n_targets, {"id": ids, "row": rows}))
        first += len(wanted)
    return commit_runs(scratch, folder, receipts)


@pytest.mark.full
@given(
    st.integers(1, 6).flatmap(
        lambda p: st.tuples(
            st.just(p),
            st.lists(st.lists(st.integers(0, p - 1), max_size=30), min_size=1, max_size=5),
        )
    )
)
def test_every_row_arrives_once_and_in_order(problem: tuple[int, list[list[int]]]) -> None:
    n_targets, lists = problem
    targets = [np.array(part, dtype=np.int64) for part in lists]
    scratch = Scratch()
    runs = _shuffle(scratch, targets, n_targets)
    everything = np.concatenate(targets)
    for target in range(n_targets):
        ids, rows = runs.read(target, "id", "row")
        np.testing.assert_array_equal(ids, np.flatnonzero(everything == target))
        np.testing.assert_array_equal(rows, np.repeat(ids[:, None], 3, axis=1))
    assert runs.nbytes == len(everything) * 16


def test_one_file_per_run_and_one_row_in_two_targets(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    folder = scratch.child("runs")
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    ids = np.arange(4, dtype=np.int32)
    receipt = write_run(
        str(folder.path),
        0,
        np.array([0, 1, 1, 0, 2]),
        3,
        {"id": ids, "row": rows},
        source=np.array([0, 1, 2, 3, 3]),
    )
    runs = commit_runs(scratch, str(folder.path), [receipt])
    assert len(list(folder.path.iterdir())) == 1
    np.testing.assert_array_equal(runs.read(0, "row")[0], rows[[0, 3]])
    np.testing.assert_array_equal(runs.read(2, "id")[0], [3])
    np.testing.assert_array_equal(runs.read_ranges([(0, 1, 3)], "id")[0], [3, 1])


def test_an_attempt_that_was_not_committed_is_never_read(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    runs = _shuffle(scratch, [np.zeros(3, dtype=np.int64)], 1)
    stale = {"id": np.full(3, 9, np.int32), "row": np.full((3, 3), 9, np.float32)}
    write_run(str(tmp_path), 0, np.zeros(3, dtype=np.int64), 1, stale)
    np.testing.assert_array_equal(runs.read(0, "id")[0], [0, 1, 2])


def test_a_run_that_ends_too_early(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    runs = _shuffle(scratch, [np.zeros(5, dtype=np.int64)], 1)
    [path] = tmp_path.glob("run-*")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(StorageError, match="ends too early"):
        runs.read(0, "row")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    values = {"id": np.zeros(1, np.int32)}
    with pytest.raises(StorageError, match="Cannot write"):
        write_run(str(tmp_path / "missing"), 0, np.zeros(1, dtype=np.int64), 1, values)
