"""Methods on CSR blocks: the scores of the dense form of the same rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse as sp

import bigfs
from bigfs import ingest, open_matrix
from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import BlockReader
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.core.units import GIB
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection
from bigfs.graph import affinity, edges, knn_graph
from bigfs.graph.edges import edge_moments
from bigfs.graph.representation import MOST_PASSES, principal_rows
from bigfs.pipeline.finished import evaluate_result, write_report
from bigfs.pipeline.inspect import inspect
from bigfs.plan.plan import Place, make_plan
from bigfs.plan.planning import plan_pipeline
from bigfs.runtime.connection import local_cluster
from bigfs.selectors.registry import METHODS as METHODS_OF_TABLE
from bigfs.selectors.registry import make_config
from bigfs.selectors.scoring import resolved, stages_of_selection
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores
from bigfs.store.scratch import Scratch
from bigfs.store.source import RandomAccessSource
from tests._counts import counts


@pytest.fixture(scope="module")
def cells() -> Any:
    """Counts with a feature of zeros, a constant one, two equal ones and equal rows."""
    X = counts(240, 60)[0].toarray()
    X[:, 7], X[:, 9], X[:, 11] = 0, 3, X[:, 12]
    X[50:60] = X[50]
    return sp.csr_array(X)


@contextmanager
def never_dense(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(source: RandomAccessSource, *rows: int) -> Any:
        assert not source.sparse, "a block was made dense"
        return source.read_rows(*rows)

    with monkeypatch.context() as patched:
        patched.setattr(RandomAccessSource, "read", refuse)
        yield


METHODS: dict[str, dict[str, Any]] = {
    "max_variance": {},
    "laplacian_score": {},
    "spec": {"spec": {"ranking": "phi3"}},
    "mcfs": {"mcfs": {"n_clusters": 3, "regression": "lasso"}},
    "mcfs omp": {"mcfs": {"n_clusters": 3, "fit_intercept": False}},
    "ndfs": {"ndfs": {"n_clusters": 3, "max_iter": 3}},
    "mcfs plain": {
        "mcfs": {
            "n_clusters": 3,
            "regression": "lasso",
            "fit_intercept": False,
            "coef_scale": "none",
        },
    },
}


GRAPH = {"representation": "pca:10", "n_neighbors": 4}


def _settings(name: str, uri: Path, preprocess: str, **more: Any) -> dict[str, Any]:
    method = name.partition(" ")[0]
    settings = {
        "run": str(uri.parent / "run"),
        "input": {"uri": str(uri)},
        "method": method,
        "preprocess": preprocess,
        "n_features_to_select": 12,
        "curves": False,
        **METHODS[name],
        **more,
    }
    return settings if method == "max_variance" else {**settings, "graph": GRAPH}


@pytest.fixture(scope="module", params=["normalize_log1p", "standardize"])
def engines(
    request: pytest.FixtureRequest, cells: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[Engine]]:
    """A preprocessing, and an engine for CSR blocks and for dense ones."""
    made = []
    for form in (cells, cells.toarray()):
        scratch = Scratch(tmp_path_factory.mktemp("form"))
        blocks = RowBlocks.from_any(
            form, rows=70, sparse=True, scratch=scratch, transform=request.param
        )
        made.append(Engine(TemporaryStages(scratch.child("stages")), blocks))
    return request.param, made


NDFS = pytest.param("ndfs", marks=pytest.mark.full)


@pytest.mark.parametrize("name", [*(name for name in METHODS if name != "ndfs"), NDFS])
def test_scores_are_those_of_the_dense_form(
    name: str, engines: tuple[str, list[Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    preprocess, both = engines
    monkeypatch.setattr("bigfs.stages.stage.is_large", lambda shape: True)
    stages = stages_of_selection(make_config(**_settings(name, Path("/x.npz"), preprocess)))
    with never_dense(monkeypatch):
        sparse, dense = (FeatureScores.open(e.run(stages)["result"]) for e in both)
    assert both[0].blocks is not None and both[0].blocks.sparse
    # float32 rows less their mean are rounded once more than entries.
    close = 1e-6 * np.abs(dense.scores).max()
    np.testing.assert_allclose(sparse.scores, dense.scores, atol=close)
    if name != "max_variance" or preprocess != "standardize":  # else all are equal
        np.testing.assert_array_equal(sparse.support(12), dense.support(12))
    assert sparse.ranking[-1] == (7 if preprocess == "normalize_log1p" else 9)


def test_sums_over_edges_do_not_depend_on_the_groups(cells: Any) -> None:
    graph = knn_graph(cells.toarray(), 4)
    W = affinity(graph, "heat")
    expected = edge_moments(RowBlocks.from_any(cells.toarray(), rows=70), W)
    blocks = RowBlocks.from_any(cells, rows=70, sparse=True)
    first, before = edge_moments(blocks, W), blocks.passes
    actual = edge_moments(blocks, W, 7)
    assert blocks.passes == before + 1
    assert not list(blocks.scratch.path.glob("columns-*")), "scratch is given back"
    for part in ("smoothness", "mean", "spread"):
        values = getattr(actual, part)
        np.testing.assert_allclose(values, getattr(expected, part), rtol=1e-11, atol=1e-11)
        np.testing.assert_array_equal(values, getattr(first, part))
    assert actual.spread[7] == actual.spread[9] == 0


def test_components_are_those_of_the_dense_form(cells: Any, tmp_path: Path) -> None:
    forms = (cells, cells.toarray().astype(np.float32))
    rows = []
    for number, X in enumerate(forms):
        blocks = RowBlocks.from_any(X, rows=70, sparse=True, transform="standardize")
        projected, explained, _ = principal_rows(blocks, 6, 0, Scratch(tmp_path / str(number)))
        rows.append((projected.source.read(0, 240), explained))
        assert blocks.passes <= 2 + MOST_PASSES
    np.testing.assert_allclose(rows[0][0], rows[1][0], atol=1e-2)
    assert rows[0][1] == pytest.approx(rows[1][1], rel=1e-6)


def test_the_components_are_a_stage_with_its_passes(cells: Any, tmp_path: Path) -> None:
    ingest(cells, tmp_path / "X.zarr", rows=70)
    config = make_config(**_settings("laplacian_score", tmp_path / "X.zarr", "normalize_log1p"))
    plan, result = plan_pipeline(config), bigfs.run(config)
    assert list(result.stages) == ["components", "graph", "result"]
    for name, stage in result.stages.items():
        planned = plan.by_stage[name].cost
        assert planned is not None and planned.at_most == (name == "components")
        is_at_most = stage["passes"] < planned.passes and planned.at_most
        assert is_at_most or stage["passes"] == planned.passes


@pytest.mark.parametrize("name", ["mcfs", "mcfs omp", "laplacian_score"])
def test_wide_counts_take_as_many_columns_as_fit(name: str) -> None:
    shape = Shape(100_000, 20_000, 4, 1750, 1750, 112_000_000, 2_100_000)
    config = make_config(
        **_settings(name, Path("/x.npz"), "none", n_features_to_select=500, memory_limit="2 GiB")
    )
    plan = make_plan(stages_of_selection(config), shape, Place(2 * GIB))
    assert plan.fits, plan.refusals


def test_a_group_of_columns_is_read_back_as_it_was(
    cells: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = RowBlocks.from_any(cells, rows=30, sparse=True)
    monkeypatch.setattr(edges, "_SLICE_ENTRIES", 300)  # two blocks in a file
    entries = edges.write_groups(blocks, 7)
    assert 1 < entries.offsets.shape[1] < len(blocks.bounds)
    for group in range(7):
        width = len(range(group, 60, 7))
        actual = edges.read_group(entries, group, 240, width)
        actual.check_format(full_check=True)
        assert actual.has_canonical_format
        np.testing.assert_array_equal(actual.toarray(), cells.toarray()[:, group::7])


@pytest.mark.parametrize("name", METHODS_OF_TABLE)
def test_no_method_makes_large_sparse_data_dense(
    name: str, cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a form for entries, or is refused in one sentence before anything is written."""
    sp.save_npz(tmp_path / "X.npz", cells)
    monkeypatch.setattr("bigfs.store.csr.DENSE_LIMIT_BYTES", 1000)
    settings: dict[str, Any] = {
        "run": str(tmp_path / "run"),
        "input": {"uri": str(tmp_path / "X.npz")},
        "method": name,
        "n_features_to_select": 3,
        "preprocess": "none",
    }
    if not METHODS_OF_TABLE[name].sparse:
        with pytest.raises(InputError, match=f"method '{name}' does not support sparse matrices"):
            bigfs.run(settings)
        assert not (tmp_path / "run").exists()
        return
    if name == "highly_variable":
        settings[name] = {"flavor": "deviance"}
    if "graph" in METHODS_OF_TABLE[name].needs(make_config(**settings).parameters):
        settings["graph"] = GRAPH
    assert plan_pipeline(make_config(**settings)).fits


