"""A folder with data and a pipeline, and what a run of it leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.cli import main
from bigfs.store.rundir import RunDirectory

# What is recorded of every stage.
MEASURED = {"settings": {}, "seconds": 1.0, "measured_peak_bytes": 0, "passes": 0}
VALUES = np.random.default_rng(0).normal(size=(60, 8))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data and a pipeline whose run directory is runs/a."""
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", VALUES)
    np.save("y.npy", np.repeat([0, 1, 2], 20))
    (tmp_path / "base.yaml").write_text(json.dumps(settings()))
    return tmp_path


def settings(**changes: Any) -> dict[str, Any]:
    return {
        "run": "runs/a",
        "input": {"uri": "s.npy"},
        "method": "max_variance",
        "n_features_to_select": 3,
        **changes,
    }


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return int(end.value.code or 0), captured.out + captured.err


def all_files(folder: Path) -> dict[str, bytes]:
    """Return what every file of a folder holds, and where its links lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path).encode()
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def finish(directory: RunDirectory, name: str, key: str) -> None:
    directory.stage_scratch(name).put("values", np.arange(3.0))
    directory.commit(name, key, {"version": 1, **MEASURED})
