"""Starts of M3FS that draw many planes: they end by programs with a slack for every row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bigfs import M3FS
from bigfs.core.errors import ConvergenceError
from bigfs.selectors.m3fs import rowprograms
from bigfs.selectors.m3fs.state import Settings


@pytest.fixture(scope="module")
def pair() -> np.ndarray:
    """Digits 2 and 7: one start of k-means ends far above the others."""
    X, y = load_digits(return_X_y=True)
    return X[np.isin(y, (2, 7))]


def _fitted(X: np.ndarray, **changes: object) -> M3FS:
    return M3FS(10, n_clusters=2, C=100.0, smoothness=0.01, **changes).fit(X)


@pytest.fixture(scope="module")
def by_rows(pair: np.ndarray) -> M3FS:
    """With programs of all rows for what is long."""
    return _fitted(pair)


def _of_planes(monkeypatch: pytest.MonkeyPatch, X: np.ndarray) -> M3FS:
    monkeypatch.setattr(rowprograms, "_ROUNDS_OF_PLANES", 10**6)
    return _fitted(X)


def test_long_starts_end_near_where_planes_do(
    pair: np.ndarray, by_rows: M3FS, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = rowprograms._ROUNDS_OF_PLANES
    planes = _of_planes(monkeypatch, pair)
    rounds = [[start["n_iter"] for start in fitted.starts_] for fitted in (by_rows, planes)]
    assert max(rounds[1]) > 100, "no start was long"
    assert max(rounds[0]) < 50
    assert by_rows.chosen_start_ == planes.chosen_start_
    np.testing.assert_array_equal(by_rows.labels_, planes.labels_)
    for ended, drawn, n_iter in zip(by_rows.starts_, planes.starts_, rounds[1], strict=True):
        assert ended["converged"]
        if n_iter < most:
            assert ended == drawn, "a short start is not touched"
        # Of a program to its end no plane is violated, of planes none by more than epsilon.
        assert ended["loss"] - ended["slack"] <= 0.01 + 1e-9
        # The local minima are not the same, but of the same kind.
        assert ended["objective"] <= 2 * drawn["objective"] + 100.0 * 0.01


def test_what_is_not_solved_goes_on_by_planes(
    pair: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*_: object, **__: object) -> None:
        raise ConvergenceError("not today")

    monkeypatch.setattr(rowprograms, "solve_with_row_slacks", stops)
    refused = _fitted(pair)
    monkeypatch.undo()
    planes = _of_planes(monkeypatch, pair)
    np.testing.assert_array_equal(refused.scores_, planes.scores_)
    assert refused.starts_ == planes.starts_


@pytest.mark.parametrize("further", [0, 1, 1000])
def test_programs_count_as_rounds(pair: np.ndarray, further: int) -> None:
    most = rowprograms._ROUNDS_OF_PLANES + further
    begun = np.random.default_rng(0).integers(2, size=len(pair))
    fitted = _fitted(pair, max_iter=most, init=begun)
    assert len(fitted.objective_history_) == fitted.n_iter_ <= most
    assert len(fitted.violation_history_) == fitted.n_iter_
    # A start that is stopped while rows change their clusters has not converged.
    assert fitted.converged_ == (further == 1000)
    assert (fitted.n_iter_ == most) == (further < 1000)


def test_what_they_are_for() -> None:
    def chosen(n_rows: int = 400, **changes: object) -> bool:
        # m, n_features, n_columns, C, smoothness, balance, epsilon, and the iteration's.
        settings = Settings(10, 64, 1, 10.0, 0.0, 0.1, 0.01, False, True, 0.01, 100)
        return rowprograms.may_use_rows(n_rows, replace(settings, **changes))

    assert chosen()
    assert not chosen(n_columns=3)
    assert not chosen(n_selected=64)
    assert not chosen(planes_outside=True)
    assert not chosen(n_features=800)
    assert not chosen(5000, n_features=12)
