"""Names and docstrings say what a thing is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import bigfs

PACKAGE = Path(bigfs.__file__).parent
QUESTIONS = r"(What|Whether|How|Where|When|Why|Who|Which)\b"
VAGUE = {"found", "told", "whole", "one", "said", "ahead", "turned", "bend", "thing", "things"}


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


def test_docstrings_begin_with_what_a_thing_is_or_does() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            assert not re.match(QUESTIONS, text or ""), (path, text)


def test_variables_say_what_their_values_are() -> None:
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assert node.id not in VAGUE, (path, node.lineno, node.id)
