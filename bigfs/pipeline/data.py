"""The data of a run: copied into its directory unless they are in a store, and opened once.

If the input consists of several files and new ones were added, the former run's copy of the data is
extended instead of copying all files again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bigfs.blocks import RowBlocks
from bigfs.config import Comparison, Config
from bigfs.core.errors import BigfsError, ConfigError, InputError
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.core.paths import OBJECT, LabelValues, as_text, column_of, listed_in
from bigfs.evaluate.stage import check_labels, check_shape
from bigfs.runtime.progress import in_stage
from bigfs.selectors.registry import METHODS
from bigfs.selectors.scoring import labels_of_start
from bigfs.stages.data import data_stage
from bigfs.stages.rundir import Footprint, copy_linked, take_over
from bigfs.stages.stage import Stage
from bigfs.store.append import append_rows
from bigfs.store.columns import suspicious_columns
from bigfs.store.fingerprint import changed, fingerprint, fingerprint_of_rows
from bigfs.store.ingest import IngestReport, ingest
from bigfs.store.labels import check_index, labels_in
from bigfs.store.location import Location, as_location, is_within, remove_tree
from bigfs.store.opening import ChainedSource
from bigfs.store.records import COMPARISON
from bigfs.store.retention import finished_runs
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import chunk_rows, copied_rows
from bigfs.store.several import sources_of
from bigfs.store.source import Source, as_part, as_path, is_store, open_matrix
from bigfs.store.views import row_filter

logger = logging.getLogger("bigfs")
C = TypeVar("C", Config, Comparison)
# Rows per block when an in-memory object is read to compute a key of its content.
_ROWS = 1000
# Key in the record of a data stage: name of the run whose copy was extended.
COPIED_FROM = "copied_from"
# Figures of the ingest report that the record keeps.
_REPORTED = ("n_samples", "n_features", "filled_values", "dropped_rows")


def open_data(directory: RunDirectory, config: Config, source: Source) -> tuple[RowBlocks, str]:
    """Return the data of a run as row blocks, and a key of their content.

    Parameters
    ----------
    directory : RunDirectory
        An open run directory. An input that is not a store is copied into it, unless an earlier run
        has done so.
    config : Config
    source : Source
        The opened input.

    Raises
    ------
    InputError
        If settings or labels do not match the rows, whose number is only known now.
    """
    former, uri = directory.manifest.get("data", {}), _absolute(config.input.uri)
    directory.changes = f"{config.input.uri} changed"
    if former.get("uri") != uri:
        directory.changes = f"input.uri is {uri}, was {former.get('uri')}"
    before = directory.manifest["stages"].get("data", {}).get("settings")
    path, key = _stored(directory, config, source)
    settings = directory.manifest["stages"].get("data", {}).get("settings")
    if before is not None and settings != before:
        directory.changes = "settings of the input changed"
    if former.get("key") in (None, key):
        directory.changes = ""
    parts = parts_of(config.input.uri) if config.update is not None else None
    directory.manifest["data"] = {"path": str(path), "key": key, "parts": parts, "uri": uri}
    blocks = RowBlocks.from_any(
        source if source.checked and is_store(config.input.uri) else open_matrix(path),
        scratch=directory.work_scratch("shared"),
        transform=config.preprocess,
        rows=config.blocks.rows,
        sparse=True,
    )
    with discarding_data(directory):
        check_shape(config, blocks.n_samples, blocks.n_features)
        y = check_labels(
            config, blocks.n_samples, blocks.source.dropped, blocks.source.row_dimensions
        )
    directory.manifest["notes"] = suspicious_columns(blocks.source, y)
    for sentence in directory.manifest["notes"]:
        logger.warning(sentence)
    return blocks, key


def _stored(directory: RunDirectory, config: Config, source: Source) -> tuple[Location, str]:
    """Return the location of the data and a key of their content, copying them if necessary."""
    uri = config.input.uri
    content = _content(source, uri)
    if source.checked and is_store(uri):
        return as_location(uri).absolute(), content
    chunk = None
    if not source.sparse:
        usual = chunk_rows(source.n_features, source.dtype.itemsize)
        chunk = copied_rows(source.estimated_samples, config.blocks.rows, usual)
        chunk = None if chunk == usual else chunk
    stage = data_stage(config.input, config.preprocess, stored=False, rows=chunk)
    chosen = [json.dumps(source.feature_names)] if config.opening["labels"] else []
    rows = config.input.rows
    file = None if rows is None else row_filter(rows.model_dump()).file
    if file is not None:  # the mask in this file determines the rows that are kept
        chosen.append(fingerprint(file))
    key = stage.key(content, *chosen)
    may_update = directory.may_update and config.update is not None
    former = former_run(config) if may_update else None
    is_kept = directory.finished("data", key) is not None
    if not is_kept and not take_over(directory, former, "data", key):
        why = directory.why_stale("data", key, stage.version, stage.settings)
        logger.info("stage data: %s", why, extra={"fields": {"event": "begin", "stage": "data"}})
        footprint = Footprint()
        reset_peak()  # this process reads the input, even if the workers are other processes
        with in_stage("data"):
            target, limit = directory.stage_target("data"), config.memory_limit
            extended = former and extend_copy(config, former, source, target, stage)
            report = extended or ingest(
                source, target, missing=config.input.missing, memory_limit=limit, rows=chunk
            )
        if _content(source, uri) != content:
            raise changed(uri)
        record = {**footprint.record(peak_bytes()), "passes": 1, "bytes_read": 0}
        record |= {name: getattr(report, name) for name in _REPORTED}
        record |= {COPIED_FROM: former.path.name} if former and extended else {}
        record |= {"version": stage.version, "settings": stage.settings}
        directory.commit("data", key, record, checks_itself=True)
    return directory.stage_path("data"), key


def _content(source: Source, uri: str) -> str:
    """Return a key of the input's content; an in-memory object is read to compute it."""
    if not uri.startswith(OBJECT):
        return fingerprint(uri)
    return fingerprint_of_rows(source.iter_rows(_ROWS), source.feature_names)


