"""Whatever a user gives: exit code 2, one readable line that says what to do, nothing left."""

from __future__ import annotations

import shlex
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import bigfs.comparison
import bigfs.pipeline  # noqa: F401  # imported here: the time of imports is not that of a message
from bigfs.cli import main
from tests._bad_files import write_good
from tests._bad_inputs import DATA, RESULTS, SETTINGS, Case

SECONDS = 5.0
CASES = {**DATA, **SETTINGS, **RESULTS}
_QUIET = ("run", "ingest", "inspect", "evaluate", "compare")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder and an empty folder of temporary files, both in ``tmp_path``."""
    for name in ("work", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file, and the folders."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {
        str(path): (status.st_size, status.st_mtime_ns) if path.is_file() else (0, 0)
        for path, status in found.items()
    }


def _arguments(case: Case) -> list[str]:
    arguments = shlex.split(case.command)
    if arguments[0] in _QUIET:
        arguments.insert(1, "--quiet")
    return arguments


def _check_line(out: str, err: str, case: Case) -> None:
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("bigfs: error: ")
    assert lines[0].endswith((".", ")", "?")), "a message is a sentence"
    for fragment in case.says:
        assert fragment in lines[0]
    for leak in ("Traceback", "pydantic", "secret", "[type=", "object at 0x"):
        assert leak not in lines[0]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_input_is_one_line_and_leaves_nothing(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    write_good()
    if case.make is not None:
        case.make()
    before = _listing(place)
    capsys.readouterr()
    began = time.monotonic()
    with pytest.raises(SystemExit) as stopped:
        main(_arguments(case))
    seconds = time.monotonic() - began
    captured = capsys.readouterr()
    assert stopped.value.code == 2, captured.err
    _check_line(captured.out, captured.err, case)
    assert seconds < SECONDS
    assert _listing(place) == before, "something was left, or changed"
