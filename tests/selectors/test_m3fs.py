"""M3FS against the dense problem, its certificate, its degenerate cases and its invariances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits, load_iris

from bigfs import M3FS, MaximumMarginClustering, ingest
from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.graph import affinity, knn_graph
from bigfs.metrics import clustering_accuracy
from bigfs.selectors.m3fs import form as _m3fs_form
from bigfs.selectors.m3fs import planes as _m3fs
from bigfs.selectors.m3fs.estimator import learn
from bigfs.selectors.m3fs.fit import Parameters
from bigfs.selectors.m3fs.form import full_form, smooth_form
from bigfs.selectors.m3fs.passes import Streamed
from bigfs.store.scratch import Scratch
from tests.reference.m3fs import laplacian, mean_loss, solve_given_clusters


def _blobs(n_clusters: int = 2, n: int = 90, d: int = 8, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Clusters that differ in the first features only, which overlap a little."""
    generator = np.random.default_rng(seed)
    y = np.arange(n) % n_clusters
    centers = np.zeros((n_clusters, d))
    centers[:, : n_clusters + 1] = 2.2 * generator.normal(size=(n_clusters, n_clusters + 1))
    return centers[y] + generator.normal(size=(n, d)), y


def _rescaled(X: np.ndarray) -> np.ndarray:
    return (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0).mean())


# The scores that one scheduler found, for the others to repeat.
_seen: dict[str, bytes] = {}


def _decisions(fitted: M3FS, X: np.ndarray) -> np.ndarray:
    return _rescaled(X) @ fitted.coef_ + fitted.intercept_


@pytest.mark.parametrize(
    ("n_clusters", "smoothness", "nesting"),
    [
        (2, 0.0, "clusters_outside"),
        (2, 1.0, "clusters_outside"),
        (3, 0.0, "clusters_outside"),
        (3, 0.5, "clusters_outside"),
        (2, 0.0, "planes_outside"),
        (2, 1.0, "planes_outside"),
    ],
)
def test_the_result_solves_the_dense_problem(
    n_clusters: int, smoothness: float, nesting: str
) -> None:
    X, _ = _blobs(n_clusters)
    epsilon, C, balance = 1e-3, 5.0, 0.4
    fitted = M3FS(
        4,
        n_clusters=n_clusters,
        C=C,
        smoothness=smoothness,
        balance=balance,
        epsilon=epsilon,
        nesting=nesting,
        n_neighbors=6,
        tol=1e-3 if nesting == "planes_outside" else 0.0,
        init="kmeans",
        n_init=1,
    ).fit(X)
    assert fitted.converged_
    blocks = RowBlocks.from_any(_rescaled(X))
    W = affinity(knn_graph(blocks, 6), weight="heat", blocks=blocks).load().toarray()
    dense = solve_given_clusters(
        _rescaled(X),
        fitted.labels_,
        laplacian(W),
        m=4,
        C=C,
        smoothness=smoothness,
        balance=balance,
        n_clusters=n_clusters,
    )
    # Planes to epsilon: at most C epsilon below the problem with a slack for every row.
    if nesting == "clusters_outside":
        assert fitted.objective_ <= dense.objective * (1 + 1e-4)
    assert fitted.objective_ >= dense.objective - C * epsilon - 1e-4
    assert mean_loss(_decisions(fitted, X)) - fitted.slack_ <= epsilon + 1e-9
    assert fitted.violation_ == pytest.approx(
        mean_loss(_decisions(fitted, X)) - fitted.slack_, abs=1e-9
    )
    means = _decisions(fitted, X).mean(axis=0)
    assert (abs(means[0]) if n_clusters == 2 else np.ptp(means)) <= balance + 1e-5
    assert fitted.scores_.sum() == pytest.approx(4)
    assert fitted.scores_.min() >= 0 and fitted.scores_.max() <= 1


def test_started_at_the_truth_it_ends_no_higher() -> None:
    X, y = _blobs(3)
    fitted = M3FS(4, n_clusters=3, init=y, tol=0.0, epsilon=1e-3, n_neighbors=6, balance=0.3).fit(X)
    blocks = RowBlocks.from_any(_rescaled(X))
    W = affinity(knn_graph(blocks, 6), weight="heat", blocks=blocks).load().toarray()
    held = solve_given_clusters(
        _rescaled(X), y, laplacian(W), m=4, C=10.0, smoothness=1.0, balance=0.3, n_clusters=3
    )
    assert fitted.objective_ <= held.objective * (1 + 1e-4)
    assert clustering_accuracy(y, fitted.labels_) > 0.9
    assert set(fitted.ranking_[:4]) <= set(range(5))


