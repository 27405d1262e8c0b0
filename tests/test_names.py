"""Names and docstrings say what a thing is."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import bigfs

PACKAGE = Path(bigfs.__file__).parent


@cache
def _trees() -> dict[str, ast.Module]:
    """Return the syntax trees of the package by the paths of their files."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(path)
    assert places
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
