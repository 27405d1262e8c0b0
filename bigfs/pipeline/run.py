"""Run a pipeline: open its input once, plan once, and run the stages in its directory.

Metrics of the run are written in the Prometheus text format, for the textfile collector.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bigfs.config import Config, dump_yaml
from bigfs.core import errors
from bigfs.core.errors import EXIT_DONE, CorruptStoreError, InputError, StorageError
from bigfs.core.memory import task_budget
from bigfs.core.paths import OBJECT
from bigfs.evaluate.stage import stages_of
from bigfs.pipeline.data import (
    check_apart,
    check_outside,
    method_of_run,
    open_data,
    refuse_other,
    with_labels_of,
)
from bigfs.pipeline.update import compare_with_former, find_base, is_below, update_or_redo
from bigfs.plan import planning
from bigfs.results.annotate import check_output, output_stages
from bigfs.results.plots import check_report
from bigfs.results.result import Result, open_result
from bigfs.runtime.connection import REPORT_TITLE, connect, reporting_performance, scheduler_address
from bigfs.runtime.execute import cluster_failures, storage_failures
from bigfs.runtime.interrupt import run_apart
from bigfs.runtime.progress import showing
from bigfs.runtime.workers import package_versions, preflight, watch_cluster
from bigfs.selectors.registry import load_config
from bigfs.selectors.scoring import resolved, warn_of_data
from bigfs.stages.engine import Engine
from bigfs.stages.rundir import RunStages
from bigfs.store.location import Location, as_location, read_output, write_atomic
from bigfs.store.records import CONFIG, EARLIER, FEATURES, check_new_file, remove_report
from bigfs.store.retention import SERIES, finish_series
from bigfs.store.rundir import RunDirectory
from bigfs.store.source import open_matrix

logger = logging.getLogger("bigfs")
T = TypeVar("T")
# Start of the metrics file, and values of the metric exit_code that are not exit codes of errors.
_FIRST = b"# HELP bigfs_"
_RUNNING, _BUG = -1, 1
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def run(
    config: Config | str | Path | dict[str, Any],
    *,
    data: Any = None,
    overrides: list[str] | str | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
    performance_report: str | None = None,
) -> Result:
    """Run a pipeline and return its result.

    Stages that a former run finished are reused if their settings and their input are the same;
    the others run, and each is committed atomically.

    Parameters
    ----------
    config : Config, path of a YAML file, or dict
    data : frame, AnnData, array-like or None, default=None
        An object that is read instead of ``input.uri``, which may be left out. Labels are columns
        of it (``input.labels``), or an array (``evaluate.labels``). It is copied into the run
        directory, and read again whenever the run is repeated, to check that it is unchanged.
    overrides : list of str, str or None, default=None
        ``"a.b=c"`` settings that replace those of the file.
    scheduler : str or None, default=None
        Address of a Dask scheduler. None: the scheduler of the configuration or of the current
        scope.
    fresh : bool, default=False
        Ignore the stages that former runs of this directory finished.
    performance_report : str or None, default=None
        HTML file for Dask's performance report. Needs a cluster and the package bokeh.

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
    overrides = [overrides] if isinstance(overrides, str) else list(overrides or ())
    if data is not None:
        overrides.append(f"input.uri={OBJECT}{type(data).__name__}")
    config = load_config(config, overrides)
    with Metrics(config) as metrics:
        task_budget(config.memory_limit)
        check_outside(config)
        return _run(
            config, data, metrics, scheduler, fresh=fresh, performance_report=performance_report
        )