def test_the_form_is_that_of_the_dense_laplacian() -> None:
    X, _ = _blobs(n=70)
    X += 5.0
    Z = np.column_stack([X, np.ones(len(X))])
    for rows in (70, 20):
        blocks = RowBlocks.from_any(X, rows=rows)
        W = affinity(knn_graph(blocks, 5), weight="heat", blocks=blocks)
        expected = Z.T @ laplacian(W.load().toarray()) @ Z / len(X)
        np.testing.assert_allclose(smooth_form(blocks, W), expected, atol=1e-9)
        full = np.exp(-cdist(X, X, "sqeuclidean") / 3.0)
        np.fill_diagonal(full, 0)
        expected = Z.T @ laplacian(full) @ Z / len(X)
        np.testing.assert_allclose(full_form(blocks, 3.0), expected, atol=1e-8)


def test_blocks_and_schedulers_change_nothing(scheduler: str, tmp_path: Path) -> None:
    X = load_digits(n_class=2).data.astype(np.float32)
    ingest(X, tmp_path / "X.zarr", rows=90)
    found, kept = {}, []
    for rows in (360, 90):
        blocks = RowBlocks.from_any(tmp_path / "X.zarr", transform="rescale", rows=rows)
        kept.append(blocks)
        found[rows] = learn(blocks, 10, Parameters(2, init="kmeans", n_init=2), n_neighbors=5)
    one, many = found[360], found[90]
    np.testing.assert_allclose(one.scores, many.scores, atol=1e-6)
    np.testing.assert_array_equal(one.details["labels"].load(), many.details["labels"].load())
    assert one.details["chosen_start"] == many.details["chosen_start"]
    bits = many.scores.tobytes()
    assert _seen.setdefault("scores", bits) == bits, "another scheduler gave other bits"


def test_the_two_nestings_compared() -> None:
    """With two clusters both separate 1 and 7; with four the printed one loses clusters."""
    X, y = load_digits(return_X_y=True)
    two = np.isin(y, [1, 7])
    for nesting in ("clusters_outside", "planes_outside"):
        fitted = M3FS(10, nesting=nesting, init="kmeans").fit(X[two])
        assert clustering_accuracy(y[two], fitted.labels_) > 0.99
    four = np.isin(y, [0, 6, 8, 9])
    names = np.unique(y[four], return_inverse=True)[1]
    accuracy = {}
    for nesting in ("clusters_outside", "planes_outside"):
        given = M3FS(20, n_clusters=4, nesting=nesting, init=names, smoothness=0.0, max_iter=60)
        fitted = given.set_params(criterion="objective").fit(X[four])
        accuracy[nesting] = clustering_accuracy(names, fitted.labels_)
    assert accuracy["clusters_outside"] > 0.97
    assert accuracy["clusters_outside"] > accuracy["planes_outside"]


def test_prediction_repeats_the_labels_and_reads_stored_rows(tmp_path: Path) -> None:
    X = load_digits(n_class=2).data
    fitted = M3FS(8, init="kmeans", preprocess="standardize").fit(X)
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    np.save(tmp_path / "X.npy", X)
    np.testing.assert_array_equal(fitted.predict(tmp_path / "X.npy")[:], fitted.labels_)
    stored = M3FS(8, init="kmeans", preprocess="standardize").fit(tmp_path / "X.npy")
    np.testing.assert_array_equal(stored.labels_[:], fitted.labels_)
    with pytest.raises(ValueError, match="64 features"):
        fitted.predict(X[:, :10])


def test_a_sample_is_learned_from_and_all_rows_are_labeled() -> None:
    X, y = load_digits(n_class=2, return_X_y=True)
    fitted = M3FS(8, sample_size=120, init="kmeans").fit(X)
    assert fitted.labels_.shape == y.shape
    assert clustering_accuracy(y, fitted.labels_) > 0.98
    assert sum(fitted.starts_[0]["sizes"]) == 120
    with pytest.raises(InputError, match="sample_size must be an int in"):
        M3FS(8, sample_size=len(X) + 1).fit(X)


