"""Compare methods on one data set: shared stages, one evaluation of each selection, one table."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.comparison.fits import SharedFits, fits_for
from bigfs.comparison.paper_table import PaperResult
from bigfs.comparison.papers import run_paper
from bigfs.comparison.table import TABLES, ComparisonResult, Row
from bigfs.comparison.trials import selection
from bigfs.config import Comparison, PaperTable, load_comparison, make_comparison
from bigfs.config.comparison import Entry
from bigfs.context import Context
from bigfs.core.memory import task_budget
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection
from bigfs.pipeline import data_stage, discarding_data, run_in_directory
from bigfs.planning import check_plans
from bigfs.stages import Stage, check_apart, check_labels, check_outside, check_settings
from bigfs.store.labels import load_classes
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import Scratch, read_attributes
from bigfs.store.source import open_matrix

logger = logging.getLogger("bigfs")
ALL_FEATURES = "all features"


def compare(
    config: Comparison | PaperTable | str | Path | dict[str, Any],
    *,
    overrides: list[str] | None = None,
    scheduler: str | None = None,
    fresh: bool = False,
) -> ComparisonResult | PaperResult:
    """Compare several methods and settings on one data set, or run the table of a paper.

    Ingest, graph, eigenvectors and Gram matrix are computed once for all methods that share
    them. Whatever a former run of the directory finished is taken over.

    Parameters
    ----------
    config : Comparison, PaperTable, path of a YAML file, or dict
    overrides : list of str or None, default=None
        ``"a.b=c"`` settings that replace those of the file.
    scheduler : str or None, default=None
        Address of a Dask scheduler. None: what the configuration or the scope says.
    fresh : bool, default=False
        Forget what former runs of this directory finished.

    Returns
    -------
    result : ComparisonResult or PaperResult
        Also written to the run directory, as ``table.txt``, ``.csv``, ``.json`` and
        ``curves.svg``, ``.png``.

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
    """
    config = _as_comparison(config, overrides or [])
    if isinstance(config, PaperTable):
        return run_paper(config, scheduler=scheduler, fresh=fresh)
    entries = _check_before(config)
    check_plans([entry.config for entry in entries], scheduler=scheduler)

    def work(directory: RunDirectory) -> ComparisonResult:
        result = _run(directory, config, entries)
        directory.remove_files(TABLES)
        result.write(directory)
        return result

    return run_in_directory(config, work, TABLES, scheduler=scheduler, fresh=fresh)


def _as_comparison(
    config: Comparison | PaperTable | str | Path | dict[str, Any], overrides: list[str]
) -> Comparison | PaperTable:
    if isinstance(config, (Comparison, PaperTable)):
        return config
    if isinstance(config, dict):
        return make_comparison(**config)
    return load_comparison(config, overrides)


def _check_before(config: Comparison) -> list[Entry]:
    """Refuse what cannot work before anything is written or any cluster is started."""
    task_budget(config.memory_limit)
    for entry in config.entries(max(config.n_features_to_select)):
        check_outside(entry.config)
    check_apart(config.run, "evaluate.labels", config.evaluate.labels)
    source = open_matrix(config.input.uri, variable=config.input.variable)
    entries = config.entries(max(config.n_features_to_select))
    kept = None if config.input.missing == "drop_rows" else source.n_samples
    for entry in entries:
        check_settings(entry.config, source.n_samples, source.n_features)
        check_labels(entry.config, kept)
    load_classes(config.evaluate.labels, kept)
    return entries


def _run(directory: RunDirectory, config: Comparison, entries: list[Entry]) -> ComparisonResult:
    data_path, data_key = data_stage(directory, entries[0].config)
    directory.manifest["data"] = {"path": str(data_path), "key": data_key}
    work = directory.work_scratch("shared")
    blocks = RowBlocks.from_any(
        data_path, scratch=work, transform=config.preprocess, rows=config.blocks.rows
    )
    blocks.keeps_gram = True
    with discarding_data(directory):
        for entry in entries:
            check_settings(entry.config, blocks.n_samples, blocks.n_features)
            check_labels(entry.config, blocks.n_samples)
        y = load_classes(config.evaluate.labels, blocks.n_samples)
    fits = SharedFits(directory, data_path, data_key, blocks, work, entries[0].config)
    judge = _Judge(config, fits, y)
    rows = [judge.row(ALL_FEATURES, None, np.arange(blocks.n_features), 0.0)]
    for entry in entries:
        for n_fit, sizes in fits_for(entry.config, config.n_features_to_select):
            logger.info("method %s, %d features", entry.name, n_fit)
            stored = fits.fit(entry.config.model_copy(update={"n_features_to_select": n_fit}))
            seconds = directory.manifest["stages"][stored]["seconds"]
            for m in sizes:
                chosen = selection(directory.stage_path(stored), m)
                rows.append(judge.row(entry.name, entry.config.method, chosen, seconds))
    stages = {
        name: record
        for name, record in directory.manifest["stages"].items()
        if name == "data" or name in fits.used
    }
    for name in set(directory.manifest["stages"]) - set(stages):
        directory.drop(name)
    return ComparisonResult(
        directory.path,
        config.input.uri,
        blocks.n_samples,
        blocks.n_features,
        int(y.max()) + 1,
        judge.settings,
        rows,
        stages,
    )


class _Judge:
    """Evaluates selections, equal ones once, and keeps what is finished."""

    def __init__(self, config: Comparison, fits: SharedFits, y: np.ndarray) -> None:
        self._config, self._fits, self._y = config, fits, y
        chosen = config.evaluate
        self._protocol = Protocol(
            chosen.n_clusters or int(y.max()) + 1,
            chosen.n_repetitions,
            chosen.n_init,
            chosen.init,
            chosen.nearest_neighbor,
            config.random_state,
        )
        self.settings = {**chosen.model_dump(), "n_clusters": self._protocol.n_clusters}
        self._classes = hashlib.sha256(np.ascontiguousarray(y).tobytes()).hexdigest()[:16]

    def row(self, name: str, method: str | None, selected: np.ndarray, seconds: float) -> Row:
        """Return a row of the table."""
        everything = len(selected) == self._fits.blocks.n_features
        settings = {
            **vars(self._protocol),
            "classes": self._classes,
            "selected": None if everything else selected.tolist(),
            "preprocess": self._config.preprocess,
            "rows": self._fits.blocks.rows,
        }

        def measure(context: Context, out: Scratch) -> None:
            columns = None if everything else selected
            limit = self._config.memory_limit
            found = measure_selection(context.blocks, self._y, columns, self._protocol, limit)
            out.describe(**found)

        fits = self._fits
        stored = fits.run(Stage("evaluation", 1, settings, measure))
        scores = read_attributes(fits.directory.stage_path(stored))
        return Row(name, method, len(selected), selected, scores, seconds)
