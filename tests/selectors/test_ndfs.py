"""NDFS equals the paper's dense algorithm, its safe objective never rises, nothing gives NaN."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from bigfs import NDFS, knn_graph
from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import compact
from bigfs.core.errors import InputError
from bigfs.graph import AffinityMatrix, affinity, affinity_from_csr
from bigfs.selectors.ndfs.passes import FactorPasses, inverse_norms
from bigfs.selectors.ndfs.strategies import (
    Cholesky,
    ConjugateGradients,
    NDFSStrategy,
    Woodbury,
    normalized_indicators,
)
from bigfs.stages.scores import FeatureScores
from bigfs.store.scratch import Scratch
from tests.reference.ndfs import ndfs
from tests.selectors._ndfs import ndfs_scores

UPDATES = ("printed", "safe")


def _graph(X: np.ndarray, rows: int | None = None) -> tuple[RowBlocks, AffinityMatrix]:
    blocks = RowBlocks.from_any(X, rows=rows)
    return blocks, affinity(knn_graph(blocks, 5), weight="heat", blocks=blocks)


def _labels(n: int, c: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.arange(n) % c)


def _start(n: int, c: int) -> np.ndarray:
    labels = _labels(n, c)
    return normalized_indicators(labels, np.bincount(labels, minlength=c))


def _scaled(F: np.ndarray) -> np.ndarray:
    return np.asarray(F * inverse_norms(np.einsum("ij,ij->j", F, F)))


def _load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    stored = np.load(folder / f"{name}.npz")
    return stored["X"] / stored["X"].max(), stored["y"]


@pytest.mark.data
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", ["UMIST", pytest.param("ORL", marks=pytest.mark.slow)])
def test_equals_the_dense_reference_on_real_data(name: str, update: str, data_dir: Path) -> None:
    X, y = _load(data_dir, name)
    F = normalized_indicators(y, np.bincount(y))
    F = _scaled(F + 0.02 * np.random.default_rng(0).random(F.shape))
    blocks, W = _graph(X)
    result = ndfs_scores(blocks, W, F, F.shape[1], update=update, gamma=1e8, tol=0.0)
    last, B, history = ndfs(X, W.load().toarray(), F, update=update, gamma=1e8)
    expected = np.linalg.norm(B, axis=1)
    np.testing.assert_allclose(result.scores, expected, rtol=1e-6)
    np.testing.assert_array_equal(result.ranking, np.argsort(-expected, kind="stable"))
    np.testing.assert_allclose(result.details["objective_parts"], history, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(result.details["labels"].load(), last.argmax(axis=1))
    moved = np.linalg.norm(last - F)
    assert result.details["distance_from_start"] == pytest.approx(moved, rel=1e-6)


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return load_digits().data[:400] / 16


@pytest.fixture(scope="module")
def small(digits: np.ndarray) -> tuple[RowBlocks, AffinityMatrix, np.ndarray]:
    """The digits and their affinity matrix, stored and dense."""
    blocks, W = _graph(digits)
    return blocks, W, W.load().toarray()


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("gamma", [1.0, 1e3])
@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (100.0, 0.01), (0.0, 10.0)])
def test_equals_the_dense_reference_for_all_weights(
    digits: np.ndarray, small: Any, update: str, gamma: float, alpha: float, beta: float
) -> None:
    blocks, stored, W = small
    F, options = _start(400, 10), {"alpha": alpha, "beta": beta, "gamma": gamma, "update": update}
    # After twelve iterations of the printed update with a large alpha, one unit in the last place
    # of the start moves the reference itself by 1.5e-6; after eight by 1e-8.
    result = ndfs_scores(blocks, stored, F, 10, tol=0.0, max_iter=8, **options)
    last, B, history = ndfs(digits, W, F, n_iter=8, **options)
    expected = np.linalg.norm(B, axis=1)
    np.testing.assert_allclose(result.scores, expected, rtol=1e-6, atol=1e-9 * expected.max())
    np.testing.assert_allclose(result.details["objective_parts"], history, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strategy", [Cholesky, Woodbury, ConjugateGradients])
@pytest.mark.parametrize("rows", [None, 40])
def test_the_relative_penalty_is_the_reference_with_its_weight(
    digits: np.ndarray, rows: int | None, strategy: type[NDFSStrategy]
) -> None:
    X, F = 3.0 + digits[:120, 18:32], _start(120, 4)
    blocks, W = _graph(X, rows)
    options = {"strategy": strategy, "max_iter": 4, "tol": 0.0}
    dense, centered = W.load().toarray(), X - X.mean(axis=0)
    unit = np.sqrt((centered**2).sum() / 120)
    largest = 2 * np.linalg.norm(centered.T @ F, axis=1).max()
    relative = {"beta": 0.2 * largest, "delta": unit * np.sqrt(120)}
    for penalty, expected in (
        ({"beta": None, "unit": "rms"}, relative),
        ({"beta": 3.0, "unit": "rms"}, {"beta": 3.0 * unit, "delta": unit}),
    ):
        result = ndfs_scores(blocks, W, F, 4, **penalty, **options)
        _, B, history = ndfs(
            X, dense, F, gamma=10.0, update="safe", n_iter=4, intercept=True, **expected
        )
        parts = result.details["objective_parts"]
        np.testing.assert_allclose(parts, history, rtol=1e-6, atol=1e-9)
        assert result.details["beta"] == pytest.approx(expected["beta"])
        assert result.details["unit"] == pytest.approx(unit)
        norms = np.where(X.std(axis=0) > 0, np.linalg.norm(B, axis=1), 0)
        np.testing.assert_allclose(result.scores, norms, rtol=1e-5, atol=1e-6 * norms.max())


@pytest.mark.full
@pytest.mark.parametrize("strategy", [Cholesky, Woodbury, ConjugateGradients])
@pytest.mark.parametrize("rows", [None, 40])
def test_a_shift_does_not_matter(
    digits: np.ndarray, rows: int | None, strategy: type[NDFSStrategy]
) -> None:
    X, F = digits[:120, 18:32], _start(120, 4)
    blocks, W = _graph(X, rows)
    options = {"strategy": strategy, "max_iter": 4, "tol": 0.0, "beta": None, "unit": "rms"}
    expected = ndfs_scores(blocks, W, F, 4, **options).scores
    for shift in (10.0, -1000.0):
        moved = RowBlocks.from_any(X + shift * np.arange(14), rows=rows)
        scores = ndfs_scores(moved, W, F, 4, **options).scores
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-7 * expected.max())


def test_neither_the_unit_nor_the_number_of_rows_matters(digits: np.ndarray) -> None:
    F = _start(400, 10)
    blocks, W = _graph(digits)
    for penalty in ({"beta": None}, {"beta": 1.0, "unit": "rms"}):
        expected = ndfs_scores(blocks, W, F, 10, **penalty).scores
        for factor in (2.0**20, 2.0**-20):
            scaled = RowBlocks.from_any(digits * factor)
            scores = ndfs_scores(scaled, W, F, 10, **penalty).scores
            np.testing.assert_array_equal(scores * factor, expected)


def _run(X: np.ndarray, rows: int | None, F: np.ndarray, **options: Any) -> FeatureScores:
    blocks, W = _graph(X, rows)
    options = {"tol": 0.0, "max_iter": 8, **options}
    result = ndfs_scores(blocks, W, F, F.shape[1], **options)
    result.details["labels"] = result.details["labels"].load()
    return result


@pytest.mark.parametrize("update", UPDATES)
def test_blocks_change_nothing(digits: np.ndarray, update: str) -> None:
    F, options = _start(400, 10), {"update": update, "max_iter": 4}
    complete = _run(digits, None, F, **options)
    for rows in (400, 131, 60):
        cut = _run(digits, rows, F, **options)
        np.testing.assert_allclose(cut.scores, complete.scores, rtol=1e-9)
        np.testing.assert_array_equal(cut.ranking, complete.ranking)
        np.testing.assert_array_equal(cut.details["labels"], complete.details["labels"])
        for name in ("objective_parts", "movement", "orthogonality", "distance_from_start"):
            np.testing.assert_allclose(cut.details[name], complete.details[name], rtol=1e-7)


def test_threads_give_the_same_bits(digits: np.ndarray) -> None:
    F, results = _start(400, 10), []
    for n_threads in (1, 2, 4):
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            results.append(_run(digits, 60, F, max_iter=4))
    for other in results[1:]:
        assert other.scores.tobytes() == results[0].scores.tobytes()
        assert other.details["objective"].tobytes() == results[0].details["objective"].tobytes()


@pytest.mark.parametrize("update", UPDATES)
def test_rows_of_few_entries_equal_the_dense_reference(digits: np.ndarray, update: str) -> None:
    X = np.where(np.random.default_rng(0).random(digits.shape) < 0.1, digits, 0.0)
    late = np.vstack([np.zeros((300, 64)), digits])  # its first rows alone have no entries
    assert hasattr(compact(X), "indptr")
    assert compact(digits) is digits and compact(late) is late
    blocks, stored = _graph(X)
    F, options = _start(400, 10), {"alpha": 1.0, "beta": 1.0, "gamma": 1e3, "update": update}
    result = ndfs_scores(blocks, stored, F, 10, tol=0.0, max_iter=8, **options)
    last, B, history = ndfs(X, stored.load().toarray(), F, n_iter=8, **options)
    expected = np.linalg.norm(B, axis=1)
    np.testing.assert_allclose(result.scores, expected, rtol=1e-6, atol=1e-9 * expected.max())
    np.testing.assert_allclose(result.details["objective_parts"], history, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strategy", [Cholesky, Woodbury, ConjugateGradients])
def test_every_scheduler_and_strategy_gives_the_same(
    digits: np.ndarray, scheduler: str, strategy: type[NDFSStrategy]
) -> None:
    F, X = _start(60, 3), digits[:60, 20:32]
    options = {"max_iter": 2, "beta": 30.0}
    result = _run(X, 20, F, strategy=strategy, **options)
    assert result.details["solver"] == strategy.solver
    with dask.config.set(scheduler="synchronous"):
        here = _run(X, 20, F, strategy=strategy, **options)
    assert here.scores.tobytes() == result.scores.tobytes()
    expected = _run(X, None, F, **options)
    tolerance = 1e-6 if strategy is ConjugateGradients else 1e-9
    np.testing.assert_allclose(
        result.scores, expected.scores, rtol=tolerance, atol=tolerance * expected.scores.max()
    )


@pytest.mark.full
def test_what_a_worker_may_keep_changes_nothing(
    digits: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigfs import ingest

    ingest(digits, tmp_path / "X.zarr", rows=50)
    F, results = _start(400, 10), []
    for plan in ((0, 0), (0, 10**6), (10**5, 0), (10**8, 10**8)):
        monkeypatch.setattr(NDFSStrategy, "_kept_bytes", lambda *_, plan=plan: plan)
        blocks, W = _graph(tmp_path / "X.zarr", 50)  # type: ignore[arg-type]
        results.append(ndfs_scores(blocks, W, F, 10, tol=0.0, max_iter=4))
    assert len({result.scores.tobytes() for result in results}) == 1


# The objective


REAL = {
    "iris": lambda: load_iris().data,
    "wine": lambda: load_wine().data / load_wine().data.max(axis=0),
    "cancer": lambda: load_breast_cancer().data / load_breast_cancer().data.max(axis=0),
    "digits": lambda: load_digits().data[:600] / 16,
}


def _rises(objective: np.ndarray) -> float:
    return float((np.diff(objective) / np.abs(objective[:-1])).max())


@pytest.mark.parametrize("name", REAL)
def test_the_safe_objective_never_rises(name: str) -> None:
    X = REAL[name]()
    labels = NDFS(2, n_clusters=4, max_iter=1).fit(X).labels_
    blocks, W = _graph(X)
    for gamma in (1.0, 1e4, 1e8):
        for alpha, beta in ((1.0, 1.0), (100.0, 0.1)):
            options = {"alpha": alpha, "beta": beta, "gamma": gamma}
            result = ndfs_scores(blocks, W, labels, 4, update="safe", tol=0.0, **options)
            assert _rises(result.details["objective"]) <= 1e-9
            assert result.details["n_iter"] == 30


@pytest.mark.data
@pytest.mark.parametrize("name", ["UMIST", "ATT", "COIL20"])
def test_the_safe_objective_never_rises_on_images(name: str, data_dir: Path) -> None:
    X, y = _load(data_dir, name)
    blocks, W = _graph(X)
    for gamma in (1.0, 1e8):
        result = ndfs_scores(blocks, W, y, int(y.max()) + 1, update="safe", gamma=gamma, tol=0.0)
        assert _rises(result.details["objective"]) <= 1e-9


@pytest.mark.full
@settings(max_examples=15)
@given(
    n=st.integers(12, 40),
    d=st.integers(1, 30),
    c=st.integers(1, 5),
    alpha=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
    beta=st.sampled_from([1e-3, 1.0, 1e4]),
    gamma=st.sampled_from([1e-2, 1.0, 1e8]),
    seed=st.integers(0, 10**6),
)
def test_small_random_problems(
    n: int, d: int, c: int, alpha: float, beta: float, gamma: float, seed: int
) -> None:
    from scipy.sparse import csr_array

    draw = np.random.default_rng(seed)
    X = draw.normal(size=(n, d))
    X[:, draw.random(d) < 0.2] = 0.0
    ring = np.roll(np.eye(n), 1, axis=1) + np.diag(draw.random(n - 2), 2)
    W = affinity_from_csr(csr_array(ring + ring.T))
    options = {"alpha": alpha, "beta": beta, "gamma": gamma, "tol": 0.0, "max_iter": 15}
    F = _scaled(draw.random((n, c)) * (draw.random((n, c)) < 0.7))
    for update in UPDATES:
        result = ndfs_scores(RowBlocks.from_any(X), W, F, c, update=update, **options)
        assert np.isfinite(result.scores).all()
        assert np.isfinite(result.details["objective_parts"]).all()
        assert (result.scores[(X == 0).all(axis=0)] == 0).all()
        if update == "safe":
            assert _rises(result.details["objective"]) <= 1e-9


def test_the_printed_objective_falls_over_the_run(digits: np.ndarray) -> None:
    fitted = NDFS(10, n_clusters=10, update="printed", gamma=1e8, tol=0.0).fit(digits)
    assert fitted.objective_[-1] < fitted.objective_[0]
    np.testing.assert_allclose(fitted.objective_, fitted.objective_parts_.sum(axis=1))
    assert fitted.orthogonality_[-1] < 1e-6


def test_it_stops_when_the_objective_stands_still(digits: np.ndarray) -> None:
    fitted = NDFS(10, n_clusters=10, tol=1e-3, max_iter=100, update="safe", gamma=1.0).fit(digits)
    assert 3 <= fitted.n_iter_ < 100
    assert len(fitted.objective_) == len(fitted.movement_) == fitted.n_iter_
    before, after = fitted.objective_[-3:-1]
    assert before - after <= 1e-3 * before


# Degenerate data


@pytest.mark.parametrize("update", UPDATES)
def test_degenerate_data_give_no_nan(update: str, digits: np.ndarray) -> None:
    X = np.hstack([np.full((400, 1), 3.0), np.zeros((400, 1)), digits])
    single_fit = NDFS(66, n_clusters=1, update=update).fit(X)
    assert single_fit.get_support().all()
    assert (single_fit.labels_ == 0).all()
    assert single_fit.scores_[1] == 0
    for options in ({"beta": 1e6}, {"beta": 1e-6}, {"alpha": 1e6}):
        fitted = NDFS(5, n_clusters=12, update=update, **options).fit(X)
        assert np.isfinite(fitted.scores_).all()
        assert np.isfinite(fitted.objective_).all()


@pytest.mark.parametrize("update", UPDATES)
def test_an_emptied_cluster_stays_empty(update: str, digits: np.ndarray) -> None:
    F = np.hstack([_start(400, 3), np.zeros((400, 1))])
    fitted = NDFS(5, n_clusters=4, init=F, update=update).fit(digits)
    assert np.isfinite(fitted.scores_).all()
    assert set(fitted.labels_) <= {0, 1, 2}
    assert (fitted.coef_[:, 3] == 0).all()


def test_fewer_different_rows_than_clusters() -> None:
    X = np.repeat(np.random.default_rng(0).random((6, 5)), 5, axis=0)
    fitted = NDFS(2, n_clusters=8, n_neighbors=6, weight="binary").fit(X)
    assert np.isfinite(fitted.scores_).all()
    assert np.isfinite(fitted.objective_).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"n_clusters": 0}, "n_clusters must be a whole number of at least 1, or auto. Got 0"),
        ({"n_clusters": 400}, "n_clusters must be at most 399, since X has 400 rows. Got 400"),
        ({"n_neighbors": 400}, "n_neighbors"),
        ({"alpha": -1.0}, r"NDFS: alpha must be a number of at least 0. Got -1.0\."),
        ({"beta": 0.0}, "beta must be a number above 0. Got 0"),
        ({"gamma": float("nan")}, "gamma must be a finite number"),
        ({"update": "exact"}, "update must be one of safe, printed"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1}, "tol"),
        ({"init": "kmeans"}, "init must be 'spectral' or a file of labels. Got 'kmeans'"),
        ({"init": np.zeros(3, dtype=int)}, "labels must be 400"),
        ({"init": np.full(400, 8)}, r"in \[0, 7\].*values 8 to 8"),
        ({"init": -np.ones((400, 8))}, r"shape \(400, 8\)"),
    ],
)
def test_bad_parameters_are_named(
    options: dict[str, Any], message: str, digits: np.ndarray
) -> None:
    with pytest.raises(InputError, match=message):
        NDFS(5, **options).fit(digits)


def test_labels_and_their_indicators_are_one_start(digits: np.ndarray) -> None:
    labels = _labels(400, 8)
    by_labels = NDFS(5, init=labels).fit(digits)
    by_f = NDFS(5, init=normalized_indicators(labels, np.bincount(labels))).fit(digits)
    np.testing.assert_array_equal(by_labels.scores_, by_f.scores_)


def test_the_start_of_many_rows_comes_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer rows in the sample than in the data, all rows still get the nearest center."""
    from bigfs.selectors import embedded
    from bigfs.selectors.ndfs import strategies as _ndfs_start
    from bigfs.spectral import spectral_embedding

    X = np.vstack([np.random.default_rng(i).normal(10 * i, 1, (150, 3)) for i in range(3)])
    blocks, W = _graph(X, 100)
    spectral = spectral_embedding(W, 3, chunk_rows=100)
    for module in (_ndfs_start, embedded):
        monkeypatch.setattr(module, "SAMPLE_ROWS", 90)
    scratch = Scratch()
    labels, counts = _ndfs_start.spectral_labels(spectral, blocks, 3, 0, scratch)
    assert sorted(counts) == [150, 150, 150]
    parts = labels.load().reshape(3, 150)
    assert len(set(parts[:, 0])) == 3
    assert all(len(set(part)) == 1 for part in parts)


