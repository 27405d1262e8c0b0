"""Lloyd's iteration of many candidates: what a plain loop for each of them finds; compiled once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.core.compiling import compiled
from bigfs.selectors.lfs.follow import Followed
from bigfs.selectors.lfs.kernels import Candidates, Clusterings, labels_of
from bigfs.selectors.lfs.lloyd import lloyd


def _plain(
    rows: np.ndarray, centers: np.ndarray, mask: np.ndarray, max_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return centers, labels and sums of one clustering, written as it is said."""
    limit = np.inf
    for iteration in range(max_iter):
        squared = ((rows[:, None, mask] - centers[:, mask]) ** 2).sum(axis=2)
        labels = squared.argmin(axis=1)
        sums = np.stack([rows[labels == j].sum(axis=0) for j in range(len(centers))])
        filled = np.bincount(labels, minlength=len(centers))[:, None]
        updated = np.where(filled > 0, sums / np.maximum(filled, 1), centers)
        if iteration == 0:
            limit = tol**2 * (updated[:, mask] ** 2).sum()
        if ((updated - centers)[:, mask] ** 2).sum() <= limit:
            break
        if iteration < max_iter - 1:
            centers = updated
    return centers, labels, sums


@pytest.mark.parametrize("n_clusters, max_iter", [(1, 5), (4, 1), (4, 3), (7, 100)])
def test_every_candidate_ends_where_a_plain_loop_does(n_clusters: int, max_iter: int) -> None:
    generator = np.random.default_rng(n_clusters)
    rows = generator.normal(size=(300, 6)) * [1, 2, 1, 30, 1, 1]
    centers = generator.normal(size=(n_clusters, 6)) * 2
    centers[-1] = 1e3  # empty, unless it is alone
    masks = np.ones((8, 6), dtype=bool)
    masks[np.arange(6), np.arange(6)] = False
    masks[6, 1:4] = False
    codes = generator.integers(0, 3, 300)
    ends, labels, counts, sums, squares, joint = lloyd(
        rows, centers, masks, codes, 3, max_iter, 1e-4, True
    )
    for c, mask in enumerate(masks):
        expected, nearest, total = _plain(rows, centers, mask, max_iter, 1e-4)
        np.testing.assert_allclose(ends[c], expected, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(labels[c], nearest)
        np.testing.assert_allclose(sums[c], total, rtol=0, atol=1e-10)
        squared = [(rows[nearest == j] ** 2).sum(axis=0) for j in range(n_clusters)]
        np.testing.assert_allclose(squares[c], squared, rtol=1e-12)
        np.testing.assert_array_equal(counts[c], np.bincount(nearest, minlength=n_clusters))
        for code in range(3):
            met = np.bincount(nearest[codes == code], minlength=n_clusters)
            np.testing.assert_array_equal(joint[c, code], met)


@pytest.mark.parametrize("order", [1, -1])
def test_of_centers_that_are_as_near_but_for_rounding_the_first_counts(order: int) -> None:
    rows = np.array([[0.2, 0.0], [0.4, 0.0], [0.3, 1.0]])
    centers = np.array([[0.1 + 0.2, 1.0], [0.3, -1.0]])[::order]
    masks = np.array([[True, False]])
    labels = lloyd(rows, centers, masks, np.zeros(3, np.int64), 1, 1, 0.0)[1]
    assert labels.tolist() == [[0, 0, 0]]
    actual = labels_of(rows, Clusterings(centers[None], masks))
    assert actual.tolist() == [[0], [0], [0]]


@pytest.mark.parametrize("kind", ["plain", "whole numbers", "two equal centers"])
def test_no_row_moves_without_a_feature_that_is_said_to_move_none(kind: str) -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(150, 12)) * [4, 3, 2, *[0.05] * 9]
    if kind == "whole numbers":
        rows = np.round(rows)
    centers = rows[:5].copy()
    if kind == "two equal centers":
        centers[4] = centers[3]
    codes, everything = np.zeros(150, np.int64), np.ones((1, 12), dtype=bool)
    centers, [labels], *_ = lloyd(rows, centers, everything, codes, 1, 100, 0.0)
    masks = ~np.eye(12, dtype=bool)
    without = lloyd(rows, centers[0], masks, codes, 1, 100, 1e-9)[1]
    moves = (without != labels).any(axis=1)
    nearest, moving = Followed(rows).moving(centers[0], np.arange(12))
    assert kind == "two equal centers" or (nearest == labels).all()
    assert not (moves & ~moving).any()
    assert moves.any()
    if kind == "plain":
        np.testing.assert_array_equal(moving, moves)


