"""The comparators on four workers: the bits of one process."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
from sklearn.datasets import load_digits

from bigfs import MCFS, SPEC, UDFS, ColumnSubset, LaplacianScore, PivotedQR, QAlpha, RandomSelection
from bigfs.blocks import RowBlocks
from bigfs.runtime.connection import local_cluster
from bigfs.selectors.picks.strategies import RowSketch
from bigfs.selectors.scoring import stages_of_selection
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores
from bigfs.store.scratch import Scratch

SELECTORS = [
    *(SPEC(5), SPEC(5, ranking="phi3"), QAlpha(5), LaplacianScore(5), UDFS(5)),
    *(MCFS(20, regression="omp"), ColumnSubset(20), PivotedQR(20), PivotedQR(20, n_components=20)),
    RandomSelection(20),
]


@pytest.mark.cluster
def test_four_workers_do_not_change_a_bit(tmp_path: Path) -> None:
    from distributed import Client

    np.save(tmp_path / "X.npy", load_digits().data)

    def scores() -> list[bytes]:
        blocks = RowBlocks.from_any(tmp_path / "X.npy", rows=150)
        results = []
        for selector in SELECTORS:
            scratch = Scratch()
            stages = stages_of_selection(selector._selection())
            finished = Engine(TemporaryStages(scratch), blocks).run(stages)
            results.append(FeatureScores.open(finished["result"]).scores.tobytes())
        rows = RowSketch(blocks.layout, 40, 64).read(blocks, 0)
        return [*results, rows.tobytes()]

    with dask.config.set(scheduler="synchronous"):
        expected = scores()
    with local_cluster(4, 1, 2**30) as cluster, Client(cluster) as client:
        client.wait_for_workers(4, timeout=60)
        assert scores() == expected
