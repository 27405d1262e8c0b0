"""Evaluation of a selection against labels: k-means and nearest neighbors on its columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bigfs.blocks import BlockReader, RowBlocks
from bigfs.blocks.csr_kernels import compact
from bigfs.blocks.kernels import as_dense, correlations_of
from bigfs.blocks.lazy import rows_as_dask
from bigfs.config import Selection
from bigfs.config.sections import EvaluateConfig
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.seeds import derive_seed
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB, format_bytes, parse_bytes
from bigfs.evaluate.metrics import (
    count_nearest_errors,
    redundancy,
    redundancy_of,
)
from bigfs.evaluate.protocols import (
    Protocol,
    are_many,
    clustering_scores,
    count_distinct,
    dask_kmeans,
    kmeans_scores,
)
from bigfs.graph.representation import (
    gram_serves,
    principal_rows,
    principal_shape,
    principal_steps,
)
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.progress import silenced, track
from bigfs.runtime.scope import inline
from bigfs.selectors.cross import cross_pass
from bigfs.selectors.one_pass.strategies import random_numbers
from bigfs.selectors.redundancy import correlations_among
from bigfs.solvers.nested import explained_by
from bigfs.stages.scores import rank
from bigfs.store.csr import DENSE_LIMIT_BYTES, is_large
from bigfs.store.labels import check_order, load_labels, name_of
from bigfs.store.scratch import ArrayRef, Scratch
from bigfs.store.source import open_matrix

logger = logging.getLogger("bigfs")

_STRIPS = 4
# Number of random selections that a run is compared with, and largest number of rows for which
# their nearest-neighbor errors are computed as well.
N_DRAWS, _NEAREST_OF_CHANCE = 10, 20_000
# Number of evenly spaced features whose correlations represent those of all, if there are more.
CORRELATED = 500
# Memory for the distances of a block of rows, and for allocations of k-means of constant size.
JUDGING_BYTES = 64 * MIB
# A task of `_in_memory`: the number of a repetition of k-means, the first row and one past the last
# row of a strip of the nearest-neighbor search, or None for the measurements that are made once.
_Measurement = int | tuple[int, int] | None


def compare_with_all(
    blocks: RowBlocks, selected: np.ndarray, settings: EvaluateConfig, config: Selection
) -> dict[str, Any]:
    """Return NMI, ACC, Rand index and 1-NN error of the selected, of all and of random features.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    selected : ndarray of shape (n_selected,), int64
    settings : EvaluateConfig
        Settings of the evaluation, with the known classes.
    config : Selection
        Its seed and memory limit are used.

    Returns
    -------
    figures : dict
        JSON values: ``selected`` and ``all``, each as returned by `measure_selection`; ``chance``,
        as returned by `measure_selections`, if `chance_columns` is not None; and the settings used.
        ``all`` is missing if large sparse data would have to be converted to dense.

    Raises
    ------
    InputError
        If the labels cannot be read or do not fit the data.
    """
    random_state, memory_limit = config.random_state, config.memory_limit
    y, protocol = classes_and_protocol(blocks, settings, random_state)
    figures = {"selected": measure_selection(blocks, y, selected, protocol, memory_limit)}
    if can_judge_all(blocks, protocol):
        figures["all"] = measure_selection(blocks, y, None, protocol, memory_limit)
    if chance_columns(blocks.layout, len(selected)) is not None:
        few = protocol.nearest_neighbor and blocks.n_samples <= _NEAREST_OF_CHANCE
        chance = replace(protocol, nearest_neighbor=few)
        drawn = random_selections(blocks, len(selected), random_state)
        figures["chance"] = measure_selections(blocks, y, drawn, chance, memory_limit)
    judged_by = protocol.n_components if protocol.by_components(len(selected)) else None
    used = {name: getattr(protocol, name) for name in ("n_clusters", "n_repetitions", "n_init")}
    return {**figures, "labels": name_of(settings.labels), **used, "n_components": judged_by}


def classes_and_protocol(
    blocks: RowBlocks, settings: EvaluateConfig, random_state: int
) -> tuple[np.ndarray, Protocol]:
    """Return the known classes of the rows, as numbers from 0, and the evaluation protocol."""
    source, n = blocks.source, blocks.n_samples
    rows = source.row_dimensions
    y = load_labels(settings.labels, n, source.dropped, to_judge_by=True, rows=rows)
    check_order(settings.labels, source)
    given = settings.model_dump(exclude={"labels"})
    given["n_clusters"] = settings.n_clusters or int(y.max()) + 1
    return y, Protocol(**given, random_state=random_state)


def can_judge_all(blocks: RowBlocks, protocol: Protocol | None) -> bool:
    """Return True if all features can be evaluated: for large sparse data only by components."""
    by_components = protocol is not None and protocol.by_components(blocks.n_features)
    return by_components or not (blocks.sparse and is_large(blocks.layout))


def chance_columns(shape: Shape, width: int, n_draws: int = N_DRAWS) -> Shape | None:
    """Return the shape of the columns of all random selections, which one pass stores together.

    None if all features are selected, or the columns would take more than 2 GiB.
    """
    if width >= shape.n_features:
        return None
    columns = dense_columns(shape, n_draws * width)
    return columns if columns.nbytes <= DENSE_LIMIT_BYTES else None


def random_selections(blocks: RowBlocks, width: int, random_state: int) -> list[np.ndarray]:
    """Return ten random selections, equal to the first ones that `RandomSelection` draws."""
    constant = blocks.moments().constant
    draws = random_numbers(constant, N_DRAWS, random_state)
    return [np.sort(rank(numbers, constant)[:width]) for numbers in draws]


def dense_columns(shape: Shape, width: int) -> Shape:
    """Return the shape of ``width`` columns as dense blocks."""
    return replace(shape, n_features=width, n_entries=None, block_entries=None)


def in_memory_bytes(shape: Shape) -> int:
    """Return the bytes needed to cluster rows in one task: the rows and the copies of k-means."""
    return 3 * shape.nbytes


def component_steps(shape: Shape, n_components: int, memory_limit: int) -> tuple[list[Step], Shape]:
    """Return the steps of an evaluation by principal components, and the components' shape."""
    width, beside = min(n_components, shape.n_samples), 24 * shape.rows * CORRELATED
    steps = principal_steps(shape, width, gram_serves(shape, memory_limit))
    correlations = pass_over(shape, "correlations of a block's features", beside)
    return [*steps, correlations], principal_shape(shape, width)


