"""Whoever calls a fit, it ends and selects the same: each way of calling, with a time limit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bigfs.selectors.registry import METHODS
from tests.cluster._callers import CALLERS
from tests.cluster._processes import REPO

# Of one way each: on the data alone, by a graph, by searches, of fits, of graphs.
SOME = ("max_variance", "ndfs", "lfs", "stability", "graph")
EVERY = (*METHODS, "stability", "graph")
# A fit that has tasks, and fits within which others are started: what can wait for ever.
FEW = ("ndfs", "stability")
ALL = ("task", "fork", "joblib threading")
REFUSED = "asynchronous client"
# Callers that share a process, one after the other: what one leaves must not disturb the next.
TOGETHER = (
    ("threads", "dask threads", "dask synchronous", "dask pool", "dask pool of multiprocessing",
     "dask executor", "map_blocks", "map_partitions", "asyncio"),
    ("task, same process", "tasks, same process", "nested task, same process",
     "coroutine, same process", "dask data, same process"),
    ("threads within a client", "map_blocks within a client", "map_partitions within a client",
     "asyncio within a client", "joblib dask"),
    ("nested task", "threads of a task", "coroutine on a worker", "task on dask data"),
    ("asynchronous client, thread", "asynchronous client, submit"),
)  # fmt: skip
ALONE = tuple(
    (name,) for name in CALLERS if name != REFUSED and not any(name in some for some in TOGETHER)
)


def run(callers: tuple[str, ...], *names: str) -> subprocess.CompletedProcess[str]:
    """Run the fits in a process of their own."""
    modes = "/".join(callers)
    command = [sys.executable, "-W", "ignore", "-m", "tests.cluster._callers", modes, *names]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=540)


@pytest.mark.parametrize(
    ("callers", "names"),
    [
        *(
            (c, EVERY if c[0] in ALL else FEW if c in TOGETHER else ("ndfs",))
            for c in (*TOGETHER, *ALONE)
        ),
        *(pytest.param(c, SOME, marks=pytest.mark.slow) for c in (*TOGETHER, *ALONE)),
    ],
    ids=lambda of: of[0] if of[0] in CALLERS else str(len(of)),
)
def test_a_fit_ends_with_the_same_result(callers: tuple[str, ...], names: tuple[str, ...]) -> None:
    ran = run(callers, *names)
    assert ran.returncode == 0, ran.stderr
    expected = [f"{caller}: {name}" for caller in callers for name in names]
    assert ran.stdout.splitlines() == expected, ran.stderr


def test_an_asynchronous_client_is_refused_in_its_own_thread() -> None:
    ran = run((REFUSED,), "max_variance")
    assert ran.returncode == 1
    assert "InputError: The Dask client in scope is asynchronous" in ran.stderr
    assert "asyncio.to_thread(selector.fit, X)" in ran.stderr
