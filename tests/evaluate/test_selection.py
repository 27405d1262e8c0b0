"""Judging a selection: the same in memory and by blocks, the same for any workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

from bigfs import RandomSelection, metrics
from bigfs.blocks import RowBlocks
from bigfs.config.sections import EvaluateConfig
from bigfs.core.paths import LabelValues
from bigfs.evaluate import selection
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import (
    compare_with_all,
    measure_selection,
    measure_selections,
    random_selections,
)
from bigfs.evaluate.stage import judged_blocks
from bigfs.store.scratch import Scratch
from tests.selectors._local import selection_of

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


@pytest.mark.full
def test_by_blocks_too_the_origin_is_anywhere(
    digits: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = digits
    monkeypatch.setattr(selection, "_in_memory", selection._by_blocks)
    protocol = Protocol(10, n_repetitions=1, nearest_neighbor=False)
    for place, offset in (("near", 0.0), ("far", 2.0**27)):
        (tmp_path / place).mkdir()
        blocks = _blocks(X + offset, tmp_path / place)
        measured = measure_selection(blocks, y, CHOSEN, protocol, "4 GiB")
        assert measured["nmi_mean"] > 0.3, f"{place}: {measured['nmi_mean']}"


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
    monkeypatch.setattr("bigfs.evaluate.metrics._PIECE_ROWS", 3)
    rng = np.random.default_rng(0)
    for n in (7, 41):
        X, y = rng.integers(0, 2, size=(n, 3)).astype(float), rng.integers(0, 3, n)
        protocol = Protocol(2, n_repetitions=1, n_init=1, init="random")
        measured = measure_selection(_blocks(X, tmp_path, rows=2), y, None, protocol, "1 GiB")
        assert measured["nearest_neighbor_error"] == metrics.nearest_neighbor_error(X, y)


def test_fewer_distinct_rows_than_classes_are_said_in_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """scikit-learn warns in every start of every repetition; here warnings are errors."""
    y = np.arange(60) % 5
    X = np.eye(3)[np.minimum(y, 2)]
    protocol = Protocol(5, n_repetitions=3, n_init=4)
    measured = measure_selection(_blocks(X, tmp_path), y, None, protocol, "4 GiB")
    assert caplog.messages == [
        "The evaluated features have only 3 distinct rows: k-means forms that many clusters, not 5."
    ]
    assert measured["acc_mean"] == pytest.approx(0.6)


def _counts(n: int = 240, d: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Return counts whose rows have very different totals, and three classes."""
    rng = np.random.default_rng(3)
    y = np.arange(n) % 3
    means = 2 * rng.gamma(1.0, size=d) * np.where(np.arange(d) % 10 == y[:, None], 9.0, 1.0)
    return rng.poisson(means * rng.lognormal(0, 1, size=(n, 1))).astype(np.float32), y


@pytest.mark.parametrize("sparse", [False, True])
def test_many_features_are_judged_by_their_principal_components(
    tmp_path: Path, sparse: bool
) -> None:
    rng, y = np.random.default_rng(4), np.arange(240) % 3
    factors = rng.normal(size=(240, 6)) + 2 * np.eye(3)[y] @ rng.normal(size=(3, 6))
    X = np.maximum(factors @ rng.normal(size=(6, 150)), 0) + 0.05 * rng.normal(size=(240, 150))
    X = X.astype(np.float32)
    source = csr_array(X) if sparse else X
    blocks = RowBlocks.from_any(source, scratch=Scratch(tmp_path), sparse=sparse)
    protocol = Protocol(3, n_repetitions=2, n_components=8)
    kept = np.arange(20, 140)
    for columns in (kept, None):
        measured = measure_selection(blocks, y, columns, protocol, "4 GiB")
        centered = X[:, columns if columns is not None else slice(None)].astype(np.float64)
        centered -= centered.mean(axis=0)
        U, s, _ = np.linalg.svd(centered, full_matrices=False)
        rows = RowBlocks.from_any(U[:, :8] * s[:8])
        expected = measure_selection(rows, y, None, Protocol(3, 2), "4 GiB")
        assert measured["nmi_mean"] == pytest.approx(expected["nmi_mean"], abs=0.02)
        error = measured["nearest_neighbor_error"]
        assert error == pytest.approx(expected["nearest_neighbor_error"], abs=0.02)
        assert measured["redundancy"] == pytest.approx(metrics.redundancy(centered), abs=1e-6)
    few = measure_selection(blocks, y, kept[:90], protocol, "4 GiB")
    same = measure_selection(blocks, y, kept[:90], Protocol(3, 2), "4 GiB")
    assert few == same, "100 features and fewer are judged as they are"


def test_a_selection_is_set_beside_random_ones_and_raw_counts_are_normalized(
    tmp_path: Path,
) -> None:
    X, y = _counts()
    blocks = RowBlocks.from_any(csr_array(X), scratch=Scratch(tmp_path), sparse=True)
    assert judged_blocks(blocks, "max_variance") is blocks
    judged = judged_blocks(blocks, "highly_variable")
    assert judged.transform.kind == "normalize_log1p"
    settings = EvaluateConfig(labels=LabelValues("y", y))
    config = selection_of("max_variance", 120)
    figures = compare_with_all(judged, np.arange(120), settings, config)
    chance, alone = figures["chance"], figures["selected"]
    assert chance["nmi_low"] < chance["nmi_mean"] < chance["nmi_high"]
    assert figures["all"]["nmi_mean"] > 0.7 and alone["nmi_mean"] > 0.5
    draws = random_selections(blocks, 120, 0)
    drawn = RandomSelection(120, random_state=0).fit(X).draws_
    assert [set(draw) for draw in draws] == [set(draw[:120].tolist()) for draw in drawn]
    raw = compare_with_all(blocks, np.arange(120), settings, config)
    assert raw["all"]["nmi_mean"] < figures["all"]["nmi_mean"], "totals of rows decide"


@pytest.mark.parametrize(("width", "zeros"), [(20, 0.0), (120, 0.0), (120, 0.95), (150, 0.0)])
def test_draws_are_judged_alike_side_by_side_and_one_after_another(
    width: int, zeros: float, scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = _counts(2400 if zeros else 240)  # so many that the Gram matrix serves
    X = np.where(np.random.default_rng(0).random(X.shape) < zeros, 0, X + 5)
    blocks = _blocks(X, tmp_path, rows=900 if zeros else 90)
    draws = random_selections(blocks, width, 0)[:3]
    given = [None] * 3 if width == 150 else draws
    protocol = Protocol(3, 6, n_components=10 if zeros else 50)
    beside = measure_selections(blocks, y, given, protocol, "4 GiB")
    monkeypatch.setattr(selection, "draw_bytes", lambda *_: 2**60)
    in_turn = measure_selections(blocks, y, given, protocol, "4 GiB")
    assert beside.keys() == in_turn.keys() and "nmi_low" in beside
    assert beside == pytest.approx(in_turn, abs=1e-9)
    assert not list(blocks.scratch.path.glob("columns-*")), "scratch is given back"


def test_more_components_than_features_are_the_features(tmp_path: Path) -> None:
    X, y = _counts()
    blocks = _blocks(X, tmp_path)
    by_features = measure_selection(blocks, y, np.arange(120), Protocol(3, 2), "4 GiB")
    protocol = Protocol(3, 2, n_components=130)
    assert measure_selection(blocks, y, np.arange(120), protocol, "4 GiB") == by_features