def with_labels_of(config: C, X: Any, source: Source) -> C:
    """Return a configuration in which labels that are in memory are replaced by their values.

    Parameters
    ----------
    config : Config or Comparison
        Its labels may be arrays, or columns of an in-memory object.
    X : object or None
        The object that was given in place of ``input.uri``, if any.
    source : Source
        The opened input.
    """

    def in_memory(labels: Any) -> Any:
        check_index(labels.values if isinstance(labels, LabelValues) else labels, X)
        if isinstance(labels, str) and labels.startswith(OBJECT) and X is not None:
            return LabelValues(labels, labels_in(X, source, column_of(labels)[1]))
        is_array = isinstance(labels, (list, tuple)) or hasattr(labels, "__array__")
        return LabelValues(f"{OBJECT}{type(labels).__name__}", labels) if is_array else labels

    if isinstance(config, Config):
        own = METHODS[config.method].labels
        if hasattr(config.parameters, own):
            config = config.with_parameters(**{own: in_memory(getattr(config.parameters, own))})
    if config.evaluate is None:
        return config
    judged = {"labels": in_memory(config.evaluate.labels)}
    return config.model_copy(update={"evaluate": config.evaluate.model_copy(update=judged)})


def refuse_other(config: Any) -> None:
    """Raise InputError if the run directory holds a finished run of other data or another method.

    A run with rows appended to the same input, or with other settings, does not count as another
    run.
    """
    directory = RunDirectory(config.run)
    with suppress(BigfsError):  # an unreadable directory is refused when it is opened
        directory.read()
    manifest = directory.manifest
    held = {"input.uri": manifest.get("data", {}).get("uri"), "method": manifest.get("method")}
    if manifest.get("status") != "done" or None in held.values() or not hasattr(config, "input"):
        return
    given = {"input.uri": _absolute(config.input.uri), "method": method_of_run(config)}
    other = [f"{key} {held[key]}, not {given[key]}" for key in held if held[key] != given[key]]
    if other:
        raise InputError(
            f"{config.run} holds a finished run of {' and '.join(other)}. Use another directory, "
            f"such as --set run={config.run}-2, or replace the finished run with --fresh."
        )


def method_of_run(config: Any) -> str:
    """Return the method of a pipeline, or "a comparison" if it has several methods."""
    return str(getattr(config, "method", COMPARISON))


def _absolute(uri: str) -> str:
    entries = listed_in(uri)
    if entries is not None:
        return as_text([_absolute(entry) for entry in entries])
    path = as_path(uri)
    return uri if path is None else str(path.absolute())


@contextmanager
def discarding_data(directory: RunDirectory) -> Iterator[None]:
    """Drop data that this attempt brought in if they do not match the settings.

    They are dropped if the block raises InputError, which is raised again.
    """
    try:
        yield
    except InputError:
        if directory.manifest["stages"].get("data", {}).get("attempt") == directory.attempt:
            directory.drop("data")
        raise


