"""Reports of finished runs and comparisons, and evaluation of a selection against labels."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from pathlib import Path

from bigfs.blocks import RowBlocks
from bigfs.config import validated
from bigfs.config.sections import EvaluateConfig
from bigfs.core.errors import BigfsError, InputError
from bigfs.core.paths import check_writable, parse_json
from bigfs.core.yamltext import read_yaml
from bigfs.evaluate.selection import compare_with_all
from bigfs.evaluate.stage import judged_blocks
from bigfs.report.page import comparison_page, run_page
from bigfs.results.export import creating, open_run_data
from bigfs.results.result import Result, open_result
from bigfs.selectors.registry import make_config
from bigfs.store.location import Location, as_location, read_output, unnamed_file, write_atomic
from bigfs.store.records import CONFIG, REPORT, TABLE, check_new_file, is_own_report, report_mark
from bigfs.store.retention import opened_run
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import Scratch

logger = logging.getLogger("bigfs")


def write_report(path: str | Location, output: str | Path | None = None) -> Location:
    """Write the report of a finished run or comparison as one self-contained HTML file.

    Parameters
    ----------
    path : str, Path or ObjectPath
        A run directory.
    output : str, Path or None, default=None
        A new file. None: ``report.html`` in the run directory, where it replaces an earlier one.

    Returns
    -------
    place : Path or ObjectPath

    Raises
    ------
    InputError
        If the run has not finished, its data are gone, or ``output`` already exists.
    StorageError
        If the file cannot be written.
    """
    directory = opened_run(path)
    manifest, folder = directory.manifest, directory.path
    run_id = manifest.get("id", "")
    if (folder / TABLE).exists() and "result" not in manifest["stages"]:
        text, figure = (read_output(folder / name) for name in ("table.json", "curves.svg"))
        try:
            settings = read_yaml(read_output(folder / CONFIG), CONFIG)
            mark = report_mark(run_id)
            page = comparison_page(parse_json(text), figure, str(folder), settings, mark)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{folder}: table.json is damaged ({error}). Run the comparison again."
            ) from None
    else:
        page = run_page(open_result(path), report_mark(run_id))
    if output is not None:
        if not isinstance(new := as_location(output), Path):
            raise InputError(
                f"{new}: the report can only be written to a local file. Give a local path, or "
                f"none for {REPORT} in the run directory."
            )
        new = check_new_file(new)
        with creating(new), unnamed_file(new) as file:
            file.write(page.encode())
        return new
    place = folder / REPORT
    if place.exists() and not is_own_report(place, run_id):
        raise InputError(f"{place} exists, and bigfs did not write it. Give another file with -o.")
    if isinstance(place, Path):
        check_writable(place.parent, "the report (-o)")
    write_atomic(place, page)
    return place


def report_of_run(path: Location) -> list[str]:
    """Write the report of a finished run without ever raising; return the line that announces it.

    An existing report of this run is kept, since it belongs to the current result. If the report
    cannot be written, a warning is logged and the result is empty.
    """
    try:
        if is_own_report(path / REPORT, RunDirectory(path).read().manifest.get("id", "")):
            return [f"Report: {path / REPORT}"]
        return [f"Report: {write_report(path)}"]
    except Exception as error:
        reason = str(error) if isinstance(error, BigfsError) else repr(error)
        logger.warning("the report was not written: %s", reason)
        return []


def evaluate_result(
    path: str | Path,
    *,
    labels: str,
    n_repetitions: int = 20,
    n_init: int = 1,
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
    n_init : int, default=1
        Initializations of each repetition; the one with the lowest inertia counts.
    init : {"k-means++", "random"}, default="k-means++"
        Initial centers; ``random`` uses random rows.

    Returns
    -------
    result : Result
        Result with the scores as its ``evaluation``; the run directory is not changed.

    Raises
    ------
    InputError
        If there is no result, or the labels do not fit the data.
    """
    result = open_result(path)
    config = make_config(**result.settings)
    given = {"labels": labels, "n_repetitions": n_repetitions, "n_init": n_init, "init": init}
    settings = validated(EvaluateConfig, given, "evaluate", nested=False)
    with tempfile.TemporaryDirectory(prefix="bigfs-") as folder:
        blocks = RowBlocks.from_any(
            open_run_data(result.path),
            scratch=Scratch(folder),
            transform=config.preprocess,
            rows=config.blocks.rows,
            sparse=True,
        )
        judged = judged_blocks(blocks, config.method)
        figures = compare_with_all(judged, result.selected, settings, config)
    return dataclasses.replace(result, evaluation=figures)