def draw_bytes(columns: Shape, n_components: int | None, memory_limit: int) -> int:
    """Return the bytes needed to evaluate a random selection, given its columns, in one task."""
    needed, judged = 0, columns
    if n_components is not None and are_many(columns.n_features, n_components):
        steps, judged = component_steps(columns, n_components, memory_limit)
        needed = max(step.task_bytes for step in steps if not step.by_client)
        needed += sum(step.task_bytes for step in steps if step.by_client)
    return columns.nbytes + max(needed, in_memory_bytes(judged) + JUDGING_BYTES)


@single_thread()
def measure_selection(
    blocks: RowBlocks,
    y: np.ndarray,
    selected: np.ndarray | None,
    protocol: Protocol,
    memory_limit: int | str,
) -> dict[str, float]:
    """Evaluate a selection by k-means, nearest neighbors and the correlations within it.

    More than 100 columns are evaluated by their principal components, if the protocol says so. If
    three copies of the columns fit a worker, they are clustered by scikit-learn, each repetition in
    a task with its own seed, so that scores do not depend on the number of workers. Larger columns
    are clustered by dask-ml, whose centers depend on the row blocks. Nearest neighbors are exact in
    either case.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,), int64
        Known classes.
    selected : ndarray of shape (n_selected,), int64, or None
        None: all features.
    protocol : Protocol
    memory_limit : int or str
        Resident size promised for one worker process.

    Returns
    -------
    scores : dict of str to float
        Mean and standard deviation of each score of `clustering_scores` (``nmi_mean``,
        ``nmi_std``, ...), ``nearest_neighbor_error`` if the protocol requests it, and
        ``redundancy``, which is that of 500 columns if they are evaluated by components.

    Raises
    ------
    InputError
        If all columns of large CSR blocks are to be evaluated other than by components.
    """
    if selected is not None:
        with _columns_of(blocks, [selected]) as [columns]:
            return measure_selection(_opened(columns, blocks), y, None, protocol, memory_limit)
    if protocol.by_components(blocks.n_features):
        return _by_components(blocks, y, protocol, memory_limit)
    if blocks.sparse and is_large(blocks.layout):
        raise InputError(
            f"{blocks.source.uri}: all {blocks.n_features:,} features of sparse data of more than "
            f"{format_bytes(DENSE_LIMIT_BYTES)} in dense form can only be evaluated by principal "
            "components. Set evaluate.n_components to 50, or select fewer features."
        )
    blocks, scratch = blocks.dense(), blocks.scratch
    labels = scratch.put(scratch.unique("labels"), y)
    fits = in_memory_bytes(blocks.layout) <= task_budget(parse_bytes(memory_limit))
    scores = (_in_memory if fits else _by_blocks)(blocks, labels, protocol)
    scratch.remove(labels)
    return scores