@pytest.mark.full
def test_selections_of_large_sparse_data_are_judged(
    cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sp.save_npz(tmp_path / "X.npz", cells)
    np.save(tmp_path / "y.npy", np.arange(240) % 3)
    settings: dict[str, Any] = {
        "input": {"uri": str(tmp_path / "X.npz")},
        "preprocess": "normalize_log1p",
        "evaluate": {"labels": str(tmp_path / "y.npy"), "n_repetitions": 2, "n_init": 1},
    }
    single = {**settings, "method": "max_variance", "n_features_to_select": 9, "curves": False}
    several = {**settings, "methods": ["max_variance"], "n_features_to_select": [5, 9]}
    plain = {name: value for name, value in several.items() if name != "evaluate"}

    def judged(place: str) -> tuple[Any, ...]:
        run = {"run": str(tmp_path / place)}
        result = bigfs.run({**single, **run})
        compared = [
            bigfs.compare({**settings, "run": f"{run['run']}-{i}", "compare": {"n_draws": 3}})
            for i, settings in enumerate((several, plain))
        ]
        again = evaluate_result(run["run"], labels=str(tmp_path / "y.npy"), n_repetitions=2)
        return result, *compared, again

    dense = judged("dense")
    monkeypatch.setattr("bigfs.store.csr.DENSE_LIMIT_BYTES", 1000)
    with never_dense(monkeypatch):
        sparse = judged("sparse")
    for own, other in zip(sparse, dense, strict=True):
        if hasattr(own, "rows"):
            assert other.rows[0].method is None
            assert [row.name for row in own.rows] == [row.name for row in other.rows[1:]]
            for row, expected in zip(own.rows, other.rows[1:], strict=True):
                assert row.scores == pytest.approx(expected.scores, abs=1e-6)
            assert own.text()
            continue
        assert set(other.evaluation) - set(own.evaluation) == {"all"}
        assert own.evaluation["selected"] == pytest.approx(other.evaluation["selected"], abs=1e-6)
        assert "selected 9" in own.summary() and "  all" not in own.summary()
    assert write_report(str(tmp_path / "sparse"), None)
    blocks = RowBlocks.from_any(cells, sparse=True)
    with pytest.raises(InputError, match="all 60 features of sparse data"):
        measure_selection(blocks, np.arange(240) % 3, None, Protocol(3), "4 GiB")


def test_kept_rows_of_counts_are_compared_by_components_as_all_are(
    cells: Any, tmp_path: Path
) -> None:
    sp.save_npz(tmp_path / "X.npz", sp.hstack([cells, cells], format="csr"))
    np.save(tmp_path / "q.npy", np.arange(cells.shape[0]))
    settings = {"run": "r", "input": {"uri": "X.npz"}, "n_features_to_select": 3}
    for at_most, representation in ((1000, "pca:50"), (99, "pca:50"), (98, "raw")):
        rows = {"column": str(tmp_path / "q.npy"), "at_most": at_most}
        source = open_matrix(tmp_path / "X.npz", rows=rows)
        assert source.n_samples is None
        config = resolved(make_config(**settings), source)
        assert config.used_graph.representation == representation, at_most


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_part_that_is_no_counts_beside_counts_is_told(
    cells: Any, tmp_path: Path, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, X in (("a", cells), ("b", cells.log1p())):
        sp.save_npz(tmp_path / f"{name}.npz", X)
    source = open_matrix([tmp_path / f"{name}.npz" for name in order])
    settings = {"run": "r", "input": {"uri": "X.npz"}, "n_features_to_select": 3}
    assert (resolved(make_config(**settings), source).preprocess == "none") == (order == "ba")
    [line] = [record.getMessage() for record in caplog.records]
    assert "a.npz holds counts, but" in line and "b.npz does not" in line
    sp.save_npz(tmp_path / "none.npz", sp.csr_array((5, cells.shape[1])))
    resolved(make_config(**settings), open_matrix([tmp_path / "a.npz", tmp_path / "none.npz"]))
    assert len(caplog.records) == 1


def test_auto_normalizes_counts_and_nothing_else(cells: Any, tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "X.npz", sp.hstack([cells, cells], format="csr"))
    source = open_matrix(tmp_path / "X.npz")
    settings = {"run": "r", "input": {"uri": "X.npz"}, "n_features_to_select": 3}
    config = resolved(make_config(**settings), source)
    assert config.preprocess == "normalize_log1p"
    assert config.used_graph.representation == "pca:50"
    for more, representation in (
        ({"graph": {"weight": "cosine"}}, "raw"),
        ({"graph": {"metric": "cosine"}}, "raw"),
        ({"graph": {"representation": "pca:7"}}, "pca:7"),
    ):
        config = resolved(make_config(**settings, **more), source)
        assert config.preprocess == "normalize_log1p"
        assert config.used_graph.representation == representation
    given = resolved(make_config(**settings, preprocess="log1p"), source)
    assert (given.preprocess, given.used_graph.representation) == ("log1p", "raw")
    raw = resolved(make_config(**settings, method="highly_variable"), source)
    assert raw.preprocess == "none"
    for other in (cells.toarray(), cells * 0.5, -cells, sp.csr_array((4, 60))):
        config = resolved(make_config(**settings), open_matrix(other))
        assert (config.preprocess, config.used_graph.representation) == ("none", "raw")


def test_what_auto_did_is_told_and_kept(cells: Any, tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "X.npz", sp.hstack([cells, cells], format="csr"))
    settings = {"run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npz")}}
    settings |= {"method": "laplacian_score", "n_features_to_select": 3, "curves": False}
    result = bigfs.run(settings)
    log_text = "a sum of 10,000, then log1p was applied. Neighbors are computed from 50 principal"
    assert log_text in result.summary() and log_text in inspect(tmp_path / "run")
    assert result.settings["preprocess"] == "normalize_log1p"
    fitted = bigfs.LaplacianScore(3).fit(sp.load_npz(tmp_path / "X.npz"))
    assert fitted.preprocess_ == "normalize_log1p"
    np.testing.assert_array_equal(fitted.scores_, result.scores)


