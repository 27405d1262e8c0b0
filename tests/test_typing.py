"""The names that type checkers see, and what they say of a user's script."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bigfs

SCRIPT = """\
import bigfs
from bigfs import MCFS

names: bigfs.MCFS = MCFS(5, n_clusters=3)
agreement: float = bigfs.metrics.normalized_mutual_info([0, 1], [1, 0])
MCFS(n_feature_to_select=5)
bigfs.selec(1)
"""
ROOT = Path(__file__).parents[1]
# mypy knows the package already from the check of the project, which saves half a minute.
SAME = [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}"]
CHECKERS = {"mypy": [sys.executable, "-m", "mypy", *SAME], "pyright": ["pyright"]}


def test_the_stub_has_the_public_names() -> None:
    stub = Path(bigfs.__file__).with_suffix(".pyi")
    names = [
        node.target.id if isinstance(node, ast.AnnAssign) else alias.asname
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.AnnAssign | ast.ImportFrom)
        for alias in getattr(node, "names", [None])
    ]
    assert sorted(names) == sorted(bigfs.__all__) == dir(bigfs)


@pytest.mark.full
@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_of_a_script_are_seen(checker: str, tmp_path: Path) -> None:
    if checker == "pyright" and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [*CHECKERS[checker], "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert "n_feature_to_select" in errors[0] and "selec" in errors[1]
