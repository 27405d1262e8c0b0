"""Metrics equal scikit-learn's where it has them, and counting by hand where not."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csc_matrix, csr_array
from sklearn import metrics as peer
from sklearn.datasets import load_digits

from bigfs import metrics
from bigfs.core.errors import InputError
from bigfs.evaluate.metrics import AVERAGES, count_nearest_errors
from bigfs.evaluate.protocols import kmeans_scores
from bigfs.graph import local

labelings = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40).map(
    lambda pairs: tuple(np.array(pairs).T)
)


@given(labelings)
def test_pair_and_information_measures_equal_scikit_learn(pair: tuple) -> None:
    a, b = pair
    assert metrics.rand_index(a, b) == pytest.approx(peer.rand_score(a, b))
    assert metrics.adjusted_rand_index(a, b) == pytest.approx(peer.adjusted_rand_score(a, b))
    for average in AVERAGES:
        expected = peer.normalized_mutual_info_score(a, b, average_method=average)
        actual = metrics.normalized_mutual_info(a, b, average=average)
        assert actual == pytest.approx(expected, abs=1e-9)


@given(labelings)
def test_accuracy_is_the_best_matching(pair: tuple) -> None:
    a, b = pair
    best = max((np.array(p)[b] == a).mean() for p in permutations(range(4)))
    assert metrics.clustering_accuracy(a, b) == pytest.approx(best)


def test_labels_can_be_texts_and_any_numbers() -> None:
    assert metrics.clustering_accuracy(["x", "x", "y"], [7, 7, -1]) == 1
    np.testing.assert_array_equal(
        metrics.confusion_matrix(["b", "a", "b"], [1, 2, 2]), [[0, 1], [1, 1]]
    )


def test_majority_label_error() -> None:
    assert metrics.majority_label_error([0, 0, 1, 1, 2], [0, 0, 0, 1, 1]) == pytest.approx(2 / 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("shift", [0, 100])
def test_nearest_neighbor_error_equals_all_pairs(dtype: type, shift: int) -> None:
    X, y = load_digits(return_X_y=True)
    X = (X + shift).astype(dtype)[:700]
    wide = X.astype(np.float64)
    squared = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.fill_diagonal(squared, np.inf)
    expected = (y[squared.argmin(axis=1)] != y[:700]).mean()
    assert metrics.nearest_neighbor_error(X, y[:700]) == expected
    X = X.astype(np.float64)
    parts = [(i, X[i : i + 150]) for i in range(0, 700, 150)]
    wrong = [count_nearest_errors(X[i : i + 99], i, y[:700], parts) for i in range(0, 700, 99)]
    assert sum(wrong) / 700 == expected


def _all_pairs_error(X: np.ndarray, y: np.ndarray) -> float:
    squared = np.stack([((X - x) ** 2).sum(axis=1) for x in X])
    np.fill_diagonal(squared, np.inf)
    return float((y[squared.argmin(axis=1)] != y).mean())


@pytest.mark.parametrize("factor", [1e-25, 1.0, 1e25, 1e150])
@pytest.mark.parametrize("outlier", [1.0, 1e5, 1e12])
def test_no_scale_and_no_outlier_costs_accuracy(factor: float, outlier: float) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 600)
    X = rng.normal(size=(600, 20)) + 3 * np.eye(5, 20)[y]
    X[7] *= outlier
    assert metrics.nearest_neighbor_error(X * factor, y) == _all_pairs_error(X, y)


@pytest.mark.parametrize(("place", "rows", "most"), [(0, 4096, 3), (1200, 900, 8)])
def test_an_outlier_does_not_make_every_pair_a_candidate(
    place: int, rows: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigfs.evaluate.metrics._PIECE_ROWS", rows)
    checked = []
    rank = local._rank
    monkeypatch.setattr(
        local,
        "_rank",
        lambda rows, Q, near, *out: checked.append(near.sum()) or rank(rows, Q, near, *out),
    )
    X, y = load_digits(return_X_y=True)
    X[place] *= 1e6
    metrics.nearest_neighbor_error(X, y)
    # The outlier itself is about equally far from all others.
    assert sum(checked) < most * len(X)


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 5), st.integers(1, 4))
def test_ties_go_to_the_lowest_row(seed: int, n: int, d: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, levels, size=(n, d)).astype(float), rng.integers(0, 3, n)
    assert metrics.nearest_neighbor_error(X, y) == _all_pairs_error(X, y)


def test_duplicates_and_constant_rows_count_the_lowest_row() -> None:
    X = np.zeros((4, 2))
    assert metrics.nearest_neighbor_error(X, [0, 1, 1, 1]) == 1.0
    assert metrics.nearest_neighbor_error(X, [0, 0, 1, 1]) == 0.5


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_redundancy_is_the_mean_absolute_correlation(offset: float) -> None:
    X = load_digits().data[:, 41:47] + offset
    expected = np.abs(np.corrcoef(X.T))
    pairs = expected[np.triu_indices(6, 1)]
    assert metrics.redundancy(X) == pytest.approx(pairs.mean(), abs=1e-9)
    assert metrics.redundancy(X[:, [3, 3]]) == pytest.approx(1)
    assert metrics.redundancy(X[:, :1]) == 0


def test_redundancy_of_more_columns_than_are_taken_at_a_time() -> None:
    X = np.random.default_rng(0).normal(size=(30, 1700))
    X[:, 5] = 2.0
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.abs(np.nan_to_num(np.corrcoef(X.T)))
    pairs = expected[np.triu_indices(1700, 1)]
    assert metrics.redundancy(X) == pytest.approx(pairs.mean(), rel=1e-12)


def test_a_constant_column_is_correlated_with_none() -> None:
    X = np.random.default_rng(0).normal(size=(50, 3))
    X[:, 1], X[:, 2] = 0.1, X[:, 0]
    assert metrics.redundancy(X) == pytest.approx(1 / 3)


def test_redundancy_is_free_of_units_and_of_rounding() -> None:
    X = load_digits().data[:, 41:47]
    for power in (-1040, -600, -150, 150, 600, 1000):
        assert metrics.redundancy(X * 2.0**power) == metrics.redundancy(X)
    units = X * 2.0 ** np.array([900, -900, 0, 500, -500, 3])
    assert metrics.redundancy(units) == metrics.redundancy(X)
    X = np.random.default_rng(0).normal(size=(50, 3))
    X[:, 1], X[:, 2] = np.where(X[:, 0] > 0, 0.3, 0.1 + 0.2), X[:, 0]
    assert metrics.redundancy(X) == pytest.approx(1 / 3)


def test_matrices_may_be_sparse_or_hold_objects() -> None:
    X = load_digits().data[:, 41:47]
    y = load_digits().target
    for same in (csr_array(X), csc_matrix(X), X.astype(object), pd.DataFrame(X).astype(object)):
        assert metrics.redundancy(same) == pytest.approx(metrics.redundancy(X), rel=1e-12)
        assert metrics.nearest_neighbor_error(same, y) == metrics.nearest_neighbor_error(X, y)


def test_overlap_beside_chance() -> None:
    actual = metrics.selection_overlap([1, 2, 3, 4], [4, 3, 9], 20)
    assert (actual.count, actual.share, actual.chance) == (2, pytest.approx(2 / 3), 0.2)
    rng = np.random.default_rng(0)
    drawn = [
        metrics.selection_overlap(rng.permutation(30)[:12], rng.permutation(30)[:6], 30).share
        for _ in range(4000)
    ]
    assert np.mean(drawn) == pytest.approx(12 / 30, abs=0.01)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: metrics.redundancy(np.zeros(3)), r"Got shape \(3,\)"),
        (lambda: metrics.redundancy([[np.inf, 1.0]]), "finite real"),
        (lambda: metrics.selection_overlap([], [1], 5), "first must hold"),
        (lambda: metrics.selection_overlap([1], [2, 2], 5), "second must hold"),
        (lambda: metrics.selection_overlap([1], [5], 5), "from 0 to 4"),
        (lambda: metrics.selection_overlap([1], [0.5], 5), "float64"),
        (lambda: metrics.rand_index([], []), "one label for each row"),
        (lambda: metrics.rand_index([1, 2], [1]), "Got 2 and 1 labels"),
        (lambda: metrics.rand_index([[1]], [[1]]), r"Got shape \(1, 1\)"),
        (lambda: metrics.normalized_mutual_info([1], [1], average="mean"), "Got 'mean'"),
        (lambda: metrics.nearest_neighbor_error(np.zeros((3, 2)), [1, 2]), "and 2 labels"),
        (lambda: metrics.nearest_neighbor_error(np.zeros((1, 2)), [1]), "at least 2 labels"),
        (lambda: metrics.nearest_neighbor_error(np.zeros((3, 0)), [1, 2, 3]), r"shape \(3, 0\)"),
        (lambda: metrics.nearest_neighbor_error([[1.0], [np.nan]], [1, 2]), "finite real"),
        (lambda: metrics.nearest_neighbor_error([["a"], ["b"]], [1, 2]), "finite real"),
        (
            lambda: metrics.rand_index([1.0, np.nan], [1, 2]),
            "y_true: the label of row 1 is missing",
        ),
        (lambda: metrics.clustering_accuracy(np.arange(20_000), np.arange(20_000)), "20,000"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_kmeans_of_separate_groups_is_perfect_and_repeatable() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 40)
    X = rng.normal(size=(120, 2)) + 50 * y[:, None]
    assert set(kmeans_scores(X, y, n_clusters=3, n_init=2, seed=0).values()) == {1.0}
    noisy = rng.normal(size=(300, 5))
    labels = rng.integers(0, 4, 300)
    first = kmeans_scores(noisy, labels, n_clusters=4, n_init=3, seed=5)
    assert first == kmeans_scores(noisy, labels, n_clusters=4, n_init=3, seed=5)
