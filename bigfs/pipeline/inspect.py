"""Describe the content of a path: a run, a comparison, a store or a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError
from bigfs.pipeline.describe import describe
from bigfs.results.result import open_result
from bigfs.store.lease import LEASE
from bigfs.store.location import Location, as_location, read_output
from bigfs.store.records import MANIFEST, TABLE, read_stamp
from bigfs.store.retention import followed
from bigfs.store.rundir import RunDirectory
from bigfs.store.several import sources_of
from bigfs.store.source import is_reachable, is_store


def inspect(
    path: str | Location,
    *,
    verify: bool = False,
    **opening: Any,
) -> str:
    """Say in words what a run directory, a store or a data file holds.

    Parameters
    ----------
    path : str or Path
        The folder of a stage stands for its run.
    verify : bool, default=False
        Recompute the checksums of a store's chunks.
    **opening
        Settings of `bigfs.open_matrix`, such as ``variable`` or ``features``: what a run with them
        would read is described.

    Raises
    ------
    InputError
        If the path is none of these.
    CorruptStoreError
        If ``verify`` finds missing or changed chunks.
    """
    uri = str(path)
    single = sources_of(uri) is None and uri.partition(":")[0] != "sklearn"
    folder = followed(path) if single else None
    if folder is not None and is_reachable(folder):
        if isinstance(folder, Path) and not is_store(folder) and read_stamp(folder) is not None:
            folder = folder.parent
        if (folder / MANIFEST).is_file():
            return _inspect_run(folder, verify)
    verified = []
    if verify:
        if not is_store(path):
            raise InputError(f"{path} has no checksums: only stores written by bigfs have them.")
        verified = [_verified(as_location(path))]
    return "\n".join([*describe(path, **opening), *verified])


def _inspect_run(path: Location, verify: bool) -> str:
    directory = RunDirectory(path).read()
    manifest = directory.manifest
    status = manifest.get("status", "not started")
    if status == "running" and not (path / LEASE).exists():
        status = "stopped before it finished"
    if status not in ("running", "done"):
        status += "; run it again to continue"
    lines = [f"run {directory.path}: {status}"]
    if "error" in manifest:
        lines.append(f"error: {manifest['error']}")
    if verify:
        lines += [_verified_stage(directory, name) for name in manifest["stages"]]
    if directory.is_intact("result"):
        return "\n".join([*lines, open_result(path).summary()])
    if status == "done" and (path / TABLE).exists():  # of a comparison
        return "\n".join([*lines, read_output(path / TABLE).rstrip()])
    done = ", ".join(manifest["stages"]) or "none"
    return "\n".join([*lines, f"finished stages: {done}"])


def _verified_stage(directory: RunDirectory, name: str) -> str:
    if name == "data":
        return _verified(directory.stage_path(name))
    directory.check_unchanged(name)
    return f"{name}: all its files are there and match"


def _verified(path: Location) -> str:
    from bigfs.store.verify import verify

    report = verify(path)
    report.check()
    return f"{path.name}: {report.n_chunks} chunks, all checksums match"
