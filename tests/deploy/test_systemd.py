"""The systemd units, by systemd's own reading and by what their exit codes mean."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here (systemd)"
)


def test_the_run_has_time_to_stop_and_its_failure_is_told() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "bigfs-nightly.service")
    assert int(unit["Service"]["TimeoutStopSec"]) >= 30
    told = unit["Unit"]["OnFailure"].replace("%n", "")
    assert (FOLDER / told).is_file()


@needs_systemd
def test_the_run_is_confined() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=40",
         FOLDER / "bigfs-nightly.service"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs_systemd
def test_systemd_reads_the_units(tmp_path: Path) -> None:
    # The program is looked for, so that it has to be there.
    program = tmp_path / "bigfs"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in ("bigfs-nightly.service", "bigfs-nightly.timer", "bigfs-failed@.service"):
        text = (FOLDER / name).read_text()
        (tmp_path / name).write_text(text.replace("%h/bigfs/.venv/bin/bigfs", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *sorted(tmp_path.glob("*.*"))],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (0, "")