def _run(
    config: Config, data: Any, metrics: Metrics, scheduler: str | None, **options: Any
) -> Result:
    """Open the input, plan, and run the stages; ``options`` are those of `run_in_directory`."""
    source = open_matrix(config.input.uri if data is None else data, **config.opening)
    config = resolved(with_labels_of(config, data, source), source, data)
    place = planning.place_of(config, scheduler)
    config, why = planning.whole_if_cheaper(config, source, place)
    if why:
        logger.warning(why)
    planning.check_config(config, source)
    check_output(config)
    check_report(config.report, source.n_features)
    plan = planning.plan_input(config, source, place)
    planning.check_plan(config, plan)

    def work(directory: RunDirectory) -> Location:
        metrics.manifest = directory.manifest
        metrics.write()
        if config.series is not None:
            directory.manifest[SERIES] = config.series
        blocks, key = open_data(directory, config, source)
        warn_of_data(blocks, config.method)
        planned = planning.plan_for(config, plan, blocks).by_stage
        stages = [*stages_of(config), *output_stages(config)]
        former = find_base(config, blocks, stages, directory, key)
        store = RunStages(
            directory, config.memory_limit, former=former.same, committed=metrics.write
        )
        engine = Engine(store, blocks, key, base=former.base, keeps_start=config.update is not None)
        engine.run(stages, planned)
        if directory.manifest.pop(EARLIER, None):
            directory.write()
        if line := former.line(directory.manifest["stages"], store.taken_over):
            logger.info(line)
            directory.manifest.setdefault("notes", []).append(f"{line}.")
        store.forget_others({"data", *engine.used})
        directory.write_file(FEATURES, open_result(directory.path).features_csv())
        compare_with_former(config, directory)
        redone = {record["attempt"] for record in directory.manifest["stages"].values()}
        axis = config.report is not None and config.report.axis is not None
        if axis or not directory.is_repeat or directory.attempt in redone:
            remove_report(directory.path, directory.manifest["id"])  # of an earlier result
        return directory.path

    work_or_redo = partial(update_or_redo, work)
    path = run_in_directory(config, work_or_redo, (FEATURES,), scheduler=scheduler, **options)
    with storage_failures(str(path)):
        result = open_result(path)  # only now with its final manifest
    if config.series is not None:
        finish_series(config.run, config.series, config.keep)
    metrics.write(EXIT_DONE, result)
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
    """Lock the run directory of a configuration, connect to Dask and do the work.

    The work runs in a separate thread. An interrupt abandons it, closes the cluster if it was
    started here, removes the files of the attempt and releases the directory.

    Parameters
    ----------
    config : Config or Methods
    work : callable
        ``work(directory)`` runs stages in the open directory.
    outputs : sequence of str
        Names of the files that it writes besides the stages.
    scheduler, fresh, performance_report
        As in `run`.
    """
    directory = RunDirectory(config.run)
    if not fresh:
        refuse_other(config)
    report = None
    if performance_report is not None:
        check_apart(config.run, "--performance-report", performance_report)
        report = check_new_file(Path(performance_report), REPORT_TITLE)
    address = scheduler_address(scheduler, config.cluster)

    def checked_work() -> T:
        preflight(directory.attempt_path)
        _begin(directory, config)
        result = _work_or_reingest(work, directory)
        directory.finish()
        return result

    with (
        storage_failures(str(directory.path)),
        directory.open(fresh=fresh, outputs=(CONFIG, *outputs)),
        connect(address, config.cluster, config.memory_limit),
        cluster_failures("run"),
        reporting_performance(report),
        showing(str(directory.path)),
    ):
        return run_apart(checked_work, watch_cluster(config.cluster))


def _work_or_reingest(work: Callable[[RunDirectory], T], directory: RunDirectory) -> T:
    """Do the work; if the data in the run directory are damaged, ingest them again."""
    try:
        return work(directory)
    except CorruptStoreError as error:
        read = directory.manifest.get("data", {}).get("path")
        if "data" not in directory.manifest["stages"] or read != str(directory.stage_path("data")):
            raise  # the damaged store belongs to the user
        is_new = directory.manifest["stages"]["data"]["attempt"] == directory.attempt
        directory.drop("data")
        if is_new:
            raise StorageError(
                f"{error} This run wrote it: check the disk of {directory.path}, then run again."
            ) from error
        logger.warning("data in the run directory are damaged and are ingested again: %s", error)
        return _work_or_reingest(work, directory)


def _begin(directory: RunDirectory, config: Any) -> None:
    """Write the resolved configuration and record the start of the run in the manifest."""
    text, versions = dump_yaml(config), package_versions()
    former = ""
    with suppress(InputError):  # there is none yet, or it is damaged
        former = read_output(directory.path / CONFIG)
    directory.is_repeat = text == former and directory.manifest.get("versions") == versions
    made = directory.manifest["stages"].get("result", {}).get("committed")
    earlier = directory.manifest.get(EARLIER, {})
    if made and former and text != former and earlier.get("committed") != made:
        directory.manifest[EARLIER] = {"config": former, "committed": made}
        directory.write()
    directory.write_file(CONFIG, text)
    directory.manifest.pop("error", None)
    directory.manifest.update(status="running", versions=versions)
    directory.manifest["method"] = method_of_run(config)
    directory.write()


