"""Choice of the finished run that the current run of a series updates, if there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from bigfs.blocks import RowBlocks
from bigfs.blocks.preprocess import needs_moments
from bigfs.config import Config
from bigfs.config.sections import UpdateConfig
from bigfs.core.errors import EXIT_DIFFERENT, BigfsError, CorruptStoreError
from bigfs.core.text import first_of
from bigfs.pipeline.data import COPIED_FROM, former_run
from bigfs.pipeline.diff import diff_runs
from bigfs.stages.stage import Base, Stage
from bigfs.store.grown import key_of_rows
from bigfs.store.location import as_location
from bigfs.store.retention import UPDATED
from bigfs.store.rundir import RunDirectory

logger = logging.getLogger("bigfs")
T = TypeVar("T")
# Key of a manifest: the former run of the series, and the share of selected features in common.
COMPARED = "compared"
_SHOWN = 5


@dataclass(frozen=True)
class Updatable:
    """A former run that can be updated or reused, and its record in the manifest."""

    base: Base | None = None
    # JSON values: the run, its rows and the new ones, the keys of its stages and of the current
    # data, rows of the last full run, updates since then, and the seconds its stages took.
    record: dict[str, Any] | None = None
    # The latest finished run, if it read the same data: its stages are reused.
    same: RunDirectory | None = None

    def line(self, stages: dict[str, Any], taken_over: list[str]) -> str:
        """Return a sentence on what was reused or updated and how long it took.

        Empty if nothing was.

        Parameters
        ----------
        stages : dict
            Records of the current run's stages.
        taken_over : list of str
            Names of the stages that were copied from the former run.
        """
        if self.same is not None and taken_over:
            used = ", ".join(taken_over)
            if {*stages} <= {"data", *taken_over}:
                used = "its result"
            return f"no new rows since {self.same.path.name}: {used} reused"
        if self.base is None or self.record is None:
            return ""
        n_new = self.record["new_rows"]
        words = [f"{n_new:,} new row{'' if n_new == 1 else 's'}"]
        for name, before in self.record["seconds_of_full"].items():
            if name in stages:
                words.append(f"{name} {stages[name]['seconds']:.0f} s instead of {before:.0f} s")
        return f"updated from {self.base.run}: {'; '.join(words)}"


def find_base(
    config: Config, blocks: RowBlocks, stages: Iterable[Stage], directory: RunDirectory, key: str
) -> Updatable:
    """Return what the current run can use of the latest finished run of the series, and record it.

    If nothing can be used, the reason is logged.

    Parameters
    ----------
    config : Config
    blocks : RowBlocks
        The current data.
    stages : iterable of Stage
        The stages of the current run.
    directory : RunDirectory
        Directory of the current run. If this run already finished as an update of the same data,
        it keeps the former run that it was updated from.
    key : str
        Key of the content of the data.
    """
    data, n_samples = directory.manifest["data"], blocks.n_samples
    if config.series is not None:
        # Lets a later run verify that the first rows are the same when rows were appended.
        key_of_old = key_of_rows(as_location(data["path"]), n_samples, "modified")
        directory.manifest["data"] = {**data, "rows": n_samples, "rows_key": key_of_old}
    former = _candidate(config, stages, directory, key)
    directory.manifest.pop(UPDATED, None)
    if former.record is not None:
        n_new = 0 if former.same is not None else former.record["new_rows"]
        directory.manifest[UPDATED] = {**former.record, "data": key, "new_rows": n_new}
    return former


def _candidate(
    config: Config, stages: Iterable[Stage], directory: RunDirectory, key: str
) -> Updatable:
    """Return the run to update or reuse; an empty `Updatable` if there is none."""
    if config.update is None or not directory.may_update:
        return Updatable()
    if config.series is None:
        logger.warning("update: auto needs {date} in run; without it, nothing is updated")
        return Updatable()
    record = directory.manifest.get(UPDATED)
    if directory.is_repeat and record and record["data"] == key:
        if set(record["keys"]) <= set(directory.manifest["stages"]):
            return Updatable(_base_of(record, directory, config.update), record)
    examined: Updatable | str = "the series has no earlier finished run"
    if (former := former_run(config)) is not None:
        try:
            if former.manifest["data"].get("key") == key:
                # With the same base (if it had one), its keys equal those of the current run.
                before = former.manifest.get(UPDATED)
                base = before and _base_of(before, former, config.update)
                return Updatable(base, before, former)
            examined = _examined(config, stages, directory, former)
        except (BigfsError, KeyError, TypeError, ValueError) as error:
            examined = f"{former.path.name} cannot be updated: {error}"
    if isinstance(examined, Updatable):
        return examined
    logger.info("full run: %s", examined)
    return Updatable()


def _base_of(record: dict[str, Any], directory: RunDirectory, limits: UpdateConfig) -> Base:
    """Return the base that a run was updated from, which may have been removed since."""
    before = RunDirectory(directory.path.with_name(record["run"]))
    with suppress(BigfsError):  # it is needed only if a stage has to be repeated
        before.read()
    used = {name: (key, before.stage_path(name)) for name, key in record["keys"].items()}
    least = limits.least_recall, limits.most_residual
    return Base(record["run"], record["rows"], used, before.check_unchanged, *least)


def update_or_redo(work: Callable[[RunDirectory], T], directory: RunDirectory) -> T:
    """Do the work of a run; if the former run turns out damaged or gone, do a full run instead."""
    try:
        return work(directory)
    except Exception as error:
        if not directory.may_update or not (why := _broken_base(directory, error)):
            raise
        logger.warning("full run: %s", why)
    directory.may_update = False
    return work(directory)


def _broken_base(directory: RunDirectory, error: Exception) -> str:
    """Return the reason if a run failed because the former run is damaged or gone; otherwise "".

    If the data that were copied from it are damaged, they are dropped.
    """
    data = directory.manifest["stages"].get("data", {})
    if isinstance(error, CorruptStoreError) and COPIED_FROM in data:
        directory.drop("data")
        return f"the data of {data[COPIED_FROM]} are damaged: {error}"
    record = directory.manifest.get(UPDATED)
    if record is None:
        return ""
    try:
        former = RunDirectory(directory.path.with_name(record["run"])).read()
        for name in record["keys"]:
            former.check_unchanged(name)
    except (BigfsError, OSError, KeyError) as reason:
        return f"{record['run']} is damaged or missing: {reason}"
    return ""


def is_below(config: Config, manifest: dict[str, Any]) -> bool:
    """Return True if the selections of this run and the former one share too few features.

    That is, less than ``output.diff_below`` of the larger selection.
    """
    below = config.output.diff_below
    return below is not None and manifest.get(COMPARED, {}).get("share", 1.0) < below


def compare_with_former(config: Config, directory: RunDirectory) -> None:
    """Log and record the difference from the selection of the former run of the series."""
    if config.update is None and config.output.diff_below is None:
        return
    if (former := former_run(config)) is None:
        return
    place = former.path
    try:
        difference = diff_runs(place, directory.path)
    except BigfsError as error:
        logger.warning("not compared with %s: %s", place.name, error)
        return
    count, most = difference.overlap.count, max(difference.n_selected)
    words = [f"{count} of {most} selected features are shared with {place.name}"]
    for name, features in (("added", difference.came), ("removed", difference.went)):
        if features:
            words.append(f"{name}: {first_of([feature.name for feature in features], _SHOWN)}")
    directory.manifest[COMPARED] = {
        "run": place.name, "share": difference.overlap.share, "agreement": difference.agreement,
    }  # fmt: skip
    below = is_below(config, directory.manifest)
    if below:
        words.append(
            f"the share in common, {difference.overlap.share:.2f}, is below output.diff_below, "
            f"{config.output.diff_below:g}: the command ends with exit code {EXIT_DIFFERENT}"
        )
    logger.log(logging.WARNING if below else logging.INFO, "%s", "; ".join(words))


def _examined(
    config: Config, stages: Iterable[Stage], directory: RunDirectory, former: RunDirectory
) -> Updatable | str:
    """Return a former run as the base, or the reason why it cannot be one."""
    name, manifest, limits = former.path.name, former.manifest, config.update
    assert limits is not None
    data, current = manifest["data"], directory.manifest["data"]
    before, n_old = manifest.get(UPDATED) or {}, int(data.get("rows", 0))
    path, n = current["path"], current["rows"]
    if data["path"] != path and not data.get("parts"):
        return f"the input is neither a store that bigfs wrote nor files of {name} plus new ones"
    if manifest["method"] != config.method:
        return f"{name} is a run of another method"
    if data.get("rows_key") is None:
        return f"{name} did not read a dense store, to which rows can be added"
    if n < n_old:
        return f"{config.input.uri} has {n:,} rows, but had {n_old:,} in {name}"
    # Copied chunks may have new modification times (always in a bucket), so checksums are compared.
    copied = directory.manifest["stages"].get("data", {}).get(COPIED_FROM) == name
    known = key_of_rows(as_location(data["path"]), n_old) if copied else data["rows_key"]
    if key_of_rows(as_location(path), n_old, "none" if copied else "modified") != known:
        return f"the first rows of {config.input.uri} differ from {name}, or were rewritten"
    if n == n_old:
        return f"{config.input.uri} was rewritten since {name}, with the same rows"
    if needs_moments(config.preprocess):
        return f"with preprocess {config.preprocess}, new rows change the values of the old ones"
    n_full, in_a_row = int(before.get("rows_of_full", n_old)), int(before.get("in_a_row", 0)) + 1
    if why := _beyond(limits, name, (n_old, n_full, n), in_a_row):
        return why
    keys = _usable(former, stages)
    if isinstance(keys, str):
        return keys
    seconds = {stage: manifest["stages"][stage]["seconds"] for stage in keys}
    record = {
        "run": name,
        "rows": n_old,
        "new_rows": n - n_old,
        "keys": keys,
        "rows_of_full": n_full,
        "in_a_row": in_a_row,
        "seconds_of_full": before.get("seconds_of_full", seconds),
    }
    return Updatable(_base_of(record, former, limits), record)


def _beyond(limits: UpdateConfig, name: str, rows: tuple[int, int, int], in_a_row: int) -> str:
    """Return a sentence on the limit that an update would exceed; empty if there is none."""
    n_old, n_full, n = rows
    for share, most, words in (
        ((n - n_old) / n_old, limits.most_new, name),
        ((n - n_full) / n_full, limits.most_since_full, "the last full run"),
    ):
        if share > most:
            return f"{100 * share:.0f} % more rows than {words}; the limit is {100 * most:.0f} %"
    if in_a_row > limits.most_in_a_row:
        return f"the limit of {in_a_row - 1} updates in a row is reached"
    return ""


def _usable(former: RunDirectory, stages: Iterable[Stage]) -> dict[str, str] | str:
    """Return the key of each stage of a former run that can be updated, or a reason if none can."""
    keys: dict[str, str] = {}
    why = "no stage of the method can be updated"
    for stage in stages:
        record = former.manifest["stages"].get(stage.name)
        if stage.name in ("components", "graph") and not stage.updates:
            return "neighbors by principal components, or from the input, change with new rows"
        if not stage.updates or record is None:
            continue
        if not stage.is_like(record):
            why = f"stage {stage.name} of {former.path.name} had other settings"
            break
        former.check_unchanged(stage.name)
        keys[stage.name] = record["key"]
    return keys or why
