"""UDFS: equal to the dense form; any blocks and workers; monotone; degenerate data; in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits, load_iris, load_wine

from bigfs import UDFS, knn_graph, run
from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import mostly_zeros
from bigfs.cli import main
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.selectors.registry import METHODS, selection_model
from bigfs.selectors.udfs import strategies as _udfs
from bigfs.selectors.udfs.strategies import SparseProjection, local_scatter, product_form
from bigfs.solvers.udfs import ProductForm
from tests.bench.bench_baselines import prepared
from tests.reference.udfs import discriminative_matrix, udfs_scores
from tests.selectors._local import strategy_of


def _varying(X: np.ndarray) -> np.ndarray:
    return X[:, X.std(axis=0) > 0]


def test_fewer_rows_than_features_but_not_than_those_that_vary() -> None:
    X = np.hstack([np.random.default_rng(0).normal(size=(12, 8)), np.zeros((12, 6))])
    fitted = UDFS(3, n_clusters=2, n_neighbors=3).fit(X)
    more = UDFS(3, n_clusters=2, n_neighbors=3).fit(X[:, :11])
    assert fitted.ranking_[-6:].tolist() == list(range(8, 14))
    np.testing.assert_allclose(fitted.scores_[:8], more.scores_[:8], rtol=1e-6)


@pytest.mark.parametrize("ridge", [1e-6, 1.0, 1e3])
def test_equals_the_dense_reference(ridge: float) -> None:
    X = _varying(load_digits().data[:300])
    graph = knn_graph(X, 4)
    M, varies = local_scatter(RowBlocks.from_any(X), graph.indices_ref, ridge)
    assert varies.all()
    expected = discriminative_matrix(X, 4, ridge)
    np.testing.assert_allclose(M, expected, rtol=0, atol=1e-13 * np.abs(expected).max())
    fitted = UDFS(
        5, n_clusters=6, gamma=2.0, ridge=ridge, n_neighbors=4, max_iter=5, tol=0, unit="none"
    ).fit(X)
    assert fitted.n_iter_ == 5
    np.testing.assert_allclose(
        fitted.scores_, udfs_scores(X, 6, 4, 2.0, ridge, 5), rtol=1e-5, atol=1e-7
    )


def test_rounding_does_not_choose_the_start_where_features_are_combinations_of_others() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 4))
    X = np.hstack([X, X @ generator.normal(size=(4, 12))])
    settings = {"n_clusters": 8, "gamma": 1.0, "ridge": 1.0, "max_iter": 4, "tol": 0}
    fitted = UDFS(8, **settings, unit="none").fit(X)
    expected = udfs_scores(X, 8, 5, 1.0, 1.0, 4)
    np.testing.assert_allclose(fitted.scores_, expected, rtol=1e-5, atol=1e-8)
    ranking = UDFS(8).fit(X).ranking_
    for factor in (255.0, 1e-6):
        np.testing.assert_array_equal(UDFS(8).fit(X * factor).ranking_, ranking)


@pytest.mark.parametrize("ridge, gamma", [(1.0, 0.1), (10.0, 2.0)])
def test_few_rows_equal_the_dense_reference_in_any_order(
    ridge: float, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigfs.solvers.udfs._START_TOL", 0)
    generator = np.random.default_rng(3)
    X = generator.normal(size=(30, 90)) * generator.uniform(0.2, 3, 90) + 5
    settings = {"n_clusters": 4, "gamma": gamma, "ridge": ridge, "max_iter": 6, "tol": 0}
    settings["unit"] = "none"
    fitted = UDFS(5, **settings).fit(X)
    expected = udfs_scores(X, 4, 5, gamma, ridge, 6)
    np.testing.assert_allclose(fitted.scores_, expected, rtol=1e-5, atol=1e-8)
    assert (np.diff(fitted.objective_) <= 0).all()
    np.testing.assert_allclose(fitted.coef_.T @ fitted.coef_, np.eye(4), atol=1e-10)
    order = generator.permutation(90)
    reordered = UDFS(5, **settings).fit(X[:, order])
    np.testing.assert_allclose(reordered.scores_, fitted.scores_[order], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n_components", [1, 3])
def test_rows_that_are_mostly_zeros_have_the_same_solution(n_components: int) -> None:
    generator = np.random.default_rng(2)
    X = generator.normal(size=(60, 400)) * (generator.random((60, 400)) < 0.03)
    X[:, 5] = generator.normal(size=60) + 50
    # Neighbors in the same component, whose rows are every n_components-th.
    steps = np.array([generator.choice(range(1, 20), 4, replace=False) for _ in range(60)])
    neighbors = (np.arange(60)[:, None] + n_components * steps) % 60
    X = X[:, X.std(axis=0) > 0]
    found = mostly_zeros(X, centered=True)
    assert found is not None
    sparse, dense = _udfs.sparse_form(found[0], neighbors, 0.7), product_form(X, neighbors, 0.7)
    assert sparse is not None
    np.testing.assert_allclose(sparse.outside, dense.outside, rtol=1e-9, atol=1e-12)
    assert sparse.trace() == pytest.approx(dense.trace(), rel=1e-12)
    added = generator.uniform(0.1, 1, X.shape[1])
    before = generator.normal(size=(X.shape[1], 4))
    expected, B = (form.smallest(added, 4, before) for form in (dense, sparse))
    np.testing.assert_allclose(np.abs(B), np.abs(expected), rtol=0, atol=1e-7)
    assert sparse.quadratic(B) == pytest.approx(dense.quadratic(B), rel=1e-10)
    assert _udfs.sparse_form(found[0], neighbors, 1e-5) is None, "rounding is not below the ridge"


def test_features_that_share_no_row_with_the_last_solution_come_in() -> None:
    F = np.zeros((40, 12))
    F[:20, :6], F[20:, 6:] = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 20, 6)))[0]
    added = np.linspace(1, 3, 40)
    added[20:] -= 1.5
    exact = np.linalg.eigh(F @ F.T + np.diag(added))
    before = np.zeros((40, 2))
    before[[0, 1], [0, 1]] = 1.0
    B = ProductForm(F, np.ones(40)).smallest(added, 2, before)
    np.testing.assert_allclose(np.abs(B.T @ exact.eigenvectors[:, :2]), np.eye(2)[::-1], atol=1e-7)


def test_data_that_are_mostly_zeros_take_the_sparse_form(monkeypatch: pytest.MonkeyPatch) -> None:
    from bigfs.selectors.udfs import strategies

    generator, made, sparse_form = np.random.default_rng(2), [], strategies.sparse_form
    X = generator.normal(size=(60, 400)) * (generator.random((60, 400)) < 0.03)
    monkeypatch.setattr(
        strategies, "sparse_form", lambda *a: made.append(sparse_form(*a)) or made[-1]
    )
    fitted = UDFS(5, n_clusters=3, max_iter=5, tol=0).fit(X)
    assert len(made) == 1 and made[0] is not None
    monkeypatch.setattr(strategies, "mostly_zeros", lambda X, centered: None)
    dense = UDFS(5, n_clusters=3, max_iter=5, tol=0).fit(X)
    assert len(made) == 1
    np.testing.assert_allclose(fitted.objective_, dense.objective_, rtol=1e-5)


def test_an_eigensolver_that_gives_up_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.linalg

    solve = scipy.linalg.eigh

    def giving_up(*args: Any, driver: str, **options: Any) -> Any:
        if driver == "evr":  # as seen on AT&T with a ridge of 1e4
            raise scipy.linalg.LinAlgError("Internal Error.")
        return solve(*args, driver=driver, **options)

    X = load_wine().data
    expected = UDFS(5, n_clusters=3).fit(X).scores_
    monkeypatch.setattr(scipy.linalg, "eigh", giving_up)
    np.testing.assert_allclose(UDFS(5, n_clusters=3).fit(X).scores_, expected, rtol=1e-8)


@pytest.mark.data
@pytest.mark.parametrize("name", ["UMIST", "glass"])
def test_equals_the_dense_reference_on_stored_data(data_dir: Path, name: str) -> None:
    with np.load(data_dir / f"{name}.npz") as stored:
        X = prepared(stored["X"])
    literal = {"gamma": 0.1, "ridge": 1.0, "unit": "none"}
    scores = UDFS(5, n_clusters=5, max_iter=5, tol=0, **literal).fit(X).scores_
    np.testing.assert_allclose(scores, udfs_scores(X, 5, 5, 0.1, 1.0, 5), rtol=1e-6, atol=1e-8)
    unit = np.sqrt(X.var(axis=0).sum())
    relative = {"gamma": 0.1 / len(X), "ridge": 1.0 / unit**2}
    scores = UDFS(5, n_clusters=5, max_iter=5, tol=0, **relative).fit(X)
    assert scores.unit_ == pytest.approx(unit)
    expected = UDFS(5, n_clusters=5, max_iter=5, tol=0, **literal).fit(X).scores_
    np.testing.assert_allclose(scores.scores_, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n", [200, 40])
def test_the_default_penalty_is_a_share_of_what_a_feature_costs(n: int) -> None:
    X = _varying(load_digits().data[:n])
    M = discriminative_matrix(X, 5, 3.0 * X.var(axis=0).sum())
    expected = UDFS().sparsity * np.trace(M) / len(M)
    fitted = UDFS(5, n_clusters=3, ridge=3.0).fit(X)
    assert fitted.gamma_ == pytest.approx(expected, rel=1e-8)
    given = UDFS(5, n_clusters=3, ridge=3.0, gamma=fitted.gamma_ / n).fit(X)
    np.testing.assert_allclose(given.scores_, fitted.scores_, rtol=1e-8)


def test_rows_per_block_and_rows_at_once_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    X = load_digits().data[:500].astype(np.float32)
    graph = knn_graph(X, 5)
    expected, _ = local_scatter(RowBlocks.from_any(X), graph.indices_ref, 1.0)
    for rows, at_once in ((500, 40), (70, 500), (70, 20)):
        monkeypatch.setattr(_udfs, "GATHERED_BYTES", at_once * 6 * 64 * 4)
        actual, _ = local_scatter(RowBlocks.from_any(X, rows=rows), graph.indices_ref, 1.0)
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.cluster
def test_workers_do_not_change_a_bit(tmp_path: Path, client: Any) -> None:
    import dask

    np.save(tmp_path / "X.npy", load_digits().data)
    blocks = RowBlocks.from_any(tmp_path / "X.npy", rows=300)
    graph = knn_graph(blocks, 5)
    spread, _ = local_scatter(blocks, graph.indices_ref, 1.0)
    for n_threads in (1, 2, 4):
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            here, _ = local_scatter(blocks, graph.indices_ref, 1.0)
        np.testing.assert_array_equal(spread, here)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 100.0])
def test_the_objective_never_rises(gamma: float) -> None:
    fitted = UDFS(10, n_clusters=10, gamma=gamma, max_iter=200).fit(load_digits().data[:600])
    assert fitted.converged_
    assert (np.diff(fitted.objective_) <= 1e-10 * fitted.objective_[0]).all()
    np.testing.assert_allclose(fitted.coef_.T @ fitted.coef_, np.eye(10), atol=1e-10)


def test_degenerate_data() -> None:
    rng = np.random.default_rng(0)
    wide = np.hstack([rng.normal(size=(12, 40)), np.full((12, 1), 0.1)])
    fitted = UDFS(41, n_clusters=3, n_neighbors=4).fit(wide)
    assert fitted.get_support().all()
    assert fitted.scores_[40] == 0 and fitted.ranking_[-1] == 40
    assert np.isfinite(fitted.scores_).all()
    assert UDFS(2, n_clusters=2).fit(np.ones((9, 40))).ranking_[:2].tolist() == [0, 1]
    # Every neighborhood is one point: all features are free, and none is better.
    points = np.repeat(rng.normal(size=(3, 40)), 8, axis=0)
    assert np.isfinite(UDFS(2, n_clusters=2, n_neighbors=3).fit(points).scores_).all()
    twice = np.repeat(rng.normal(size=(30, 4)), 3, axis=0)
    assert np.isfinite(UDFS(2, n_clusters=2, n_neighbors=2).fit(twice).scores_).all()
    apart = np.concatenate([rng.normal(20 * part, 1, (20, 5)) for part in range(3)])
    assert np.isfinite(UDFS(2, n_clusters=3).fit(apart).scores_).all()
    # Constant in every neighborhood, but not everywhere: that tells clusters apart.
    part = np.hstack([apart, np.repeat([0.0, 1.0, 2.0], 20)[:, None]])
    assert UDFS(1, n_clusters=1).fit(part).ranking_[0] == 5
    everything = UDFS(3, n_clusters=4).fit(load_iris().data)
    np.testing.assert_allclose(everything.scores_, 1)
    fewer = np.hstack([rng.normal(size=(20, 2)), np.zeros((20, 3))])
    assert UDFS(2, n_clusters=4).fit(fewer).coef_.shape == (5, 2)
    assert UDFS(1, n_clusters=1).fit(np.ones((9, 2))).ranking_.tolist() == [0, 1]


def test_refusals() -> None:
    X = load_wine().data
    for options, message in (
        ({"n_clusters": 0}, "n_clusters must be a whole number of at least 1, or auto"),
        ({"n_clusters": 14}, "n_clusters must be at most 13, since X has 13 features"),
        ({"gamma": -1.0}, "UDFS: gamma must be a number of at least 0. Got -1"),
        ({"ridge": 0.0}, "UDFS: ridge must be a number above 0. Got 0"),
        ({"max_iter": 0}, "max_iter"),
        ({"n_neighbors": 178}, "n_neighbors"),
    ):
        with pytest.raises(InputError, match=message):
            UDFS(2, **{"n_clusters": 3, **options}).fit(X)


@pytest.mark.parametrize("n, d", [(6_000, 6_000), (9_000, 6_000), (20_000, 1_000)])
def test_the_cost_names_the_matrices_of_features(n: int, d: int) -> None:
    shape = Shape(n, d, 4, 3_000, 3_000)
    selection = selection_model()(method="udfs", n_features_to_select=1)
    strategy = METHODS["udfs"].choose(shape, selection)
    assert type(strategy) is SparseProjection
    cost = strategy.cost()
    assert cost.client_bytes == 4 * 8 * d**2
    n_sums = -(-n // 3_000) + 2
    assert cost.task_bytes > n_sums * 8 * d**2, "of a fold, with its result and one more"
    assert f"{n_sums} sums of {d:,} x {d:,}" in cost.largest.what
    assert cost.passes == 2  # one of them finds the unit


@pytest.mark.parametrize("rows", [40, 200])
def test_passes_are_those_of_the_cost(rows: int) -> None:
    X = load_wine().data
    blocks = RowBlocks.from_any(X, rows=rows)
    graph = knn_graph(blocks, 5)
    before = blocks.passes
    local_scatter(blocks, graph.indices_ref, 1.0)
    strategy = strategy_of("udfs", blocks.layout, unit="none")
    assert blocks.passes - before == strategy.cost().passes == 1


def test_the_seed_reaches_the_graph_and_the_choice_of_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bigfs.stages import graph, spectral

    seeds = []
    for module, name in ((graph, "knn_graph"), (spectral, "spectral_embedding")):
        kept = getattr(module, name)

        def noted(*args: Any, kept: Any = kept, **options: Any) -> Any:
            seeds.append(options["random_state"])
            return kept(*args, **options)

        monkeypatch.setattr(module, name, noted)
    UDFS(2, n_clusters="auto", random_state=7).fit(load_wine().data)
    assert seeds == [7, 7]


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "method": "udfs",
        "udfs": {"n_clusters": 10, "gamma": 1.0},
        "n_features_to_select": 9,
        **changes,
    }


def test_as_a_run(tmp_path: Path) -> None:
    result = run(_config(tmp_path))
    expected = UDFS(9, n_clusters=10, gamma=1.0).fit(load_digits().data)
    np.testing.assert_array_equal(result.scores, expected.scores_)
    np.testing.assert_array_equal(result.coef, expected.coef_)


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "X.npy", np.zeros((8, 6000), dtype=np.float32))
    config = _config(tmp_path, input={"uri": str(tmp_path / "X.npy")}, memory_limit="768 MiB")
    config["udfs"]["gamma"] = 0.0  # without a penalty few rows are no help
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(tmp_path / "c.yaml")])
    assert stopped.value.code == 3
    assert "memory_limit" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
