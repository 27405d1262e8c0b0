"""SPEC: equal to the sum over all eigenpairs; degenerate data; the same in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris, load_wine

from bigfs import SPEC, LaplacianScore, knn_graph, run
from bigfs.blocks import RowBlocks
from bigfs.core.errors import ConfigError, InputError
from bigfs.graph import affinity
from tests.bench.bench_baselines import prepared
from tests.reference.mcfs import neighbor_affinity
from tests.reference.spec import spec_scores
from tests.selectors._local import inputs_of, strategy_of

RANKINGS = ("phi1", "phi2", "phi3")


def _signed(actual: np.ndarray, ranking: str) -> np.ndarray:
    return actual if ranking == "phi3" else -actual


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("weight", ["binary", "cosine"])
def test_equals_the_dense_reference(ranking: str, weight: str) -> None:
    X = load_digits().data[:400]
    X = X[:, X.std(axis=0) > 0]
    scores = SPEC(5, ranking=ranking, weight=weight).fit(X).scores_
    expected = spec_scores(X, neighbor_affinity(X, 5, weight), ranking)
    np.testing.assert_allclose(_signed(scores, ranking), expected, rtol=1e-6)


@pytest.mark.parametrize("ranking", RANKINGS)
def test_a_graph_of_several_parts(ranking: str) -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(10 * part, 1, (30, 6)) for part in range(3)])
    scores = SPEC(2, ranking=ranking, n_neighbors=3).fit(X).scores_
    expected = spec_scores(X, neighbor_affinity(X, 3), ranking)
    np.testing.assert_allclose(_signed(scores, ranking), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.data
@pytest.mark.parametrize("name", ["UMIST", "glass"])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_equals_the_dense_reference_on_stored_data(data_dir: Path, name: str, ranking: str) -> None:
    with np.load(data_dir / f"{name}.npz") as stored:
        X = prepared(stored["X"])
    scores = SPEC(5, ranking=ranking).fit(X).scores_
    expected = spec_scores(X, neighbor_affinity(X, 5), ranking)
    np.testing.assert_allclose(_signed(scores, ranking), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.cluster
def test_workers_do_not_change_a_bit(tmp_path: Path, client: Any) -> None:
    np.save(tmp_path / "X.npy", load_digits().data)

    def scores() -> np.ndarray:
        blocks = RowBlocks.from_any(tmp_path / "X.npy", rows=300)
        W = affinity(knn_graph(blocks, 5), blocks=blocks)
        inputs = inputs_of(blocks, affinity=W)
        return strategy_of("spec", blocks.layout).run(inputs, blocks.scratch).scores

    spread = scores()
    for n_threads in (1, 2, 4):
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            assert scores().tobytes() == spread.tobytes()


def test_phi2_is_the_laplacian_score() -> None:
    X = load_wine().data
    expected = LaplacianScore(3).fit(X)
    fitted = SPEC(3, ranking="phi2").fit(X)
    np.testing.assert_array_equal(fitted.scores_, expected.scores_)


@pytest.mark.parametrize("ranking", RANKINGS)
def test_degenerate_data(ranking: str) -> None:
    rng = np.random.default_rng(1)
    wide = np.hstack([rng.normal(size=(12, 40)), np.full((12, 1), 3.0)])
    fitted = SPEC(41, ranking=ranking, n_neighbors=3).fit(wide)
    assert fitted.get_support().all()
    assert fitted.scores_[40] == fitted.scores_.min() and fitted.ranking_[-1] == 40
    assert np.isfinite(fitted.scores_).all()
    twice = np.repeat(rng.normal(size=(30, 4)), 2, axis=0)
    assert np.isfinite(SPEC(2, ranking=ranking, n_neighbors=4).fit(twice).scores_).all()
    with pytest.raises(InputError, match="n_neighbors"):
        SPEC(2, ranking=ranking, n_neighbors=6).fit(rng.normal(size=(4, 3)))


def test_bad_ranking() -> None:
    with pytest.raises(InputError, match="phi1, phi2, phi3. Got 'phi4'"):
        SPEC(2, ranking="phi4").fit(load_iris().data)


def test_as_a_run(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "run": str(tmp_path / "run"),
        "input": {"uri": "sklearn:digits"},
        "method": "spec",
        "spec": {"ranking": "phi1"},
        "graph": {"n_neighbors": 7},
        "n_features_to_select": 9,
    }
    result = run(config)
    expected = SPEC(9, ranking="phi1", n_neighbors=7).fit(load_digits().data)
    np.testing.assert_array_equal(result.scores, expected.scores_)
    np.testing.assert_array_equal(result.selected, expected.get_support(indices=True))
    with pytest.raises(ConfigError, match="does not use 'spec'"):
        run({**config, "method": "max_variance", "graph": None})
