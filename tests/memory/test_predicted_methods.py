"""Predicted against measured memory of every strategy of every method; see _measure.py."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.core.cost import StageCost
from bigfs.runtime.connection import local_cluster
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.scope import inline
from bigfs.selectors.fsgmm.strategies import MixtureFit
from bigfs.selectors.gfs_kmeans.strategies import GlobalSearch
from bigfs.selectors.highly_variable.strategies import ClippedVariances, Deviances
from bigfs.selectors.lfs.strategies import LocalSearch
from bigfs.selectors.m3fs.strategies import MarginSearch, NormsOfRule, SampledRows
from bigfs.selectors.mcfs.strategies import (
    ForwardOnColumns,
    ForwardOnGram,
    ForwardOnRows,
    FullGram,
    ScreenedColumns,
)
from bigfs.selectors.mcfs.wide import lars_task
from bigfs.selectors.ndfs import solve
from bigfs.selectors.ndfs.strategies import Cholesky, ConjugateGradients, Woodbury
from bigfs.selectors.one_pass.strategies import (
    Draws,
    EdgeScores,
    FeatureWeights,
    Variances,
    WeightsOfFewRows,
)
from bigfs.selectors.picks.strategies import Picks, PicksOnGram, PicksOnRows, PicksOnSketch
from bigfs.selectors.registry import METHODS, selection_model
from bigfs.selectors.udfs.strategies import ProjectionOfFewRows, SparseProjection
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch
from tests.memory._measure import LIMIT, Place, hold_to_the_bar

pytestmark = [pytest.mark.memory, pytest.mark.cluster]


def labels(path: Path, n_clusters: int) -> np.ndarray:
    """Return labels of all rows, none of them good."""
    return np.arange(len(np.load(path, mmap_mode="r"))) % n_clusters


def centers(path: Path, n_clusters: int) -> np.ndarray:
    """Return rows that lie far apart."""
    X = np.load(path).astype(np.float64)
    chosen, nearest = [0], np.full(len(X), np.inf)
    for _ in range(n_clusters - 1):
        nearest = np.minimum(nearest, ((X - X[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(nearest.argmax()))
    return X[chosen]


def center_and_nothing(path: Path, n_clusters: int) -> np.ndarray:
    """Return a center for all rows, and others that are far from all of them."""
    X = np.load(path)
    apart = 1e3 * (1 + np.arange(n_clusters - 1))[:, None]
    return np.vstack(
        [X.mean(axis=0, dtype=np.float64), np.broadcast_to(apart, (n_clusters - 1, X.shape[1]))]
    )


@dataclass(frozen=True)
class Case:
    """Data and settings under which a method takes a strategy.

    Attributes
    ----------
    strategy : type
    method : str
    n, d : int
        Shape of the data.
    parameters : dict
        Of the method; a function for ``init`` gets the data and the number of clusters.
    rows : int or None, default=None
        Rows of a block.
    n_selected : int, default=20
    alone : bool, default=False
        In one process, as a client without workers; else on a cluster of one worker.
    forced : bool, default=False
        The strategy is made for data for which the method would choose a faster one.
    stored : bool, default=False
        In a store: another file is checked as it is opened, and its moments are known by then.
    sparse : bool, default=False
        In a store of CSR blocks, 100 entries a row.
    empty : bool, default=False
        Dense, and nearly all zeros.
    """

    strategy: type
    method: str
    n: int
    d: int
    parameters: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    n_selected: int = 20
    alone: bool = False
    forced: bool = False
    stored: bool = False
    sparse: bool = False
    empty: bool = False

    def settings(self, path: Path) -> dict[str, Any]:
        """Return the settings of the selection."""
        own = dict(self.parameters)
        if callable(own.get("init")):
            own["init"] = own["init"](path, own["n_clusters"])
        sections = {self.method: own} if own else {}
        return {
            "method": self.method,
            "n_features_to_select": self.n_selected,
            "memory_limit": LIMIT,
            **sections,
        }

    def __str__(self) -> str:
        """Return the test's name."""
        where = "-alone" if self.alone else "-csr" if self.sparse else ""
        where += "-empty" if self.empty else ""
        return f"{self.method}-{self.strategy.__name__}-{self.n}x{self.d}{where}"


_NDFS = {"n_clusters": 10, "init": labels, "max_iter": 2}
_MARGIN = {"n_clusters": 2, "init": labels, "max_iter": 3}
_M3FS = {**_MARGIN, "criterion": "objective"}
_LFS = {"n_clusters": 3, "init": centers, "drop": "many", "max_iter": 5}
_LASSO = {"n_clusters": 5, "regression": "lasso"}
_OMP = {"n_clusters": 5, "regression": "omp"}
_DEVIANCE = {"flavor": "deviance"}
_FEW = {"n_clusters": 5, "max_iter": 2}

