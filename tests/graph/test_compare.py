"""New rows are compared with all rows of their cells, whatever fits the tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bigfs.graph import update as module
from bigfs.graph.update import GrownRows, compare, search_limits
from bigfs.store.scratch import ArrayRef, Scratch

K, N_OLD, N_NEW = 4, 300, 60


def _distances(X: np.ndarray) -> np.ndarray:
    """Return all pairs, (n, n) float64; a row is not its own neighbor."""
    gaps = np.linalg.norm(X[:, None].astype(np.float64) - X[None], axis=2)
    np.fill_diagonal(gaps, np.inf)
    return gaps


def _case(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, GrownRows]:
    """Return rows, their cells, the reach of each, and new rows that are searched in two cells."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(N_OLD + N_NEW, 6)).astype(np.float32)
    X[:, 0] += np.where(generator.random(len(X)) < 0.5, -20, 20)
    centers = np.zeros((3, 6), np.float32)
    centers[1:, 0] = -20, 20
    home = (X[:, 0] > 0).astype(np.int64)
    former = np.sort(_distances(X[:N_OLD]), axis=1)[:, :K].astype(np.float32)
    probes = home[N_OLD:, None].astype(np.int32)
    scratch = Scratch(folder)
    put = scratch.put
    nothing: tuple[ArrayRef, ...] = ()
    grown = GrownRows(
        K, N_OLD, "euclidean", put("former", former), put("centers", centers), put("sample", X[:1]),
        put("ids", np.zeros(1, np.int64)), put("new", X[N_OLD:]), put("probes", probes),
        put("limits", search_limits(X, N_OLD, centers, probes, K)),
        put("places", np.zeros(0, np.int64)), nothing,
    )  # fmt: skip
    reach = np.concatenate([former[:, -1], np.full(N_NEW, -np.inf, np.float32)])
    return X, home, reach, grown


@pytest.mark.parametrize("small", [False, True])
def test_lists_are_those_of_all_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    X, home, reach, grown = _case(tmp_path)
    if small:
        monkeypatch.setattr(module, "_PIECE_ROWS", 7)
    owners, neighbors, distances = compare(X, np.arange(len(X)), home, reach, grown)
    gaps = _distances(X)
    lists = dict(zip(owners.tolist(), zip(neighbors, distances, strict=True), strict=True))
    for row in range(N_OLD, len(X)):
        nearest = np.argsort(gaps[row], kind="stable")[:K]
        np.testing.assert_array_equal(lists[row][0], nearest)
        np.testing.assert_allclose(lists[row][1], gaps[row, nearest], rtol=1e-6)
    changed = np.flatnonzero((gaps[:N_OLD, N_OLD:] < reach[:N_OLD, None]).any(axis=1))
    assert set(owners[owners < N_OLD]) == set(changed) and len(changed) > 50
    for row in changed:
        nearer = N_OLD + np.flatnonzero(gaps[row, N_OLD:] < reach[row])
        nearer = nearer[np.argsort(gaps[row, nearer], kind="stable")][:K]
        np.testing.assert_array_equal(lists[row][0][: len(nearer)], nearer)
        assert (lists[row][0][len(nearer) :] == -1).all()


def test_limits_are_the_distances_of_the_last_neighbors(tmp_path: Path) -> None:
    X, _, _, grown = _case(tmp_path)
    last = np.sort(_distances(X)[N_OLD:], axis=1)[:, K - 1]
    limits = np.sqrt(grown.limits.load())
    assert (limits >= last).all()
    np.testing.assert_allclose(limits, last, rtol=0.01)


def test_no_row_in_the_cells_gives_no_list(tmp_path: Path) -> None:
    X, home, reach, grown = _case(tmp_path)
    owners, neighbors, distances = compare(X, np.arange(len(X)), home + 5, reach, grown)
    assert (len(owners), neighbors.shape, distances.shape) == (0, (0, K), (0, K))
