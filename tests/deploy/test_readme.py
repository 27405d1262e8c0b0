"""The page of deploy/ names files that exist, and all exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from bigfs.core import errors

REPO = Path(__file__).parents[2]
TEXT = (REPO / "deploy" / "README.md").read_text()


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"\b(?:deploy|pipelines|tests)/[\w./-]*\w", TEXT))
    named |= {
        f"deploy/{name}" for name in re.findall(r"`((?:slurm|kubernetes|container)/[^`]*)`", TEXT)
    }
    assert len(named) > 8
    assert [name for name in sorted(named) if not (REPO / name).exists()] == []


def test_it_explains_every_exit_code() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, flags=re.MULTILINE)}
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert explained == codes | {1}


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) < 220