class Metrics(AbstractContextManager["Metrics"]):
    """Writer of the file ``output.metrics``, if one is set; a failed write is only logged.

    Used as a context manager around a run: if the block fails, the metrics report it. If another
    run already holds the directory, its metrics are left alone.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    manifest : dict
        Manifest of the run directory; without stages until the directory is open.
    """

    def __init__(self, config: Config) -> None:
        """Raise ConfigError if the file cannot be created or would replace a foreign file."""
        self._config = config
        self.manifest: dict[str, Any] = {"stages": {}}
        self._place: Location | None = None
        if config.output.metrics is None:
            return
        check_apart(config.run, "output.metrics", config.output.metrics)
        place = as_location(config.output.metrics)
        try:
            if isinstance(place, Path):
                place = check_new_file(place, _FIRST)
            elif place.exists() and not place.read_text().startswith(_FIRST.decode()):
                raise InputError(f"{place} already exists, and bigfs did not write it.")
        except (InputError, ValueError) as error:
            raise errors.ConfigError(f"output.metrics: {error}") from None
        self._place = place

    def write(self, code: int = _RUNNING, result: Result | None = None) -> None:
        """Write the metrics that are known so far, atomically.

        Parameters
        ----------
        code : int, default=-1
            The exit code of the run; -1 while it is running.
        result : Result or None, default=None
            Result of the run; None unless the run is finished.
        """
        if self._place is None:
            return
        run = self._config.series or as_location(self._config.run).absolute().name
        if code == EXIT_DONE and is_below(self._config, self.manifest):
            code = errors.EXIT_DIFFERENT
        lines = []
        try:
            for name, about, values in _samples(code, self.manifest, result):
                lines += [f"# HELP bigfs_{name} {about}", f"# TYPE bigfs_{name} gauge"]
                for stage, value in values.items():
                    of_stage = f',stage="{stage}"' if stage else ""
                    labels = f'run="{run.translate(_ESCAPED)}"{of_stage}'
                    lines.append(f"bigfs_{name}{{{labels}}} {value!r}")
            write_atomic(self._place, "\n".join(lines) + "\n")
        except (OSError, StorageError) as error:
            logger.warning("%s was not written: %s", self._config.output.metrics, error)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.write(errors.EXIT_INTERRUPTED)
        elif isinstance(error, Exception) and not isinstance(error, errors.RunLockedError):
            self.write(error.exit_code if isinstance(error, errors.BigfsError) else _BUG)


def _samples(
    code: int, manifest: dict[str, Any], result: Result | None
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield name, description and values of each metric.

    The keys of the values are names of stages, or "" for a metric of the run.
    """
    stages = manifest["stages"]
    yield "exit_code", "Exit code of the last run; -1 while it is running.", {"": code}
    if result is not None:
        new = float(manifest.get("updated_from", {}).get("new_rows", 0))
        yield "rows", "Rows of the data.", {"": float(result.n_samples)}
        yield "new_rows", "Rows added since the run that was updated, or 0.", {"": new}
    if stages:
        last = max(stage["committed"] for stage in stages.values())
        yield "finished_seconds", "Unix time at which the last stage finished.", {"": last}
        seconds = {name: stage["seconds"] for name, stage in stages.items()}
        yield "stage_seconds", "Duration of a stage in seconds.", seconds
        peaks = {name: float(stage["measured_peak_bytes"]) for name, stage in stages.items()}
        yield "stage_peak_bytes", "Peak memory of a process in bytes.", peaks
    if result is not None and result.recall is not None:
        yield "recall", "Share of the true neighbors in the graph.", {"": result.recall["value"]}
    if result is not None and "compared" in manifest:
        share = manifest["compared"]["share"]
        yield "selection_kept", "Share of the selection in common with the former run.", {"": share}
