"""Inputs of several files that only gain some: the former run's copy of the data is extended."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from bigfs.config import Config
from bigfs.core.errors import BigfsError
from bigfs.core.uris import OBJECT, column_of
from bigfs.stages.rundir import copy_linked
from bigfs.stages.stage import Stage
from bigfs.store.append import append_rows
from bigfs.store.chain import ChainedSource, chain
from bigfs.store.fingerprint import fingerprint
from bigfs.store.location import Location, as_location, remove_tree
from bigfs.store.retention import finished_runs
from bigfs.store.rundir import RunDirectory
from bigfs.store.several import sources_of
from bigfs.store.source import Source, as_part

logger = logging.getLogger("bigfs")
# Of a stage of data: the run whose copy they extend.
COPIED_FROM = "copied_from"


def former_run(config: Config) -> Location | None:
    """Return the latest finished run of the series before this one, if updates are asked for."""
    if config.series is None or config.update is None:
        return None
    run = as_location(config.run).absolute()
    return max(
        (place for place in finished_runs(run, config.series) if place.name < run.name),
        key=lambda place: place.name,
        default=None,
    )


def parts_of(uri: str) -> list[list[str]] | None:
    """Return name and fingerprint of each file that an input stands for; None for a single one."""
    sources = None if uri.startswith(OBJECT) else sources_of(uri)
    if sources is None:
        return None
    places = [as_location(column_of(part)[0]).absolute() for part in sources]
    return [[str(place), fingerprint(part)] for place, part in zip(places, sources, strict=True)]


def extend_copy(
    config: Config, former: Location, source: Source, target: Location, stage: Stage
) -> dict[str, Any] | None:
    """Copy the data of the former run and append the new files.

    The copy has the former chunks by links, which take no room.

    Parameters
    ----------
    config : Config
    former : Path or ObjectPath
        The former run of the series.
    source : Source
        The input.
    target : Path or ObjectPath
        The store to create.
    stage : Stage
        The data stage.

    Returns
    -------
    record : dict or None
        What the manifest keeps of it. None: all files have to be copied, and the log says why.
    """
    try:
        record = _extended(config, RunDirectory(former).read(), source, target, stage)
    except (BigfsError, OSError, KeyError, TypeError, ValueError) as error:
        record = str(error)
    if isinstance(record, dict):
        return record
    remove_tree(target)
    logger.info("all files are copied, not only new ones: %s", record)
    return None


def _extended(
    config: Config, former: RunDirectory, source: Source, target: Location, stage: Stage
) -> dict[str, Any] | str:
    """Return the record of the extended copy, or why there can be none."""
    name, parts = former.path.name, parts_of(config.input.uri)
    before, record = former.manifest["data"].get("parts"), former.manifest["stages"].get("data")
    if not before or not parts or record is None or not isinstance(source, ChainedSource):
        return f"{name} had no copy of several files"
    settings = json.loads(json.dumps(stage.settings))
    if (record["version"], record["settings"]) != (stage.version, settings):
        return f"{name} read its files with other settings"
    if source.sparse or source.categories or config.input.rows is not None:
        return "they are sparse, or have categories or a choice of rows, which depend on all files"
    for old, new in zip(before, parts, strict=False):
        if old != new:
            changed = "was changed" if old[0] == new[0] else f"is where {old[0]} was"
            return f"{new[0]} {changed} since {name}"
    if len(before) >= len(parts):
        return f"{name} had {len(before)} files, and there are {len(parts)}"
    former.check_unchanged("data")
    copy = former.stage_path("data")
    if not (isinstance(copy, Path) and isinstance(target, Path)):
        return "the run is in a bucket"
    copy_linked(copy, target)
    with as_part():
        added = chain(source.parts[len(before) :], source.uri)
    missing = config.input.missing
    if missing == "mean":
        if record["filled_values"]:
            return "missing values are replaced by the means of all files"
        missing = "error"  # without any there are no means
    report = append_rows(added, target, missing, config.memory_limit)
    return {
        "n_samples": report.n_samples,
        "n_features": report.n_features,
        "filled_values": record["filled_values"] + report.filled_values,
        "dropped_rows": record["dropped_rows"] + report.dropped_rows,
        COPIED_FROM: name,
    }
