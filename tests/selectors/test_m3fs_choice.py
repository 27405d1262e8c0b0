"""The start that M3FS selects: its likelihood against a dense one, and the choice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bigfs import M3FS, ingest
from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.metrics import clustering_accuracy
from bigfs.selectors.m3fs import starts as _m3fs_choice
from bigfs.selectors.m3fs.starts import (
    RIDGE,
    choice_steps,
    compared_rows,
    likeliest,
    likelihoods,
    mean_log_likelihood,
    starts_to_run,
)


def _uneven(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Make a narrow cluster of two thirds of the rows, and a wide one beside and around it."""
    generator = np.random.default_rng(0)
    y = (np.arange(n) % 3 == 0).astype(np.int64)
    X = generator.normal(size=(n, 8)) * np.where(y == 1, 2.0, 0.15)[:, None]
    X[:, :3] += 0.6 * y[:, None]
    return X, y


def test_the_likelihood_is_that_of_a_gaussian_for_each_cluster() -> None:
    generator = np.random.default_rng(1)
    X = generator.normal(size=(40, 6)) @ generator.normal(size=(6, 6)) + 3.0
    labels = np.r_[np.zeros(20, dtype=int), np.ones(16, dtype=int), np.full(4, 2)]
    ridge = RIDGE * X.var(axis=0).mean()
    expected = 0.0
    for c, size in enumerate((20, 16, 4)):
        rows = X[labels == c]
        spread = np.cov(rows.T, bias=True) + ridge * np.eye(6)
        actual = multivariate_normal(rows.mean(axis=0), spread).logpdf(rows).sum()
        expected += actual + size * np.log(size / 40)
    assert mean_log_likelihood(X, labels) == pytest.approx(expected / 40, abs=1e-10)
    assert mean_log_likelihood(np.ones((10, 3)), labels[:10]) == 0.0


def test_scale_and_offset_do_not_change_the_order() -> None:
    X, y = _uneven()
    halves = (X[:, 0] > np.median(X[:, 0])).astype(int)
    for changed in (X, 1000 * X + 5):
        assert mean_log_likelihood(changed, y) > mean_log_likelihood(changed, halves)


@pytest.mark.full
def test_the_likeliest_start_is_believed_or_the_least_objective() -> None:
    X, _ = _uneven()
    settings = {"balance": 0.4, "n_neighbors": 10}
    likely = M3FS(3, **settings).fit(X)
    best = max(likely.starts_, key=lambda start: start["likelihood"])
    assert likely.chosen_start_ == best["start"]
    labels = likely.start_labels_[:, likely.starts_.index(best)]
    np.testing.assert_array_equal(likely.labels_, labels)
    standard = (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0).mean())
    assert best["likelihood"] == pytest.approx(mean_log_likelihood(standard, labels))
    least = M3FS(3, criterion="objective", **settings).fit(X)
    assert least.objective_ == min(start["objective"] for start in least.starts_)
    assert least.starts_[0]["likelihood"] is None


def test_ionosphere_is_clustered_as_well_as_in_the_paper(data_dir: Path) -> None:
    """ACC 85.6 in table 2: a start of higher objective, which labels are not needed to find."""
    stored = np.load(data_dir / "ionosphere.npz")
    fitted = M3FS(10, C=3.0, smoothness=10.0, sigma="median").fit(stored["X"])
    assert clustering_accuracy(stored["y"], fitted.labels_) > 0.8457
    assert fitted.objective_ > min(start["objective"] for start in fitted.starts_)


def test_blocks_and_a_draw_of_rows_give_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = _uneven()
    columns = np.column_stack([y, X[:, 0] > np.median(X[:, 0])]).astype(np.uint8)
    results = {}
    for rows in (300, 70):
        blocks = RowBlocks.from_any(X, rows=rows)
        results[rows] = likelihoods(blocks, blocks.scratch.put("columns", columns), 0)
    np.testing.assert_array_equal(results[300], results[70])
    expected = [mean_log_likelihood(X, column) for column in columns.T]
    np.testing.assert_allclose(results[300], expected, rtol=1e-12)
    monkeypatch.setattr(_m3fs_choice, "compared_rows", lambda shape: 120)
    drawn = likelihoods(blocks, blocks.scratch.put("again", columns), 0)
    assert drawn[0] > drawn[1]
    assert drawn[0] != results[70][0]


def test_what_the_choice_holds_is_bounded() -> None:
    shapes = [Shape(n, d, 4, 100, 100) for n, d in ((10**6, 64), (10**9, 1000), (400, 10**5))]
    assert [compared_rows(shape) for shape in shapes] == [10_000, 4194, 100]
    for shape in shapes:
        [compared] = [step for step in choice_steps(shape, 3) if step.tasks == 3]
        assert compared.task_bytes < 200 * 2**20


def test_how_many_starts_are_run() -> None:
    assert starts_to_run(11, (205, 20), "likelihood") == 3
    assert starts_to_run(2, (205, 20), "likelihood") == 2
    assert starts_to_run(11, (204, 20), "likelihood") == 11, "few unknowns"
    assert starts_to_run(11, (5_000, 1), "likelihood") == 11, "two clusters"
    assert starts_to_run(11, (205, 20), "objective") == 11, "the beginnings do not tell"
    assert likeliest(np.array([-3.0, -1.0, -2.0, -1.0 - 1e-12]), 2) == [1, 3]
    assert likeliest(np.array([-1.0 - 1e-12, -3.0, -1.0]), 1) == [0], "equal but for rounding"


@pytest.mark.full
@pytest.mark.parametrize("rows", [80, 40])
def test_the_likeliest_beginnings_are_run_to_the_ends_that_they_have_among_all(
    rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 12)) + 3 * generator.normal(size=(5, 12))[np.arange(80) % 5]
    ingest(X, tmp_path / "X.zarr", rows=rows)
    every = M3FS(4, n_clusters=6).fit(tmp_path / "X.zarr")
    monkeypatch.setattr(_m3fs_choice, "_MANY_UNKNOWNS", 70)
    few = M3FS(4, n_clusters=6).fit(tmp_path / "X.zarr")
    assert len(every.starts_) > len(few.starts_) == 3
    ends = {start["start"]: start for start in every.starts_}
    for number, start in enumerate(few.starts_):
        assert start["objective"] == pytest.approx(ends[start["start"]]["objective"])
        labels = np.asarray(few.start_labels_)[:, number]
        assert np.bincount(labels, minlength=6).tolist() == start["sizes"]
    assert few.chosen_start_ in ends
