"""The table of a paper: its protocol on the data sets that are there, beside the paper's values."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from bigfs.core.cost import Shape
from bigfs.core.memory import check_fits, task_budget
from bigfs.core.paths import LabelValues
from bigfs.pipeline.data import check_apart
from bigfs.pipeline.table import run_table
from bigfs.plan.plan import Place, make_plan
from bigfs.selectors.scoring import check_settings, choose_scoring, stages_of_selection
from bigfs.stages.engine import Engine
from bigfs.stages.rundir import RunStages
from bigfs.stages.stage import Inputs, Stage, unplanned_stage
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import Scratch, block_rows, chunk_rows, read_attributes
from pipelines.paper.datasets import (
    LOCALIZED,
    check_set,
    content_key,
    load_set,
    set_uri,
    why_unavailable,
)
from pipelines.paper.protocols import best_of_grid, by_draws, by_labels
from pipelines.paper.rows import PaperResult, PaperRow
from pipelines.paper.settings import ALL_FEATURES, PaperTable, SetConfig
from pipelines.paper.trials import CLASSES, Trial, started

logger = logging.getLogger("bigfs")
_VERSION = 1
# Stands for the classes that a method starts from, which do not change its stages.
_ANY_CLASSES = LabelValues(CLASSES, np.arange(2))
# Settings that no value depends on.
_NOT_OF_RESULTS = {"run", "sets", "only", "not_run", "data", "cluster", "title"}
_PROTOCOLS = {"draws": by_draws, "grid": best_of_grid, "labels": by_labels}


def run_paper(
    config: PaperTable, *, scheduler: str | None = None, fresh: bool = False
) -> PaperResult:
    """Run a paper's protocol and set our values beside the paper's.

    ``scheduler`` and ``fresh`` are those of `bigfs.compare`.

    Returns
    -------
    result : PaperResult
        Also written to the run directory, as ``table.txt``, ``.csv`` and ``.json``.

    Raises
    ------
    InputError
        If the configuration or a data set that is there cannot be used.
    MemoryLimitError
        If a data set does not fit a worker: the protocols hold it whole.
    """
    chosen = [
        dataset for dataset in config.sets if config.only is None or dataset.name in config.only
    ]
    reasons = {dataset.name: why for dataset in chosen if (why := why_unavailable(config, dataset))}
    for dataset in chosen:
        if dataset.name not in reasons:
            _check_before(config, dataset)

    def work(directory: RunDirectory) -> PaperResult:
        return _run(directory, config, chosen, reasons)

    return run_table(config, work, scheduler=scheduler, fresh=fresh)


def _run(
    directory: RunDirectory, config: PaperTable, chosen: list[SetConfig], reasons: dict[str, str]
) -> PaperResult:
    """Run the cases of the sets whose data are there."""
    rows: list[PaperRow] = []
    used: set[str] = set()
    for dataset in chosen:
        if dataset.name in reasons:
            rows += _rows_not_run(config, dataset, dataset.paper, "no data")
        else:
            rows += _rows_of_set(directory, config, dataset, used)
            rows += _rows_not_run(config, dataset, config.not_run, "not run")
    stages = {name: directory.manifest["stages"][name] for name in sorted(used)}
    remarks = {f"No data for {name}": why for name, why in reasons.items()}
    remarks |= {f"Not run, {name}": why for name, why in config.not_run.items()}
    return PaperResult(directory.path, config.title, config.protocol, rows, remarks, stages)


def _check_before(config: PaperTable, dataset: SetConfig) -> None:
    """Check a set before anything is written or any cluster is started."""
    task_budget(config.memory_limit)
    if dataset.uri != LOCALIZED:
        check_apart(config.run, dataset.name, set_uri(config, dataset))
    n_samples, n_features = check_set(config, dataset)
    chunk = chunk_rows(n_features, 8)
    shape = Shape(n_samples, n_features, 8, block_rows(n_features, 8, chunk), chunk)
    # Numbers of features above those of a set are left out, as long as there is one below.
    m = min(config.sizes(dataset))
    for entry in config.entries(dataset, n_clusters=2):
        settings = entry.config.model_copy(update={"n_features_to_select": m})
        check_settings(settings, None, n_features)
        scoring = Stage(entry.name, 1, {}, partial(choose_scoring, selection=settings))
        make_plan([scoring], shape, Place(config.memory_limit)).check()
    check_fits("table", 5 * shape.nbytes, config.memory_limit, f"{dataset.name} in memory")


def _rows_not_run(
    config: PaperTable, dataset: SetConfig, methods: Iterable[str], why: str
) -> list[PaperRow]:
    """Return the paper's rows of some methods, without values of ours."""
    m = config.sizes(dataset)[0] if config.protocol != "grid" else None
    rows = [
        PaperRow(
            dataset.name,
            case,
            method,
            None if method == ALL_FEATURES else m,
            score,
            why=why,
            paper=value,
        )
        for position, case in enumerate(_cases(dataset))
        for score in config.scores
        for method in methods
        if (value := dataset.value(method, score, position)) is not None
    ]
    return rows + _averages(rows)