def _by_components(
    blocks: RowBlocks, y: np.ndarray, protocol: Protocol, memory_limit: int | str
) -> dict[str, float]:
    """Evaluate many features by their principal components; measure the redundancy of some."""
    assert protocol.n_components is not None
    with blocks.scratch.temporary("judged") as scratch:
        few = np.unique(np.linspace(0, blocks.n_features - 1, CORRELATED).astype(np.int64))
        moments = blocks.moments()
        center = moments.mean if blocks.offset is None else moments.mean - blocks.offset
        shared = scratch.put("few", few), scratch.put("mean", center[few])
        products = blocks.reduce(_products_of, np.add, *shared, label="correlations")
        n_components = min(protocol.n_components, blocks.n_samples)
        gram, seed = gram_serves(blocks.layout, parse_bytes(memory_limit)), protocol.random_state
        rows, _, _ = principal_rows(blocks, n_components, seed, scratch, gram=gram)
        own = replace(protocol, n_components=None)
        scores = measure_selection(rows, y, None, own, memory_limit)
        return {**scores, "redundancy": redundancy_of(correlations_of(products))}


def _products_of(X: Any, first_row: int, columns: ArrayRef, mean: ArrayRef) -> np.ndarray:
    """Return ``S'S`` for the centered columns S of a block that ``columns`` selects."""
    S = as_dense(X[:, columns.load()]).astype(np.float64) - mean.load()
    return np.asarray(S.T @ S)


def measure_selections(
    blocks: RowBlocks,
    y: np.ndarray | None,
    selections: Sequence[np.ndarray | None],
    protocol: Protocol | None,
    memory_limit: int | str,
) -> dict[str, float]:
    """Evaluate one selection, or several random draws of one size, with or without labels.

    Parameters
    ----------
    blocks, memory_limit
        As in `measure_selection`.
    y, protocol
        As in `measure_selection`; None: use `measure_unlabeled`. The repetitions are divided among
        draws: all draws together take as many runs of k-means as one selection, but at least one
        each, with different seeds.
    selections : sequence of ndarray or None

    Returns
    -------
    scores : dict of str to float
        The scores of the single selection. For several draws, each score has ``SCORE_mean`` and
        ``SCORE_std`` over the draws (divisor n - 1), and a 95 % prediction interval for a further
        draw, ``SCORE_low`` to ``SCORE_high``: ``mean +- t std sqrt(1 + 1/n)``, where t is the 0.975
        quantile of Student's distribution with n - 1 degrees of freedom.
    """
    if len(selections) > 1:
        return _over_draws(_judged_draws(blocks, y, selections, protocol, memory_limit))
    if protocol is None or y is None:
        return measure_unlabeled(blocks, selections[0], memory_limit)
    return measure_selection(blocks, y, selections[0], protocol, memory_limit)


def _judged_draws(
    blocks: RowBlocks,
    y: np.ndarray | None,
    draws: Sequence[np.ndarray | None],
    protocol: Protocol | None,
    memory_limit: int | str,
) -> list[dict[str, float]]:
    """Return the scores of each draw; draws that fit a task are evaluated in parallel.

    The protocol of a draw has its share of the repetitions, and its own seed.
    """
    if protocol is None or y is None:
        return _one_by_one(len(draws), lambda i: measure_unlabeled(blocks, draws[i], memory_limit))
    n, limit, drawn = len(draws), parse_bytes(memory_limit), [d for d in draws if d is not None]
    width = len(drawn[0]) if drawn else blocks.n_features
    own = [_share_of(protocol, i, n) for i in range(n)]
    if chance_columns(blocks.layout, width, n) is None:
        judge = partial(measure_selection, memory_limit=limit)
        return _one_by_one(n, lambda i: judge(blocks, y, draws[i], own[i]))
    with _columns_of(blocks, drawn) as columns, blocks.scratch.temporary("classes") as folder:
        needed = draw_bytes(dense_columns(blocks.layout, width), protocol.n_components, limit)
        if needed > task_budget(limit):
            judge = partial(measure_selection, y=y, selected=None, memory_limit=limit)
            return _one_by_one(n, lambda i: judge(_opened(columns[i], blocks), protocol=own[i]))
        tasks, labels = list(zip(columns, own, strict=True)), folder.put("labels", y)
        shared = labels, blocks.rows, limit
        return run_tasks(_judge_draw, tasks, *shared, label="chance", unit="draws")