CASES = (
    Case(FullGram, "mcfs", 4_000, 2_000, _LASSO, rows=500),
    Case(ForwardOnGram, "mcfs", 4_000, 2_000, _OMP, rows=500),
    Case(Variances, "max_variance", 60_000, 1_000, rows=20_000, stored=True),
    Case(Variances, "max_variance", 80_000, 2_000, rows=40_000, sparse=True),
    # Here the moments themselves are what a fold holds.
    Case(Variances, "max_variance", 300, 200_000, rows=40, stored=True),
    Case(Deviances, "highly_variable", 80_000, 2_000, _DEVIANCE, rows=40_000, sparse=True),
    Case(ClippedVariances, "highly_variable", 80_000, 2_000, rows=40_000, sparse=True),
    Case(Draws, "random_selection", 60_000, 1_000, rows=20_000, stored=True),
    Case(PicksOnGram, "column_subset", 4_000, 2_000, rows=500),
    Case(PicksOnGram, "pivoted_qr", 4_000, 2_000, {"n_components": 10}, rows=500),
    Case(PicksOnRows, "column_subset", 800, 20_000, alone=True),
    Case(EdgeScores, "spec", 40_000, 1_000, stored=True),
    Case(EdgeScores, "laplacian_score", 40_000, 1_000, stored=True),
    Case(EdgeScores, "laplacian_score", 300, 200_000, rows=40, stored=True),
    Case(Woodbury, "ndfs", 3_000, 8_000, _NDFS, forced=True),  # as tasks
    Case(Woodbury, "ndfs", 3_000, 8_000, _NDFS, alone=True),
    Case(Cholesky, "ndfs", 4_000, 2_000, _NDFS, alone=True),
    Case(Woodbury, "ndfs", 1_500, 5_000, _NDFS, alone=True),
    Case(FeatureWeights, "q_alpha", 4_000, 2_000, _FEW, alone=True),
    Case(SparseProjection, "udfs", 300, 2_000, {**_FEW, "gamma": 0.0}, alone=True),
    Case(ProjectionOfFewRows, "udfs", 1_000, 4_000, _FEW, alone=True),
    Case(MarginSearch, "m3fs", 60_000, 500, _M3FS),
)
# Full ones: counts of cells, rows of zeros, and 64 blocks, of which seven finished folds wait for
# the last one.
COUNTS = (
    Case(FullGram, "mcfs", 6_400, 2_000, _LASSO, rows=100),
    Case(EdgeScores, "laplacian_score", 80_000, 2_000, rows=20_000, sparse=True),
    Case(Woodbury, "ndfs", 1_500, 5_000, _NDFS, alone=True, empty=True),
    Case(ScreenedColumns, "mcfs", 80_000, 5_000, _LASSO, rows=20_000, sparse=True),
    Case(ForwardOnColumns, "mcfs", 80_000, 5_000, _OMP, rows=20_000, sparse=True, forced=True),
    Case(ForwardOnRows, "mcfs", 80_000, 5_000, _OMP, rows=40_000, sparse=True),
    Case(
        ConjugateGradients,
        "ndfs",
        80_000,
        5_000,
        {**_NDFS, "init": lambda path, n_clusters: np.arange(80_000) % n_clusters},
        rows=20_000,
        sparse=True,
    ),
)
LONG = (
    Case(ScreenedColumns, "mcfs", 2_000, 20_000, _LASSO),
    Case(ForwardOnColumns, "mcfs", 2_000, 20_000, _OMP, n_selected=50),
    Case(PicksOnSketch, "column_subset", 3_000, 20_000, forced=True),
    Case(PicksOnSketch, "pivoted_qr", 3_000, 20_000, {"n_components": 10}, forced=True),
    Case(Cholesky, "ndfs", 40_000, 500, _NDFS),
    Case(Cholesky, "ndfs", 12_000, 2_000, _NDFS),
    Case(ConjugateGradients, "ndfs", 3_000, 30_000, _NDFS, forced=True),
    Case(WeightsOfFewRows, "q_alpha", 1_200, 8_000, _FEW, alone=True),
    Case(SparseProjection, "udfs", 8_000, 1_000, _FEW, alone=True),
    Case(MarginSearch, "m3fs", 4_000, 2_000, _M3FS, n_selected=2_000),
    Case(MarginSearch, "m3fs", 10_000, 3_000, {**_M3FS, "init": "kmeans", "n_init": 1}),
    Case(SampledRows, "m3fs", 12_000, 2_000, {**_M3FS, "sample_size": 4_000}, n_selected=2_000),
    Case(NormsOfRule, "maximum_margin_clustering", 40_000, 500, _MARGIN),
    Case(NormsOfRule, "maximum_margin_clustering", 4_000, 2_000, {**_MARGIN, "n_clusters": 5}),
    Case(
        SampledRows, "maximum_margin_clustering", 20_000, 1_600, {**_MARGIN, "sample_size": 16_000}
    ),
    Case(MixtureFit, "fsgmm", 500, 20_000, {"n_clusters": 8, "max_iter": 1}),
    Case(LocalSearch, "lfs", 20_000, 300, {**_LFS, "init": "k-means++", "n_init": 1}),
    Case(LocalSearch, "lfs", 20_000, 300, _LFS, rows=2_000),
    Case(
        LocalSearch,
        "lfs",
        30_000,
        300,
        {**_LFS, "max_iter": 2, "sample_size": 24_000},
        rows=3_000,
    ),
    Case(
        GlobalSearch,
        "gfs_kmeans",
        4_000_000,
        6,
        {**_FEW, "n_clusters": 2, "init": center_and_nothing},
        rows=2_000_000,
        n_selected=2,
    ),
)


