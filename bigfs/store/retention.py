"""Dated runs of one series, such as ``nightly-{date}``: the latest is linked, old ones are removed.

Only finished runs that say in their manifest that they are of the series are ever removed, and
only under their lease, so that none is taken from a run that is at work on it. What their records
do not name stays, in a folder that is no run any more.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from pathlib import Path

from bigfs.core.errors import BigfsError, InputError, RunLockedError
from bigfs.store.location import Location, as_location, write_atomic
from bigfs.store.records import MANIFEST, read_mark
from bigfs.store.rundir import RunDirectory

logger = logging.getLogger("bigfs")
DATE = "{date}"
LATEST = "latest"
SERIES = "series"
# Of a manifest: what run it was updated from, see `bigfs.pipeline.update`.
UPDATED = "updated_from"
_SHOWN = 80


def finish_series(run: str | Location, series: str, keep: int | None) -> list[str]:
    """Link the latest finished run of a series and remove the oldest ones.

    Parameters
    ----------
    run : str, Path or ObjectPath
        The run that has just finished; it is never removed.
    series : str
        Last part of the runs' paths, with ``{date}`` in it.
    keep : int or None
        How many finished runs to keep. None: all.

    Returns
    -------
    removed : list of str
        Names of the runs that were removed, oldest first.

    Notes
    -----
    ``series`` with "latest" for the date is a symbolic link on disk and, in a bucket, an object
    that holds the address of the latest run. What fails is logged: the run itself is finished.
    """
    run = as_location(run).absolute()
    removed: list[str] = []
    try:
        finished = finished_runs(run, series)
        if finished:
            _link(run.with_name(series.replace(DATE, LATEST)), finished[-1].path)
        first = max(0, len(finished) - keep) if keep else 0
        bases = {kept.manifest.get(UPDATED, {}).get("run") for kept in finished[first:]}
        for old in (directory.path for directory in finished[:first]):
            if old.name not in {run.name, *bases} and _remove(old, series):
                removed.append(old.name)
    except (BigfsError, OSError) as error:
        logger.warning("old runs of %s could not be removed: %s", series, error)
    if removed:
        logger.info("removed %s: the last %d runs are kept", ", ".join(removed), keep)
    return removed


def followed(place: str | Location) -> Location:
    """Return the run that a place in a bucket names as the latest, or the place itself."""
    place = as_location(place)
    if isinstance(place, Path) or LATEST not in place.name or not place.is_file():
        return place
    try:
        text = place.read_text().strip()
    except UnicodeDecodeError:  # of data that have the word in their name
        return place
    name = text.rpartition("/")[2]
    if text != str(place.with_name(name)) or not _dated(place.name, LATEST).fullmatch(name):
        raise InputError(
            f"{place} is damaged: it names {text[:_SHOWN]!r}, which is not a run beside it. Remove "
            "it; the next run writes it again."
        )
    return place.with_name(name)


def opened_run(path: str | Location) -> RunDirectory:
    """Return the run directory at a place, with its manifest.

    Raises
    ------
    InputError
        If it is none, or its manifest cannot be read.
    """
    directory = RunDirectory(followed(path))
    if not (directory.path / MANIFEST).exists():
        has = f"it has no {MANIFEST}" if directory.path.exists() else "there is nothing"
        raise InputError(f"{path} is not a run directory: {has}.")
    return directory.read()


def finished_runs(run: Location, series: str) -> list[RunDirectory]:
    """Return the finished runs of a series beside a run, oldest first, with their manifests."""
    form = _dated(series, DATE)
    names = sorted(path.name for path in run.parent.iterdir() if form.fullmatch(path.name))
    directories = (_finished(run.with_name(name), series) for name in names)
    return [directory for directory in directories if directory is not None]


def _dated(name: str, word: str) -> re.Pattern[str]:
    """Return the form of a name with a date in the place of a word."""
    before, _, after = (re.escape(part) for part in name.partition(word))
    return re.compile(rf"{before}\d{{4}}-\d\d-\d\d{after}")


def _finished(place: Location, series: str) -> RunDirectory | None:
    """Return a finished run of a series with its manifest, None if there is none at a place."""
    if not (place / MANIFEST).is_file() or (isinstance(place, Path) and place.is_symlink()):
        return None
    try:
        directory = RunDirectory(place).read() if read_mark(place) else None
    except InputError:
        return None
    manifest = {} if directory is None else directory.manifest
    is_done = manifest.get("status") == "done" and manifest.get(SERIES) == series
    return directory if is_done else None


def _link(link: Location, latest: Location) -> None:
    """Let a name stand for the latest run, at once for whoever reads it."""
    if isinstance(link, Path):
        is_free = link.is_symlink() or not link.exists()
    else:
        try:
            is_free = followed(link) != link or not link.exists()
        except InputError:
            is_free = False
    if not is_free:
        logger.warning(
            "%s is not a link, so the link to the latest run was not updated; remove it", link
        )
        return
    if not isinstance(link, Path):
        write_atomic(link, f"{latest}\n")
        return
    new = link.with_name(f"{link.name}.partial-{uuid.uuid4().hex[:8]}")
    new.symlink_to(latest.name, target_is_directory=True)
    os.replace(new, link)


def _remove(place: Location, series: str) -> bool:
    """Remove what the records of a run name; say whether it was one to be removed."""
    directory = RunDirectory(place)
    try:
        with directory.lease:
            if _finished(place, series) is None:
                return False
            directory.remove()
    except RunLockedError:
        return False
    except InputError as error:  # somebody put files of their own into it
        logger.warning("%s is kept: %s", place, error)
        return False
    directory.unmark(remove=True)
    return True
