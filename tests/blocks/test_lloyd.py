"""Lloyd's iteration of many candidates: what a plain loop for each of them finds; compiled once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks.lloyd import label_sums, lloyd
from bigfs.core.threads import compiled
from bigfs.selectors.clusters import ClusterRule


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
    ends, labels = lloyd(rows, centers, masks, max_iter, 1e-4)
    counts, sums, squares = label_sums(rows, labels, n_clusters)
    for c, mask in enumerate(masks):
        expected, nearest, total = _plain(rows, centers, mask, max_iter, 1e-4)
        np.testing.assert_allclose(ends[c][:, mask], expected[:, mask], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(labels[c], nearest)
        np.testing.assert_allclose(sums[c], total, rtol=0, atol=1e-10)
        squared = [(rows[nearest == j] ** 2).sum(axis=0) for j in range(n_clusters)]
        np.testing.assert_allclose(squares[c], squared, rtol=1e-12)
        np.testing.assert_array_equal(counts[c], np.bincount(nearest, minlength=n_clusters))


@pytest.mark.parametrize("order", [1, -1])
def test_of_centers_that_are_as_near_but_for_rounding_the_first_counts(order: int) -> None:
    rows = np.array([[0.2, 0.0], [0.4, 0.0], [0.3, 1.0]])
    centers = np.array([[0.1 + 0.2, 1.0], [0.3, -1.0]])[::order]
    masks = np.array([[True, False]])
    assert lloyd(rows, centers, masks, 1, 0.0)[1].tolist() == [[0, 0, 0]]
    one = np.zeros(2, np.int64)
    rule = ClusterRule(
        np.zeros(2), centers[None], masks, one, np.arange(2), centers, masks[one], one + 1.0
    )
    assert rule.label(rows, False)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", ["normal", "groups", "whole numbers"])
def test_bounds_change_no_label(kind: str) -> None:
    """Candidates that lack a feature end where an iteration of their own ends."""
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(400, 15)) * [3, 3, *[0.1] * 13]
    if kind == "groups":
        rows[:, 0] += 10 * (np.arange(400) % 4)
    if kind == "whole numbers":
        rows = np.round(2 * rows)
    masks = ~np.eye(15, dtype=bool)
    ends, labels = lloyd(rows, rows[:6], masks, 50, 0.0)
    for end, of_rows, mask in zip(ends, labels, masks, strict=True):
        squared = ((rows[:, None, mask] - end[:, mask]) ** 2).sum(axis=2)
        least = squared.min(axis=1)
        assert (squared[np.arange(400), of_rows] <= least + 1e-9).all()
        alone, alone_labels = lloyd(rows[:, mask], rows[:6, mask], np.ones((1, 14), bool), 50, 0.0)
        if kind != "whole numbers":  # there rows are as near to several centers
            np.testing.assert_array_equal(alone_labels[0], of_rows)
            np.testing.assert_allclose(alone[0], end[:, mask], atol=1e-12)


def test_distances_in_small_units_are_right_without_the_large_one() -> None:
    generator = np.random.default_rng(0)
    rows, centers = generator.normal(size=(200, 3)), generator.normal(size=(4, 3))
    rows[:, 0] *= 1e9
    centers[:, 0] *= 1e9
    masks = np.array([[True] * 3, [False, True, True]])
    labels = lloyd(rows, centers, masks, 1, 0.0)[1][1]
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
        "from bigfs.blocks import lloyd\n"
        "from bigfs.spectral import kernels\n"
        "for module in (lloyd, kernels): module.warm_up()\n"
        "ours = [lloyd._compiled(loop) for loop in (lloyd._add, lloyd._run)]\n"
        "for loop in (*ours, *kernels.compiled_products()):\n"
        "    print(sum(loop.stats.cache_misses.values()))"
    )
    misses = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=200
        )
        for _ in range(2)
    ]
    first, second = ([int(word) for word in run.stdout.split()] for run in misses)
    assert min(first) > 0 and second == [0] * 4
