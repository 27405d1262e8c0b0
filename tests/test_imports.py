"""Imports go one way and take no private names, and ``import bigfs`` is free."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import bigfs

PACKAGE = Path(bigfs.__file__).parent

_RUNTIME = {"core", "config", "runtime"}
_BLOCKS = _RUNTIME | {"store", "blocks"}
_ENGINE = _BLOCKS | {"solvers", "graph", "spectral", "stages"}
_METHODS = _ENGINE | {"selectors", "evaluate"}

# What each room may import, besides itself. A new room has to be entered here.
ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    "core": set(),
    "config": {"core"},
    "runtime": {"core", "config"},
    "store": {"core", "runtime"},
    "blocks": {"core", "runtime", "store"},
    "solvers": {"core"},
    "graph": _BLOCKS | {"solvers"},
    "spectral": _BLOCKS | {"solvers", "graph"},
    "stages": _ENGINE - {"stages"},
    "selectors": _ENGINE,
    "evaluate": _METHODS - {"evaluate"},
    "metrics": {"evaluate"},
    "plan": _METHODS,
    "results": _ENGINE,
    "report": {"core", "config", "results", "spectral", "stages"},
    "pipeline": _METHODS | {"plan", "results", "report"},
    "__main__": {"cli"},
    "cli": {"__init__"} | _METHODS | {"plan", "results", "report", "pipeline"},
}

# Packages that cost much, and the files that may import them before they are used.
HEAVY: dict[str, tuple[str, ...]] = {
    "sklearn": ("selectors/", "graph/transformer.py"),
    "pandas": (),
    "pynndescent": (),
    "matplotlib": (),
    "numba": (),
    "dask_ml": (),
    "pyarrow": (),
    "obstore": (),
    "boto3": (),
}


def _imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the full name of everything a module imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = len(parents) - node.level + is_package
                base = ".".join([*parents[:kept], *filter(None, [base])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _module_level(tree: ast.Module) -> ast.Module:
    """Return the statements that run at import: everything outside functions."""

    class Cut(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    return ast.fix_missing_locations(Cut().visit(tree))


def _room(name: str) -> str:
    """Return the room of a full module name: ``bigfs.store.zarr`` is in ``store``."""
    room = name.split(".")[1] if "." in name else "__init__"
    # A name of the package itself, such as bigfs.__version__, is no room.
    is_room = (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()
    return room if is_room else "__init__"


def _module(path: str) -> tuple[str, bool]:
    """Return the full name of a module by its path below bigfs/, and whether it is a package."""
    parts = list(Path(path).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    return ".".join(["bigfs", *(parts[:-1] if is_package else parts)]), is_package


def imports_of_rooms() -> dict[str, list[str]]:
    """Return the other rooms that each room imports, as the code is."""
    results: dict[str, set[str]] = {room: set() for room in ALLOWED}
    for path in FILES:
        for _, name in _imports(ast.parse((PACKAGE / path).read_text()), *_module(path)):
            if name.split(".")[0] == "bigfs":
                results[Path(path).with_suffix("").parts[0]].add(_room(name))
    return {room: [r for r in ALLOWED if r in results[room] - {room}] for room in ALLOWED}


def _against_the_arrow(source: str, path: str) -> list[str]:
    """Return what is wrong with the imports of one file (``path`` is below bigfs/)."""
    tree = ast.parse(source)
    module, is_package = _module(path)
    room = Path(path).with_suffix("").parts[0]
    if room not in ALLOWED:
        return [f"bigfs/{path}: the room '{room}' is not in the table of test_imports.py"]
    wrong = []
    for line, name in _imports(tree, module, is_package):
        top = name.split(".")[0]
        if top == "bigfs" and _room(name) not in {room, *ALLOWED[room]}:
            wrong.append(f"bigfs/{path}:{line} imports {name} against the arrow")
        if top == "bigfs" and re.search(r"\._[^_]", name):
            wrong.append(f"bigfs/{path}:{line} imports {name}, a private name")
        if top == "dask_ml" and path != "evaluate/protocols.py":
            wrong.append(f"bigfs/{path}:{line} imports {name}; only protocols.py may")
    for line, name in _imports(_module_level(tree), module, is_package):
        top = name.split(".")[0]
        if top in HEAVY and not path.startswith(HEAVY[top] or ("-",)):
            wrong.append(f"bigfs/{path}:{line} imports {name} before it is used")
    return wrong


FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def test_the_table_has_the_rooms_that_there_are() -> None:
    assert {Path(path).with_suffix("").parts[0] for path in FILES} == set(ALLOWED)
    for room, imported in imports_of_rooms().items():
        assert set(imported) <= ALLOWED[room]


@pytest.mark.parametrize("path", FILES)
def test_imports_follow_the_arrow(path):
    assert _against_the_arrow((PACKAGE / path).read_text(), path) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/units.py", "from bigfs.store.source import open_matrix"),
        ("core/units.py", "import bigfs.config"),
        ("core/units.py", "from ..store import open_matrix"),
        ("core/__init__.py", "from ..store import open_matrix"),
        ("store/ingest.py", "from bigfs import selectors"),
        ("store/ingest.py", "def f():\n    from bigfs.blocks.rowblocks import RowBlocks"),
        ("solvers/lars.py", "from bigfs.blocks.rowblocks import RowBlocks"),
        ("graph/knn.py", "from bigfs.spectral import spectral_embedding"),
        ("pipeline/run.py", "from bigfs.cli import main"),
        ("blocks/rowblocks.py", "import sklearn.base"),
        ("blocks/rowblocks.py", "class A:\n    from pandas import DataFrame"),
        ("graph/knn.py", "def f():\n    import dask_ml.cluster"),
        ("graph/knn.py", "from bigfs.graph.local import _direct"),
        ("graph/knn.py", "def f():\n    import bigfs.graph._local"),
        ("attic.py", "import os"),
    ],
)
def test_an_import_against_the_arrow_is_caught(path, source):
    assert len(_against_the_arrow(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("store/ingest.py", "from bigfs.core.errors import InputError\nfrom .source import a"),
        ("blocks/rowblocks.py", "def f():\n    import pandas"),
        ("selectors/mcfs.py", "from sklearn.base import BaseEstimator"),
        ("cli.py", "from bigfs import __version__"),
    ],
)
def test_an_import_along_the_arrow_passes(path, source):
    assert _against_the_arrow(source, path) == []


def test_dependencies_are_what_is_imported():
    # The name to install where it is not the name to import.
    distributions = {
        "sklearn": "scikit-learn",
        "yaml": "PyYAML",
        "dask_ml": "dask-ml",
        "dask_jobqueue": "dask-jobqueue",
        "google_crc32c": "google-crc32c",
        "skmisc": "scikit-misc",
    }
    imported = set()
    for path in FILES:
        tree = ast.parse((PACKAGE / path).read_text())
        module = ".".join(["bigfs", *Path(path).with_suffix("").parts])
        imported |= {name.split(".")[0] for _, name in _imports(tree, module, False)}
    imported -= sys.stdlib_module_names | {"bigfs"}
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    extras = [
        name for name in project["optional-dependencies"] if name not in ("dev", "docs", "test")
    ]
    declared = project["dependencies"] + sum(
        (project["optional-dependencies"][name] for name in extras), []
    )
    assert {re.match(r"[\w-]+", line).group() for line in declared} == {
        distributions.get(name, name) for name in imported
    }


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    return done.stdout.strip()


def test_import_bigfs_costs_nothing_and_changes_nothing():
    seconds, loaded, changed = _run(
        """
        import importlib, logging, os, sys, time, typing, warnings, signal
        before, environ, filters = set(sys.modules), dict(os.environ), list(warnings.filters)
        began = time.perf_counter()
        import bigfs
        print(time.perf_counter() - began)
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        print(",".join(sorted(new - sys.stdlib_module_names)))
        same = dict(os.environ) == environ and list(warnings.filters) == filters
        print(not same or bool(logging.getLogger().handlers))
        """
    ).splitlines()
    assert loaded == "bigfs"
    assert changed == "False"
    assert float(seconds) < 0.05, f"import bigfs took {seconds} s, 0.05 allowed"


def test_a_selector_loads_no_engine_before_it_is_fitted():
    loaded = _run(
        """
        import sys
        from bigfs import MCFS
        heavy = ("zarr", "dask", "distributed", "numba", "pynndescent", "matplotlib", "dask_ml")
        print([name for name in heavy if name in sys.modules])
        """
    )
    assert loaded == "[]"


def test_modules_with_task_functions_do_not_load_sklearn():
    # sklearn costs every worker 130 MiB, pynndescent 310 MiB.
    rooms = (
        "core/",
        "runtime/",
        "store/",
        "blocks/",
        "solvers/",
        "graph/",
        "spectral/",
        "evaluate/",
    )
    single = ("selectors/mcfs/tasks.py", "selectors/ndfs/passes.py")
    estimators = ("graph/transformer.py",)
    names = [
        ".".join(["bigfs", *Path(path).with_suffix("").parts]).removesuffix(".__init__")
        for path in FILES
        if (path.startswith(rooms) or path in single) and path not in estimators
    ]
    loaded = _run(
        f"""
        import importlib, sys
        for name in {names}:
            importlib.import_module(name)
        print([name for name in {list(HEAVY)} if name in sys.modules])
        """
    )
    assert loaded == "[]"


@pytest.mark.parametrize("name", [name for name in bigfs.__all__ if name != "__version__"])
def test_every_public_name_is_there_and_documented(name):
    assert getattr(bigfs, name).__doc__


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = bigfs.nonsense


if __name__ == "__main__":
    for room, imported in imports_of_rooms().items():
        print(f"{room:<10} {', '.join(imported) or 'nothing'}")
