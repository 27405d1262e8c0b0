"""Every file is what its own library says, or is refused with a reason (`_conformance.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.store._conformance import all_cases, judged


def _cases() -> list[Any]:
    marked = []
    for name, chosen in all_cases().items():
        open_yet = [pytest.mark.xfail(reason=chosen.today, strict=True)] if chosen.today else []
        marked.append(pytest.param(name, marks=open_yet))
    return marked


@pytest.mark.parametrize("name", _cases())
def test_a_file_is_what_its_own_library_says(name: str, tmp_path: Path) -> None:
    chosen = all_cases()[name]
    if chosen.missing:
        pytest.skip(f"{', '.join(chosen.missing)} is not installed")
    verdict, reason = judged(chosen, tmp_path)
    wanted = {None: ("agree",), "": ("agree", "refused")}.get(chosen.refused, ("refused",))
    assert verdict in wanted, reason
