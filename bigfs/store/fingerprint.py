"""A key of the content of an input: equal keys mean that nothing has changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bigfs.core.errors import InputError


def fingerprint(uri: str) -> str:
    """Return a key of an input's content.

    A store of ours is known by its checksums, a file or folder by names, sizes and times of
    modification, a set of scikit-learn's by its name and version.

    Raises
    ------
    InputError
        If there is nothing at the path.
    """
    if uri.startswith("sklearn:"):
        from importlib.metadata import version

        return _digest([uri, version("scikit-learn")])
    path = Path(uri.removeprefix("file://"))
    if not path.exists():
        raise InputError(f"{uri} does not exist. Check the path.")
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
    else:
        files = [path]
    return _digest([[str(p.relative_to(path)), *_stat(p)] for p in files])


def _stat(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _digest(record: object) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]
