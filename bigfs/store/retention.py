"""Dated runs of one series, such as ``nightly-{date}``: link the latest, remove old ones.

Only finished runs whose manifest names the series are ever removed, and only while their lease is
held, so that no run in progress is affected. Files that their records do not name are kept, in a
folder that is no longer a run.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from pathlib import Path

from bigfs.core.errors import BigfsError, InputError, RunLockedError
from bigfs.store.location import Location, as_location, write_atomic
from bigfs.store.objects import SCHEMES
from bigfs.store.records import MANIFEST, read_mark
from bigfs.store.rundir import RunDirectory

logger = logging.getLogger("bigfs")
DATE = "{date}"
LATEST = "latest"
SERIES = "series"
# Manifest entry: the run it was updated from, see `bigfs.pipeline.update`.
UPDATED = "updated_from"
_SHOWN = 80
# Upper bound on the size of a "latest" object: an address of S3 has at most 1,100 bytes.
_LINK_BYTES = 2000


def finish_series(run: str | Location, series: str, keep: int | None) -> list[str]:
    """Link the latest finished run of a series, and remove the oldest runs.

    Parameters
    ----------
    run : str, Path or ObjectPath
        The run that just finished; it is never removed.
    series : str
        Last part of the runs' paths, containing ``{date}``.
    keep : int or None
        Number of finished runs to keep. None: all.

    Returns
    -------
    removed : list of str
        Names of the runs that were removed, oldest first.

    Notes
    -----
    ``series`` with "latest" in place of the date is a symbolic link on disk and, in a bucket, an
    object that contains the address of the latest run. Failures are only logged, since the run
    itself is finished.
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
    """Return the run that a "latest" object in a bucket refers to, or else the location itself."""
    place = as_location(place)
    if isinstance(place, Path) or LATEST not in place.name or not place.is_file():
        return place
    if place.stat().st_size > _LINK_BYTES:
        return place
    text = place.read_bytes().decode(errors="replace").strip()
    if text and text.partition("://")[0] not in SCHEMES:  # data with this word in its name
        return place
    name = text.rpartition("/")[2]
    if text != str(place.with_name(name)) or not _dated(place.name, LATEST).fullmatch(name):
        raise InputError(
            f"{place} is damaged: it names {text[:_SHOWN]!r}, which is not a run in the same "
            "folder. Remove it; the next run writes it again."
        )
    return place.with_name(name)


def opened_run(path: str | Location) -> RunDirectory:
    """Return the run directory at a location, with its manifest.

    Raises
    ------
    InputError
        If it is not a run directory, or its manifest cannot be read.
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
    """Return the pattern of a name with a date in place of a word."""
    before, _, after = (re.escape(part) for part in name.partition(word))
    return re.compile(rf"{before}\d{{4}}-\d\d-\d\d{after}")


def _finished(place: Location, series: str) -> RunDirectory | None:
    """Return the finished run of a series at a location with its manifest, else None."""
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
    """Make a link refer to the latest run, atomically for its readers."""
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
    """Remove the files recorded by a run; return False if it must not be removed."""
    directory = RunDirectory(place)
    try:
        with directory.lease:
            if _finished(place, series) is None:
                return False
            directory.remove()
    except RunLockedError:
        return False
    except InputError as error:  # it contains foreign files
        logger.warning("%s is kept: %s", place, error)
        return False
    directory.unmark(remove=True)
    return True
