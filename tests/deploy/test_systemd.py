"""The systemd units, by systemd's own reading and by what their exit codes mean."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from bigfs.core.errors import (
    EXIT_BAD_INPUT,
    EXIT_CLUSTER_OR_STORAGE,
    EXIT_DOES_NOT_FIT,
    EXIT_LOCKED,
    EXIT_NUMERICAL,
)

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"


def test_what_cannot_get_better_is_not_tried_again() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "bigfs-nightly.service")
    service = unit["Service"]
    prevented = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert prevented == {EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, EXIT_NUMERICAL}
    assert not prevented & {EXIT_CLUSTER_OR_STORAGE, EXIT_LOCKED}
    assert int(service["TimeoutStopSec"]) >= 30


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here (systemd)"
)
def test_systemd_reads_the_units(tmp_path: Path) -> None:
    # The program is looked for, so that it has to be there.
    program = tmp_path / "bigfs"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name in ("bigfs-nightly.service", "bigfs-nightly.timer"):
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
