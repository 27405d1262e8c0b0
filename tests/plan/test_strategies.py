"""Runs use the strategies of their plans, and at most the planned passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigfs
from bigfs.core.errors import MemoryLimitError
from bigfs.plan.plan import Place
from bigfs.plan.planning import Header, plan_of, plan_pipeline
from bigfs.selectors.registry import METHODS, make_config

GIB = 2**30
# Settings with which a run of a few hundred rows takes a moment.
CHEAP: dict[str, dict[str, Any]] = {
    "mcfs": {"n_clusters": 2},
    "ndfs": {"n_clusters": 2, "max_iter": 2},
    "udfs": {"n_clusters": 2, "max_iter": 2},
    "q_alpha": {"n_clusters": 2, "max_iter": 5},
    "m3fs": {"n_init": 1, "init": "kmeans", "C": 1.0},
    "maximum_margin_clustering": {"n_init": 1, "C": 1.0},
    "fsgmm": {"n_clusters": 2, "max_iter": 4},
    "lfs": {"n_clusters": 2, "n_init": 1, "max_iter": 3, "drop": "many"},
    "gfs_kmeans": {"n_clusters": 2, "n_init": 1, "max_iter": 3},
    "highly_variable": {"flavor": "deviance"},  # the others need the extra anndata
}
SHAPES = {"tall": (300, 8, None), "several blocks": (300, 8, 100), "wide": (30, 60, None)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", SHAPES)
def test_the_planned_strategy_runs_with_at_most_the_planned_passes(
    method: str, kind: str, tmp_path: Path
) -> None:
    n, d, rows = SHAPES[kind]
    if kind == "wide" and method in ("lfs", "gfs_kmeans"):
        d = 12  # a search drops features one by one
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) + 6 * (np.arange(n) % 2)[:, None] * (np.arange(d) < 3)
    X -= X.min()  # some methods are for counts
    bigfs.ingest(X, tmp_path / "X.zarr", rows=rows)
    own = {method: CHEAP[method]} if method in CHEAP else {}
    config = make_config(
        run=str(tmp_path / "run"),
        input={"uri": str(tmp_path / "X.zarr")},
        method=method,
        n_features_to_select=3,
        blocks={"rows": rows},
        **own,
    )
    planned = plan_pipeline(config).by_stage
    for name, record in bigfs.run(config).stages.items():
        strategy = getattr(planned[name].strategy, "strategy", planned[name].strategy)
        assert record["strategy"] == type(strategy).__name__
        assert record["passes"] <= planned[name].cost.passes, name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit", [1, 4, 16])
def test_every_shape_has_a_strategy_that_fits_or_a_refusal(method: str, limit: int) -> None:
    """The cost is that of the strategy which is chosen, on a grid of shapes."""
    config = make_config(
        run="runs/none",
        input={"uri": "none.npy"},
        method=method,
        n_features_to_select=10,
        memory_limit=f"{limit} GiB",
    )
    for n in (10**3, 10**5, 10**7):
        for d in (20, 1000, 30_000):
            chunk = max(1, 16 * 10**6 // (d * 4))
            header = Header(n, d, 4, chunk, stored=True, exact=True)
            plan = plan_of(config, header, Place(limit * GIB))
            for stage in plan.stages:
                if stage.strategy is None:
                    assert stage.refusal
                else:
                    assert stage.strategy.cost() == stage.cost
            if not plan.fits:
                with pytest.raises(MemoryLimitError):
                    plan.check()


@pytest.mark.parametrize(
    ("n", "d", "limit", "strategy", "passes", "task_mib"),
    [
        # 500 products with X'X for each of the solves, each a pass.
        (1_000_000, 20_000, 4, "ConjugateGradients", 15_000, 50),
        # X Delta^-1 X' beside X in float64.
        (8_000, 50_000, 8, "Woodbury", 30, 8 * 8_000 * 50_000 // 2**20),
    ],
)
def test_the_cost_of_ndfs_is_that_of_the_solver_that_is_chosen(
    n: int, d: int, limit: int, strategy: str, passes: int, task_mib: int
) -> None:
    config = make_config(
        run="runs/none",
        input={"uri": "none.npy"},
        method="ndfs",
        n_features_to_select=10,
        memory_limit=f"{limit} GiB",
    )
    header = Header(n, d, 4, max(1, 16 * 10**6 // (d * 4)), stored=True, exact=True)
    planned = plan_of(config, header, Place(limit * GIB)).by_stage["result"]
    assert type(planned.strategy.strategy).__name__ == strategy
    assert passes < planned.cost.passes
    needed = max(planned.cost.task_bytes, planned.cost.client_bytes)
    assert task_mib * 2**20 < needed < limit * GIB