# Checkpoints


class _Stop(Exception):
    """Ends a run in the middle."""


@pytest.mark.parametrize("rows, update", [(None, "safe"), (150, "safe"), (150, "printed")])
def test_an_interrupted_run_continues_at_its_last_checkpoint(
    digits: np.ndarray, tmp_path: Path, rows: int | None, update: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    step, made = FactorPasses.step, []

    def failing(self: Any, *arguments: Any) -> Any:
        made.append(1)
        if len(made) == 13:
            raise _Stop
        return step(self, *arguments)

    F = _start(400, 10)
    blocks, W = _graph(digits, rows)
    options = {"update": update, "tol": 0.0, "max_iter": 20}
    undisturbed = ndfs_scores(blocks, W, F, 10, **options)
    monkeypatch.setattr(FactorPasses, "step", failing)
    with pytest.raises(_Stop):
        ndfs_scores(blocks, W, F, 10, checkpoint=tmp_path, **options)
    again = ndfs_scores(blocks, W, F, 10, checkpoint=tmp_path, **options)
    assert len(made) == 13 + 10, "iterations 1 to 10 are not made again"
    assert again.scores.tobytes() == undisturbed.scores.tobytes()
    for name in ("objective_parts", "movement"):
        np.testing.assert_array_equal(again.details[name], undisturbed.details[name])
    assert again.details["distance_from_start"] == undisturbed.details["distance_from_start"]


def test_a_damaged_checkpoint_is_not_used(digits: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "state.npz").write_bytes(b"PK\x03\x04 cut off")
    blocks, W = _graph(digits)
    result = ndfs_scores(blocks, W, _start(400, 10), 10, checkpoint=tmp_path, max_iter=6)
    assert result.details["n_iter"] == 6


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_workers_give_the_same_bits(digits: np.ndarray, n_workers: int) -> None:
    from distributed import Client

    from bigfs.runtime.connection import local_cluster

    F = _start(400, 10)
    for update in UPDATES:
        with dask.config.set(scheduler="synchronous"):
            expected = _run(digits, 60, F, update=update)
        with local_cluster(n_workers, 1, 2**30) as running, Client(running):
            result = _run(digits, 60, F, update=update)
        assert result.scores.tobytes() == expected.scores.tobytes()
        np.testing.assert_array_equal(result.details["labels"], expected.details["labels"])


def test_the_number_of_clusters_from_the_eigengap() -> None:
    from sklearn.datasets import make_blobs

    X, groups = make_blobs(600, 6, centers=5, cluster_std=0.8, random_state=3)
    chosen = NDFS(3, n_clusters="auto").fit(X)
    assert chosen.n_clusters_ == 5
    assert len(chosen.spectrum_) == 30
    assert (np.diff(chosen.spectrum_) >= 0).all()
    fixed = NDFS(3, n_clusters=5).fit(X)
    np.testing.assert_allclose(chosen.scores_, fixed.scores_, rtol=1e-6)
    with pytest.raises(InputError, match="n_clusters 'auto' needs init 'spectral'"):
        NDFS(3, n_clusters="auto", init=groups).fit(X)


def test_a_graph_of_which_few_eigenvalues_differ_is_solved_by_the_other_solver() -> None:
    fitted = NDFS(5, n_clusters=8).fit(np.repeat(np.eye(16), 50, axis=0))
    assert np.isfinite(fitted.scores_).all()


@pytest.mark.parametrize("unit", ["rms", "none"])
def test_equal_rows_distinguish_no_feature(unit: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fitted = NDFS(3, unit=unit, preprocess="none").fit(np.ones((500, 10)))
    assert fitted.ranking_.tolist() == list(range(10)) and not fitted.scores_.any()
