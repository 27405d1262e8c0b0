"""Run the stages in order with checkpoints, and say in words what a path holds."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bigfs.blocks import RowBlocks
from bigfs.cluster import (
    check_workers,
    connect,
    package_versions,
    preflight,
    reporting_performance,
    scheduler_address,
)
from bigfs.config import Config, dump_yaml, load_config, make_config
from bigfs.context import Context
from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.failures import cluster_failures, storage_failures
from bigfs.core.interrupt import run_apart
from bigfs.core.memory import task_budget
from bigfs.core.progress import in_stage
from bigfs.core.watch import watch_cluster
from bigfs.core.yamltext import read_yaml
from bigfs.evaluate.selection import compare_with_all
from bigfs.footprint import Footprint
from bigfs.planning import check_plans, plan_within
from bigfs.results import Result, open_result
from bigfs.stages import Stage, check_labels, check_outside, check_settings, run_ingest, stages_of
from bigfs.store.fingerprint import fingerprint
from bigfs.store.lease import LEASE
from bigfs.store.location import Location, as_location
from bigfs.store.records import CONFIG, FEATURES, TABLE
from bigfs.store.retention import SERIES, finish_series, followed
from bigfs.store.rundir import RunDirectory, stage_key
from bigfs.store.scratch import Scratch, read_attributes
from bigfs.store.source import is_store, open_matrix

logger = logging.getLogger("bigfs")
_INGEST_VERSION = 1
T = TypeVar("T")


def run(
    config: Config | str | Path | dict[str, Any],
    *,
    overrides: list[str] | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
    performance_report: str | None = None,
) -> Result:
    """Run a pipeline and return its result.

    Stages that a former run finished are taken over if their settings and their input are the
    same; the others run, and each is committed as a whole.

    Parameters
    ----------
    config : Config, path of a YAML file, or dict
    overrides : list of str or None, default=None
        ``"a.b=c"`` settings that replace those of the file.
    scheduler : str or None, default=None
        Address of a Dask scheduler. None: what the configuration or the scope says.
    fresh : bool, default=False
        Forget what former runs of this directory finished.
    performance_report : str or None, default=None
        An HTML file that gets Dask's report of what the workers did. Needs a cluster, and the
        package bokeh.

    Returns
    -------
    result : Result

    Raises
    ------
    InputError
        If the configuration or the data cannot be used.
    MemoryLimitError
        If a stage does not fit ``memory_limit``.
    ClusterError, StorageError
        If workers or storage fail; running again continues.
    RunLockedError
        If another run holds the directory.

    Examples
    --------
    >>> import bigfs
    >>> settings = {"run": "runs/iris", "input": {"uri": "sklearn:iris"}, "method": "max_variance",
    ...             "n_features_to_select": 2}
    >>> bigfs.run(settings).ranking  # doctest: +SKIP
    array([2, 0, 3, 1])
    """
    config = _as_config(config, overrides or [])
    _check_before(config)
    check_plans([config], scheduler=scheduler)

    def work(directory: RunDirectory) -> Result:
        if config.series is not None:
            directory.manifest[SERIES] = config.series
        _run_stages(directory, config)
        result = open_result(directory.path)
        directory.write_file(FEATURES, result.features_csv())
        return result

    result = run_in_directory(
        config, work, (FEATURES,), scheduler=scheduler, fresh=fresh,
        performance_report=performance_report,
    )  # fmt: skip
    if config.series is not None:
        finish_series(config.run, config.series, config.keep)
    return result


def run_in_directory(
    config: Any,
    work: Callable[[RunDirectory], T],
    outputs: Sequence[str],
    *,
    scheduler: str | None = None,
    fresh: bool = False,
    performance_report: str | None = None,
) -> T:
    """Hold the run directory of a configuration, connect to Dask and do the work.

    The work runs in a thread of its own: an interrupt drops what it is doing, closes a cluster
    of ours, removes the files of the attempt and gives the directory back.

    Parameters
    ----------
    config : Config, Comparison or PaperTable
    work : callable
        ``work(directory)`` runs stages in the open directory.
    outputs : sequence of str
        Names of the files that it writes beside the stages.
    scheduler, fresh, performance_report
        As in `run`.
    """
    directory = RunDirectory(config.run)
    address = scheduler_address(scheduler, config.cluster)

    def all_of_it() -> T:
        preflight(directory.attempt_path)
        _begin(directory, config)
        result = work(directory)
        directory.finish()
        return result

    with (
        storage_failures(str(directory.path)),
        directory.open(fresh=fresh, outputs=(CONFIG, *outputs)),
        connect(address, config.cluster, config.memory_limit),
        cluster_failures("run"),
        reporting_performance(performance_report),
    ):
        return run_apart(all_of_it, watch_cluster(config.cluster))


def _check_before(config: Config) -> None:
    """Refuse what cannot work before anything is written or any cluster is started."""
    task_budget(config.memory_limit)
    check_outside(config)
    source = open_matrix(config.input.uri, variable=config.input.variable)
    check_settings(config, source.n_samples, source.n_features)
    kept = None if config.input.missing == "drop_rows" else source.n_samples
    check_labels(config, kept)


def _as_config(config: Config | str | Path | dict[str, Any], overrides: list[str]) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, dict):
        return make_config(**config)
    return load_config(config, overrides)


def _begin(directory: RunDirectory, config: Any) -> None:
    """Write the resolved configuration and note what runs."""
    directory.write_file(CONFIG, dump_yaml(config))
    directory.manifest.pop("error", None)
    directory.manifest.update(
        status="running", versions=package_versions(), attempt=directory.attempt
    )
    directory.write()


def _run_stages(directory: RunDirectory, config: Config) -> None:
    data_path, key = data_stage(directory, config)
    directory.manifest["data"] = {"path": str(data_path), "key": key}
    context = Context(config, directory, data_path, directory.work_scratch("shared"))
    # Only now is it known how many rows a text file has, or how many were dropped.
    with discarding_data(directory):
        check_settings(config, context.blocks.n_samples, context.blocks.n_features)
        check_labels(config, context.blocks.n_samples)
    plan_within(config, context.blocks.layout).check()
    stages = stages_of(config)
    for stage in stages:
        key = stage_key(stage.name, stage.version, stage.settings, key)
        run_stage(context, directory, stage, key)
    _forget_others(directory, {"data", *(stage.name for stage in stages)})


def data_stage(directory: RunDirectory, config: Config) -> tuple[Location, str]:
    """Return where the data are and a key of their content, ingesting what needs it."""
    uri, missing = config.input.uri, config.input.missing
    content = fingerprint(uri)
    if is_store(uri):
        return as_location(uri).absolute(), content
    settings = {"variable": config.input.variable, "missing": missing}
    key = stage_key("data", _INGEST_VERSION, settings, content)
    if directory.finished("data", key) is None:
        why = directory.why_stale("data", key, _INGEST_VERSION, settings)
        logger.info("stage data: %s", why, extra={"fields": {"event": "begin", "stage": "data"}})
        footprint = Footprint()
        with in_stage("data"):
            found = run_ingest(config, directory.stage_target("data"))
        record = {**footprint.record(), "passes": 1, "bytes_read": 0, **found}
        directory.commit("data", key, {**record, "version": _INGEST_VERSION, "settings": settings})
    return directory.stage_path("data"), key


@contextmanager
def discarding_data(directory: RunDirectory) -> Iterator[None]:
    """Forget data that this attempt brought in if they do not go with the settings."""
    try:
        yield
    except InputError:
        if directory.manifest["stages"].get("data", {}).get("attempt") == directory.attempt:
            directory.drop("data")
        raise


def run_stage(
    context: Context, directory: RunDirectory, stage: Stage, key: str, stored: str | None = None
) -> None:
    """Run a stage and commit it, unless it is finished.

    Parameters
    ----------
    context : Context
        What the stage sees.
    directory : RunDirectory
        Where it is committed.
    stage : Stage
    key : str
        Of its settings and its input.
    stored : str or None, default=None
        The name it is committed under. None: its own.
    """
    name = stored or stage.name
    if directory.finished(name, key) is not None:
        fields = {"event": "kept", "stage": name}
        logger.info("stage %s: finished by an earlier run, kept", name, extra={"fields": fields})
        return
    why = directory.why_stale(name, key, stage.version, stage.settings)
    logger.info("stage %s: %s", name, why, extra={"fields": {"event": "begin", "stage": name}})
    check_workers(directory.attempt_path)
    planned = None
    if stage.cost is not None:
        planned = plan_within(context.config, context.blocks.layout).stage(stage.name)
    footprint = Footprint(planned, context.config.memory_limit)
    passes, scratch = context.passes, directory.stage_scratch(name)
    context.checkpoint = directory.checkpoint_path(name, key)
    with footprint.tasks_at_once(), in_stage(name):
        stage.run(context, scratch)
    made = context.passes - passes
    record = footprint.record(read_attributes(scratch.path).get("measured_peak_bytes"))
    record |= {"passes": made, "bytes_read": made * context.blocks.nbytes if made else 0}
    record |= {"version": stage.version, "settings": stage.settings}
    directory.commit(name, key, record)


def _forget_others(directory: RunDirectory, names: set[str]) -> None:
    """Drop stages of a former configuration that this one does not have."""
    for name in set(directory.manifest["stages"]) - names:
        directory.drop(name)


def evaluate_result(
    path: str | Path,
    *,
    labels: str,
    n_repetitions: int = 20,
    n_init: int = 10,
    init: str = "k-means++",
) -> Result:
    """Score the selection of a finished run against labels.

    Parameters
    ----------
    path : str or Path
        A run directory.
    labels : str
        URI of the labels, as in ``evaluate.labels``.
    n_repetitions : int, default=20
        Repetitions of k-means.
    n_init : int, default=10
        Starts of each repetition; the best by inertia counts.
    init : {"k-means++", "random"}, default="k-means++"
        First centers; ``random`` takes rows.

    Returns
    -------
    result : Result
        With the figures as its ``evaluation``; the run directory is not changed.

    Raises
    ------
    InputError
        If there is no result, or the labels do not fit the data.
    """
    result = open_result(path)
    directory = RunDirectory(path).read()
    stored = directory.path / CONFIG
    config = _as_config(read_yaml(stored.read_text(), str(stored)), [])
    with tempfile.TemporaryDirectory(prefix="bigfs-") as folder:
        blocks = RowBlocks.from_any(
            directory.manifest["data"]["path"],
            scratch=Scratch(folder),
            transform=config.preprocess,
            rows=config.blocks.rows,
        )
        found = compare_with_all(
            blocks,
            result.selected,
            labels,
            n_repetitions=n_repetitions,
            n_init=n_init,
            init=init,
            random_state=config.random_state,
            memory_limit=config.memory_limit,
        )
    return dataclasses.replace(result, evaluation=found)


def inspect(path: str | Location, *, verify: bool = False) -> str:
    """Say in words what a run directory, a store or a data file holds.

    Parameters
    ----------
    path : str or Path
    verify : bool, default=False
        Recompute the checksums of a store's chunks.

    Raises
    ------
    InputError
        If the path is none of these.
    CorruptStoreError
        If ``verify`` finds missing or changed chunks.
    """
    folder = followed(path) if str(path).partition(":")[0] != "sklearn" else None
    if folder is not None and (folder / "manifest.json").is_file():
        return _inspect_run(folder, verify)
    return _inspect_matrix(path, verify)


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
        return "\n".join([*lines, (path / TABLE).read_text().rstrip()])
    done = ", ".join(manifest["stages"]) or "none"
    return "\n".join([*lines, f"finished stages: {done}"])


def _verified_stage(directory: RunDirectory, name: str) -> str:
    if name == "data":
        return _verified(directory.stage_path(name))
    what = "files are missing"
    if directory.is_intact(name):
        file = directory.damaged(name)
        if file is None:
            return f"{name}: all its files are there and match"
        what = f"{file} was changed"
    raise CorruptStoreError(
        f"{directory.stage_path(name)}: {what}. Give the command of the run again: it does stage "
        f"'{name}' anew."
    )


def _inspect_matrix(path: str | Location, verify: bool) -> str:
    source = open_matrix(path)
    rows = "an unknown number of" if source.n_samples is None else f"{source.n_samples:,}"
    lines = [f"{source.uri}: {rows} samples x {source.n_features:,} features, {source.dtype}"]
    if source.feature_names:
        shown = ", ".join(source.feature_names[:5])
        lines.append(f"features: {shown}{', ...' if source.n_features > 5 else ''}")
    if verify:
        if not is_store(path):
            raise InputError(f"{path} has no checksums: only stores made by bigfs have them.")
        lines.append(_verified(as_location(path)))
    return "\n".join(lines)


def _verified(path: Location) -> str:
    from bigfs.store.verify import verify

    report = verify(path)
    report.check()
    return f"{path.name}: {report.n_chunks} chunks, all checksums match"
