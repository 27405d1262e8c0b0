"""QAlpha: equal to the iteration on the samples; rises; degenerate data; refusals; in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits, load_iris, load_wine

from bigfs import QAlpha, run
from bigfs.blocks import RowBlocks
from bigfs.cli import main
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.selectors.one_pass import QAlphaParameters
from bigfs.selectors.one_pass.strategies import FeatureWeights
from bigfs.selectors.one_pass.strategies import q_alpha as solve
from bigfs.selectors.registry import METHODS, selection_model
from bigfs.stages.stage import Inputs
from tests.bench.bench_baselines import prepared
from tests.reference.qalpha import q_alpha
from tests.selectors._local import strategy_of


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("data", ["digits", "wine"])
def test_equals_the_iteration_on_the_samples(data: str, k: int) -> None:
    X = load_digits().data[:150, :40] if data == "digits" else load_wine().data
    X = X[:, X.std(axis=0) > 0]
    fitted = QAlpha(5, n_clusters=k, max_iter=4, tol=0).fit(X)
    assert fitted.n_iter_ == 4 and not fitted.converged_
    np.testing.assert_allclose(fitted.scores_, q_alpha(X, k, 4), atol=1e-9)


@pytest.mark.data
@pytest.mark.parametrize("name", ["UMIST", "glass"])
def test_equals_the_dense_reference_on_stored_data(data_dir: Path, name: str) -> None:
    with np.load(data_dir / f"{name}.npz") as stored:
        X = prepared(stored["X"])
    X = X[:200, :60]
    X = X[:, X.std(axis=0) > 0]
    scores = QAlpha(5, n_clusters=4, max_iter=4, tol=0).fit(X).scores_
    np.testing.assert_allclose(scores, q_alpha(X, 4, 4), atol=1e-9)


@pytest.mark.cluster
def test_workers_do_not_change_a_bit(tmp_path: Path, client: Any) -> None:
    np.save(tmp_path / "X.npy", load_digits().data)

    def scores() -> np.ndarray:
        blocks = RowBlocks.from_any(tmp_path / "X.npy", rows=300)
        strategy = strategy_of("q_alpha", blocks.layout, n_clusters=10)
        return strategy.run(Inputs(blocks), blocks.scratch).scores

    spread = scores()
    for n_threads in (1, 2, 4):
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            assert scores().tobytes() == spread.tobytes()


def test_the_objective_rises_and_settles() -> None:
    fitted = QAlpha(10, n_clusters=5, max_iter=1000).fit(load_digits().data)
    assert fitted.converged_
    assert (np.diff(fitted.objective_) >= -1e-12 * fitted.objective_[1:]).all()
    kept = fitted.scores_[np.isfinite(fitted.scores_)]
    assert np.linalg.norm(kept) == pytest.approx(1)
    assert kept.sum() > 0


@pytest.mark.full
def test_lanczos_steps_find_what_a_full_decomposition_does() -> None:
    X = np.random.default_rng(0).normal(size=(60, 450)) * np.linspace(1, 3, 450)
    X[:, :40] += 4 * np.random.default_rng(1).normal(size=(60, 1))
    M = X - X.mean(axis=0)
    M /= np.linalg.norm(M, axis=0)
    actual = solve(M.T @ M, 2, max_iter=3, tol=0).alpha
    np.testing.assert_allclose(actual, q_alpha(X, 2, 3), atol=1e-9)
    assert set(np.argsort(-actual)[:40]) == set(range(40))


def test_degenerate_data() -> None:
    rng = np.random.default_rng(0)
    wide = np.hstack([rng.normal(size=(9, 30)), np.full((9, 1), 7.0)])
    fitted = QAlpha(31, n_clusters=20).fit(wide)
    assert fitted.get_support().all()
    assert fitted.scores_[30] == fitted.scores_.min() and fitted.ranking_[-1] == 30
    assert np.isfinite(fitted.scores_).all()
    twice = np.repeat(rng.normal(size=(10, 3)), 2, axis=1)
    scores = QAlpha(2, n_clusters=2).fit(twice).scores_
    np.testing.assert_allclose(scores[::2], scores[1::2], atol=1e-8)
    flat = QAlpha(1).fit(np.ones((5, 3)))
    assert flat.ranking_.tolist() == [0, 1, 2]
    assert QAlpha(1).fit(np.arange(4.0)[:, None]).scores_ == pytest.approx([1])


def test_refusals() -> None:
    X = load_iris().data
    for options, message in (
        ({"n_clusters": 0}, "QAlpha: n_clusters must be a whole number of at least 1, or auto"),
        ({"max_iter": 0}, "QAlpha: max_iter must be a number of at least 1. Got 0"),
        ({"tol": 1.0}, "QAlpha: tol must be a number below 1. Got 1"),
    ):
        with pytest.raises(InputError, match=message):
            QAlpha(2, **options).fit(X)


def test_few_rows_give_what_the_matrix_of_features_gives() -> None:
    from bigfs.selectors.one_pass.strategies import q_alpha

    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 450)) + (np.arange(60) % 3)[:, None] * (np.arange(450) < 9)
    X[:, 7] = 0.1
    fitted = QAlpha(9, n_clusters=3).fit(X)
    varies = np.delete(np.arange(450), 7)
    Z = X[:, varies] - X[:, varies].mean(axis=0)
    Z /= np.linalg.norm(Z, axis=0)
    expected = q_alpha(Z.T @ Z, 3)
    np.testing.assert_allclose(fitted.scores_[varies], expected.alpha, rtol=0, atol=1e-12)
    assert fitted.scores_[7] == 0 and fitted.ranking_[-1] == 7
    assert fitted.n_iter_ == len(expected.objective)


@pytest.mark.parametrize("n, d", [(6_000, 6_000), (20_000, 1_000)])
def test_the_cost_names_the_matrices_of_features(n: int, d: int) -> None:
    shape = Shape(n, d, 4, 3_000, 3_000)
    selection = selection_model()(method="q_alpha", n_features_to_select=1)
    strategy = METHODS["q_alpha"].choose(shape, selection)
    assert type(strategy) is FeatureWeights
    cost = strategy.cost()
    assert cost.client_bytes == 5 * 8 * d**2
    assert cost.task_bytes >= 3 * 8 * d**2
    assert f"of {d:,} x {d:,}" in cost.largest.what


@pytest.mark.parametrize("rows", [40, 200])
def test_passes_are_those_of_the_cost(rows: int) -> None:
    blocks = RowBlocks.from_any(load_wine().data, rows=rows)
    strategy = strategy_of("q_alpha", blocks.layout, n_clusters=3)
    before = blocks.passes
    strategy.run(Inputs(blocks), blocks.scratch)
    assert blocks.passes - before == strategy.cost().passes == 1


def test_auto_takes_the_eigengap_from_the_stages_that_the_method_needs() -> None:
    method = METHODS["q_alpha"]
    assert method.needs(QAlphaParameters()) == ()
    assert method.needs(QAlphaParameters(n_clusters="auto")) == ("graph", "spectral")


def test_as_a_run(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "run": str(tmp_path / "run"),
        "input": {"uri": "sklearn:digits"},
        "method": "q_alpha",
        "q_alpha": {"n_clusters": 10},
        "n_features_to_select": 9,
    }
    result = run(config)
    expected = QAlpha(9, n_clusters=10).fit(load_digits().data)
    np.testing.assert_array_equal(result.scores, expected.scores_)


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "X.npy", np.zeros((2100, 2000), dtype=np.float32))
    config = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.npy")},
        "method": "q_alpha",
        "n_features_to_select": 9,
        "memory_limit": "768 MiB",
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(tmp_path / "c.yaml")])
    assert stopped.value.code == 3
    assert "memory_limit" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