def test_a_comparison_gives_raw_counts_to_the_method_that_takes_them(
    cells: Any, tmp_path: Path
) -> None:
    sp.save_npz(tmp_path / "X.npz", cells)
    deviance = {"method": "highly_variable", "highly_variable": {"flavor": "deviance"}}
    compared = bigfs.compare({
        "run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npz")},
        "methods": [deviance, "max_variance"], "n_features_to_select": 9,
        "compare": {"chance": False},
    })  # fmt: skip
    for row, fitted in zip(
        compared.rows[1:],
        (bigfs.HighlyVariable(9, flavor="deviance"), bigfs.MaxVariance(9)),
        strict=True,
    ):
        np.testing.assert_array_equal(row.selected, fitted.fit(cells).get_support(indices=True))


def test_the_same_bits_whatever_block_ends_first(
    cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve blocks, more than a sum takes at a time, end in order and on threads in reverse."""
    read = BlockReader.read

    def late(reader: BlockReader, start: int, stop: int) -> Any:
        time.sleep((240 - start) / 240 * 0.004)
        return read(reader, start, stop)

    def scores(name: str) -> np.ndarray:
        blocks = RowBlocks.from_any(
            cells, rows=20, sparse=True, scratch=Scratch(tmp_path / name), transform="log1p"
        )
        config = make_config(**_settings("mcfs", Path("/x.npz"), "log1p"))
        finished = Engine(TemporaryStages(blocks.scratch.child("stages")), blocks).run(
            stages_of_selection(config)
        )
        return FeatureScores.open(finished["result"]).scores

    monkeypatch.setattr("bigfs.stages.stage.is_large", lambda shape: True)
    with dask.config.set(scheduler="synchronous"):
        expected = scores("in order")
    monkeypatch.setattr(BlockReader, "read", late)
    with dask.config.set(scheduler="threads", num_workers=8):
        np.testing.assert_array_equal(scores("in reverse"), expected)


@pytest.mark.full
@pytest.mark.cluster
def test_the_same_bits_whatever_the_workers(
    cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    monkeypatch.setattr("bigfs.stages.stage.is_large", lambda shape: True)
    ingest(cells, tmp_path / "X.zarr", rows=26)  # more blocks than a sum takes at a time
    names, one = ["mcfs omp", "laplacian_score", "ndfs"], {"n_clusters": 3, "max_iter": 1}

    def scores(place: str, names: list[str] = names) -> list[np.ndarray]:
        results = []
        for name in names:
            more = {"ndfs": one} if name == "ndfs" else {}
            settings = _settings(name, tmp_path / "X.zarr", "normalize_log1p", **more)
            run = f"{settings['run']}-{settings['method']}-{place}"
            results.append(bigfs.run({**settings, "run": run}).scores)
        return results

    expected = scores("threads")
    for n_workers in (1, 2, 4):
        with local_cluster(n_workers, 1, 4 * GIB) as cluster, Client(cluster):
            # The 40 passes of NDFS take as long as all else; they fold as the others do.
            some = names if n_workers == 4 else names[:2]
            for results, own in zip(
                scores(f"{n_workers}", some), expected[: len(some)], strict=True
            ):
                np.testing.assert_array_equal(results, own)
