"""Judging a selection: the same in memory and by blocks, the same for any workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bigfs import metrics
from bigfs.blocks import RowBlocks
from bigfs.evaluate import selection
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection
from bigfs.store.scratch import Scratch

CHOSEN = np.array([20, 26, 28, 34, 43])


@pytest.fixture
def digits() -> tuple[np.ndarray, np.ndarray]:
    return load_digits(return_X_y=True)


def _blocks(X: np.ndarray, folder: Path, rows: int = 300) -> RowBlocks:
    np.save(folder / "X.npy", X)
    return RowBlocks.from_any(folder / "X.npy", scratch=Scratch(folder / "scratch"), rows=rows)


def test_figures_are_those_of_the_public_metrics(digits: tuple, tmp_path: Path, scheduler) -> None:
    X, y = digits
    protocol = Protocol(10, n_repetitions=2, n_init=1, init="random")
    blocks = _blocks(X, tmp_path)
    measured = measure_selection(blocks, y, CHOSEN, protocol, "4 GiB")
    assert measured["nearest_neighbor_error"] == metrics.nearest_neighbor_error(X[:, CHOSEN], y)
    assert measured["redundancy"] == pytest.approx(metrics.redundancy(X[:, CHOSEN]))
    assert 0.3 < measured["nmi_mean"] < 0.6 and measured["nmi_std"] > 0
    assert 0.3 < measured["acc_mean"] <= measured["majority_mean"]
    again = measure_selection(_blocks(X, tmp_path, 1797), y, CHOSEN, protocol, "4 GiB")
    assert measured == again, "row blocks do not matter"
    assert not list(blocks.scratch.path.glob("columns-*")), "scratch is given back"


def test_all_features_and_no_neighbors(digits: tuple, tmp_path: Path) -> None:
    X, y = digits
    protocol = Protocol(10, n_repetitions=1, n_init=1, nearest_neighbor=False)
    measured = measure_selection(_blocks(X, tmp_path), y, None, protocol, "4 GiB")
    assert "nearest_neighbor_error" not in measured
    assert measured["nmi_mean"] > 0.65


def test_beyond_memory_neighbors_are_exact_and_k_means_as_good(
    digits: tuple, tmp_path: Path, scheduler: str, monkeypatch
) -> None:
    X, y = (part[:600] for part in digits)
    columns = CHOSEN if scheduler == "threads" else None
    protocol = Protocol(10, n_repetitions=1, n_init=1)
    blocks = _blocks(X, tmp_path)
    expected = measure_selection(blocks, y, columns, protocol, "4 GiB")
    monkeypatch.setattr(selection, "task_budget", lambda limit: 1000)
    measured = measure_selection(blocks, y, columns, protocol, "4 GiB")
    assert measured["nearest_neighbor_error"] == expected["nearest_neighbor_error"]
    assert measured["redundancy"] == pytest.approx(expected["redundancy"], abs=1e-9)
    assert measured["nmi_mean"] == pytest.approx(expected["nmi_mean"], abs=0.1)


def test_beyond_memory_ties_and_single_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(selection, "task_budget", lambda limit: 1)
    monkeypatch.setattr(selection, "_PRODUCT_BYTES", 64)
    rng = np.random.default_rng(0)
    for n in (7, 41):
        X, y = rng.integers(0, 2, size=(n, 3)).astype(float), rng.integers(0, 3, n)
        protocol = Protocol(2, n_repetitions=1, n_init=1, init="random")
        measured = measure_selection(_blocks(X, tmp_path, rows=2), y, None, protocol, "1 GiB")
        assert measured["nearest_neighbor_error"] == metrics.nearest_neighbor_error(X, y)