def test_clustering_without_selection() -> None:
    X, y = load_digits(n_class=2, return_X_y=True)
    fitted = MaximumMarginClustering(5).fit(X)
    assert clustering_accuracy(y, fitted.labels_) > 0.98
    np.testing.assert_allclose(fitted.scores_, np.linalg.norm(fitted.coef_, axis=1))
    assert fitted.violation_ <= fitted.epsilon


def test_all_features_and_constant_ones() -> None:
    X, y = _blobs()
    X[:, 6] = 3.0
    every = M3FS(8, init="kmeans").fit(X)
    np.testing.assert_allclose(every.scores_, 1.0)
    some = M3FS(3, init="kmeans").fit(X)
    assert some.scores_[6] < 1e-3
    assert abs(some.coef_[6]).max() < 1e-6


def test_a_start_in_one_cluster_ends_with_a_warning_or_two_clusters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    X, _ = _blobs()
    fitted = M3FS(3, init=np.zeros(len(X), dtype=int)).fit(X)
    assert fitted.violation_ <= fitted.epsilon
    empty = len(np.unique(fitted.labels_)) < 2
    assert empty == ("clusters are empty" in caplog.text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_clusters": 1}, r"n_clusters must be an int in \[2, 89\]. Got 1"),
        ({"n_clusters": 90}, r"n_clusters must be an int in \[2, 89\]"),
        ({"balance": -0.1}, "balance must be a finite number of at least 0. Got -0.1"),
        ({"C": 0}, "C must be a finite number above 0"),
        ({"smoothness": -1}, "smoothness must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"tol": 1.0}, "tol must be"),
        ({"init": "random"}, "init must be one of auto, kmeans, spectral"),
        ({"init": [0, 1]}, "90 whole numbers in"),
        ({"graph": "radius"}, "graph must be one of knn, full"),
        ({"nesting": "none"}, "nesting must be one of"),
        ({"criterion": "cut"}, "criterion must be one of"),
        ({"n_init": 0}, "n_init must be an int of at least 1"),
    ],
)
def test_refusals(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        M3FS(3, **settings).fit(_blobs()[0])


def test_refused_before_work_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_m3fs_form, "MAX_FULL_ROWS", 50)
    with pytest.raises(MemoryLimitError, match="visits every pair of rows"):
        M3FS(3, graph="full").fit(_blobs()[0])
    wide = np.random.default_rng(0).normal(size=(30, 6000))
    with pytest.raises(MemoryLimitError, match="6001 x 6001 sums"):
        M3FS(3, memory_limit="768 MiB", init="kmeans").fit(wide)


def test_an_interrupted_run_continues_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_m3fs, "_CHECKPOINT_SECONDS", 0.0)
    X = _rescaled(load_digits(n_class=2).data)
    blocks = RowBlocks.from_any(X, rows=100, scratch=Scratch(tmp_path / "scratch"))
    parameters = Parameters(2, smoothness=0.0, criterion="objective", init="kmeans", n_init=2)
    expected = learn(blocks, 8, parameters)
    step, calls = Streamed.step, []

    def interrupted(self: Streamed, *args: object) -> object:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return step(self, *args)  # type: ignore[arg-type]

    (tmp_path / "checkpoint").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Streamed, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learn(blocks, 8, parameters, checkpoint=tmp_path / "checkpoint")
    again = learn(blocks, 8, parameters, checkpoint=tmp_path / "checkpoint")
    np.testing.assert_array_equal(again.scores, expected.scores)
    assert again.details["n_iter"] == expected.details["n_iter"]


def test_planes_do_not_grow_with_the_rows() -> None:
    """Lemma 2, at a toy size."""
    counts = []
    for n in (200, 2000):
        X, _ = _blobs(n=n)
        counts.append(M3FS(3, init="kmeans", smoothness=0.0, n_init=1).fit(X).n_planes_)
    assert counts[1] <= 2 * counts[0]


def test_the_four_features_of_iris_are_found_among_noise() -> None:
    X = load_iris().data
    for draw in range(3):
        noise = np.random.default_rng(draw).normal(size=(150, 10))
        fitted = M3FS(4, n_clusters=3, C=0.1, n_neighbors=10, preprocess="standardize")
        fitted.fit(np.column_stack([X, noise]))
        np.testing.assert_array_equal(fitted.scores_ > 0.5, np.arange(14) < 4)
