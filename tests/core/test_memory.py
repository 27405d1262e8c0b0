from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfs.core import memory
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import (
    SMALLEST_LIMIT_BYTES,
    check_fits,
    limit_for,
    peak_bytes,
    reset_peak,
    task_budget,
)
from bigfs.core.units import GIB, MIB, parse_bytes


def test_budget_leaves_room_for_the_worker_itself():
    assert task_budget(4 * GIB) == int(0.65 * 4 * GIB) - 370 * MIB
    assert task_budget(4 * GIB, compiled=True) == int(0.65 * 4 * GIB) - 590 * MIB


def test_a_limit_below_what_imports_take_is_refused():
    with pytest.raises(MemoryLimitError, match="at least 768 MiB.*Got 512 MiB"):
        task_budget(512 * MIB)


@given(st.integers(1, 2**42), st.booleans())
def test_the_limit_that_is_named_would_do(needed, compiled):
    limit = limit_for(needed, compiled=compiled)
    assert limit >= SMALLEST_LIMIT_BYTES
    assert task_budget(limit, compiled=compiled) >= needed


def test_refusal_names_stage_need_limit_and_remedy():
    with pytest.raises(MemoryLimitError) as caught:
        check_fits("graph", 5 * GIB, 4 * GIB, "the index")
    message = str(caught.value)
    assert message.startswith("Stage 'graph' needs 5 GiB for the index; a memory_limit of 4 GiB")
    named = message.partition("Set memory_limit to '")[2].partition("'")[0]
    check_fits("graph", 5 * GIB, parse_bytes(named), "the index")


def test_libraries_count_though_the_kernel_has_taken_their_pages(monkeypatch):
    sizes = {"VmRSS": 500 * MIB, "RssFile": 150 * MIB}
    monkeypatch.setattr(memory, "_status_bytes", sizes.get)
    monkeypatch.setattr(memory, "_largest_mapped", 0)
    assert memory.warmed_bytes(("zarr",)) == 500 * MIB
    sizes |= {"VmRSS": 460 * MIB, "RssFile": 40 * MIB}  # 110 MiB less mapped, 70 MiB more arrays
    assert memory.warmed_bytes(("zarr",)) == 570 * MIB
    sizes.clear()  # no such figures: not Linux
    monkeypatch.setattr(memory, "_largest_mapped", 0)
    assert memory.warmed_bytes(()) == 0


def test_a_machine_has_what_its_control_groups_leave(tmp_path: Path) -> None:
    assert 0 < memory.machine_bytes() <= psutil.virtual_memory().total
    for name, limit in (("job", "3000"), ("job/step", "max"), ("memory/old", "2000")):
        (tmp_path / "groups" / name).mkdir(parents=True)
        file = "memory.limit_in_bytes" if name.startswith("memory") else "memory.max"
        (tmp_path / "groups" / name / file).write_text(f"{limit}\n")
    for text, limits in (("0::/job/step\n", [3000]), ("5:cpu:/job\n4:memory:/old\n", [2000])):
        (tmp_path / "cgroup").write_text(text)
        assert memory._group_limits(tmp_path / "cgroup", tmp_path / "groups") == limits
    assert memory._group_limits(tmp_path / "none", tmp_path) == []


@pytest.mark.memory
def test_peak_is_that_of_the_work_since_the_reset():
    reset_peak()
    before = peak_bytes()
    np.ones(64 * MIB // 8).sum()
    during = peak_bytes()
    reset_peak()
    assert during - before > 56 * MIB
    assert during - peak_bytes() > 56 * MIB
