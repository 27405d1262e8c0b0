"""Progress: a bar on a terminal, plain lines elsewhere, and nothing left behind."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from datetime import datetime

import click
import pytest
from rich.console import Console

from bigfs.runtime import progress, terminal
from bigfs.runtime.progress import LogReporter, reported_by, track
from bigfs.runtime.terminal import BarReporter, messages, say

logger = logging.getLogger("bigfs")


def _work(total: int | None = 4) -> None:
    with track("graph", total) as reporter:
        for _ in range(4):
            reporter.advance(1)


def test_plain_lines_have_a_time_and_no_escape_codes(capsys):
    with messages():
        logger.info("stage 'graph' starts")
        _work()
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d stage 'graph' starts", lines[0])
    assert re.fullmatch(r"\d\d:\d\d:\d\d graph: done, 4 blocks in 0\.\d s", lines[1])


def test_quiet_keeps_warnings(capsys):
    with messages(quiet=True):
        _work()
        logger.warning("the graph has 3 components")
    assert capsys.readouterr().err.endswith(" the graph has 3 components\n")


def test_nothing_is_left_behind():
    before = (list(logger.handlers), logger.level, logger.propagate, progress.has_reporter())
    with pytest.raises(click.Abort), messages():
        raise KeyboardInterrupt
    after = (list(logger.handlers), logger.level, logger.propagate, progress.has_reporter())
    assert after == before and not progress.has_reporter()


@pytest.mark.parametrize("total", [4, None])
def test_bar_counts_and_leaves_a_line(total, caplog):
    screen = io.StringIO()
    with (
        caplog.at_level(logging.INFO, "bigfs"),
        reported_by(BarReporter(Console(file=screen, force_terminal=True))),
    ):
        _work(total)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert ("4/4 blocks" if total else "4 blocks") in shown
    assert caplog.messages[-1].startswith("graph: done, 4 blocks in ")


def test_work_that_fails_says_where_it_stopped(caplog):
    with caplog.at_level(logging.INFO, "bigfs"), pytest.raises(ValueError, match="no"):
        with track("graph", 10) as work:
            work.advance(3)
            raise ValueError("no")
    assert caplog.messages[-1].startswith("graph: stopped after 3 blocks in ")


def test_json_lines_have_stage_event_and_figures(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "_format", "json")
    monkeypatch.setattr(LogReporter, "interval_seconds", 0.0)
    with messages():
        logger.warning("the graph has %d components", 3)
        with progress.in_stage("graph"):
            _work()
    say("interrupted; stopped", logging.ERROR, event="interrupted", exit_code=130)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (
        lines[0].items()
        >= {
            "level": "warning",
            "stage": None,
            "event": "message",
            "message": "the graph has 3 components",
        }.items()
    )
    events = [line["event"] for line in lines]
    assert events == ["message", *4 * ["progress"], "done", "interrupted"]
    second = lines[2]
    assert second["stage"] == "graph" and second["work"] == "graph"
    assert (second["done"], second["total"], second["unit"]) == (2, 4, "blocks")
    assert second["per_second"] > 0 and second["seconds_left"] >= 0
    assert datetime.fromisoformat(second["time"]).tzinfo is not None
    assert lines[-1]["exit_code"] == 130


def test_whatever_is_written_to_stderr_is_json(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "run: r\ninput: {uri: sklearn:iris}\nmethod: max_variance\nn_features_to_select: 2\n"
    )
    code = """
import os, sys, warnings
from bigfs import cli
from bigfs.pipeline import run
def broken(*args, **kwargs):
    os.system("echo from a child >&2")
    warnings.warn("a warning")
    raise ValueError("a bug")
sys.modules["bigfs.pipeline.run"].run = broken
sys.argv = ["bigfs", "run", "p.yaml", "--log-format", "json"]
cli.program()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    said = [line["message"] for line in lines]
    assert done.returncode == 1
    assert "from a child" in said
    assert any("a warning" in message for message in said)
    assert "ValueError: a bug" in said
    assert lines[-1]["exit_code"] == 1