def _one_by_one(n: int, judge: Callable[[int], dict[str, float]]) -> list[dict[str, float]]:
    """Evaluate draws one after another, each with all workers."""
    judged = []
    with track("chance", n, "draws") as progress:
        for draw in range(n):
            with silenced():
                judged.append(judge(draw))
            progress.advance(1)
    return judged


def _share_of(protocol: Protocol, draw: int, n_draws: int) -> Protocol:
    """Return the protocol of a draw: its share of the repetitions, and its own seed."""
    seed = derive_seed(protocol.random_state, "draw", draw)
    return replace(protocol, n_repetitions=-(-protocol.n_repetitions // n_draws), random_state=seed)


def _judge_draw(
    draw: tuple[ArrayRef, Protocol], labels: ArrayRef, rows: int, memory_limit: int
) -> dict[str, float]:
    """Evaluate the stored columns of a draw in this thread, in memory since they are read often."""
    columns, protocol = draw
    with inline(), closing(Scratch()) as scratch:
        X: Any = columns.load()
        shape = Shape(len(X), X.shape[1], X.itemsize, rows, rows)
        if not gram_serves(shape, memory_limit):  # consistent with draws evaluated one by one
            X = compact(X)
        blocks = RowBlocks.from_any(X, scratch=scratch, rows=rows, sparse=True)
        return measure_selection(blocks, labels.load(), None, protocol, memory_limit)


def _over_draws(judged: list[dict[str, float]]) -> dict[str, float]:
    """Return mean, standard deviation and interval of draws' scores; see `measure_selections`."""
    from scipy.special import stdtrit

    n, summary = len(judged), dict[str, float]()
    reached = float(stdtrit(n - 1, 0.975) * np.sqrt(1 + 1 / n))
    for key in judged[0]:
        if key.endswith("_std"):
            continue
        values, name = [scores[key] for scores in judged], key.removesuffix("_mean")
        mean, std = float(np.mean(values)), float(np.std(values, ddof=1))
        summary |= {f"{name}_mean": mean, f"{name}_std": std}
        summary |= {f"{name}_low": mean - reached * std, f"{name}_high": mean + reached * std}
    return summary


@single_thread()
def measure_unlabeled(
    blocks: RowBlocks, selected: np.ndarray | None, memory_limit: int | str
) -> dict[str, float]:
    """Evaluate a selection without labels, in one pass: ``X'X_S`` of the centered columns.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    selected : ndarray of shape (n_selected,), int64, or None
        None: all features.
    memory_limit : int or str
        Resident size promised for one worker process.

    Returns
    -------
    scores : dict of str to float
        ``explained``: the share of a feature's variance that is explained by a linear regression on
        the selected features, averaged over all features that vary; missing if the products do not
        fit in memory. ``redundancy``: the mean absolute correlation of two selected features;
        missing if ``selected`` is None.
    """
    if selected is None:
        return {"explained": 1.0}
    if 4 * 8 * len(selected) * blocks.n_features > task_budget(parse_bytes(memory_limit)):
        return {"redundancy": redundancy_of(correlations_among(blocks, selected))}
    total = cross_pass(blocks, True, selected, None, label="explained")
    redundancy_score = redundancy_of(correlations_of(total.cross[selected]))
    varies = total.squares > 0
    explained = explained_by(total.cross.T, selected).sum(axis=0)
    shares = np.clip(explained[varies] / total.squares[varies], 0.0, 1.0)
    value = float(shares.mean()) if len(shares) else 0.0
    return {"explained": value, "redundancy": redundancy_score}


def _in_memory(blocks: RowBlocks, labels: ArrayRef, protocol: Protocol) -> dict[str, float]:
    n_samples = blocks.n_samples
    edges = np.linspace(0, n_samples, _STRIPS + 1, dtype=int).tolist()
    strips = list(zip(edges[:-1], edges[1:], strict=True)) if protocol.nearest_neighbor else []
    tasks: list[_Measurement] = [None, *strips, *range(protocol.n_repetitions)]
    shared = (blocks.start_pass(), n_samples, labels, protocol)
    (correlated, n_distinct), *results = run_tasks(
        _measure, tasks, *shared, label="evaluation", unit="measurements"
    )
    if n_distinct < protocol.n_clusters:
        logger.warning(
            f"The evaluated features have only {n_distinct:,} distinct rows: k-means forms that "
            f"many clusters, not {protocol.n_clusters:,}."
        )
    return _summarize(correlated, results[: len(strips)], results[len(strips) :], n_samples)


@contextmanager
def _columns_of(
    blocks: RowBlocks, selections: Sequence[np.ndarray]
) -> Iterator[Sequence[ArrayRef]]:
    """Store the columns of the given selections in one pass, which also checks their values."""
    n, dtype, rows, scratch = blocks.n_samples, blocks.dtype, blocks.rows, blocks.scratch
    with scratch.temporary("columns") as folder:
        wanted, stored = [], []
        for selected in selections:
            wanted.append(folder.put(folder.unique("selected"), selected.astype(np.int64)))
            name, shape = folder.unique("columns"), (n, len(selected))
            stored.append(folder.create(name, shape, dtype, rows))
        blocks.map_blocks(_take_columns, wanted, stored, label="columns")
        yield stored


def _opened(columns: ArrayRef, blocks: RowBlocks) -> RowBlocks:
    """Return stored columns as row blocks with the same row bounds as ``blocks``."""
    source: Any = open_matrix(columns.path)
    return RowBlocks(source, blocks.scratch, blocks.rows)


def _take_columns(
    X: Any, first_row: int, wanted: Sequence[ArrayRef], out: Sequence[ArrayRef]
) -> None:
    # The offset of CSR blocks is not added, since no score depends on the origin.
    for selected, stored in zip(wanted, out, strict=True):
        stored.write(first_row, as_dense(X[:, selected.load()]))


def _measure(
    task: _Measurement, reader: BlockReader, n_samples: int, labels: ArrayRef, protocol: Protocol
) -> Any:
    """Return the scores of a repetition, the number of errors of a strip, or, for None, the rest.

    The latter are the redundancy and the number of distinct rows.
    """
    X, y = reader.read(0, n_samples), labels.load()
    if isinstance(task, tuple):
        return count_nearest_errors(X[slice(*task)], task[0], y, [(0, X)])
    if task is None:
        return redundancy(X), count_distinct(X, protocol.n_clusters)
    seed = derive_seed(protocol.random_state, "evaluation", task)
    k, init, n_init = protocol.n_clusters, protocol.init, protocol.n_init
    return kmeans_scores(X, y, n_clusters=k, n_init=n_init, init=init, seed=seed)


def _by_blocks(blocks: RowBlocks, labels: ArrayRef, protocol: Protocol) -> dict[str, float]:
    """Evaluate columns larger than a worker: dask-ml's k-means, neighbors by pairs of blocks."""
    y, reader = labels.load(), blocks.start_pass()
    shape = (blocks.n_samples, blocks.n_features)
    # Values are centered, since dask-ml's distances lose all precision far from zero.
    read = partial(_centered, reader=reader, center=blocks.moments().mean)
    rows = rows_as_dask(read, shape, blocks.dtype, blocks.rows)
    k, init, n_init, scores = protocol.n_clusters, protocol.init, protocol.n_init, []
    with track("evaluation", protocol.n_repetitions, "repetitions") as progress, single_thread():
        for i in range(protocol.n_repetitions):
            seed = derive_seed(protocol.random_state, "evaluation", i)
            clusters, _ = dask_kmeans(rows, k, init=init, n_init=n_init, random_state=seed)
            scores.append(clustering_scores(y, clusters))
            progress.advance(1)
    gram, wrong = blocks.gram().gram, []
    if protocol.nearest_neighbor:
        shared = (reader, labels, tuple(blocks.bounds))
        wrong = run_tasks(_wrong_of_block, blocks.bounds, *shared, label="1-NN", unit="blocks")
    return _summarize(redundancy_of(correlations_of(gram)), wrong, scores, len(y))


def _centered(start: int, stop: int, reader: BlockReader, center: np.ndarray) -> np.ndarray:
    rows = reader.read(start, stop)
    return (rows - center).astype(rows.dtype, copy=False)


def _wrong_of_block(
    bounds: tuple[int, int],
    reader: BlockReader,
    labels: ArrayRef,
    others: tuple[tuple[int, int], ...],
) -> int:
    """Return the number of rows of a block whose nearest other row belongs to another class."""
    parts = ((other[0], reader.read(*other)) for other in others)
    return count_nearest_errors(reader.read(*bounds), bounds[0], labels.load(), parts)


def _summarize(
    correlated: float, wrong: list[int], scores: list[dict[str, float]], n_samples: int
) -> dict[str, float]:
    summary: dict[str, float] = {}
    for name in scores[0]:
        values = np.array([score[name] for score in scores])
        summary[f"{name}_mean"], summary[f"{name}_std"] = float(values.mean()), float(values.std())
    if wrong:
        summary["nearest_neighbor_error"] = sum(wrong) / n_samples
    summary["redundancy"] = correlated
    return summary