def strategies() -> dict[str, set[type]]:
    """Return the strategies that each method has, by its name."""
    results: dict[str, set[type]] = {}
    for name, method in METHODS.items():
        module = importlib.import_module(f"{method.module}.strategies")
        results[name] = {
            value
            for _, value in inspect.getmembers(module, inspect.isclass)
            if not inspect.isabstract(value) and {"cost", "run"} <= set(dir(value))
        }
    return results


def test_every_strategy_of_every_method_is_in_the_table() -> None:
    results = strategies()  # methods of a family share them
    cases = (*CASES, *COUNTS, *LONG)
    assert set().union(*results.values()) == {case.strategy for case in cases}
    assert all(case.strategy in results[case.method] for case in cases)
    assert results.keys() == METHODS.keys() and all(results.values())


def _stages(case: Case, place: Place, selection: Selection, blocks: RowBlocks) -> dict[str, Any]:
    """Store what the stages before the method would, and return the folders."""
    needs = METHODS[case.method].needs(selection.parameters)
    finished = {}
    if "graph" in needs:
        finished["graph"] = place.graph_stage(case.n, selection.used_graph.n_neighbors)
    if "spectral" in needs:
        n_components = selection.parameters.n_clusters
        finished["spectral"] = place.spectral_stage(case.n, n_components, blocks.rows)
    return finished


def _strategy(case: Case, settings: dict[str, Any], blocks: RowBlocks) -> Any:
    selection = selection_model()(**settings)
    strategy = METHODS[case.method].choose(blocks.layout, selection)
    if case.forced:
        rule = [strategy.rule] if isinstance(strategy, Picks) else []
        return case.strategy(blocks.layout, selection, *rule)
    assert type(strategy) is case.strategy
    return strategy


def _alone(case: Case, settings: dict[str, Any], path: Path, finished: dict[str, Any]) -> None:
    """Run a strategy in this process as a client without workers does."""
    with inline():
        blocks = RowBlocks.from_any(path, rows=case.rows)
        _strategy(case, settings, blocks).run(Inputs(blocks, finished), Scratch())


@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        *(pytest.param(case, marks=pytest.mark.full) for case in COUNTS),
        *(pytest.param(case, marks=pytest.mark.slow) for case in LONG),
    ],
    ids=str,
)
def test_measured_is_within_predicted(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    if case.strategy is ClippedVariances:
        pytest.importorskip("skmisc", reason="the extra bigfs[anndata] is not installed")
    # Conjugate gradients need not be exact for their memory.
    monkeypatch.setattr(solve, "CG_TOL", 0.5)
    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster) as client:
        place = Place(tmp_path)
        make = place.stored_blocks if case.stored else place.blocks
        make = place.sparse_blocks if case.sparse else make
        make = place.empty_blocks if case.empty else make
        blocks = make(case.n, case.d, rows=case.rows)
        settings = case.settings(tmp_path / "X.npy")
        finished = _stages(case, place, selection_model()(**settings), blocks)
        strategy = _strategy(case, settings, blocks)
        alone = (_alone, case, settings, tmp_path / "X.npy", finished)

        def work() -> None:
            if case.alone:
                client.submit(*alone).result()
            else:
                strategy.run(Inputs(blocks, finished), place.scratch().child("result"))

        hold_to_the_bar(strategy.cost(), work, alone=case.alone)


def test_a_path_on_a_gram_matrix(tmp_path: Path) -> None:
    """The other step of FullGram: in the cost of a stage, its fold of Gram matrices is larger."""
    from distributed import Client

    d = 3600
    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        place = Place(tmp_path)
        scratch, rng = place.scratch(), np.random.default_rng(0)
        blocks = place.blocks(400, d)
        A = rng.standard_normal((400, d))
        gram = scratch.put("gram", A.T @ A + np.eye(d))
        xty = scratch.put("xty", rng.standard_normal((d, 2)))
        selection = selection_model()(
            method="mcfs", n_features_to_select=20, memory_limit=LIMIT, mcfs={"regression": "lasso"}
        )
        [path] = [
            step
            for step in METHODS["mcfs"].choose(blocks.layout, selection).cost().steps
            if step.what.startswith("a path")
        ]
        work: Callable[[], Any] = lambda: run_tasks(  # noqa: E731
            lars_task, [0], gram, xty, 20, label="paths"
        )
        hold_to_the_bar(StageCost((path,)), work)
