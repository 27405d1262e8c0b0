from __future__ import annotations

import io
import logging
import re
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bigfs import FSGMM, NDFS, UDFS, KNeighborsTransformer, MaxVariance, QAlpha
from bigfs.core.errors import InputError
from bigfs.runtime import progress
from bigfs.runtime.progress import LogReporter, SilentReporter, Work, in_stage, showing, track


def _figures(done: int, total: int | None, seconds: float, note: str = "", unit="blocks") -> str:
    work = Work("graph", total, unit, SilentReporter(), done=done, note=note)
    return work.figures(seconds)


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (3, 10, 2.0, "3/10 blocks (30 %), 1.5 blocks/s, 4.7 s left"),
        (3, None, 2.0, "3 blocks, 1.5 blocks/s"),
        (0, 10, 2.0, "0/10 blocks (0 %), 0 blocks/s"),
        (0, 10, 0.0, "0/10 blocks (0 %), 0 blocks/s"),
    ],
)
def test_line(done, total, seconds, line):
    assert _figures(done, total, seconds) == line
    assert _figures(done, total, seconds, "objective 1.2") == f"{line}, objective 1.2"
    assert _figures(0, 1, 2.0, "round 3, residual 1e-4", unit="") == "round 3, residual 1e-4"


def test_what_an_earlier_run_did_says_nothing_of_the_rate():
    work = Work("ndfs", 30, "iterations", SilentReporter())
    work.resume(20)
    work.advance(5)
    assert work.figures(5.0) == "25/30 iterations (83 %), 1 iterations/s, 5.0 s left"


def test_long_work_speaks_every_interval(caplog, monkeypatch):
    monkeypatch.setattr(LogReporter, "interval_seconds", 0.0)
    with caplog.at_level(logging.INFO, "bigfs"), in_stage("graph"), track("merge", 2) as work:
        work.advance(1)
        work.advance(1)
    assert [message.split(",")[1] for message in caplog.messages] == [
        " merge: 1/2 blocks (50 %)",
        " merge: 2/2 blocks (100 %)",
        " merge: done",
    ]


def _slow_work(seconds: float = 0.2) -> None:
    with in_stage("graph"), track("neighbors", 4, "partitions") as work:
        for _ in range(4):
            time.sleep(seconds / 4)
            work.advance(1, note="objective 3")


def test_a_fit_says_how_far_it_is_after_two_seconds_in_log_records(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "bigfs")
    assert progress.FIRST_SECONDS == 2
    with showing("MCFS"):
        _slow_work(0)
    assert [m.split(":")[1].split(",")[0] for m in caplog.messages] == [" done"], "no line yet"
    caplog.clear()
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    with showing("MCFS"):
        _slow_work()
    log_text = caplog.messages[0]
    assert re.fullmatch(
        r"graph, neighbors: 1/4 partitions \(25 %\), [\d.]+ partitions/s, [\d.]+ s left, "
        "objective 3",
        log_text,
    ), log_text
    assert len(caplog.messages) == 2, "the next one after ten seconds"


def test_verbose_0_is_silent(caplog, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "bigfs")
    with showing("MCFS", 0):
        _slow_work()
    assert not caplog.messages
    X = np.random.default_rng(0).normal(size=(30, 4))
    MaxVariance(2, verbose=0).fit(X)
    KNeighborsTransformer(3, verbose=0).fit(X)
    assert not caplog.messages
    MaxVariance(2).fit(X)
    assert caplog.messages
    for bad in (-1, "1", None):
        with pytest.raises(InputError, match="MaxVariance: verbose must be a whole number"):
            MaxVariance(2, verbose=bad).fit(X)


def test_on_a_terminal_a_bar_comes_after_two_seconds_and_goes(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with showing("MCFS"):
        _slow_work(0)
    assert sys.stderr.getvalue() == "", "short work shows nothing"
    with showing("MCFS"):
        _slow_work(0.8)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stderr.getvalue())
    assert "graph, neighbors" in shown and "partitions/s" in shown and "objective 3" in shown
    assert sys.stderr.getvalue().endswith("\x1b[2K"), "and is taken away"


def test_in_a_notebook_one_line_is_drawn_anew(monkeypatch):
    shown: list[dict[str, str]] = []

    class Handle:
        def display(self, data: dict[str, str], raw: bool) -> None:
            shown.append(data)

        update = display

    shell = SimpleNamespace(kernel=object())
    modules: dict[str, Any] = {
        "IPython": SimpleNamespace(get_ipython=lambda: shell),
        "IPython.display": SimpleNamespace(DisplayHandle=Handle),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(progress, "_DRAW_SECONDS", 0.0)
    with showing("MCFS"):
        _slow_work(0.4)
    assert shown[0]["text/plain"].startswith("MCFS: graph, neighbors: ")
    assert '<progress value="4" max="4"></progress>' in shown[-2]["text/html"]
    assert list(shown[-1]) == ["text/plain"]
    assert re.fullmatch(r"MCFS: \d\.\d s", shown[-1]["text/plain"])


@pytest.mark.parametrize(
    "selector",
    [
        NDFS(2, n_clusters=2, max_iter=4, tol=0),
        UDFS(2, n_clusters=2, max_iter=3),
        QAlpha(2, n_clusters=2),
        FSGMM(2, n_clusters=2, max_iter=4),
    ],
    ids=lambda selector: type(selector).__name__,
)
def test_iterations_show_their_objective(selector, caplog, monkeypatch):
    monkeypatch.setattr(LogReporter, "interval_seconds", 0.0)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "bigfs")
    X = np.random.default_rng(0).normal(size=(60, 4)) + 5 * (np.arange(60) % 2)[:, None]
    selector.fit(X)
    pattern = r"^result, \w+: \d+/\d+ (iterations|passes) .*(objective|message length) -?[\d.e+-]+$"
    assert any(re.match(pattern, message) for message in caplog.messages), caplog.messages
