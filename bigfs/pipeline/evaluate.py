"""Judge the selection of a finished run by labels."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from bigfs.blocks import RowBlocks
from bigfs.evaluate.selection import compare_with_all
from bigfs.evaluate.stage import judged_blocks
from bigfs.results.export import open_run_data
from bigfs.results.result import Result, open_result
from bigfs.selectors.configs import make_config
from bigfs.store.scratch import Scratch


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
    config = make_config(**result.settings)
    with tempfile.TemporaryDirectory(prefix="bigfs-") as folder:
        blocks = RowBlocks.from_any(
            open_run_data(result.path),
            scratch=Scratch(folder),
            transform=config.preprocess,
            rows=config.blocks.rows,
            sparse=True,
        )
        figures = compare_with_all(
            judged_blocks(blocks, config.method),
            result.selected,
            labels,
            n_repetitions=n_repetitions,
            n_init=n_init,
            init=init,
            random_state=config.random_state,
            memory_limit=config.memory_limit,
        )
    return dataclasses.replace(result, evaluation=figures)
