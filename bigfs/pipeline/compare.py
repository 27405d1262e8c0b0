"""Comparison of methods on one data set: shared stages, evaluated selections, one table."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.config import Comparison, Config, Methods
from bigfs.config.comparison import ALL_FEATURES, CHANCE
from bigfs.config.sections import Auto
from bigfs.core.errors import InputError, MemoryLimitError, NumericalError
from bigfs.core.memory import task_budget
from bigfs.core.paths import OBJECT
from bigfs.evaluate.selection import can_judge_all, classes_and_protocol
from bigfs.evaluate.stage import check_labels, judged_blocks, judging_stage, stages_of
from bigfs.pipeline.data import check_outside, discarding_data, open_data, with_labels_of
from bigfs.pipeline.table import ComparisonResult, RankSummary, Row, run_table
from bigfs.plan.plan import Plan
from bigfs.plan.planning import check_config, check_plan, place_of, plan_for, plan_input
from bigfs.selectors.one_pass import RANDOM_SELECTION
from bigfs.selectors.registry import METHODS, load_comparison, paper_tables
from bigfs.selectors.scoring import check_settings, resolved, warn_of_data
from bigfs.solvers.agreement import Agreement
from bigfs.stages.curves import selected_features
from bigfs.stages.engine import Engine
from bigfs.stages.rundir import RunStages
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stability import Stability
from bigfs.store.labels import check_order, load_labels
from bigfs.store.location import Location, as_location
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import read_attributes
from bigfs.store.source import Source, open_matrix

logger = logging.getLogger("bigfs")


def compare(
    config: Methods | str | Path | dict[str, Any],
    *,
    data: Any = None,
    labels: Any = None,
    overrides: list[str] | str | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
) -> Any:
    """Compare several methods and settings on one data set, or run the table of a paper.

    Ingest, graph, eigenvectors and Gram matrix are computed once for all methods that share
    them. Everything that a former run of the directory finished is reused. Unless
    ``compare.chance`` is false, random selections are evaluated as well, and each row says whether
    it is better than chance.

    Parameters
    ----------
    config : Comparison, path of a YAML file, or dict
    data : frame, AnnData, array-like or None, default=None
        An object that is read instead of ``input.uri``, as in `run`.
    labels : array-like of shape (n_samples,), str or None, default=None
        Known classes to evaluate by, in place of ``evaluate.labels``: an array, the name of a
        column of ``data``, or their URI.
    overrides : list of str, str or None, default=None
        ``"a.b=c"`` settings that replace those of the file.
    scheduler : str or None, default=None
        Address of a Dask scheduler. None: the scheduler of the configuration or of the current
        scope.
    fresh : bool, default=False
        Ignore the stages that former runs of this directory finished.

    Returns
    -------
    result : ComparisonResult
        A `PaperResult` for the table of a paper (``pipelines/paper``). Also written to the run
        directory, as ``table.txt``, ``.csv``, ``.json`` and ``curves.svg``, ``.png``.

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
    >>> settings = {"run": "runs/irises", "input": {"uri": "sklearn:iris"},
    ...             "methods": ["max_variance", "laplacian_score"],
    ...             "n_features_to_select": [1, 2], "evaluate": {"labels": "sklearn:iris"}}
    >>> print(bigfs.compare(settings).text())  # doctest: +SKIP

    For a matrix in memory:

    >>> settings = {"run": "runs/mine", "methods": ["mcfs", "ndfs"], "n_features_to_select": [9]}
    >>> print(bigfs.compare(settings, data=X, labels=y).text())  # doctest: +SKIP
    """
    overrides = [overrides] if isinstance(overrides, str) else list(overrides or ())
    if data is not None:
        overrides.append(f"input.uri={OBJECT}{type(data).__name__}")
        if isinstance(labels, str):
            overrides.append(f"input.labels={json.dumps(labels)}")
            labels = None
    config = load_comparison(config, overrides, labels)
    if not isinstance(config, Comparison):
        if data is not None:
            raise InputError("The table of a paper reads the data sets that it names; omit data.")
        return paper_tables().run_paper(config, scheduler=scheduler, fresh=fresh)
    task_budget(config.memory_limit)
    fits = _fits(config)
    for fit in fits:
        check_outside(fit.config)
    check_outside(config)
    labels = {name for fit in fits for name in fit.config.opening["labels"] or ()}
    opening = {**config.input.opening, "labels": sorted(labels)}
    source = open_matrix(config.input.uri if data is None else data, **opening)
    config = with_labels_of(config, data, source)
    for fit in fits:
        fit.config = resolved(with_labels_of(fit.config, data, source), source, data)
    # Settings that cannot work are refused before anything is written.
    for fit in fits:
        check_config(fit.config, source)
    kept = None if config.input.missing == "drop_rows" else source.n_samples
    if config.evaluate is not None:
        load_labels(config.evaluate.labels, kept, source.dropped, to_judge_by=True,
                    rows=source.row_dimensions)  # fmt: skip
        check_order(config.evaluate.labels, source)
    place = place_of(fits[0].config, scheduler)
    for fit in fits:
        with _naming(fit.name):
            fit.plan = plan_input(fit.config, source, place)
            check_plan(fit.config, fit.plan, f"{fit.name}: ")

    def work(directory: RunDirectory) -> ComparisonResult:
        return _run(directory, config, source, fits)

    return run_table(config, work, scheduler=scheduler, fresh=fresh)


def compare_all(
    configs: Sequence[Methods], folder: str | Location, **options: Any
) -> tuple[list[ComparisonResult], RankSummary]:
    """Run several comparisons, and write the ranks of their methods.

    Parameters
    ----------
    configs : sequence of Comparison
        Comparisons with different run directories.
    folder : str, Path or ObjectPath
        Folder for the files of `RankSummary.write`.
    **options
        Options of `bigfs.compare`.

    Returns
    -------
    results : list of ComparisonResult
    summary : RankSummary

    Raises
    ------
    InputError
        If a configuration is the table of a paper, or two have the same run directory.
    """
    runs = [str(as_location(config.run).absolute()) for config in configs]
    twice = sorted({run for run in runs if runs.count(run) > 1})
    if twice:
        raise InputError(
            f"Comparisons that are ranked need different 'run' directories; {twice[0]} is "
            "given twice."
        )
    for config in configs:
        if not isinstance(config, Comparison):
            raise InputError(f"{config.run}: the table of a paper cannot be ranked.")
    results = [compare(config, **options) for config in configs]
    summary = RankSummary.of(results)
    summary.write(folder)
    return results, summary


@dataclass
class _Fit:
    """A fit of the comparison: its configuration, the numbers of features it serves, its plan."""

    name: str
    config: Config
    sizes: list[int]
    plan: Plan = field(init=False)


def _fits(config: Comparison) -> list[_Fit]:
    """Return the fits of a comparison.

    The fit of chance comes last, since it also serves the numbers of features that other methods
    choose themselves.
    """
    chosen, numbers = config.compare, config.n_features_to_select
    given = [m for m in numbers if not isinstance(m, Auto)]
    fits = [
        _Fit(entry.name, fitted, sizes)
        for entry in (config.entries(max(given)) if given else [])
        for fitted, sizes in fits_for(entry.config, given)
    ]
    rules = list(dict.fromkeys(number for number in numbers if isinstance(number, Auto)))
    fits += [
        _Fit(f"{entry.name} (auto {_rule(number, rules)})", entry.config, [])
        for number in rules
        for entry in config.entries(number)
    ]
    if chosen.chance:
        method = RANDOM_SELECTION.name
        settings = {"method": method, "name": CHANCE, method: {"n_draws": chosen.n_draws}}
        chance = config.entries(max(given, default=1), settings)[-1].config
        fits.append(
            _Fit(CHANCE, chance.model_copy(update={"stability": None, "redundancy": None}), given)
        )
    return fits


def _rule(number: Auto, rules: Sequence[Auto]) -> str:
    """Return the name of an automatic choice, with the settings that differ among ``rules``."""
    alike = [other for other in rules if other.auto == number.auto]
    own = {name: getattr(number, name) for name in ("share", "at_most")}
    parts = (f"{k} {v}" for k, v in own.items() if any(getattr(other, k) != v for other in alike))
    return ", ".join([number.auto, *parts])


def _run(
    directory: RunDirectory, config: Comparison, source: Source, fits: list[_Fit]
) -> ComparisonResult:
    # Selections are evaluated on the transformed data that most methods use, not on raw counts.
    common = next((f.config for f in fits if not METHODS[f.config.method].raw_counts), None)
    blocks, key = open_data(directory, common or fits[0].config, source)
    blocks.keeps_gram = True
    with discarding_data(directory):
        for fit in fits:
            check_settings(fit.config, blocks.n_samples, blocks.n_features)
            own = blocks.source
            check_labels(fit.config, blocks.n_samples, own.dropped, own.row_dimensions)
        y = protocol = None
        if config.evaluate is not None:
            y, protocol = classes_and_protocol(blocks, config.evaluate, config.random_state)
    warn_of_data(blocks, *(fit.config.method for fit in fits))
    limit = config.memory_limit
    store = RunStages(directory, limit, shared=True)
    engines = {blocks.transform.kind: Engine(store, blocks, key)}
    judged = blocks if common is not None else judged_blocks(blocks, fits[0].config.method)
    judging = engines.setdefault(judged.transform.kind, Engine(store, judged, key))
    settings = {}
    if protocol is not None and config.evaluate is not None:
        settings = {**config.evaluate.model_dump(), "n_clusters": protocol.n_clusters}
        settings["preprocess"] = judged.transform.kind

    def judge(selections: list[np.ndarray]) -> dict[str, Any]:
        """Return the scores of a selection, or of several random ones together."""
        stage = judging_stage(judged, selections, y, protocol, limit)
        return read_attributes(judging.run([stage])["evaluation"])

    rows: list[Row] = []
    if can_judge_all(judged, protocol):
        everything = np.arange(blocks.n_features)
        rows.append(Row(ALL_FEATURES, None, len(everything), everything, judge([everything]), 0.0))
    for fit in fits:
        logger.info("method %s, %s features", fit.name, _shown(fit.config.n_features_to_select))
        planned = plan_for(fit.config, fit.plan, blocks).by_stage
        kind = fit.config.preprocess
        if kind not in engines:  # a method that expects raw counts
            engines[kind] = Engine(store, blocks.transformed(kind), key)
        with _naming(fit.name):
            finished = engines[kind].run(stages_of(fit.config), planned)
        seconds = store.record_at(finished["result"])["seconds"]
        result = FeatureScores.open(finished["result"])
        selections = {m: result.selections(m) for m in fit.sizes}
        if "curves" in finished:
            chosen = selected_features(finished)
            selections[len(chosen)] = [chosen]
        elif fit.name == CHANCE:
            sizes = sorted({*fit.sizes, *(row.n_features for row in rows)} - {blocks.n_features})
            selections = {m: result.selections(m) for m in sizes}
        for m, drawn in selections.items():
            figures = judge(drawn), seconds, len(drawn), _stability(finished, m)
            rows.append(Row(fit.name, fit.config.method, m, drawn[0], *figures))
    rows.sort(key=lambda row: (row.method is not None, row.name != CHANCE))
    store.forget_others({"data"}.union(*(engine.used for engine in engines.values())))
    n_classes = None if y is None else int(y.max()) + 1
    about = config.input.uri, blocks.n_samples, blocks.n_features, n_classes, settings
    stages = dict(directory.manifest["stages"])
    return ComparisonResult(directory.path, *about, rows, stages)


@contextmanager
def _naming(method: str) -> Iterator[None]:
    """Add a note to errors of the data or the settings that names the method they occurred in."""
    try:
        yield
    except (InputError, MemoryLimitError, NumericalError) as error:
        error.add_note(
            f"The error is from method '{method}' of the comparison. Finished stages are kept: "
            "remove the method, or change its settings, and run again."
        )
        raise


def _shown(number: int | Auto) -> str:
    return f"auto {number.auto}" if isinstance(number, Auto) else str(number)


def _stability(finished: dict[str, Location], n_selected: int) -> Agreement | None:
    """Return the stability of a fit's selection of ``n_selected`` features; None if not measured.

    ``finished`` holds the locations of the finished stages by name.
    """
    if "stability" not in finished:
        return None
    details = FeatureScores.open(finished["stability"]).details
    return Stability.from_details(details).at(n_selected).stability


def fits_for(config: Config, sizes: list[int]) -> list[tuple[Config, list[int]]]:
    """Return the configurations to fit a method with, each with the numbers of features it serves.

    Parameters
    ----------
    config : Config
    sizes : list of int
        Numbers of features to select.
    """
    sizes = sorted(set(sizes))
    up_to = METHODS[config.method].one_fit_up_to(config.parameters)
    if (config.redundancy or config.least_gap) and math.isfinite(up_to):
        up_to = 0  # selections of different sizes are not nested then
    shared = [m for m in sizes if m <= up_to]
    groups = ([shared] if shared else []) + [[m] for m in sizes if m > up_to]
    return [(config.model_copy(update={"n_features_to_select": m[-1]}), m) for m in groups]