def check_outside(config: Config | Comparison) -> None:
    """Raise ConfigError if the input or labels lie in the run directory, where bigfs writes."""
    named: dict[str, Any] = {"input.uri": config.input.uri}
    if isinstance(config, Config):
        named[f"{config.method}.{METHODS[config.method].labels}"] = labels_of_start(config)
    if config.evaluate is not None:
        named["evaluate.labels"] = config.evaluate.labels
    for key, uri in named.items():
        if isinstance(uri, str):
            check_apart(config.run, key, uri)


def check_apart(run: str, key: str, uri: str) -> None:
    """Raise ConfigError if the path named by a setting lies in a run directory."""
    place = as_location(run)
    named = column_of(uri)[0]
    for source in listed_in(named) or [named]:
        path = as_path(source)
        # A store may link into the run directory one level down.
        if path is not None and any(is_within(part, place) for part in (path, *_links_in(path))):
            raise ConfigError(
                f"{key}: {source} lies in the run directory {run}, where runs write their files. "
                "Move it elsewhere, or give another run directory."
            )


def _links_in(folder: Location) -> list[Path]:
    """Return the symbolic links in a folder; empty if it is not a folder or cannot be read."""
    if not isinstance(folder, Path):
        return []
    try:
        return [path for path in folder.iterdir() if path.is_symlink()]
    except (OSError, ValueError):  # opening the input reports the reason
        return []


def former_run(config: Config) -> RunDirectory | None:
    """Return the latest finished run of the series before this one, with its manifest read.

    None if there is no such run or no series.
    """
    if config.series is None:
        return None
    run = as_location(config.run).absolute()
    finished = finished_runs(run, config.series)
    before = [directory for directory in finished if directory.path.name < run.name]
    return before[-1] if before else None


def parts_of(uri: str) -> list[list[str]] | None:
    """Return the path and fingerprint of each file of an input; None for a single file."""
    sources = None if uri.startswith(OBJECT) else sources_of(uri)
    if sources is None:
        return None
    places = [as_location(column_of(part)[0]).absolute() for part in sources]
    return [[str(place), fingerprint(part)] for place, part in zip(places, sources, strict=True)]


def extend_copy(
    config: Config, former: RunDirectory, source: Source, target: Location, stage: Stage
) -> IngestReport | None:
    """Copy the data of the former run and append the new files.

    If both are on the same disk, the former chunks are hard links, which take no space.

    Parameters
    ----------
    config : Config
    former : RunDirectory
        The former run of the series.
    source : Source
        The input.
    target : Path or ObjectPath
        The store to create.
    stage : Stage
        The data stage.

    Returns
    -------
    report : IngestReport or None
        None if all files have to be copied; the reason is logged.
    """
    try:
        return _extended(config, former, source, target, stage)
    except (BigfsError, OSError, KeyError, TypeError, ValueError) as error:
        remove_tree(target)
        logger.info("all files are copied instead of only the new ones: %s", error)
        return None


def _extended(
    config: Config, former: RunDirectory, source: Source, target: Location, stage: Stage
) -> IngestReport:
    """Return the report of the extended copy; raise InputError if the copy cannot be extended."""
    name, parts = former.path.name, parts_of(config.input.uri)
    before, record = former.manifest["data"].get("parts"), former.manifest["stages"].get("data")
    if not before or not parts or record is None or not isinstance(source, ChainedSource):
        raise InputError(f"{name} has no copy of several files")
    if not stage.is_like(record):
        raise InputError(f"{name} read its files with other settings")
    if source.sparse or source.categories or config.input.rows is not None:
        raise InputError(
            "the files are sparse, or have categories or a row filter, which depend on all files"
        )
    for old, new in zip(before, parts, strict=False):
        if old != new:
            how = "was changed" if old[0] == new[0] else f"took the place of {old[0]}"
            raise InputError(f"{new[0]} {how} since {name}")
    if len(before) >= len(parts):
        raise InputError(f"{name} read {len(before)} files, and there are now {len(parts)}")
    former.check_unchanged("data")
    copy_linked(former.stage_path("data"), target)
    with as_part():
        added = ChainedSource(source.parts[len(before) :], source.uri)
    missing = config.input.missing
    if missing == "mean":
        if record["filled_values"]:
            raise InputError("missing values are replaced by the means of all files")
        missing = "error"  # the old rows had no missing values; with new ones, the means change
    report = append_rows(added, target, missing, config.memory_limit)
    filled = record["filled_values"] + report.filled_values
    dropped = record["dropped_rows"] + report.dropped_rows
    return replace(report, filled_values=filled, dropped_rows=dropped)
