from __future__ import annotations

import logging

import pytest

from bigfs.runtime import progress
from bigfs.runtime.progress import LogReporter, progress_line, track


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (3, 10, 2.0, "graph: 3/10 blocks, 1.5 blocks/s, 4.7 s left"),
        (3, None, 2.0, "graph: 3 blocks, 1.5 blocks/s"),
        (0, 10, 2.0, "graph: 0/10 blocks, 0 blocks/s"),
        (0, 10, 0.0, "graph: 0/10 blocks, 0 blocks/s"),
    ],
)
def test_line(done, total, seconds, line):
    assert progress_line("graph", done, total, "blocks", seconds) == line


def test_long_work_speaks_every_interval(caplog, monkeypatch):
    monkeypatch.setattr(LogReporter, "interval_seconds", 0.0)
    previous = progress.set_reporter(LogReporter())
    try:
        with caplog.at_level(logging.INFO, "bigfs"), track("graph", 2) as reporter:
            reporter.advance(1)
            reporter.advance(1)
    finally:
        assert progress.set_reporter(previous) is not previous
    assert [message.split(",")[0] for message in caplog.messages] == [
        "graph: 1/2 blocks",
        "graph: 2/2 blocks",
        "graph: done",
    ]
