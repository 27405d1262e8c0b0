"""M3FS against the dense problem, its certificate, its degenerate cases and its invariances."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits, load_iris

from bigfs import M3FS, MaximumMarginClustering, ingest
from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.core.seeds import rng
from bigfs.graph import affinity, knn_graph
from bigfs.metrics import clustering_accuracy
from bigfs.selectors.m3fs import M3FSParameters
from bigfs.selectors.m3fs import form as _m3fs_form
from bigfs.selectors.m3fs import rounds as _m3fs
from bigfs.selectors.m3fs.form import full_form, smooth_form, uncentered_form
from bigfs.selectors.m3fs.rounds import Rounds, Settings, Trajectory, plane_sums
from bigfs.selectors.m3fs.strategies import MarginSearch, NormsOfRule, SampledRows
from bigfs.selectors.registry import METHODS, method_of
from bigfs.selectors.scoring import stages_of_selection
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
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


def _selection(estimator: M3FS) -> Selection:
    """Return what an estimator is set to, as a pipeline has it."""
    size = {"n_features_to_select": estimator.n_features_to_select}
    return estimator._selection().model_copy(update=size)


def _learned(blocks: RowBlocks, estimator: M3FS) -> tuple[FeatureScores, Scratch]:
    """Run the stages of an estimator on opened data; return the result and where it is."""
    scratch = blocks.scratch.child(blocks.scratch.unique("stages"))
    finished = Engine(TemporaryStages(scratch), blocks).run(
        stages_of_selection(_selection(estimator))
    )
    return FeatureScores.open(finished["result"]), scratch


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
        assert fitted.n_planes_ > fitted.n_iter_, "two planes in a round"
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
    Z = np.column_stack([X - 4.0, np.ones(len(X))])
    for rows in (70, 20):
        blocks = RowBlocks.from_any(X, rows=rows)
        center = blocks.scratch.put("center", np.full(X.shape[1], 4.0))
        W = affinity(knn_graph(blocks, 5), weight="heat", blocks=blocks)
        expected = Z.T @ laplacian(W.load().toarray()) @ Z / len(X)
        np.testing.assert_allclose(smooth_form(blocks, W, center), expected, atol=1e-9)
        full = np.exp(-cdist(X, X, "sqeuclidean") / 3.0)
        np.fill_diagonal(full, 0)
        expected = Z.T @ laplacian(full) @ Z / len(X)
        np.testing.assert_allclose(full_form(blocks, 3.0, center), expected, atol=1e-8)


@pytest.mark.parametrize("graph", ["knn", "full"])
@pytest.mark.parametrize(("factor", "offset"), [(1e6, 0.0), (1e-7, 0.0), (1.0, 1e6), (1.0, -3e7)])
def test_neither_a_unit_nor_an_offset_changes_the_problem(
    factor: float, offset: float, graph: str
) -> None:
    """With C and smoothness in the same unit; an intercept absorbs an offset."""
    X, y = _blobs(3)

    def fitted(X: np.ndarray, unit: float) -> M3FS:
        weights = {"C": 10 / unit**2, "smoothness": 1 / unit**2}
        return M3FS(
            4, n_clusters=3, init=y, preprocess="none", graph=graph, n_neighbors=6, **weights
        ).fit(X)

    expected, other = fitted(X, 1.0), fitted(X * factor + offset, factor)
    assert other.objective_ * factor**2 == pytest.approx(expected.objective_, rel=1e-4)
    assert other.smoothness_term_ * factor**2 == pytest.approx(expected.smoothness_term_, rel=1e-3)
    np.testing.assert_allclose(other.scores_, expected.scores_, atol=1e-3)
    np.testing.assert_array_equal(other.labels_, expected.labels_)
    rule = (X * factor + offset) @ other.coef_ + other.intercept_
    np.testing.assert_array_equal(rule.argmax(axis=1), other.labels_)


@pytest.mark.parametrize("unit", [1e6, 1e-6])
def test_the_unit_does_not_choose_the_start(unit: float) -> None:
    X = np.random.default_rng(3).normal(size=(60, 5))

    def fitted(unit: float) -> MaximumMarginClustering:
        own = {"C": 3 / unit**2, "preprocess": "none", "random_state": 1}
        return MaximumMarginClustering(3, n_clusters=3, n_init=4, **own).fit(X * unit)

    expected, other = fitted(1.0), fitted(unit)
    assert expected.chosen_start_ != "kmeans 0", "a tie would choose it too"
    assert other.chosen_start_ == expected.chosen_start_
    np.testing.assert_array_equal(other.labels_, expected.labels_)


@pytest.mark.parametrize("offset", [1e6, 1e7])
def test_the_form_without_intercept_survives_an_offset(offset: float) -> None:
    """The contrast of two columns does not see an offset that both have."""
    X, _ = _blobs(n=70)
    forms = []
    for rows in (X, X + offset):
        blocks = RowBlocks.from_any(rows)
        mean = blocks.moments().mean
        center = blocks.scratch.put("center", mean)
        W = affinity(knn_graph(blocks, 5), weight="binary", blocks=blocks)
        for form in (smooth_form(blocks, W, center), full_form(blocks, 30.0, center)):
            contrast = np.eye(9)[1] - np.eye(9)[2]
            forms.append(contrast @ uncentered_form(form, mean) @ contrast)
    np.testing.assert_allclose(forms[2:], forms[:2], rtol=0.02)


def test_constant_features_do_not_change_the_unit() -> None:
    X, y = _blobs(2)
    more = np.column_stack([X, np.full((len(X), 40), 3.0)])
    alone, beside = (M3FS(3, init=y, n_neighbors=6).fit(rows) for rows in (X, more))
    np.testing.assert_allclose(beside.scores_[:8], alone.scores_, atol=1e-4)
    np.testing.assert_array_equal(beside.labels_, alone.labels_)


@pytest.mark.parametrize("seed", [2, 11, 33])
def test_intercepts_that_nothing_holds_are_solved_for(seed: int) -> None:
    """Without balance and smoothness the sum of the intercepts is open."""
    rng, y = np.random.default_rng(seed), np.arange(36) % 3
    X = rng.normal(size=(36, 6)) + (2.5 * rng.normal(size=(3, 6)))[y]
    fitted = M3FS(
        2, n_clusters=3, C=1.0, smoothness=0, balance=None, preprocess="none", init=y
    ).fit(X)
    assert fitted.gap_ <= 1e-5


@pytest.mark.full
def test_equal_columns_keep_their_order() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(90, 8)) + (2.5 * rng.normal(size=(3, 8)))[np.arange(90) % 3]
        X[:, 6] = X[:, 1]
        ranking = M3FS(3, n_clusters=3).fit(X).ranking_.tolist()
        assert ranking.index(1) < ranking.index(6)


@pytest.mark.parametrize(("best", "goes_on"), [(0.70, True), (0.95, False)])
def test_clusters_change_while_the_best_point_falls(best: float, goes_on: bool) -> None:
    """The bound below it, loose by C epsilon, may rise meanwhile."""
    settings = Settings(M3FSParameters(C=1.0), n_columns=1, n_selected=2, n_features=3)
    state = Trajectory.first(0, settings)
    state.best, state.best_changed, state.violation = np.ones((4, 1)), 5, 0.0
    state.last, state.last_value = 0.46, 0.95
    state.objective, state.best_rest, state.best_loss = 0.64, 0.0, best
    state._clusters_outside([], settings, 10)
    assert (state.refresh, state.done) == (goes_on, not goes_on)


def test_an_offset_does_not_change_what_smoothness_asks() -> None:
    X = np.rint(1024 * _blobs(seed=1)[0]) / 1024  # so that nothing is rounded
    settings = {"n_clusters": 2, "n_init": 1, "preprocess": "none"}
    fitted, moved = (M3FS(3, **settings).fit(X + offset) for offset in (0.0, 8192.0))
    np.testing.assert_array_equal(moved.selected, fitted.selected)
    assert moved.objective_ == pytest.approx(fitted.objective_, rel=1e-3)


def test_blocks_and_schedulers_change_nothing(scheduler: str, tmp_path: Path) -> None:
    X = load_digits(n_class=2).data.astype(np.float32)
    ingest(X, tmp_path / "X.zarr", rows=90)
    results = {}
    for rows in (360, 90):
        blocks = RowBlocks.from_any(
            tmp_path / "X.zarr", transform="rescale", rows=rows, scratch=Scratch(tmp_path / "small")
        )
        results[rows], _ = _learned(blocks, M3FS(10, init="kmeans", n_init=2))
    single, many = results[360], results[90]
    np.testing.assert_allclose(single.scores, many.scores, atol=1e-6)
    np.testing.assert_array_equal(single.details["labels"].load(), many.details["labels"].load())
    assert single.details["chosen_start"] == many.details["chosen_start"]
    bits = many.scores.tobytes()
    assert _seen.setdefault("scores", bits) == bits, "another scheduler gave other bits"


@pytest.mark.full
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


@pytest.mark.full
def test_a_sample_is_learned_from_and_all_rows_are_labeled() -> None:
    X, y = load_digits(n_class=2, return_X_y=True)
    fitted = M3FS(8, sample_size=120, init="kmeans").fit(X)
    assert fitted.labels_.shape == y.shape
    assert clustering_accuracy(y, fitted.labels_) > 0.98
    assert sum(fitted.starts_[0]["sizes"]) == 120
    with pytest.raises(InputError, match="M3FS: sample_size must be at most 360, since X has 360"):
        M3FS(8, sample_size=len(X) + 1).fit(X)
    with pytest.raises(InputError, match="n_clusters must be below sample_size, which is 3. Got 4"):
        M3FS(8, n_clusters=4, sample_size=3).fit(X)


def test_a_sample_starts_at_the_labels_of_its_rows() -> None:
    X, y = load_digits(n_class=2, return_X_y=True)
    fitted = M3FS(8, sample_size=120, init=y).fit(X)
    assert [start["start"] for start in fitted.starts_] == ["given"]
    assert clustering_accuracy(y, fitted.labels_) > 0.98
    with pytest.raises(InputError, match="360 whole numbers in"):
        M3FS(8, sample_size=120, init=y[:120]).fit(X)


@pytest.mark.full
def test_a_sample_is_fitted_as_the_same_rows_are() -> None:
    """Graph, eigenvectors and starts are those of the sampled rows alone."""
    X = load_digits(n_class=3).data
    sampled = M3FS(8, n_clusters=3, sample_size=150, preprocess="none", n_init=1).fit(X)
    ids = np.sort(rng(0, "m3fs rows").choice(len(X), 150, replace=False))
    alone = M3FS(8, n_clusters=3, preprocess="none", n_init=1).fit(X[ids])
    np.testing.assert_array_equal(sampled.scores_, alone.scores_)
    np.testing.assert_array_equal(sampled.start_labels_, alone.start_labels_)
    np.testing.assert_array_equal(sampled.labels_[ids], alone.labels_)
    few = M3FS(8, sample_size=5, n_neighbors=10, preprocess="none", C=1.0).fit(X)
    assert few.start_labels_.shape[0] == 5, "as many neighbors as there are"


def test_sums_of_many_planes_are_those_of_each() -> None:
    generator = np.random.default_rng(0)
    X, z = generator.normal(size=(60, 5)), generator.integers(3, size=60).astype(np.uint8)
    planes = [generator.integers(4, size=60).astype(np.uint8) for _ in range(12)]
    sums, counts = plane_sums(X, planes, z, 3, True)
    for plane, of_plane, count in zip(planes, sums, counts, strict=True):
        asks = (plane > 0) & (plane != z + 1)
        weights = (z == np.arange(3)[:, None]) * 1.0 - (plane == np.arange(1, 4)[:, None])
        wanted = (weights * asks) @ np.column_stack([X, np.ones(60)])
        np.testing.assert_allclose(of_plane, wanted.T, atol=1e-12)
        assert count == asks.sum()


@pytest.mark.full
def test_clustering_without_selection() -> None:
    X, y = load_digits(n_class=2, return_X_y=True)
    fitted = MaximumMarginClustering(5).fit(X)
    assert clustering_accuracy(y, fitted.labels_) > 0.98
    np.testing.assert_allclose(fitted.scores_, np.linalg.norm(fitted.coef_, axis=1))
    assert fitted.violation_ <= fitted.epsilon
    settings = {"smoothness": 0.0, "init": "kmeans", "nesting": "planes_outside"}
    same = M3FS(64, criterion="objective", **settings).fit(X)
    np.testing.assert_array_equal(fitted.coef_, same.coef_)
    few = MaximumMarginClustering(5, sample_size=120).fit(X)
    assert clustering_accuracy(y, few.labels_) > 0.98
    np.testing.assert_array_equal(few.scores_, np.linalg.norm(few.coef_, axis=1))


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
        (
            {"n_clusters": 1},
            r"M3FS: n_clusters must be a whole number in \[2, 254\], or auto. Got 1",
        ),
        ({"n_clusters": 90}, "M3FS: n_clusters must be at most 89, since X has 90 rows. Got 90"),
        ({"balance": -0.1}, "M3FS: balance must be a number of at least 0. Got -0.1"),
        ({"C": 0}, "M3FS: C must be a number above 0. Got 0"),
        ({"smoothness": -1}, "M3FS: smoothness must be a number of at least 0"),
        ({"epsilon": 0.0}, "M3FS: epsilon must be a number above 0"),
        ({"tol": 1.0}, "M3FS: tol must be a number below 1"),
        ({"init": "random"}, "file of labels. Got .random"),
        ({"init": [0, 1]}, "90 whole numbers in"),
        ({"graph": "radius"}, "M3FS: graph must be one of knn, full"),
        ({"nesting": "none"}, "M3FS: nesting must be one of"),
        ({"criterion": "cut"}, "M3FS: criterion must be one of"),
        ({"n_init": 0}, "M3FS: n_init must be a number of at least 1"),
        ({"n_neighbors": 90}, "n_neighbors"),
    ],
)
def test_refusals(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        M3FS(3, **settings).fit(_blobs()[0])


def test_refused_before_work_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_m3fs_form, "MAX_FULL_ROWS", 50)
    with pytest.raises(MemoryLimitError, match="compares all pairs of rows"):
        M3FS(3, graph="full").fit(_blobs()[0])
    wide = np.random.default_rng(0).normal(size=(30, 6000))
    with pytest.raises(MemoryLimitError, match="6 matrices of 6,001 x 6,001 for smoothness"):
        M3FS(3, memory_limit="768 MiB", init="kmeans").fit(wide)


def _chosen(shape: Shape, **settings: object) -> object:
    return METHODS["m3fs"].choose(shape, _selection(M3FS(3, **settings)))


def _starts_in_plan(shape: Shape, **settings: object) -> int:
    steps = _chosen(shape, **settings).cost().steps
    [tasks] = [step.tasks for step in steps if "cone program" in step.what]
    return tasks


def test_the_shape_and_the_sample_decide_the_strategy() -> None:
    single, many = Shape(1000, 50, 4, 1000, 500), Shape(1001, 50, 4, 1000, 500)
    assert type(_chosen(single)) is type(_chosen(many)) is MarginSearch
    assert type(_chosen(many, sample_size=300)) is SampledRows
    alone, several = _chosen(single).cost(), _chosen(many).cost()
    planes = 64 * _starts_in_plan(single)
    assert alone.keeps_bytes == single.nbytes + planes * 1000
    assert several.keeps_bytes == many.nbytes + planes * 1001
    assert several.passes == alone.passes > 1001, "all starts read the rows together"
    wide = Shape(1000, 5000, 4, 1000, 1000)
    n_run = {c: _starts_in_plan(wide, n_clusters=c) for c in (2, 3, "auto")}
    assert n_run == {2: 11, 3: 3, "auto": 11}, "auto may find two clusters"
    assert _starts_in_plan(wide, n_clusters=3, criterion="objective") == 11
    clustering = MaximumMarginClustering(3)
    chosen = METHODS["maximum_margin_clustering"].choose(many, clustering._selection())
    assert type(chosen) is NormsOfRule and type(chosen.search) is MarginSearch
    assert chosen.cost().passes == several.passes - 2, "no smoothness and no likelihood"


def test_a_sample_takes_what_its_stages_take() -> None:
    shape = Shape(10_000_000, 50, 4, 100_000, 50_000)
    small, large = (_chosen(shape, sample_size=size).cost() for size in (1000, 50_000))
    assert small.passes == large.passes == 2, "the draw, and the labels of all rows"
    assert large.scratch_bytes > small.scratch_bytes
    assert large.client_bytes >= 2 * 50_000 * 50 * 4
    whats = [step.what for step in large.steps]
    assert any("neighbor search" in what for what in whats)
    assert any("vectors" in what for what in whats)
    assert "a block of 50,000 rows with its planes" in whats


@pytest.mark.parametrize("rows", [90, 30])
@pytest.mark.parametrize(
    "estimator",
    [
        M3FS(3, n_clusters=3, n_init=2, max_iter=4),
        M3FS(3, graph="full", n_init=1, init="kmeans", max_iter=3, nesting="planes_outside"),
        M3FS(3, sample_size=40, n_init=1),
        M3FS(3, sample_size=90, n_init=1, max_iter=5),
        MaximumMarginClustering(3, n_init=1, max_iter=3),
    ],
    ids=lambda estimator: str(estimator),
)
def test_passes_are_at_most_those_of_the_cost(estimator: M3FS, rows: int) -> None:
    blocks = RowBlocks.from_any(_blobs()[0], rows=rows, transform="rescale")
    selection = _selection(estimator)
    *before, scoring = stages_of_selection(selection)
    scratch = Scratch()
    finished = Engine(TemporaryStages(scratch), blocks).run(before)
    strategy = method_of(type(estimator)).choose(blocks.layout, selection)
    passes = blocks.passes
    result = strategy.run(Inputs(blocks, finished), scratch.child("result"))
    assert result.details["n_passes"] == blocks.passes - passes
    assert blocks.passes - passes <= strategy.cost().passes


def test_the_stages_are_those_that_the_settings_take() -> None:
    def names(estimator: M3FS) -> list[str]:
        return [stage.name for stage in stages_of_selection(_selection(estimator))]

    every = ["graph", "spectral", "result"]
    assert names(M3FS(3)) == names(M3FS(3, init="spectral", smoothness=0.0)) == every
    assert names(M3FS(3, init="kmeans")) == ["graph", "result"]
    assert names(M3FS(3, init="kmeans", smoothness=0.0)) == ["result"]
    assert names(M3FS(3, init="kmeans", smoothness=0.0, n_clusters="auto")) == every
    assert names(M3FS(3, sample_size=50)) == ["result"]
    assert names(MaximumMarginClustering(3)) == ["result"]
    assert names(MaximumMarginClustering(3, n_clusters="auto")) == every


def test_few_rows_have_fewer_eigenvectors_than_the_starts_would_like() -> None:
    X = _blobs(n=7)[0]
    fitted = M3FS(3, n_clusters=4, n_neighbors=3, C=1.0).fit(X)
    widths = {start["start"].split(",")[0] for start in fitted.starts_}
    assert widths & {"spectral 3", "spectral 4", "spectral 5"} and "spectral 7" not in widths


def test_the_complete_graph_has_heat_weights() -> None:
    selection = _selection(M3FS(3, graph="full"))
    binary = selection.graph.model_copy(update={"weight": "binary"})
    with pytest.raises(InputError, match="graph 'full' needs heat weights, but graph.weight is"):
        METHODS["m3fs"].choose(
            Shape(90, 8, 8, 90, 90), selection.model_copy(update={"graph": binary})
        )


def test_an_interrupted_run_continues_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_m3fs, "_CHECKPOINT_SECONDS", 0.0)
    X = _rescaled(load_digits(n_class=2).data)
    blocks = RowBlocks.from_any(X, rows=100, scratch=Scratch(tmp_path / "scratch"))
    estimator = M3FS(8, smoothness=0.0, criterion="objective", init="kmeans", n_init=2)
    strategy = METHODS["m3fs"].choose(blocks.layout, _selection(estimator))
    out, checkpoint = Scratch(tmp_path / "out"), tmp_path / "checkpoint"
    expected = strategy.run(Inputs(blocks), out)
    step, calls = Rounds.step, []

    def interrupted(self: Rounds, *args: object) -> object:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return step(self, *args)  # type: ignore[arg-type]

    checkpoint.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Rounds, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            strategy.run(Inputs(blocks, checkpoint=checkpoint), out)
    before = blocks.passes
    again = strategy.run(Inputs(blocks, checkpoint=checkpoint), out)
    np.testing.assert_array_equal(again.scores, expected.scores)
    assert again.details["n_iter"] == expected.details["n_iter"]
    assert blocks.passes - before < expected.details["n_passes"], "rounds were done again"


def test_small_programs_are_solved_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    import dask

    inside, counts, solved = [0], [], _m3fs.solve_cone

    def counted(*given: object, **options: object) -> object:
        inside[0] += 1
        counts.append(inside[0])
        time.sleep(0.005)  # in which another thread would begin
        result = solved(*given, **options)
        inside[0] -= 1
        return result

    monkeypatch.setattr(_m3fs, "solve_cone", counted)
    X = _blobs(d=80)[0]
    with dask.config.set(scheduler="threads", num_workers=4):
        fitted = M3FS(10, n_clusters=2, n_init=3).fit(X)
    assert len(fitted.starts_) > 1 and set(counts) == {1}


def test_planes_do_not_grow_with_the_rows() -> None:
    """Lemma 2, at a toy size."""
    counts = []
    for n in (200, 2000):
        X, _ = _blobs(n=n)
        counts.append(M3FS(3, init="kmeans", smoothness=0.0, n_init=1).fit(X).n_planes_)
    assert counts[1] <= 2 * counts[0]


@pytest.mark.full
def test_the_four_features_of_iris_are_found_among_noise() -> None:
    X = load_iris().data
    for draw in range(3):
        noise = np.random.default_rng(draw).normal(size=(150, 10))
        fitted = M3FS(4, n_clusters=3, C=0.1, n_neighbors=10, preprocess="standardize")
        fitted.fit(np.column_stack([X, noise]))
        np.testing.assert_array_equal(fitted.scores_ > 0.5, np.arange(14) < 4)


def test_a_tiny_C_on_wide_data_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    """Pairs reach the edge of their cones there; NumPy's warnings are errors here."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(40, 90))
    X[:, :3] += 1.2 * (generator.random(40) < 0.5)[:, None]
    fitted = M3FS(9, n_clusters=2, C=1e-3, smoothness=0).fit(X)
    assert np.isfinite(fitted.scores_).all()
    assert fitted.scores_.sum() == pytest.approx(9)
    assert "Increase C" in caplog.text
