"""The engine: what holds for every stage that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info

from bigfs.core.cost import StageCost, Step
from bigfs.core.errors import MemoryLimitError
from bigfs.core.units import GIB
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.stage import Inputs, Stage, unplanned_stage
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


def test_what_does_not_fit_is_refused_before_any_stage_runs(tmp_path: Path) -> None:
    ran: list[str] = []

    @dataclass
    class Needing:
        needed: int

        def cost(self) -> StageCost:
            return StageCost((Step(f"{self.needed:,} bytes", self.needed),))

        def run(self, inputs: Inputs, out: Scratch) -> None:
            ran.append("ran")

    stages = [
        Stage(str(size), 1, {}, lambda shape, size=size: Needing(size)) for size in (1, 2 * GIB, 9)
    ]
    engine = Engine(TemporaryStages(Scratch(tmp_path)), None, memory_limit=GIB)
    with pytest.raises(MemoryLimitError, match=f"Stage '{2 * GIB}'"):
        engine.run(stages)
    assert not ran
