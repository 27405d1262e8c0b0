"""The engine: what holds for every stage that it runs."""

from __future__ import annotations

from pathlib import Path

from threadpoolctl import threadpool_info

from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.stage import Inputs, unplanned_stage
from bigfs.store.scratch import Scratch


def test_what_the_client_does_in_a_stage_has_one_thread(tmp_path: Path) -> None:
    """With more, sums are rounded otherwise, and the result depends on the machine's cores."""
    threads: list[int] = []

    def compute(inputs: Inputs, out: Scratch) -> None:
        pools = threadpool_info()
        threads.extend(pool["num_threads"] for pool in pools if pool["user_api"] == "blas")

    stage = unplanned_stage("count", 1, {}, compute)
    Engine(TemporaryStages(Scratch(tmp_path)), None).run([stage])
    assert threads
    assert set(threads) == {1}