@pytest.mark.parametrize("tol", [0.0, 1e-3])
@pytest.mark.parametrize("kind", ["normal", "groups", "whole numbers"])
def test_followed_candidates_end_where_the_loop_does(kind: str, tol: float) -> None:
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(200, 15)) * [3, 3, *[0.1] * 13]
    if kind == "groups":
        rows[:, 0] += 10 * (np.arange(200) % 4)
    if kind == "whole numbers":
        rows = np.round(2 * rows)
    followed, kept, n_alike = Followed(rows), np.arange(15), 0
    centers = rows[:4].copy()
    for _ in range(8):
        candidates = Candidates(np.isin(np.arange(15), kept), kept[:, None])
        masks = candidates.masks(range(len(kept)))
        codes = np.zeros(200, np.int64)
        _, labels, counts, sums, squares, _ = lloyd(rows, centers, masks, codes, 1, 50, tol, True)
        ends, others = followed.endings(centers, kept, 50, tol)
        found = [*(end.candidates for end in ends), others]
        assert sorted(np.concatenate(found)) == list(range(len(kept)))
        for end in ends:
            of_labels = followed.sums(end.labels, 4)
            for candidate in end.candidates:
                np.testing.assert_array_equal(end.labels, labels[candidate])
                np.testing.assert_array_equal(of_labels.counts, counts[candidate])
                np.testing.assert_allclose(of_labels.sums, sums[candidate], atol=1e-10)
                np.testing.assert_allclose(of_labels.squares, squares[candidate], rtol=1e-12)
                at = Clusterings(end.centers[None], masks[candidate][None])
                np.testing.assert_array_equal(labels_of(rows, at)[:, 0], end.labels)
            n_alike += len(end.candidates)
            centers = followed.sums(end.labels, 4).sums / counts[end.candidates[0]][:, None]
        kept = np.delete(kept, len(kept) // 2)
    assert n_alike > 20 or kind == "whole numbers"


def test_distances_in_small_units_are_right_without_the_large_one() -> None:
    generator = np.random.default_rng(0)
    rows, centers = generator.normal(size=(200, 3)), generator.normal(size=(4, 3))
    rows[:, 0] *= 1e9
    centers[:, 0] *= 1e9
    masks = np.array([[True] * 3, [False, True, True]])
    labels = lloyd(rows, centers, masks, np.zeros(200, np.int64), 1, 1, 0.0)[1][1]
    np.testing.assert_array_equal(labels, _plain(rows, centers, masks[1], 1, 0.0)[1])


def test_without_a_folder_for_machine_code_a_process_compiles_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numba

    asked = []

    def njit(cache: bool = False, **options: Any) -> Any:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function '_run': no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled(len)([1, 2]) == 2
    assert asked == [True, False]


@pytest.mark.full
def test_a_second_process_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    code = (
        "from bigfs.selectors.lfs import lloyd\n"
        "from bigfs.spectral import kernels, rowloop\n"
        "for module in (lloyd, kernels): module.warm_up()\n"
        "ours = [lloyd._compiled(loop) for loop in (lloyd._nearest, lloyd._add, lloyd._run)]\n"
        "for loop in (*ours, rowloop.compiled_rows()):\n"
        "    print(sum(loop.stats.cache_misses.values()))"
    )
    misses = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=200
        )
        for _ in range(2)
    ]
    first, second = ([int(word) for word in run.stdout.split()] for run in misses)
    assert min(first) > 0 and second == [0, 0, 0, 0]