def _cases(dataset: SetConfig) -> list[str]:
    """Return the names of a set's cases in the table; an empty one where there is one case."""
    return [str(number) for number in dataset.n_classes or []] or [""]


def _averages(rows: list[PaperRow]) -> list[PaperRow]:
    """Return the means over the numbers of classes, of what has several."""
    groups: dict[tuple[str, str, int | None], list[PaperRow]] = {}
    for row in rows:
        groups.setdefault((row.score, row.method, row.n_features), []).append(row)
    averages = []
    for cells in groups.values():
        if len(cells) > 1:
            paper, ours = (
                None if None in values else float(np.mean(values))
                for values in ([getattr(row, name) for row in cells] for name in ("paper", "value"))
            )
            case = replace(cells[0], case="average", value=ours, std=None, detail="", paper=paper)
            averages.append(case)
    return averages


def _rows_of_set(
    directory: RunDirectory, config: PaperTable, dataset: SetConfig, used: set[str]
) -> list[PaperRow]:
    """Return the rows of a set, from stages of their own: each case, and each method if it may."""
    rows: list[PaperRow] = []
    for position, case in enumerate(_cases(dataset)):
        of_case: list[PaperRow] = []
        for methods in _groups(config):
            part = config.model_copy(update={"methods": methods})
            name = _run_case(directory, part, dataset, case)
            used.add(name)
            for stored in read_attributes(directory.stage_path(name))["rows"]:
                value = None
                if stored["n_features"] in (None, config.sizes(dataset)[0]):
                    value = dataset.value(stored["method"], stored["score"], position)
                of_case.append(PaperRow(dataset.name, case, **stored, paper=value))
        rows += sorted(of_case, key=lambda row: config.scores.index(row.score))
    return rows + _averages(rows)


def _groups(config: PaperTable) -> list[list[Any]]:
    """Return the methods that share a stage: draws of classes all, else each, and all features."""
    if config.protocol == "draws":
        return [config.methods]
    return [*([method] for method in config.methods), []]


def _run_case(directory: RunDirectory, config: PaperTable, dataset: SetConfig, case: str) -> str:
    """Run the protocol unless a former run has; return the name of the stage with its rows."""
    work = directory.work_scratch("trials")

    def compute(_: Inputs, out: Scratch) -> None:
        protocol, draws = _PROTOCOLS[config.protocol], []
        for X, y in load_set(config, dataset):
            scratch = work.child(work.unique("trial"))
            trial = Trial(scratch.put("X", X), scratch.put("y", y), str(scratch.path))
            values = protocol(config, dataset, trial, y, int(case or 0))
            draws.append([asdict(value) for value in values])
            scratch.close()
        out.describe(rows=_mean_rows(draws))

    settings = {
        **config.model_dump(mode="json", exclude=_NOT_OF_RESULTS),
        "set": dataset.model_dump(mode="json", exclude={"paper"}),
        "case": case,
        # A method that changes gives other rows.
        "versions": {
            stage.name: stage.version
            for entry in config.entries(dataset, n_clusters=2)
            for stage in stages_of_selection(started(entry.config, _ANY_CLASSES))
        },
    }
    engine = Engine(
        RunStages(directory, config.memory_limit, shared=True), None, content_key(config, dataset)
    )
    engine.run([unplanned_stage("table", _VERSION, settings, compute)])
    return engine.used.pop()


def _mean_rows(draws: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of one draw, or their means over several."""
    if len(draws) == 1:
        return draws[0]
    means = []
    for of_draws in zip(*draws, strict=True):
        values = [row["value"] for row in of_draws]
        detail = f"mean of {len(of_draws)} draws, {min(values):.1f} to {max(values):.1f}"
        mean = {name: float(np.mean([row[name] for row in of_draws])) for name in ("value", "std")}
        means.append({**of_draws[0], **mean, "detail": detail})
    return means
